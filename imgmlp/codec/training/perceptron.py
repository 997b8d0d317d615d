"""The perceptron that codecs train in floats, of which their decoders have whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine import Context, Function, Tensor


class Activation(Function):
    """x times a share that grows from 0 at -2 to 1 at 2, as 3 u² - 2 u³ of u = x / 4 + 1 / 2.

    In powers of x within these bounds, which are fewer operations than those of u.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        v = _within(x)
        return x * (v * (0.375 - v * v * 0.03125) + 0.5)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        v = _within(x)
        return g * (v * (0.75 - v * v * 0.125) + 0.5)


def _within(x: Tensor) -> Tensor:
    return x.maximum(-2.0).minimum(2.0)


Some = tuple[Tensor, Tensor]  # bool [rows, 1] of those rows; [] how many there are of each


class Linear(Function):
    """x @ weight + bias, whose gradients are those that some of the rows give, so many times over.

    x [rows, inputs], weight [inputs, outputs], bias [outputs]; `chosen` and `times` as Some has
    them. x has its own gradient in all rows.
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
        some = Tensor.where(chosen, g, 0.0)
        by_weight, by_bias = x.permute(1, 0) @ some, some.sum(0)
        return g @ weight.permute(1, 0), by_weight * times, by_bias * times, None, None


def perceptron(x: Tensor, layers: Sequence[Tensor], some: Some | None = None) -> Tensor:
    """[rows, inputs] -> [rows, outputs]; weights [inputs, outputs] and biases take turns.

    Their gradients are of all rows, or of `some` of them.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x @ weight + bias if some is None else Linear.apply(x, weight, bias, *some)

    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = Activation.apply(linear(x, weight, bias))
    return linear(x, layers[-2], layers[-1])
