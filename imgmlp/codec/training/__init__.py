"""What every codec's training needs: loop, targets, checkpoints, memory advice, pictures in pieces.

Knows no network. May import bitstream, engine, output_files, image.
"""
