"""Several Views in a row, for what one cannot say, such as a transposed array that is flattened.

An Access is what a graph's movement operations make of a buffer. Their arguments, which come
from users, are checked here. Nothing here knows of dtypes, graphs or kernels.
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
from imgmlp.engine.ir.view import Ranges, Shape, View, canonical, nothing


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
        if any(m < 0 or n not in (1, m) for n, m in zip(self.shape, wanted, strict=True)):
            raise _invalid("expand", given, self.shape, "only a dimension of size 1 can grow")
        return self._with(self.views[-1].expand(wanted))

    def pad(self, widths: Sequence[tuple[int, int]]) -> Access:
        """Zeros (before, after) each dimension."""
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


def _pairs(operation: str, values: Sequence[tuple[int, int]], shape: Shape) -> Ranges:
    try:
        return tuple((operator.index(a), operator.index(b)) for a, b in values)
    except ValueError:  # more or fewer of them
        raise _invalid(operation, values, shape, "each entry is a pair of numbers") from None


def _invalid(operation: str, argument: Sequence[object], shape: Shape, why: str) -> ValueError:
    return misuse(ValueError, f"invalid {operation} {tuple(argument)} for shape {shape}: {why}")


def _inferred(shape: Shape, wanted: Shape) -> Shape:
    """`wanted` with its -1 replaced by what is left of the elements of `shape`."""
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        raise _invalid("reshape", wanted, shape, "sizes must not be negative, but for one -1")
    known = math.prod(n for n in wanted if n != -1)
    if not known and -1 in wanted:
        raise _invalid("reshape", wanted, shape, "beside a 0 any size could stand for -1")
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
        valid = all_of(valid, inside)
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
        return nothing(outer.shape)
    if valid is not ONE:
        box = _box(valid, variables, outer.ranges)
        if box is None:
            return None
        return _compose(inner, canonical(outer.shape, outer.strides, outer.offset, box))
    constant, terms = linear_parts(offset)
    strides = dict(terms)
    if not strides.keys() <= set(variables):
        return None
    return canonical(
        outer.shape, tuple(strides.get(v, 0) for v in variables), constant, outer.ranges
    )


def _box(valid: Expr, variables: Sequence[Expr], ranges: Ranges) -> Ranges | None:
    """Where a condition holds, as ranges of the variables, if it limits each on its own."""
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
