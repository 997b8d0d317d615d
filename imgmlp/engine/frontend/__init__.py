"""What users write with: Tensors, gradients, layers, optimizers, compiled steps.

May import runtime, device, ir.
"""
