"""What libraries write to stderr by themselves, kept from there.

libtiff tells so of damage that Pillow does not notice.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

HEARD, TOLD = 2**14, 200  # bytes of it that are looked at, and characters that are told, at most
_LIBRARY = re.compile(r"\w+: ")  # how libtiff's lines begin; threads may write there as well
_ITS_LINE = re.compile(rb"[\w.]+: .*\.\n")  # a whole one, which names a function or a file


@contextmanager
def silent_libraries(silent: bool) -> Iterator[Callable[[], str]]:
    """Hide what libraries write to stderr by themselves, if that is wanted; gives what returns
    the first line of libtiff's so far, "" if there is none."""
    if not silent:
        yield str
        return
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, ValueError, AttributeError):  # closed by whoever started this process
        yield str
        return
    with _scratch() as heard:

        def first() -> str:
            heard.seek(0)
            lines = heard.read(HEARD).decode(errors="replace").splitlines()
            heard.seek(0, io.SEEK_END)  # which stderr shares
            return next((line[:TOLD] for line in lines if _LIBRARY.match(line)), "")

        try:
            os.dup2(heard.fileno(), 2)
            yield first
        finally:
            os.dup2(kept, 2)
            _hand_on(heard, kept)
            os.close(kept)


def _hand_on(heard: IO[bytes], to: int) -> None:
    """What others have written meanwhile, as threads may."""
    heard.seek(0)
    with suppress(OSError):  # stderr leads nowhere, which is none of a picture's faults
        for line in heard.read().splitlines(keepends=True):
            if not _ITS_LINE.fullmatch(line):
                os.write(to, line)


def _scratch() -> IO[bytes]:
    """A file for a moment; one that keeps nothing where there is no place for it."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return open(os.devnull, "w+b", buffering=0)
