"""The end of a process that has a device open.

Drivers of graphics cards take one or two seconds to give a device and its memory back piece by
piece; the system takes all of it at once when a process ends. Knows no devices.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn, TypeVar

T = TypeVar("T")

_held: list[object] = []


def held(thing: T) -> T:
    """The same, which stays until this process ends, or until another one is held."""
    _held[:] = [thing]
    return thing


def leave(code: int) -> NoReturn:
    """End this process with an exit code as sys.exit does, but where something is held leave that
    to the system.
    """
    if _held and _is_alone() and _flushed():
        atexit._run_exitfuncs()
        if _flushed():  # what these had to say
            os._exit(code)
    sys.exit(code)


def _is_alone() -> bool:
    """Whether there is no thread that Python would wait for."""
    return all(t.daemon or t is threading.main_thread() for t in threading.enumerate())


def _flushed() -> bool:
    """Whether all that was said is written; otherwise Python tells what is wrong, as it ends."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except Exception:
        return False
    return True
