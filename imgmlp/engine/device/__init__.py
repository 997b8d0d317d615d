"""Hardware: finding devices, their memory, queues and built kernels.

Knows no Tensors, graphs or kernels of the compiler. Imports nothing else of the engine but
facts in ir/target.
"""
