"""OpenCL C by hand: the building blocks, as *.cl files, that generated kernels call.

Only what the generator cannot express. May import nothing.
"""
