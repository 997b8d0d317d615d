"""Encodes a picture with imgmlp at several rates, and with every other codec to the same bytes.

It knows neither the page nor the places of checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.training import target
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice
from imgmlp.errors import PictureError
from imgmlp.image import Picture, limits_of
from imgmlp.report import copies, metrics
from imgmlp.report.classic import Classic, SizeSearch
from imgmlp.report.copies import Shown
from imgmlp.report.metrics import Quality

RATES = (0.16, 0.24, 0.35, 0.5, 0.8)  # bits per pixel, by default
MAX_SIZE_DIFFERENCE = 0.05  # fraction of the bytes; files that differ more get a note
OURS = "imgmlp"  # the key of imgmlp among those of other codecs


@dataclass(frozen=True, eq=False)
class Result:
    """One file of one picture."""

    codec: str  # OURS, or a key of classic.CODECS
    rate: float  # bits per pixel that were wanted
    setting: str  # a description for people
    size: int  # bytes
    bpp: float
    quality: Quality
    encode_seconds: float
    decode_seconds: float
    shown: Shown = field(repr=False)
    note: str | None = None  # for readers of the page

    def facts(self) -> dict[str, Any]:
        """The result for JSON."""
        quality = self.quality
        return {
            "codec": self.codec,
            "rate": self.rate,
            "setting": self.setting,
            "bytes": self.size,
            "bpp": self.bpp,
            "psnr": None if np.isinf(quality.psnr) else quality.psnr,
            "ssim": quality.ssim,
            "ms_ssim": quality.ms_ssim,
            "encode_seconds": self.encode_seconds,
            "decode_seconds": self.decode_seconds,
            "note": self.note,
        }


@dataclass(frozen=True, eq=False)
class Measured:
    """A picture and its files, sorted by rate; of each rate imgmlp's is first."""

    name: str
    width: int
    height: int
    original: Shown = field(repr=False)
    results: list[Result] = field(repr=False)


@dataclass(frozen=True)
class Comparison:
    """What to compare, and how imgmlp is to encode."""

    codec: Codec
    workload: Workload
    device: AnyDevice
    rates: Sequence[float]
    others: dict[str, Classic]

    def goals(self, picture: Picture) -> Iterator[tuple[float, Goal]]:
        """The rates and their targets in bytes. Raises UsageError."""
        for rate in self.rates:
            yield rate, target.choose(picture.width * picture.height, bpp=rate)


def measure(
    comparison: Comparison,
    name: str,
    picture: Picture,
    start_run: Callable[[float, Goal], Run],
) -> Measured:
    """Make and measure every file of a picture. `start_run` gives the Run of each encoding.

    Raises Interrupted after the state is saved if a run is asked to stop, and PictureError for a
    picture that is too large for one of the codecs.
    """
    _check_side(comparison, name, max(picture.width, picture.height))
    searches = {key: SizeSearch(codec, picture.pixels) for key, codec in comparison.others.items()}
    results = []
    for rate, goal in comparison.goals(picture):
        run = start_run(rate, goal)
        ours = _ours(comparison, picture, rate, goal, run)
        results.append(ours)
        for key, search in searches.items():
            if run.stopping():
                raise run.interrupted(f"{name} at {rate:g} bits per pixel")
            results.append(_theirs(key, comparison.others[key], search, picture, rate, ours.size))
    original = copies.of(picture.pixels, copies.ORIGINAL_QUALITIES)
    return Measured(name, picture.width, picture.height, original, results)


def _check_side(comparison: Comparison, name: str, side: int) -> None:
    """Raise PictureError if a side is too long for a format that the page needs."""
    for form in (*(codec.format for codec in comparison.others.values()), copies.copy_format()):
        max_side = limits_of(form).max_side
        if side > max_side:
            problem = f"{name} has a side of {side:,} pixels, and {form} at most {max_side:,}"
            raise PictureError(problem, hint="compare a part of it, or a smaller copy")


def _ours(comparison: Comparison, picture: Picture, rate: float, goal: Goal, run: Run) -> Result:
    data, figures = _encoded(comparison, picture, goal, run)
    began = time.perf_counter()
    pixels = open_stored(data).decode(comparison.device)
    decode_seconds = time.perf_counter() - began
    return Result(
        OURS,
        rate,
        figures["setting"],
        len(data),
        8 * len(data) / (picture.width * picture.height),
        metrics.compare(picture.pixels, pixels),
        figures["seconds"],
        decode_seconds,
        copies.of(pixels, copies.QUALITIES),
        figures["note"],
    )


def _encoded(
    comparison: Comparison, picture: Picture, goal: Goal, run: Run
) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file and its figures, also from the checkpoint of an interrupted run."""
    if run.saved is not None and (result := run.saved.result()) is not None:
        return result
    began = time.perf_counter()
    made = encoder.encode(
        picture, goal, comparison.workload, comparison.device, run, comparison.codec
    )
    seconds = time.perf_counter() - began
    if made.resumed:  # most of the work was done before
        seconds = max(seconds, float(made.metrics["seconds"]))
    note = None if made.missed is None else f"missed its target: {made.missed}"
    if made.diverged:
        note = "training could not go on: the best state that there was"
    setting = f"λ {made.metrics['lambda']:.2g}, {made.metrics['steps']:,} steps"
    figures = {"setting": setting, "seconds": seconds, "note": note}
    if run.should_save(stopping=True):
        run.save(Snapshot.of_result(made.bytes, figures))
    return made.bytes, figures


def _theirs(
    key: str, codec: Classic, search: SizeSearch, picture: Picture, rate: float, wanted: int
) -> Result:
    """The file of another codec with the size nearest to imgmlp's."""
    made = search.nearest(wanted)
    size = len(made.bytes)
    difference = size / wanted - 1
    note = (
        None if abs(difference) <= MAX_SIZE_DIFFERENCE else f"{difference:+.0%} bytes, its nearest"
    )
    if codec.media is None:
        shown = copies.of(made.pixels, copies.QUALITIES)
    else:
        shown = Shown.own(codec.media, made.bytes)
    return Result(
        key,
        rate,
        f"quality {made.quality}",
        size,
        8 * size / (picture.width * picture.height),
        metrics.compare(picture.pixels, made.pixels),
        made.encode_seconds,
        made.decode_seconds,
        shown,
        note,
    )
