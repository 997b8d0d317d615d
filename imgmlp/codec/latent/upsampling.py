"""The inputs of the synthesis network: every grid upsampled to the size of the picture, exactly.

Part of the file format (docs/format-imlp.md). From the coarsest grid on, the maps so far are
doubled in size by the filter of the level, first along rows and then along columns, and the next
finer grid joins them. Any region of the picture can be computed alone, so that large pictures need
little memory. NumPy does this for every device: compiling for the size of each picture would take
longer.

Values are int32 in fixed point with VALUE_BITS fractional bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import MAX_VALUE, VALUE_BITS, LatentModel, Quantized

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # first index and end (exclusive) along an axis

_TAPS = 4
_BEFORE, _AFTER = 2, 2  # coarse samples on either side that the two halves of a sample depend on


def synthesis_inputs(model: LatentModel, rows: Span, columns: Span) -> Array:
    """What synthesis sees of a region: int32 [inputs, rows, columns]."""
    maps = upsample(model.pyramid, model.networks["upsampling"], rows, columns)
    if not model.shape.has_filter and not model.extra_grids:
        return maps
    region = slice(*rows), slice(*columns)
    further = [grid[region].astype(np.int32) << VALUE_BITS for grid in model.extra_grids]
    if model.shape.has_filter:
        further.insert(0, _filtered_finest_grid(model, rows, columns))
    return np.concatenate([maps, np.stack(further)])


def _filtered_finest_grid(model: LatentModel, rows: Span, columns: Span) -> Array:
    """A region of the finest grid correlated with the 3x3 filter: int32 [rows, columns]."""
    spans, finest = (rows, columns), model.latents[0]
    parts = [
        padded_span(begin, end - begin, size, 1)
        for (begin, end), size in zip(spans, finest.shape, strict=True)
    ]
    height, width = (end - begin for begin, end in spans)
    padded = np.zeros((height + 2, width + 2), np.int32)
    padded[tuple(there for _, there in parts)] = finest[tuple(slice(*span) for span, _ in parts)]
    weights = model.networks["filter"]
    sums = np.full((height, width), 1 << weights.exponent >> 1, np.int32)
    for down, right in np.ndindex(3, 3):
        shifted = padded[down : down + height, right : right + width]
        sums += shifted * (weights.values[down, right] << VALUE_BITS)
    filtered: Array = np.clip(sums >> weights.exponent, -MAX_VALUE, MAX_VALUE)
    return filtered


def upsample(latents: Sequence[Array], filters: Quantized, rows: Span, columns: Span) -> Array:
    """A region of all grids in the size of the finest one: int32 [levels, rows, columns].

    `latents` are the grids, finest first; `filters` are int32 [levels - 1, 4].
    """
    (top, bottom), (left, right) = rows, columns
    finest = latents[0][None, top:bottom, left:right].astype(np.int32) << VALUE_BITS
    if len(latents) == 1:
        return finest
    taps, exponent = filters.values[0], filters.exponent
    coarser_filters = Quantized(filters.values[1:], exponent)
    (coarse_rows, pad_rows), (coarse_columns, pad_columns) = (
        _coarse_span(span, size)
        for span, size in zip((rows, columns), latents[1].shape, strict=True)
    )
    maps = upsample(latents[1:], coarser_filters, coarse_rows, coarse_columns)
    maps = np.pad(maps, ((0, 0), pad_rows, pad_columns), mode="edge")
    maps = double(maps, 2, columns, taps, exponent)
    maps = double(maps, 1, rows, taps, exponent)
    return np.concatenate([finest, maps])


def padded_span(begin: int, count: int, size: int, padding: int) -> tuple[Span, slice]:
    """`count` samples from `begin` on, with padding on both sides, along an axis of `size` samples.

    Returns the span of those that exist, and the slice of the padded samples where they belong.
    """
    first, end = max(0, begin - padding), min(size, begin + count + padding)
    return (first, end), slice(first - begin + padding, end - begin + padding)


def _coarse_span(span: Span, size: int) -> tuple[Span, Span]:
    """The span of a coarser grid of `size` samples that a span of the finer one depends on.

    Also returns how many samples are missing before and after it, beyond the edges.
    """
    begin, end = span[0] // 2 - _BEFORE, (span[1] - 1) // 2 + 1 + _AFTER
    existing = max(begin, 0), min(end, size)
    return existing, (existing[0] - begin, end - existing[1])


def double(maps: Array, axis: int, span: Span, taps: Array, exponent: int) -> Array:
    """Upsample int32 maps by 2 along an axis, in multiples of 2**-exponent; returns a span of it.

    Along the axis, `maps` hold what `_coarse_span` names, padded at the edges.
    """
    count = maps.shape[axis] - _BEFORE - _AFTER
    shape = [*maps.shape]
    shape[axis] = 2 * count
    doubled = np.empty(shape, np.int32)
    for odd in range(2):
        order = taps[::-1] if odd else taps
        terms = (
            maps[_along(axis, slice(odd + n, odd + n + count))] * order[n] for n in range(_TAPS)
        )
        sums = sum(terms) + (1 << exponent >> 1) >> exponent
        doubled[_along(axis, slice(odd, None, 2))] = np.clip(sums, -MAX_VALUE, MAX_VALUE)
    first = span[0] % 2
    return doubled[_along(axis, slice(first, first + span[1] - span[0]))]


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (part,)
