"""Looking for the file that is nearest to a target among those that one number chooses between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from imgmlp.codec.training.target import Goal

TRIALS = 12  # numbers that are tried
MOST_TOLD = 100.0  # dB that a file is taken to have: one that gives all back has no end of them
NEARLY = 0.985  # of the bytes wanted, so that what is near to it keeps them
# Where a quality is missed: dB that are given up for bytes, at most, where twice as many bring so
# few, about half of what they bring to larger models.
GIVEN_UP, BY_BYTES = 0.3, 2.5


class Trial(Protocol):
    """Something that could be the result."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def psnr(self) -> float:
        """dB; NaN where the target does not ask."""


T = TypeVar("T", bound=Trial)


def approached(
    wanted: Goal,
    start: T,
    ends: tuple[float, float],
    make: Callable[[float], T],
    enough: Callable[[], bool] = lambda: False,
) -> list[T]:
    """Trials between two ends, of which the upper one gives more, until the target is hit.

    `start` is the trial of an end, the upper one if it is too much. None if it hits the target
    already, none more once `enough` says so. Every other number is where a line through the nearest
    trials on either side meets the target; the others halve what is left.
    """
    (low, high), latest = ends, start
    tried: list[T] = []
    over = excess(wanted, start)
    known = {high if over > 0 else low: over}  # how much too much each number gives
    while len(tried) < TRIALS and low < high:
        if wanted.hit_by(latest.size, latest.psnr) or enough():
            break
        number = (low + high) / 2
        if low in known and high in known and len(tried) % 2 == 0:
            share = known[low] / (known[low] - known[high])
            number = low + (high - low) * min(max(share, 0.05), 0.95)
        latest = make(number)
        tried.append(latest)
        known[number] = excess(wanted, latest)
        low, high = (low, number) if known[number] > 0 else (number, high)
    return tried


def excess(wanted: Goal, trial: Trial) -> float:
    """How much less would do, in dB or in natural logarithms of bytes."""
    if wanted.kind == "psnr":
        return trial.psnr - wanted.value
    return math.log(trial.size / (NEARLY * wanted.value))


def too_much(wanted: Goal, trial: Trial) -> bool:
    """Whether less would do, in bytes or dB."""
    return excess(wanted, trial) > 0


def nearest(wanted: Goal, trials: list[T]) -> T:
    """The trial that is nearest to the target.

    Where none has the dB asked for, one that has hardly less than the most may take far fewer
    bytes: finer steps bring little to what lacks training.
    """
    found = min(trials, key=lambda trial: wanted.distance(trial.size, trial.psnr))
    if wanted.kind != "psnr" or wanted.misses(found.size, found.psnr) is None:
        return found
    alike = (trial for trial in trials if found.psnr - trial.psnr <= GIVEN_UP)
    return min(alike, key=lambda trial: BY_BYTES * math.log2(trial.size) - trial.psnr)
