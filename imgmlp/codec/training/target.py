"""The target of an encoding and the training effort for it, independent of any codec."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from imgmlp.errors import UsageError
from imgmlp.text import enumeration

Kind = Literal["lambda", "bytes", "psnr"]

DEFAULT_QUALITY = 60.0
DEFAULT_EFFORT = 5
DEFAULT_EFFORT_STEPS = 60_000  # of the MLP codec, as all steps and batches here
# Pixels in a step, in multiples of the usual batch: of the default effort and of those above it.
BATCH_FACTORS = (1, 2, 3, 5, 8)
MIN_BYTES_FRACTION = 0.98  # of a target in bytes: a file that has fewer could be nearer to it
PSNR_TOLERANCE = 0.1  # dB
MAX_TARGET_BYTES = 2**27
_SUFFIXES = {"": 1, "k": 1000, "m": 1_000_000}


@dataclass(frozen=True)
class Goal:
    """A target: a number of bytes, dB, or a lambda.

    Lambda is the squared error on [0, 1] that is traded for one bit per pixel.
    """

    kind: Kind
    value: float

    def __str__(self) -> str:
        if self.kind == "bytes":
            return f"{self.value:,.0f} bytes"
        return f"{self.value:g} dB" if self.kind == "psnr" else f"lambda {self.value:.3g}"

    def misses(self, size: int, psnr: float) -> str | None:
        """How a file of this size and quality misses the target, or None.

        More dB than wanted, or fewer bytes, are no miss: some pictures exceed the dB even in their
        smallest file, and others need fewer bytes to be reproduced exactly.
        """
        if self.kind == "bytes" and size > self.value:
            return f"{size:,} bytes instead of {self.value:,.0f}"
        if self.kind == "psnr" and self.value - psnr > PSNR_TOLERANCE:
            return f"{psnr:.2f} dB instead of {self.value:g}"
        return None

    def hit_by(self, size: int, psnr: float) -> bool:
        """Whether a file is so near to the target that there is no need to look for another."""
        if self.kind == "psnr":
            return abs(psnr - self.value) <= PSNR_TOLERANCE
        enough = math.isinf(psnr) or size >= MIN_BYTES_FRACTION * self.value
        return self.kind == "lambda" or (enough and size <= self.value)

    def distance(self, size: int, psnr: float) -> tuple[bool, float]:
        """A key to sort files by, the best first: (misses the target, how far it is off).

        Of files that have the wanted dB, the smallest is the best. Of files within the wanted
        bytes, it is the one with the most dB, or the largest if these are not known (NaN).
        """
        if self.kind == "bytes" and size <= self.value and not math.isnan(psnr):
            return False, -psnr
        if self.kind == "bytes":
            return size > self.value, abs(size - self.value)
        if self.kind == "psnr":
            missing = self.value - psnr
            return (True, missing) if missing > PSNR_TOLERANCE else (False, size)
        return False, 0.0


def choose(
    pixels: int,
    quality: float | None = None,
    bpp: float | None = None,
    size: str | None = None,
    psnr: float | None = None,
    lmbda: float | None = None,
) -> Goal:
    """The target that the options give, or the default quality. Raises UsageError."""
    given = {"--quality": quality, "--bpp": bpp, "--bytes": size, "--psnr": psnr, "--lambda": lmbda}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{enumeration(names)} are several targets", hint="give one of them")
    if size is not None:
        return Goal("bytes", parse_bytes(size))
    if bpp is not None:
        return Goal("bytes", max(1, math.floor(_within("--bpp", bpp, 1e-4, 64) * pixels / 8)))
    if psnr is not None:
        return Goal("psnr", _within("--psnr", psnr, 5, 60))
    if lmbda is not None:
        return Goal("lambda", _within("--lambda", lmbda, 1e-6, 1))
    wanted = _within("--quality", DEFAULT_QUALITY if quality is None else quality, 0, 100)
    return Goal("lambda", 2e-2 * 200 ** (-wanted / 100))


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}", hint=f"use a value from {low:g} to {high:g}")
    return value


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it: 20000, 20k, 1.5M. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,6}))?([kKmM]?)[bB]?", text)
    count = rest = 0
    if match is not None:
        digits = match[2] or ""  # after the decimal point
        parts = int(match[1] + digits) * _SUFFIXES[match[3].lower()]
        count, rest = divmod(parts, 10 ** len(digits))
    if rest or not 1 <= count <= MAX_TARGET_BYTES:
        hint = f"write it like 20000, 20k or 1.5M: whole bytes, from 1 to {MAX_TARGET_BYTES:,}"
        raise UsageError(f"--bytes is {text!r}", hint=hint)
    return count


@dataclass(frozen=True)
class Workload:
    """How long to train: a number of steps of a given batch size, or a number of seconds.

    A target quality may take several networks. Each of them is trained for `steps`, but `seconds`
    are for all of them together.
    """

    steps: int
    seconds: float | None = None
    batch_factor: int = 1  # pixels in a step, in multiples of the usual batch

    def within(self, seconds: float | None, pace: Callable[[int], float]) -> tuple[int, int]:
        """(steps, batch factor) of a run, which is to fit in `seconds` if they are not None.

        `pace` gives the seconds of a step by its batch factor. Where there is time for more than
        the default effort's steps, larger batches make better use of it.
        """
        if seconds is None:
            return self.steps, self.batch_factor
        steps, batch_factor = 0, 1
        for batch_factor in BATCH_FACTORS:
            steps = max(1, int(seconds / pace(batch_factor)))
            if steps <= DEFAULT_EFFORT_STEPS:
                break
        return steps, batch_factor


def workload(level: int | None, seconds: float | None) -> Workload:
    """The workload of an effort from 1 to 9, by default DEFAULT_EFFORT.

    Up to the default each level doubles the steps. Above it batches grow instead: they help as much
    as more steps do, and a GPU takes hardly more time for them. Raises UsageError.
    """
    level = DEFAULT_EFFORT if level is None else level
    if not 1 <= level <= 9:
        raise UsageError(f"--effort is {level}", hint="use a whole number from 1 to 9")
    more = level - DEFAULT_EFFORT
    return Workload(
        int(DEFAULT_EFFORT_STEPS * 2.0 ** min(more, 0)), seconds, BATCH_FACTORS[max(more, 0)]
    )
