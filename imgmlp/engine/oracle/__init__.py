"""What a step means, in NumPy: each form of it is run there and watched for faults.

The reference that every device is compared with. May import ir.
"""
