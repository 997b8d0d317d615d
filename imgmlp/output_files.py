"""How every output file is written: whole, or not at all, and nothing is left beside it.

A file grows under another name and is locked until it takes its own. What a process that was
killed left unlocked is removed by the next one that writes the same file.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from imgmlp.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

END = ".tmp"
MANY = 2**10  # names in a folder; one of more is listed once, as it would take long at every file
_left: dict[Path, list[str]] = {}  # what such a folder had then that may have been left
FORCE = "--force replaces it; or choose another name"


def check_output(path: Path, force: bool, hint: str = FORCE) -> None:
    """Refuse, as an OutputError, a file that could not be written or must not be replaced.

    `hint` is for one that exists.
    """
    try:
        check_free(path, force, hint)
        if not path.parent.is_dir():
            raise OutputError(
                f"there is no folder {path.parent}", hint="create it or choose another"
            )
        if is_special(path):
            return
        whole = _followed(path)
        sweep(whole, anew=False)
        with _beside(whole):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def check_free(path: Path, force: bool, hint: str = FORCE) -> None:
    """Refuse, as an OutputError, what must not be replaced, and look no further than at that."""
    there = status(path)
    if there is None:
        return
    if stat.S_ISDIR(there.st_mode):
        raise OutputError(f"{path} is a folder", hint="give the name of a file")
    if stat.S_ISREG(there.st_mode) and not force:
        keep_one_name(path)
        raise OutputError(f"{path} exists already", hint=hint)


def status(path: Path) -> os.stat_result | None:
    """What is where an output goes, or None. Raises OutputError where nobody can tell, as of a name
    that is too long."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unwritable(path, error) from error


def resolved(path: Path) -> Path:
    """The file that a path leads to, past symbolic links; one in a loop of them stays a link."""
    return Path(os.path.realpath(path))  # Path.resolve raises another error in each Python


def _followed(path: Path) -> Path:
    """The file that a path leads to. Raises OSError for a loop of symbolic links."""
    whole = resolved(path)
    if whole.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return whole


def check_distinct(paths: Sequence[Path], inputs: Sequence[Path], hint: str) -> None:
    """Refuse, as an OutputError with this hint, files of one run that are in each other's way."""
    seen = {resolved(path) for path in inputs}
    for path in paths:
        if resolved(path) in seen:
            problem = f"{path} would overwrite another file of this run"
            raise OutputError(problem, hint=hint)
        seen.add(resolved(path))


def digest(path: Path) -> str:
    """Stands for a file's bytes. Raises OSError."""
    with path.open("rb") as stream:
        return _digest_of(stream)


def _digest_of(stream: BinaryIO) -> str:
    """The same of a file that is open, whose rights may keep its owner from opening it."""
    found = hashlib.sha256()
    stream.seek(0)
    while block := stream.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def write_atomically(
    path: Path | str,
    write: Callable[[BinaryIO], object],
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> None:
    """Have `write` fill a file that takes its name only once it is whole and on the disk.

    Just before that `announce` is told its digest, but of what is no file. Whatever goes wrong, the
    old file stays as it was, or none. A new one in its place may be read and written by whom it
    might. Raises OutputError, also for a file that is there by then and must not be replaced.
    """
    path = Path(path)
    try:
        if is_special(path):  # a pipe or a device has no place beside it
            with path.open("wb") as stream:
                write(stream)
            return
        whole = _followed(path)  # a symbolic link keeps pointing at what it names
        sweep(whole, anew=False)
        with _beside(whole) as (temporary, stream):
            with contextlib.suppress(OSError):  # there is none yet, or nobody may be kept out here
                shutil.copymode(whole, temporary)
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
            if announce is not None:
                announce(_digest_of(stream))
            if fcntl is None:  # nor can it be renamed
                stream.close()
            if replace:
                temporary.replace(whole)
            else:
                _name_free(temporary, whole, path)
        _sync_folder(whole.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _name_free(temporary: Path, path: Path, given: Path) -> None:
    """Give a file a name that no other file has. Raises OutputError, which quotes it as `given`."""
    # The name is taken, or the file system (OSError) or Python (AttributeError) has no hard links.
    with contextlib.suppress(OSError, AttributeError):
        os.link(temporary, path)  # unlike a rename, it never replaces a file
        return
    with contextlib.suppress(OSError):
        if filecmp.cmp(temporary, path, shallow=False):  # as the same command may have written it
            return
    check_free(given, force=False)
    temporary.replace(path)


def is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, which is written as it is."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:  # a name that cannot be
        return False


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file that is locked while it is open, and gone afterwards if it is still there."""
    while True:
        temporary = path.parent / f"{_start(path)}{secrets.token_hex(4)}{END}"
        try:  # around opening it, too: Ctrl-C may come as soon as it is there
            with temporary.open("x+b") as stream:
                _lock(stream)
                if temporary.exists():  # nobody took it for a dead one's before it was locked
                    yield temporary, stream
                    return
        finally:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                temporary.unlink()


def keep_one_name(path: Path) -> None:
    """Remove a second name of a whole file, which a process has left that was killed just when it
    had given the first."""
    with contextlib.suppress(OSError):
        if path.stat().st_nlink > 1:  # looking through a folder for each of its files takes long
            sweep(path)


def sweep(path: Path, anew: bool = True) -> None:
    """Remove what killed processes left when they wrote this file.

    Without `anew`, of a folder of many files only what was there when this process first looked.
    """
    path = resolved(path)  # beside what a symbolic link leads to
    start = _start(path)  # which few names have, of folders with many files
    wanted = re.compile(f"{re.escape(start)}[0-9a-f]{{8}}{re.escape(END)}")
    with contextlib.suppress(OSError):
        names = [name for name in _names(path.parent, anew) if name.startswith(start)]
        names = [name for name in names if wanted.fullmatch(name)]
        for left in (path.parent / name for name in names):
            with contextlib.suppress(OSError):  # a living process holds it, or it is gone
                if fcntl is None:
                    left.unlink()
                    continue
                with left.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()


def _names(folder: Path, anew: bool) -> list[str]:
    """Those in a folder; without `anew`, of one with many those that may have been left there."""
    if not anew and folder in _left:
        return _left[folder]
    names = os.listdir(folder)
    if len(names) > MANY:
        _left[folder] = [name for name in names if name.endswith(END)]
    return names


def _start(path: Path) -> str:
    # Short enough for any file system, whatever the length of the name.
    return f".{path.name[:40]}."


def _lock(stream: BinaryIO) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):  # where there are no locks, nothing is swept either
            fcntl.flock(stream, fcntl.LOCK_EX)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can, and the file itself is safe
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    long = error.errno == errno.ENAMETOOLONG
    hint = "choose a shorter name" if long else "choose another place"
    return OutputError(f"cannot write {path}: {reason}", hint=hint)
