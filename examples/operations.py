"""Operations of Tensors and their gradients, compared with NumPy.

    python examples/operations.py [DEVICE]

All results and all gradients are outputs of one program. The gradients are compared with finite
differences of the NumPy functions in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, open_device

# The first function is given a Tensor of [2, 3, 4], the second the same as an array.
Pair = tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], Any]]
COLUMN = np.array([[[0.5], [-1.0], [2.0]]])  # [1, 3, 1]
MATRIX = np.linspace(-1, 1, 20).reshape(4, 5)

OPERATIONS: dict[str, Pair] = {
    "x + 2": (lambda x: x + 2, lambda x: x + 2),
    "1 - x": (lambda x: 1 - x, lambda x: 1 - x),
    "3 / x": (lambda x: 3 / x, lambda x: 3 / x),
    "x * column": (lambda x: x * COLUMN, lambda x: x * COLUMN),
    "x + one number of x": (lambda x: x + x[0, 1, 2], lambda x: x + x[0, 1, 2]),
    "maximum": (lambda x: x.maximum(COLUMN), lambda x: np.maximum(x, COLUMN)),
    "minimum": (lambda x: x.minimum(COLUMN), lambda x: np.minimum(x, COLUMN)),
    "abs": (lambda x: x.abs(), np.abs),
    "sign": (lambda x: x.sign(), np.sign),
    "copysign": (lambda x: x.copysign(COLUMN), lambda x: np.copysign(x, COLUMN)),
    "square root": (lambda x: x.abs().sqrt(), lambda x: np.sqrt(np.abs(x))),
    "exp and sin": (lambda x: x.sin().exp(), lambda x: np.exp(np.sin(x))),
    "leaky ReLU": (lambda x: x.leaky_relu(0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
    "ReLU by maximum": (lambda x: x.maximum(0.0), lambda x: np.maximum(x, 0)),
    "where": (lambda x: Tensor.where(x < 0, x * x, x), lambda x: np.where(x < 0, x * x, x)),
    "sum of all": (lambda x: x.sum(), np.sum),
    "[B, M, N] -> [B, N]": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "largest of a row": (lambda x: x.max(-1), lambda x: x.max(-1)),
    "product": (lambda x: x @ MATRIX, lambda x: x @ MATRIX),
    "outer product": (
        lambda x: x[0].transpose() @ x[1],
        lambda x: x[0].T @ x[1],
    ),
    "transposed": (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "side by side": (
        lambda x: Tensor.concat([x[:, :1], x * 2], axis=1),
        lambda x: np.concatenate([x[:, :1], x * 2], axis=1),
    ),
    "softmax": (
        lambda x: x.softmax(),
        lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    ),
}


def slope_by_differences(function: Callable[[np.ndarray], Any], x: np.ndarray) -> np.ndarray:
    """The gradient of the sum of a function's squared values by x, from finite differences."""
    found, step = np.empty_like(x), 1e-6
    for place in np.ndindex(*x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        above, below = (np.sum(np.square(function(m))) for m in moved)
        found[place] = (above - below) / (2 * step)
    return found


def differentiated(device: AnyDevice) -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    x = Tensor(array, device, name="x")

    def step() -> dict[str, Tensor]:
        outputs = {}
        for name, (ours, _) in OPERATIONS.items():
            y = ours(x)
            (slope,) = y.square().sum().gradient([x])
            outputs |= {name: y, f"slope of {name}": slope}
        return outputs

    program = compile(step, device)
    program.run()
    wide = array.astype(np.float64)
    for name, (_, theirs) in OPERATIONS.items():
        y, slope = program.read(name), program.read(f"slope of {name}")
        expected = slope_by_differences(theirs, wide)
        size = np.abs(theirs(wide)).max()
        np.testing.assert_allclose(y, theirs(wide), rtol=0, atol=1e-5 * size)
        np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        shape, apart = (
            str(list(y.shape)),
            np.abs(slope - expected).max() / max(1, np.abs(expected).max()),
        )
        print(f"  {name:<20} {shape:<10} slopes differ by {apart:.0e} of the largest")


def long_sum(device: AnyDevice) -> None:
    """Many elements are summed in two stages: parts first, then the sums of the parts."""
    array = np.random.default_rng(1).normal(size=300_000).astype(np.float32)
    program = compile(lambda: {"sum": Tensor(array, device, name="many").sum()}, device)
    program.run()
    print(program.stages.show("procedure"))
    expected, size = (v.sum(dtype=np.float64) for v in (array, np.abs(array)))
    np.testing.assert_allclose(program.read("sum"), expected, rtol=0, atol=1e-6 * size)


def state(device: AnyDevice) -> None:
    """Strides and flat indices, transfers to the device and back, and updates in place."""
    x = Tensor(np.zeros((2, 3), np.float32), device)
    print(f"{x}: strides {x.strides}, element (1, 2) is number {x.flat_index(1, 2)}")
    x.write(np.float32([[1, 2, 3], [4, 5, 6]]))
    same = x
    x.assign(x * 10)
    np.testing.assert_array_equal(same.numpy(), [[10, 20, 30], [40, 50, 60]])
    np.testing.assert_equal(x.numpy().reshape(-1)[x.flat_index(1, 2)], 60.0)


def main(device: AnyDevice) -> None:
    differentiated(device)
    long_sum(device)
    state(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
