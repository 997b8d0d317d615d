"""Looks for the file that is nearest to a target, among those that one number chooses between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from imgmlp.codec.training.target import Goal

MAX_TRIALS = 12
MAX_PSNR = 100.0  # dB that a lossless file is taken to have, instead of infinity
AIMED_BYTES_FRACTION = 0.985  # of the bytes wanted, so that what comes near to it keeps them
# Where no file has the wanted PSNR, up to MAX_PSNR_SACRIFICE is given up for fewer bytes if twice
# the bytes bring less than PSNR_PER_DOUBLING, about half of what they bring to larger models.
MAX_PSNR_SACRIFICE = 0.3
PSNR_PER_DOUBLING = 2.5
# Interpolation stays this far inside of the interval, as a fraction of it.
MIN_INTERVAL_FRACTION, MAX_INTERVAL_FRACTION = 0.05, 0.95


class Trial(Protocol):
    """Something that could be the result."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def psnr(self) -> float:
        """dB; NaN where the target does not depend on it."""


T = TypeVar("T", bound=Trial)


def approached(
    goal: Goal,
    start: T,
    ends: tuple[float, float],
    make: Callable[[float], T],
    enough: Callable[[], bool] = lambda: False,
) -> list[T]:
    """The trials that are made between two numbers until one of them hits the target.

    The upper end gives more bytes or dB than the lower one. `start` is the trial of one end: the
    upper one if it is too much. There are no trials if it hits the target already, and no more once
    `enough` says so. The next number is by turns where a line through the nearest trials on either
    side meets the target, and the middle of what is left.
    """
    (low, high), latest = ends, start
    trials: list[T] = []
    over = excess(goal, start)
    excesses = {high if over > 0 else low: over}
    while len(trials) < MAX_TRIALS and low < high:
        if goal.hit_by(latest.size, latest.psnr) or enough():
            break
        number = (low + high) / 2
        if low in excesses and high in excesses and len(trials) % 2 == 0:
            crossing = excesses[low] / (excesses[low] - excesses[high])
            crossing = min(max(crossing, MIN_INTERVAL_FRACTION), MAX_INTERVAL_FRACTION)
            number = low + (high - low) * crossing
        latest = make(number)
        trials.append(latest)
        excesses[number] = excess(goal, latest)
        low, high = (low, number) if excesses[number] > 0 else (number, high)
    return trials


def excess(goal: Goal, trial: Trial) -> float:
    """dB, or natural logarithm of bytes, above the target."""
    if goal.kind == "psnr":
        return trial.psnr - goal.value
    return math.log(trial.size / (AIMED_BYTES_FRACTION * goal.value))


def is_too_much(goal: Goal, trial: Trial) -> bool:
    """Whether less would do, in bytes or dB."""
    return excess(goal, trial) > 0


def nearest(goal: Goal, trials: list[T]) -> T:
    """The trial that is nearest to the target.

    Where none has the dB wanted, one with hardly less than the most may take far fewer bytes: finer
    steps bring little to networks that lack training.
    """
    best = min(trials, key=lambda trial: goal.distance(trial.size, trial.psnr))
    if goal.kind != "psnr" or goal.misses(best.size, best.psnr) is None:
        return best
    similar = (trial for trial in trials if best.psnr - trial.psnr <= MAX_PSNR_SACRIFICE)
    return min(similar, key=lambda trial: PSNR_PER_DOUBLING * math.log2(trial.size) - trial.psnr)
