"""Bytes and the whole numbers in them: container, metadata, range coder, probabilities, step sizes.

Knows no engine, no pictures and no networks. May import metadata.
"""
