"""Measures the speed of this machine: imgmlp and others do the same work in one run.

May import child, codec, engine, output_files, terminal, text.
"""
