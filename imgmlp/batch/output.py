"""Writes the output of a task atomically, and never over a file that was changed elsewhere.

Hours may pass between the decision to replace a file and writing it. So the file is compared with
the journal again just before.
"""

from __future__ import annotations

import stat
from pathlib import Path

from imgmlp import output_files
from imgmlp.batch.work import Task
from imgmlp.errors import OutputError

EXTENSION = ".imlp"
REPLACE = "--force replaces it, --skip-existing skips it"


def make_folder(output: Path) -> None:
    """Create the folder of an output. Raises OutputError."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make the folder {output.parent}: {error.strerror}"
        raise OutputError(problem, hint="choose another place with --out") from error


def holds(path: Path, data: bytes) -> bool:
    """Whether a file's content is `data`."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def check(path: Path, force: bool, known: str, hint: str) -> None:
    """Raise OutputError if a file exists that must not be replaced; `hint` is the error's hint.

    With `force` all files may be replaced, otherwise the one whose digest is `known`.
    """
    there = output_files.status(path)
    if force or not known or there is None or not stat.S_ISREG(there.st_mode):
        output_files.check_free(path, force, hint)
        return
    try:
        changed = output_files.digest(path) != known
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise OutputError(problem, hint="check its permissions") from error
    if changed:
        raise OutputError(f"{path} has changed since it was written here", hint=hint)


def check_task(task: Task, hint: str) -> None:
    """`check` for a task's output."""
    assert task.output is not None
    check(task.output, task.replace, task.known, hint)


def put(task: Task, data: bytes, hint: str) -> None:
    """Write the output of a task. Raises OutputError, as `check` does."""
    output = task.output
    assert output is not None
    there = output_files.status(output) is not None  # then check_task decides
    try:
        check_task(task, hint)
        output_files.write_atomically(
            output, lambda stream: stream.write(data), task.replace or there
        )
    except OutputError:
        if not holds(output, data):  # otherwise another process has written the same
            raise
