"""A folder's journal of the outputs that were written into it: a JSON line for each.

Lines are only appended, each in one write, so that a process may be killed at any moment. A line
that is damaged or of another version is ignored; the last one of an output counts. Without a
journal, outputs are treated as files of unknown origin.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from imgmlp.errors import OutputError, UsageError
from imgmlp.output_files import digest, is_special

NAME = ".imgmlp-journal.jsonl"
VERSION = 1
MAX_LINE_BYTES = 2**16


@dataclass(frozen=True)
class Done:
    """An output that was written: its source, settings and state."""

    output: str  # relative to the folder
    source: str  # absolute
    bytes: int  # of the source file
    mtime: int  # of the source file, nanoseconds
    picture: str  # digest of the source file
    settings: str  # digest
    output_bytes: int
    output_mtime: int
    output_digest: str
    facts: dict[str, Any] = field(default_factory=dict)  # for JSON


_KINDS = {one.name: {"str": str, "int": int}.get(str(one.type), dict) for one in fields(Done)}


def status_and_digest(path: Path) -> tuple[tuple[int, int], str]:
    """A file's (bytes, mtime in nanoseconds) and its digest. Raises UsageError."""
    try:
        status = path.stat()
        return (status.st_size, status.st_mtime_ns), digest(path)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise UsageError(problem, hint="check the file") from error


class Journal:
    """The journal of a folder; the folder may not exist until a line is added."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.damaged = 0  # lines that were ignored in the last read
        self._read = 0  # bytes of complete lines that were read
        self._ends_with_line = False  # whether the file is known to end with a complete line

    def read(self, news: bool = False) -> Iterator[Done]:
        """All outputs, oldest first, or only those added since the last read (`news`).

        Raises OutputError if the journal cannot be read.
        """
        at = self._read if news else 0
        self.damaged = 0
        if is_special(self.path):  # opening it might block for ever
            problem = f"cannot read {self.path}: it is a pipe or a device"
            raise OutputError(problem, hint="remove it, or choose another folder")
        try:
            with self.path.open("rb") as stream:
                stream.seek(at)
                while line := stream.readline(MAX_LINE_BYTES):
                    at += len(line)
                    if line.endswith(b"\n"):  # otherwise it is being written
                        self._read = at
                    if line.strip() and (entry := _parse(line)) is not None:
                        yield entry
                    elif line.strip():
                        self.damaged += 1
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"cannot read {self.path}: {error.strerror}"
            raise OutputError(problem, hint="check its permissions, or remove it") from error

    def add(self, done: Done) -> None:
        """Append an output. Raises OutputError."""
        line = json.dumps({"version": VERSION} | vars(done)).encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if not self._ends_with_line:  # another process may have been killed within a line
                    line = b"\n" + line
                self._ends_with_line = False
                while line:  # a disk that becomes full writes a part of it first
                    line = line[os.write(handle, line) :]
                self._ends_with_line = True
                with contextlib.suppress(OSError):  # not all file systems support it
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            problem = f"cannot write {self.path}: {error.strerror}"
            raise OutputError(problem, hint="free some space, or choose another folder") from error


def _parse(line: bytes) -> Done | None:
    try:
        values = json.loads(line)
        if not isinstance(values, dict) or values.pop("version") != VERSION:
            return None
        known = {name: values[name] for name in _KINDS}
        if not all(isinstance(known[name], kind) for name, kind in _KINDS.items()):
            return None
        os.fsencode(known["output"])  # fails if no file can have that name
        json.dumps(known["facts"], allow_nan=False)  # else --json could not print them
    except (ValueError, KeyError, RecursionError):
        return None
    return Done(**known)
