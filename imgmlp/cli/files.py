"""What several commands do with files: check their names, read them, and take them in turn.

Loads neither NumPy nor a codec, so that a look at files is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import Stored, check_not_compressed, open_stored
from imgmlp.errors import (
    DeviceError,
    Interrupted,
    UsageError,
    problem_of,
)
from imgmlp.interrupt import unblocked
from imgmlp.output_files import is_special
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, write_data

STANDARD = Path("-")  # stdin or stdout
MOST_BYTES = 2**30  # of what is no file

Entry = dict[str, Any]  # what a JSON report says of a file


def check_names(sources: Sequence[Path], output: Path | None) -> None:
    """Refuse, as a UsageError, options that leave open which file gets which name."""
    if not sources:
        raise UsageError("no files were given", hint="name files or folders")
    if output is not None and len(sources) > 1:
        hint = "leave it out to write beside the sources, or use --out for a folder"
        raise UsageError("-o names one file, and there are several sources", hint=hint)
    if STANDARD in sources and len(sources) > 1:
        hint = "give either - or files"
        raise UsageError("- is standard input and cannot be combined with files", hint=hint)


def check_one_place(output: Path | None, folder: Path | None) -> None:
    """Refuse, as a UsageError, one name for the output and a folder for outputs as well."""
    if output is not None and folder is not None:
        raise UsageError("-o and --out are both given", hint="choose one of them")


def output_of(source: Path, output: Path | None, ending: str) -> Path:
    """Where to write what becomes of a file: as was asked for, or beside it with another ending.

    What comes from standard input goes to standard output.
    """
    if output is not None or source == STANDARD:
        return output or STANDARD
    return source.with_name(f"{source.stem}{ending}")


def check_terminal(what: str, example: str) -> None:
    """Refuse, as a UsageError, to write to a terminal what it cannot show."""
    if sys.stdout is not None and sys.stdout.isatty():
        hint = f"redirect it to a file: {example}"
        raise UsageError(f"a terminal cannot show {what}", hint=hint)


def check_json(as_json: bool, what: str) -> None:
    """Refuse, as a UsageError, JSON beside an output that goes to stdout itself."""
    if as_json:
        problem = f"--json and the {what} cannot both go to standard output"
        raise UsageError(problem, hint="leave out --json, or give a file with -o")


def check_picture(path: Path) -> None:
    """Refuse what is no file, or one of imgmlp's own, before others take their time.

    Raises UsageError or PictureError.
    """
    if path == STANDARD:
        return
    try:
        if path.is_dir():
            raise UsageError(f"{path} is not a file", hint="give a file")
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint="check the name")
        if not path.is_file():
            return  # a pipe, which can be read only once
        with path.open("rb") as stream:
            start = stream.read(len(container.SIGNATURE))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the file") from error
    check_not_compressed(path, named(path), start)


def stored(path: Path) -> Stored:
    """The picture in a compressed file, a pipe or standard input. Raises as `open_stored`."""
    return open_stored(read(path), named(path)) if is_stream(path) else open_stored(path)


def is_stream(path: Path) -> bool:
    """Whether it can be read only once: standard input or a pipe."""
    return path == STANDARD or is_special(path)


def named(path: Path) -> str:
    """A file's name for people."""
    return "standard input" if path == STANDARD else str(path)


def read(path: Path) -> bytes:
    """All bytes of a pipe or of standard input. Raises UsageError."""
    stream = sys.stdin.buffer if path == STANDARD and sys.stdin is not None else None
    if path == STANDARD and (stream is None or stream.isatty()):
        hint = "redirect a file to it, like `imgmlp encode - < photo.png`"
        raise UsageError("nothing was sent to standard input", hint=hint)
    try:
        with unblocked(), path.open("rb") if stream is None else stream as source:
            data = source.read(MOST_BYTES + 1)
    except OSError as error:
        problem = f"cannot read {named(path)}: {error.strerror}"
        raise UsageError(problem, hint="check the file") from error
    if len(data) > MOST_BYTES:
        problem = f"{named(path)} has more than {MOST_BYTES:,} bytes"
        raise UsageError(problem, hint="save it as a file first")
    return data


def write_standard(data: bytes | memoryview) -> None:
    """Write the bytes of a file to standard output. Raises OutputError."""
    with unblocked():
        write_data(data)


@dataclass(eq=False)
class Job:
    """What is to be done with one file, and what there is to tell of it as JSON."""

    entry: Entry
    do: Callable[[], None]
    check: Callable[[], None] = lambda: None  # before the work on any of them begins

    def attempt(self, terminal: Terminal, what: Callable[[], None]) -> int:
        """The exit code of it. Raises Interrupted and KeyboardInterrupt."""
        try:
            what()
        # Also a fault, which the other files need not suffer from.
        except (KeyboardInterrupt, Exception) as error:
            problem = problem_of(error)
            self.entry |= problem.facts()
            if isinstance(problem, Interrupted):
                raise
            return terminal.fail(problem)
        return 0


def answer(terminal: Terminal, jobs: Sequence[Job]) -> None:
    """Print what there is to tell of files as JSON. Raises OutputError."""
    terminal.answered = True
    print_data(json.dumps([job.entry for job in jobs], indent=2))


def one_by_one(
    terminal: Terminal,
    jobs: Sequence[Job],
    as_json: bool,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Do the work for several files, whatever becomes of the others; returns the exit code.

    That is the error's own for one file; 1 if some of several failed. A device that fails would do
    so for all, and ends it. The entries are printed if JSON is wanted. Raises Interrupted, also
    after a file that was done although somebody asked to stop.
    """
    for job in jobs:
        job.entry["problem"] = "not done"
    codes = [job.attempt(terminal, job.check) for job in jobs]
    try:
        for number, job in enumerate(jobs):
            if codes[number]:
                continue
            if should_stop():
                hint = "the same command continues with the others"
                raise Interrupted(f"stopped after {number} of {len(jobs)} files", hint=hint)
            codes[number] = job.attempt(terminal, job.do)
            if codes[number] == 0:
                job.entry["problem"] = None
            if codes[number] == DeviceError.exit_code:
                return DeviceError.exit_code
    finally:
        if as_json:
            answer(terminal, jobs)
    return codes[0] if len(codes) == 1 else int(any(codes))
