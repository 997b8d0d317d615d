"""Pictures in a store, such as S3, and files that are written there: through fsspec.

A worker fetches a picture, encodes it in a temporary folder and puts the file into the store, as a
whole. Before, it leaves a note of what it is about to write: so an output is known by its name and
digest to whoever comes by, also if two workers do one picture. Knows of no cluster.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from imgmlp.batch.encode import REPLACE, EncodeFile
from imgmlp.batch.find import Found
from imgmlp.batch.wanted import Wanted
from imgmlp.batch.work import Record, Task, Watch
from imgmlp.engine import AnyDevice
from imgmlp.errors import ImgmlpError, OutputError, UsageError

NOTES = ".imgmlp"  # a folder beside the outputs
# As pathlib leaves it; one letter is a drive.
SCHEME = re.compile(r"\A([a-z][a-z0-9+.-]+):/+(?=[^/])")
RIGHTS = "check the bucket's name, the rights and the credentials of whoever runs this"


def is_stored(path: Path) -> bool:
    """Whether it is a place in a store, such as s3://bucket/folder."""
    return SCHEME.match(path.as_posix()) is not None


def url(path: Path) -> str:
    """The address that pathlib has taken a slash of; a plain path as it is."""
    return SCHEME.sub(r"\1://", path.as_posix(), count=1)


def found(source: Path, endings: Collection[str], recursive: bool) -> Iterator[Found]:
    """The pictures in a folder of a store, or one that is named itself."""
    try:
        files, top = _opened(source)
        entries = {top: files.info(top)} if files.isfile(top) else _entries(files, top, recursive)
    except Exception as error:  # each kind of store has errors of its own
        problem = f"cannot read {url(source)}: {_reason(error)}"
        yield Found(source, Path(source.name), error=UsageError(problem, hint=RIGHTS))
        return
    protocol = url(source).partition("://")[0]
    for name, entry in sorted(entries.items()):
        place = Path(posixpath.relpath(name, top) if name != top else posixpath.basename(name))
        hidden = any(part.startswith(".") for part in place.parts)
        if not hidden and (name == top or place.suffix.lower() in endings):
            yield Found(Path(f"{protocol}:/{name}"), place, int(entry["size"] or 0))


def _entries(files: Any, top: str, recursive: bool) -> dict[str, Any]:
    entries: dict[str, Any] = files.find(top, maxdepth=None if recursive else 1, detail=True)
    if not entries and not files.exists(top):
        raise FileNotFoundError("there is no such folder")
    return entries


def check_writable(folder: Path) -> None:
    """Refuse, as an OutputError, a place where nothing can be written."""
    try:
        files, top = _opened(folder)
        probe = posixpath.join(top, NOTES, "probe")
        files.pipe_file(probe, b"")
        files.rm_file(probe)
    except Exception as error:
        problem = f"cannot write into {url(folder)}: {_reason(error)}"
        raise OutputError(problem, hint=RIGHTS) from error


@cache
def _checked(folder: Path) -> None:
    """The same, once for each process that is to write there: others' rights may be others."""
    check_writable(folder)


