"""Initial lambdas: predicted from the spectrum of a picture; forecasts and pricing."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from latent_encoding import PIXELS, TWO_COLOURS

from imgmlp.codec.latent.training import lmbdas, picture_analysis
from imgmlp.codec.latent.training.lmbdas import Lambdas, forecast
from imgmlp.codec.latent.training.picture_analysis import (
    LMBDA_PER_SQUARED_STEP,
    ROUNDING_OFFSET,
    Spectrum,
)
from imgmlp.codec.training.target import Goal
from imgmlp.codec.training.trainer import MAX_LMBDA, MIN_LMBDA
from imgmlp.image import Picture


def test_forecast_of_final_bits_and_psnr_matches_measured_runs() -> None:
    """The figures are those of kodim15 at 128x128 pixels, after a sixth of 600 steps.

    It ended with 0.26 bits per pixel of latents and 1,056 bits of networks at a lambda of 4e-3,
    with 37.7 dB at 2e-4 and with 42.8 dB at 4e-5.
    """
    assert forecast(1.0, 800.0, 30.0, left=0.0, lmbda=1e-3) == (1.0, 800.0, 30.0)
    bits_per_pixel, networks, _ = forecast(0.34, 1350.0, 29.4, left=0.83, lmbda=4e-3)
    assert 0.24 < bits_per_pixel < 0.28
    assert 1000 < networks < 1100
    *_, psnr = forecast(1.4, 3200.0, 36.9, left=0.83, lmbda=2e-4)
    *_, psnr_at_low_lambda = forecast(2.7, 4000.0, 40.5, left=0.83, lmbda=4e-5)
    assert 37.5 < psnr < 38
    assert 42.4 < psnr_at_low_lambda < 43


def test_fixed_lambda_is_not_below_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    lmbdas = Lambdas(Picture(TWO_COLOURS), Goal("psnr", 45))
    monkeypatch.setattr(lmbdas, "initial", lmbdas.min_lmbda)
    assert lmbdas.fixed_lmbda(limited=True) == lmbdas.min_lmbda() == pytest.approx(0.2 * 10**-4.5)


def test_time_limit_shifts_pricing_to_fewer_bytes_and_more_decibels() -> None:
    """There may be no time for a pass that makes up for a missed target."""
    for goal, raises_lambda in ((Goal("bytes", 100), True), (Goal("psnr", 30), False)):
        goal_lmbdas = Lambdas(Picture(PIXELS), goal)
        limited, usual = goal_lmbdas.pricing(limited=True), goal_lmbdas.pricing()
        assert limited is not None
        assert usual is not None
        assert (limited(800.0, 31.0) > usual(800.0, 31.0)) is raises_lambda
        assert limited(800.0, 31.0) != usual(800.0, 31.0)


SIZES = [(1, 1, 3), (1, 50, 3), (50, 1, 1), (5, 3, 2), (16, 16, 4), (17, 33, 3), (40, 70, 1)]


NARROW_SIZES = [(16, 17000, 3), (17000, 16, 3), (1, 300000, 3), (16, 17000, 1)]


def noise(height: int, width: int, channels: int) -> np.ndarray:
    chance = np.random.default_rng(5)
    return chance.integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows / 9) + np.sin(columns / 13 + rows / 31)
    return np.uint8(127 + 60 * waves)[..., None].repeat(3, axis=2)


@pytest.mark.parametrize("size", SIZES)
def test_transform_preserves_energy(size: tuple[int, int, int]) -> None:
    blocks = picture_analysis._blocks(noise(*size))
    transformed = picture_analysis._transformed(blocks)
    assert transformed.shape == blocks.shape
    assert np.sum(transformed**2) == pytest.approx(np.sum(blocks**2), rel=1e-4)


def test_transform_decorrelates_channels() -> None:
    shared, own = np.random.default_rng(0).normal(0, 0.1, (2, 500))
    colours = np.stack([shared + 0.9, own + 0.5, own + shared], -1)  # [blocks, channels]
    transformed = picture_analysis._transformed(np.float32(colours)[:, None, None])[:, 0, 0]
    covariance = np.cov(transformed, rowvar=False)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-6


def test_constant_block_has_one_coefficient() -> None:
    transformed = picture_analysis._transformed(np.full((4, 16, 16, 1), 0.5, np.float32))
    assert np.abs(transformed[:, 0, 0, 0]) == pytest.approx(
        8.0, rel=1e-5
    )  # half of the side of a block
    assert np.sum(np.abs(transformed) > 1e-5) == 4


def test_lambda_of_noise_follows_from_its_rounding_error() -> None:
    """Rounding errors are uniform from ROUNDING_OFFSET - 1 to ROUNDING_OFFSET of a step size."""
    step = 0.01
    error = step**2 * (ROUNDING_OFFSET**3 + (1 - ROUNDING_OFFSET) ** 3) / 3
    spectrum = Spectrum(noise(64, 64, 3)).lmbda_of_error(error)
    assert spectrum == pytest.approx(LMBDA_PER_SQUARED_STEP * step**2, rel=0.03)


@pytest.mark.parametrize("pixels", [noise(48, 48, 3), smooth(48, 48)], ids=["noise", "smooth"])
def test_lambda_falls_with_more_bits_or_less_error(pixels: np.ndarray) -> None:
    spectrum = Spectrum(pixels)
    by_bits = [spectrum.lmbda_of_bits(bits) for bits in (200.0, 600.0, 1800.0)]
    assert all(later < earlier for earlier, later in pairwise(by_bits))
    by_error = [spectrum.lmbda_of_error(10 ** (-decibels / 10)) for decibels in (25, 35, 45)]
    assert all(later < earlier for earlier, later in pairwise(by_error))


def test_smooth_pictures_reach_an_error_at_a_higher_lambda() -> None:
    """Most of their coefficients are zero."""
    results = [Spectrum(each).lmbda_of_error(1e-4) for each in (smooth(64, 64), noise(64, 64, 3))]
    assert results[0] > 4 * results[1]


def test_analysed_part_of_a_large_picture_agrees_with_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels = smooth(512, 768)
    whole = [Spectrum(pixels).lmbda_of_error(1e-4), Spectrum(pixels).lmbda_of_bits(1e5)]
    monkeypatch.setattr(picture_analysis, "MAX_ANALYSED_PIXELS", 2**14)
    assert picture_analysis._blocks(pixels).shape[0] * 16**2 <= 2**15
    part = [Spectrum(pixels).lmbda_of_error(1e-4), Spectrum(pixels).lmbda_of_bits(1e5)]
    assert np.log2(np.divide(part, whole)) == pytest.approx([0, 0], abs=0.3)


@pytest.mark.parametrize("size", [*SIZES, *NARROW_SIZES])
@pytest.mark.parametrize("goal", [Goal("psnr", 30), Goal("psnr", 60), Goal("bytes", 1),
                                    Goal("bytes", 10**7)])  # fmt: skip
def test_initial_lambda_is_finite_and_in_range_for_every_target(
    goal: Goal, size: tuple[int, int, int]
) -> None:
    for pixels in (noise(*size), np.zeros(size, np.uint8)):
        initial = Lambdas(Picture(pixels), goal).initial()
        assert MIN_LMBDA <= initial <= MAX_LMBDA
        assert math.isfinite(initial)


def test_initial_lambda_of_each_target_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated requests use the cached value."""
    picture, analysed = Picture(noise(20, 30, 3)), list[np.ndarray]()

    def record_spectrum(pixels: np.ndarray) -> Spectrum:
        analysed.append(pixels)
        return Spectrum(pixels)

    monkeypatch.setattr(lmbdas, "Spectrum", record_spectrum)
    goals = Goal("psnr", 30), Goal("psnr", 35), Goal("bytes", 500)
    results = [[Lambdas(picture, goal).initial() for goal in goals] for _ in range(2)]
    assert results[0] == results[1]
    assert len(set(results[0])) == len(analysed) == len(goals)
    alone = [Lambdas(Picture(picture.pixels.copy()), goal).initial() for goal in goals]
    assert alone == results[0]


