"""What was written into a folder, remembered there: one line of JSON for each output.

Lines are only added, each at once and as a whole, so that a process may end at any moment. A line
that is damaged, or of another version, is passed over; of several for one output the last counts.
Whoever reads it may have forgotten all of it: then a file is one that nobody knows.
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
LONGEST = 2**16  # bytes of a line


@dataclass(frozen=True)
class Done:
    """An output that was written: of what, and what it was like."""

    output: str  # relative to the folder
    source: str  # absolute
    bytes: int  # of the source file
    mtime: int  # likewise, nanoseconds
    picture: str  # digest of the source file
    settings: str  # digest
    output_bytes: int
    output_mtime: int
    output_digest: str
    facts: dict[str, Any] = field(default_factory=dict)  # for JSON


_KINDS = {one.name: {"str": str, "int": int}.get(str(one.type), dict) for one in fields(Done)}


def looked_at(path: Path) -> tuple[tuple[int, int], str]:
    """(bytes, nanoseconds of the last change) and digest of a file. Raises UsageError."""
    try:
        status = path.stat()
        return (status.st_size, status.st_mtime_ns), digest(path)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise UsageError(problem, hint="check the file") from error


class Journal:
    """The journal of a folder, which need not be there until something is added."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.damaged = 0  # lines that were passed over
        self._read = 0  # bytes of whole lines that were read
        self._whole = False  # whether the file is known to end with a whole line

    def read(self, news: bool = False) -> Iterator[Done]:
        """All outputs, oldest first, or only `news` since the last time.

        Raises OutputError if there is a journal nobody can read.
        """
        at = self._read if news else 0
        self.damaged = 0
        if is_special(self.path):  # which whoever opens it may wait for without end
            problem = f"cannot read {self.path}: it is a pipe or a device"
            raise OutputError(problem, hint="remove it, or choose another folder")
        try:
            with self.path.open("rb") as stream:
                stream.seek(at)
                while line := stream.readline(LONGEST):
                    at += len(line)
                    if line.endswith(b"\n"):  # else somebody is writing it
                        self._read = at
                    if line.strip() and (entry := _parsed(line)) is not None:
                        yield entry
                    elif line.strip():
                        self.damaged += 1
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"cannot read {self.path}: {error.strerror}"
            raise OutputError(problem, hint="check its permissions, or remove it") from error

    def add(self, done: Done) -> None:
        """Remember an output from now on. Raises OutputError."""
        line = json.dumps({"version": VERSION} | vars(done)).encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if not self._whole:  # another process may have ended in the middle of its line
                    line = b"\n" + line
                self._whole = False
                while line:  # a disk that gets full takes a part of it first
                    line = line[os.write(handle, line) :]
                self._whole = True
                with contextlib.suppress(OSError):  # not every system can
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            problem = f"cannot write {self.path}: {error.strerror}"
            raise OutputError(problem, hint="free some space, or choose another folder") from error


def _parsed(line: bytes) -> Done | None:
    try:
        values = json.loads(line)
        if not isinstance(values, dict) or values.pop("version") != VERSION:
            return None
        known = {name: values[name] for name in _KINDS}
        if not all(isinstance(known[name], kind) for name, kind in _KINDS.items()):
            return None
        os.fsencode(known["output"])  # which raises where no file can have the name
        json.dumps(known["facts"], allow_nan=False)  # or what is told of it would be no JSON
    except (ValueError, KeyError, RecursionError):
        return None
    return Done(**known)
