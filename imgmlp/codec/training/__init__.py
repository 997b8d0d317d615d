"""What every codec's training needs: targets, checkpoints, memory advice, pictures in pieces.

Imports `bitstream`, the engine's public names, and `imgmlp.files` and `imgmlp.image`; knows no
network.
"""
