"""Grids of latents as one stream of bytes, coded with the entropy network's distributions.

Part of the file format (docs/format-imlp.md). Grids are coded from the coarsest to the finest.
Within a grid, latents are coded in waves: a wave has all latents with the same x + 4 y, from the
top. None of them is a neighbour of another, so that the network can be evaluated for all at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent.exact_layers import EntropyNetwork
from imgmlp.codec.latent.hyperlatents import HyperlatentMaps
from imgmlp.codec.latent.model import (
    MAX_LATENT,
    MIN_LATENT,
    NEIGHBOUR_OFFSETS,
    NEIGHBOUR_RADIUS,
    LatentModel,
    ModelShape,
    Quantized,
)
from imgmlp.codec.latent.probabilities import (
    FIRST_NEAR_EDGE,
    MAX_DISTANCE,
    NEAR_EDGES,
    CumulativeTables,
    cumulative_frequency,
)
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

MARGIN = NEIGHBOUR_RADIUS  # zeros that pad a grid: columns on either side, and rows above
WAVES_BETWEEN_ROWS = NEIGHBOUR_RADIUS + 1  # from a latent's wave to that of the latent below it

# Latents that an encoder evaluates the network for at once. From 2**19 multiplications on, OpenBLAS
# splits a product among threads, which wait for each other longer than they compute; with this
# count, even products of the widest networks stay below.
_LATENTS_PER_PRODUCT = 1 << 9
_PRODUCTS_PER_BLOCK = 512  # the frequencies of a block of latents are looked up at once


def encode(model: LatentModel) -> bytes:
    """The stream of all grids of a model that a file holds."""
    grids = grids_in_file_order(model)
    blocks = itertools.chain.from_iterable(coded_intervals(model, *grid) for grid in grids)
    lists = (zip(starts.tolist(), widths.tolist(), strict=True) for starts, widths in blocks)
    return range_coder.encode_parts(itertools.chain.from_iterable(lists))


def grids_in_file_order(model: LatentModel) -> Iterator[tuple[Array, Array | None]]:
    """The coded grids, each with the hyperlatent maps that its entropy network sees, if any."""
    shape = model.shape
    maps = HyperlatentMaps(shape, model.latents[shape.levels :] if shape.has_hyperlatents else ())
    for number in reversed(model.coded_grids):
        sees_maps = shape.has_hyperlatents and number < shape.levels
        yield model.latents[number], maps.at(number) if sees_maps else None


def coded_intervals(
    model: LatentModel, grid: Array, maps: Array | None
) -> Iterator[tuple[Array, Array]]:
    """The latents of a grid as intervals of 0 to 2**TOTAL_BITS: starts and widths, block by block.

    Both are int64 [latents]. A latent of width w takes TOTAL_BITS - log2(w) bits.
    """
    network = EntropyNetwork(model.networks, model.shape.neighbours, _LATENTS_PER_PRODUCT)
    waves, padded = Waves(*grid.shape), pad(grid).ravel()
    offsets = neighbour_offsets(model.shape, waves.stride)[:, None]
    map_values = None if maps is None else pad_maps(maps)
    for block in waves.blocks(_LATENTS_PER_PRODUCT * _PRODUCTS_PER_BLOCK):
        batches = (
            block[begin : begin + _LATENTS_PER_PRODUCT]
            for begin in range(0, len(block), _LATENTS_PER_PRODUCT)
        )
        outputs = [
            network(padded.take(offsets + batch), 0 if map_values is None else map_values[batch].T)
            for batch in batches
        ]
        numbers, means = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
        slots = padded[block] - means + MAX_DISTANCE
        starts = cumulative_frequency(numbers, slots)
        yield starts, cumulative_frequency(numbers, slots + 1) - starts


def max_wave_size(height: int, width: int) -> int:
    """The number of latents in the largest wave of a grid."""
    return min(height, -(-width // WAVES_BETWEEN_ROWS))


def wave_count(height: int, width: int) -> int:
    """The number of waves of a grid. Some waves of a narrow grid are empty."""
    return width + WAVES_BETWEEN_ROWS * (height - 1)


class Waves:
    """The latents of a grid in coding order, as indices into the flat padded grid."""

    def __init__(self, height: int, width: int) -> None:
        self.stride = width + 2 * MARGIN
        self.count = wave_count(height, width)
        self._width = width
        # By row, the index of x = -WAVES_BETWEEN_ROWS * y. Adding the wave's number gives the
        # latent of that wave, if x is then inside of the row.
        rows = np.arange(height)
        self._wave_starts = (rows + MARGIN) * self.stride + MARGIN - WAVES_BETWEEN_ROWS * rows

    def __getitem__(self, wave: int) -> Array:
        """The latents of a wave, from the top: intp [latents]."""
        top = max(0, -(-(wave - self._width + 1) // WAVES_BETWEEN_ROWS))
        return self._wave_starts[top : wave // WAVES_BETWEEN_ROWS + 1] + wave

    def __iter__(self) -> Iterator[Array]:
        """All waves that are not empty."""
        return (self[wave] for wave in range(self.count) if wave % WAVES_BETWEEN_ROWS < self._width)

    def blocks(self, min_size: int) -> Iterator[Array]:
        """All waves, joined to blocks of at least `min_size` latents. The last may be smaller."""
        waves: list[Array] = []
        size = 0
        for wave in self:
            waves.append(wave)
            size += len(wave)
            if size >= min_size:
                yield np.concatenate(waves)
                waves, size = [], 0
        if waves:
            yield np.concatenate(waves)


def pad(grid: Array) -> Array:
    """A grid padded with zeros for the neighbours that lie outside of it."""
    return np.pad(grid, ((MARGIN, 0), (MARGIN, MARGIN)))


def pad_maps(maps: Array) -> Array:
    """Maps [maps, height, width] by index into the flat padded grid: int32 [indices, maps]."""
    count, height, width = maps.shape
    padded = np.zeros((height + MARGIN, width + 2 * MARGIN, count), np.int32)
    padded[MARGIN:, MARGIN:-MARGIN] = maps.transpose(1, 2, 0)
    return padded.reshape(-1, count)


def neighbour_offsets(shape: ModelShape, stride: int) -> Array:
    """Offsets from a latent to its neighbours in the flat padded grid: intp [neighbours]."""
    offsets = NEIGHBOUR_OFFSETS[: shape.neighbours]
    return np.array([down * stride + right for down, right in offsets], np.intp)


class GridReader:
    """Decodes the grids of a stream one after the other."""

    def __init__(
        self, decoder: range_coder.Decoder, shape: ModelShape, networks: Mapping[str, Quantized]
    ) -> None:
        self._decoder, self._shape = decoder, shape
        max_count = max_wave_size(shape.height, shape.width)
        self._network = EntropyNetwork(networks, shape.neighbours, max_count)
        self._near_tables = CumulativeTables(FIRST_NEAR_EDGE, NEAR_EDGES)
        self._tables = CumulativeTables()

    def read(self, size: tuple[int, int], maps: Array | None = None) -> Array:
        """The next grid: int8 of a (height, width) size.

        `maps` are the hyperlatent maps that the entropy network sees of this grid, if any. Raises
        FormatError for damaged data.
        """
        padded = pad(np.zeros(size, np.int16))  # damaged latents may not fit in int8
        latents, waves = padded.ravel(), Waves(*size)
        offsets = neighbour_offsets(self._shape, waves.stride)[:, None]
        map_values = None if maps is None else pad_maps(maps)
        for wave in waves:
            neighbours = latents.take(offsets + wave)
            numbers, means = self._network(
                neighbours, 0 if map_values is None else map_values[wave].T
            )
            slots = self._decoder.read_slots(
                numbers.tolist(), self._near_tables, FIRST_NEAR_EDGE, self._tables
            )
            latents[wave] = means + (np.array(slots, np.intp) - MAX_DISTANCE)
        grid = padded[MARGIN:, MARGIN:-MARGIN]
        if grid.min() < MIN_LATENT or grid.max() > MAX_LATENT:
            raise FormatError(f"latents are not from {MIN_LATENT} to {MAX_LATENT}")
        return grid.astype(np.int8)
