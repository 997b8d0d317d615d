"""How a grid's values become maps of twice the size, as Tensors with gradients of their own.

What it computes stands in docs/format-imlp.md in whole numbers; here it is floats, for training.
What slides over an axis is taps, which are slices of it; a GPU's lanes look up what each place
takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise, product
from operator import add
from typing import Any, NamedTuple

import numpy as np

from imgmlp.codec.latent.plane import Span
from imgmlp.engine import Context, Function, Tensor

Array = np.ndarray[Any, Any]

TAPS = 4  # of either phase of an upsampling filter
BEYOND = 2  # values beyond either end that it takes
LONG = 1 << 10  # terms that one group had better not add up alone
MANY = 1 << 17  # elements that a GPU had better not compute again for each of TAPS sums
MOST = 1 << 19  # and not at all, as a launch more takes less


class Tables(NamedTuple):
    """Which taps have a part in what of [c, h, w] each place of [c, height, width] takes, bools: of
    rows and of columns, [TAPS, TAPS, places], and of both for gradients by taps."""

    rows: Tensor
    columns: Tensor
    both: Tensor  # [TAPS, TAPS, height + c * width]


def upsampled(
    x: Tensor, taps: Tensor, height: int, width: int, tables: Tables | None, halo: int
) -> Tensor:
    """[c, h, w] -> [c, height, width], which is twice as large, or a little less or more; with a
    `halo`, of twice as many places without so many at either end.

    `tables` are those of `tables_for` these sizes, where lanes of a GPU compute it.
    """
    if tables is not None:
        found = Enlarged.apply(x, taps, height + 2 * halo, width + 2 * halo, tables)
        return _cut(_cut(found, 1, halo, halo + height), 2, halo, halo + width) if halo else found
    # Columns first: of what is as high as it is to be, rows are read and written along.
    return Doubled.apply(Doubled.apply(x, taps, 2, width, halo), taps, 1, height, halo)


class Repeated(Function):
    """x [c, h, w] with an axis of which only some places are in use: the last of them is found
    again in the two behind it, as far as `Doubled` looks, and the first in the two before it.

    `end`, i32 [1], is the first place behind them, `first` the first of them; None: all from the
    beginning.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, first: Tensor | None, end: Tensor, axis: int) -> Tensor:
        ctx.ends = first, end, axis  # type: ignore[attr-defined]
        place = _places(x, axis)
        behind = place - end.reshape(1, 1, 1)
        beyond = Tensor.where(behind < 2, _at(x, end - 1, axis), 0.0)
        found = Tensor.where(behind < 0, x, beyond)
        if first is None:
            return found
        before = first.reshape(1, 1, 1) - place
        beyond = Tensor.where(before < 3, _at(x, first, axis), 0.0)
        return Tensor.where(before < 1, found, beyond)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None, None, None]:
        first, end, axis = ctx.ends  # type: ignore[attr-defined]
        place = _places(g, axis)
        framed = g.pad(*((2, 2) if a == axis else (0, 0) for a in range(3)))  # by 2 further along
        behind = place - end.reshape(1, 1, 1)
        again = _at(framed, end + 2, axis) + _at(framed, end + 3, axis)
        found = Tensor.where(behind < 0, g + Tensor.where(behind < -1, 0.0, again), 0.0)
        if first is None:
            return found, None, None, None
        before = first.reshape(1, 1, 1) - place
        again = _at(framed, first, axis) + _at(framed, first + 1, axis)
        found = found + Tensor.where(before < 0, 0.0, again)
        return Tensor.where(before < 1, found, 0.0), None, None, None


def _at(x: Tensor, place: Tensor, axis: int) -> Tensor:
    """The one place of an axis whose number is in an i32 [1]."""
    order = (axis, *(a for a in range(3) if a != axis))
    return x.permute(*order).gather(place).permute(*(order.index(a) for a in range(3)))


def _places(x: Tensor, axis: int) -> Tensor:
    shape = [1, 1, 1]
    shape[axis] = x.shape[axis]
    return Tensor.arange(x.shape[axis]).reshape(*shape)


