"""Grids of latents as one stream of bytes, each latent coded as the entropy network expects it.

Part of the file format (docs/format-imlp.md). Grids come from the coarsest to the finest. Within
one, latents come in waves: all with the same x + 4 y, from the top, as none of them is a
neighbour of another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent.exact_layers import EntropyNetwork
from imgmlp.codec.latent.hyperlatents import Above
from imgmlp.codec.latent.model import (
    MAX_LATENT,
    MIN_LATENT,
    NEIGHBOUR_OFFSETS,
    NEIGHBOUR_RADIUS,
    LatentModel,
    ModelShape,
    Quantized,
)
from imgmlp.codec.latent.probabilities import MOST_AWAY, NEAR, NEAR_FROM, Rows, edge
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

MARGIN = NEIGHBOUR_RADIUS  # zeros around a padded grid: columns on either side, rows above
LAG = NEIGHBOUR_RADIUS + 1  # a row's latents come that many waves after those above them
# Latents whose network is evaluated together, if all are known: too few for NumPy's products, even
# of the widest networks, to be shared out to threads, which would wait for each other longer than
# they compute. OpenBLAS does so from 2^19 multiplications on.
_AT_ONCE = 1 << 9
_BLOCKS = 512  # of these, whose frequencies are looked up together


def encode(model: LatentModel) -> bytes:
    """The bytes of all grids that a file has of a model."""
    parts = itertools.chain.from_iterable(_shares(model, *each) for each in in_order(model))
    lists = (zip(starts.tolist(), sizes.tolist(), strict=True) for starts, sizes in parts)
    return range_coder.encode_parts(itertools.chain.from_iterable(lists))


def in_order(model: LatentModel) -> Iterator[tuple[Array, Array | None]]:
    """The grids of a file in its order, each with the maps of hyperlatents above it, if any."""
    shape = model.shape
    maps = Above(shape, model.latents[shape.levels :] if shape.has_hyperlatents else ())
    for number in reversed(model.coded_grids):
        above = maps.at(number) if shape.has_hyperlatents and number < shape.levels else None
        yield model.latents[number], above


def _shares(model: LatentModel, grid: Array, above: Array | None) -> Iterator[tuple[Array, Array]]:
    """In parts, where the share of each latent begins, and its width, int64 [latents]."""
    network = EntropyNetwork(model.networks, model.shape.neighbours, _AT_ONCE)
    waves, padded = Waves(*grid.shape), pad(grid).ravel()
    offsets = neighbour_offsets(model.shape, waves.stride)[:, None]
    beside = None if above is None else pad_maps(above)
    for block in waves.blocks(_AT_ONCE * _BLOCKS):
        cuts = (block[cut : cut + _AT_ONCE] for cut in range(0, len(block), _AT_ONCE))
        found = [
            network(padded.take(offsets + cut), 0 if beside is None else beside[cut].T)
            for cut in cuts
        ]
        numbers, means = (np.concatenate(parts) for parts in zip(*found, strict=True))
        places = padded[block] - means + MOST_AWAY
        starts = edge(numbers, places)
        yield starts, edge(numbers, places + 1) - starts


def widest(height: int, width: int) -> int:
    """How many latents of a grid a wave has, at most."""
    return min(height, -(-width // LAG))


def count_waves(height: int, width: int) -> int:
    """Those of a grid; of a narrow one some are empty."""
    return width + LAG * (height - 1)


class Waves:
    """The latents of a grid in their order, as places in its padded form, flat."""

    def __init__(self, height: int, width: int) -> None:
        self.stride = width + 2 * MARGIN
        self.count = count_waves(height, width)
        self._width = width
        # where a wave would meet each row if all of them were as wide as the waves
        self._rows = (np.arange(height) + MARGIN) * self.stride + MARGIN - LAG * np.arange(height)

    def __getitem__(self, wave: int) -> Array:
        """intp [latents]: those of a wave, from the top."""
        top = max(0, -(-(wave - self._width + 1) // LAG))
        return self._rows[top : wave // LAG + 1] + wave

    def __iter__(self) -> Iterator[Array]:
        """Those that have latents."""
        return (self[wave] for wave in range(self.count) if wave % LAG < self._width)

    def blocks(self, least: int) -> Iterator[Array]:
        """All waves, so many together that they have at least that many latents."""
        block: list[Array] = []
        size = 0
        for wave in self:
            block.append(wave)
            size += len(wave)
            if size >= least:
                yield np.concatenate(block)
                block, size = [], 0
        if block:
            yield np.concatenate(block)


def pad(grid: Array) -> Array:
    """A grid with zeros where neighbours may lie outside of it."""
    return np.pad(grid, ((MARGIN, 0), (MARGIN, MARGIN)))


def pad_maps(maps: Array) -> Array:
    """int32 [places, maps]: of a padded grid's places what there is above them."""
    count, height, width = maps.shape
    found = np.zeros((height + MARGIN, width + 2 * MARGIN, count), np.int32)
    found[MARGIN:, MARGIN:-MARGIN] = maps.transpose(1, 2, 0)
    return found.reshape(-1, count)


def neighbour_offsets(shape: ModelShape, stride: int) -> Array:
    """intp [neighbours]: from a latent to its neighbours in a padded grid."""
    chosen = NEIGHBOUR_OFFSETS[: shape.neighbours]
    return np.array([down * stride + right for down, right in chosen], np.intp)


class Grids:
    """Reads the grids of a stream one after the other."""

    def __init__(
        self, decoder: range_coder.Decoder, shape: ModelShape, networks: Mapping[str, Quantized]
    ) -> None:
        self._decoder, self._shape = decoder, shape
        most = widest(shape.height, shape.width)
        self._network = EntropyNetwork(networks, shape.neighbours, most)
        self._near, self._rows = Rows(NEAR_FROM, NEAR), Rows()

    def read(self, size: tuple[int, int], above: Array | None = None) -> Array:
        """int8 of a (height, width) size: the next grid, which has hyperlatents above it or not.

        Raises FormatError.
        """
        padded = pad(np.zeros(size, np.int16))  # as damaged latents may be larger
        known, waves = padded.ravel(), Waves(*size)
        offsets = neighbour_offsets(self._shape, waves.stride)[:, None]
        beside = None if above is None else pad_maps(above)
        for block in waves:
            near = known.take(offsets + block)
            numbers, means = self._network(near, 0 if beside is None else beside[block].T)
            places = self._decoder.read_slots(numbers.tolist(), self._near, NEAR_FROM, self._rows)
            known[block] = means + (np.array(places, np.intp) - MOST_AWAY)
        grid = padded[MARGIN:, MARGIN:-MARGIN]
        if grid.min() < MIN_LATENT or grid.max() > MAX_LATENT:
            raise FormatError(f"latents are not from {MIN_LATENT} to {MAX_LATENT}")
        return grid.astype(np.int8)
