"""Capture of what libraries write directly to stderr.

libtiff reports there damage that Pillow does not notice.
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

MAX_SEARCHED_BYTES = 2**14  # of the captured text
MAX_MESSAGE_CHARACTERS = 200
# The beginning of a message of libtiff; other threads may write to stderr meanwhile.
_MESSAGE_START = re.compile(r"\w+: ")
_MESSAGE_LINE = re.compile(rb"[\w.]+: .*\.\n")  # a whole one: a function or a file, and a sentence


@contextmanager
def silent_libraries(silent: bool) -> Iterator[Callable[[], str]]:
    """Capture stderr if `silent`. Yields a function that returns libtiff's first message so far, or
    "" if there is none."""
    if not silent:
        yield str
        return
    try:
        sys.stderr.flush()
        original_stderr = os.dup(2)
    except (OSError, ValueError, AttributeError):  # stderr was closed before this process started
        yield str
        return
    with _temporary_file() as captured:

        def first_message() -> str:
            captured.seek(0)
            lines = captured.read(MAX_SEARCHED_BYTES).decode(errors="replace").splitlines()
            captured.seek(0, io.SEEK_END)  # stderr shares the file's position
            return next((s[:MAX_MESSAGE_CHARACTERS] for s in lines if _MESSAGE_START.match(s)), "")

        try:
            os.dup2(captured.fileno(), 2)
            yield first_message
        finally:
            os.dup2(original_stderr, 2)
            _forward_others(captured, original_stderr)
            os.close(original_stderr)


def _forward_others(captured: IO[bytes], stderr: int) -> None:
    """Write what other threads wrote meanwhile to the file descriptor of the original stderr."""
    captured.seek(0)
    with suppress(OSError):  # an unusable stderr does not make a picture unreadable
        for line in captured.read().splitlines(keepends=True):
            if not _MESSAGE_LINE.fullmatch(line):
                os.write(stderr, line)


def _temporary_file() -> IO[bytes]:
    """A temporary file, or the null device if none can be created."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return open(os.devnull, "w+b", buffering=0)
