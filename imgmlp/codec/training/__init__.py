"""What every codec's training needs: targets, checkpoints, memory advice, pictures in pieces.

Knows no network. May import bitstream, engine, output_files, image.
"""
