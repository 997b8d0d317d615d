"""Atomic writing of output files: an output is complete or absent, and nothing is left beside it.

The data go to a locked temporary file, which is renamed at the end. A temporary file that a killed
process has left is not locked, and is removed by the next process that writes the same output.
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
except ImportError:  # Windows, where an open file cannot be removed
    fcntl = None  # type: ignore[assignment]

TEMPORARY_SUFFIX = ".tmp"
# Files in a folder above which it is listed only once, as listing it for every output is slow.
LARGE_FOLDER_FILES = 2**10
# Temporary files in each large folder when this process first listed it.
_temporaries_of_large_folders: dict[Path, list[str]] = {}
FORCE_HINT = "--force replaces it; or choose another name"


def check_output(path: Path, force: bool, hint: str = FORCE_HINT) -> None:
    """Raise OutputError for a file that cannot be written or must not be replaced.

    `hint` is the hint of the error if the file exists.
    """
    try:
        check_free(path, force, hint)
        if not path.parent.is_dir():
            raise OutputError(
                f"there is no folder {path.parent}", hint="create it or choose another"
            )
        if is_special(path):
            return
        target = _follow_links(path)
        remove_leftovers(target, relist=False)
        with _temporary_beside(target):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def check_free(path: Path, force: bool, hint: str = FORCE_HINT) -> None:
    """Raise OutputError for what must not be replaced: a folder, or a file without `force`."""
    existing = status(path)
    if existing is None:
        return
    if stat.S_ISDIR(existing.st_mode):
        raise OutputError(f"{path} is a folder", hint="give the name of a file")
    if stat.S_ISREG(existing.st_mode) and not force:
        remove_second_name(path)
        raise OutputError(f"{path} exists already", hint=hint)


def status(path: Path) -> os.stat_result | None:
    """The status of an existing output, or None. Raises OutputError, as for a name too long."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unwritable(path, error) from error


def resolved(path: Path) -> Path:
    """The path with symbolic links followed; within a loop of links, it stays a link."""
    return Path(os.path.realpath(path))  # Path.resolve raises other errors in each Python version


def _follow_links(path: Path) -> Path:
    """The path with symbolic links followed. Raises OSError for a loop of links."""
    target = resolved(path)
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def check_distinct(paths: Sequence[Path], inputs: Sequence[Path], hint: str) -> None:
    """Raise OutputError with this hint if outputs would overwrite an input or each other."""
    seen = {resolved(path) for path in inputs}
    for path in paths:
        if resolved(path) in seen:
            problem = f"{path} would overwrite another file of this run"
            raise OutputError(problem, hint=hint)
        seen.add(resolved(path))


def digest(path: Path) -> str:
    """The SHA-256 digest of a file. Raises OSError."""
    with path.open("rb") as stream:
        return _digest_of(stream)


def _digest_of(stream: BinaryIO) -> str:
    """The SHA-256 digest of an open file; its permissions may not let it be opened again."""
    sha256 = hashlib.sha256()
    stream.seek(0)
    while block := stream.read(1 << 20):
        sha256.update(block)
    return sha256.hexdigest()


def write_atomically(
    path: Path | str,
    write: Callable[[BinaryIO], object],
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> None:
    """Write a file that appears under its name only once it is complete and on the disk.

    `write` fills a temporary file beside it, which is then renamed. If anything fails, an older
    file stays unchanged; if it succeeds, the new file has the older one's permissions. `announce`
    is called with the new file's digest just before it is renamed, unless it is a pipe or a device.
    Raises OutputError, also if `replace` is false and a file of that name has appeared meanwhile.
    """
    path = Path(path)
    try:
        if is_special(path):  # no temporary file can replace a pipe or a device
            with path.open("wb") as stream:
                write(stream)
            return
        target = _follow_links(path)  # a symbolic link stays one
        remove_leftovers(target, relist=False)
        with _temporary_beside(target) as (temporary, stream):
            # There may be no older file, or the file system may not have permissions.
            with contextlib.suppress(OSError):
                shutil.copymode(target, temporary)
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
            if announce is not None:
                announce(_digest_of(stream))
            if fcntl is None:  # Windows cannot rename an open file
                stream.close()
            if replace:
                temporary.replace(target)
            else:
                _rename_without_replacing(temporary, target, path)
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _rename_without_replacing(temporary: Path, path: Path, named_path: Path) -> None:
    """Give a file a name that no other file has. Raises OutputError, which names `named_path`."""
    # The name is taken, or the file system (OSError) or Python (AttributeError) has no hard links.
    with contextlib.suppress(OSError, AttributeError):
        os.link(temporary, path)  # unlike a rename, it never replaces a file
        return
    with contextlib.suppress(OSError):
        # The same command may have been started twice and have written the same bytes.
        if filecmp.cmp(temporary, path, shallow=False):
            return
    check_free(named_path, force=False)
    temporary.replace(path)


def is_special(path: Path) -> bool:
    """Whether the path is a pipe or a device, which is written directly."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:  # an impossible name
        return False


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new temporary file, locked while it is open, and removed at the end unless it was
    renamed."""
    while True:
        name = f"{_temporary_prefix(path)}{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        temporary = path.parent / name
        try:  # includes the opening, as Ctrl-C may come right after it
            with temporary.open("x+b") as stream:
                _lock(stream)
                if temporary.exists():  # no other process removed it before it was locked
                    yield temporary, stream
                    return
        finally:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                temporary.unlink()


def remove_second_name(path: Path) -> None:
    """Remove the temporary name of a complete file.

    A process that is killed between linking the final name and removing the temporary one leaves
    it.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_nlink > 1:  # else there is none, and listing a folder may be slow
            remove_leftovers(path)


def remove_leftovers(path: Path, relist: bool = True) -> None:
    """Remove the temporary files that killed processes left when they wrote this file.

    Without `relist`, of a large folder only those that it had when this process first listed it.
    """
    path = resolved(path)  # temporary files are beside the target of a symbolic link
    prefix = _temporary_prefix(path)  # a cheap test before the regular expression
    pattern = re.compile(f"{re.escape(prefix)}[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}")
    with contextlib.suppress(OSError):
        names = [name for name in _file_names(path.parent, relist) if name.startswith(prefix)]
        names = [name for name in names if pattern.fullmatch(name)]
        for leftover in (path.parent / name for name in names):
            with contextlib.suppress(OSError):  # a running process has locked it, or it is gone
                if fcntl is None:
                    leftover.unlink()
                    continue
                with leftover.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()


def _file_names(folder: Path, relist: bool) -> list[str]:
    """The names in a folder; without `relist`, of a large folder the temporary files of before."""
    if not relist and folder in _temporaries_of_large_folders:
        return _temporaries_of_large_folders[folder]
    names = os.listdir(folder)
    if len(names) > LARGE_FOLDER_FILES:
        _temporaries_of_large_folders[folder] = [n for n in names if n.endswith(TEMPORARY_SUFFIX)]
    return names


def _temporary_prefix(path: Path) -> str:
    """How its temporary files begin: short enough for any file system, however long the name."""
    return f".{path.name[:40]}."


def _lock(stream: BinaryIO) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):  # without locks, no process removes it either
            fcntl.flock(stream, fcntl.LOCK_EX)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can; the file itself is synced
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    is_too_long = error.errno == errno.ENAMETOOLONG
    hint = "choose a shorter name" if is_too_long else "choose another place"
    return OutputError(f"cannot write {path}: {reason}", hint=hint)
