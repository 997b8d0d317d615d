"""Frequency encoding of a pixel's place: tables for each axis, never an array of all pixels.

A feature of one axis does not depend on the other, so a picture needs two small tables, and a
pixel's features are one row of each. Knows neither the network nor the engine.
"""

from __future__ import annotations

import numpy as np

from imgmlp.codec.config import Encoding, Settings

# Cycles per picture axis. Half a cycle tells one edge from the other.
LOWEST = 0.5


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


def table(frequencies: tuple[float, ...], origin: float, samples: int) -> np.ndarray:
    """Features of every sample of one axis: float32 [samples, 2 * frequencies], sines then cosines.

    The phase of sample i is 2*pi * f * (i + origin) / samples. Whole cycles are taken off while
    the product is still exact in float64 (24 bits of f times at most 29 of i + origin), so high
    frequencies and long axes lose nothing.
    """
    places = np.arange(samples, dtype=np.float64) + origin  # [samples]
    cycles = np.fmod(np.outer(places, frequencies), samples) / samples  # [samples, frequencies]
    phases = 2 * np.pi * cycles
    return np.concatenate([np.sin(phases), np.cos(phases)], axis=1).astype(np.float32)


def tables(encoding: Encoding, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """([width, features/2], [height, features/2]): a pixel's features are a row of each."""
    x = table(encoding.x, encoding.origin, width)
    return x, table(encoding.y, encoding.origin, height)
