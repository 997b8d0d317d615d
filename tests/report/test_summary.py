"""What a page says of its results."""

from __future__ import annotations

import pytest

from imgmlp.report.copies import Shown
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import Quality
from imgmlp.report.summary import in_words, mean, means, ms_ssim, psnr, saving, seconds, ssim

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


def test_savings_are_the_mean_of_the_pictures_own() -> None:
    found = saving([picture(0.5), picture(1.25)], "jpeg420", psnr)
    assert found is not None
    assert (found.least, found.most) == pytest.approx((-0.5, 0.25))
    assert (found.mean, found.pictures) == (pytest.approx(-0.125), 2)
    assert saving([picture(0.5)], "jpeg420", ms_ssim) is None
    assert saving([picture(0.5)], "jpeg420", ssim) is None  # no quality rises


def test_means_are_of_each_rate_and_of_all_files() -> None:
    every = [picture(0.5), picture(1.5)]
    assert means(every, OURS, (0.2, 0.4), psnr) == [
        (pytest.approx(0.2), pytest.approx(22)),
        (pytest.approx(0.4), pytest.approx(24)),
    ]
    assert mean(every, OURS, psnr) == pytest.approx((22 + 24 + 28) / 3)
    assert mean(every, OURS, ms_ssim) is None
    assert seconds(every, "jpeg420") == (3.0, pytest.approx(0.3))


def test_shares_in_words() -> None:
    assert [in_words(share) for share in (-0.224, 0.06, 0.001)] == [
        "22% fewer",
        "6% more",
        "as many",
    ]
