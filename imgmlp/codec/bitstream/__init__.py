"""Bytes and the whole numbers in them: container, range coder, probabilities, step sizes.

Imports `imgmlp.errors` only; knows no engine, no pictures and no networks.
"""
