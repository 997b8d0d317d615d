"""Looking for the file that is nearest to a target among those that one number chooses between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from imgmlp.codec.training.target import Goal

TRIALS = 12  # numbers that are tried


class Trial(Protocol):
    """Something that could be the result."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def psnr(self) -> float:
        """dB; NaN where the target does not ask."""


T = TypeVar("T", bound=Trial)


def halved(
    wanted: Goal, start: T, ends: tuple[float, float], make: Callable[[float], T]
) -> list[T]:
    """Trials between two ends, of which the upper one gives more, until the target is hit.

    None if `start` hits it already.
    """
    (low, high), latest = ends, start
    tried: list[T] = []
    while len(tried) < TRIALS and not wanted.hit_by(latest.size, latest.psnr):
        middle = (low + high) / 2
        latest = make(middle)
        tried.append(latest)
        low, high = (low, middle) if too_much(wanted, latest) else (middle, high)
    return tried


def too_much(wanted: Goal, trial: Trial) -> bool:
    """Whether less would do, in bytes or dB."""
    return (trial.psnr if wanted.kind == "psnr" else trial.size) > wanted.value


def nearest(wanted: Goal, trials: list[T]) -> T:
    return min(trials, key=lambda trial: wanted.distance(trial.size, trial.psnr))
