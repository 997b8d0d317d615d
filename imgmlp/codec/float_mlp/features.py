"""Frequency encoding of a pixel's place: tables for each axis, never an array of all pixels.

A feature of one axis does not depend on the other, so a picture needs two small tables, and a
pixel's features are one row of each. Knows neither the network nor the engine.
"""

from __future__ import annotations

import numpy as np

from imgmlp.codec.float_mlp.config import Encoding, Settings

# Cycles per picture axis. Half a cycle tells one edge from the other.
LOWEST = 0.5
SLICE = 1 << 16  # samples of a table computed at once


def octaves(count: int) -> tuple[float, ...]:
    """1, 2, 4 ... cycles per axis, whatever its length; those above Nyquist's rate alias."""
    return tuple(float(2**k) for k in range(count))


def geometric(count: int, samples: int) -> tuple[float, ...]:
    """From LOWEST to the axis' Nyquist rate (samples / 2), one ratio apart; float32 values."""
    highest = samples / 2  # one sample: half a cycle, LOWEST itself
    spaced = np.geomspace(LOWEST, highest, count) if count > 1 else np.array([LOWEST])
    return tuple(float(f) for f in spaced.astype(np.float32))


def encoding(settings: Settings, width: int, height: int) -> Encoding:
    """The frequencies that the settings ask for on a picture of width x height pixels."""
    count = settings.features // 4
    if settings.frequencies == "octaves":
        return Encoding(octaves(count), octaves(count), origin=0.0)
    return Encoding(geometric(count, width), geometric(count, height), origin=0.5)


def table(
    frequencies: tuple[float, ...], origin: float, samples: int, begin: int = 0, end: int = -1
) -> np.ndarray:
    """Features of samples [begin, end) of one axis: float32 [end - begin, 2 * frequencies].

    Sines, then cosines; `end` is `samples` if not given. The phase of sample i is
    2*pi * f * (i + origin) / samples. Whole cycles are taken off while the product is still
    exact in float64 (24 bits of f times at most 29 of i + origin), so high frequencies and long
    axes lose nothing. Long tables are filled in slices, so that float64 stays small.
    """
    end = samples if end < 0 else end
    found = np.empty((end - begin, 2 * len(frequencies)), np.float32)
    for first in range(begin, end, SLICE):
        last = min(first + SLICE, end)
        places = np.arange(first, last, dtype=np.float64) + origin  # [samples]
        cycles = np.fmod(np.outer(places, frequencies), samples) / samples
        phases = 2 * np.pi * cycles  # [samples, frequencies]
        rows = found[first - begin : last - begin]
        np.sin(phases, out=rows[:, : len(frequencies)], casting="same_kind")
        np.cos(phases, out=rows[:, len(frequencies) :], casting="same_kind")
    return found


def tables(encoding: Encoding, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """([width, features/2], [height, features/2]): a pixel's features are a row of each."""
    x = table(encoding.x, encoding.origin, width)
    return x, table(encoding.y, encoding.origin, height)