class Doubled(Function):
    """An axis of x [c, h, w], twice as long: 4 taps for even places, mirrored ones for odd ones.

    Beyond its ends the first and the last value repeat. Of the places `wanted` are computed, from
    `first` on, which is even.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, taps: Tensor, axis: int, wanted: int, first: int
    ) -> Tensor:
        n = x.shape[axis]
        pairs = first // 2, (first + wanted + 1) // 2
        ctx.save_for_backward(x, taps)
        ctx.sizes = axis, wanted, first, pairs  # type: ignore[attr-defined]
        found = [
            _pairs(_around(x, axis, begin, end), taps, axis) for begin, end in _cuts(pairs, n - 2)
        ]
        both = Tensor.concat(found, axis)
        shape = (*x.shape[:axis], 2 * both.shape[axis], *x.shape[axis + 1 :])
        return _cut(both.reshape(*shape), axis, 0, wanted)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, taps = ctx.saved_tensors
        axis, wanted, first, pairs = ctx.sizes  # type: ignore[attr-defined]
        by_x = _by_values(g, taps, axis, x.shape[axis], first)
        ends = [(0, wanted % 2 if a == axis else 0) for a in range(3)]
        whole, sums = g.pad(*ends) if wanted % 2 else g, []
        for begin, end in _cuts(pairs, x.shape[axis] - 2):
            terms = []
            for odd in (0, 1):
                c, h, w = _long(x.shape, axis, end - begin)
                place = 2 * begin + odd - first
                every = _cut(whole, axis, place, place + 2 * (end - begin) - 1, 2)
                every = every.reshape(c, h, 1, w)
                terms.append(_windows(x, axis, begin, end, odd) * every)
            sums.append(reduce(add, terms).sum(3).sum((0, 1)))
        return by_x, reduce(add, sums), None, None, None


def _by_values(g: Tensor, taps: Tensor, axis: int, n: int, first: int) -> Tensor:
    """The gradient by the n values of an axis that `Doubled` made g's places of.

    They are numbered with the 2 repeated ones before them. Most have all of their places in g;
    of others each is computed for itself, so that no element asks for conditions.
    """
    wanted = g.shape[axis]

    def by_numbered(begin: int, end: int) -> Tensor | None:
        """By those whose places are all in g or, each of them, not."""
        terms = []
        for j, odd in product(range(TAPS), (0, 1)):
            place = 2 * (begin - j - odd) + odd - first
            if 0 <= place < wanted:
                taken = _cut(g, axis, place, place + 2 * (end - begin) - 1, 2)
                terms.append(taken * _tap(taps, j, odd))
        return reduce(add, terms) if terms else None

    def by_end(begin: int, end: int) -> Tensor:
        each = [by_numbered(number, number + 1) for number in range(begin, end)]
        found = [by for by in each if by is not None]
        return reduce(add, found) if found else Tensor.zeros(*_long(g.shape, axis, 1))

    last = (first + wanted + 1) // 2 + TAPS
    if n == 1:
        return by_end(0, last)
    lo, hi = (min(max(3, m), n + 1) for m in ((first + 2 * TAPS) // 2, (first + wanted + 1) // 2))
    inner = [by_end(number, number + 1) for number in range(3, lo)]
    found = by_numbered(lo, hi) if lo < hi else None
    inner += [found] if found is not None else []
    inner += [by_end(number, number + 1) for number in range(max(lo, hi), n + 1)]
    return Tensor.concat([by_end(0, 3), *inner, by_end(n + 1, last)], axis)


def _long(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    """A shape with so many places along an axis."""
    return tuple(count if a == axis else n for a, n in enumerate(shape))


def _windows(x: Tensor, axis: int, begin: int, end: int, odd: int) -> Tensor:
    """Of x [c, h, w] with places from begin to end, what each tap is multiplied with there, for
    even or odd places: [c, h, TAPS, w]. Where all are inside of x, they lie side by side.
    """
    n = x.shape[axis]
    j, i = Tensor.arange(TAPS).reshape(TAPS, 1), Tensor.arange(end - begin).reshape(1, end - begin)
    places = i - j + (begin + 2) if odd else i + j + (begin - 2)
    if begin < 2 or end + 2 > n:
        places = places.maximum(0).minimum(n - 1)
    order = (axis, *(a for a in range(3) if a != axis))
    found = x.permute(*order).gather(places)  # [TAPS, end - begin, the other two]
    c, h, w = (order.index(a) + 1 for a in range(3))
    return found.permute(c, h, 0, w)


def _cuts(places: tuple[int, int], last: int) -> list[tuple[int, int]]:
    """What of a range lies before, between and behind the places 2 and `last`."""
    begin, end = places
    inside = [place for place in (2, last) if last > 2 and begin < place < end]
    return list(pairwise([begin, *inside, end]))


def _around(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Places from begin - 2 up to end + 2 of an axis; outside its ends repeat."""
    n = x.shape[axis]
    if begin >= 2 and end + 2 <= n:
        return _cut(x, axis, begin - 2, end + 2)
    order = (axis, *(a for a in range(3) if a != axis))
    places = (Tensor.arange(end - begin + TAPS) + (begin - 2)).maximum(0).minimum(n - 1)
    found = x.permute(*order).gather(places)
    return found.permute(*(order.index(a) for a in range(3)))


