"""A quick end for a process that has a device open.

Drivers of graphics cards take one or two seconds to release a device and its memory piece by piece;
the operating system releases all of it at once when a process ends. So a device is kept open, and
the process ends with `os._exit`.

`atexit` calls functions in the reverse order of their registration. Functions that were registered
before this module was imported are therefore skipped, which is why it is imported before modules
that write something at exit.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn, TypeVar

T = TypeVar("T")

_kept_open: list[object] = []  # at most one
_exit_code: list[int] = []  # at most one, which is set when this process is about to end


def keep_open(thing: T) -> T:
    """Keep a device open until this process ends, or until another one is kept; returns it."""
    _kept_open[:] = [thing]
    return thing


def leave(code: int) -> NoReturn:
    """Exit as `sys.exit` does, but leave a device that is kept open to the operating system."""
    announce_exit(code)
    sys.exit(code)


def announce_exit(code: int = 0) -> None:
    """Say that this process is about to end, and with which exit code."""
    _exit_code[:] = [code]


def _exit_quickly() -> None:
    """Called last, after the threads that Python waits for."""
    if _kept_open and _exit_code and _flush_streams():  # else Python reports the problem itself
        os._exit(_exit_code[0])


def _flush_streams() -> bool:
    """Write what is buffered; returns whether that worked."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except Exception:
        return False
    return True


atexit.register(_exit_quickly)
