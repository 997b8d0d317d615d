"""What goes to standard output, and numbers as people read them.

Loads next to nothing, so that a look at a file is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from imgmlp.errors import OutputError

_ASCII = str.maketrans({"×": "x", "✓": "*", "…": "...", "–": "-", "µ": "u"})


def ascii_only(text: str) -> str:
    """Text without the few characters beyond ASCII that imgmlp writes."""
    return text.translate(_ASCII)


def encodes_unicode(stream: object) -> bool:
    """Whether a text stream takes any character."""
    encoding: str | None = getattr(stream, "encoding", None)
    return (encoding or "").lower().replace("-", "").startswith("utf")


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """stdout, flushed at the end. Raises OutputError if it cannot be written."""
    if sys.stdout is None:  # closed by whoever started this process
        raise OutputError("stdout is closed", hint="send it to a file")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        problem = f"cannot write to stdout: {error.strerror or error}"
        raise OutputError(problem, hint="send it to another place") from error


def print_data(text: str) -> None:
    """Write lines of data to stdout. Raises OutputError."""
    with standard_output() as stream:
        stream.write((text if encodes_unicode(stream) else ascii_only(text)) + "\n")


def duration(seconds: float) -> str:
    """Seconds as 3.4 s, 2:05 or 1:02:05."""
    if not seconds < 360_000_000:  # also for NaN and infinity
        return "unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: float) -> str:
    """Bytes as 812 B, 50.6 kB, 1.2 MB or 3.4 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
