"""Finds the files that names, folders, patterns and lists stand for.

No file is opened. Files are yielded one by one and not kept, so that there may be any number of
them.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from imgmlp.errors import ImgmlpError, UsageError


def is_folder(path: Path) -> bool:
    """Whether a path is an existing folder; False also for invalid names."""
    return os.path.isdir(path)


def is_pattern(path: Path) -> bool:
    """Whether a name has wildcards and no file has just that name."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def is_pattern_of_any(path: Path) -> bool:
    """Whether a name is a pattern that matches something, or whose folders cannot be read."""
    return is_pattern(path) and any(True for _ in _matches(*_split(str(path))))


@dataclass(frozen=True)
class Found:
    """A file, or a folder that cannot be read."""

    path: Path
    name: Path  # relative to the folder whose tree is mirrored
    bytes: int = 0
    mtime: int = 0  # nanoseconds
    error: ImgmlpError | None = None  # why it cannot be processed


@dataclass
class Search:
    """What to look for, and counts of what was skipped."""

    endings: Collection[str]  # extensions with the dot, in lower case
    recursive: bool = False
    leave_out: Path | None = None  # a folder to skip, that of the outputs
    check: Callable[[Path], None] = lambda _: None  # for named files; raises ImgmlpError
    others: int = 0  # skipped files with other extensions
    folders: int = 0  # skipped subfolders, unless recursive
    links: int = 0  # skipped links to folders, which may form a cycle
    left_out: bool = field(default=False)

    def find(self, sources: Sequence[Path]) -> Iterator[Found]:
        """The files that names, folders and patterns stand for."""
        for source in sources:
            if is_folder(source):
                yield from self._folder(source, source)
            elif is_pattern(source):
                yield from self._pattern(str(source))
            else:
                yield self._named(source, Path(source.name))

    def listed(self, names: Iterator[Path], roots: Sequence[Path]) -> Iterator[Found]:
        """The files of a list, each with its name relative to the root that contains it."""
        places = [_place(root) for root in roots or [Path()]]
        for path in names:
            whole = os.path.abspath(path)
            if path == Path():  # `find .` prints it first; it does not mean all files
                hint = "leave it out, or give the folder without a list"
                error = UsageError("the list names the current folder itself, .", hint=hint)
                yield Found(path, path, error=error)
                continue
            below = [top for top, start in places if whole.startswith(os.path.join(start, ""))]
            inside = below + [top for top, start in places if whole == start]
            if inside and is_folder(path):  # from the list of failed ones
                yield from self._folder(Path(whole), Path(max(inside, key=len)))
                continue
            if inside:
                yield self._named(path, Path(os.path.relpath(whole, max(inside, key=len))))
                continue
            told = ", ".join(map(str, roots)) or "the current folder"
            problem = f"{path} is not in {told}"
            hint = "also give a folder that contains it, whose tree is mirrored"
            yield Found(path, Path(path.name), error=UsageError(problem, hint=hint))

    def _pattern(self, pattern: str) -> Iterator[Found]:
        (top, parts), any_found = _split(pattern), False
        for one in _matches(top, parts):
            any_found = True
            if self._is_left_out(one.path, top):
                self.left_out = True
            elif one.error is not None:
                yield one
            elif not is_folder(one.path):
                yield self._named(one.path, one.name)
            elif not _with_all_below(parts):  # else what is in it matches as well
                yield from self._folder(one.path, top)
        if not any_found:
            error = UsageError(f"nothing matches {pattern}", hint="check the pattern")
            yield Found(Path(pattern), Path(pattern), error=error)

    def _is_left_out(self, path: Path, top: Path) -> bool:
        """Whether a match is in the folder to skip and the pattern does not begin there."""
        if self.leave_out is None or _lies_in(top, self.leave_out):
            return False
        return _lies_in(path, self.leave_out)

    def _folder(self, folder: Path, top: Path) -> Iterator[Found]:
        """The files of a folder and, if recursive, its subfolders; names are relative to `top`."""
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            try:
                with os.scandir(here) as entries:
                    for entry in entries:
                        yield from self._entry(entry, here, top, waiting)
            except OSError as error:
                yield _unread(here, top, error)

    def _entry(
        self, entry: os.DirEntry[str], here: Path, top: Path, waiting: list[Path]
    ) -> Iterator[Found]:
        if entry.name.startswith("."):
            return
        path = here / entry.name
        if entry.is_dir(follow_symlinks=False):
            if not self.recursive:
                self.folders += 1
            elif self.leave_out is not None and os.path.realpath(path) == str(self.leave_out):
                self.left_out = True
            else:
                waiting.append(path)
            return
        try:
            status = entry.stat()
        except OSError:  # a broken link
            if path.suffix.lower() in self.endings:
                yield _refused(path, path.relative_to(top), "is a broken link")
            return
        if entry.is_dir():
            self.links += 1
        elif path.suffix.lower() not in self.endings or not entry.is_file():
            self.others += 1
        else:
            yield Found(path, path.relative_to(top), status.st_size, status.st_mtime_ns)

    def _named(self, path: Path, name: Path) -> Found:
        """A file that was named itself, with any extension."""
        try:
            self.check(path)
            status = path.stat()
        except ImgmlpError as error:
            return Found(path, name, error=error)
        except FileNotFoundError:
            return _refused(path, name, "does not exist")
        except (OSError, ValueError) as error:
            return _refused(path, name, f"cannot be read: {getattr(error, 'strerror', error)}")
        if not stat.S_ISREG(status.st_mode):
            return _refused(path, name, "is not a file")
        return Found(path, name, status.st_size, status.st_mtime_ns)


