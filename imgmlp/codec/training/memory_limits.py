"""What to say, and what would help, where a device has too little memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from imgmlp.engine import AnyDevice, FreeMemory, Need, NumpyDevice, memory_needed
from imgmlp.errors import OutOfMemoryError

T = TypeVar("T")


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
    if need.fits(free):  # it is another kind of memory that there is too little of
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
    count = largest(partial(_fits, way, device, free), way.now)
    return f"{way.advice(count)}, or " if count else ""


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest count from 1 to `most` that fits, if smaller ones do as well, to one part in 100.

    0 if none does.
    """
    low, high = 0, most + 1
    while high - low > max(1, low // 100):
        middle = low + high >> 1
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(way: Way, device: AnyDevice, free: FreeMemory, count: int) -> bool:
    try:
        return memory_needed(partial(way.build, count), device).fits(free)
    except OutOfMemoryError:
        return False


def _bytes(amount: Need | FreeMemory) -> str:
    return f"{amount.total:,} bytes ({amount.at_once:,} at once)"
