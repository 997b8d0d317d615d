"""The library's metrics are what their definitions say, where pictures are large enough."""

from __future__ import annotations

import math

import numpy as np
import pytest

from imgmlp.report.metrics import compare, decibels

SIDE = 176
CHANCE = np.random.default_rng(3)
NOISE = CHANCE.integers(0, 256, (SIDE, SIDE + 7, 3), np.uint8)


def flat(level: int, channels: int = 3) -> np.ndarray:
    return np.full((SIDE, SIDE, channels), level, np.uint8)


def test_equal_pictures_have_infinite_psnr_and_ssim_of_1() -> None:
    quality = compare(NOISE, NOISE)
    assert math.isinf(quality.psnr)
    assert quality.ssim == pytest.approx(1)
    assert quality.ms_ssim == pytest.approx(1)


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_of_flat_pictures_is_its_luminance_term(channels: int) -> None:
    """SSIM is (2ab + C) / (a² + b² + C) with C = (0.01 · 255)².

    MS-SSIM is that to the power of the weight of its last scale, the only one with luminance.
    """
    a, b, c = 100, 140, (0.01 * 255) ** 2
    quality = compare(flat(a, channels), flat(b, channels))
    wanted = (2 * a * b + c) / (a * a + b * b + c)
    assert quality.ssim == pytest.approx(wanted, abs=1e-4)
    assert quality.ms_ssim == pytest.approx(wanted**0.1333, abs=1e-4)
    assert quality.psnr == pytest.approx(20 * math.log10(255 / 40))


def test_colours_of_equal_luma_differ_in_psnr_but_not_in_ssim() -> None:
    red, gray = np.zeros((SIDE, SIDE, 3), np.uint8), flat(76)
    red[:, :, 0] = 255  # 0.299 · 255
    quality = compare(red, gray)
    assert quality.ssim == pytest.approx(1, abs=1e-3)
    assert quality.psnr < 10


def test_small_pictures_have_no_ms_ssim_and_tiny_ones_no_ssim() -> None:
    assert compare(NOISE[:, :175], NOISE[:, :175]).ms_ssim is None
    assert compare(NOISE[:, :175], NOISE[:, :175]).ssim == pytest.approx(1)
    tiny = compare(NOISE[:10], NOISE[:10])
    assert (tiny.ssim, tiny.ms_ssim) == (None, None)


def test_similarities_are_converted_to_decibels() -> None:
    assert decibels(0.9) == pytest.approx(10)
    assert decibels(0.99) == pytest.approx(20)
    assert decibels(1.0) == pytest.approx(90)
