"""The perceptron that codecs train in floats; their decoders compute it with integers."""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine import Context, Function, Tensor


class Activation(Function):
    """x * smoothstep(x / 4 + 1 / 2), with smoothstep(u) = 3 u² - 2 u³ for u clamped to [0, 1].

    It is written in powers of x, clamped to [-2, 2], which takes fewer operations.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        v = _clamped(x)
        return x * (v * (0.375 - v * v * 0.03125) + 0.5)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        v = _clamped(x)
        return g * (v * (0.75 - v * v * 0.125) + 0.5)


def _clamped(x: Tensor) -> Tensor:
    return x.maximum(-2.0).minimum(2.0)


# Rows that represent all rows in gradients of weights: which they are, bool [rows, 1], and how many
# rows each of them stands for, [].
RowSample = tuple[Tensor, Tensor]


class Linear(Function):
    """x @ weight + bias; gradients of weight and bias are estimated from a sample of the rows.

    x [rows, inputs], weight [inputs, outputs], bias [outputs]; `chosen` and `times` are those of a
    RowSample. x gets its exact gradient in all rows.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, chosen: Tensor, times: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, chosen, times)
        return x @ weight + bias

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, chosen, times = ctx.saved_tensors
        sampled = Tensor.where(chosen, g, 0.0)
        by_weight, by_bias = x.permute(1, 0) @ sampled, sampled.sum(0)
        return g @ weight.permute(1, 0), by_weight * times, by_bias * times, None, None


def perceptron(x: Tensor, layers: Sequence[Tensor], sample: RowSample | None = None) -> Tensor:
    """[rows, inputs] -> [rows, outputs]; `layers` are weights [inputs, outputs] and biases in turn.

    With a `sample`, the gradients of weights and biases are estimated from these rows.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x @ weight + bias if sample is None else Linear.apply(x, weight, bias, *sample)

    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = Activation.apply(linear(x, weight, bias))
    return linear(x, layers[-2], layers[-1])
