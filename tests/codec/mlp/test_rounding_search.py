"""Rounding towards a target, networks of one colour, and the sizes of files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from imgmlp.codec.mlp import integer_inference, rate_model
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.rounding_search import (
    MAX_BITS_PER_WEIGHT,
    Rounding,
    overhead,
    paid_weights,
    uniform_network,
)
from imgmlp.codec.training import chunked
from imgmlp.codec.training.target import Goal
from imgmlp.engine import open_device
from imgmlp.image import Picture, psnr
from imgmlp.metadata import NOTHING, Metadata


def test_uniform_network_gives_every_level() -> None:
    device = open_device("numpy")
    for level in range(0, 256, 4):
        levels = np.arange(level, level + 4)
        decoded = integer_inference.decode(uniform_network(levels), 3, 2, device)
        assert (decoded == levels.astype(np.uint8)).all()


@pytest.mark.parametrize("size", [300, 700, 5000])
def test_paid_weights_and_overhead_add_up_to_the_size_of_a_file(size: int) -> None:
    for metadata in (NOTHING, Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", None)):
        picture = Picture(np.zeros((64, 64, 3), np.uint8), metadata)
        weights = paid_weights(picture, size)
        shape = rate_model.network_shape(weights, 3)
        assert overhead(picture, shape) + weights * rate_model.BITS_PER_WEIGHT / 8 == pytest.approx(
            size
        )


def test_networks_keep_their_precision_if_a_decoder_was_compiled_for_more_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt may take the network of a pilot with the bits of a larger network."""
    init, compiled_cuts = integer_inference._Piece.__init__, list[int]()

    def piece(*args: Any) -> None:
        init(*args)
        compiled_cuts.append(args[0].cut)

    monkeypatch.setattr(integer_inference._Piece, "__init__", piece)
    picture = Picture(np.zeros((8, 8, 3), np.uint8))
    rounding = Rounding(picture, Goal("bytes", 9000), open_device("numpy"), keeps_cut=True)
    shape, other = rate_model.network_shape(4000.0, 3), rate_model.network_shape(9000.0, 3)
    generator = np.random.default_rng(1)
    fine = [generator.normal(0.0, 0.3, size) for size in shape.shapes]
    choices = [Choice(40, 0)] * (shape.hidden + 1)

    def step() -> int:
        """The step size of the second layer."""
        return rounding._rounded(fine, choices, shape).network.layers[1].step

    for bits in (rate_model.BITS_PER_WEIGHT, 3.0, rate_model.BITS_PER_WEIGHT):
        rounding.decoding_seconds(shape, bits)
    assert len(compiled_cuts) == 1
    assert step() > 40  # as coarse as the decoder for few bits needs
    for bits in (MAX_BITS_PER_WEIGHT, rate_model.BITS_PER_WEIGHT):
        rounding.decoding_seconds(shape, bits)
    rounding.decoding_seconds(other, rate_model.BITS_PER_WEIGHT)
    assert compiled_cuts[1] == integer_inference.BYTE_PARTS
    assert len(compiled_cuts) == 3
    assert step() == 40


def test_psnr_of_a_large_picture_is_estimated_by_parts_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is corrected by the error of the estimate for the first network of the shape."""
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 256)
    monkeypatch.setattr(chunked, "MIN_SAMPLE_PIXELS", 4096)
    generator, shape = np.random.default_rng(3), rate_model.network_shape(600.0, 3)
    y, x = np.mgrid[:200, :300]
    picture = Picture(np.dstack([x * 0.8, y, 80 * np.sin(x / 9) + 100]).astype(np.uint8))
    wanted, device = Goal("psnr", 30), open_device("numpy")
    rounding = Rounding(picture, wanted, device)
    assert 0.03 < rounding.sampled_fraction < 0.1
    arrays = [generator.normal(0.0, 0.2, size) for size in shape.shapes]
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
    nearest = rounding._nearest(trials)
    best = whole.index(max(whole))
    assert (nearest.network, nearest.psnr) == (trials[best].network, pytest.approx(whole[best]))
    small = Rounding(Picture(picture.pixels[:40, :40]), wanted, device)
    assert small.sampled_fraction == 1


def test_psnr_is_measured_on_the_whole_picture_if_its_parts_are_invisible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sampled parts of this picture have alpha 0."""
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 64)
    monkeypatch.setattr(chunked, "MIN_SAMPLE_PIXELS", 64)
    pixels = np.zeros((128, 128, 4), np.uint8)
    pixels[:4, :4] = 255
    rounding = Rounding(Picture(pixels), Goal("psnr", 30), open_device("numpy"))
    trial = rounding._trial(uniform_network(np.array([9, 9, 9, 0])), [])
    assert trial.psnr == pytest.approx(psnr(pixels, rounding.decoded(trial.network)))
    assert not trial.is_estimate
    assert rounding._nearest([trial]) is trial
    assert rounding.sampled_fraction < 1
