"""Networks of one colour, the smallest that there are, and what files have beside weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from imgmlp.codec.mlp import integer_inference, rate_model
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.rounding_search import (
    MAX_BITS_PER_WEIGHT,
    Rounding,
    even,
    overhead,
    paid_weights,
)
from imgmlp.codec.training import chunked
from imgmlp.codec.training.target import Goal
from imgmlp.engine import open_device
from imgmlp.image import Picture, psnr
from imgmlp.metadata import NOTHING, Metadata


def test_one_colour_can_be_any() -> None:
    device = open_device("numpy")
    for level in range(0, 256, 4):
        levels = np.arange(level, level + 4)
        decoded = integer_inference.decode(even(levels), 3, 2, device)
        assert (decoded == levels.astype(np.uint8)).all()


@pytest.mark.parametrize("size", [300, 700, 5000])
def test_what_bytes_pay_for_is_what_a_file_has_beside_the_rest(size: int) -> None:
    for found in (NOTHING, Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", None)):
        picture = Picture(np.zeros((64, 64, 3), np.uint8), found)
        weights = paid_weights(picture, size)
        shape = rate_model.network_shape(weights, 3)
        assert overhead(picture, shape) + weights * rate_model.BITS_PER_WEIGHT / 8 == pytest.approx(
            size
        )


def test_what_was_compiled_for_few_bits_does_not_take_more_from_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a short run's network, which an attempt may take with the bits of a larger one."""
    made, compiled = integer_inference._Piece.__init__, list[int]()

    def piece(*args: Any) -> None:
        made(*args)
        compiled.append(args[0].cut)

    monkeypatch.setattr(integer_inference._Piece, "__init__", piece)
    picture = Picture(np.zeros((8, 8, 3), np.uint8))
    rounding = Rounding(picture, Goal("bytes", 9000), open_device("numpy"), compiled_once=True)
    shape, other = rate_model.network_shape(4000.0, 3), rate_model.network_shape(9000.0, 3)
    chance = np.random.default_rng(1)
    fine = [chance.normal(0.0, 0.3, size) for size in shape.shapes]
    choices = [Choice(40, 0)] * (shape.hidden + 1)

    def step() -> int:
        """Of the second layer."""
        return rounding._rounded(fine, choices, shape).network.layers[1].step

    for bits in (rate_model.BITS_PER_WEIGHT, 3.0, rate_model.BITS_PER_WEIGHT):
        rounding.seconds(shape, bits)
    assert len(compiled) == 1
    assert step() > 40  # as far as that takes
    for bits in (MAX_BITS_PER_WEIGHT, rate_model.BITS_PER_WEIGHT):
        rounding.seconds(shape, bits)
    rounding.seconds(other, rate_model.BITS_PER_WEIGHT)
    assert compiled[1] == integer_inference.PARTS
    assert len(compiled) == 3
    assert step() == 40


def test_files_of_a_large_picture_are_judged_by_parts_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And by how much more dB all of it has, once that is known of a network of the shape."""
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 256)
    monkeypatch.setattr(chunked, "MIN_SAMPLE_PIXELS", 4096)
    chance, shape = np.random.default_rng(3), rate_model.network_shape(600.0, 3)
    y, x = np.mgrid[:200, :300]
    picture = Picture(np.dstack([x * 0.8, y, 80 * np.sin(x / 9) + 100]).astype(np.uint8))
    wanted, device = Goal("psnr", 30), open_device("numpy")
    rounding = Rounding(picture, wanted, device)
    assert 0.03 < rounding.judged_fraction < 0.1
    arrays = [chance.normal(0.0, 0.2, size) for size in shape.shapes]
    decoded, decode = [], integer_inference.Decoder.decode
    monkeypatch.setattr(
        integer_inference.Decoder, "decode", lambda *a: decoded.append(a[1]) or decode(*a)
    )
    trials = []
    for step in (52, 62, 67):
        choices = [Choice(step, 0)] * (shape.hidden + 1)
        trials.append(rounding._rounded(arrays, choices, shape))
    assert len(decoded) == 1
    whole = [psnr(picture.pixels, decode(rounding._decoder, t.network)) for t in trials]
    assert trials[0].psnr == pytest.approx(whole[0])
    assert [trial.psnr for trial in trials] == pytest.approx(whole, abs=0.2)
    assert len({round(trial.psnr, 3) for trial in trials}) == 3
    found = rounding._chosen(trials)
    best = whole.index(max(whole))
    assert (found.network, found.psnr) == (trials[best].network, pytest.approx(whole[best]))
    again = Rounding(Picture(picture.pixels[:40, :40]), wanted, device)
    assert again.judged_fraction == 1


def test_hidden_parts_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody sees the parts, the whole picture is decoded."""
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 64)
    monkeypatch.setattr(chunked, "MIN_SAMPLE_PIXELS", 64)
    pixels = np.zeros((128, 128, 4), np.uint8)
    pixels[:4, :4] = 255
    rounding = Rounding(Picture(pixels), Goal("psnr", 30), open_device("numpy"))
    trial = rounding._trial(even(np.array([9, 9, 9, 0])), [])
    assert trial.psnr == pytest.approx(psnr(pixels, rounding.decoded(trial.network)))
    assert not trial.about
    assert rounding._chosen([trial]) is trial
    assert rounding.judged_fraction < 1
