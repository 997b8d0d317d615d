"""What the compiler speaks of: dtypes, operations, symbolic indices, views, Nodes, Kernels, UOps.

Each form is immutable and has its printer here. May import nothing.
"""
