"""Where PoCL, the CPU driver, keeps compiled kernels: a directory that all processes share.

It writes there without a lock of its own, so whoever compiles holds one; and where it cannot write
all of a file it ends the process, so whoever compiles looks for room first.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import platformdirs as _platformdirs
except ImportError:  # it comes with pyopencl, and without that nothing is compiled
    platformdirs: Any = None
else:
    platformdirs = _platformdirs

try:
    import fcntl as _fcntl
except ImportError:  # Windows, where PoCL has no wheel and other drivers guard their own caches
    fcntl: Any = None
else:
    fcntl = _fcntl

LOCK_TIMEOUT = 120.0  # seconds; the longest cold compilation seen took under 10
PRIVATE = "imgmlp-pocl-"  # how names of directories for one process begin
ROOM = 8 << 20  # bytes; the largest file that a kernel was seen to need had 0.3 MB
# What file systems answer that do not reserve room, where the C library does not do it for them.
CANNOT_SAY = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
STALE_AFTER = 3600.0  # seconds after which an empty file that PoCL left behind is swept away


def choose_cache() -> None:
    """Point PoCL at a directory that can be written; it reads the variable when it starts."""
    for path in (current(), _user_cache()):
        if path is not None and has_room(path):
            os.environ["POCL_CACHE_DIR"] = str(path)
            _sweep(path)
            return
    with contextlib.suppress(OSError):  # whoever compiles will say that there is no place
        private = tempfile.mkdtemp(prefix=PRIVATE)
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ["POCL_CACHE_DIR"] = private


def current() -> Path | None:
    """The directory that was chosen, if there was one."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    return Path(chosen) if chosen else None


def is_private() -> bool:
    """Whether compiled kernels are kept for this process only, for want of a better place."""
    found = current()
    return found is not None and found.name.startswith(PRIVATE)


def _user_cache() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:
        return None
    path = Path(platformdirs.user_cache_dir("imgmlp", appauthor=False)) / "pocl"
    # A home that does not exist is not ours to make.
    return path if home.is_dir() or path.parents[1].is_dir() else None


def has_room(path: Path) -> bool:
    """Whether what a kernel is compiled to can be written to a directory, which is made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            _reserve(file.fileno())
            return True
    except OSError:
        return False


def _reserve(handle: int) -> None:
    """Raise OSError if a file cannot have ROOM; it knows of full disks, quotas and limits."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, ROOM)
    except OSError as error:
        if error.errno not in CANNOT_SAY:
            raise


def _sweep(path: Path) -> None:
    """Remove the empty files of which PoCL leaves one for each process."""
    with contextlib.suppress(OSError):
        for left in path.glob("tempfile_*"):
            state = left.stat()
            if state.st_size == 0 and state.st_mtime < time.time() - STALE_AFTER:
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, or go on without it where that cannot be had."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("ab"))
            deadline = time.monotonic() + LOCK_TIMEOUT
            while fcntl is not None and time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        yield
