"""Writing to the standard streams, and formatting of names and numbers for people.

It imports next to nothing, so that `imgmlp info` is quick.
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

_ASCII_REPLACEMENTS = str.maketrans(
    {"×": "x", "✓": "*", "…": "...", "–": "-", "µ": "u", "λ": "lambda "}
)
# File names may hold characters that move the cursor, end a line or change the writing direction.
_CONTROL_CODES = (*range(32), *range(127, 160), 0x2028, 0x2029)
_DIRECTION_CODES = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = str.maketrans(
    {
        code: chr(code).encode("unicode_escape").decode()
        for code in (*_CONTROL_CODES, *_DIRECTION_CODES)
    }
)


def ascii_only(text: str) -> str:
    """Text in which the few non-ASCII characters that imgmlp writes are replaced."""
    return text.translate(_ASCII_REPLACEMENTS)


def encodes_unicode(stream: object) -> bool:
    """Whether a text stream can encode every character."""
    encoding: str | None = getattr(stream, "encoding", None)
    return (encoding or "").lower().replace("-", "").startswith("utf")


def printable(text: str) -> str:
    """Text as one printable line: control characters are escaped as in Python's literals."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def quoted(path: object) -> str:
    """A file name quoted for a shell, in a command that people may copy."""
    name = str(path)
    if name.startswith("-") and name != "-":  # it would be read as an option
        name = f"./{name}"
    if printable(name) == name:
        return shlex.quote(name)
    inner = name.replace("\\", "\\\\").replace("'", "\\'")
    # Python represents bytes that are not UTF-8 by lone surrogates.
    inner = re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:x}", inner)
    return f"$'{printable(inner)}'"


def by_command(action: str, path: object, command: str) -> str:
    """Advice to take an action, and a command for it, in which {} stands for the file's name.

    Pipes and pictures in memory have no name that a command could take: for them, the action alone.
    """
    if not os.path.isfile(str(path)):
        return action
    return f"{action}, for example with `{command.format(quoted(path))}`"


class _BlockingStream(io.FileIO):
    """A stream whose writes wait for the reader, even if its file descriptor is non-blocking."""

    def write(self, data: ReadableBuffer) -> int:
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _GuardedStream(_BlockingStream):
    """A standard stream whose writes raise no OSError.

    It is no error if the reader has closed the pipe, or if messages cannot be written to stderr:
    the work matters more. Data that cannot be written to stdout raise OutputError.
    """

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # Data that are still buffered would fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                raise _unwritable(error) from error
        return memoryview(data).nbytes


def guard_streams() -> None:
    """From now on, writes to stdout and stderr are safe even if these are closed or broken."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # occupies the descriptor of a closed stream, which a file would get otherwise
    os.close(spare)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        if isinstance(getattr(buffer, "raw", buffer), io.FileIO):  # not a Windows console
            raw = io.BufferedWriter(_GuardedStream(stream.fileno(), "wb", closefd=False))
            lines = name == "stderr" or stream.isatty()
            # Escape characters that the encoding lacks, as file names may have them.
            errors = "backslashreplace" if stream.errors == "strict" else stream.errors
            guarded = io.TextIOWrapper(raw, stream.encoding, errors, line_buffering=lines)
            setattr(sys, name, guarded)


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """stdout, flushed at the end. Raises OutputError if it is closed."""
    if sys.stdout is None:  # the parent process has closed it
        raise OutputError("stdout is closed", hint="redirect it to a file")
    yield sys.stdout
    sys.stdout.flush()


def print_data(text: str) -> None:
    """Write lines of data to stdout. Raises OutputError."""
    with standard_output() as stream:
        stream.write((text if encodes_unicode(stream) else ascii_only(text)) + "\n")


def write_data(data: bytes | memoryview) -> None:
    """Write the bytes of a file to stdout. Raises OutputError, also if the reader stops early."""
    with standard_output() as stream:
        try:
            with io.BufferedWriter(_BlockingStream(stream.fileno(), "wb", closefd=False)) as binary:
                binary.write(data)
        except OSError as error:
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> OutputError:
    problem = f"cannot write to stdout: {error.strerror or error}"
    return OutputError(problem, hint="redirect it elsewhere")


def enumeration(words: Sequence[str]) -> str:
    """Words as a list in a sentence: a, b and c."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def duration(seconds: float) -> str:
    """Seconds as 3.4 s, 2:05 or 1:02:05."""
    if not seconds < 360_000_000:  # also true of NaN and infinity
        return "unknown time"
    if seconds < 59.95:  # above, it would be printed as 60.0 s
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
