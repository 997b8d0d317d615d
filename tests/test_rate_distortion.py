"""The benchmark of rate and distortion: its arithmetic, and that it goes on where it stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import small_pixels
from PIL import Image

from benchmarks import rate_distortion
from benchmarks.rate_distortion import Curve, Point, bd_rate, mean_curve, monotone_cubic

CURVE = Curve((0.1, 0.2, 0.4, 0.8), (25.0, 28.0, 31.0, 34.0))


def test_half_the_rate_is_minus_a_half() -> None:
    half = Curve(tuple(b / 2 for b in CURVE.bpp), CURVE.psnr)
    assert bd_rate(CURVE, CURVE) == pytest.approx(0)
    assert bd_rate(half, CURVE) == pytest.approx(-0.5)
    assert bd_rate(CURVE, half) == pytest.approx(1.0)


def test_only_the_common_range_counts() -> None:
    better_above = Curve((0.1, 0.2, 0.4, 0.5), CURVE.psnr)
    assert bd_rate(better_above, CURVE) == pytest.approx(-0.08, abs=0.04)
    assert bd_rate(Curve((0.1, 0.2), (10.0, 20.0)), CURVE) is None


def test_cubic_pieces_pass_through_their_points_and_never_overshoot() -> None:
    x, y = np.array([0.0, 1, 3, 4, 6]), np.array([0.0, 2, 2.1, 5, 5.5])
    np.testing.assert_allclose(monotone_cubic(x, y, x), y)
    fine = monotone_cubic(x, y, np.linspace(0, 6, 601))
    assert (np.diff(fine) >= 0).all()
    np.testing.assert_allclose(monotone_cubic(x, 2 * x + 1, np.array([0.3, 5.0])), [1.6, 11])


def test_a_curve_goes_through_means_of_settings_that_all_pictures_have() -> None:
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
    found = mean_curve(points, {"a", "b"})
    assert found is not None
    np.testing.assert_allclose(found.bpp, (0.3, 0.7))
    assert found.psnr == (25.0, 31.0)
    assert mean_curve(points, {"a", "b", "c"}) is None


def test_it_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(small_pixels()).save(tmp_path / "small.png")
    out = tmp_path / "out"
    arguments = ["x", str(tmp_path), "--out", str(out), "--codecs", "jpeg420,webp"]
    monkeypatch.setattr(sys, "argv", arguments)
    rate_distortion.main()
    lines = (out / "points.csv").read_text("utf-8").splitlines()
    (out / "points.csv").write_text("\n".join(lines[:5]) + "\n", "utf-8")
    capsys.readouterr()
    rate_distortion.main()
    shown = capsys.readouterr().out
    assert shown.count("jpeg420  small") == 9 - 4
    assert sorted((out / "points.csv").read_text("utf-8").splitlines()) == sorted(lines)
    assert "| jpeg420 | 1 |" in (out / "summary.md").read_text("utf-8")
    assert "+0.0%" in shown
