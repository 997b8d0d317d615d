"""How a host replays a training step: how much of it at once, how fast it is, how it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from imgmlp.engine import Program

SMOOTHING = 0.99  # share of the past in the smoothed loss
RETRIES = 3  # after numbers exploded, each at half the learning rate of the one before
CHUNK = 250  # steps that are enqueued at once, at most
CHUNK_SECONDS = 0.3  # that a chunk should not exceed, so that an interruption is soon noticed


def next_chunk(chunk: int, seconds: float) -> int:
    """How many steps to replay at once after so many took so many seconds."""
    if seconds > CHUNK_SECONDS:
        return max(1, chunk // 2)
    return min(CHUNK, chunk * 2)


def seconds_a_step(program: Program, most: float) -> float:
    """What a step takes, by a trial of at least so many seconds."""
    program.run(1)  # which may compile for seconds
    program.wait()
    count, seconds = 1, 0.0
    while seconds < most and count < 1000:
        if seconds:  # the first ones take longer, so that this is too few rather than too many
            count = min(math.ceil(count * max(2.0, min(most / seconds, 8.0))), 1000)
        began = time.perf_counter()
        program.run(count)
        program.wait()
        seconds = time.perf_counter() - began
    return seconds / count


def mean_loss(smooth: float, steps: int) -> float:
    """The smoothed loss after so many steps, without the zero that it started from."""
    return smooth / (1 - SMOOTHING**steps)


def decibels(loss: float) -> float:
    """PSNR of a mean squared error on [0, 1]."""
    return -10 * math.log10(max(loss, 1e-12))


def finite(arrays: Iterable[np.ndarray[Any, Any]]) -> bool:
    return all(bool(np.isfinite(a).all()) for a in arrays)
