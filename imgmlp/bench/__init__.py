"""The speed of this machine: imgmlp beside others at the same job, in one run.

May import child, codec, engine, output_files, terminal, text.
"""
