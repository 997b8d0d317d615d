"""Encodes pictures from anywhere into an object store.

A worker fetches a picture, encodes it in a temporary folder and uploads the file. If two workers
encode the same picture, the second one knows by the note beside the file what the first has
written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from imgmlp.batch import scratch
from imgmlp.batch.encode import EncodeFile
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.output import EXTENSION, REPLACE
from imgmlp.batch.shortfall import shortfall
from imgmlp.batch.store import Output, check_writable, fetched, url
from imgmlp.batch.work import Record, Task, Watch
from imgmlp.engine import AnyDevice
from imgmlp.errors import ImgmlpError, OutputError
from imgmlp.image_io.files import endings


@cache
def _checked(folder: Path) -> None:
    """`check_writable`, once for each process, as their permissions may differ."""
    check_writable(folder)


@dataclass(frozen=True)
class EncodeInStore:
    """Encodes pictures from anywhere into a store: each task's source to its output."""

    options: EncodeOptions
    folder: Path
    force: bool = False

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises TargetError or TrainingError after the best file is written."""
        task = record.task
        assert task.output is not None
        _checked(self.folder)
        picture = fetched(task.source)
        record.digest = sha256(picture).hexdigest()
        output = Output(task.output)
        known = self._known(output, output.read(), record)
        if known is not None:
            record.facts, record.written = known, True
            if (problem := shortfall(url(task.output), known)) is not None:
                raise problem
            record.line = f"{url(task.output)}   done before"
            return
        with scratch.folder() as folder:
            source, made = folder / f"picture{_ending(task.source)}", folder / f"file{EXTENSION}"
            with scratch.writing():
                source.write_bytes(picture)
            record.task = replace(task, source=source, output=made)
            try:
                EncodeFile(self.options)(record, device, watch)
            except OutputError as error:
                raise scratch.unwritable(error.__cause__ or error) from error.__cause__
            except ImgmlpError as error:
                told = [_named(text, source, made, task) for text in (str(error), error.hint)]
                raise type(error)(told[0], hint=told[1]) from error.__cause__
            finally:
                record.task, record.state, record.written = task, None, False
                record.notes = [_named(note, source, made, task) for note in record.notes]
                if made.exists():
                    self._put(output, record, made.read_bytes())
                    record.written = True
        record.line = _named(record.line, source, made, task)

    def _put(self, output: Output, record: Record, data: bytes) -> None:
        """Upload an output, unless another worker has done so. Raises OutputError."""
        there = output.read()  # it may have changed since the first check
        if self._known(output, there, record) is not None:
            return
        if output.write(data, self._note(record), self.force or there is not None):
            return
        if self._known(output, output.read(), record) is None:  # by a run of other settings
            raise _exists(output)

    def _note(self, record: Record) -> dict[str, Any]:
        source, settings = url(record.task.source), self.options.digest()
        looks = {"source": source, "picture": record.digest, "settings": settings}
        return looks | {"facts": record.facts}

    def _known(self, output: Output, there: bytes | None, record: Record) -> dict[str, Any] | None:
        """The facts of an output if it was made of this picture with these settings; else None.

        Raises OutputError if it was made otherwise and must not be replaced.
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


def _exists(output: Output) -> OutputError:
    return OutputError(f"{output.url} exists already", hint=REPLACE.split(",")[0])


def _ending(source: Path) -> str:
    """The extension of a picture's name if it is a known one, as those of keys may be invalid."""
    return source.suffix if source.suffix.lower() in endings() else ""


def _named(text: str, source: Path, made: Path, task: Task) -> str:
    """A message about files in the temporary folder, with the names that they stand for."""
    assert task.output is not None
    return text.replace(str(source), url(task.source)).replace(str(made), url(task.output))
