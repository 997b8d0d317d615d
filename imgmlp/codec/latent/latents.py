"""Grids of latents as one stream of bytes, each latent coded as the entropy network expects it.

Part of the file format (docs/format-imlp.md). Grids come from the coarsest to the finest. Within
one, latents come in waves: all with the same x + 4 y, from the top, as none of them is a
neighbour of another.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from imgmlp.codec import entropy
from imgmlp.codec.distribution import TOTAL_BITS
from imgmlp.codec.latent.context import EntropyNetwork
from imgmlp.codec.latent.model import (
    LARGEST,
    LEAST,
    NEIGHBOURS,
    LatentModel,
    ModelShape,
    Quantized,
)
from imgmlp.codec.latent.tables import REACH, Lists, edges
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

MARGIN = 3  # columns on either side of a grid and rows above it that neighbours may lie in
LAG = 4  # a row's latents come that many waves after those above them
_AT_ONCE = 1 << 13  # latents whose distributions are computed together, if all are known


def encode(model: LatentModel) -> bytes:
    """The bytes of all grids of a model but those that hold nothing but zeros."""
    parts = (_coded(model, grid) for grid in reversed(model.latents) if grid.any())
    lists = (zip(starts.tolist(), widths.tolist(), strict=True) for starts, widths in parts)
    return entropy.narrow(itertools.chain.from_iterable(lists))


def bits(model: LatentModel) -> float:
    """What `encode` spends on a model's latents, but for the 2 bytes of its end."""
    parts = (_coded(model, grid)[1] for grid in model.latents if grid.any())
    return float(sum(np.sum(TOTAL_BITS - np.log2(widths)) for widths in parts))


def _coded(model: LatentModel, grid: Array) -> tuple[Array, Array]:
    """Where the share of each latent begins, and its width, in their order; int64 [latents]."""
    numbers, means = _distributions(model, grid)
    order = wave_order(*grid.shape)
    places = grid.ravel().astype(np.intp) - means + REACH
    known, rows = np.unique(numbers[order], return_inverse=True)
    table, places = edges(known), places[order]
    starts = table[rows, places]
    return starts, table[rows, places + 1] - starts


def _distributions(model: LatentModel, grid: Array) -> tuple[Array, Array]:
    """Numbers of distributions and rounded means of a grid's latents, row by row."""
    network = EntropyNetwork(model.networks, _AT_ONCE)
    padded = pad(grid)
    stride = padded.shape[1]
    known = padded.ravel()
    y, x = np.divmod(np.arange(grid.size), grid.shape[1])
    places = (y + MARGIN) * stride + x + MARGIN
    offsets = neighbour_offsets(model.shape, stride)
    found = [
        network(known[offsets[:, None] + places[begin : begin + _AT_ONCE]])
        for begin in range(0, grid.size, _AT_ONCE)
    ]
    numbers, means = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return numbers, means


def wave_order(height: int, width: int) -> Array:
    """intp [latents]: those of a grid, numbered row by row, in the order of their coding."""
    y, x = np.divmod(np.arange(height * width), width)
    return np.argsort(x + LAG * y, kind="stable")


def pad(grid: Array) -> Array:
    """int16: a grid with zeros where neighbours may lie outside of it."""
    return np.pad(grid.astype(np.int16), ((MARGIN, 0), (MARGIN, MARGIN)))


def neighbour_offsets(shape: ModelShape, stride: int) -> Array:
    """intp [neighbours]: from a latent to its neighbours in a padded grid."""
    chosen = NEIGHBOURS[: shape.neighbours]
    return np.array([up * stride + right for up, right in chosen], np.intp)


class Grids:
    """Reads the grids of a stream one after the other."""

    def __init__(
        self, decoder: entropy.Decoder, shape: ModelShape, networks: Mapping[str, Quantized]
    ) -> None:
        self._decoder, self._shape = decoder, shape
        self._network = EntropyNetwork(networks, shape.height)
        self._lists = Lists()

    def read(self, size: tuple[int, int]) -> Array:
        """int8 of a (height, width) size: the next grid. Raises FormatError."""
        padded = pad(np.zeros(size, np.int8))
        stride, known = padded.shape[1], padded.ravel()
        rows = np.arange(size[0]) * (stride - LAG)  # from a wave's place in the first row to others
        lead = MARGIN * stride + MARGIN  # of the first latent
        neighbours = neighbour_offsets(self._shape, stride)[:, None] + rows + lead
        for wave in range(wave_count(*size)):
            top, end = max(0, -(-(wave - size[1] + 1) // LAG)), min(size[0], wave // LAG + 1)
            numbers, means = self._network(known.take(neighbours[:, top:end] + wave))
            places = self._decoder.places(map(self._lists.__getitem__, numbers.tolist()))
            known[rows[top:end] + (lead + wave)] = means + (np.array(places, np.intp) - REACH)
        grid = padded[MARGIN:, MARGIN:-MARGIN]
        if grid.min() < LEAST or grid.max() > LARGEST:
            raise FormatError(f"latents are not from {LEAST} to {LARGEST}", hint=entropy.HINT)
        return grid.astype(np.int8)


def wave_count(height: int, width: int) -> int:
    """How many waves a grid has; those of narrow ones may be empty."""
    return width + LAG * (height - 1)
