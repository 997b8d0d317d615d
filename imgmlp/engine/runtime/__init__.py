"""A compiled step: bound to a device's memory, replayed, or interpreted by NumPy.

Imports the compiler, device, oracle and ir.
"""
