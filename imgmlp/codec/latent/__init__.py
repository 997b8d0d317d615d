"""The latent codec: grids of whole numbers, and the small networks that expect and draw them.

Imports the engine's public names, codec.bitstream and codec.training, and nothing of other codecs.
"""
