"""How a latent model is trained and rounded: schedules, targets, windows and the search for steps.

Knows nothing of terminals and files. May import bitstream, training, latent, latent/step, engine,
text, image, child.
"""
