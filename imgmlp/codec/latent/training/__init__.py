"""How a latent model is trained and rounded: its step, as a whole or in windows, and the schedule.

Knows nothing of terminals and files. May import bitstream, training, latent, engine, text, image,
child.
"""
