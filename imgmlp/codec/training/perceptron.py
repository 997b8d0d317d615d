"""The perceptron that codecs train in floats, of which their decoders have whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine import Context, Function, Tensor


class Activation(Function):
    """x times a share that grows from 0 at -2 to 1 at 2, as 3 u² - 2 u³ of u = x / 4 + 1 / 2."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        u = _clamped(x)
        return x * u * u * (3.0 - u * 2.0)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        u = _clamped(x)  # where the slope is neither 0 nor 1, x is 4 u - 2
        return g * (u * (u * (12.0 - u * 8.0) - 3.0))


def _clamped(x: Tensor) -> Tensor:
    return (x * 0.25 + 0.5).maximum(0.0).minimum(1.0)


def perceptron(x: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """[rows, inputs] -> [rows, outputs]; weights [inputs, outputs] and biases take turns."""
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = Activation.apply(x @ weight + bias)
    return x @ layers[-2] + layers[-1]
