"""Tasks, one for each file of a run, their records, and the interface of what carries them out.

All are plain values that can be sent to another process.
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

FULL_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Task:
    """A file to be processed."""

    source: Path
    output: Path | None = None  # None if nothing is written
    replace: bool = False  # whether to replace any existing output
    weight: int = 1  # relative amount of work
    known: str = ""  # digest of an output that may be replaced if it is unchanged


@dataclass
class Record:
    """The result of a task."""

    task: Task
    facts: dict[str, Any] = field(default_factory=dict)  # for JSON
    line: str = ""  # the message for a file that is done
    notes: list[str] = field(default_factory=list)
    problem: str | None = None
    hint: str = ""
    exit_code: int = 0
    written: bool = False  # whether the output was written; it may have missed the target
    disk_full: bool = False  # whether the disk is full, so that other tasks would fail too
    state: Path | None = None  # hidden file with the output, to be removed once it is recorded
    source_status: tuple[int, int] = (0, 0)  # (bytes, mtime in ns) before it was read
    digest: str = ""  # of the source, if something was written
    made: str = ""  # digest of the output
    trace: str = ""  # the traceback of the problem
    device: str = ""  # its name

    @property
    def interrupted(self) -> bool:
        return self.exit_code == Interrupted.exit_code

    @property
    def elsewhere(self) -> bool:
        """Whether it failed because of the device or its memory, so that another may do it."""
        return self.exit_code in (DeviceError.exit_code, OutOfMemoryError.exit_code)

    def fail(self, error: ImgmlpError) -> None:
        self.problem, self.hint, self.exit_code = str(error), error.hint, error.exit_code
        self.trace = "".join(traceback.format_exception(error))
        cause = error.__cause__
        self.disk_full = isinstance(cause, OSError) and cause.errno in FULL_DISK_ERRORS


class Watch(Protocol):
    """Receives a task's progress, and may stop it."""

    def announce(self, text: str) -> None:
        """Show a message while the task runs."""

    def note(self, text: str) -> None:
        """Show a message that stays, and keep it for the record."""

    def training(self, steps: int) -> AbstractContextManager[Callable[[Progress], None]]:
        """A context around a training of `steps` steps; it yields the callback for progress."""

    def stopping(self) -> bool:
        """Whether to save the state and stop."""

    def saving(self) -> AbstractContextManager[object]:
        """A context around work that saves its state when it is asked to stop."""


class Work(Protocol):
    """What a run does with each file. It can be sent to another process."""

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Carry out `record.task` and fill in the record. Raises ImgmlpError."""


@dataclass
class _CallbackWatch:
    """The watch in a child process: it passes everything on by callbacks."""

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
    """`attempt` in a child process; notes go into the record.

    `stopping()` says whether to stop. `tell(step, steps, psnr)` is called during training.
    `preparing(True)` is called while a training is prepared, and `preparing(False)` once it runs,
    from when on there is a state to save.
    """
    watch = _CallbackWatch(stopping, tell, preparing)
    record = attempt(work, task, device, watch)
    record.notes += [f"{url(task.source)}: {note}" for note in watch.notes]
    return record


def attempt(work: Work, task: Task, device: Callable[[], AnyDevice], watch: Watch) -> Record:
    """Carry out a task; errors go into the record. Raises KeyboardInterrupt only."""
    record = Record(task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ImgmlpWarning)
        try:
            work(record, device, watch)
        except Exception as error:  # a bug must not stop the other tasks
            record.fail(problem_of(error))
    caught_here = [one for one in caught if issubclass(one.category, ImgmlpWarning)]
    record.notes += [f"warning: {one.message}" for one in caught_here]
    return record
