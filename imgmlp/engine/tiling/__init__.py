"""The block program: a step's kernels over tiles of a batch's rows, in one launch.

May import passes, ir.
"""
