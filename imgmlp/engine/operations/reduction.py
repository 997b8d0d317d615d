"""Reductions and matrix products: sums, maxima, means, variances, softmax, `@`."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Self

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import common_device, computed_in_f32
from imgmlp.engine.operations.movement import Movement
from imgmlp.engine.operations.operands import Axis, axes_of, broadcast_shapes, from_host


class Reduction(Movement):
    """Elementwise operations, movements, reductions and products of matrices."""

    __slots__ = ()

    def _reduce(self, operation: str, op: Op, axis: Axis, keepdims: bool) -> Self:
        axes = axes_of(operation, axis, self.shape)
        reduced = self._wrap(graph.reduce(op, self.node, axes, operation))
        if not keepdims:
            return reduced
        return reduced.reshape(*(1 if i in axes else n for i, n in enumerate(self.shape)))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The sum in the same dtype; integers wrap, and halves are added in f32.

        Of bools, the number of True in i32.
        """
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._reduce("sum", Op.SUM, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The largest element; NaN if any is NaN. Raises ValueError if there are no elements."""
        return self._reduce("max", Op.REDUCE_MAX, axis, keepdims)

    def _max_for_exp(self, axis: Axis) -> Self:
        """The maximum, which is subtracted before exp so that it does not overflow; axes stay."""
        return self.max(axis, keepdims=True) if self.node.size else self.sum(axis, keepdims=True)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The smallest element; NaN if any is NaN. Raises ValueError if there are no elements."""
        return self._reverse_order()._reduce("min", Op.REDUCE_MAX, axis, keepdims)._reverse_order()

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether no element is False or 0."""
        return self.logical_not()._count("all", axis, keepdims).eq(0)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether any element is neither False nor 0."""
        return self.logical_not().logical_not()._count("any", axis, keepdims) > 0

    def _count(self, operation: str, axis: Axis, keepdims: bool) -> Self:
        return self.cast(dt.i32)._reduce(operation, Op.SUM, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The mean, computed in f32, so that sums of halves cannot overflow."""
        count = math.prod(self.shape[a] for a in axes_of("mean", axis, self.shape))
        mean = self.cast(dt.f32).sum(axis, keepdims)._divide_by_count(count)
        return mean.cast(self._as_float().dtype)

    def var(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The sum of squared distances from the mean, divided by their number minus `correction`.

        NaN if that is not positive, where NumPy's result is infinite.
        """
        number = math.prod(self.shape[a] for a in axes_of("var", axis, self.shape)) - correction
        wide = self.cast(dt.f32)
        squares = (wide - wide.mean(axis, keepdims=True)).square().sum(axis, keepdims)
        return squares._divide_by_count(number).cast(self._as_float().dtype)

    variance = var

    def _divide_by_count(self, number: float) -> Self:
        """The elements divided by a number; NaN unless it is positive.

        Gradients are multiplied by the reciprocal, which is faster than a division.
        """
        result = self / (float(number) if number > 0 else math.nan)
        return self._wrap(graph.function(result.node, [self.node], _division_vjp(number)))

    @computed_in_f32
    def softmax(self, axis: Axis = -1) -> Self:
        """exp(x) divided by its sum along an axis. The gradient is computed from the result."""
        axes = axes_of("softmax", axis, self.shape)
        powers = (self - self._max_for_exp(axes)).exp()
        result = powers / powers.sum(axes, keepdims=True)
        return self._wrap(graph.function(result.node, [self.node], _softmax_vjp(axes)))

    @computed_in_f32
    def log_softmax(self, axis: Axis = -1) -> Self:
        """The logarithm of softmax, finite also where that underflows to 0.

        The gradient is computed from the result.
        """
        axes = axes_of("log_softmax", axis, self.shape)
        shifted = self - self._max_for_exp(axes)
        result = shifted - shifted.exp().sum(axes, keepdims=True).log()
        return self._wrap(graph.function(result.node, [self.node], _log_softmax_vjp(axes)))

    def __matmul__(self, other: Self | Array) -> Self:
        """The matrix product [..., M, K] @ [..., K, N] -> [..., M, N].

        Leading axes and vectors are handled as in NumPy. Products of halves are computed in f32 and
        rounded once.
        """
        if not isinstance(other, Reduction):
            other = self._wrap(from_host(other, self.device))
        if not self.shape or not other.shape:
            text = f"shapes {self.shape} and {other.shape} need an axis each; use *"
            raise misuse(ValueError, f"dot: {text}")
        kind = dt.concrete(dt.promote(self.dtype, other.dtype, dt.weak_float))
        if kind is not dt.f32:
            return (self.cast(dt.f32) @ other.cast(dt.f32)).cast(kind)
        a, b = self.cast(kind), other.cast(kind)
        if len(a.shape) == 1:
            product = a.reshape(1, -1) @ (b if len(b.shape) > 1 else b.reshape(-1, 1))
            return product.reshape(*product.shape[:-2], *b.shape[1:][-1:])
        if len(b.shape) == 1:
            return (a @ b.reshape(-1, 1)).reshape(*a.shape[:-1])
        lead = broadcast_shapes("dot", a.shape[:-2], b.shape[:-2])
        a, b = (t.broadcast_to((*lead, *t.shape[-2:])) for t in (a, b))
        return type(self)(graph.dot(a.node, b.node), common_device(a, b))

    def __rmatmul__(self, other: Array) -> Self:
        return self._wrap(from_host(other, self.device)) @ self


@cache
def _division_vjp(number: float) -> Any:
    """The same object for equal numbers, so that equal means are one Node."""
    reciprocal = 1.0 / number if number > 0 else math.nan
    return lambda g, ans, x: (g * reciprocal,)


@cache
def _softmax_vjp(axes: tuple[int, ...]) -> Any:
    """ans (g - sum(g ans)). The subtracted maximum does not occur in it."""

    def vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        weighted = Reduction(g * ans).sum(axes, keepdims=True)
        return (((Reduction(g) - weighted) * Reduction(ans)).node,)

    return vjp


@cache
def _log_softmax_vjp(axes: tuple[int, ...]) -> Any:
    def vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        total = Reduction(g).sum(axes, keepdims=True)
        return ((Reduction(g) - Reduction(ans).exp() * total).node,)

    return vjp
