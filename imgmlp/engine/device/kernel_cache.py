"""The directory in which PoCL, the CPU driver, caches compiled kernels; all processes share it.

Each kind of processor has its own directory: machines with different processors may share a home
directory, and machine code of another processor may crash the process. (PoCL makes the name that it
compiles for a part of its file names.) probe.py and runtime/program_cache.py keep files there too.

PoCL does not lock the directory, so whoever compiles holds a lock. If PoCL cannot write a whole
file, it ends the process, so whoever compiles first checks that there is enough space.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imgmlp.engine.device.pocl import CPUINFO, processor_flags
from imgmlp.errors import ImgmlpWarning

try:
    import platformdirs as _platformdirs
except ImportError:  # it comes with pyopencl, but may have been removed since
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
SILENT_WAIT = 5.0  # seconds of waiting for the lock before a warning tells of it
PRIVATE_PREFIX = "imgmlp-pocl-"  # of the names of directories that belong to one process
MIN_FREE_BYTES = 8 << 20  # the largest file of a kernel that was seen had 0.3 MB
# Errors of file systems that cannot reserve space, where the C library does not emulate it.
UNSUPPORTED_ERRORS = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
PROCESSOR_FOLDER = re.compile("processor-[0-9a-f]{16}")  # names of directories for one processor
# Fields of /proc/cpuinfo that identify a processor and do not change, on x86-64 and ARM.
IDENTIFYING_FIELDS = {
    "vendor_id", "cpu family", "model", "model name", "stepping",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
}  # fmt: skip
LOCK_NAME = "imgmlp.lock"  # of the file that is locked while compiling
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# First bytes of LLVM bitcode, which has two forms, and of machine code.
BITCODE_MAGIC, ELF_MAGIC = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b"), b"\x7fELF"
# Where the header of a 64-bit ELF file has the offset of the section table, which is at the end of
# the file, the size of an entry, and the number of entries.
SECTION_TABLE_FIELDS = (0x28, 0x30), (0x3A, 0x3C), (0x3C, 0x3E)
MAX_LEFTOVER_AGE = 3600.0  # seconds; older files that a process left behind are removed
MAX_PRIVATE_AGE = 2 * 86_400.0  # seconds; the same for the directory of one process


def choose_cache() -> None:
    """Set PoCL's environment variable to a writable directory; PoCL reads it when it starts."""
    for folder in (cache_folder(), _user_cache()):
        path = folder and _processor_folder(folder)
        if path is not None and has_space(path):
            os.environ["POCL_CACHE_DIR"] = str(path)
            _remove_leftovers(path)
            _check_after_boot(path)
            return
    with contextlib.suppress(OSError):  # compiling will report that there is no directory
        _remove_old_private()
        private = tempfile.mkdtemp(prefix=PRIVATE_PREFIX)
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ["POCL_CACHE_DIR"] = private