def _pairs(seen: Tensor, taps: Tensor, axis: int) -> Tensor:
    """Even and odd places from what is around them: the axis as two, [count, 2]."""
    count = seen.shape[axis] - TAPS
    both = []
    for odd in (0, 1):
        terms = (_cut(seen, axis, j + odd, j + odd + count) * _tap(taps, j, odd)
                 for j in range(TAPS))  # fmt: skip
        found = reduce(add, list(terms))
        both.append(found.reshape(*found.shape[: axis + 1], 1, *found.shape[axis + 1 :]))
    return Tensor.concat(both, axis + 1)


def _cut(x: Tensor, axis: int, begin: int, end: int, step: int = 1) -> Tensor:
    return x[(slice(None),) * axis + (slice(begin, end, step),)]


def _tap(taps: Tensor, j: int, odd: int) -> Tensor:
    return taps[TAPS - 1 - j if odd else j].reshape(1, 1, 1)


class Enlarged(Function):
    """Both axes of x [c, h, w] twice as long, or one less, each as `Doubled` makes it.

    A value is a sum over TAPS by TAPS values around it, where x has zeros beyond its ends: what
    the first and the last one in use are there, `_shares` says of these values themselves.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, taps: Tensor, height: int, width: int, tables: Tables
    ) -> Tensor:
        down, across = -(-height // 2), -(-width // 2)
        rows, columns = _shares(taps, tables.rows), _shares(taps, tables.columns)
        ctx.save_for_backward(x, rows, columns)
        ctx.takes = tables.both  # type: ignore[attr-defined]
        framed = x.pad((0, 0), (BEYOND, BEYOND), (BEYOND, BEYOND))
        near = [[_cut(_cut(framed, 1, r, r + down), 2, k, k + across) for r in range(TAPS + 1)]
                for k in range(TAPS + 1)]  # fmt: skip
        found = []
        for odd in range(2):
            sums = [_weighted(each[odd : odd + TAPS], rows[:, odd::2], 1) for each in near]
            sides = [_weighted(sums[o : o + TAPS], columns[:, o::2], 2) for o in range(2)]
            apart = [each.reshape(-1, down, 1, across, 1) for each in sides]
            found.append(Tensor.concat(apart, 4))
        all_of_them = Tensor.concat(found, 2).reshape(-1, 2 * down, 2 * across)
        return all_of_them[:, :height, :width]

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, rows, columns = ctx.saved_tensors
        (_, h, w), (_, height, width) = x.shape, g.shape
        takes = ctx.takes  # type: ignore[attr-defined]
        of_rows, of_columns = _shares_of_users(rows, h), _shares_of_users(columns, w)
        by_columns = _stored(_weighted(_users(g, 2, w), of_columns, 2), MANY)  # [c, height, w]
        by_rows = _weighted(_users(g, 1, h), of_rows, 1)  # [c, h, width]
        by_x = _weighted(_users(_stored(by_rows, MOST), 2, w), of_columns, 2)
        by_x = by_x.contiguous()  # not in a kernel for all of the plane
        of_height = (_each_around(x, 1, height) * by_columns).sum((1, 3))
        of_width = (_each_around(x, 2, width) * _stored(by_rows, MANY)).sum(2)
        by_shares = [of_height.reshape(TAPS, 1, height), of_width]
        return by_x, _by_taps(by_shares, takes), None, None, None


def _stored(x: Tensor, most: int) -> Tensor:
    """In memory, if it has more elements than had better be computed again."""
    return x.contiguous() if math.prod(x.shape) > most else x


def _shares(taps: Tensor, takes: Tensor) -> Tensor:
    """[TAPS, wanted]: of the values around each place of an axis that is doubled, how much it
    takes."""
    return reduce(add, [Tensor.where(takes[j], taps[j], 0.0) for j in range(TAPS)]).contiguous()


def _by_taps(by_shares: Sequence[Tensor], takes: Tensor) -> Tensor:
    """The gradient by taps [TAPS], one sum of that by the shares of rows' and columns' places, for
    each channel: [TAPS, c, wanted] each."""
    found = Tensor.concat([by.reshape(TAPS, -1) for by in by_shares], 1)
    terms = Tensor.where(takes, found, 0.0)
    # Few groups would take long for many terms; for few another launch does.
    return (terms.sum(2) if terms.shape[2] > LONG else terms.reshape(TAPS, -1)).sum(1)


def tables_for(c: int, used: Sequence[Span], wanted: Sequence[int]) -> list[Array]:
    """`Tables` of c maps that become as large as `wanted`, of which rows and columns within two
    spans are `used`: others are taken by nobody."""
    axes = list(zip(used, wanted, strict=True))
    rows, columns = (_takes(*axis) for axis in axes)
    even = [_takes(span, -(-places // 2) * 2) for span, places in axes]
    return [*even, np.concatenate([rows, np.tile(columns, c)], 2)]


def _takes(used: Span, wanted: int) -> Array:
    """bool [TAPS, TAPS, wanted]: which taps have a part in how much of the values around a place,
    of an axis of which some are used and doubled, is taken."""
    places, tap = np.arange(wanted), np.arange(TAPS).reshape(TAPS, 1, 1)
    first = (places + 1) // 2 - BEYOND
    inside = (first + np.where(places % 2, TAPS - 1 - tap, tap)).clip(used[0], used[1] - 1)
    found: Array = inside == first + np.arange(TAPS).reshape(TAPS, 1)
    return found


def _each_around(x: Tensor, axis: int, wanted: int) -> Tensor:
    """The values around each place of an axis that is doubled: [TAPS, c, h, w]."""
    places = (Tensor.arange(wanted) + 1) // 2 + Tensor.arange(TAPS).reshape(TAPS, 1)
    ends = [(BEYOND, BEYOND) if a == axis else (0, 0) for a in range(3)]
    order = (axis, *(a for a in range(3) if a != axis))
    found = x.pad(*ends).permute(*order).gather(places)  # [TAPS, wanted, the other two]
    return found.permute(0, *(order.index(a) + 1 for a in range(3)))


def _users(g: Tensor, axis: int, n: int) -> list[Tensor]:
    """Of the places that use each of the n values of an axis that was doubled, one after the other;
    zeros where there is no such place."""
    ends = [(0, 0)] * len(g.shape)
    ends[axis] = (TAPS - 1, 2 * n + TAPS - 1 - g.shape[axis])
    framed = g.pad(*ends)
    return [_cut(framed, axis, e, e + 2 * n - 1, 2) for e in range(2 * TAPS)]


def _shares_of_users(shares: Tensor, n: int) -> list[Tensor]:
    """What each of `_users` takes of the value: [n] each."""
    return [share[TAPS - 1 - e // 2] for e, share in enumerate(_users(shares, 1, n))]


def _weighted(values: Sequence[Tensor], shares: Sequence[Tensor] | Tensor, axis: int) -> Tensor:
    """The sum of [c, h, w] each, with one weight for each place of an axis."""
    shape = (-1, 1) if axis == 1 else (-1,)
    pairs = zip(values, shares, strict=True)
    return reduce(add, [value * share.reshape(*shape) for value, share in pairs])
