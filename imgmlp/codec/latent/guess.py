"""Latents to begin with, guessed from a picture's pixels. Knows neither files nor devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources

import numpy as np

from imgmlp.codec.latent.model import LEVELS, Array, ModelShape
from imgmlp.codec.latent.starts import START_CHANNELS
from imgmlp.image import has_alpha

# Of starts for which latents can be guessed, by whose weights.
GUESSES = {3: 3, 4: 4, 5: 3, 6: 6, 7: 7, 8: 8, 9: 9}
GUESSED_BY = 2  # samples to every side of a latent
BAND = 2**16  # places at once, about
GRAY = np.uint8(128)  # whose latents are small


def guessed(pixels: Array, shape: ModelShape, start: int) -> list[Array] | None:
    """Latents that networks of a start make something like a picture of; None if nobody knows.

    float32 [h, w] of each grid. They are sums of the samples around them, which are means of so
    many pixels as a latent stands for, by weights that trained latents were nearest to;
    benchmarks/latent_guess.py makes these. Grids beyond those that it knows are 0.
    """
    if start not in GUESSES:
        return None
    colours = 1 if shape.channels < START_CHANNELS else START_CHANNELS
    found, samples = [], _seen(pixels, colours)
    for _, weights in zip(range(shape.levels), _guesses(start, colours), strict=False):
        parts = [_summed(band, weights) for band in _bands(samples, GUESSED_BY)]
        found.append(np.concatenate(parts))
        samples = halved(samples)
    return found + [np.zeros(size, np.float32) for size in shape.grids[len(found) :]]


def _seen(pixels: Array, colours: int) -> Array:
    """uint8 [h, w, colours]: a picture's, and under alpha 0, where nobody sees them, gray."""
    found = pixels[:, :, :colours]
    return np.where(pixels[:, :, -1:] > 0, found, GRAY) if has_alpha(pixels) else found


def _summed(framed: Array, weights: Array) -> Array:
    """float32 [h, w]: of places with GUESSED_BY more on every side, [h, w, channels], what is
    around each of them and a 1, by these weights; by one after the other, as that is in caches."""
    side, planes = 2 * GUESSED_BY + 1, np.ascontiguousarray(framed.transpose(2, 0, 1))
    channels, height, width = planes.shape
    height, width = height - side + 1, width - side + 1
    found = np.full((height, width), weights[-1])
    term = np.empty_like(found)
    for weight, place in zip(weights, np.ndindex(side, side, channels), strict=False):
        down, right, channel = place
        found += np.multiply(
            planes[channel, down : down + height, right : right + width], weight, out=term
        )
    return found


def halved(samples: Array) -> Array:
    """Means of 2 x 2 samples, [h, w, channels] -> half as many rows and columns; edges repeat.

    The samples are uint8 of a picture or what this function gave, float32 from -1/2 to 1/2.
    """
    found = []
    for band in _bands(samples, 0):
        even = np.pad(band, ((0, len(band) % 2), (0, band.shape[1] % 2), (0, 0)), "edge")
        found.append((even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / 4)
    return np.concatenate(found)


def _bands(samples: Array, margin: int) -> Iterator[Array]:
    """Rows of samples, an even count of them, as floats; with a margin, where edges repeat."""
    height, width, _ = samples.shape
    count = 2 * max(1, BAND // width // 2)
    for top in range(0, height, count):
        begin, end = top - margin, min(top + count, height) + margin
        part = samples[max(begin, 0) : min(end, height)]
        if part.dtype == np.uint8:
            part = part / np.float32(255) - np.float32(0.5)
        ends = max(-begin, 0), max(end - height, 0)
        yield np.pad(part, (ends, (margin, margin), (0, 0)), "edge")


@cache
def _guesses(start: int, colours: int) -> Array:
    """float32 [grids, what is around a place, of so many channels, and a 1]; of gray as if it were
    three of the same."""
    name = f"guess-{GUESSES[start]}.bin"
    data = resources.files("imgmlp.codec.latent").joinpath(name).read_bytes()
    found = np.frombuffer(data, ">f4").astype(np.float32).reshape(LEVELS, -1)
    around = found[:, :-1].reshape(LEVELS, -1, START_CHANNELS // colours)
    return np.concatenate([around.sum(2).reshape(LEVELS, -1), found[:, -1:]], axis=1)
