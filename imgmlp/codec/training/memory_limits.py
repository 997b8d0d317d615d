"""Errors for a device with too little memory, which say what would fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from imgmlp.engine import AnyDevice, FreeMemory, Need, NumpyDevice, memory_needed
from imgmlp.errors import OutOfMemoryError

T = TypeVar("T")

# The search for the largest count that fits assumes that memory is a power of the count. Its
# exponent, until two values are known: pixels grow with the square of a picture's rows.
INITIAL_EXPONENT = 2.0
MAX_INTERPOLATIONS = 8  # then the search bisects
SAFETY_MARGIN = 0.004  # fraction by which a count is below the predicted one, so that it fits
MAX_LOG_COUNT = 40.0  # natural logarithm of a count that no picture reaches


@dataclass(frozen=True)
class Reduction:
    """A way to need less memory: by a smaller count, such as the rows of a picture."""

    present: int  # count, which the advice may not exceed
    build: Callable[[int, AnyDevice], object]  # allocates what is needed with a count
    advice: Callable[[int], str]  # what to do if at most this count fits


def within_memory(
    work: Callable[[], T], explained: Callable[[OutOfMemoryError], OutOfMemoryError]
) -> T:
    """The result of `work`. Its OutOfMemoryError is replaced by what `explained` makes of it."""
    try:
        return work()
    except OutOfMemoryError as error:
        problem = detached(error)
    raise explained(problem)


def detached(error: OutOfMemoryError) -> OutOfMemoryError:
    """The same error without its traceback, which would keep the failed allocations alive."""
    return OutOfMemoryError(str(error), hint=error.hint)


def explain(
    error: OutOfMemoryError,
    what: str,
    device: AnyDevice,
    build: Callable[[AnyDevice], object],
    reductions: Sequence[Reduction] = (),
) -> OutOfMemoryError:
    """An error that says how much memory `what` needs, how much is free, and what would fit.

    Everything that `build` made must have been freed before. The first reduction that helps gives
    the advice. The error stays as it is if the device is lost or does not plan memory.
    """
    if device.lost or isinstance(device, NumpyDevice):
        return error
    free = device.free_memory()
    try:
        need = memory_needed(build, device)
    except OutOfMemoryError:  # it was refused before anything was planned, and says why
        return error
    if need.share(free) <= 1:  # another kind of memory is short
        return error
    advice = next(filter(None, (_advice(one, device, free) for one in reductions)), "")
    problem = f"{what} needs {_bytes(need)}; {device.info.describe()} has {_bytes(free)} left"
    return OutOfMemoryError(problem, hint=f"{advice}use another device")


def smaller_picture(
    width: int, height: int, build: Callable[[int, int, AnyDevice], object]
) -> Reduction:
    """A picture of the same proportions with fewer rows; `build` takes its width and height."""

    def columns(rows: int) -> int:
        return max(1, width * rows // height)

    return Reduction(
        height,
        lambda rows, device: build(columns(rows), rows, device),
        lambda rows: f"use a picture of at most {columns(rows)}×{rows} pixels",
    )


def _advice(reduction: Reduction, device: AnyDevice, free: FreeMemory) -> str:
    count = largest(partial(_memory_fraction, reduction, device, free), reduction.present)
    return f"{reduction.advice(count)}, or " if count else ""


def largest(memory_fraction: Callable[[int], float], most: int) -> int:
    """The largest count from 1 to `most` that fits, to one part in 100; 0 if none does.

    `memory_fraction` gives the fraction of the free memory that a count needs, and must increase
    with the count. As evaluating it takes about a second, the next count is interpolated from the
    latest two fractions. After MAX_INTERPOLATIONS the search bisects.
    """
    low, high, fractions = 0, most + 1, dict[int, float]()
    while high - low > max(1, low // 100):
        predicted = _crossing(fractions) if 0 < len(fractions) < MAX_INTERPOLATIONS else None
        count = low + high >> 1 if fractions else most
        if predicted is not None:
            below = int((1 - SAFETY_MARGIN) * predicted)
            count = below if below > low else low + max(1, low // 100)
        count = min(max(count, low + 1), high - 1)
        fractions[count] = memory_fraction(count)
        low, high = (count, high) if fractions[count] <= 1 else (low, count)
    return low


def _crossing(fractions: Mapping[int, float]) -> float | None:
    """The count at which a power law through the latest two fractions, or one, reaches 1."""
    latest = [(math.log(n), math.log(f)) for n, f in fractions.items() if 0 < f < math.inf][-2:]
    if not latest:
        return None
    (first, one), (last, other) = latest[0], latest[-1]
    exponent = (other - one) / (last - first) if len(latest) == 2 else INITIAL_EXPONENT
    return math.exp(min(last - other / exponent, MAX_LOG_COUNT)) if exponent > 0 else None


def _memory_fraction(
    reduction: Reduction, device: AnyDevice, free: FreeMemory, count: int
) -> float:
    """The fraction of the free memory that a count needs; infinite if it is refused at once."""
    try:
        return memory_needed(partial(reduction.build, count), device).share(free)
    except OutOfMemoryError:
        return math.inf


def _bytes(amount: Need | FreeMemory) -> str:
    return f"{amount.total:,} bytes ({amount.at_once:,} at once)"
