"""Colours under alpha 0 cost no bits and do not count, in both codecs."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_pixels

from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import Encoded, encode
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import Picture, psnr, visible_fraction

CODECS: tuple[Codec, ...] = ("mlp", "latent")
TARGETS = [Goal("lambda", 3e-3), Goal("bytes", 260), Goal("psnr", 18)]


def cut_out(fill: int | None, colours: int = 3) -> np.ndarray:
    """A disc cut out of a picture, with a soft edge. Invisible colours are one level, or noise."""
    pixels = small_pixels(colours)[:8, :9]
    y, x = np.mgrid[:8, :9]
    distance = np.hypot(y - 4, x - 4)
    alpha = np.clip(255 * (4 - distance), 0, 255).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, pixels.shape, np.uint8)
    hidden = noise if fill is None else np.full_like(pixels, fill)
    seen = np.where(alpha[:, :, None] > 0, pixels, hidden)
    return np.dstack([seen, alpha])


def run(pixels: np.ndarray, codec: Codec, wanted: Goal) -> Encoded:
    return encode(Picture(pixels), wanted, Workload(8), open_device("numpy"), codec=codec)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wanted", TARGETS, ids=str)
def test_file_does_not_depend_on_invisible_colours(codec: Codec, wanted: Goal) -> None:
    files = [run(cut_out(fill), codec, wanted) for fill in (0, None)]
    assert files[0].bytes == files[1].bytes
    assert files[0].metrics["psnr"] == files[1].metrics["psnr"]


@pytest.mark.parametrize("codec", CODECS)
def test_file_does_not_depend_on_invisible_gray_levels(codec: Codec) -> None:
    files = [run(cut_out(fill, 1), codec, TARGETS[0]) for fill in (255, None)]
    assert files[0].bytes == files[1].bytes


@pytest.mark.parametrize("codec", CODECS)
def test_fully_transparent_picture_gives_a_small_lossless_file(codec: Codec) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 4), np.uint8)
    pixels[:, :, 3] = 0
    result = run(pixels, codec, TARGETS[1])
    assert len(result.bytes) < 80
    assert (result.pixels[:, :, 3] == 0).all()
    assert result.missed is None


def test_psnr_counts_visible_samples_only() -> None:
    pixels = cut_out(None)
    other = pixels.copy()
    hidden = pixels[:, :, 3] == 0
    other[hidden, :3] ^= 255
    assert psnr(pixels, other) == np.inf
    other[4, 4, 0] += 51
    samples = 4 * hidden.size - 3 * np.count_nonzero(hidden)
    assert psnr(pixels, other) == pytest.approx(10 * np.log10(255**2 * samples / 51**2))
    assert visible_fraction(pixels) == pytest.approx(samples / pixels.size)
    assert visible_fraction(pixels[:, :, :3]) == 1
    other[0, 0, 3] = 9  # alpha itself counts everywhere
    assert psnr(pixels, other) < psnr(pixels, np.dstack([other[:, :, :3], pixels[:, :, 3]]))


def test_training_loss_counts_visible_samples_only() -> None:
    device, losses = open_device("numpy"), []
    for fill in (0, None):
        step = LatentStep(cut_out(fill), 0, device, Architecture(4, 4))
        losses.append(step.judge(step.flat.numpy()))
    assert losses[0] == losses[1]
    pixels = cut_out(0)
    assert step.mean(pixels.size * visible_fraction(pixels)) == pytest.approx(1)
