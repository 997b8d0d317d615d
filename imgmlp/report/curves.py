"""Rate-distortion curves and their BD-rate.

BD-rate is the mean difference of the logarithms of the rates of two curves, over the range of
quality that both reach (Bjøntegaard 2001). Curves are monotone cubics through their points (Fritsch
and Carlson 1980). This module knows neither codecs nor pictures.
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
    quality: float  # dB, or any other measure where higher is better


@dataclass(frozen=True)
class Curve:
    """Mean points of a codec, where rate and quality both increase."""

    bpp: tuple[float, ...]
    quality: tuple[float, ...]


def mean_curve(points: Sequence[Point], images: set[str]) -> Curve | None:
    """The curve of means over pictures, for the settings that all of them have.

    None for fewer than two points.
    """
    by_setting: dict[str, dict[str, Point]] = defaultdict(dict)
    for point in points:
        if point.image in images:
            by_setting[point.setting][point.image] = point
    complete = [list(of.values()) for of in by_setting.values() if of.keys() == images]
    means = sorted(
        (float(np.mean([p.bpp for p in group])), float(np.mean([p.quality for p in group])))
        for group in complete
    )
    return rising(means)


def rising(points: Sequence[tuple[float, float]]) -> Curve | None:
    """The curve of points (bits per pixel, quality) with increasing rate, without those that are no
    better than one before; None for fewer than two points."""
    better = [one for n, one in enumerate(points) if all(one[1] > m[1] for m in points[:n])]
    if len(better) < 2:
        return None
    return Curve(tuple(m[0] for m in better), tuple(m[1] for m in better))


def mean_bd_rate(
    own: Sequence[Point], reference: Sequence[Point], images: set[str]
) -> float | None:
    """The BD-rate of mean curves over pictures, if both have such a curve."""
    curves = mean_curve(own, images), mean_curve(reference, images)
    return None if curves[0] is None or curves[1] is None else bd_rate(curves[0], curves[1])


def bd_rate(curve: Curve, reference: Curve) -> float | None:
    """The mean difference of the rate at equal quality, as a fraction.

    None if the curves have no common range of quality.
    """
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
    """Values at `at` of a monotone cubic through points with increasing x."""
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
