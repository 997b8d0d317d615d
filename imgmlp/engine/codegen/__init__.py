"""UOps to OpenCL C, with the building blocks of imgmlp/kernels. Nobody else writes it.

May import ir.
"""
