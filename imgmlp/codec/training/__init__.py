"""What every codec's training needs: its loop, targets, checkpoints, memory advice, and pieces.

Knows no codec's network. May import bitstream, engine, output_files, source_digest, text,
image, child.
"""
