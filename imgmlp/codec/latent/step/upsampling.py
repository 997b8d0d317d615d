"""Upsampling of latents to maps of twice the size, on Tensors, with handwritten gradients.

It computes in floats, for training, what docs/format-imlp.md defines in integers: each axis is
doubled by a filter of TAPS taps for even outputs and its mirror image for odd ones; beyond the
edges the first and the last value repeat. CPUs double one axis after the other by sums of shifted
slices (`AxisUpsampling`). GPUs double both at once and look up in tables which taps the edges fold
onto which input (`LookupUpsampling`).
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

TAPS = 4  # of the filter for either phase, even or odd outputs
VALUES_BEYOND_EDGE = 2  # inputs beyond either edge that the filter reads
# Terms of a sum from which a GPU adds them in two stages, as one group would take long.
MIN_TWO_STAGE_TERMS = 1 << 10
# Elements up to which a GPU computes an intermediate again instead of storing it, which takes one
# launch more: for each of TAPS sums, and at all.
MAX_RECOMPUTED_BY_SUMS = 1 << 17
MAX_RECOMPUTED = 1 << 19


class Tables(NamedTuple):
    """Which taps multiply which inputs, for maps [c, h, w] that become [c, height, width]: bools
    [taps, inputs around an output, outputs]. At the edges several taps share one input."""

    rows: Tensor  # [TAPS, TAPS, height], rounded up to an even number
    columns: Tensor  # [TAPS, TAPS, width], likewise
    both: Tensor  # [TAPS, TAPS, height + c * width], for the gradient of taps


def upsample(
    x: Tensor, taps: Tensor, height: int, width: int, tables: Tables | None, halo: int
) -> Tensor:
    """[c, h, w] -> [c, height, width], about twice as large; with a `halo`, that many rows and
    columns are cut off at every edge of the result.

    `tables` are those that `upsampling_tables` makes for these sizes, on GPUs; else None.
    """
    if tables is not None:
        maps = LookupUpsampling.apply(x, taps, height + 2 * halo, width + 2 * halo, tables)
        return _slice(_slice(maps, 1, halo, halo + height), 2, halo, halo + width) if halo else maps
    # Columns first, so that the larger step, that of rows, reads and writes contiguous rows.
    return AxisUpsampling.apply(
        AxisUpsampling.apply(x, taps, 2, width, halo), taps, 1, height, halo
    )


class EdgeReplication(Function):
    """x [c, h, w] where an axis is in use from position `first` to `end`: the last value in use is
    copied to the two positions behind it, as far as `AxisUpsampling` looks, and the first value to
    the two before it.

    `first` and `end` are i32 [1]; with a `first` of None the axis is in use from its beginning.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, first: Tensor | None, end: Tensor, axis: int) -> Tensor:
        ctx.ends = first, end, axis  # type: ignore[attr-defined]
        position = _positions(x, axis)
        behind = position - end.reshape(1, 1, 1)
        beyond = Tensor.where(behind < 2, _value_at(x, end - 1, axis), 0.0)
        result = Tensor.where(behind < 0, x, beyond)
        if first is None:
            return result
        before = first.reshape(1, 1, 1) - position
        beyond = Tensor.where(before < 3, _value_at(x, first, axis), 0.0)
        return Tensor.where(before < 1, result, beyond)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None, None, None]:
        first, end, axis = ctx.ends  # type: ignore[attr-defined]
        position = _positions(g, axis)
        framed = g.pad(*((2, 2) if a == axis else (0, 0) for a in range(3)))  # by 2 further along
        behind = position - end.reshape(1, 1, 1)
        repeated = _value_at(framed, end + 2, axis) + _value_at(framed, end + 3, axis)
        result = Tensor.where(behind < 0, g + Tensor.where(behind < -1, 0.0, repeated), 0.0)
        if first is None:
            return result, None, None, None
        before = first.reshape(1, 1, 1) - position
        repeated = _value_at(framed, first, axis) + _value_at(framed, first + 1, axis)
        result = result + Tensor.where(before < 0, 0.0, repeated)
        return Tensor.where(before < 1, result, 0.0), None, None, None


def _value_at(x: Tensor, position: Tensor, axis: int) -> Tensor:
    """x at one position of an axis, which an i32 [1] holds."""
    order = (axis, *(a for a in range(3) if a != axis))
    return x.permute(*order).gather(position).permute(*(order.index(a) for a in range(3)))


def _positions(x: Tensor, axis: int) -> Tensor:
    shape = [1, 1, 1]
    shape[axis] = x.shape[axis]
    return Tensor.arange(x.shape[axis]).reshape(*shape)