@pytest.mark.parametrize("size", [*NARROW_SIZES, (40, 20000, 3)])
def test_lambda_of_narrow_pictures_is_about_that_of_square_ones(size: tuple[int, int, int]) -> None:
    square = Spectrum(noise(64, 64, size[-1])).lmbda_of_error(1e-3)
    assert Spectrum(noise(*size)).lmbda_of_error(1e-3) == pytest.approx(square, rel=0.1)


def test_lambda_of_excess_bytes_is_that_of_50_decibels() -> None:
    spectrum = Spectrum(noise(13, 10, 3))
    assert spectrum.lmbda_of_bits(1e6) == spectrum.lmbda_of_error(1e-5)
    assert spectrum.lmbda_of_bits(300.0) > spectrum.lmbda_of_error(1e-5)


@pytest.mark.parametrize("channels", [2, 4])
def test_invisible_colours_do_not_change_lambda(channels: int) -> None:
    pixels = noise(40, 50, channels)
    pixels[:, :, -1] = 255
    pixels[5:30, 5:45, -1] = 0
    other = pixels.copy()
    other[5:30, 5:45, :-1] = 255 - other[5:30, 5:45, :-1]
    first, second = Spectrum(pixels), Spectrum(other)
    assert first.lmbda_of_bits(5000.0) == second.lmbda_of_bits(5000.0)
    assert first.lmbda_of_error(1e-3) == second.lmbda_of_error(1e-3)
    pixels[:, :, -1] = 0
    assert math.isfinite(Spectrum(pixels).lmbda_of_bits(50.0))


@pytest.mark.parametrize("side", [64, 512])
def test_invisible_colours_become_the_mean_of_visible_ones(side: int) -> None:
    """The mean would drift if so many pixels were added up in 32 bits."""
    pixels = np.full((side, side, 4), 200, np.uint8)
    pixels[:, side * 7 // 8 :] = 0
    result = picture_analysis._blocks(pixels)
    np.testing.assert_allclose(result[..., :-1], 200 / 255, rtol=1e-6)
