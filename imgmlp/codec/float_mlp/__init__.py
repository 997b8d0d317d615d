"""A coordinate network of floats in a weights.npz file: `imgmlp train`.

Knows no other codec. May import training, engine, image.
"""
