"""Along an axis: products, running sums, the order of elements.

A running sum is log2(n) additions of the values shifted by 1, 2, 4 ... (Hillis and Steele, 1986).
Sorting counts for each element those that come before it, n^2 comparisons in one reduction that
takes no memory: right for thousands of elements in a line, not for millions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import in_f32
from imgmlp.engine.operations.indexing import Indexing
from imgmlp.engine.operations.operands import Axis, axes_of


class Scans(Indexing):
    """All that came before, and what depends on the order along an axis."""

    __slots__ = ()

    # --- reductions ---

    def var(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """Squared distances from the mean, added and divided by their number less `correction`."""
        count = math.prod(self.shape[a] for a in axes_of("var", axis, self.shape))
        scale = count / (count - correction) if count > correction else math.nan
        return self.variance(axis, keepdims) * scale

    def std(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The square root of `var`."""
        return self.var(axis, keepdims, correction).sqrt()

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Halves of an axis are multiplied until one is left; bools become i32."""
        found = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        for a in (axes := axes_of("prod", axis, self.shape)):
            if not found.shape[a]:
                found = found.pad(*((0, b == a) for b in range(len(self.shape)))) + 1
            while (n := found.shape[a]) > 1:
                joined = found._cut(a, 0, n // 2) * found._cut(a, n // 2, n // 2 * 2)
                found = self.concat([joined, found._cut(a, n - 1, n)], a) if n % 2 else joined
        return found if keepdims else found.squeeze(axes)

    @in_f32
    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The logarithm of the sum of exp(x), finite where that would overflow."""
        most = self._peak(axis).detach()
        most = self.where(most.isfinite(), most, 0.0)
        found = (self - most).exp().sum(axis, keepdims=True).log() + most
        return found if keepdims else found.squeeze(axes_of("logsumexp", axis, self.shape))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the largest is, the first of several, in i32; without an axis if it were flat."""
        if axis is None:
            found = self.flatten().argmax(0)
            return found.reshape(*(1 for _ in self.shape)) if keepdims else found
        most = self.max(axis, keepdims=True)
        chosen = self.eq(most) | self.isnan()
        return self.where(chosen, self._places(axis), self.shape[axis]).min(axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the smallest is, as `argmax`."""
        return self._inverse().argmax(axis, keepdims)

    # --- scans ---

    def _cut(self, axis: int, begin: int, end: int) -> Self:
        spans = ((begin, end) if a == axis else (0, n) for a, n in enumerate(self.shape))
        return self.shrink(*spans)

    def _scan(self, axis: int, join: Callable[[Self, Self], Self]) -> Self:
        axis, places, found, step = self._axis(axis, "scan"), self._places(axis), self, 1
        size = self.shape[axis]
        while step < size:
            moved = found._cut(axis, 0, size - step)
            moved = moved.pad(*((step if a == axis else 0, 0) for a in range(len(self.shape))))
            found = self.where(places >= step, join(moved, found), found).contiguous()
            step *= 2
        return found

    def cumsum(self, axis: int = 0) -> Self:
        """The sum of all up to each; bools are counted in i32, halves added in f32."""
        if self.dtype is dt.f16:
            return self.cast(dt.f32).cumsum(axis).cast(dt.f16)
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._scan(axis, type(self).__add__)

    def cumprod(self, axis: int = 0) -> Self:
        """The product of all up to each."""
        return self._scan(axis, lambda a, b: a * b)

    def cummax(self, axis: int = 0) -> Self:
        """The largest of all up to each."""
        return self._scan(axis, lambda a, b: a.maximum(b))

    # --- order ---

    def _ranks(self, axis: int, descending: bool) -> Self:
        """The place that each element has in a stable order, NaN being the largest."""
        a, b = self.unsqueeze(axis), self.unsqueeze(axis + 1)  # others, and each
        places = self._places(axis)
        earlier = places.unsqueeze(axis) < places.unsqueeze(axis + 1)
        below = (b < a) if descending else (a < b)
        same = a.eq(b)
        if self.dtype.is_float:
            other, own = a.isnan(), b.isnan()
            below |= (other & ~own) if descending else (own & ~other)
            same |= other & own
        return (below | (same & earlier)).sum(axis + 1)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """Indices, in i32, that bring each line along an axis in order; equal ones keep theirs."""
        axis = self._axis(axis, "argsort")
        ranks = self._ranks(axis, descending).contiguous()
        chosen = ranks.unsqueeze(axis).eq(self._places(axis).unsqueeze(axis + 1))
        return self.where(chosen, self._places(axis).unsqueeze(axis), 0).sum(axis + 1)

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Each line along an axis in order; NaN is the largest."""
        return self.take_along_axis(self.argsort(axis, descending), axis)

    def topk(self, count: int, axis: int = -1) -> tuple[Self, Self]:
        """The largest of each line along an axis, in order, and their indices."""
        axis = self._axis(axis, "topk")
        if not 0 < count <= self.shape[axis]:
            raise misuse(ValueError, f"topk: {count} of {self.shape[axis]} elements")
        index = self.argsort(axis, descending=True)._cut(axis, 0, count)
        return self.take_along_axis(index, axis), index
