"""What users write with: Tensors, layers, optimizers, loops, compiled steps.

May import operations, runtime, device, ir.
"""
