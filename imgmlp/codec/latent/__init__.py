"""The latent codec: grids of whole numbers, and the small networks that expect and draw them.

Knows no other codec. May import bitstream, training, engine, image.
"""
