"""Type promotion, selections that become masked loads, and XOR that cancels.

python examples/promotion.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, open_device

OUTSIDE = 0.0


def promotion(device: AnyDevice) -> None:
    """A Python number takes the Tensor's dtype if possible; two Tensors are promoted."""
    half = Tensor(np.float16([1.5, 2.5]), device)
    small, large = Tensor(np.int8([1, 2]), device), Tensor(np.uint8([200, 250]), device)
    flags = Tensor(np.array([True, False]), device)
    found = {
        "half + 3": half + 3,
        "half + 3.5": half + 3.5,
        "half + f32": half + Tensor([1.0, 2.0], device),
        "i8 + 3": small + 3,
        "i8 + u8": small + large,
        "i8 + 0.5": small + 0.5,
        "bool + 1": flags + 1,
    }
    expected = [dtype.f16, dtype.f16, dtype.f32, dtype.i8, dtype.i32, dtype.f32, dtype.i32]
    for (text, value), kind in zip(found.items(), expected, strict=True):
        print(f"  {text:<12} is {value.dtype.name:<5} {value.numpy()}")
        np.testing.assert_equal(value.dtype.name, kind.name)
    np.testing.assert_array_equal(found["half + 3"].numpy(), np.float16([4.5, 5.5]))
    np.testing.assert_array_equal(found["i8 + u8"].numpy(), [201, 252])

    # A sum of halves is added up in float32: in float16 it would stop growing at 2048.
    ones = Tensor(np.ones(4096, np.float16), device)
    print(f"  4096 halves of 1 add up to {ones.sum().item()}")
    np.testing.assert_equal(ones.sum().item(), 4096.0)


def folding(device: AnyDevice) -> None:
    """A selection by position needs no WHERE: nothing is loaded outside of it."""
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    x = Tensor(array, device, name="x")
    column = Tensor.arange(4, device=device).reshape(1, 4)
    kept = Tensor.where(column < 2, x.cast(dtype.f32), OUTSIDE)
    program = compile(lambda: {"y": kept}, device)
    program.run()
    listing = program.stages.show("uops")
    print(listing)
    np.testing.assert_array_equal(program.read("y"), np.where(np.arange(4) < 2, array, 0))
    np.testing.assert_equal(["WHERE" in listing, "LOAD" in listing], [False, True])


def exclusive_or(device: AnyDevice) -> None:
    """y ^ (y ^ x) is x: no XOR remains in the graph. x ^ -1 is the bitwise complement of x."""
    a, b = np.int32([3, -5, 0]), np.int32([12, 7, -1])
    x, y = Tensor(a, device, name="x"), Tensor(b, device, name="y")
    program = compile(lambda: {"back": (y ^ (y ^ x)) * 2, "inverted": x ^ -1}, device)
    program.run()
    print(program.stages.show("nodes"))
    np.testing.assert_equal(program.stages.show("nodes").count("XOR"), 1)
    np.testing.assert_array_equal(program.read("back"), a * 2)
    np.testing.assert_array_equal(program.read("inverted"), ~a)
    # The minimum is the maximum of what is inverted, by an inverse for each kind of dtype.
    np.testing.assert_array_equal(x.minimum(y).numpy(), np.minimum(a, b))


def main(device: AnyDevice) -> None:
    print("dtypes of answers:")
    promotion(device)
    print("\nwhere(column < 2, x, 0), with x cast: instructions")
    folding(device)
    print("\ny ^ (y ^ x), twice, and x ^ -1: graph")
    exclusive_or(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
