"""Which pictures get extra grids of full resolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.encoder import Encoded, encode, workload
from imgmlp.codec.latent import decode as latent_decode
from imgmlp.codec.latent.training import cost_model, effort, picture_analysis, run_plan
from imgmlp.codec.latent.training.picture_analysis import (
    MIN_STEPS_FOR_EXTRA_GRIDS,
    detail_bits,
    extra_grids,
)
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload, choose
from imgmlp.engine import open_device
from imgmlp.image import Picture

QUALITY_60 = choose(1).value


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_independent_noise_gets_a_grid_for_each_channel() -> None:
    for channels, extra in ((1, 0), (2, 1), (3, 2), (4, 3)):
        pixels = noise(40, 50, channels)
        if channels in (2, 4):
            pixels[..., -1] |= 1  # alpha that hides nothing
        assert extra_grids(pixels, QUALITY_60, MIN_STEPS_FOR_EXTRA_GRIDS) == extra
        assert (
            extra_grids(pixels, 1.0, MIN_STEPS_FOR_EXTRA_GRIDS) == 0
        )  # no detail is worth its bits
        assert (
            extra_grids(pixels, QUALITY_60, MIN_STEPS_FOR_EXTRA_GRIDS - 1) == 0
        )  # too few steps for any


def test_channels_with_the_same_details_share_a_grid() -> None:
    gray, slow = noise(40, 50, 1) / 2, np.linspace(0, 50, 50)[None, :, None]
    pixels = np.concatenate([gray, gray * 0.5 + slow, 100 - gray * 0.7], -1).astype(np.uint8)
    assert extra_grids(pixels, QUALITY_60, MIN_STEPS_FOR_EXTRA_GRIDS) == 0
    assert detail_bits(pixels, QUALITY_60) < 0.1


@pytest.mark.parametrize(
    ("lmbda", "bits", "extra"),
    [
        *[(8e-4, 1.4, 0), (8e-4, 1.6, 2), (8e-4, 9.0, 2), (3.1e-5, 1.4, 0), (3.1e-5, 1.6, 2)],
        *[(2.9e-5, 0.9, 0), (2.9e-5, 1.1, 1), (2.9e-5, 3.9, 1), (2.9e-5, 4.1, 2)],
    ],
)
def test_number_of_extra_grids_follows_detail_bits_and_lambda(
    lmbda: float, bits: float, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a low lambda, one bit is enough for one grid, as coarser grids do not reach the error."""
    monkeypatch.setattr(picture_analysis, "detail_bits", lambda *_: bits)
    assert extra_grids(noise(4, 4, 3), lmbda, MIN_STEPS_FOR_EXTRA_GRIDS) == extra


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_detail_bits_are_those_of_what_one_grid_leaves(channels: int) -> None:
    """One varying channel leaves nothing; of two, the weaker one is left."""
    one = np.zeros((20, 20, channels), np.uint8)
    one[..., -1] = 255  # opaque alpha, or white
    one[..., 0] = noise(20, 20)
    assert detail_bits(one, 1e-3) == pytest.approx(0, abs=1e-9)
    two = one.copy()
    two[..., 0] = np.indices((20, 20)).sum(0) % 2 * 128
    two[..., -1] = 255 - np.indices((20, 20))[0] % 2 * 100
    left, bit = (50 / 255) ** 2, math.log(4) / channels / 1e-3
    assert detail_bits(two, 1e-3) == pytest.approx(math.log2(1 + left * bit), rel=1e-6)


def test_colours_that_differ_between_blocks_add_no_detail_bits() -> None:
    """Coarser grids hold the colour of each block, as of words in many colours."""
    strength, colours = noise(60, 44, 1) / 255, noise(4, 3, 3).repeat(16, 0).repeat(16, 1)
    pixels = (strength * colours[:60, :44]).astype(np.uint8)
    assert detail_bits(pixels, 1e-3) < 0.1
    assert detail_bits(pixels[4:, 4:], 1e-3) > 0.5


def test_invisible_or_thin_pictures_have_no_detail() -> None:
    pixels = noise(20, 20, 4)
    pixels[..., 3] = 0
    assert detail_bits(pixels, 1e-4) == 0
    for size in ((1, 9, 3), (9, 1, 3), (1, 1, 3)):
        assert extra_grids(noise(*size), 1e-5, MIN_STEPS_FOR_EXTRA_GRIDS) == 0


def test_detail_of_large_pictures_is_sampled_evenly() -> None:
    """A quarter of the picture is noise, in each of its corners in turn."""
    part = noise(1000, 1000, 3)
    for row, column in np.ndindex(2, 2):
        pixels = np.zeros((2000, 2000, 3), np.uint8)
        pixels[1000 * row :, 1000 * column :][:1000, :1000] = part
        quarter = detail_bits(part, 1e-3) / 4
        assert detail_bits(pixels, 1e-3) == pytest.approx(quarter, rel=0.02)


@pytest.mark.parametrize("colours", [0, 16])
def test_colour_noise_reaches_26_db_at_the_default_quality(colours: int) -> None:
    pixels = noise(16, 16, 3)
    if colours:
        pixels = noise(colours, 3)[pixels[..., 0] % colours]
    encoded = encode_quickly(pixels, choose(pixels.size // 3))
    assert encoded.metrics["psnr"] > 26
    parsed = container.parse(encoded.bytes)
    assert latent_decode.read(parsed, open_device("numpy")).shape.extra_grids == 2
    assert np.array_equal(decoder.decode(parsed, open_device("numpy")), encoded.pixels)


def test_colour_noise_reaches_a_target_of_40_db() -> None:
    encoded = encode_quickly(noise(16, 16, 3), Goal("psnr", 40))
    assert encoded.missed is None
    assert encoded.metrics["psnr"] > 39.8


@pytest.mark.parametrize(("seconds", "extra"), [(29.0, 0), (31.0, 2), (None, 2)])
def test_short_time_limit_allows_no_extra_grids(seconds: float | None, extra: int) -> None:
    arguments = (
        Picture(noise(40, 40, 3)),
        choose(1600),
        Workload(300, seconds),
        open_device("numpy"),
    )
    assert (
        effort.expected_extra_grids(*arguments)
        == run_plan.RunPlan(*arguments, Run()).setup.extra_grids
        == extra
    )


def test_pictures_with_extra_grids_have_no_hyperlatents() -> None:
    """A long run would have hyperlatents without them."""
    gray, device = noise(320, 320, 1).repeat(3, 2), open_device("numpy")
    for pixels, extra in ((gray, 0), (noise(320, 320, 3), 2)):
        plan = run_plan.RunPlan(Picture(pixels), choose(1), Workload(100_000), device, Run())
        assert (plan.setup.extra_grids, plan.hyperlatents) == (extra, not extra)


def test_estimates_include_extra_grids() -> None:
    """They need programs of their own and more operations."""
    gray, device = Picture(noise(200, 200, 1).repeat(3, 2)), open_device("numpy")
    arguments = choose(40_000), Workload(300), device
    plain, more = (
        cost_model.estimate_work(one, *arguments) for one in (gray, Picture(noise(200, 200, 3)))
    )
    assert set(plain.programs).isdisjoint(more.programs)
    assert more.operations > 1.2 * plain.operations


def encode_quickly(pixels: np.ndarray, goal: Goal) -> Encoded:
    return encode(Picture(pixels), goal, workload("latent", 1, None), open_mapping("one"))
