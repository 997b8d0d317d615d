"""What to say, and what would help, where a device has too little memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from imgmlp.engine import AnyDevice, FreeMemory, Need, NumpyDevice, memory_needed
from imgmlp.errors import OutOfMemoryError

T = TypeVar("T")

# What a count's share of memory is a power of, before two of them are known: of a picture's rows.
USUAL = 2.0
SOON = 8  # shares after which it is looked for in the middle
NEAR = 0.004  # by so much below where it should be, so that it fits
MOST = 40.0  # logarithm of a count that no picture has


@dataclass(frozen=True)
class Way:
    """Something that takes less memory if there is less of it: at most as much as now."""

    now: int
    build: Callable[[int, AnyDevice], object]  # all that is needed with so much of it
    advice: Callable[[int], str]  # what to do where so much of it fits


def within_memory(
    work: Callable[[], T], explained: Callable[[OutOfMemoryError], OutOfMemoryError]
) -> T:
    """What `work` returns. Raises what is explained of its OutOfMemoryError."""
    try:
        return work()
    except OutOfMemoryError as error:
        problem = detached(error)
    raise explained(problem)


def detached(error: OutOfMemoryError) -> OutOfMemoryError:
    """The same error without its traceback, which keeps alive what was tried."""
    return OutOfMemoryError(str(error), hint=error.hint)


def explain(
    error: OutOfMemoryError,
    what: str,
    device: AnyDevice,
    build: Callable[[AnyDevice], object],
    ways: Sequence[Way] = (),
) -> OutOfMemoryError:
    """An error that says what was needed, what is there and what would fit, by the memory plan.

    Call it once all that `build` made is gone. The first of the ways that helps gives the advice.
    Where the device can no longer be asked, or plans no memory, the error stays as it is.
    """
    if device.lost or isinstance(device, NumpyDevice):
        return error
    free = device.free_memory()
    try:
        need = memory_needed(build, device)
    except OutOfMemoryError:  # refused before anything was planned: it says why
        return error
    if need.share(free) <= 1:  # it is another kind of memory that there is too little of
        return error
    advice = next(filter(None, (_advice(way, device, free) for way in ways)), "")
    problem = f"{what} needs {_bytes(need)}; {device.info.describe()} has {_bytes(free)} left"
    return OutOfMemoryError(problem, hint=f"{advice}use another device")


def smaller_picture(width: int, height: int, build: Callable[[int, int, AnyDevice], object]) -> Way:
    """A picture of the same form with fewer rows; `build` is given its width and height."""

    def columns(rows: int) -> int:
        return max(1, width * rows // height)

    return Way(
        height,
        lambda rows, device: build(columns(rows), rows, device),
        lambda rows: f"use a picture of at most {columns(rows)}×{rows} pixels",
    )


def _advice(way: Way, device: AnyDevice, free: FreeMemory) -> str:
    count = largest(partial(_share, way, device, free), way.now)
    return f"{way.advice(count)}, or " if count else ""


def largest(share: Callable[[int], float], most: int) -> int:
    """The largest count from 1 to `most` whose share is at most 1, if it grows with the count, to
    one part in 100; 0 if none is.

    A share takes a second, so it is looked for where powers of the count would have it, by the
    latest two that are known; the middle is next where that does not end soon.
    """
    low, high, shares = 0, most + 1, dict[int, float]()
    while high - low > max(1, low // 100):
        near = _crossing(shares) if 0 < len(shares) < SOON else None
        count = low + high >> 1 if shares else most
        if near is not None:
            below = int((1 - NEAR) * near)
            count = below if below > low else low + max(1, low // 100)
        count = min(max(count, low + 1), high - 1)
        shares[count] = share(count)
        low, high = (count, high) if shares[count] <= 1 else (low, count)
    return low


def _crossing(shares: Mapping[int, float]) -> float | None:
    """Where a power of the count that has the latest two shares, or the latest one, comes to 1."""
    latest = [(math.log(n), math.log(s)) for n, s in shares.items() if 0 < s < math.inf][-2:]
    if not latest:
        return None
    (first, one), (last, other) = latest[0], latest[-1]
    power = (other - one) / (last - first) if len(latest) == 2 else USUAL
    return math.exp(min(last - other / power, MOST)) if power > 0 else None


def _share(way: Way, device: AnyDevice, free: FreeMemory, count: int) -> float:
    """Of the free memory that is needed; infinite where it is refused before that is known."""
    try:
        return memory_needed(partial(way.build, count), device).share(free)
    except OutOfMemoryError:
        return math.inf


def _bytes(amount: Need | FreeMemory) -> str:
    return f"{amount.total:,} bytes ({amount.at_once:,} at once)"
