"""Many files done by one process, or by several that each have a device; all fed from one queue.

A process that ends by itself takes one file with it, which is tried once more elsewhere, after all
others. Each has an executor of its own, so that the others do not suffer, and gets one file at a
time. Beside files and records only numbers in shared memory go between them: no lock that a killed
process may hold.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import util
from typing import Any

from imgmlp import child
from imgmlp.batch.work import Record, Task, Watch, Work, attempt, attempt_elsewhere
from imgmlp.ending import announce_exit, keep_open
from imgmlp.engine import list_devices, open_device
from imgmlp.errors import (
    DeviceError,
    Interrupted,
    OutOfMemoryError,
    TrainingError,
    lacks_working_folder,
)
from imgmlp.interrupt import ignore_signals

TICK = 0.1  # seconds between two looks at what the processes tell
# Processes in a row whose device fails or that end by themselves, each with another file, before a
# place is given up.
PATIENCE = 3
ONCE_MORE = 2  # times that a file is tried
# What libraries that NumPy may multiply with take their number of threads from.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_STOP, _END = 1, 2  # what the processes are asked for: to save and stop, or to end at once
_SPAWN = multiprocessing.get_context("spawn")  # no driver survives a fork

Stopping = Callable[[], bool]
Records = Generator[Record, None, None]


@dataclass(frozen=True)
class Seat:
    """What a process is doing now."""

    device: str
    file: str = ""  # empty if it is idle
    step: int = 0
    steps: int = 0
    psnr: float = 0.0


@dataclass
class _Queue:
    """Files that wait, and those that are to be tried once more."""

    fresh: Iterator[Task]
    again: deque[Record] = field(default_factory=deque)  # of how they failed
    tries: dict[Task, int] = field(default_factory=dict)  # of those that failed, and only these

    def next(self, device: str, others: bool) -> Task | None:
        """A file for a device; `others` says whether there are other ones to try it on.

        Those that failed come last, so that files that end processes keep no other from being done.
        """
        task = next(self.fresh, None)
        if task is not None:
            return task
        for place, record in enumerate(self.again):
            if record.device != device or not others:
                del self.again[place]
                return record.task
        return None

    def once_more(self, record: Record) -> bool:
        """Whether a file that failed may be tried elsewhere; then it will be."""
        self.tries[record.task] = self.tries.get(record.task, 1) + 1
        if self.tries[record.task] > ONCE_MORE:
            return False
        self.again.append(record)
        return True


# --- one process ---


def run_here(work: Work, tasks: Iterator[Task], device: str, watch: Watch) -> Records:
    """Do files in this process, one after the other.

    Ends early where it is asked to stop, or where the others would fail as well.
    """
    opened = cache(lambda: keep_open(open_device(device)))
    for task in tasks:
        if watch.stopping():
            return
        record = attempt(work, task, opened, watch)
        record.device = device
        yield record
        if record.exit_code == DeviceError.exit_code or record.no_room or record.interrupted:
            return


# --- several ---


class Pool:
    """A process for each of some devices; one may be named several times."""

    def __init__(self, work: Work, devices: Sequence[str], note: Callable[[str], None]) -> None:
        self._note = note
        on_numpy = [device for device in devices if _is_numpy(device)]
        share = max(1, child.available_cores() // max(1, len(on_numpy)))
        # Those of several processes would keep each other from the cores.
        beside = {child.COMPILERS_VARIABLE: "0"} if len(devices) > 1 else {}
        variables = {name: _threads(share if name in on_numpy else 1) | beside for name in devices}
        with _starting():
            self._asked = _SPAWN.RawValue("i", 0)
            self._slots = [_Slot(work, one, self._asked, variables[one]) for one in devices]

    def seats(self) -> list[Seat]:
        """What each process is doing."""
        return [slot.seat() for slot in self._slots]

    def run(self, tasks: Iterator[Task], stopping: Stopping, tick: Callable[[], None]) -> Records:
        """Do files; records come as files end. `tick` is called several times a second.

        Ends early where it is asked to stop, no device is left or the disk is full. Raises
        OutOfMemoryError if the system has no room for so many processes, as the constructor does.
        """
        queue, full, records = _Queue(tasks), False, list[Record]()
        try:
            while True:
                if stopping():
                    self._asked.value = _STOP
                if not (self._asked.value or full):
                    self._hand_out(queue)
                yield from records  # while the processes have work again
                busy = {slot.future: slot for slot in self._slots if slot.future is not None}
                if not busy:
                    if not (self._asked.value or full):
                        yield from queue.again  # no place is left to try them on
                    return
                ended, _ = wait(busy, timeout=TICK, return_when=FIRST_COMPLETED)
                finished = [self._ended(busy[future], queue) for future in ended]
                records = [record for record in finished if record is not None]
                full = full or any(record.no_room for record in records)
                tick()
        except BaseException:
            self._asked.value = _END
            raise
        finally:
            for slot in self._slots:
                slot.close()

    def _hand_out(self, queue: _Queue) -> None:
        for slot in self._slots:
            if slot.future is None and not slot.given_up:
                alive = {one.device for one in self._slots if not one.given_up}
                task = queue.next(slot.device, others=len(alive - {slot.device}) > 0)
                if task is not None:
                    with _starting():
                        slot.start(task)

    def _ended(self, slot: _Slot, queue: _Queue) -> Record | None:
        """The record of a file that a process has done, or cannot do; None if another one may."""
        record = slot.result(queue.tries)
        if slot.died and self._asked.value:
            record.fail(Interrupted("stopped"))
            return record
        if slot.deaths >= PATIENCE:
            slot.given_up = True
            self._note(f"a process on {slot.device} was given up: {record.problem}")
        if record.elsewhere or slot.died:
            alive = any(not one.given_up for one in self._slots)
            if alive and queue.once_more(record):
                return None
        return record


@contextmanager
def _starting() -> Iterator[None]:
    """Around what takes of the system what processes need."""
    try:
        yield
    except OSError as error:
        if lacks_working_folder(error):  # which processes are told
            raise
        problem = f"cannot start so many processes: {error.strerror or error}"
        hint = "use fewer --jobs, or allow more files with `ulimit -n`, processes with `ulimit -u`"
        raise OutOfMemoryError(problem, hint=hint) from error


def _threads(count: int) -> dict[str, str]:
    """What has NumPy use so many for its products."""
    return dict.fromkeys(THREADS, str(count))


def _is_numpy(device: str) -> bool:
    """Whether NumPy computes there, with all threads that it may have."""
    if device == "auto":
        return all(info.kind == "numpy" for info in list_devices())
    return device.startswith("numpy")


@contextmanager
def _usual(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started in the meantime have these environment variables, unless the user
    says otherwise."""
    mine = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


