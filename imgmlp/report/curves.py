"""Curves of rate and quality, and how far apart two of them are.

BD-rate is the mean difference of two curves' logarithms of the rate, over the quality that both
reach (Bjøntegaard 2001), with monotone cubic pieces (Fritsch and Carlson 1980) between the points.
Knows neither codecs nor pictures.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Point:
    """One file of one picture. Points of one setting are averaged over pictures."""

    codec: str
    image: str
    setting: str
    bpp: float
    quality: float  # dB, or anything else that rises


@dataclass(frozen=True)
class Curve:
    """Mean points of a codec, ordered by rate; quality rises."""

    bpp: tuple[float, ...]
    quality: tuple[float, ...]


def mean_curve(points: Sequence[Point], images: set[str]) -> Curve | None:
    """Through the settings that all these pictures have, if there are two at least."""
    by_setting: dict[str, dict[str, Point]] = defaultdict(dict)
    for point in points:
        if point.image in images:
            by_setting[point.setting][point.image] = point
    whole = [list(found.values()) for found in by_setting.values() if found.keys() == images]
    means = sorted(
        (float(np.mean([p.bpp for p in found])), float(np.mean([p.quality for p in found])))
        for found in whole
    )
    return rising(means)


def rising(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Through the points, (bits a pixel, quality) by rising rate, that are better than all before
    them, if there are two at least."""
    kept = [one for n, one in enumerate(points) if all(one[1] > m[1] for m in points[:n])]
    if len(kept) < 2:
        return None
    return Curve(tuple(m[0] for m in kept), tuple(m[1] for m in kept))


def share_of(own: Sequence[Point], reference: Sequence[Point], images: set[str]) -> float | None:
    """BD-rate over some pictures, if both have curves there."""
    curves = mean_curve(own, images), mean_curve(reference, images)
    return None if curves[0] is None or curves[1] is None else bd_rate(curves[0], curves[1])


def bd_rate(curve: Curve, reference: Curve) -> float | None:
    """Mean difference of the rate at equal quality, as a share; None if no quality is common."""
    low = max(curve.quality[0], reference.quality[0])
    high = min(curve.quality[-1], reference.quality[-1])
    if high <= low:
        return None
    at = np.linspace(low, high, 1001)
    rates = [monotone_cubic(np.array(c.quality), np.log(c.bpp), at) for c in (curve, reference)]
    difference = rates[0] - rates[1]
    mean = (difference[:-1] + difference[1:]).mean() / 2
    return math.expm1(float(mean))


def monotone_cubic(x: Array, y: Array, at: Array) -> Array:
    """Values at `at` of cubic pieces through points of rising x that never overshoot."""
    step, slope = np.diff(x), np.diff(y) / np.diff(x)
    tangent = np.empty_like(x)
    tangent[0], tangent[-1] = slope[0], slope[-1]
    for n in range(1, len(x) - 1):
        a, b = slope[n - 1], slope[n]
        w, v = 2 * step[n] + step[n - 1], step[n] + 2 * step[n - 1]
        tangent[n] = (w + v) / (w / a + v / b) if a * b > 0 else 0.0
    piece = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    t, h = (at - x[piece]) / step[piece], step[piece]
    values: Array = (
        (1 + 2 * t) * (1 - t) ** 2 * y[piece]
        + t * (1 - t) ** 2 * h * tangent[piece]
        + t * t * (3 - 2 * t) * y[piece + 1]
        + t * t * (t - 1) * h * tangent[piece + 1]
    )
    return values
