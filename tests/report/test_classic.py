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


def test_the_extra_brings_all_of_them() -> None:
    assert usable() == CODECS


@pytest.mark.parametrize("key", CODECS)
@pytest.mark.parametrize("channels", [1, 3])
def test_more_quality_is_more_bytes_and_decibels(key: str, channels: int) -> None:
    codec, pixels = usable()[key], PIXELS[:, :, :channels]
    low, high = (encode(codec, pixels, q) for q in (codec.sweep[0], codec.sweep[-1]))
    assert low.pixels.shape == pixels.shape
    assert low.pixels.dtype == np.uint8
    assert len(low.bytes) < len(high.bytes)
    assert psnr(pixels, low.pixels) < psnr(pixels, high.pixels)


@pytest.mark.parametrize("key", CODECS)
def test_there_is_a_file_however_many_bytes_are_wanted(key: str) -> None:
    sized = SizeSearch(usable()[key], PIXELS)
    few, many = sized.nearest(1), sized.nearest(10**9)
    assert len(few.bytes) < 1000 < len(many.bytes)
    assert many.quality >= 99


@pytest.mark.parametrize("key", ["jpeg420", "webp", "avif"])
def test_the_longest_side_is_that_of_the_limits(key: str) -> None:
    codec = CODECS[key]
    most = limits_of(codec.format).max_side
    assert encode(codec, np.zeros((1, most, 3), np.uint8), 10).pixels.shape[1] == most
    with pytest.raises((OSError, ValueError)):
        encode(codec, np.zeros((1, most + 1, 3), np.uint8), 10)


@pytest.mark.parametrize("key", ["jpeg420", "webp"])
def test_the_file_is_the_nearest_that_there_is(key: str) -> None:
    codec = CODECS[key]
    low, high = codec.qualities
    every = [len(encode(codec, PIXELS, q).bytes) for q in range(low, high + 1)]
    sized = SizeSearch(codec, PIXELS)
    for wanted in (200, 900, 1500, 3000, 10**6):
        found = len(sized.nearest(wanted).bytes)
        best = min(abs(math.log(size / wanted)) for size in every)
        assert abs(math.log(found / wanted)) == pytest.approx(best, abs=0.02), wanted


def test_sizes_need_not_rise_with_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of settings near to each other, and of equal sizes the file that differs the least."""
    sizes = {50: 60, 25: 20, 37: 30, 43: 38, 46: 42, 44: 39, 45: 41, 47: 40, 48: 40}

    def made_up(_codec: classic.Classic, pixels: np.ndarray, quality: int) -> classic.Coded:
        other = pixels ^ np.uint8(1 if quality == 48 else 2)
        return classic.Coded(quality, bytes(sizes.get(quality, quality)), other, 0.0, 0.0)

    monkeypatch.setattr(classic, "encode", made_up)
    assert SizeSearch(CODECS["webp"], PIXELS).nearest(40).quality == 48


def test_a_setting_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(codec: classic.Classic, pixels: np.ndarray, quality: int) -> classic.Coded:
        tried.append(quality)
        return encode(codec, pixels, quality)

    monkeypatch.setattr(classic, "encode", counted)
    sized = SizeSearch(CODECS["jpeg420"], PIXELS)
    for wanted in (900, 901, 1500, 900):
        sized.nearest(wanted)
    assert len(tried) == len(set(tried)) <= 28


def test_what_pillow_cannot_do_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
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
