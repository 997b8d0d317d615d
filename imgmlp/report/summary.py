"""What a page says of its results: means over pictures, and bytes for the same quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from imgmlp.report.curves import Point, share_of
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import decibels

Measure = Callable[[Result], float | None]  # the higher, the better a file is


def lossless(result: Result) -> bool:
    return math.isinf(result.quality.psnr)


def psnr(result: Result) -> float | None:
    return None if lossless(result) else result.quality.psnr


def ssim(result: Result) -> float | None:
    return result.quality.ssim


def ms_ssim(result: Result) -> float | None:
    return result.quality.ms_ssim


def ms_ssim_decibels(result: Result) -> float | None:
    ms_ssim = result.quality.ms_ssim
    return None if ms_ssim is None else decibels(ms_ssim)


@dataclass(frozen=True)
class Saving:
    """imgmlp's bytes for the same quality beside another codec's, as a share more or fewer."""

    mean: float  # of each picture's own
    least: float
    most: float
    pictures: int  # of which that much is known


def saving(measured: Sequence[Measured], codec: str, measure: Measure) -> Saving | None:
    """Over all pictures in which curves of both reach some quality in common."""
    shares = []
    for number, one in enumerate(measured):
        ours, theirs = (_points(one, number, key, measure) for key in (OURS, codec))
        if (share := share_of(ours, theirs, {str(number)})) is not None:
            shares.append(share)
    if not shares:
        return None
    return Saving(fmean(shares), min(shares), max(shares), len(shares))


def _points(one: Measured, number: int, codec: str, measure: Measure) -> list[Point]:
    points = []
    for result in one.results:
        if result.codec == codec and (quality := measure(result)) is not None:
            points.append(Point(codec, str(number), str(result.rate), result.bpp, quality))
    return points


def means(
    measured: Sequence[Measured], codec: str, rates: Sequence[float], measure: Measure
) -> list[tuple[float, float]]:
    """(bits a pixel, quality) at each rate, mean of the same pictures for every codec."""
    alone = len(measured) == 1  # of which every point is a file
    every = measured[0].results if alone else shared(measured, measure)
    points = []
    for rate in rates:
        chosen = [r for r in every if r.codec == codec and r.rate == rate]
        known = [(r.bpp, q) for r in chosen if (q := measure(r)) is not None]
        if known:
            points.append((fmean(b for b, _ in known), fmean(q for _, q in known)))
    return points


def mean(measured: Sequence[Measured], codec: str, measure: Measure) -> float | None:
    """Of a codec's files at the same sizes of the same pictures as every other's."""
    known = [
        q for r in shared(measured, measure) if r.codec == codec and (q := measure(r)) is not None
    ]
    return fmean(known) if known else None


def shared(measured: Sequence[Measured], measure: Measure) -> list[Result]:
    """The files of those sizes of pictures at which the measure is known of every codec."""
    whole = [files for files in sizes(measured) if None not in map(measure, files)]
    return [result for files in whole for result in files]


def sizes(measured: Sequence[Measured]) -> list[list[Result]]:
    """The files of each rate of each picture."""
    groups: dict[tuple[int, float], list[Result]] = {}
    for number, one in enumerate(measured):
        for result in one.results:
            groups.setdefault((number, result.rate), []).append(result)
    return list(groups.values())


def without_lossless(measured: Sequence[Measured]) -> str:
    """What a mean PSNR leaves out, as a sentence goes on with it; empty if that is nothing."""
    every = sizes(measured)
    count = sum(any(map(lossless, files)) for files in every)
    if not count:
        return ""
    return f", PSNR without {count} of {len(every)} sizes, at which a file is lossless"


def seconds(measured: Sequence[Measured], codec: str) -> tuple[float, float]:
    """Medians of encoding and decoding."""
    every = of_codec(measured, codec)
    return median(r.encode_seconds for r in every), median(r.decode_seconds for r in every)


def of_codec(measured: Sequence[Measured], codec: str) -> list[Result]:
    return [r for one in measured for r in one.results if r.codec == codec]


def in_words(share: float) -> str:
    """A share as 22% fewer, 6% more or as many."""
    percent = round(100 * abs(share))
    return f"{percent}% {'fewer' if share < 0 else 'more'}" if percent else "as many"
