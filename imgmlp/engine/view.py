"""How a tensor's elements lie in a buffer, so that movement operations copy nothing.

A View maps indices to one place each: offset + sum of index * stride, inside a masked box. An
Access is a few Views applied in a row, for what one cannot say, such as a transposed array
that is then flattened. Nothing here knows of dtypes, graphs or kernels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from imgmlp.engine.misuse import misuse
from imgmlp.engine.symbolic import (
    ONE,
    ZERO,
    And,
    Const,
    Expr,
    Less,
    Var,
    conj,
    linear,
    row_major,
    split,
    unravel,
)

Shape = tuple[int, ...]
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """An element of `shape` lies at offset + sum(index * stride).

    `mask` is one (begin, end) per dimension, or None for all: elements outside are zero and
    lie nowhere. Build with `View.of` and `_view`, which bring equal views into equal form:
    a dimension of which only one index is inside the mask has stride 0.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    mask: Ranges | None = None

    @staticmethod
    def of(shape: Shape) -> View:
        """The row-major view of a whole buffer."""
        return _view(shape, row_major(shape), 0, _full(shape))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ranges(self) -> Ranges:
        """The mask, also where there is none."""
        return self.mask or _full(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether the mask leaves no element at all."""
        return any(begin == end for begin, end in self.ranges)

    @property
    def is_row_major(self) -> bool:
        return self == View.of(self.shape)

    def index(self, indices: Sequence[Expr]) -> tuple[Expr, Expr]:
        """(offset, validity) of the element at these indices."""
        valid: Expr = ONE
        if self.mask:
            limits = zip(indices, self.mask, strict=True)
            valid = conj(*(c for x, (begin, end) in limits for c in (x.ge(begin), x.lt(end))))
        return linear(self.offset, zip(indices, self.strides, strict=True)), valid

    def permute(self, axes: Sequence[int]) -> View:
        shape, strides, ranges = self.shape, self.strides, self.ranges
        return _view(
            tuple(shape[a] for a in axes),
            tuple(strides[a] for a in axes),
            self.offset,
            tuple(ranges[a] for a in axes),
        )

    def expand(self, shape: Shape) -> View:
        """Dimensions of size 1 repeated; they have stride 0 already."""
        ranges = tuple(
            r if n == m else (0, m * r[1])
            for n, m, r in zip(self.shape, shape, self.ranges, strict=True)
        )
        return _view(shape, self.strides, self.offset, ranges)

    def window(self, box: Ranges) -> View:
        """The box [begin, end) of each dimension; where it goes beyond the view is zero."""
        inside = tuple(
            (max(b, begin) - begin, max(min(e, end), b, begin) - begin)
            for (b, e), (begin, end) in zip(self.ranges, box, strict=True)
        )
        offset = self.offset + sum(
            begin * stride for (begin, _), stride in zip(box, self.strides, strict=True)
        )
        return _view(tuple(end - begin for begin, end in box), self.strides, offset, inside)

    def stride(self, steps: Sequence[int]) -> View:
        """Every step-th element of each dimension, from its end where the step is negative."""
        shape, strides, ranges, offset = [], [], [], self.offset
        for n, s, (b, e), step in zip(self.shape, self.strides, self.ranges, steps, strict=True):
            if step < 0:
                offset += (n - 1) * s
                b, e = n - e, n - b
            shape.append(_divide_up(n, abs(step)))
            strides.append(s * step)
            ranges.append((_divide_up(b, abs(step)), _divide_up(e, abs(step))))
        return _view(tuple(shape), tuple(strides), offset, tuple(ranges))

    def reshape(self, shape: Shape) -> View | None:
        """The same elements in the same order, or None if one view cannot say it."""
        if shape == self.shape:
            return self
        if self.is_empty:
            return _nothing(shape)
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
        return _view(shape, tuple(d.stride for d in full), offset, tuple(d.range for d in full))

    def __str__(self) -> str:
        text = f"{self.shape}:{self.strides}".replace(" ", "")
        if self.offset:
            text += f"{self.offset:+d}"
        if self.mask:
            text += f" in [{', '.join(f'{begin}:{end}' for begin, end in self.mask)}]"
        return text


def _view(shape: Shape, strides: tuple[int, ...], offset: int, ranges: Ranges) -> View:
    """The one form of all equal views."""
    if any(begin >= end for begin, end in ranges):
        return View(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape))
    if any(end - begin == 1 for begin, end in ranges):
        single = [end - begin == 1 for begin, end in ranges]
        offset += sum(r[0] * s for r, s, one in zip(ranges, strides, single, strict=True) if one)
        strides = tuple(0 if one else s for s, one in zip(strides, single, strict=True))
    return View(shape, strides, offset, None if ranges == _full(shape) else ranges)


def _nothing(shape: Shape) -> View | None:
    """A view of which no element is inside the mask; a scalar has no dimension to mask."""
    return _view(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape)) if shape else None


def _full(shape: Shape) -> Ranges:
    return tuple((0, n) for n in shape)


def _divide_up(x: int, n: int) -> int:
    return -(-x // n)


# --- reshaping one view ---


class _Dim(NamedTuple):
    """One dimension, and what it adds to the view's offset."""

    size: int
    stride: int
    range: tuple[int, int]
    offset: int = 0


def _reshape_first(old: list[_Dim], sizes: list[int]) -> list[_Dim] | None:
    """Take the fewest leading dims and sizes of equal product; these dims in these sizes."""
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
    """Two neighbouring dimensions as one, if their strides and ranges allow."""
    n = inner.size
    (begin, end), (b, e) = outer.range, inner.range
    if end - begin == 1:  # the only index inside: it may as well have the stride that fits
        first = begin * n
        offset = outer.offset + inner.offset - first * inner.stride
        return _Dim(outer.size * n, inner.stride, (first + b, first + e), offset)
    if inner.range != (0, n) or outer.stride != n * inner.stride:
        return None
    return _Dim(outer.size * n, inner.stride, (begin * n, end * n), outer.offset + inner.offset)


def _split(dim: _Dim, sizes: Sequence[int]) -> list[_Dim] | None:
    """One dimension as several of these sizes, if its range is a box in them."""
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


# --- several views in a row ---


@dataclass(frozen=True, slots=True)
class Access:
    """Views applied in a row: the first reads a buffer of `size` elements, the last is seen.

    Between two of them lies the row-major order of the earlier one's shape. Movement
    operations change the last view; a reshape that it cannot say puts a new view after it.
    Wrong arguments raise ValueError.
    """

    views: tuple[View, ...]
    size: int

    @staticmethod
    def of(shape: Sequence[int]) -> Access:
        """All elements of a row-major buffer. Every dimension has at least one."""
        shape = _integers(shape)
        if any(n < 1 for n in shape):
            raise misuse(
                ValueError, f"shape {shape} holds no elements; every dimension must be positive"
            )
        return Access((View.of(shape),), math.prod(shape))

    @property
    def shape(self) -> Shape:
        return self.views[-1].shape

    @property
    def contiguous(self) -> bool:
        """Whether it is the whole buffer, element by element in row-major order."""
        first = self.views[0]
        return len(self.views) == 1 and first.is_row_major and first.size == self.size

    def index(self, indices: Sequence[Expr]) -> tuple[Expr, Expr]:
        """(offset in the buffer, validity 0 or 1) of the element at one index per dimension.

        Where the validity is 0 the element is zero and the offset may be anything.
        """
        return _index(self.views, tuple(indices))

    def reshape(self, shape: Sequence[int]) -> Access:
        """The same elements in another shape, of which one size may be -1."""
        shape = _inferred(self.shape, _integers(shape))
        below, top = self.views[:-1], self.views[-1]
        if below and top.is_row_major and top.size == below[-1].size:  # a reshape, now obsolete
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
        """Dimensions of size 1 repeated to the sizes given; -1 leaves a size as it is."""
        given = _integers(shape)
        self._check_rank("expand", given)
        wanted = tuple(n if m == -1 else m for n, m in zip(self.shape, given, strict=True))
        if any(m < 1 or n not in (1, m) for n, m in zip(self.shape, wanted, strict=True)):
            raise _invalid("expand", given, self.shape, "only a dimension of size 1 can grow")
        return self._with(self.views[-1].expand(wanted))

    def pad(self, widths: Sequence[tuple[int, int]]) -> Access:
        """Zeros (before, after) each dimension."""
        self._check_rank("pad", widths)
        widths = _pairs(widths)
        if any(before < 0 or after < 0 for before, after in widths):
            raise _invalid("pad", widths, self.shape, "widths must not be negative")
        sides = zip(self.shape, widths, strict=True)
        return self._with(self.views[-1].window(tuple((-b, n + a) for n, (b, a) in sides)))

    def shrink(self, box: Sequence[tuple[int, int]]) -> Access:
        """The elements from begin up to end of each dimension."""
        self._check_rank("shrink", box)
        box = _pairs(box)
        if any(not 0 <= b < e <= n for n, (b, e) in zip(self.shape, box, strict=True)):
            raise _invalid("shrink", box, self.shape, "each needs 0 <= begin < end <= size")
        return self._with(self.views[-1].window(box))

    def flip(self, axes: Sequence[int]) -> Access:
        """Some dimensions backwards."""
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
        """The same access in as few views as neighbours can be merged into."""
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
    """Python's own integers, whatever kind of integer was given; TypeError for a fraction."""
    return tuple(map(operator.index, values))


def _pairs(values: Sequence[tuple[int, int]]) -> Ranges:
    return tuple((operator.index(a), operator.index(b)) for a, b in values)


def _invalid(operation: str, argument: Sequence[object], shape: Shape, why: str) -> ValueError:
    return misuse(ValueError, f"invalid {operation} {tuple(argument)} for shape {shape}: {why}")


def _inferred(shape: Shape, wanted: Shape) -> Shape:
    """`wanted` with its -1 replaced by what is left of the elements of `shape`."""
    if wanted.count(-1) > 1 or any(n < 1 and n != -1 for n in wanted):
        raise _invalid("reshape", wanted, shape, "sizes must be positive, but for one -1")
    known = math.prod(n for n in wanted if n != -1)
    size = math.prod(shape)
    filled = tuple(size // known if n == -1 else n for n in wanted)
    if math.prod(filled) != size:
        why = f"{size} elements do not fill it"
        raise _invalid("reshape", wanted, shape, why)
    return filled


@lru_cache(maxsize=1 << 12)
def _index(views: tuple[View, ...], indices: tuple[Expr, ...]) -> tuple[Expr, Expr]:
    flat, valid = views[-1].index(indices)
    for view in reversed(views[:-1]):
        flat, inside = view.index(unravel(flat, view.shape))
        valid = conj(valid, inside)
    return flat, valid


@lru_cache(maxsize=1 << 12)
def _compose(inner: View, outer: View) -> View | None:
    """One view that equals `outer` applied to `inner`, if its index turns out to be linear."""
    if outer.is_empty:
        return outer
    # the index matters inside the mask only, and narrower bounds simplify further
    variables = [
        Const(begin) if end - begin == 1 else Var(f"i{axis}", begin, end - 1)
        for axis, (begin, end) in enumerate(outer.ranges)
    ]
    offset, valid = _index((inner, outer), tuple(variables))
    if valid is ZERO:
        return _nothing(outer.shape)
    if valid is not ONE:
        box = _box(valid, variables, outer.ranges)
        if box is None:
            return None
        return _compose(inner, _view(outer.shape, outer.strides, outer.offset, box))
    constant, terms = split(offset)
    strides = dict(terms)
    if not strides.keys() <= set(variables):
        return None
    return _view(outer.shape, tuple(strides.get(v, 0) for v in variables), constant, outer.ranges)


def _box(valid: Expr, variables: Sequence[Expr], ranges: Ranges) -> Ranges | None:
    """Where a condition holds, as ranges of the variables, if it limits each on its own."""
    limits = list(ranges)
    for condition in valid.sources if isinstance(valid, And) else (valid,):
        if not isinstance(condition, Less):
            return None
        (term, coefficient), *others = split(condition.x)[1]
        if others or term not in variables:
            return None
        axis, n = variables.index(term), condition.n
        begin, end = limits[axis]
        limits[axis] = (begin, min(end, n)) if coefficient > 0 else (max(begin, 1 - n), end)
    return tuple(limits)
