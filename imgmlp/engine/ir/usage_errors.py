"""Errors and warnings about a wrong use of the engine. Each names the line of the user's code.

That is the innermost line outside of this package, and outside of Python's and NumPy's modules
through which a call may pass. Nothing here costs anything until there is an error.
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

import numpy as np

PACKAGE = str(Path(__file__).parents[2]) + os.sep
NUMPY = str(Path(np.__file__).parent) + os.sep
# Beginnings of the file names whose frames may lie between this package and the user's code.
INTERMEDIARIES = functools.__file__, contextlib.__file__, copy.__file__, "<frozen", NUMPY
E = TypeVar("E", bound=Exception)


class OutOfBoundsError(IndexError, ValueError):
    """An index out of bounds: an IndexError, and also a ValueError as other wrong arguments are."""


def misuse(kind: type[E], message: str) -> E:
    """An error to raise; the file and line of the user's code are appended to the message."""
    place = user_line(sys._getframe(1))
    return kind(f"{message} ({place})" if place else message)


def warn(message: str, kind: type[Warning]) -> None:
    """Issue a warning that is attributed to the line of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def user_line(frame: FrameType | None) -> str:
    """`file:line` of the innermost frame of the user's code, or "" if there is none."""
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((PACKAGE, *INTERMEDIARIES))
