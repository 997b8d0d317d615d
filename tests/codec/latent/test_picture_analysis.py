"""What a picture's transform says of lambda for its bits and its errors."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from imgmlp.codec.latent.training import lmbdas, picture_analysis
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.latent.training.picture_analysis import (
    LMBDA_PER_SQUARED_STEP,
    ROUNDING_OFFSET,
    Spectrum,
)
from imgmlp.codec.training.target import Goal
from imgmlp.codec.training.trainer import MAX_LMBDA, MIN_LMBDA
from imgmlp.image import Picture

SIZES = [(1, 1, 3), (1, 50, 3), (50, 1, 1), (5, 3, 2), (16, 16, 4), (17, 33, 3), (40, 70, 1)]
NARROW = [(16, 17000, 3), (17000, 16, 3), (1, 300000, 3), (16, 17000, 1)]


def noise(height: int, width: int, channels: int) -> np.ndarray:
    chance = np.random.default_rng(5)
    return chance.integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows / 9) + np.sin(columns / 13 + rows / 31)
    return np.uint8(127 + 60 * waves)[..., None].repeat(3, axis=2)


@pytest.mark.parametrize("size", SIZES)
def test_the_transform_keeps_the_energy(size: tuple[int, int, int]) -> None:
    blocks = picture_analysis._blocks(noise(*size))
    found = picture_analysis._transformed(blocks)
    assert found.shape == blocks.shape
    assert np.sum(found**2) == pytest.approx(np.sum(blocks**2), rel=1e-4)


def test_channels_are_told_apart_by_how_they_vary_and_not_by_what_they_are() -> None:
    shared, own = np.random.default_rng(0).normal(0, 0.1, (2, 500))
    colours = np.stack([shared + 0.9, own + 0.5, own + shared], -1)  # [blocks, channels]
    found = picture_analysis._transformed(np.float32(colours)[:, None, None])[:, 0, 0]
    covariance = np.cov(found, rowvar=False)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-6


def test_a_plane_has_one_number_a_block() -> None:
    found = picture_analysis._transformed(np.full((4, 16, 16, 1), 0.5, np.float32))
    assert np.abs(found[:, 0, 0, 0]) == pytest.approx(8.0, rel=1e-5)  # half of the side
    assert np.sum(np.abs(found) > 1e-5) == 4


def test_noise_has_the_error_of_numbers_that_are_rounded_alike() -> None:
    """Uniform from ROUNDING_OFFSET - 1 to ROUNDING_OFFSET of a step."""
    step = 0.01
    error = step**2 * (ROUNDING_OFFSET**3 + (1 - ROUNDING_OFFSET) ** 3) / 3
    found = Spectrum(noise(64, 64, 3)).lmbda_of_error(error)
    assert found == pytest.approx(LMBDA_PER_SQUARED_STEP * step**2, rel=0.03)


@pytest.mark.parametrize("pixels", [noise(48, 48, 3), smooth(48, 48)], ids=["noise", "smooth"])
def test_more_bits_and_less_error_are_cheaper(pixels: np.ndarray) -> None:
    found = Spectrum(pixels)
    by_bits = [found.lmbda_of_bits(bits) for bits in (200.0, 600.0, 1800.0)]
    assert all(later < earlier for earlier, later in pairwise(by_bits))
    by_error = [found.lmbda_of_error(10 ** (-decibels / 10)) for decibels in (25, 35, 45)]
    assert all(later < earlier for earlier, later in pairwise(by_error))


def test_smooth_pictures_have_their_error_at_higher_lambdas() -> None:
    """As most of their numbers are nothing at all."""
    found = [Spectrum(each).lmbda_of_error(1e-4) for each in (smooth(64, 64), noise(64, 64, 3))]
    assert found[0] > 4 * found[1]


def test_parts_of_a_large_picture_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = smooth(512, 768)
    whole = [Spectrum(pixels).lmbda_of_error(1e-4), Spectrum(pixels).lmbda_of_bits(1e5)]
    monkeypatch.setattr(picture_analysis, "MAX_ANALYSED_PIXELS", 2**14)
    assert picture_analysis._blocks(pixels).shape[0] * 16**2 <= 2**15
    part = [Spectrum(pixels).lmbda_of_error(1e-4), Spectrum(pixels).lmbda_of_bits(1e5)]
    assert np.log2(np.divide(part, whole)) == pytest.approx([0, 0], abs=0.3)


@pytest.mark.parametrize("size", [*SIZES, *NARROW])
@pytest.mark.parametrize("wanted", [Goal("psnr", 30), Goal("psnr", 60), Goal("bytes", 1),
                                    Goal("bytes", 10**7)])  # fmt: skip
def test_every_picture_and_target_has_a_first_lambda(
    wanted: Goal, size: tuple[int, int, int]
) -> None:
    for pixels in (noise(*size), np.zeros(size, np.uint8)):
        found = Lambdas(Picture(pixels), wanted).initial()
        assert MIN_LMBDA <= found <= MAX_LMBDA
        assert math.isfinite(found)


def test_the_first_lambda_of_each_target_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are who ask."""
    picture, made = Picture(noise(20, 30, 3)), list[np.ndarray]()

    def transformed(pixels: np.ndarray) -> Spectrum:
        made.append(pixels)
        return Spectrum(pixels)

    monkeypatch.setattr(lmbdas, "Spectrum", transformed)
    goals = Goal("psnr", 30), Goal("psnr", 35), Goal("bytes", 500)
    found = [[Lambdas(picture, goal).initial() for goal in goals] for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0])) == len(made) == len(goals)
    alone = [Lambdas(Picture(picture.pixels.copy()), goal).initial() for goal in goals]
    assert alone == found[0]


@pytest.mark.parametrize("size", [*NARROW, (40, 20000, 3)])
def test_a_narrow_picture_has_about_the_lambda_of_a_square_one(size: tuple[int, int, int]) -> None:
    square = Spectrum(noise(64, 64, size[-1])).lmbda_of_error(1e-3)
    assert Spectrum(noise(*size)).lmbda_of_error(1e-3) == pytest.approx(square, rel=0.1)


def test_bytes_beyond_what_a_picture_can_use_have_the_lambda_of_50_decibels() -> None:
    found = Spectrum(noise(13, 10, 3))
    assert found.lmbda_of_bits(1e6) == found.lmbda_of_error(1e-5)
    assert found.lmbda_of_bits(300.0) > found.lmbda_of_error(1e-5)


@pytest.mark.parametrize("channels", [2, 4])
def test_colours_that_nobody_sees_decide_nothing(channels: int) -> None:
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
def test_colours_that_nobody_sees_are_as_those_seen_are_in_the_mean(side: int) -> None:
    """Which would drift if as many as that were added up in 32 bits."""
    pixels = np.full((side, side, 4), 200, np.uint8)
    pixels[:, side * 7 // 8 :] = 0
    found = picture_analysis._blocks(pixels)
    np.testing.assert_allclose(found[..., :-1], 200 / 255, rtol=1e-6)
