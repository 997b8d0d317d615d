"""The codec: a picture as the weights of a small network.

Uses the engine's public names only and never touches OpenCL. `pipeline` tells the story;
import from the modules themselves, so that looking at a file needs no engine.
"""
