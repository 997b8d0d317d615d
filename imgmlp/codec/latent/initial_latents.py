"""Initial latents, predicted from a picture's pixels by linear filters, for training to begin with.

Knows neither files nor devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources

import numpy as np

from imgmlp.codec.latent.model import DEFAULT_LEVELS, Array, ModelShape
from imgmlp.codec.latent.pretrained import TRAINING_CHANNELS
from imgmlp.image import has_alpha

# For each number of pretrained networks, the number of the predictor file that suits them.
PREDICTORS = {3: 3, 4: 4, 5: 3, 6: 6, 7: 7, 8: 8, 9: 9}
PREDICTOR_RADIUS = 2  # samples to every side of a latent that a filter sees
PIXELS_PER_BAND = 2**16  # approximately; bands of rows bound the memory and stay in caches
TRANSPARENT_FILL = np.uint8(128)  # middle gray, whose latents are small


def predict_latents(pixels: Array, shape: ModelShape, start: int) -> list[Array] | None:
    """Latents from which pretrained networks approximate a picture; None if no predictor is known.

    Returns float32 [h, w] for each grid. A latent is a linear function of the samples around it in
    the picture downsampled to the size of its grid. benchmarks/latent_initial.py fits the weights
    to trained latents by least squares. Grids beyond those that the predictor covers are 0.
    """
    if start not in PREDICTORS:
        return None
    colours = 1 if shape.channels < TRAINING_CHANNELS else TRAINING_CHANNELS
    grids, samples = [], _visible_samples(pixels, colours)
    for _, weights in zip(range(shape.levels), _predictor(start, colours), strict=False):
        bands = [_filtered(band, weights) for band in _bands(samples, PREDICTOR_RADIUS)]
        grids.append(np.concatenate(bands))
        samples = halved(samples)
    return grids + [np.zeros(size, np.float32) for size in shape.grid_sizes[len(grids) :]]


def _visible_samples(pixels: Array, colours: int) -> Array:
    """uint8 [h, w, colours]: the colour samples, with fully transparent pixels filled with gray."""
    samples = pixels[:, :, :colours]
    if not has_alpha(pixels):
        return samples
    return np.where(pixels[:, :, -1:] > 0, samples, TRANSPARENT_FILL)


def _filtered(padded: Array, weights: Array) -> Array:
    """Apply a filter at every position: float32 [h, w].

    `padded` is [h + 2 * PREDICTOR_RADIUS, w + 2 * PREDICTOR_RADIUS, channels]; the last of the
    weights is the constant term. Terms are added one after the other, which keeps them in caches.
    """
    side, planes = 2 * PREDICTOR_RADIUS + 1, np.ascontiguousarray(padded.transpose(2, 0, 1))
    channels, height, width = planes.shape
    height, width = height - side + 1, width - side + 1
    sums = np.full((height, width), weights[-1])
    term = np.empty_like(sums)
    positions = np.ndindex(side, side, channels)
    for weight, (down, right, channel) in zip(weights, positions, strict=False):
        samples = planes[channel, down : down + height, right : right + width]
        sums += np.multiply(samples, weight, out=term)
    return sums


def halved(samples: Array) -> Array:
    """Means of 2x2 samples: [h, w, channels] -> float32, half as many rows and columns.

    The samples are uint8, or float32 from -1/2 to 1/2. Odd sizes repeat the last row or column.
    """
    halves = []
    for band in _bands(samples, 0):
        even = np.pad(band, ((0, len(band) % 2), (0, band.shape[1] % 2), (0, 0)), "edge")
        halves.append((even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / 4)
    return np.concatenate(halves)


def _bands(samples: Array, margin: int) -> Iterator[Array]:
    """Split samples into bands of an even number of rows, as floats from -1/2 to 1/2.

    Each band has `margin` more samples on every side; beyond the picture its edge repeats.
    """
    height, width, _ = samples.shape
    count = 2 * max(1, PIXELS_PER_BAND // width // 2)
    for top in range(0, height, count):
        begin, end = top - margin, min(top + count, height) + margin
        part = samples[max(begin, 0) : min(end, height)]
        if part.dtype == np.uint8:
            part = part / np.float32(255) - np.float32(0.5)
        ends = max(-begin, 0), max(end - height, 0)
        yield np.pad(part, (ends, (margin, margin), (0, 0)), "edge")


@cache
def _predictor(start: int, colours: int) -> Array:
    """The weights of all filters: float32 [grids, samples * colours + 1].

    A gray sample has the sum of the weights of the three colours.
    """
    name = f"initial-latents-{PREDICTORS[start]}.bin"
    data = resources.files("imgmlp.codec.latent").joinpath(name).read_bytes()
    weights = np.frombuffer(data, ">f4").astype(np.float32).reshape(DEFAULT_LEVELS, -1)
    by_sample = weights[:, :-1].reshape(DEFAULT_LEVELS, -1, TRAINING_CHANNELS // colours)
    return np.concatenate([by_sample.sum(2).reshape(DEFAULT_LEVELS, -1), weights[:, -1:]], axis=1)
