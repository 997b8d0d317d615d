"""Views and symbolic expressions: movements copy nothing, and indices are simplified.

python examples/views.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, open_device
from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.conditions import xor
from imgmlp.engine.ir.symbolic import Expr, Var


def bounds(text: str, x: Expr, expected: tuple[int, int]) -> None:
    print(f"  {text:<16} = {x!s:<10} in [{x.lo}, {x.hi}]")
    np.testing.assert_equal((x.lo, x.hi), expected)


def expressions() -> None:
    """Bounds and simplification of index expressions."""
    a, b = Var("a", 0, 10), Var("b", 0, 10)
    print("with a and b from 0 to 10:")
    bounds("a*10", a * 10, (0, 100))
    bounds("a + b", a + b, (0, 20))
    bounds("(a*40 + b) // 20", (a * 40 + b) // 20, (0, 20))
    bounds("a ^ (a ^ b)", xor(a, xor(a, b)), (0, 10))
    bounds("a ^ -1", xor(a, -1), (-11, -1))
    np.testing.assert_equal(str((a * 40 + b) // 20), "(a*2)")
    bounds("(a + b*10) % 10", (a + b * 10) % 10, (0, 9))
    np.testing.assert_equal(str((a + b * 10) % 10), "(a%10)")
    np.testing.assert_equal(xor(a, xor(a, b)), b)
    x = (a * 3 + b) // 4
    print(f"  in OpenCL C, where no index is negative, {x} is {x.render('/')}")
    np.testing.assert_equal(x.render("/"), "(((a*3)+b)>>2)")


def accesses() -> None:
    """A matrix of 10 x 10 without data, transposed and flattened."""
    matrix = Access.of((10, 10))
    steps = {"10 x 10": matrix, "transposed": matrix.permute((1, 0))}
    steps["in four axes"] = steps["transposed"].reshape((5, 2, 5, 2))
    flat = steps["flat again"] = steps["in four axes"].reshape((100,))
    print("\nshape and strides, from the buffer to what is seen:")
    for name, access in steps.items():
        print(f"  {name:<14} {access}{', contiguous' if access.contiguous else ''}")
    offset, _ = flat.index([Var("idx0", 0, 99)])
    print(f"  element idx0 of it lies at {offset}")
    np.testing.assert_equal(str(offset), "(((idx0%10)*10)+(idx0//10))")
    np.testing.assert_equal(matrix.contiguous and not flat.contiguous, True)

    places = offset.evaluate({"idx0": np.arange(100)})
    np.testing.assert_array_equal(places, np.arange(100).reshape(10, 10).T.reshape(-1))

    back = flat.reshape((10, 10)).permute((1, 0)).simplify()
    print(f"  transposed a second time: {back}, contiguous: {back.contiguous}")
    np.testing.assert_equal(back.contiguous, True)
    try:
        flat.permute((1, 0))
    except ValueError as refused:
        print(f"  refused: {refused}")
    else:
        raise AssertionError("a permute of an axis that is not there must be refused")


def tensors(device: AnyDevice) -> None:
    """The same on a device: all movements of an expression become one kernel's indices."""
    array = np.arange(100, dtype=np.float32).reshape(10, 10)
    x = Tensor(array, device, name="x")
    moved = x.transpose().reshape(100)[::-3].pad((1, 2)).reshape(1, -1).expand(4, 37)
    program = compile(lambda: {"y": moved}, device)
    program.run()
    print(f"\nfive movements in one kernel:\n{program.stages.show('procedure')}")
    expected = np.broadcast_to(np.pad(array.T.reshape(-1)[::-3], (1, 2)), (4, 37))
    np.testing.assert_array_equal(program.read("y"), expected)
    np.testing.assert_equal(program.stages.figures()["launches"], 1)


def main(device: AnyDevice) -> None:
    expressions()
    accesses()
    tensors(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
