"""The data structures of the compiler: dtypes, operations, index expressions, views, Nodes, Kernels
and UOps.

The intermediate forms are immutable, and their printers are here. May import nothing.
"""
