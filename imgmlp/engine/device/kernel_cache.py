"""Where PoCL, the CPU driver, keeps compiled kernels: a directory that all processes share.

Each processor has one of its own, as machines with different ones may share a home directory, and
another processor's machine code may end the process. The name that PoCL compiles for is part of its
own names for files. What probe.py finds out about devices is kept there too, and
what runtime/program_cache.py keeps of steps.

PoCL writes there without a lock of its own, so whoever compiles holds one; and where it cannot
write all of a file it ends the process, so whoever compiles looks for room first.
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
PATIENCE = 5.0  # seconds that a wait may take without a word
PRIVATE = "imgmlp-pocl-"  # how names of directories for one process begin
FREE_BYTES = 8 << 20  # bytes; the largest file that a kernel was seen to need had 0.3 MB
# What file systems answer that do not reserve room, where the C library does not do it for them.
CANNOT_SAY = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
OWN = re.compile("processor-[0-9a-f]{16}")  # names of directories for one processor
# What /proc/cpuinfo says of a processor that stays the same, on x86-64 and ARM.
IDENTITY = {
    "vendor_id", "cpu family", "model", "model name", "stepping",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
}  # fmt: skip
LOCK = "imgmlp.lock"  # of whoever compiles
BOOT = Path("/proc/sys/kernel/random/boot_id")
BITCODE, ELF = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b"), b"\x7fELF"  # how such files begin
# Where such a file of 64 bits has the offset of its table of sections, the size of an entry, and
# how many there are: it stands at the end.
SECTIONS = (0x28, 0x30), (0x3A, 0x3C), (0x3C, 0x3E)
STALE_AFTER = 3600.0  # seconds after which what a process left behind is swept away
DEAD_AFTER = 2 * 86_400.0  # the same of a whole directory for one process


def choose_cache() -> None:
    """Point PoCL at a directory that can be written; it reads the variable when it starts."""
    for folder in (current(), _user_cache()):
        path = folder and _of_this_processor(folder)
        if path is not None and has_room(path):
            os.environ["POCL_CACHE_DIR"] = str(path)
            _sweep(path)
            _mend_after_boot(path)
            return
    with contextlib.suppress(OSError):  # whoever compiles will say that there is no place
        _sweep_private()
        private = tempfile.mkdtemp(prefix=PRIVATE)
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ["POCL_CACHE_DIR"] = private


def _sweep_private() -> None:
    """Remove directories of processes that were killed; one that still runs makes its own anew."""
    for path in Path(tempfile.gettempdir()).glob(f"{PRIVATE}*"):
        with contextlib.suppress(OSError):  # another process removed it
            if time.time() - path.lstat().st_mtime > DEAD_AFTER:
                shutil.rmtree(path, ignore_errors=True)


def _of_this_processor(folder: Path) -> Path:
    """The directory in a chosen one, which may be that of a processor itself or of a process."""
    if folder.name.startswith(PRIVATE):
        return folder
    if OWN.fullmatch(folder.name):
        folder = folder.parent
    return folder / f"processor-{processor_digest()}"


@functools.cache
def processor_digest() -> str:
    """Differs between processors that may need different machine code."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = [f"model name: {platform.processor()}"]
    told = {line for line in lines if line.partition(":")[0].strip() in IDENTITY}
    text = "\n".join([platform.machine(), *sorted(told), *sorted(processor_flags())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def current() -> Path | None:
    """The directory that was chosen, if there was one."""
    chosen = os.environ.get("POCL_CACHE_DIR")
    return Path(chosen) if chosen else None


def is_private() -> bool:
    """Whether compiled kernels are kept for this process only, for want of a better place."""
    place = current()
    return place is not None and place.name.startswith(PRIVATE)


def _user_cache() -> Path | None:
    if platformdirs is None:
        return None
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
    """Raise OSError if a file cannot have FREE_BYTES; it knows of full disks, quotas and limits."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, FREE_BYTES)
    except OSError as error:
        if error.errno not in CANNOT_SAY:
            raise


def was_removed(path: Path) -> bool:
    """Whether a directory is another one, or none, since somebody began to hold its lock."""
    return not (path / LOCK).exists()


def write_whole(path: Path, text: str) -> None:
    """Give a file its content at once, for others that may read or write it. Raises OSError."""
    part = path.with_name(f"{path.stem}.{os.getpid()}-{threading.get_ident()}")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _sweep(path: Path) -> None:
    """Remove the empty files of which PoCL leaves one for each process, and the directories of
    processes that were ended before they could."""
    stale = time.time() - STALE_AFTER
    for left in path.glob(f"{PRIVATE}*"):
        with contextlib.suppress(OSError):  # as its process may remove it now
            if left.stat().st_mtime < stale:
                shutil.rmtree(left, ignore_errors=True)
    for left in path.glob("tempfile_*"):
        with contextlib.suppress(OSError):
            state = left.stat()
            if state.st_size == 0 and state.st_mtime < stale:
                left.unlink(missing_ok=True)


def _mend_after_boot(path: Path) -> None:
    """Once after each start of the machine, as its last end may have been a loss of power."""
    with contextlib.suppress(OSError):  # not Linux, or what cannot be written
        boot, stamp = BOOT.read_text("utf-8"), path / "imgmlp-boot"
        if _read(stamp) == boot:
            return
        with locked(path / LOCK):
            if _read(stamp) != boot:
                _mend(path)
                write_whole(stamp, boot)


def mend(path: Path) -> None:
    """Remove compiled programs that cannot be whole: PoCL does not look, and ends the process that
    loads one; without them it compiles again."""
    with locked(path / LOCK):
        _mend(path)


def _mend(path: Path) -> None:
    for program in path.glob("??/*/"):
        parts = [program / "program.bc", *program.glob("*/*/*.so")]
        if any(part.exists() and not _is_whole(part) for part in parts):
            shutil.rmtree(program, ignore_errors=True)


def _is_whole(part: Path) -> bool:
    """Whether a file of LLVM's bitcode, or of machine code, begins as it should and has all of what
    its beginning says."""
    try:
        with part.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if part.suffix == ".bc":
        return head[:4] in BITCODE
    if not head.startswith(ELF):
        return size > 0 and sys.platform != "linux"
    begin, entry, count = (int.from_bytes(head[a:b], "little") for a, b in SECTIONS)
    return len(head) == 64 and begin + entry * count <= size


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


@contextlib.contextmanager
def locked(path: Path, timeout: float = LOCK_TIMEOUT, holder: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file, or go on without it where that cannot be had.

    `timeout` is in seconds. An ImgmlpWarning tells of a long wait for `holder`, if that is given.
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
                    if holder and waited > PATIENCE:
                        warnings.warn(f"waiting for {holder}", ImgmlpWarning, stacklevel=4)
                        holder = ""  # once
                    time.sleep(0.01)
        yield
