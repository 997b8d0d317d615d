"""A compiled step: bound to a device's memory, replayed, or interpreted by NumPy.

May import compiler, device, oracle, ir.
"""
