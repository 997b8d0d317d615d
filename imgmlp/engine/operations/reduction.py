"""Operations that many elements enter: sums, maxima, products, and what follows from them."""

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
from imgmlp.engine.operations.elementwise import common_device, in_f32
from imgmlp.engine.operations.movement import Movement
from imgmlp.engine.operations.operands import Axis, axes_of, broadcast_shapes, from_host


class Reduction(Movement):
    """Elementwise operations, movements, reductions and products of matrices."""

    __slots__ = ()

    def _reduce(self, operation: str, op: Op, axis: Axis, keepdims: bool) -> Self:
        axes = axes_of(operation, axis, self.shape)
        reduced = self._with(graph.reduce(op, self.node, axes, operation))
        if not keepdims:
            return reduced
        return reduced.reshape(*(1 if i in axes else n for i, n in enumerate(self.shape)))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Bools are counted, in i32; other dtypes stay. Integers wrap, halves add in f32."""
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._reduce("sum", Op.SUM, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The largest of each; NaN where one of them is NaN. Raises ValueError for none."""
        return self._reduce("max", Op.REDUCE_MAX, axis, keepdims)

    def _peak(self, axis: Axis) -> Self:
        """What exp(x) is divided by exp of, so that it is at most 1; axes stay."""
        return self.max(axis, keepdims=True) if self.node.size else self.sum(axis, keepdims=True)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """inverse(max(inverse x)), as minimum."""
        return self._inverse()._reduce("min", Op.REDUCE_MAX, axis, keepdims)._inverse()

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether none of them is False or 0; of no elements, too."""
        return self.logical_not()._counted("all", axis, keepdims).eq(0)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether one of them is neither False nor 0."""
        return self.logical_not().logical_not()._counted("any", axis, keepdims) > 0

    def _counted(self, operation: str, axis: Axis, keepdims: bool) -> Self:
        return self.cast(dt.i32)._reduce(operation, Op.SUM, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The sum over the number of elements; of halves too, where the sum is none."""
        count = math.prod(self.shape[a] for a in axes_of("mean", axis, self.shape))
        mean = self.cast(dt.f32).sum(axis, keepdims)._over(count)
        return mean.cast(self._float().dtype)

    def var(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """Squared distances from the mean, added and divided by their number less `correction`: NaN
        where that leaves none, where NumPy's is infinite."""
        number = math.prod(self.shape[a] for a in axes_of("var", axis, self.shape)) - correction
        wide = self.cast(dt.f32)
        squares = (wide - wide.mean(axis, keepdims=True)).square().sum(axis, keepdims)
        return squares._over(number).cast(self._float().dtype)

    variance = var

    def _over(self, number: float) -> Self:
        """Divided by a number, exactly where that is possible; NaN unless it is positive. Gradients
        are products with its reciprocal, which for every element take less time."""
        answer = self / (float(number) if number > 0 else math.nan)
        return self._with(graph.function(answer.node, [self.node], _over_vjp(number)))

    @in_f32
    def softmax(self, axis: Axis = -1) -> Self:
        """Shares of exp(x) in its sum along an axis; the gradient needs the answer only."""
        axes = axes_of("softmax", axis, self.shape)
        powers = (self - self._peak(axes)).exp()
        answer = powers / powers.sum(axes, keepdims=True)
        return self._with(graph.function(answer.node, [self.node], _softmax_vjp(axes)))

    @in_f32
    def log_softmax(self, axis: Axis = -1) -> Self:
        """Logarithms of the softmax, also where it would be 0; the gradient needs them only."""
        axes = axes_of("log_softmax", axis, self.shape)
        shifted = self - self._peak(axes)
        answer = shifted - shifted.exp().sum(axes, keepdims=True).log()
        return self._with(graph.function(answer.node, [self.node], _log_softmax_vjp(axes)))

    def __matmul__(self, other: Self | Array) -> Self:
        """[..., M, K] @ [..., K, N] -> [..., M, N]; leading axes and vectors as in NumPy.

        Halves are multiplied and added in f32 and rounded once.
        """
        if not isinstance(other, Reduction):
            other = self._with(from_host(other, self.device))
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
        return self._with(from_host(other, self.device)) @ self


@cache
def _over_vjp(number: float) -> Any:
    """One rule for each number, so that equal means are one Node."""
    share = 1.0 / number if number > 0 else math.nan
    return lambda g, ans, x: (g * share,)


@cache
def _softmax_vjp(axes: tuple[int, ...]) -> Any:
    """ans (g - sum(g ans)): what the maximum was subtracted for leaves no trace in it."""

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
