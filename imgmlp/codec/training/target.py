"""What a file is to reach, and how much work that is worth. Knows nothing of how it is reached."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from imgmlp.errors import UsageError
from imgmlp.text import enumeration

Kind = Literal["lambda", "bytes", "psnr"]

QUALITY = 60.0  # if nothing else is wanted
EFFORT = 5
LOWEST_SHARE = 0.98  # of the bytes wanted, from which on a file is near enough to them
TOLERANCE = 0.1  # dB
STEPS = 60_000  # of a run with the default effort
WIDER = (1, 2, 3, 5, 8)  # times the pixels in a step, of it and of the levels above
MOST_BYTES = 2**27
_SUFFIXES = {"": 1, "k": 1000, "m": 1_000_000}


@dataclass(frozen=True)
class Goal:
    """A lambda of bits (lambda: squared error on [0, 1] for a bit a pixel), bytes, or dB."""

    kind: Kind
    value: float

    def __str__(self) -> str:
        if self.kind == "bytes":
            return f"{self.value:,.0f} bytes"
        return f"{self.value:g} dB" if self.kind == "psnr" else f"lambda {self.value:.3g}"

    def misses(self, size: int, psnr: float) -> str | None:
        """How a file of this size and quality misses the target, or None.

        More dB than were asked for are no miss, nor are fewer bytes: some pictures have them with
        the smallest file, others need no more.
        """
        if self.kind == "bytes" and size > self.value:
            return f"{size:,} bytes instead of {self.value:,.0f}"
        if self.kind == "psnr" and self.value - psnr > TOLERANCE:
            return f"{psnr:.2f} dB instead of {self.value:g}"
        return None

    def hit_by(self, size: int, psnr: float) -> bool:
        """Whether no other file would be nearer to it."""
        if self.kind == "psnr":
            return abs(psnr - self.value) <= TOLERANCE
        enough = math.isinf(psnr) or size >= LOWEST_SHARE * self.value
        return self.kind == "lambda" or (enough and size <= self.value)

    def distance(self, size: int, psnr: float) -> tuple[bool, float]:
        """The smaller, the better a file is: what keeps the target, then what is near to it.

        Of files that have the dB asked for, the smallest is the best; of those that
        keep the bytes, the one with the most dB, if these are known.
        """
        if self.kind == "bytes" and size <= self.value and not math.isnan(psnr):
            return False, -psnr
        if self.kind == "bytes":
            return size > self.value, abs(size - self.value)
        if self.kind == "psnr":
            missing = self.value - psnr
            return (True, missing) if missing > TOLERANCE else (False, size)
        return False, 0.0


def choose(
    pixels: int,
    quality: float | None = None,
    bpp: float | None = None,
    size: str | None = None,
    psnr: float | None = None,
    lmbda: float | None = None,
) -> Goal:
    """The one target that was asked for, or the default quality. Raises UsageError."""
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
    wanted = _within("--quality", QUALITY if quality is None else quality, 0, 100)
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
        digits = match[2] or ""  # behind the point
        parts = int(match[1] + digits) * _SUFFIXES[match[3].lower()]
        count, rest = divmod(parts, 10 ** len(digits))
    if rest or not 1 <= count <= MOST_BYTES:
        hint = f"write it like 20000, 20k or 1.5M: whole bytes, from 1 to {MOST_BYTES:,}"
        raise UsageError(f"--bytes is {text!r}", hint=hint)
    return count


@dataclass(frozen=True)
class Workload:
    """How long to train: so many steps of so many times the usual pixels, or so many seconds.

    A quality may take several networks, each of which is trained for so many steps; the seconds are
    those of all that may be tried.
    """

    steps: int
    seconds: float | None = None
    wider: int = 1

    def within(self, seconds: float | None, pace: Callable[[int], float]) -> tuple[int, int]:
        """Steps of a run and how wide they are; in `seconds`, if not None.

        `pace` tells the seconds of a step that is so much wider. Time for more than the default
        effort's steps is better spent on wider ones.
        """
        if seconds is None:
            return self.steps, self.wider
        steps, wider = 0, 1
        for wider in WIDER:
            steps = max(1, int(seconds / pace(wider)))
            if steps <= STEPS:
                break
        return steps, wider


def workload(level: int | None, seconds: float | None) -> Workload:
    """Training of an effort from 1 to 9; of none, that of EFFORT.

    Up to that each level doubles the steps. Above it steps get wider: they bring as much
    as more of them, and GPUs take many pixels in little more time than few. Raises UsageError.
    """
    level = EFFORT if level is None else level
    if not 1 <= level <= 9:
        raise UsageError(f"--effort is {level}", hint="use a whole number from 1 to 9")
    more = level - EFFORT
    return Workload(int(STEPS * 2.0 ** min(more, 0)), seconds, WIDER[max(more, 0)])
