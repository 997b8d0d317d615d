"""The reference in NumPy that every device is compared with.

It runs each intermediate form of a step, and reports invalid accesses and data races. May import
ir.
"""
