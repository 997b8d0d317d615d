"""One file to do, what became of it, and what whoever does it may expect of its surroundings.

Plain values that can be sent to another process. Knows no codec.
"""

from __future__ import annotations

import errno
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from imgmlp.batch.store import url
from imgmlp.engine import AnyDevice
from imgmlp.errors import (
    DeviceError,
    ImgmlpError,
    ImgmlpWarning,
    Interrupted,
    OutOfMemoryError,
    problem_of,
)

if TYPE_CHECKING:
    from imgmlp.codec.training.run import Progress

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Task:
    """A file to do."""

    source: Path
    output: Path | None = None  # None where nothing is written
    replace: bool = False  # whether the output is replaced, whatever it is
    weight: int = 1  # how much work it is, in no unit
    known: str = ""  # digest of the output that is replaced if it is still the same


@dataclass
class Record:
    """What became of a file."""

    task: Task
    facts: dict[str, Any] = field(default_factory=dict)  # for JSON
    line: str = ""  # what a person is told of a file that is done
    notes: list[str] = field(default_factory=list)
    problem: str | None = None
    hint: str = ""
    exit_code: int = 0
    written: bool = False  # whether the output is there, as it should be or as it could be
    no_room: bool = False  # whether the disk is full, so that others would fail as well
    state: Path | None = None  # a hidden file that holds the output, until it is remembered
    source_status: tuple[int, int] = (0, 0)  # bytes and mtime, before it was read
    digest: str = ""  # of the source's bytes, where something was written
    made: str = ""  # digest of the output's bytes
    trace: str = ""  # where it went wrong
    device: str = ""  # the name of the device that it was given to

    @property
    def interrupted(self) -> bool:
        return self.exit_code == Interrupted.exit_code

    @property
    def elsewhere(self) -> bool:
        """Whether it failed for want of a device or of its memory, which another one may have."""
        return self.exit_code in (DeviceError.exit_code, OutOfMemoryError.exit_code)

    def fail(self, error: ImgmlpError) -> None:
        self.problem, self.hint, self.exit_code = str(error), error.hint, error.exit_code
        self.trace = "".join(traceback.format_exception(error))
        cause = error.__cause__
        self.no_room = isinstance(cause, OSError) and cause.errno in NO_ROOM


class Watch(Protocol):
    """Who is told of a file's progress, and may stop it."""

    def announce(self, text: str) -> None:
        """Something worth knowing while it is being done."""

    def note(self, text: str) -> None:
        """Something worth knowing, also afterwards."""

    def training(self, steps: int) -> AbstractContextManager[Callable[[Progress], None]]:
        """Around a training of so many steps; what it gives is called as it goes on."""

    def stopping(self) -> bool:
        """Whether to stop, once what was reached is saved."""

    def saving(self) -> AbstractContextManager[object]:
        """Around work that saves its state when it is asked to stop."""


class Work(Protocol):
    """What is done with each file. It can be sent to another process."""

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Do `record.task`, and say in the record what became of it. Raises ImgmlpError."""


@dataclass
class _Told:
    """The watch of a process that nobody sees: what there is to say goes elsewhere."""

    asked: Callable[[], bool]
    tell: Callable[[int, int, float], None]
    preparing: Callable[[bool], None]
    notes: list[str] = field(default_factory=list)

    def announce(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[Progress], None]]:
        self.tell(0, steps, 0.0)
        self.preparing(True)
        try:
            yield lambda now: self.tell(now.step, now.steps, now.psnr)
        finally:
            self.preparing(False)

    def stopping(self) -> bool:
        self.preparing(False)
        return self.asked()

    def saving(self) -> AbstractContextManager[object]:
        return nullcontext()


def attempt_elsewhere(
    work: Work,
    task: Task,
    device: Callable[[], AnyDevice],
    stopping: Callable[[], bool],
    tell: Callable[[int, int, float], None] = lambda *_: None,
    preparing: Callable[[bool], None] = lambda _: None,
) -> Record:
    """Do one file in a process that was started for that; its notes are in the record.

    `stopping` says whether to stop; `tell` is given step, steps and PSNR as training goes on,
    `preparing` whether it has not begun yet, so that there is nothing to save.
    """
    watch = _Told(stopping, tell, preparing)
    record = attempt(work, task, device, watch)
    record.notes += [f"{url(task.source)}: {note}" for note in watch.notes]
    return record


def attempt(work: Work, task: Task, device: Callable[[], AnyDevice], watch: Watch) -> Record:
    """Do one file, whatever becomes of it. Raises KeyboardInterrupt alone."""
    record = Record(task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ImgmlpWarning)
        try:
            work(record, device, watch)
        except Exception as error:  # also a fault, which the other files need not suffer from
            record.fail(problem_of(error))
    told = [one for one in caught if issubclass(one.category, ImgmlpWarning)]
    record.notes += [f"warning: {one.message}" for one in told]
    return record
