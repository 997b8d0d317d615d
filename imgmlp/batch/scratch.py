"""Temporary folders for single files. If a process is killed, the next one removes its folder.

A folder is locked as long as a process works in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from imgmlp.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows, where no folders are removed
    fcntl = None  # type: ignore[assignment]

PREFIX = "imgmlp-store-"  # of the folders' names


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder, which is removed at the end of the context. Raises OutputError."""
    remove_abandoned()
    while True:
        with writing():
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            with _locked(path, wait=True):
                if path.exists():  # else another process removed it before it was locked
                    yield path
                    return
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Translate OSErrors of writing there to OutputError."""
    try:
        yield
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: BaseException) -> OutputError:
    """The error to raise if a folder cannot be written to."""
    reason = getattr(error, "strerror", None) or error
    problem = f"cannot write into the worker's temporary folder {tempfile.tempdir or ''}: {reason}"
    hint = "free some space there, or start the worker with another folder in TMPDIR"
    return OutputError(problem, hint=hint)


@cache
def remove_abandoned() -> None:
    """Remove the folders of killed processes, once per process."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with _locked(path, wait=False) as is_locked:
                if is_locked:
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a folder within the context; yields whether it is locked.

    It is not if it was removed, another process holds it, or the system has no locks.
    """
    handle, is_locked = -1, False
    if fcntl is not None:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_locked = True
    try:
        yield is_locked
    finally:
        if handle >= 0:
            os.close(handle)
