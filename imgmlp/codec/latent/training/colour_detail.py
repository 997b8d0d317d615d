"""How many grids of its own size a picture needs: one, if its channels tell of the same details.

Most pictures' do, and one grid beside the coarser ones holds them. Noise, dithering to few colours
and whatever is to be nearly exact have details of their own in each channel, which no lambda buys
as long as there is no grid for them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from imgmlp.image import has_alpha

Array = np.ndarray[Any, Any]

PIXELS = 2**18  # that are looked at, at most
TILE_BLOCKS = 8  # blocks of 2 x 2 pixels, in a row and in a column, that have one principal axis
# Bits a pixel of such details from which a grid for each channel pays (docs/compression-trials.md).
# At FINE_LMBDA and less the coarser grids do not get as near as is wanted: one more does from fewer
# bits on, and all of them only where there is little else than noise.
MANY = 1.5
FINE_LMBDA, SOME, NOISE = 3e-5, 1.0, 4.0
LEAST_STEPS = 150  # foreseen of a run, at least: what has fewer is large, or has no time for more


def extra_grids(pixels: Array, lmbda: float, steps: float) -> int:
    """So many beside the finest, for uint8 [height, width, channels] at lambda `lmbda`, in a run
    of so many steps."""
    channels: int = pixels.shape[2]
    if steps < LEAST_STEPS:
        return 0
    bits = detail_bits(pixels, lmbda)
    if bits >= (NOISE if lmbda <= FINE_LMBDA else MANY):
        return channels - 1
    return int(lmbda <= FINE_LMBDA and bits >= SOME)


def detail_bits(pixels: Array, lmbda: float) -> float:
    """Of each pixel log2(1 + d / left), in the mean, where d is the square of what is neither in
    means of 2 x 2 pixels, nor along the channels' principal axis in a tile, which one grid can
    hold, if coarser ones tell of the axis.

    `left` is the squared error on [0, 1] of a sample that is worth its bits: one more would save
    ln 4 of it (rate of a Gaussian), in a mean over all channels.
    """
    if min(pixels.shape[:2]) < 2:
        return 0.0
    left = pixels.shape[2] / math.log(4) * lmbda
    details = _details(pixels)  # [rows, columns, 4, channels]
    rows, columns = details.shape[:2]
    products = details.swapaxes(2, 3) @ details  # [rows, columns, channels, channels]
    for axis in (0, 1):  # summed in tiles
        products = np.add.reduceat(products, range(0, products.shape[axis], TILE_BLOCKS), axis)
    _, axes = np.linalg.eigh(products)
    others = axes[..., :-1].repeat(TILE_BLOCKS, 0)[:rows].repeat(TILE_BLOCKS, 1)[:, :columns]
    beside = np.square(details @ others).sum(-1)
    return float(np.mean(np.log2(1 + beside / left)))


def _details(pixels: Array) -> Array:
    """float64 [rows, columns, 4, channels]: on [0, 1], less the means of the blocks of 2 x 2 pixels
    that are seen, of tiles all over the picture."""
    height, width, channels = pixels.shape
    blocks = pixels[: height // 2 * 2, : width // 2 * 2].reshape(height // 2, 2, width // 2, 2, -1)
    every = math.ceil(math.sqrt(height * width / PIXELS))
    rows, columns = (
        np.flatnonzero(np.arange(n // 2) // TILE_BLOCKS % every == 0) for n in (height, width)
    )
    chosen = (
        blocks[rows][:, :, columns].swapaxes(1, 2).reshape(len(rows), len(columns), 4, channels)
    )
    values = chosen.astype(np.float64) / 255
    if has_alpha(pixels):  # colours that nobody sees are none
        values[..., :-1] *= values[..., -1:] > 0
    found: Array = values - values.mean(2, keepdims=True)
    return found
