"""What several commands do with files: check names, read data, and process files in turn.

It imports neither NumPy nor a codec, so that `info` is quick.
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
MAX_STREAM_BYTES = 2**30  # bytes that are read from stdin or a pipe

Entry = dict[str, Any]  # the entry of a file in a JSON report


def check_names(sources: Sequence[Path], output: Path | None) -> None:
    """Raise UsageError if the options do not determine the name of every output."""
    if not sources:
        raise UsageError("no files were given", hint="name files or folders")
    if output is not None and len(sources) > 1:
        hint = "leave it out to write beside the sources, or use --out for a folder"
        raise UsageError("-o names one file, and there are several sources", hint=hint)
    if STANDARD in sources and len(sources) > 1:
        hint = "give either - or files"
        raise UsageError("- is standard input and cannot be combined with files", hint=hint)


def check_single_output(output: Path | None, folder: Path | None) -> None:
    """Raise UsageError for -o together with --out."""
    if output is not None and folder is not None:
        raise UsageError("-o and --out are both given", hint="choose one of them")


def output_of(source: Path, output: Path | None, ending: str) -> Path:
    """The path of the output for a source: as -o says, or beside it with another extension.

    The default for standard input is standard output.
    """
    if output is not None or source == STANDARD:
        return output or STANDARD
    return source.with_name(f"{source.stem}{ending}")


def check_not_terminal(what: str, example: str) -> None:
    """Raise UsageError if stdout is a terminal, which cannot show `what`."""
    if sys.stdout is not None and sys.stdout.isatty():
        hint = f"redirect it to a file: {example}"
        raise UsageError(f"a terminal cannot show {what}", hint=hint)


def check_json(as_json: bool, what: str) -> None:
    """Raise UsageError if JSON and an output would both go to stdout."""
    if as_json:
        problem = f"--json and the {what} cannot both go to standard output"
        raise UsageError(problem, hint="leave out --json, or give a file with -o")


def check_picture(path: Path) -> None:
    """Raise UsageError or PictureError, before any work, for what is not a file or was written by
    imgmlp."""
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
    check_not_compressed(path, display_name(path), start)


def open_file(path: Path) -> Stored:
    """The picture in a compressed file, a pipe or standard input. Raises as `open_stored`."""
    return open_stored(read(path), display_name(path)) if is_stream(path) else open_stored(path)


def is_stream(path: Path) -> bool:
    """Whether a path can be read only once: standard input or a pipe."""
    return path == STANDARD or is_special(path)


def display_name(path: Path) -> str:
    """A file's name in messages."""
    return "standard input" if path == STANDARD else str(path)


def read(path: Path) -> bytes:
    """All bytes of a pipe or of standard input. Raises UsageError."""
    stream = sys.stdin.buffer if path == STANDARD and sys.stdin is not None else None
    if path == STANDARD and (stream is None or stream.isatty()):
        hint = "redirect a file to it, like `imgmlp encode - < photo.png`"
        raise UsageError("nothing was sent to standard input", hint=hint)
    try:
        with unblocked(), path.open("rb") if stream is None else stream as source:
            data = source.read(MAX_STREAM_BYTES + 1)
    except OSError as error:
        problem = f"cannot read {display_name(path)}: {error.strerror}"
        raise UsageError(problem, hint="check the file") from error
    if len(data) > MAX_STREAM_BYTES:
        problem = f"{display_name(path)} has more than {MAX_STREAM_BYTES:,} bytes"
        raise UsageError(problem, hint="save it as a file first")
    return data


def write_standard(data: bytes | memoryview) -> None:
    """Write the bytes of a file to standard output. Raises OutputError."""
    with unblocked():
        write_data(data)


@dataclass(eq=False)
class Job:
    """The work on one file, and its entry in the JSON report."""

    entry: Entry
    do: Callable[[], None]
    check: Callable[[], None] = lambda: None  # called before the work on any file begins

    def attempt(self, terminal: Terminal, action: Callable[[], None]) -> int:
        """Run `do` or `check`; returns the exit code. Raises Interrupted and KeyboardInterrupt."""
        try:
            action()
        # Includes faults of imgmlp, so that the other files are still processed.
        except (KeyboardInterrupt, Exception) as error:
            problem = problem_of(error)
            self.entry |= problem.facts()
            if isinstance(problem, Interrupted):
                raise
            return terminal.fail(problem)
        return 0


def print_entries(terminal: Terminal, jobs: Sequence[Job]) -> None:
    """Print the entries of all files as JSON. Raises OutputError."""
    terminal.has_printed_json = True
    print_data(json.dumps([job.entry for job in jobs], indent=2))


def run_jobs(
    terminal: Terminal,
    jobs: Sequence[Job],
    as_json: bool,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Process several files, even if some of them fail; returns the exit code.

    For a single file this is the code of its error; for several, 1 if any failed. A device error
    ends the run, as it would repeat for every file. With `as_json`, the entries are printed. Raises
    Interrupted if a file's work does, and between two files if `should_stop` says so.
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
            print_entries(terminal, jobs)
    return codes[0] if len(codes) == 1 else int(any(codes))
