"""From the grids of latents to one map of each for every pixel, in whole numbers.

Part of the file format (docs/format-imlp.md). From the coarsest on: what there is doubles its size
by a filter of the level, by columns, then by rows, and the next grid joins it. Any part of the
picture can be had alone, so that large ones need little memory. NumPy does it for every device,
as sizes are another picture's each time, and compiling would take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LIMIT, VALUE_BITS, Quantized

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # first, and the one after the last

_TAPS = 4
_BEFORE, _AFTER = 2, 2  # how far away from a sample those are that its two halves need


def upsample(latents: Sequence[Array], filters: Quantized, rows: Span, columns: Span) -> Array:
    """int32 [levels, rows, columns], in 2**-VALUE_BITS, of a part of the picture.

    `latents` are the grids, finest first, `filters` int32 [levels - 1, 4].
    """
    (top, bottom), (left, right) = rows, columns
    own = latents[0][None, top:bottom, left:right].astype(np.int32) << VALUE_BITS
    if len(latents) == 1:
        return own
    taps, exponent = filters.values[0], filters.exponent
    coarser = Quantized(filters.values[1:], exponent)
    (rows_there, rows_beyond), (columns_there, columns_beyond) = (
        _needed(span, size) for span, size in zip((rows, columns), latents[1].shape, strict=True)
    )
    maps = upsample(latents[1:], coarser, rows_there, columns_there)
    maps = np.pad(maps, ((0, 0), rows_beyond, columns_beyond), mode="edge")
    maps = _doubled(maps, 2, columns, taps, exponent)
    maps = _doubled(maps, 1, rows, taps, exponent)
    return np.concatenate([own, maps])


def around(begin: int, count: int, size: int, halo: int) -> tuple[Span, slice]:
    """Of a piece with its halo, the span that lies in the picture, and where that is in it."""
    first, end = max(0, begin - halo), min(size, begin + count + halo)
    return (first, end), slice(first - begin + halo, end - begin + halo)


def _needed(span: Span, size: int) -> tuple[Span, Span]:
    """The span of a coarser grid that a span needs, and how many are missing on either side."""
    begin, end = span[0] // 2 - _BEFORE, (span[1] - 1) // 2 + 1 + _AFTER
    there = max(begin, 0), min(end, size)
    return there, (there[0] - begin, end - there[1])


def _doubled(maps: Array, axis: int, span: Span, taps: Array, exponent: int) -> Array:
    """A span of an axis of twice as many samples, from what it needs of the coarser one."""
    count = maps.shape[axis] - _BEFORE - _AFTER
    shape = [*maps.shape]
    shape[axis] = 2 * count
    found = np.empty(shape, np.int32)
    for odd in range(2):
        order = taps[::-1] if odd else taps
        parts = (
            maps[_along(axis, slice(odd + n, odd + n + count))] * order[n] for n in range(_TAPS)
        )
        sums = sum(parts) + (1 << exponent >> 1) >> exponent
        found[_along(axis, slice(odd, None, 2))] = np.clip(sums, -LIMIT, LIMIT)
    first = span[0] % 2
    return found[_along(axis, slice(first, first + span[1] - span[0]))]


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (part,)
