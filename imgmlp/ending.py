"""The end of a process that has a device open.

Drivers of graphics cards take one or two seconds to give a device and its memory back piece by
piece; the system takes all of it at once when a process ends. Knows no devices.

What is registered with `atexit` after this module was loaded is done as ever; what was before is
left undone, as the last is done first. So it is loaded before modules that have something to write.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn, TypeVar

T = TypeVar("T")

_held: list[object] = []
_codes: list[int] = []  # that this process ends with, once it does


def held(thing: T) -> T:
    """The same, which stays until this process ends, or until another one is held."""
    _held[:] = [thing]
    return thing


def leave(code: int) -> NoReturn:
    """End this process with an exit code as sys.exit does, but where something is held leave that
    to the system.
    """
    ends_well(code)
    sys.exit(code)


def ends_well(code: int = 0) -> None:
    """Say that this process is about to end, and with which exit code."""
    _codes[:] = [code]


def _end() -> None:
    """What comes last, after threads that Python waits for."""
    if _held and _codes and _flushed():  # otherwise Python tells what is wrong, as it ends
        os._exit(_codes[0])


def _flushed() -> bool:
    """Whether all that was said is written."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except Exception:
        return False
    return True


atexit.register(_end)
