"""Chains of Views, for what a single one cannot express, such as a flattened transposed array.

An Access is the result of a graph's movement operations on a buffer. Their arguments come from the
user and are checked here. This module knows nothing of dtypes, graphs or kernels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from imgmlp.engine.ir.conditions import all_of, is_logic
from imgmlp.engine.ir.symbolic import ONE, ZERO, Const, Expr, Var, linear_parts, unravel
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.ir.view import Ranges, Shape, View, canonical_view, empty_view


@dataclass(frozen=True, slots=True)
class Access:
    """Views that are applied one after the other, the first to a buffer of `size` elements.

    Each further View sees the elements of the one before in row-major order. Movement operations
    change the last View. A reshape that this cannot express appends a View. Wrong arguments raise
    ValueError.
    """

    views: tuple[View, ...]
    size: int

    @staticmethod
    def of(shape: Sequence[int]) -> Access:
        """All elements of a row-major buffer."""
        shape = _integers(shape)
        if any(n < 0 for n in shape):
            raise misuse(ValueError, f"shape {shape}: no dimension may be negative")
        return Access((View.of(shape),), math.prod(shape))

    @property
    def shape(self) -> Shape:
        return self.views[-1].shape

    @property
    def contiguous(self) -> bool:
        """Whether it is the whole buffer in row-major order."""
        first = self.views[0]
        return len(self.views) == 1 and first.is_row_major and first.size == self.size

    def index(self, indices: Sequence[Expr]) -> tuple[Expr, Expr]:
        """(offset in the buffer, validity) of the element at one index per dimension.

        Where the validity is 0, the element is zero and the offset has no meaning; else it is 1.
        """
        return _index(self.views, tuple(indices))

    def reshape(self, shape: Sequence[int]) -> Access:
        """The same elements in another shape; one size may be -1."""
        shape = _inferred(self.shape, _integers(shape))
        below, top = self.views[:-1], self.views[-1]
        if below and top.is_row_major and top.size == below[-1].size:  # it only reshapes
            return Access(below, self.size).reshape(shape)
        view = top.reshape(shape)
        return self._with(view) if view else Access((*self.views, View.of(shape)), self.size)

    def permute(self, axes: Sequence[int]) -> Access:
        """Dimension i of the result is dimension axes[i]."""
        axes = _integers(axes)
        if sorted(axes) != list(range(len(self.shape))):
            raise _invalid("permute", axes, self.shape, "each axis must appear exactly once")
        return self._with(self.views[-1].permute(axes))

    def expand(self, shape: Sequence[int]) -> Access:
        """Dimensions of size 1 repeated; a size of -1 stays as it is."""
        sizes = _integers(shape)
        self._check_rank("expand", sizes)
        new_shape = tuple(n if m == -1 else m for n, m in zip(self.shape, sizes, strict=True))
        if any(m < 0 or n not in (1, m) for n, m in zip(self.shape, new_shape, strict=True)):
            raise _invalid("expand", sizes, self.shape, "only a dimension of size 1 can grow")
        return self._with(self.views[-1].expand(new_shape))

    def pad(self, widths: Sequence[tuple[int, int]]) -> Access:
        """(before, after) zeros added to each dimension."""
        self._check_rank("pad", widths)
        widths = _pairs("pad", widths, self.shape)
        if any(before < 0 or after < 0 for before, after in widths):
            raise _invalid("pad", widths, self.shape, "widths must not be negative")
        sides = zip(self.shape, widths, strict=True)
        return self._with(self.views[-1].window(tuple((-b, n + a) for n, (b, a) in sides)))

    def shrink(self, box: Sequence[tuple[int, int]]) -> Access:
        """The elements from begin up to end of each dimension."""
        self._check_rank("shrink", box)
        box = _pairs("shrink", box, self.shape)
        if any(not 0 <= b <= e <= n for n, (b, e) in zip(self.shape, box, strict=True)):
            raise _invalid("shrink", box, self.shape, "each needs 0 <= begin <= end <= size")
        return self._with(self.views[-1].window(box))

    def flip(self, axes: Sequence[int]) -> Access:
        """Some dimensions reversed."""
        if any(not 0 <= a < len(self.shape) for a in axes):
            raise _invalid("flip", tuple(axes), self.shape, "there is no such axis")
        return self.stride([-1 if a in axes else 1 for a in range(len(self.shape))])

    def stride(self, steps: Sequence[int]) -> Access:
        """Every step-th element of each dimension; a negative step starts from its end."""
        self._check_rank("stride", steps)
        steps = _integers(steps)
        if 0 in steps:
            raise _invalid("stride", steps, self.shape, "a step must not be zero")
        return self._with(self.views[-1].stride(steps))

    def simplify(self) -> Access:
        """The same Access, with neighbouring views merged where that is possible."""
        views: list[View] = []
        for view in self.views:
            views.append(view)
            while len(views) > 1 and (one := _compose(views[-2], views[-1])) is not None:
                views[-2:] = [one]
        return Access(tuple(views), self.size)

    def _with(self, view: View) -> Access:
        return Access((*self.views[:-1], view), self.size)

    def _check_rank(self, operation: str, argument: Sequence[object]) -> None:
        if len(argument) != len(self.shape):
            raise _invalid(operation, argument, self.shape, "one entry is needed per dimension")

    def __str__(self) -> str:
        return " -> ".join(map(str, self.views))


def _integers(values: Sequence[int]) -> Shape:
    """The values as Python integers. Raises TypeError for other numbers."""
    return tuple(map(operator.index, values))


def _pairs(operation: str, values: Sequence[tuple[int, int]], shape: Shape) -> Ranges:
    try:
        return tuple((operator.index(a), operator.index(b)) for a, b in values)
    except ValueError:  # an entry has more or fewer than two numbers
        raise _invalid(operation, values, shape, "each entry is a pair of numbers") from None


def _invalid(operation: str, argument: Sequence[object], shape: Shape, why: str) -> ValueError:
    return misuse(ValueError, f"invalid {operation} {tuple(argument)} for shape {shape}: {why}")


def _inferred(shape: Shape, sizes: Shape) -> Shape:
    """The shape of a reshape, with the size for its -1. Raises ValueError if it does not fit."""
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        raise _invalid("reshape", sizes, shape, "sizes must not be negative, but for one -1")
    given_size = math.prod(n for n in sizes if n != -1)
    if not given_size and -1 in sizes:
        raise _invalid("reshape", sizes, shape, "beside a 0 any size could stand for -1")
    size = math.prod(shape)
    filled = tuple(size // given_size if n == -1 else n for n in sizes)
    if math.prod(filled) != size:
        why = f"{size} elements do not fill it"
        raise _invalid("reshape", sizes, shape, why)
    return filled


@lru_cache(maxsize=1 << 12)
def _index(views: tuple[View, ...], indices: tuple[Expr, ...]) -> tuple[Expr, Expr]:
    flat, valid = views[-1].index(indices)
    for view in reversed(views[:-1]):
        flat, inside = view.index(unravel(flat, view.shape))
        valid = all_of(valid, inside)
    return flat, valid


@lru_cache(maxsize=1 << 12)
def _compose(inner: View, outer: View) -> View | None:
    """The view that equals `outer` applied to `inner`; None if its index is not linear."""
    if outer.is_empty:
        return outer
    # Indices outside of the mask do not matter, and narrower bounds allow more simplification.
    variables = [
        Const(begin) if end - begin == 1 else Var(f"i{axis}", begin, end - 1)
        for axis, (begin, end) in enumerate(outer.ranges)
    ]
    offset, valid = _index((inner, outer), tuple(variables))
    if valid is ZERO:
        return empty_view(outer.shape)
    if valid is not ONE:
        box = _box(valid, variables, outer.ranges)
        if box is None:
            return None
        return _compose(inner, canonical_view(outer.shape, outer.strides, outer.offset, box))
    constant, terms = linear_parts(offset)
    strides = dict(terms)
    if not strides.keys() <= set(variables):
        return None
    return canonical_view(
        outer.shape, tuple(strides.get(v, 0) for v in variables), constant, outer.ranges
    )


def _box(valid: Expr, variables: Sequence[Expr], ranges: Ranges) -> Ranges | None:
    """The box in which a condition holds; None unless it limits each variable separately."""
    limits = list(ranges)
    for condition in valid.sources if is_logic(valid, "&") else (valid,):
        if not is_logic(condition, "<"):
            return None
        (term, coefficient), *others = linear_parts(condition.x)[1]
        if others or term not in variables:
            return None
        axis, n = variables.index(term), condition.n
        begin, end = limits[axis]
        limits[axis] = (begin, min(end, n)) if coefficient > 0 else (max(begin, 1 - n), end)
    return tuple(limits)
