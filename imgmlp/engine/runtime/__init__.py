"""A compiled step: kept, bound to a device's memory, replayed, or interpreted by NumPy.

May import compiler, device, oracle, ir, source_digest.
"""
