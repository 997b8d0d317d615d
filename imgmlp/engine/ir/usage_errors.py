"""Errors about what was asked for: each names the line that asked, outside of this package.

Nothing here costs anything until something is wrong.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import TypeVar

PACKAGE = str(Path(__file__).parents[2]) + os.sep
E = TypeVar("E", bound=Exception)


class OutOfBoundsError(IndexError, ValueError):
    """An index that no element has: an IndexError, and a wrong argument as any other."""


def misuse(kind: type[E], message: str) -> E:
    """An error to raise, its message followed by the file and line of the caller's code."""
    place = user_line(sys._getframe(1))
    return kind(f"{message} ({place})" if place else message)


def user_line(frame: FrameType | None) -> str:
    """`file:line` of the innermost call from outside of this package, or nothing."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((PACKAGE, "<frozen")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
