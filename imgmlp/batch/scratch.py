"""A temporary folder for one file, which a process that is killed leaves for the next to remove.

It is locked as long as somebody works in it. Knows neither codecs nor stores.
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
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

START = "imgmlp-store-"  # of the folders' names


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new one, gone afterwards. Raises OutputError."""
    swept()
    while True:
        with writing():
            path = Path(tempfile.mkdtemp(prefix=START))
        try:
            with _locked(path, wait=True):
                if path.exists():  # nobody took it for a dead one's before it was locked
                    yield path
                    return
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Around what is written there. Raises OutputError, which says what to do."""
    try:
        yield
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: BaseException) -> OutputError:
    """What there is to tell where it cannot be written into."""
    reason = getattr(error, "strerror", None) or error
    problem = f"cannot write into the worker's temporary folder {tempfile.tempdir or ''}: {reason}"
    hint = "free some space there, or start the worker with another folder in TMPDIR"
    return OutputError(problem, hint=hint)


@cache
def swept() -> None:
    """Remove, once for each process, what others have left that were killed."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{START}*"):
            with _locked(path, wait=False) as held:
                if held:
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """While a folder is locked; whether it is, as it may be gone or another's, or know no locks."""
    handle, held = -1, False
    if fcntl is not None:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
    try:
        yield held
    finally:
        if handle >= 0:
            os.close(handle)
