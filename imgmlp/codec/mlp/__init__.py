"""The codec `mlp`: a coordinate network of whole numbers in an .imlp file.

Knows no other codec. May import bitstream, training, engine, image, child.
"""
