"""Errors and warnings about what was asked for: each names the line that asked.

That is the innermost one outside of this package, and of what Python calls it by.

Nothing here costs anything until something is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import TypeVar

PACKAGE = str(Path(__file__).parents[2]) + os.sep
# What stands between two calls of this package, or of Python itself.
BETWEEN = functools.__file__, contextlib.__file__, copy.__file__, "<frozen"
E = TypeVar("E", bound=Exception)


class OutOfBoundsError(IndexError, ValueError):
    """An index that no element has: an IndexError, and a wrong argument as any other."""


def misuse(kind: type[E], message: str) -> E:
    """An error to raise, its message followed by the file and line of the caller's code."""
    place = user_line(sys._getframe(1))
    return kind(f"{message} ({place})" if place else message)


def warn(message: str, kind: type[Warning]) -> None:
    """A warning that names the line which asked, however far down it is noticed."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def user_line(frame: FrameType | None) -> str:
    """`file:line` of the innermost call from outside of this package, or nothing."""
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((PACKAGE, *BETWEEN))
