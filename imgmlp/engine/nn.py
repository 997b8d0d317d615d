"""Layers, derived from Tensor operations only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from imgmlp.engine.tensor import Tensor


class Linear:
    """x [..., inputs] @ weight [inputs, outputs] + bias [outputs].

    Weights are stored input-major, so that the rows a product reads lie side by side.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Sequential:
    """Layers applied one after the other."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def slices(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Views of one flat Tensor as Tensors of these shapes, in order.

    One flat Tensor of all parameters lets the optimizer run as a single kernel. Raises
    ValueError if the shapes do not add up to its size.
    """
    sizes = [math.prod(s) for s in shapes]
    if flat.shape != (sum(sizes),):
        raise ValueError(f"slices: shapes of {sum(sizes)} elements do not fill {flat.shape}")
    found, begin = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        found.append(flat.shrink((begin, begin + size)).reshape(*shape))
        begin += size
    return found