@dataclass(frozen=True)
class EncodeInStore:
    """Encodes pictures from anywhere into a store: each task's source to its output."""

    wanted: Wanted
    folder: Path
    force: bool = False

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises TargetError or TrainingError after the best file is written."""
        task = record.task
        assert task.output is not None
        _checked(self.folder)
        picture = _fetched(task.source)
        record.digest = sha256(picture).hexdigest()
        output = _Output(task.output)
        known = self._known(output, output.read(), record)
        if known is not None:
            record.facts, record.written = known, True
            record.line = f"{url(task.output)}   done before"
            return
        with tempfile.TemporaryDirectory(prefix="imgmlp-") as folder:
            source, made = Path(folder, task.source.name), Path(folder, "out", task.output.name)
            source.write_bytes(picture)
            record.task = replace(task, source=source, output=made)
            try:
                EncodeFile(self.wanted)(record, device, watch)
            except ImgmlpError as error:
                told = [_named(text, source, made, task) for text in (str(error), error.hint)]
                raise type(error)(told[0], hint=told[1]) from error.__cause__
            finally:
                record.task, record.state, record.written = task, None, False
                if made.exists():
                    self._put(output, record, made.read_bytes())
                    record.written = True
        record.line = _named(record.line, source, made, task)
        record.notes = [_named(note, source, made, task) for note in record.notes]

    def _put(self, output: _Output, record: Record, data: bytes) -> None:
        """Write it, unless another worker has done so. Raises OutputError."""
        there = output.read()  # as it is now
        if self._known(output, there, record) is not None:
            return
        if output.write(data, self._note(record), self.force or there is not None):
            return
        if self._known(output, output.read(), record) is None:  # by another run of other settings
            raise _exists(output)

    def _note(self, record: Record) -> dict[str, Any]:
        source, settings = url(record.task.source), self.wanted.digest()
        looks = {"source": source, "picture": record.digest, "settings": settings}
        return looks | {"facts": record.facts}

    def _known(self, output: _Output, there: bytes | None, record: Record) -> dict[str, Any] | None:
        """What there is to tell of the output if it is this picture's, with these settings.

        Raises OutputError if it is somebody else's, or another picture's, and is not to be
        replaced.
        """
        if there is None:
            return None
        note, own = output.note(there) or {}, self._note(record)
        same = {name for name in own if note.get(name) == own[name]}
        if {"picture", "settings"} <= same:
            facts: dict[str, Any] = note["facts"]
            return facts
        if not (self.force or same & {"picture", "source"}):
            raise _exists(output)
        return None


class _Output:
    """A file in a store, and the notes of those that wrote it or were about to."""

    def __init__(self, path: Path) -> None:
        self.url = url(path)
        self._files, self._name = _opened(path)

    def read(self) -> bytes | None:
        """Its bytes, if it is there. Raises OutputError."""
        try:
            return bytes(self._files.cat_file(self._name))
        except FileNotFoundError:
            return None
        except Exception as error:
            problem = f"cannot read {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=RIGHTS) from error

    def note(self, data: bytes) -> dict[str, Any] | None:
        """Who wrote just these bytes, if somebody has noted it."""
        try:
            note = json.loads(self._files.cat_file(self._note(data)))
        except (FileNotFoundError, ValueError):
            return None
        return note if {"source", "picture", "settings", "facts"} <= set(note) else None

    def write(self, data: bytes, note: dict[str, Any], replace: bool) -> bool:
        """Write it as a whole. Raises OutputError.

        Without `replace` whatever has come there stays, and False is returned, as far as the store
        can tell at that moment.
        """
        try:
            self._files.pipe_file(self._note(data), json.dumps(note).encode())
            if not replace:
                with contextlib.suppress(Exception):  # or it does not know how, and is asked
                    self._files.pipe_file(self._name, data, mode="create")
                    return True
                if self._files.exists(self._name):
                    return False
            self._files.pipe_file(self._name, data)
        except Exception as error:
            problem = f"cannot write {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=RIGHTS) from error
        return True

    def _note(self, data: bytes) -> str:
        folder, name = posixpath.split(self._name)
        return posixpath.join(folder, NOTES, f"{name}.{sha256(data).hexdigest()[:32]}.json")


def _exists(output: _Output) -> OutputError:
    return OutputError(f"{output.url} exists already", hint=REPLACE.split(",")[0])


def _named(text: str, source: Path, made: Path, task: Task) -> str:
    """What is said of files in a temporary folder, said of those that they stand for."""
    assert task.output is not None
    return text.replace(str(source), url(task.source)).replace(str(made), url(task.output))


def _fetched(source: Path) -> bytes:
    try:
        files, name = _opened(source)
        return bytes(files.cat_file(name))
    except Exception as error:
        problem = f"cannot read {url(source)}: {_reason(error)}"
        raise UsageError(problem, hint=RIGHTS) from error


def _opened(path: Path) -> tuple[Any, str]:
    """The file system of a place, and its name in there; listings are never old ones."""
    import fsspec

    files, name = fsspec.core.url_to_fs(url(path), use_listings_cache=False)
    return files, str(name)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