def _remove_old_private() -> None:
    """Remove directories of processes that were killed; a running process creates its own again."""
    for path in Path(tempfile.gettempdir()).glob(f"{PRIVATE_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process has removed it
            if time.time() - path.lstat().st_mtime > MAX_PRIVATE_AGE:
                shutil.rmtree(path, ignore_errors=True)


def _processor_folder(folder: Path) -> Path:
    """The directory of this processor inside `folder`, which may be one of a processor already.

    The directory of one process has no further directories.
    """
    if folder.name.startswith(PRIVATE_PREFIX):
        return folder
    if PROCESSOR_FOLDER.fullmatch(folder.name):
        folder = folder.parent
    return folder / f"processor-{processor_digest()}"


@functools.cache
def processor_digest() -> str:
    """16 hexadecimal digits that differ between processors that may need different machine code."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = [f"model name: {platform.processor()}"]
    identity = {line for line in lines if line.partition(":")[0].strip() in IDENTIFYING_FIELDS}
    text = "\n".join([platform.machine(), *sorted(identity), *sorted(processor_flags())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path | None:
    """The directory that was chosen; None if there is none."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    return Path(chosen) if chosen else None


def is_private() -> bool:
    """Whether compiled kernels are cached for this process only, as no better directory exists."""
    place = cache_folder()
    return place is not None and place.name.startswith(PRIVATE_PREFIX)


def _user_cache() -> Path | None:
    if platformdirs is None:
        return None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    path = Path(platformdirs.user_cache_dir("imgmlp", appauthor=False)) / "pocl"
    # A home directory that does not exist is not created.
    return path if home.is_dir() or path.parents[1].is_dir() else None


def has_space(path: Path) -> bool:
    """Create a directory if needed; returns whether a compiled kernel can be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            _reserve(file.fileno())
            return True
    except OSError:
        return False


def _reserve(handle: int) -> None:
    """Raise OSError if a file cannot grow to MIN_FREE_BYTES: by a full disk, a quota or a limit."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, MIN_FREE_BYTES)
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRORS:
            raise


def was_removed(path: Path) -> bool:
    """Whether a directory was removed or replaced since its lock was taken."""
    return not (path / LOCK_NAME).exists()


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, as other processes may read or write it. Raises OSError."""
    part = path.with_name(f"{path.stem}.{os.getpid()}-{threading.get_ident()}")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _remove_leftovers(path: Path) -> None:
    """Remove what ended processes left: PoCL's empty temporary file, and their directories."""
    stale = time.time() - MAX_LEFTOVER_AGE
    for left in path.glob(f"{PRIVATE_PREFIX}*"):
        with contextlib.suppress(OSError):  # its process may be removing it
            if left.stat().st_mtime < stale:
                shutil.rmtree(left, ignore_errors=True)
    for left in path.glob("tempfile_*"):
        with contextlib.suppress(OSError):
            state = left.stat()
            if state.st_size == 0 and state.st_mtime < stale:
                left.unlink(missing_ok=True)


def _check_after_boot(path: Path) -> None:
    """Remove damaged files once after each boot, as power may have been lost before it."""
    with contextlib.suppress(OSError):  # not Linux, or nothing can be written
        boot, stamp = BOOT_ID.read_text("utf-8"), path / "imgmlp-boot"
        if _read(stamp) == boot:
            return
        with locked(path / LOCK_NAME):
            if _read(stamp) != boot:
                _remove_damaged(path)
                write_whole(stamp, boot)


def remove_damaged(path: Path) -> None:
    """Remove truncated compiled programs, which PoCL then compiles again.

    PoCL does not check files; loading a damaged one ends the process.
    """
    with locked(path / LOCK_NAME):
        _remove_damaged(path)


def _remove_damaged(path: Path) -> None:
    for program in path.glob("??/*/"):
        parts = [program / "program.bc", *program.glob("*/*/*.so")]
        if any(part.exists() and not _is_whole(part) for part in parts):
            shutil.rmtree(program, ignore_errors=True)


def _is_whole(part: Path) -> bool:
    """Whether a file is LLVM bitcode, or machine code that is as long as its header says."""
    try:
        with part.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if part.suffix == ".bc":
        return head[:4] in BITCODE_MAGIC
    if not head.startswith(ELF_MAGIC):
        return size > 0 and sys.platform != "linux"
    begin, entry, count = (int.from_bytes(head[a:b], "little") for a, b in SECTION_TABLE_FIELDS)
    return len(head) == 64 and begin + entry * count <= size


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


@contextlib.contextmanager
def locked(path: Path, timeout: float = LOCK_TIMEOUT, holder: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file; continue without it after `timeout` seconds, or if files
    cannot be locked.

    If the wait takes longer than SILENT_WAIT, an ImgmlpWarning names `holder`, if that is given.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("ab"))
            begun = time.monotonic()
            while fcntl is not None and (waited := time.monotonic() - begun) < timeout:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if holder and waited > SILENT_WAIT:
                        warnings.warn(f"waiting for {holder}", ImgmlpWarning, stacklevel=4)
                        holder = ""  # once
                    time.sleep(0.01)
        yield
