"""Hyperlatents in whole numbers: what the entropy network sees of them beside every grid.

Part of the file format (docs/format-imlp.md). They are grids as large as some of the coarser ones,
which synthesis does not see: they are coded first, and tell of all others what is around the places
whose latents are not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    HYPERLATENT_LEVELS,
    NEAREST_BELOW_LEVEL,
    VALUE_BITS,
    ModelShape,
)
from imgmlp.codec.latent.upsampling import double

Array = np.ndarray[Any, Any]

EXPONENT = 7
TAPS = np.ldexp(BICUBIC_TAPS, EXPONENT).astype(np.int32)


class Above:
    """Maps of hyperlatents as large as one grid after the other, from the coarsest on."""

    def __init__(self, shape: ModelShape, hyperlatents: Sequence[Array]) -> None:
        """`hyperlatents` are int8 [rows, columns], finest first."""
        self._own = hyperlatents
        self._sizes = shape.grid_sizes[: shape.levels]
        self._level = shape.levels
        self._maps = np.zeros((0, 1, 1), np.int32)

    def at(self, level: int) -> Array:
        """int32 [hyperlatents, rows, columns] in 2**-VALUE_BITS, of a level below those before."""
        while self._level > level:
            self._level -= 1
            self._maps = self._of(self._level)
        return self._maps

    def _of(self, level: int) -> Array:
        """Those of this level and of finer ones are thinned out, the others enlarged."""
        pairs = zip(HYPERLATENT_LEVELS, self._own, strict=True)
        own = [grid[:: 1 << level - n, :: 1 << level - n] for n, grid in pairs if n <= level]
        size, coarser = self._sizes[level], self._maps[len(own) :]
        maps = [grid.astype(np.int32)[None] << VALUE_BITS for grid in own]
        if len(coarser):
            maps.append(
                _nearest(coarser, size) if level < NEAREST_BELOW_LEVEL else _enlarged(coarser, size)
            )
        return np.concatenate(maps)


def _nearest(maps: Array, size: tuple[int, int]) -> Array:
    rows, columns = size
    found: Array = maps.repeat(2, 1).repeat(2, 2)[:, :rows, :columns]
    return found


def _enlarged(maps: Array, size: tuple[int, int]) -> Array:
    """As upsampling does it, by the same taps at every level."""
    for axis in (2, 1):
        framed = np.pad(maps, [(2, 2) if n == axis else (0, 0) for n in range(3)], mode="edge")
        maps = double(framed, axis, (0, size[axis - 1]), TAPS, EXPONENT)
    return maps
