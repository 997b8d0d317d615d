"""Which pictures have more than one grid of their own size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.encoder import Encoded, encode, workload
from imgmlp.codec.latent import decode as latent_decode
from imgmlp.codec.latent.encode import _Encoder
from imgmlp.codec.latent.training.colour_detail import LEFT, STEPS, detail_bits, extra_grids
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload, choose
from imgmlp.engine import open_device
from imgmlp.image import Picture

QUALITY_60 = choose(1).value


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_noise_of_its_own_in_each_channel_has_a_grid_for_each() -> None:
    for channels, extra in ((1, 0), (2, 1), (3, 2), (4, 3)):
        pixels = noise(40, 50, channels)
        if channels in (2, 4):
            pixels[..., -1] |= 1  # alpha that hides nothing
        assert extra_grids(pixels, QUALITY_60, STEPS) == extra
        assert extra_grids(pixels, 1.0, STEPS) == 0  # as nothing of it is worth its bits
        assert extra_grids(pixels, QUALITY_60, STEPS - 1) == 0  # in which they would stay nothing


def test_channels_that_tell_of_the_same_details_share_a_grid() -> None:
    gray, slow = noise(40, 50, 1) / 2, np.linspace(0, 50, 50)[None, :, None]
    pixels = np.concatenate([gray, gray * 0.5 + slow, 100 - gray * 0.7], -1).astype(np.uint8)
    assert extra_grids(pixels, QUALITY_60, STEPS) == 0
    assert detail_bits(pixels, QUALITY_60) < 0.1


def test_details_that_are_nearly_exact_have_one_more() -> None:
    """Rounding to whole levels is noise of a twelfth of a squared level."""
    gray = noise(40, 50, 1) / 4.0
    pixels = np.rint(np.concatenate([gray, gray * 0.7, gray * 1.3], -1)).astype(np.uint8)
    assert [extra_grids(pixels, price, STEPS) for price in (1e-4, 1e-5, 1e-8)] == [0, 0, 2]
    prices = np.geomspace(1e-5, 1e-8, 100)
    for bits, extra in ((1.1, 1), (2.1, 1), (3.9, 1), (4.1, 2)):
        at = next(price for price in prices if detail_bits(pixels, price) > bits)
        assert extra_grids(pixels, at, STEPS) == extra


def test_bits_are_those_of_what_one_grid_leaves() -> None:
    """Of two channels with one at rest nothing is left; of two of the same strength, one."""
    one = np.zeros((20, 20, 3), np.uint8)
    one[..., 1] = noise(20, 20)
    assert detail_bits(one, 1e-3) == 0
    checks = np.indices((20, 20)).sum(0) % 2 * 128
    stripes = np.indices((20, 20))[0] % 2 * 100
    two = np.stack([checks, stripes, np.zeros((20, 20), int)], -1).astype(np.uint8)
    left = (50 / 255) ** 2  # of the weaker one, in every pixel
    assert detail_bits(two, 1e-3) == pytest.approx(math.log2(1 + left / (LEFT * 1e-3)), rel=1e-6)


def test_nothing_is_seen_in_what_nobody_sees() -> None:
    pixels = noise(20, 20, 4)
    pixels[..., 3] = 0
    assert detail_bits(pixels, 1e-4) == 0
    for size in ((1, 9, 3), (9, 1, 3), (1, 1, 3)):
        assert extra_grids(noise(*size), 1e-5, STEPS) == 0


def test_a_large_picture_is_looked_at_in_parts() -> None:
    pixels = noise(2000, 2000, 3)
    part = detail_bits(pixels[:400, :400], 1e-3)
    assert detail_bits(pixels, 1e-3) == pytest.approx(part, rel=0.02)


@pytest.mark.parametrize("colours", [0, 16])
def test_noise_in_colour_is_more_than_26_db_at_the_usual_quality(colours: int) -> None:
    pixels = noise(16, 16, 3)
    if colours:
        pixels = noise(colours, 3)[pixels[..., 0] % colours]
    found = encoded(pixels, choose(pixels.size // 3))
    assert found.metrics["psnr"] > 26
    parsed = container.parse(found.bytes)
    assert latent_decode.read(parsed, open_device("numpy")).shape.extra == 2
    assert np.array_equal(decoder.decode(parsed, open_device("numpy")), found.pixels)


def test_db_that_one_grid_does_not_reach_are_reached() -> None:
    found = encoded(noise(16, 16, 3), Goal("psnr", 40))
    assert found.missed is None
    assert found.metrics["psnr"] > 39.8


@pytest.mark.parametrize(("seconds", "extra"), [(29.0, 0), (31.0, 2), (None, 2)])
def test_a_limit_that_compiling_would_exceed_leaves_no_time_for_more(
    seconds: float | None, extra: int
) -> None:
    found = _Encoder(
        Picture(noise(40, 40, 3)), choose(1600), Workload(300, seconds), open_device("numpy"), Run()
    )
    assert found.forms.extra == extra


def encoded(pixels: np.ndarray, wanted: Goal) -> Encoded:
    return encode(Picture(pixels), wanted, workload("latent", 1, None), open_mapping("one"))
