"""From the grids of latents to one map of each for every pixel, in whole numbers.

Part of the file format (docs/format-imlp.md). From the coarsest on: what there is doubles its size
by a filter of the level, by columns, then by rows, and the next grid joins it. NumPy does it for
every device, since the sizes are another picture's each time, and compiling would take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LIMIT, VALUE_BITS, Quantized

Array = np.ndarray[Any, Any]


def upsample(latents: Sequence[Array], filters: Quantized) -> Array:
    """int32 [levels, height, width], in 2**-VALUE_BITS, of grids [rows, columns], finest first."""
    maps = _map(latents[-1])
    for level in range(len(latents) - 2, -1, -1):
        taps, size = filters.values[level], latents[level].shape
        maps = _doubled(maps, 2, size[1], taps, filters.exponent)
        maps = _doubled(maps, 1, size[0], taps, filters.exponent)
        maps = np.concatenate([_map(latents[level]), maps])
    return maps


def _map(grid: Array) -> Array:
    return grid[None].astype(np.int32) << VALUE_BITS


def _doubled(maps: Array, axis: int, samples: int, taps: Array, exponent: int) -> Array:
    """An axis with twice as many samples, or one less than that."""
    around = [(0, 0)] * 3
    around[axis] = (2, 2)
    known = np.pad(maps, around, mode="edge")
    shape = [*maps.shape]
    shape[axis] = samples
    found = np.empty(shape, np.int32)
    for odd in range(2):
        target = found[_along(axis, slice(odd, None, 2))]
        order = taps[::-1] if odd else taps
        count = target.shape[axis]
        sums = sum(
            known[_along(axis, slice(odd + n, odd + n + count))] * tap
            for n, tap in enumerate(order)
        )
        target[...] = np.clip(sums + (1 << exponent >> 1) >> exponent, -LIMIT, LIMIT)
    return found


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (part,)
