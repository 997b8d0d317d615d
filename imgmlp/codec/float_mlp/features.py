"""Frequency encoding of pixel positions: a table for each axis, never an array of all pixels.

Features are separable: each depends on one coordinate only. A picture therefore needs two small
tables, and a pixel's features are one row of each. It knows neither the network nor the engine.
"""

from __future__ import annotations

import numpy as np

from imgmlp.codec.float_mlp.config import Encoding, Settings

# Cycles per axis. With half a cycle, the two edges of the picture differ.
MIN_FREQUENCY = 0.5
SLICE_SAMPLES = 1 << 16  # of a table, computed at once in float64


def octaves(count: int) -> tuple[float, ...]:
    """1, 2, 4 ... cycles per axis, whatever its length; those above the Nyquist rate alias."""
    return tuple(float(2**k) for k in range(count))


def geometric(count: int, samples: int) -> tuple[float, ...]:
    """A geometric sequence from MIN_FREQUENCY to the Nyquist rate, samples / 2; float32 values."""
    highest = samples / 2  # MIN_FREQUENCY itself for a single sample
    spaced = np.geomspace(MIN_FREQUENCY, highest, count) if count > 1 else np.array([MIN_FREQUENCY])
    return tuple(float(f) for f in spaced.astype(np.float32))


def encoding(settings: Settings, width: int, height: int) -> Encoding:
    """The frequencies of the settings for a picture of width x height pixels."""
    count = settings.features // 4
    if settings.frequencies == "octaves":
        return Encoding(octaves(count), octaves(count), origin=0.0)
    return Encoding(geometric(count, width), geometric(count, height), origin=0.5)


def table(
    frequencies: tuple[float, ...], origin: float, samples: int, begin: int = 0, end: int = -1
) -> np.ndarray:
    """Features of samples [begin, end) of one axis: float32 [end - begin, 2 * frequencies].

    Sines come first, then cosines; `end` is `samples` by default. The phase of sample i is
    2*pi * f * (i + origin) / samples. Whole cycles are removed while the product is still exact in
    float64 (24 bits of f times at most 29 of i + origin), so that high frequencies and long axes
    lose no precision.
    """
    end = samples if end < 0 else end
    features = np.empty((end - begin, 2 * len(frequencies)), np.float32)
    for first in range(begin, end, SLICE_SAMPLES):
        last = min(first + SLICE_SAMPLES, end)
        places = np.arange(first, last, dtype=np.float64) + origin  # [samples]
        cycles = np.fmod(np.outer(places, frequencies), samples) / samples
        phases = 2 * np.pi * cycles  # [samples, frequencies]
        rows = features[first - begin : last - begin]
        np.sin(phases, out=rows[:, : len(frequencies)], casting="same_kind")
        np.cos(phases, out=rows[:, len(frequencies) :], casting="same_kind")
    return features


def tables(encoding: Encoding, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """The tables of both axes, float32 [width, features/2] and [height, features/2]."""
    x = table(encoding.x, encoding.origin, width)
    return x, table(encoding.y, encoding.origin, height)
