"""Strided views of a buffer, with which movement operations copy nothing.

A View maps indices to an offset: a base offset plus the sum of index * stride, inside a box. What a
single View cannot express is handled by access.py. This module knows nothing of dtypes, graphs or
kernels. It does not check arguments; access.py has done so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from imgmlp.engine.ir.conditions import all_of, at_least, less
from imgmlp.engine.ir.symbolic import ONE, Expr, linear, row_major_strides

Shape = tuple[int, ...]
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """A view of `shape` whose elements are at offset + sum(index * stride).

    `mask` has (begin, end) for each dimension, or is None. Elements outside of it are zero and not
    in the buffer. Build Views with `View.of` and `canonical_view`, which give equal views equal
    fields: a dimension with only one index inside the mask has stride 0.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    mask: Ranges | None = None

    @staticmethod
    def of(shape: Shape) -> View:
        """The row-major view of a whole buffer."""
        return _whole_view(shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ranges(self) -> Ranges:
        """The mask, or the whole range of each dimension if there is none."""
        return self.mask or _full_ranges(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether no element is inside the mask."""
        return any(begin == end for begin, end in self.ranges)

    @property
    def is_row_major(self) -> bool:
        return self == View.of(self.shape)

    def index(self, indices: Sequence[Expr]) -> tuple[Expr, Expr]:
        """(offset, validity) of the element at these indices."""
        valid: Expr = ONE
        if self.mask:
            limits = zip(indices, self.mask, strict=True)
            valid = all_of(
                *(c for x, (begin, end) in limits for c in (at_least(x, begin), less(x, end)))
            )
        return linear(self.offset, zip(indices, self.strides, strict=True)), valid

    def permute(self, axes: Sequence[int]) -> View:
        shape, strides, ranges = self.shape, self.strides, self.ranges
        return canonical_view(
            tuple(shape[a] for a in axes),
            tuple(strides[a] for a in axes),
            self.offset,
            tuple(ranges[a] for a in axes),
        )

    def expand(self, shape: Shape) -> View:
        """Dimensions of size 1, whose stride is 0, repeated."""
        ranges = tuple(
            r if n == m else (0, m * r[1])
            for n, m, r in zip(self.shape, shape, self.ranges, strict=True)
        )
        return canonical_view(shape, self.strides, self.offset, ranges)

    def window(self, box: Ranges) -> View:
        """The elements in a box of [begin, end) for each dimension; zeros beyond the view."""
        inside = tuple(
            (max(b, begin) - begin, max(min(e, end), b, begin) - begin)
            for (b, e), (begin, end) in zip(self.ranges, box, strict=True)
        )
        offset = self.offset + sum(
            begin * stride for (begin, _), stride in zip(box, self.strides, strict=True)
        )
        return canonical_view(
            tuple(end - begin for begin, end in box), self.strides, offset, inside
        )

    def stride(self, steps: Sequence[int]) -> View:
        """Every step-th element of each dimension, from its end where the step is negative."""
        shape, strides, ranges, offset = [], [], [], self.offset
        for n, s, (b, e), step in zip(self.shape, self.strides, self.ranges, steps, strict=True):
            if step < 0:
                offset += (n - 1) * s
                b, e = n - e, n - b
            n, b, e = (-(-x // abs(step)) for x in (n, b, e))
            shape.append(n)
            strides.append(s * step)
            ranges.append((b, e))
        return canonical_view(tuple(shape), tuple(strides), offset, tuple(ranges))

    def reshape(self, shape: Shape) -> View | None:
        """The same elements in the same order; None if a single view cannot express that."""
        if shape == self.shape:
            return self
        if self.is_row_major:
            return View.of(shape)
        if self.is_empty:
            return empty_view(shape)
        old = [d for d in map(_Dim, self.shape, self.strides, self.ranges) if d.size > 1]
        new: list[_Dim] = []
        sizes = [n for n in shape if n > 1]
        while old:
            pieces = _reshape_first(old, sizes)
            if pieces is None:
                return None
            new += pieces
        dims = iter(new)
        full = [next(dims) if n > 1 else _Dim(1, 0, (0, 1)) for n in shape]
        offset = self.offset + sum(d.offset for d in full)
        return canonical_view(
            shape, tuple(d.stride for d in full), offset, tuple(d.range for d in full)
        )

    def __str__(self) -> str:
        text = f"{self.shape}:{self.strides}".replace(" ", "")
        if self.offset:
            text += f"{self.offset:+d}"
        if self.mask:
            text += f" in [{', '.join(f'{begin}:{end}' for begin, end in self.mask)}]"
        return text


@lru_cache(maxsize=4096)  # it is the first view of each movement in a graph
def _whole_view(shape: Shape) -> View:
    return canonical_view(shape, row_major_strides(shape), 0, _full_ranges(shape))


def canonical_view(shape: Shape, strides: tuple[int, ...], offset: int, ranges: Ranges) -> View:
    """The View with these fields in the form that all equal views share."""
    if any(begin >= end for begin, end in ranges):
        return View(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape))
    if any(end - begin == 1 for begin, end in ranges):
        single = [end - begin == 1 for begin, end in ranges]
        offset += sum(r[0] * s for r, s, one in zip(ranges, strides, single, strict=True) if one)
        strides = tuple(0 if one else s for s, one in zip(strides, single, strict=True))
    return View(shape, strides, offset, None if ranges == _full_ranges(shape) else ranges)


def empty_view(shape: Shape) -> View | None:
    """A view with no element inside its mask; None for a scalar, which has no dimension to mask."""
    return canonical_view(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape)) if shape else None


def _full_ranges(shape: Shape) -> Ranges:
    return tuple((0, n) for n in shape)


# --- reshaping one view ---


class _Dim(NamedTuple):
    """One dimension, and its contribution to the view's offset."""

    size: int
    stride: int
    range: tuple[int, int]
    offset: int = 0


def _reshape_first(old: list[_Dim], sizes: list[int]) -> list[_Dim] | None:
    """Remove the fewest leading dimensions and sizes with equal products, and reshape these.

    None if a single view cannot express that.
    """
    dim, taken = old.pop(0), [sizes.pop(0)]
    while dim.size != math.prod(taken):
        if dim.size > math.prod(taken):
            taken.append(sizes.pop(0))
            continue
        merged = _merge(dim, old.pop(0))
        if merged is None:
            return None
        dim = merged
    return _split(dim, taken)


def _merge(outer: _Dim, inner: _Dim) -> _Dim | None:
    """Two neighbouring dimensions as one; None if their strides or ranges do not allow it."""
    n = inner.size
    (begin, end), (b, e) = outer.range, inner.range
    if end - begin == 1:  # only one index is inside the mask, so any stride will do
        first = begin * n
        offset = outer.offset + inner.offset - first * inner.stride
        return _Dim(outer.size * n, inner.stride, (first + b, first + e), offset)
    if inner.range != (0, n) or outer.stride != n * inner.stride:
        return None
    return _Dim(outer.size * n, inner.stride, (begin * n, end * n), outer.offset + inner.offset)


def _split(dim: _Dim, sizes: Sequence[int]) -> list[_Dim] | None:
    """One dimension as several of these sizes; None if its range is not a box in them."""
    if len(sizes) == 1:
        return [dim]
    n = math.prod(sizes[1:])
    (begin, end), stride = dim.range, dim.stride * n
    if begin // n == (end - 1) // n:
        at = begin // n
        outer, inner = (at, at + 1), (begin - at * n, end - at * n)
    elif begin % n == end % n == 0:
        outer, inner = (begin // n, end // n), (0, n)
    else:
        return None
    rest = _split(_Dim(n, dim.stride, inner), sizes[1:])
    return rest and [_Dim(sizes[0], stride, outer, dim.offset), *rest]
