"""Hyperlatents as inputs of the entropy network, in exact integer arithmetic.

Part of the file format (docs/format-imlp.md). Hyperlatents are grids of the same sizes as some of
the coarser grids of the pyramid. Synthesis does not see them. They are coded first and tell the
entropy network of every other grid about the surroundings of a latent that are not decoded yet.
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

TAPS_EXPONENT = 7
TAPS = np.ldexp(BICUBIC_TAPS, TAPS_EXPONENT).astype(np.int32)  # multiples of 2**-TAPS_EXPONENT


class HyperlatentMaps:
    """Hyperlatents resampled to the size of one grid after the other, from the coarsest on."""

    def __init__(self, shape: ModelShape, hyperlatents: Sequence[Array]) -> None:
        """`hyperlatents` are int8 [rows, columns], finest first."""
        self._hyperlatents = hyperlatents
        self._sizes = shape.grid_sizes[: shape.levels]
        self._level = shape.levels
        self._maps = np.zeros((0, 1, 1), np.int32)

    def at(self, level: int) -> Array:
        """The maps of a level: int32 [hyperlatents, rows, columns], with VALUE_BITS.

        Levels may only be asked for in descending order.
        """
        while self._level > level:
            self._level -= 1
            self._maps = self._next_maps(self._level)
        return self._maps

    def _next_maps(self, level: int) -> Array:
        """The maps of a level from those of the next coarser one.

        Hyperlatents of this level and of finer ones are subsampled; the maps of coarser
        hyperlatents are upsampled.
        """
        pairs = zip(HYPERLATENT_LEVELS, self._hyperlatents, strict=True)
        subsampled = [grid[:: 1 << level - n, :: 1 << level - n] for n, grid in pairs if n <= level]
        size, coarser = self._sizes[level], self._maps[len(subsampled) :]
        maps = [grid.astype(np.int32)[None] << VALUE_BITS for grid in subsampled]
        if len(coarser):
            upsample = _upsample_nearest if level < NEAREST_BELOW_LEVEL else _upsample_bicubic
            maps.append(upsample(coarser, size))
        return np.concatenate(maps)


def _upsample_nearest(maps: Array, size: tuple[int, int]) -> Array:
    rows, columns = size
    upsampled: Array = maps.repeat(2, 1).repeat(2, 2)[:, :rows, :columns]
    return upsampled


def _upsample_bicubic(maps: Array, size: tuple[int, int]) -> Array:
    """Upsampling as the pyramid's, with the same taps at every level."""
    for axis in (2, 1):
        padding = [(2, 2) if n == axis else (0, 0) for n in range(3)]
        padded = np.pad(maps, padding, mode="edge")
        maps = double(padded, axis, (0, size[axis - 1]), TAPS, TAPS_EXPONENT)
    return maps
