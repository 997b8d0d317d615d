"""The codec `mlp`: a coordinate network of whole numbers in an .imlp file.

Imports `bitstream`, `training` and the engine's public names; no other codec.
"""