def _lies_in(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(folder)


def _place(source: Path) -> tuple[str, str]:
    """Absolute paths of a root: the folder that names are relative to, and the root itself."""
    whole = os.path.abspath(source)
    if is_folder(source):
        return whole, whole
    if is_pattern(source):
        top = os.path.abspath(_split(str(source))[0])
        return top, top
    return os.path.dirname(whole), whole


def _split(pattern: str) -> tuple[Path, list[str]]:
    """The folder before the first wildcard, and the parts of the pattern from there on."""
    parts = Path(pattern).parts
    fixed = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    wanted = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts[fixed:]]
    if wanted[-1] == "**":
        wanted.append("*")
    return Path(*parts[:fixed]), wanted


def _with_all_below(parts: list[str]) -> bool:
    """Whether a pattern also matches everything inside the folders that it matches."""
    return parts[-2:] == ["**", "*"]


def _matches(top: Path, parts: list[str]) -> Iterator[Found]:
    """The matches of a pattern, each once, and folders that cannot be read.

    Hidden files match only if the pattern has a hidden part. pathlib's glob would not report
    unreadable folders, and the ** of the glob module follows links to folders, which may form a
    cycle.
    """
    if ".." in parts:  # outputs could leave their folder
        pattern = top.joinpath(*parts)
        hint = "put .. before the wildcards, as in ../*.png"
        error = UsageError(f"{pattern} has .. after its first wildcard", hint=hint)
        yield Found(pattern, pattern, error=error)
        return
    hidden = any(part.startswith(".") for part in parts)
    waiting = [(top, {0})]  # folders, each with the indices of the next parts
    while waiting:
        here, after = waiting.pop()
        nexts = _with_skipped(after, parts)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name.startswith(".") and not hidden:
                        continue
                    path, after = here / entry.name, _next_parts(entry, nexts, parts)
                    if len(parts) in after:
                        yield Found(path, path.relative_to(top))
                    after.discard(len(parts))
                    if after and (entry.is_dir(follow_symlinks=False) or is_folder(path)):
                        waiting.append((path, after))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _unread(here, top, error)


def _next_parts(entry: os.DirEntry[str], nexts: set[int], parts: list[str]) -> set[int]:
    """The indices of the next parts inside of an entry; len(parts) if the entry matches."""
    after = {n + 1 for n in nexts if parts[n] != "**" and fnmatch(entry.name, parts[n])}
    if entry.is_dir(follow_symlinks=False):
        after |= {n for n in nexts if parts[n] == "**"}
    return after


def _with_skipped(after: set[int], parts: list[str]) -> set[int]:
    """The indices, and those behind a `**`, which may stand for no folder."""
    numbers = set(after)
    for number, part in enumerate(parts):
        if number in numbers and part == "**":
            numbers.add(number + 1)
    return numbers


def _unread(here: Path, top: Path, error: OSError) -> Found:
    problem = f"cannot read the folder {here}: {error.strerror}"
    refused = UsageError(problem, hint="check its permissions; the other folders were read")
    return Found(here, here.relative_to(top), error=refused)


def _refused(path: Path, name: Path, problem: str) -> Found:
    return Found(path, name, error=UsageError(f"{path} {problem}", hint="check the name"))


def names_in(data: bytes) -> Iterator[Path]:
    """The names in a list, separated by line ends, or by zero bytes as `find -print0` writes them.

    A byte order mark, as Windows writes it, is skipped; it may announce UTF-16.
    """
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) and b"\0" in data:
        data = data.decode("utf-16", "replace").encode()
    separator = b"\0" if b"\0" in data else b"\n"
    start = len(BOM_UTF8) if data.startswith(BOM_UTF8) and separator == b"\n" else 0
    while start < len(data):
        end = data.find(separator, start)
        end = len(data) if end < 0 else end
        name = data[start:end]
        name = name if separator == b"\0" else name.removesuffix(b"\r")
        if name:
            yield Path(os.fsdecode(name))
        start = end + 1
