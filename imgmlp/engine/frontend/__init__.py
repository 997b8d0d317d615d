"""What users write with: Tensors, gradients, layers, optimizers, compiled steps.

Imports runtime, device and ir.
"""
