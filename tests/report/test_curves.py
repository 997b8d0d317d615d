"""BD-rate is what its definition says, and curves go through means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from imgmlp.report.curves import (
    Curve,
    Point,
    bd_rate,
    mean_bd_rate,
    mean_curve,
    monotone_cubic,
    rising,
)

CURVE = Curve((0.1, 0.2, 0.4, 0.8), (25.0, 28.0, 31.0, 34.0))


def test_bd_rate_at_half_the_rate_is_minus_a_half() -> None:
    half = Curve(tuple(b / 2 for b in CURVE.bpp), CURVE.quality)
    assert bd_rate(CURVE, CURVE) == pytest.approx(0)
    assert bd_rate(half, CURVE) == pytest.approx(-0.5)
    assert bd_rate(CURVE, half) == pytest.approx(1.0)


def test_bd_rate_covers_only_the_common_range_of_quality() -> None:
    better_above = Curve((0.1, 0.2, 0.4, 0.5), CURVE.quality)
    assert bd_rate(better_above, CURVE) == pytest.approx(-0.08, abs=0.04)
    assert bd_rate(Curve((0.1, 0.2), (10.0, 20.0)), CURVE) is None


def test_monotone_cubic_passes_through_its_points_without_overshoot() -> None:
    x, y = np.array([0.0, 1, 3, 4, 6]), np.array([0.0, 2, 2.1, 5, 5.5])
    np.testing.assert_allclose(monotone_cubic(x, y, x), y)
    fine = monotone_cubic(x, y, np.linspace(0, 6, 601))
    assert (np.diff(fine) >= 0).all()
    np.testing.assert_allclose(monotone_cubic(x, 2 * x + 1, np.array([0.3, 5.0])), [1.6, 11])
    hill = np.array([0.0, 1, -1, -1, 0])
    assert monotone_cubic(x, hill, np.linspace(0, 6, 601)).max() <= 1


def test_monotone_cubic_has_weighted_harmonic_means_of_slopes_at_points() -> None:
    """The mean is 9/13 for slopes of 1 and 1/2 over intervals of 1 and 2."""
    values = monotone_cubic(np.array([0.0, 1, 3]), np.array([0.0, 1, 2]), np.array([0.5]))
    assert values[0] == pytest.approx(7 / 13)


def test_rising_curve_drops_points_of_more_bits_and_lower_quality() -> None:
    points = [(1.0, 30.0), (2.0, 29.0), (3.0, 29.5), (4.0, 31.0)]
    assert rising(points) == Curve((1.0, 4.0), (30.0, 31.0))


def test_mean_curve_uses_only_settings_that_all_images_have() -> None:
    points = [
        Point("c", image, setting, bpp, psnr)
        for image, setting, bpp, psnr in (
            ("a", "1", 0.2, 20.0),
            ("b", "1", 0.4, 30.0),
            ("a", "2", 0.6, 28.0),
            ("b", "2", 0.8, 34.0),
            ("a", "3", 1.0, 40.0),
        )
    ]
    curve = mean_curve(points, {"a", "b"})
    assert curve is not None
    np.testing.assert_allclose(curve.bpp, (0.3, 0.7))
    assert curve.quality == (25.0, 31.0)
    assert mean_curve(points, {"a", "b", "c"}) is None


def test_mean_bd_rate_needs_a_curve_of_both_codecs() -> None:
    points = [Point("c", "a", str(n), *one) for n, one in enumerate([(0.2, 20.0), (0.6, 28.0)])]
    halves = [replace(point, codec="d", bpp=point.bpp / 2) for point in points]
    assert mean_bd_rate(halves, points, {"a"}) == pytest.approx(-0.5)
    assert mean_bd_rate(halves, points[:1], {"a"}) is None
    assert mean_bd_rate(halves[:1], points, {"a"}) is None
