"""What goes to the standard streams, and numbers as people read them.

Loads next to nothing, so that a look at a file is quick.
"""

from __future__ import annotations

import io
import os
import re
import select
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from imgmlp.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ASCII = str.maketrans({"×": "x", "✓": "*", "…": "...", "–": "-", "µ": "u", "λ": "lambda "})
# What moves the cursor, ends a line or turns the writing round: names of files may hold any of it.
_MOVING = (*range(32), *range(127, 160), 0x2028, 0x2029)
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = str.maketrans(
    {code: chr(code).encode("unicode_escape").decode() for code in (*_MOVING, *_TURNING)}
)


def ascii_only(text: str) -> str:
    """Text without the few characters beyond ASCII that imgmlp writes."""
    return text.translate(_ASCII)


def encodes_unicode(stream: object) -> bool:
    """Whether a text stream takes any character."""
    encoding: str | None = getattr(stream, "encoding", None)
    return (encoding or "").lower().replace("-", "").startswith("utf")


def printable(text: str) -> str:
    """Text whose control characters are written as in Python: one line, and nothing but text."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()


def quoted(path: object) -> str:
    """A file's name as a shell takes it, in a command that people are to copy."""
    name = str(path)
    if name.startswith("-") and name != "-":  # else it would be an option
        name = f"./{name}"
    if printable(name) == name:
        return shlex.quote(name)
    inner = name.replace("\\", "\\\\").replace("'", "\\'")
    # What is no UTF-8 are bytes, which Python has as halves of characters.
    inner = re.sub("[\udc80-\udcff]", lambda found: f"\\x{ord(found[0]) - 0xDC00:x}", inner)
    return f"$'{printable(inner)}'"


def by_command(action: str, path: object, command: str) -> str:
    """What to do first with a file, and a command that does it, with the file's name for its {}.

    Pipes and pictures in memory have no name that a command could take: the action alone.
    """
    if not os.path.isfile(str(path)):
        return action
    return f"{action}, for example with `{command.format(quoted(path))}`"


class _Patient(io.FileIO):
    """A stream that waits for its reader, also where whoever opened it asked not to."""

    def write(self, data: ReadableBuffer) -> int:
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _Stream(_Patient):
    """A standard stream that raises no OSError at whoever happens to write.

    Nobody is told that a reader has seen enough, nor of messages that cannot be written: what they
    are about is worth more. Data that cannot be written to stdout are an OutputError.
    """

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is still buffered would fail once more when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                raise _unwritable(error) from error
        return memoryview(data).nbytes


def guard_streams() -> None:
    """From now on this process may write to stdout and stderr, whatever has become of them."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # the place of a closed stream, which a file would take otherwise
    os.close(spare)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        if isinstance(getattr(buffer, "raw", buffer), io.FileIO):  # also no console of Windows
            raw = io.BufferedWriter(_Stream(stream.fileno(), "wb", closefd=False))
            lines = name == "stderr" or stream.isatty()
            # A name that the encoding lacks is shown as well as it can be.
            errors = "backslashreplace" if stream.errors == "strict" else stream.errors
            guarded = io.TextIOWrapper(raw, stream.encoding, errors, line_buffering=lines)
            setattr(sys, name, guarded)


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """stdout, flushed at the end. Raises OutputError if it is closed."""
    if sys.stdout is None:  # by whoever started this process
        raise OutputError("stdout is closed", hint="redirect it to a file")
    yield sys.stdout
    sys.stdout.flush()


def print_data(text: str) -> None:
    """Write lines of data to stdout. Raises OutputError."""
    with standard_output() as stream:
        stream.write((text if encodes_unicode(stream) else ascii_only(text)) + "\n")


def write_data(data: bytes | memoryview) -> None:
    """Write the bytes of a file to stdout. Raises OutputError, also where nobody reads them all."""
    with standard_output() as stream:
        try:
            with io.BufferedWriter(_Patient(stream.fileno(), "wb", closefd=False)) as binary:
                binary.write(data)
        except OSError as error:
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> OutputError:
    problem = f"cannot write to stdout: {error.strerror or error}"
    return OutputError(problem, hint="redirect it elsewhere")


def together(words: Sequence[str]) -> str:
    """Several as a, b and c."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def duration(seconds: float) -> str:
    """Seconds as 3.4 s, 2:05 or 1:02:05."""
    if not seconds < 360_000_000:  # also for NaN and infinity
        return "unknown time"
    if seconds < 59.95:  # which is 60.0
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