class AxisUpsampling(Function):
    """An axis of x [c, h, w] doubled: by TAPS taps for even outputs, by mirrored ones for odd ones.

    Beyond its ends the first and the last value repeat. `out_size` outputs are computed, from
    output `first` on, which is even.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, taps: Tensor, axis: int, out_size: int, first: int
    ) -> Tensor:
        n = x.shape[axis]
        pairs = first // 2, (first + out_size + 1) // 2
        ctx.save_for_backward(x, taps)
        ctx.sizes = axis, out_size, first, pairs  # type: ignore[attr-defined]
        result = [
            _even_and_odd(_with_edges(x, axis, begin, end), taps, axis)
            for begin, end in _split_at_edges(pairs, n - 2)
        ]
        both = Tensor.concat(result, axis)
        shape = (*x.shape[:axis], 2 * both.shape[axis], *x.shape[axis + 1 :])
        return _slice(both.reshape(*shape), axis, 0, out_size)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, taps = ctx.saved_tensors
        axis, out_size, first, pairs = ctx.sizes  # type: ignore[attr-defined]
        by_x = _input_gradient(g, taps, axis, x.shape[axis], first)
        ends = [(0, out_size % 2 if a == axis else 0) for a in range(3)]
        whole, sums = g.pad(*ends) if out_size % 2 else g, []
        for begin, end in _split_at_edges(pairs, x.shape[axis] - 2):
            terms = []
            for odd in (0, 1):
                c, h, w = _with_length(x.shape, axis, end - begin)
                position = 2 * begin + odd - first
                every = _slice(whole, axis, position, position + 2 * (end - begin) - 1, 2)
                every = every.reshape(c, h, 1, w)
                terms.append(_tap_inputs(x, axis, begin, end, odd) * every)
            sums.append(reduce(add, terms).sum(3).sum((0, 1)))
        return by_x, reduce(add, sums), None, None, None


def _input_gradient(g: Tensor, taps: Tensor, axis: int, n: int, first: int) -> Tensor:
    """The gradient with respect to the n values of an axis that `AxisUpsampling` doubled, by that
    of its outputs, g.

    Values are numbered from the first of the 2 repeated ones before them. Most have all the outputs
    that they contribute to in g and are computed together; each of the others is computed by
    itself, so that no element needs a condition.
    """
    out_size = g.shape[axis]

    def by_numbered(begin: int, end: int) -> Tensor | None:
        """For values whose k-th output is in g for all of them, or for none."""
        terms = []
        for j, odd in product(range(TAPS), (0, 1)):
            position = 2 * (begin - j - odd) + odd - first
            if 0 <= position < out_size:
                taken = _slice(g, axis, position, position + 2 * (end - begin) - 1, 2)
                terms.append(taken * _tap(taps, j, odd))
        return reduce(add, terms) if terms else None

    def by_end(begin: int, end: int) -> Tensor:
        each = [by_numbered(number, number + 1) for number in range(begin, end)]
        result = [by for by in each if by is not None]
        return reduce(add, result) if result else Tensor.zeros(*_with_length(g.shape, axis, 1))

    last = (first + out_size + 1) // 2 + TAPS
    if n == 1:
        return by_end(0, last)
    lo, hi = (min(max(3, m), n + 1) for m in ((first + 2 * TAPS) // 2, (first + out_size + 1) // 2))
    inner = [by_end(number, number + 1) for number in range(3, lo)]
    result = by_numbered(lo, hi) if lo < hi else None
    inner += [result] if result is not None else []
    inner += [by_end(number, number + 1) for number in range(max(lo, hi), n + 1)]
    return Tensor.concat([by_end(0, 3), *inner, by_end(n + 1, last)], axis)


def _with_length(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    """A shape with another length along an axis."""
    return tuple(count if a == axis else n for a, n in enumerate(shape))


def _tap_inputs(x: Tensor, axis: int, begin: int, end: int, odd: int) -> Tensor:
    """The inputs in x [c, h, w] that each tap is multiplied with, for the even or odd outputs of
    positions begin to end: [c, h, TAPS, w]. Inside of x these are shifted slices.
    """
    n = x.shape[axis]
    j, i = Tensor.arange(TAPS).reshape(TAPS, 1), Tensor.arange(end - begin).reshape(1, end - begin)
    positions = i - j + (begin + 2) if odd else i + j + (begin - 2)
    if begin < 2 or end + 2 > n:
        positions = positions.maximum(0).minimum(n - 1)
    order = (axis, *(a for a in range(3) if a != axis))
    result = x.permute(*order).gather(positions)  # [TAPS, end - begin, the other two]
    c, h, w = (order.index(a) + 1 for a in range(3))
    return result.permute(c, h, 0, w)


def _split_at_edges(positions: tuple[int, int], last: int) -> list[tuple[int, int]]:
    """A range of positions, split where the filter stops and starts to reach past the edges."""
    begin, end = positions
    inside = [position for position in (2, last) if last > 2 and begin < position < end]
    return list(pairwise([begin, *inside, end]))


def _with_edges(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Positions begin - 2 to end + 2 of an axis, whose first and last value repeat outside."""
    n = x.shape[axis]
    if begin >= 2 and end + 2 <= n:
        return _slice(x, axis, begin - 2, end + 2)
    order = (axis, *(a for a in range(3) if a != axis))
    positions = (Tensor.arange(end - begin + TAPS) + (begin - 2)).maximum(0).minimum(n - 1)
    result = x.permute(*order).gather(positions)
    return result.permute(*(order.index(a) for a in range(3)))


