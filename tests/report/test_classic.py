"""Other codecs through Pillow: at a setting, and with as many bytes as wanted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import small_pixels

from imgmlp.image import limits_of, psnr
from imgmlp.report import classic
from imgmlp.report.classic import CODECS, SizeSearch, encode, usable

PIXELS = np.tile(small_pixels(), (3, 3, 1))


def test_all_codecs_are_usable_with_the_optional_dependencies() -> None:
    assert usable() == CODECS


@pytest.mark.parametrize("key", CODECS)
@pytest.mark.parametrize("channels", [1, 3])
def test_higher_quality_gives_more_bytes_and_a_higher_psnr(key: str, channels: int) -> None:
    codec, pixels = usable()[key], PIXELS[:, :, :channels]
    low, high = (encode(codec, pixels, q) for q in (codec.sweep[0], codec.sweep[-1]))
    assert low.pixels.shape == pixels.shape
    assert low.pixels.dtype == np.uint8
    assert len(low.bytes) < len(high.bytes)
    assert psnr(pixels, low.pixels) < psnr(pixels, high.pixels)


@pytest.mark.parametrize("key", CODECS)
def test_size_search_gives_a_file_for_any_target_size(key: str) -> None:
    search = SizeSearch(usable()[key], PIXELS)
    few, many = search.nearest(1), search.nearest(10**9)
    assert len(few.bytes) < 1000 < len(many.bytes)
    assert many.quality >= 99


@pytest.mark.parametrize("key", ["jpeg420", "webp", "avif"])
def test_longest_side_that_a_codec_encodes_is_the_limit(key: str) -> None:
    codec = CODECS[key]
    max_side = limits_of(codec.format).max_side
    assert encode(codec, np.zeros((1, max_side, 3), np.uint8), 10).pixels.shape[1] == max_side
    with pytest.raises((OSError, ValueError)):
        encode(codec, np.zeros((1, max_side + 1, 3), np.uint8), 10)


@pytest.mark.parametrize("key", ["jpeg420", "webp"])
def test_size_search_finds_the_file_nearest_to_the_target(key: str) -> None:
    codec = CODECS[key]
    low, high = codec.qualities
    every = [len(encode(codec, PIXELS, q).bytes) for q in range(low, high + 1)]
    search = SizeSearch(codec, PIXELS)
    for wanted in (200, 900, 1500, 3000, 10**6):
        size = len(search.nearest(wanted).bytes)
        best = min(abs(math.log(other_size / wanted)) for other_size in every)
        assert abs(math.log(size / wanted)) == pytest.approx(best, abs=0.02), wanted


def test_size_search_copes_with_sizes_that_do_not_rise_with_quality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neighbouring qualities are encoded too. Of equal sizes, the smallest error decides."""
    sizes = {50: 60, 25: 20, 37: 30, 43: 38, 46: 42, 44: 39, 45: 41, 47: 40, 48: 40}

    def made_up(_codec: classic.Classic, pixels: np.ndarray, quality: int) -> classic.Coded:
        other = pixels ^ np.uint8(1 if quality == 48 else 2)
        return classic.Coded(quality, bytes(sizes.get(quality, quality)), other, 0.0, 0.0)

    monkeypatch.setattr(classic, "encode", made_up)
    assert SizeSearch(CODECS["webp"], PIXELS).nearest(40).quality == 48


def test_size_search_encodes_each_quality_once(monkeypatch: pytest.MonkeyPatch) -> None:
    qualities = []

    def counted(codec: classic.Classic, pixels: np.ndarray, quality: int) -> classic.Coded:
        qualities.append(quality)
        return encode(codec, pixels, quality)

    monkeypatch.setattr(classic, "encode", counted)
    search = SizeSearch(CODECS["jpeg420"], PIXELS)
    for wanted in (900, 901, 1500, 900):
        search.nearest(wanted)
    assert len(qualities) == len(set(qualities)) <= 28


def test_codecs_that_pillow_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "JXL_PLUGIN", "no_such_plugin")
    old = {"tune": "unheard-of"}
    codec = classic.Classic("AVIF", "AVIF", "", {"advanced": old}, (50,))
    monkeypatch.setitem(CODECS, "avif", codec)
    lossless = classic.Classic("AVIF", "AVIF", "", {"advanced": {"tune": "iq"}}, (50,), (0, 100))
    monkeypatch.setitem(CODECS, "avif444", lossless)
    usable.cache_clear()
    try:
        assert usable().keys() == CODECS.keys() - {"jxl", "avif", "avif444"}
    finally:
        usable.cache_clear()
