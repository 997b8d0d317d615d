"""One training step of a latent model: its forward pass, its loss and what the optimiser updates.

Knows no schedule, no target and no file. May import bitstream, training, latent, engine, image.
"""
