"""What a page says of its results."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from imgmlp.report.copies import Shown
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import Quality
from imgmlp.report.summary import (
    in_words,
    mean,
    means,
    ms_ssim,
    psnr,
    saving,
    seconds,
    shared,
    ssim,
    without_lossless,
)

SHOWN = Shown.own("image/x", b"")


def result(codec: str, rate: float, bpp: float, decibels: float, took: float = 1.0) -> Result:
    quality = Quality(decibels, 0.9, None)
    return Result(codec, rate, "", 1, bpp, quality, took, took / 10, SHOWN)


def picture(times: float) -> Measured:
    """imgmlp's files have so many times the bytes of JPEG's of the same quality."""
    points = [(rate, 20 + 10 * rate) for rate in (0.2, 0.4, 0.8)]
    own = [result(OURS, rate, times * rate, quality) for rate, quality in points]
    others = [result("jpeg420", rate, rate, quality, 3.0) for rate, quality in points]
    return Measured("a", 8, 8, SHOWN, [*own, *others])


def test_saving_is_the_mean_of_the_savings_of_each_picture() -> None:
    result = saving([picture(0.5), picture(1.25)], "jpeg420", psnr)
    assert result is not None
    assert (result.least, result.most) == pytest.approx((-0.5, 0.25))
    assert (result.mean, result.pictures) == (pytest.approx(-0.125), 2)
    assert saving([picture(0.5)], "jpeg420", ms_ssim) is None
    assert saving([picture(0.5)], "jpeg420", ssim) is None  # no quality rises


def test_means_cover_the_files_of_a_rate_or_all_files() -> None:
    every = [picture(0.5), picture(1.5)]
    assert means(every, OURS, (0.2, 0.4), psnr) == [
        (pytest.approx(0.2), pytest.approx(22)),
        (pytest.approx(0.4), pytest.approx(24)),
    ]
    assert mean(every, OURS, psnr) == pytest.approx((22 + 24 + 28) / 3)
    assert mean(every, OURS, ms_ssim) is None
    assert seconds(every, "jpeg420") == (3.0, pytest.approx(0.3))


def test_means_of_all_codecs_cover_the_same_files() -> None:
    """A lossless file of one codec leaves out that size of the picture for every codec."""
    own, *others = picture(0.5).results
    exact = replace(own, quality=replace(own.quality, psnr=math.inf))
    every = [picture(0.5), Measured("b", 8, 8, SHOWN, [exact, *others])]
    for codec in (OURS, "jpeg420"):
        assert mean(every, codec, psnr) == pytest.approx((22 + 2 * 24 + 2 * 28) / 5)
        assert len(shared(every, psnr)) == 10
    bpp = [means(every, codec, (0.2,), psnr)[0][0] for codec in (OURS, "jpeg420")]
    assert bpp == pytest.approx([0.1, 0.2])
    assert without_lossless(every).startswith(", PSNR without 1 of 6 sizes,")
    assert means(every[1:], "jpeg420", (0.2,), psnr)  # a single picture: each point is a file


def test_relative_differences_are_described_in_words() -> None:
    assert [in_words(difference) for difference in (-0.224, 0.06, 0.001)] == [
        "22% fewer",
        "6% more",
        "as many",
    ]
