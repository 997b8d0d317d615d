"""What a picture's pixels alone say about its training: the first lambda, and the grids it needs.

`Spectrum` predicts lambda from a cosine transform. A codec that only rounds the transform, with one
step size, arrives at the same lambda as the latent codec does, though at more bits: where a step
size gives the wanted squared error, lambda is LMBDA_PER_SQUARED_STEP times the step size squared,
within a factor of 1.6 for 112 files (docs/compression-trials.md).

`extra_grids` says how many latent grids of the picture's own size are needed beside the first. For
most pictures one suffices, since their channels share their details. Noise, dithering to few
colours, and whatever must be nearly exact have details of their own in each channel, which no
lambda can buy as long as they have no grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from imgmlp.image import has_alpha

Array = np.ndarray[Any, Any]

MAX_ANALYSED_PIXELS = 2**18  # of larger pictures a regular sample; of narrow ones somewhat more

BLOCK_SIDE = 16  # pixels along the sides of a transformed block
ROUNDING_OFFSET = 0.4  # added to magnitudes, in steps, before they are truncated
LMBDA_PER_SQUARED_STEP = 0.058
BITS_PER_LOG2_MAGNITUDE = 1.7  # of a coefficient, times log2(1 + its magnitude in steps)
# Bits of a file that the networks take and the transform knows nothing of.
NETWORK_BITS = 200 * 8
MAX_NETWORK_FRACTION = 0.2
MIN_ERROR = 1e-5  # squared error on [0, 1], 50 dB: the best that bytes are spent on
MIN_LOG2_STEP, MAX_LOG2_STEP = -12.0, 1.0  # bounds of the search for a step size
BISECTIONS = 12

TILE_BLOCKS = 8  # blocks of 2 x 2 pixels along the sides of a tile, which has one principal axis
# Bits per pixel of details that channels do not share, from which on each channel gets a grid
# (docs/compression-trials.md). At LOW_LMBDA and below, the coarser grids do not come as near to the
# picture as is wanted: one extra grid pays from fewer bits on, but all of them only for noise.
MIN_DETAIL_BITS = 1.5
LOW_LMBDA = 3e-5
MIN_DETAIL_BITS_AT_LOW_LMBDA = 1.0
NOISE_DETAIL_BITS = 4.0
# Runs that are expected to be shorter have no extra grids: their picture is large, or their time
# short.
MIN_STEPS_FOR_EXTRA_GRIDS = 150


class Spectrum:
    """The cosine transform of a picture, or of blocks sampled all over it."""

    def __init__(self, pixels: Array) -> None:
        """`pixels` are uint8 [height, width, channels]."""
        self._samples: int = pixels.size
        self._magnitudes: Array = np.abs(_transformed(_blocks(pixels)))

    def lmbda_of_error(self, error: float) -> float:
        """The lambda that leads to about this squared error on [0, 1]."""
        return _lmbda(lambda step_size: self._error(step_size) < error)

    def lmbda_of_bits(self, bits: float) -> float:
        """The lambda at which the picture takes about so many bits.

        It is no lower than that of MIN_ERROR: networks take most bits of tiny pictures, and no
        training gets far beyond that error.
        """
        latent_bits = bits - min(NETWORK_BITS, MAX_NETWORK_FRACTION * bits)
        lmbda = _lmbda(lambda step_size: self._bits(step_size) > latent_bits)
        if self._error(math.sqrt(lmbda / LMBDA_PER_SQUARED_STEP)) >= MIN_ERROR:
            return lmbda
        return max(lmbda, self.lmbda_of_error(MIN_ERROR))

    def _error(self, step_size: float) -> float:
        error: Array = self._magnitudes - self._symbols(step_size) * np.float32(step_size)
        return float(np.mean(error**2))

    def _bits(self, step_size: float) -> float:
        each: Array = np.log2(1 + self._symbols(step_size))
        return BITS_PER_LOG2_MAGNITUDE * float(np.mean(each)) * self._samples

    def _symbols(self, step_size: float) -> Array:
        """Magnitudes rounded to whole steps."""
        symbols: Array = np.floor(
            self._magnitudes / np.float32(step_size) + np.float32(ROUNDING_OFFSET)
        )
        return symbols


def _lmbda(is_too_fine: Callable[[float], bool]) -> float:
    """The lambda of the largest step size that is too fine, found by bisection."""
    low, high = MIN_LOG2_STEP, MAX_LOG2_STEP
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_fine(2.0**middle) else (low, middle)
    return LMBDA_PER_SQUARED_STEP * math.pow(4, (low + high) / 2)


def _blocks(pixels: Array) -> Array:
    """Evenly spread whole blocks, float32 [blocks, height, width, channels] on [0, 1]."""
    height, width, channels = pixels.shape
    tall, wide = min(BLOCK_SIDE, height), min(BLOCK_SIDE, width)
    rows, columns = height // tall, width // wide
    whole = pixels[: rows * tall, : columns * wide]
    blocks = whole.reshape(rows, tall, columns, wide, channels).swapaxes(1, 2)
    stride = math.ceil(math.sqrt(rows * columns * tall * wide / MAX_ANALYSED_PIXELS))
    first_row, first_column = (min(stride // 2, count - 1) for count in (rows, columns))
    chosen = blocks[first_row::stride, first_column::stride]
    values: Array = chosen.reshape(-1, tall, wide, channels).astype(np.float32) / 255
    if has_alpha(pixels):  # fully transparent pixels take the mean colour of all others
        visible = values[..., -1] > 0
        mean = values[visible, :-1].mean(0, np.float64) if visible.any() else 0.0
        values[~visible, :-1] = mean
    return values


def _transformed(blocks: Array) -> Array:
    """The blocks' orthonormal transform, of the same shape.

    Rows and columns go through a DCT; channels are projected on their principal axes.
    """
    colours = blocks.reshape(-1, blocks.shape[-1]).astype(np.float64)
    centred = colours - colours.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    by_rows = np.einsum("uy,byxc->buxc", _cosines(blocks.shape[1]), blocks)
    by_both = np.einsum("vx,buxc->buvc", _cosines(blocks.shape[2]), by_rows)
    coefficients: Array = by_both @ axes.astype(np.float32)
    return coefficients


@cache
def _cosines(count: int) -> Array:
    """The orthonormal discrete cosine transform (DCT-II), float32 [count, count]."""
    places = np.arange(count)
    basis = np.cos(np.pi / count * np.outer(places, places + 0.5)) * math.sqrt(2 / count)
    basis[0] /= math.sqrt(2)
    return basis.astype(np.float32)


def extra_grids(pixels: Array, lmbda: float, steps: float) -> int:
    """How many grids of the picture's own size are needed beside the first.

    `pixels` are uint8 [height, width, channels]; `steps` is the expected length of the run.
    """
    channels: int = pixels.shape[2]
    if steps < MIN_STEPS_FOR_EXTRA_GRIDS:
        return 0
    bits, is_low = detail_bits(pixels, lmbda), lmbda <= LOW_LMBDA
    if bits >= (NOISE_DETAIL_BITS if is_low else MIN_DETAIL_BITS):
        return channels - 1
    return int(is_low and bits >= MIN_DETAIL_BITS_AT_LOW_LMBDA)


def detail_bits(pixels: Array, lmbda: float) -> float:
    """Bits per pixel that one grid cannot hold: the mean of log2(1 + d / worthwhile error).

    d is the squared detail of a pixel that is left once the means of 2 x 2 pixels are taken away,
    and what lies along the channels' principal axis in a tile. One grid can hold the latter, if
    coarser grids tell which axis it is.

    The worthwhile error is the squared error on [0, 1] of a sample, as a mean over all channels, at
    which another bit would not pay: it would save ln 4 of the error (rate of a Gaussian).
    """
    if min(pixels.shape[:2]) < 2:
        return 0.0
    worthwhile_error = pixels.shape[2] / math.log(4) * lmbda
    details = _details(pixels)  # [rows, columns, 4, channels]
    rows, columns = details.shape[:2]
    products = details.swapaxes(2, 3) @ details  # [rows, columns, channels, channels]
    for axis in (0, 1):  # summed over each tile
        products = np.add.reduceat(products, range(0, products.shape[axis], TILE_BLOCKS), axis)
    _, axes = np.linalg.eigh(products)
    others = axes[..., :-1].repeat(TILE_BLOCKS, 0)[:rows].repeat(TILE_BLOCKS, 1)[:, :columns]
    off_axis = np.square(details @ others).sum(-1)
    return float(np.mean(np.log2(1 + off_axis / worthwhile_error)))


def _details(pixels: Array) -> Array:
    """Pixels of sampled tiles on [0, 1] less the means of their blocks of 2 x 2.

    float64 [rows, columns, 4, channels], in rows and columns of blocks.
    """
    height, width, channels = pixels.shape
    blocks = pixels[: height // 2 * 2, : width // 2 * 2].reshape(height // 2, 2, width // 2, 2, -1)
    stride = math.ceil(math.sqrt(height * width / MAX_ANALYSED_PIXELS))
    rows, columns = (
        np.flatnonzero(np.arange(n // 2) // TILE_BLOCKS % stride == 0) for n in (height, width)
    )
    chosen = (
        blocks[rows][:, :, columns].swapaxes(1, 2).reshape(len(rows), len(columns), 4, channels)
    )
    values = chosen.astype(np.float64) / 255
    if has_alpha(pixels):  # fully transparent pixels have no colour
        values[..., :-1] *= values[..., -1:] > 0
    details: Array = values - values.mean(2, keepdims=True)
    return details
