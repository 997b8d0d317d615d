"""A coordinate network of floats in a weights.npz file: `imgmlp train`.

Imports `training` and the engine's public names; no other codec.
"""
