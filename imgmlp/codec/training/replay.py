"""Helpers for replaying a training step: chunk sizes, timing, and the smoothed loss."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from imgmlp.engine import Program

SMOOTHING = 0.99  # weight of the past in the smoothed loss
MAX_RETRIES = 3  # after a divergence, each with half the learning rate of the one before
MAX_CHUNK = 250  # steps that are enqueued at once
MAX_CHUNK_SECONDS = 0.3  # so that an interruption is noticed soon


def next_chunk(chunk: int, seconds: float) -> int:
    """The next number of steps to enqueue at once, after `chunk` steps took `seconds`."""
    if seconds > MAX_CHUNK_SECONDS:
        return max(1, chunk // 2)
    return min(MAX_CHUNK, chunk * 2)


def seconds_a_step(program: Program, most: float) -> float:
    """Seconds per step, measured for at least `most` seconds or 1,000 steps."""
    program.run(1)  # it may compile for seconds
    program.wait()
    count, seconds = 1, 0.0
    while seconds < most and count < 1000:
        if seconds:  # the first steps are slower, so this underestimates how many fit
            count = min(math.ceil(count * max(2.0, min(most / seconds, 8.0))), 1000)
        began = time.perf_counter()
        program.run(count)
        program.wait()
        seconds = time.perf_counter() - began
    return seconds / count


def mean_loss(smooth: float, steps: int) -> float:
    """The smoothed loss, corrected for its initial value of zero after few steps."""
    return smooth / (1 - SMOOTHING**steps)


def decibels(loss: float) -> float:
    """PSNR of a mean squared error on [0, 1]."""
    return -10 * math.log10(max(loss, 1e-12))


def are_finite(arrays: Iterable[np.ndarray[Any, Any]]) -> bool:
    return all(bool(np.isfinite(a).all()) for a in arrays)
