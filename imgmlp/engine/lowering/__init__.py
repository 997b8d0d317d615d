"""Kernels to UOps: one file for each kind of kernel.

Imports ir and passes.
"""
