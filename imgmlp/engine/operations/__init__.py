"""What a Tensor can do, family by family, as Nodes; and the gradient of each.

May import device, oracle, ir.
"""
