"""One picture by imgmlp at several rates, and by every other codec with the same bytes.

Knows neither how results are shown nor where files of them are kept.
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
from imgmlp.report.classic import Classic, Sized
from imgmlp.report.copies import Shown
from imgmlp.report.metrics import Quality

RATES = (0.16, 0.24, 0.35, 0.5, 0.8)  # bits a pixel
EQUAL = 0.05  # share of the bytes by which files may differ without a word
OURS = "imgmlp"  # its key among those of the other codecs


@dataclass(frozen=True, eq=False)
class Result:
    """One file of one picture."""

    codec: str  # OURS, or a key of classic.CODECS
    rate: float  # bits a pixel that were asked for
    setting: str  # for people
    size: int  # bytes
    bpp: float
    quality: Quality
    encode_seconds: float
    decode_seconds: float
    shown: Shown = field(repr=False)
    note: str | None = None  # what there is to know of it

    def facts(self) -> dict[str, Any]:
        """The same for JSON."""
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
    """A picture, and the files of it: of one rate after the other, imgmlp's first."""

    name: str
    width: int
    height: int
    original: Shown = field(repr=False)
    results: list[Result] = field(repr=False)


@dataclass(frozen=True)
class Job:
    """What is to be compared, and how imgmlp is asked."""

    codec: Codec
    workload: Workload
    device: AnyDevice
    rates: Sequence[float]
    others: dict[str, Classic]

    def goals(self, picture: Picture) -> Iterator[tuple[float, Goal]]:
        """Rates, and the bytes that they are. Raises UsageError."""
        for rate in self.rates:
            yield rate, target.choose(picture.width * picture.height, bpp=rate)


def measure(
    job: Job,
    name: str,
    picture: Picture,
    run_of: Callable[[float, Goal], Run],
) -> Measured:
    """Every file of a picture. `run_of` gives what goes around a training of imgmlp's.

    Raises Interrupted once its state is kept, where that run is asked to stop, and PictureError for
    one that not all of them can hold.
    """
    _check_side(job, name, max(picture.width, picture.height))
    sized = {key: Sized(codec, picture.pixels) for key, codec in job.others.items()}
    results = []
    for rate, goal in job.goals(picture):
        run = run_of(rate, goal)
        ours = _ours(job, picture, rate, goal, run)
        results.append(ours)
        for key, one in sized.items():
            if run.stopping():
                raise run.interrupted(f"{name} at {rate:g} bits per pixel")
            results.append(_theirs(key, job.others[key], one, picture, rate, ours.size))
    original = copies.of(picture.pixels, copies.ORIGINAL)
    return Measured(name, picture.width, picture.height, original, results)


def _check_side(job: Job, name: str, side: int) -> None:
    """Refuse, as a PictureError, one that is too long for a format that the page needs."""
    for form in (*(codec.format for codec in job.others.values()), copies.kind()):
        most = limits_of(form).max_side
        if side > most:
            problem = f"{name} has a side of {side:,} pixels, and {form} at most {most:,}"
            raise PictureError(problem, hint="compare a part of it, or a smaller copy")


def _ours(job: Job, picture: Picture, rate: float, goal: Goal, run: Run) -> Result:
    data, values = _encoded(job, picture, goal, run)
    began = time.perf_counter()
    pixels = open_stored(data).decode(job.device)
    took = time.perf_counter() - began
    return Result(
        OURS,
        rate,
        values["setting"],
        len(data),
        8 * len(data) / (picture.width * picture.height),
        metrics.compare(picture.pixels, pixels),
        values["seconds"],
        took,
        copies.of(pixels, copies.LADDER),
        values["note"],
    )


def _encoded(job: Job, picture: Picture, goal: Goal, run: Run) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file and its figures, also from the checkpoint of an interrupted run."""
    if run.saved is not None and (result := run.saved.result()) is not None:
        return result
    began = time.perf_counter()
    made = encoder.encode(picture, goal, job.workload, job.device, run, job.codec)
    seconds = time.perf_counter() - began
    if made.resumed:  # most of the work was done before
        seconds = max(seconds, float(made.metrics["seconds"]))
    note = None if made.missed is None else f"missed its target: {made.missed}"
    if made.diverged:
        note = "training could not go on: the best state that there was"
    setting = f"λ {made.metrics['lambda']:.2g}, {made.metrics['steps']:,} steps"
    values = {"setting": setting, "seconds": seconds, "note": note}
    if run.should_save(stopping=True):
        run.save(Snapshot.of_result(made.bytes, values))
    return made.bytes, values


def _theirs(
    key: str, codec: Classic, sized: Sized, picture: Picture, rate: float, wanted: int
) -> Result:
    """Another codec's file that is nearest in size to imgmlp's."""
    made = sized.nearest(wanted)
    size = len(made.bytes)
    off = size / wanted - 1
    note = None if abs(off) <= EQUAL else f"{off:+.0%} bytes, its nearest"
    if codec.media is None:
        shown = copies.of(made.pixels, copies.LADDER)
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
