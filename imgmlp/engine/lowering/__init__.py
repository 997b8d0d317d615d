"""Kernels to UOps: one file for each kind of kernel.

May import passes, ir.
"""