def _even_and_odd(seen: Tensor, taps: Tensor, axis: int) -> Tensor:
    """Even and odd outputs from the inputs around them; the axis becomes two, [count, 2]."""
    count = seen.shape[axis] - TAPS
    both = []
    for odd in (0, 1):
        terms = (_slice(seen, axis, j + odd, j + odd + count) * _tap(taps, j, odd)
                 for j in range(TAPS))  # fmt: skip
        result = reduce(add, list(terms))
        both.append(result.reshape(*result.shape[: axis + 1], 1, *result.shape[axis + 1 :]))
    return Tensor.concat(both, axis + 1)


def _slice(x: Tensor, axis: int, begin: int, end: int, step: int = 1) -> Tensor:
    return x[(slice(None),) * axis + (slice(begin, end, step),)]


def _tap(taps: Tensor, j: int, odd: int) -> Tensor:
    return taps[TAPS - 1 - j if odd else j].reshape(1, 1, 1)


class LookupUpsampling(Function):
    """Both axes of x [c, h, w] doubled, or one less, each as by `AxisUpsampling`.

    An output is a weighted sum of the TAPS by TAPS inputs around it. x has zeros beyond its ends;
    the repeated values there are accounted for by larger weights of the first and the last value in
    use (`_output_weights`).
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, taps: Tensor, height: int, width: int, tables: Tables
    ) -> Tensor:
        down, across = -(-height // 2), -(-width // 2)
        rows, columns = _output_weights(taps, tables.rows), _output_weights(taps, tables.columns)
        ctx.save_for_backward(x, rows, columns)
        ctx.tap_tables = tables.both  # type: ignore[attr-defined]
        framed = x.pad(
            (0, 0),
            (VALUES_BEYOND_EDGE, VALUES_BEYOND_EDGE),
            (VALUES_BEYOND_EDGE, VALUES_BEYOND_EDGE),
        )
        near = [[_slice(_slice(framed, 1, r, r + down), 2, k, k + across) for r in range(TAPS + 1)]
                for k in range(TAPS + 1)]  # fmt: skip
        result = []
        for odd in range(2):
            sums = [_weighted_sum(each[odd : odd + TAPS], rows[:, odd::2], 1) for each in near]
            sides = [_weighted_sum(sums[o : o + TAPS], columns[:, o::2], 2) for o in range(2)]
            parted = [each.reshape(-1, down, 1, across, 1) for each in sides]
            result.append(Tensor.concat(parted, 4))
        interleaved = Tensor.concat(result, 2).reshape(-1, 2 * down, 2 * across)
        return interleaved[:, :height, :width]

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, rows, columns = ctx.saved_tensors
        (_, h, w), (_, height, width) = x.shape, g.shape
        tap_tables = ctx.tap_tables  # type: ignore[attr-defined]
        of_rows, of_columns = _weights_in_outputs(rows, h), _weights_in_outputs(columns, w)
        by_columns = _stored_if_larger(
            _weighted_sum(_outputs_using(g, 2, w), of_columns, 2), MAX_RECOMPUTED_BY_SUMS
        )  # [c, height, w]
        by_rows = _weighted_sum(_outputs_using(g, 1, h), of_rows, 1)  # [c, h, width]
        by_x = _weighted_sum(
            _outputs_using(_stored_if_larger(by_rows, MAX_RECOMPUTED), 2, w), of_columns, 2
        )
        by_x = by_x.contiguous()  # not in a kernel for all of the plane
        of_height = (_neighbourhoods(x, 1, height) * by_columns).sum((1, 3))
        of_width = (
            _neighbourhoods(x, 2, width) * _stored_if_larger(by_rows, MAX_RECOMPUTED_BY_SUMS)
        ).sum(2)
        by_weights = [of_height.reshape(TAPS, 1, height), of_width]
        return by_x, _taps_gradient(by_weights, tap_tables), None, None, None


def _stored_if_larger(x: Tensor, most: int) -> Tensor:
    """x, stored in memory if it has more elements than a GPU should compute again."""
    return x.contiguous() if math.prod(x.shape) > most else x


def _output_weights(taps: Tensor, tap_tables: Tensor) -> Tensor:
    """The weight of each of the TAPS inputs around every output of an axis: [TAPS, out_size]."""
    return reduce(
        add, [Tensor.where(tap_tables[j], taps[j], 0.0) for j in range(TAPS)]
    ).contiguous()


def _taps_gradient(by_weights: Sequence[Tensor], tap_tables: Tensor) -> Tensor:
    """The gradient of taps [TAPS], from the gradients of the weights of rows and of columns, for
    every channel: [TAPS, c, out_size] each."""
    result = Tensor.concat([by.reshape(TAPS, -1) for by in by_weights], 1)
    terms = Tensor.where(tap_tables, result, 0.0)
    return (terms.sum(2) if terms.shape[2] > MIN_TWO_STAGE_TERMS else terms.reshape(TAPS, -1)).sum(
        1
    )


def upsampling_tables(c: int, in_use: Sequence[Span], out_size: Sequence[int]) -> list[Array]:
    """The arrays of `Tables` for c maps that become as large as `out_size`, of whose rows and
    columns those within two spans are `in_use`; no output in use depends on the others."""
    axes = list(zip(in_use, out_size, strict=True))
    rows, columns = (_tap_table(*axis) for axis in axes)
    even = [_tap_table(span, -(-positions // 2) * 2) for span, positions in axes]
    return [*even, np.concatenate([rows, np.tile(columns, c)], 2)]


def _tap_table(in_use: Span, out_size: int) -> Array:
    """bool [TAPS, TAPS, out_size]: whether a tap multiplies one of the inputs around an output, for
    an axis of which the values within a span are in use."""
    positions, tap = np.arange(out_size), np.arange(TAPS).reshape(TAPS, 1, 1)
    first = (positions + 1) // 2 - VALUES_BEYOND_EDGE
    inside = (first + np.where(positions % 2, TAPS - 1 - tap, tap)).clip(in_use[0], in_use[1] - 1)
    result: Array = inside == first + np.arange(TAPS).reshape(TAPS, 1)
    return result


def _neighbourhoods(x: Tensor, axis: int, out_size: int) -> Tensor:
    """The inputs around every output of an axis that is doubled: [TAPS, c, h, w]."""
    positions = (Tensor.arange(out_size) + 1) // 2 + Tensor.arange(TAPS).reshape(TAPS, 1)
    ends = [(VALUES_BEYOND_EDGE, VALUES_BEYOND_EDGE) if a == axis else (0, 0) for a in range(3)]
    order = (axis, *(a for a in range(3) if a != axis))
    result = x.pad(*ends).permute(*order).gather(positions)  # [TAPS, wanted, the other two]
    return result.permute(0, *(order.index(a) + 1 for a in range(3)))


def _outputs_using(g: Tensor, axis: int, n: int) -> list[Tensor]:
    """For each of the n inputs of an axis, the outputs that use it: 2 TAPS slices of g, with zeros
    where there is no such output."""
    ends = [(0, 0)] * len(g.shape)
    ends[axis] = (TAPS - 1, 2 * n + TAPS - 1 - g.shape[axis])
    framed = g.pad(*ends)
    return [_slice(framed, axis, e, e + 2 * n - 1, 2) for e in range(2 * TAPS)]


def _weights_in_outputs(weights: Tensor, n: int) -> list[Tensor]:
    """The weight of the input in each of the outputs of `_outputs_using`: [n] each."""
    return [weight[TAPS - 1 - e // 2] for e, weight in enumerate(_outputs_using(weights, 1, n))]


def _weighted_sum(
    values: Sequence[Tensor], weights: Sequence[Tensor] | Tensor, axis: int
) -> Tensor:
    """The sum of values [c, h, w], each times one weight for every position of an axis."""
    shape = (-1, 1) if axis == 1 else (-1,)
    pairs = zip(values, weights, strict=True)
    return reduce(add, [value * weight.reshape(*shape) for value, weight in pairs])
