"""Summaries of results: means over pictures, and bytes for the same quality."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from imgmlp.report.curves import Point, mean_bd_rate
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import decibels

Measure = Callable[[Result], float | None]  # of a file's quality; higher is better


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
    """The BD-rate of imgmlp against another codec, as a fraction."""

    mean: float  # over the pictures
    least: float
    most: float
    pictures: int  # for which it can be computed


def saving(measured: Sequence[Measured], codec: str, measure: Measure) -> Saving | None:
    """The saving over all pictures for which both curves have a common range of quality."""
    bd_rates = []
    for number, one in enumerate(measured):
        ours, theirs = (_points(one, number, key, measure) for key in (OURS, codec))
        if (bd_rate := mean_bd_rate(ours, theirs, {str(number)})) is not None:
            bd_rates.append(bd_rate)
    if not bd_rates:
        return None
    return Saving(fmean(bd_rates), min(bd_rates), max(bd_rates), len(bd_rates))


def _points(one: Measured, number: int, codec: str, measure: Measure) -> list[Point]:
    points = []
    for result in one.results:
        if result.codec == codec and (quality := measure(result)) is not None:
            points.append(Point(codec, str(number), str(result.rate), result.bpp, quality))
    return points


def means(
    measured: Sequence[Measured], codec: str, rates: Sequence[float], measure: Measure
) -> list[tuple[float, float]]:
    """(bits per pixel, quality) at each rate, means over the same pictures for every codec."""
    is_single = len(measured) == 1  # then every point is a file
    results = measured[0].results if is_single else shared(measured, measure)
    points = []
    for rate in rates:
        chosen = [r for r in results if r.codec == codec and r.rate == rate]
        pairs = [(r.bpp, q) for r in chosen if (q := measure(r)) is not None]
        if pairs:
            points.append((fmean(b for b, _ in pairs), fmean(q for _, q in pairs)))
    return points


def mean(measured: Sequence[Measured], codec: str, measure: Measure) -> float | None:
    """The mean of a codec's files over the same sizes and pictures as for every other codec."""
    values = [
        q for r in shared(measured, measure) if r.codec == codec and (q := measure(r)) is not None
    ]
    return fmean(values) if values else None


def shared(measured: Sequence[Measured], measure: Measure) -> list[Result]:
    """The files of those sizes of pictures for which every codec has the measure."""
    complete = [files for files in sizes(measured) if None not in map(measure, files)]
    return [result for files in complete for result in files]


def sizes(measured: Sequence[Measured]) -> list[list[Result]]:
    """The files of all codecs, for each rate of each picture."""
    groups: dict[tuple[int, float], list[Result]] = {}
    for number, one in enumerate(measured):
        for result in one.results:
            groups.setdefault((number, result.rate), []).append(result)
    return list(groups.values())


def without_lossless(measured: Sequence[Measured]) -> str:
    """The end of a sentence on what mean PSNRs leave out; empty if they leave out nothing."""
    groups = sizes(measured)
    count = sum(any(map(lossless, files)) for files in groups)
    if not count:
        return ""
    return f", PSNR without {count} of {len(groups)} sizes, at which a file is lossless"


def seconds(measured: Sequence[Measured], codec: str) -> tuple[float, float]:
    """Median seconds of encoding and decoding."""
    results = of_codec(measured, codec)
    return median(r.encode_seconds for r in results), median(r.decode_seconds for r in results)


def of_codec(measured: Sequence[Measured], codec: str) -> list[Result]:
    return [r for one in measured for r in one.results if r.codec == codec]


def in_words(difference: float) -> str:
    """A relative difference as 22% fewer, 6% more or as many."""
    percent = round(100 * abs(difference))
    return f"{percent}% {'fewer' if difference < 0 else 'more'}" if percent else "as many"
