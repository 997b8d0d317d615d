"""What a picture costs by imgmlp and by others, and pages that show it.

May import codec, engine, image, metadata, output_files, text.
"""
