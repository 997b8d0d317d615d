"""A Function with its own gradient: rounding that can be trained.

    python examples/custom_function.py [DEVICE]

The gradient of rounding is zero almost everywhere, so nothing before it would learn. This Function
passes the gradient on as if nothing had been rounded (the straight-through estimator), so networks
with integer weights can be trained. A second Function limits its gradient, using a saved Tensor.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Context, Function, Tensor, compile, dtype, open_device


class Rounded(Function):
    """Rounding to the nearest integer, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return (x + 1024.5).cast(dtype.i32).cast(dtype.f32) - 1024.0  # a cast goes towards 0

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g


class Squared(Function):
    """x ** 2 with a gradient that is clipped to [-limit, limit]."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x * x

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (g * x * 2).minimum(ctx.limit).maximum(-ctx.limit), None


def slopes(device: AnyDevice) -> None:
    """Compare the gradients with NumPy."""
    array = np.float32([-3.6, -0.2, 0.7, 5.1])
    x = Tensor(array, device)
    rounded = Rounded.apply(x)
    (through,) = (rounded * rounded).sum().gradient([x])
    (clipped,) = Squared.apply(x, 4.0).sum().gradient([x])
    print(f"x        {array}\nrounded  {rounded.numpy()}")
    print(f"slope of its square  {through.numpy()}\nslope within 4       {clipped.numpy()}")
    np.testing.assert_array_equal(rounded.numpy(), np.round(array))
    np.testing.assert_array_equal(through.numpy(), 2 * np.round(array))
    np.testing.assert_allclose(clipped.numpy(), np.clip(2 * array, -4, 4))


def whole_weights(device: AnyDevice) -> None:
    """Train weights that are rounded in the forward pass."""
    expected = np.float32([3, -7, 0, 12])
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, 4)).astype(np.float32)
    x, y = Tensor(inputs, device), Tensor(inputs @ expected, device)
    weights = Tensor(np.zeros(4, np.float32), device, name="weights")

    def step() -> dict[str, Tensor]:
        loss = Squared.apply(x @ Rounded.apply(weights) - y, 4.0).sum()
        (slope,) = loss.gradient([weights])
        weights.assign(weights - slope * 0.003)
        return {"loss": loss}

    program = compile(step, device)
    for i in range(8):
        program.run(4)
        print(f"step {4 * (i + 1):3d}  loss {program.read('loss'):8.3f}  {weights.numpy()}")
    np.testing.assert_array_equal(np.round(weights.numpy()), expected)


def main(device: AnyDevice) -> None:
    slopes(device)
    print()
    whole_weights(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