class _Slot:
    """A process, which is started when there is a file for it, and anew when it has ended."""

    def __init__(self, work: Work, device: str, asked: Any, variables: Mapping[str, str]) -> None:
        self.device, self.given_up, self.died, self.deaths = device, False, False, 0
        self.future: Future[Record] | None = None
        self._work, self._asked, self._variables = work, asked, variables
        self._numbers = _SPAWN.RawArray("d", 3)  # step, steps and PSNR
        self._task: Task | None = None
        self._executor: ProcessPoolExecutor | None = None

    def start(self, task: Task) -> None:
        self._task, self._numbers[:] = task, [0.0] * len(self._numbers)
        try:
            self.future = self._submit(task)
        except BrokenProcessPool:  # it ended while it had no file, which harms none
            self.close()
            self.future = self._submit(task)

    def _submit(self, task: Task) -> Future[Record]:
        with _usual(self._variables):
            return self._ready().submit(_do, task)

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            given = self._work, self.device, self._numbers, self._asked
            self._executor = ProcessPoolExecutor(1, _SPAWN, _prepare, given)
        return self._executor

    def result(self, failed: Container[Task]) -> Record:
        """What became of the file; of files that failed before, their own fault is no device's."""
        assert self.future is not None
        assert self._task is not None
        try:
            record = self.future.result()
            self.died = False
        except BrokenProcessPool:
            record = Record(self._task)
            problem = f"{self._task.source}: its process on {self.device} died"
            hint = "its driver may have failed, or memory ran out: try `imgmlp devices --check`"
            record.fail(TrainingError(problem, hint=hint))
            self.died = True
        if self.died or record.exit_code == DeviceError.exit_code:
            if not (self.died and self._task in failed):
                self.deaths += 1
            self.close()  # a device that failed once may work in a new process only
        else:
            self.deaths = 0
        record.device = self.device
        self.future = self._task = None
        return record

    def seat(self) -> Seat:
        if self._task is None:
            return Seat(self.device)
        step, steps, psnr = self._numbers
        return Seat(self.device, self._task.source.name, int(step), int(steps), psnr)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


# --- inside of such a process ---


_own: dict[str, Any] = {}  # what the process was started with


def _prepare(work: Work, device: str, numbers: Any, asked: Any) -> None:
    ignore_signals()  # they are for the process that started it, which tells
    opened = cache(lambda: keep_open(open_device(device)))
    util.Finalize(None, end_well, exitpriority=-100)  # after all others
    _own.update(work=work, device=opened, numbers=numbers, asked=asked, preparing=False)
    threading.Thread(target=_leave_with, args=(asked,), daemon=True).start()


def end_well() -> None:
    if sys.exc_info()[0] is None:  # otherwise Python tells what went wrong
        announce_exit()


def _leave_with(asked: Any) -> None:
    """End when the process that started this one has ended, or asks for it; where it asks to save
    what there is, and only compiles so far, as well."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and asked.value != _END:
        if asked.value == _STOP and _own["preparing"]:
            break
        parent.join(TICK)
    os._exit(1)


def _do(task: Task) -> Record:
    numbers, asked = _own["numbers"], _own["asked"]

    def tell(*now: float) -> None:
        numbers[:] = now

    def prepare(begins: bool) -> None:
        _own["preparing"] = begins

    given = _own["work"], task, _own["device"], lambda: bool(asked.value), tell, prepare
    return attempt_elsewhere(*given)
