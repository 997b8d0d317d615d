"""Hardware: finding devices, their memory, queues and built kernels.

Knows no Tensors, graphs or kernels of the compiler. May import child, ir/target.py.
"""
