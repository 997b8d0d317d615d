"""A picture's cosine transform, which tells about how bits and errors go with their lambda.

A codec that only rounds it, in steps of one size, comes to the same lambdas as latents do, though
to more bits: where a step gives the squared error wanted, lambda is STEP times its square,
within a factor of 1.6 of 112 files' (docs/compression-trials.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from imgmlp.image import has_alpha

Array = np.ndarray[Any, Any]

SIDE = 16  # of blocks
PIXELS = 2**18  # of those blocks that are looked at, about; of narrow pictures more
UP = 0.4  # added to magnitudes in steps before they are cut off
STEP = 0.058  # lambda of a step, of its square
BITS = 1.7  # of a number, for each of those of its magnitude in steps
NETWORKS, SHARE = 200 * 8, 0.2  # bits beside these; of all, at most
FINEST_ERROR = 1e-5  # squared error on [0, 1]: 50 dB
LOW, HIGH = -12.0, 1.0  # binary logarithms of steps
HALVINGS = 12


class Spectrum:
    """That of a picture, or of blocks all over it."""

    def __init__(self, pixels: Array) -> None:
        """uint8 [height, width, channels]."""
        self._samples: int = pixels.size
        self._magnitudes: Array = np.abs(_transformed(_blocks(pixels)))

    def lmbda_of_error(self, error: float) -> float:
        """Where the squared error on [0, 1] is about that."""
        return _lmbda(lambda step: self._error(step) < error)

    def lmbda_of_bits(self, bits: float) -> float:
        """Where a picture has about so many, but not below that of FINEST_ERROR, as networks take
        more of the bits of tiny pictures, and nothing reaches far beyond it."""
        left = bits - min(NETWORKS, SHARE * bits)
        found = _lmbda(lambda step: self._bits(step) > left)
        if self._error(math.sqrt(found / STEP)) >= FINEST_ERROR:
            return found
        return max(found, self.lmbda_of_error(FINEST_ERROR))

    def _error(self, step: float) -> float:
        whole = np.floor(self._magnitudes / np.float32(step) + np.float32(UP))
        error: Array = self._magnitudes - whole * np.float32(step)
        return float(np.mean(error**2))

    def _bits(self, step: float) -> float:
        whole = np.floor(self._magnitudes / np.float32(step) + np.float32(UP))
        each: Array = np.log2(1 + whole)
        return BITS * float(np.mean(each)) * self._samples


def _lmbda(too_fine: Callable[[float], bool]) -> float:
    """That of the step between those that are and those that are not."""
    low, high = LOW, HIGH
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_fine(2.0**middle) else (low, middle)
    return STEP * math.pow(4, (low + high) / 2)


def _blocks(pixels: Array) -> Array:
    """float32 [blocks, height, width, channels] on [0, 1]: whole ones, evenly spread."""
    height, width, channels = pixels.shape
    tall, wide = min(SIDE, height), min(SIDE, width)
    rows, columns = height // tall, width // wide
    whole = pixels[: rows * tall, : columns * wide]
    blocks = whole.reshape(rows, tall, columns, wide, channels).swapaxes(1, 2)
    every = math.ceil(math.sqrt(rows * columns * tall * wide / PIXELS))
    first_row, first_column = (min(every // 2, count - 1) for count in (rows, columns))
    chosen = blocks[first_row::every, first_column::every]
    found: Array = chosen.reshape(-1, tall, wide, channels).astype(np.float32) / 255
    if has_alpha(pixels):  # colours that nobody sees are as those seen are in the mean
        seen = found[..., -1] > 0
        found[~seen, :-1] = found[seen, :-1].mean(0, np.float64) if seen.any() else 0.0
    return found


def _transformed(blocks: Array) -> Array:
    """Of the same size: by rows, columns and the channels' principal axes, all orthonormal."""
    colours = blocks.reshape(-1, blocks.shape[-1]).astype(np.float64)
    centred = colours - colours.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    by_rows = np.einsum("uy,byxc->buxc", _cosines(blocks.shape[1]), blocks)
    by_both = np.einsum("vx,buxc->buvc", _cosines(blocks.shape[2]), by_rows)
    found: Array = by_both @ axes.astype(np.float32)
    return found


@cache
def _cosines(count: int) -> Array:
    """float32 [count, count]: the orthonormal discrete cosine transform (DCT-II)."""
    places = np.arange(count)
    found = np.cos(np.pi / count * np.outer(places, places + 0.5)) * math.sqrt(2 / count)
    found[0] /= math.sqrt(2)
    return found.astype(np.float32)
