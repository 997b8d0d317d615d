"""Carries out tasks in this process, or in several processes that each have a device.

If a process crashes, its file is tried once more on another one, after all other files. Each
process has its own executor and one file at a time, so that a crash affects no other. Apart from
tasks and records, only numbers in shared memory are exchanged, so that a killed process cannot
hold a lock.
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

TICK = 0.1  # seconds between two checks of the processes
# Failures of a slot's device or process in a row, with different files, after which it is given up.
MAX_FAILURES = 3
MAX_TRIES = 2  # of a file
# Environment variables with the number of threads of the libraries that NumPy may multiply with.
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_STOP, _END = 1, 2  # requests to the processes: to save and stop, or to end at once
_SPAWN = multiprocessing.get_context("spawn")  # OpenCL drivers do not survive a fork

Stopping = Callable[[], bool]
Records = Generator[Record, None, None]


@dataclass(frozen=True)
class Seat:
    """What a process is doing."""

    device: str
    file: str = ""  # empty if it is idle
    step: int = 0
    steps: int = 0
    psnr: float = 0.0


@dataclass
class _Queue:
    """Tasks that wait, and failed ones that are tried again."""

    fresh: Iterator[Task]
    again: deque[Record] = field(default_factory=deque)  # of failed tasks that will be tried again
    tries: dict[Task, int] = field(default_factory=dict)  # of failed tasks

    def next(self, device: str, others: bool) -> Task | None:
        """The next task for a device; `others` says whether there are other devices.

        Failed tasks come last, on another device if possible, so that files that crash processes do
        not hold up the others.
        """
        task = next(self.fresh, None)
        if task is not None:
            return task
        for place, record in enumerate(self.again):
            if record.device != device or not others:
                del self.again[place]
                return record.task
        return None

    def try_again(self, record: Record) -> bool:
        """Queue a failed task again; returns False if it was tried too often."""
        self.tries[record.task] = self.tries.get(record.task, 1) + 1
        if self.tries[record.task] > MAX_TRIES:
            return False
        self.again.append(record)
        return True


# --- one process ---


def run_here(work: Work, tasks: Iterator[Task], device: str, watch: Watch) -> Records:
    """Carry out tasks in this process, one after the other.

    Ends early if it is request to stop, or if all others would fail as well.
    """
    opened = cache(lambda: keep_open(open_device(device)))
    for task in tasks:
        if watch.stopping():
            return
        record = attempt(work, task, opened, watch)
        record.device = device
        yield record
        if record.exit_code == DeviceError.exit_code or record.disk_full or record.interrupted:
            return


# --- several ---


class Pool:
    """A process for each entry of `devices`, which may name a device several times."""

    def __init__(self, work: Work, devices: Sequence[str], note: Callable[[str], None]) -> None:
        self._note = note
        on_numpy = [device for device in devices if _is_numpy(device)]
        share = max(1, child.available_cores() // max(1, len(on_numpy)))
        # Helping compilers of several processes would compete for the cores.
        beside = {child.COMPILERS_VARIABLE: "0"} if len(devices) > 1 else {}
        variables = {name: _threads(share if name in on_numpy else 1) | beside for name in devices}
        with _starting():
            self._request = _SPAWN.RawValue("i", 0)
            self._slots = [_Slot(work, one, self._request, variables[one]) for one in devices]

    def seats(self) -> list[Seat]:
        """What each process is doing."""
        return [slot.seat() for slot in self._slots]

    def run(self, tasks: Iterator[Task], stopping: Stopping, tick: Callable[[], None]) -> Records:
        """Carry out tasks; yields their records as they end. `tick` is called every TICK seconds.

        Ends early if it is request to stop, no device is left or the disk is full. Raises
        OutOfMemoryError if the system cannot start so many processes, as the constructor does.
        """
        queue, full, records = _Queue(tasks), False, list[Record]()
        try:
            while True:
                if stopping():
                    self._request.value = _STOP
                if not (self._request.value or full):
                    self._hand_out(queue)
                yield from records  # after the processes have new work
                busy = {slot.future: slot for slot in self._slots if slot.future is not None}
                if not busy:
                    if not (self._request.value or full):
                        yield from queue.again  # no device is left to try them on
                    return
                ended, _ = wait(busy, timeout=TICK, return_when=FIRST_COMPLETED)
                finished = [self._ended(busy[future], queue) for future in ended]
                records = [record for record in finished if record is not None]
                full = full or any(record.disk_full for record in records)
                tick()
        except BaseException:
            self._request.value = _END
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
        """The record of an ended task; None if it will be tried again."""
        record = slot.result(queue.tries)
        if slot.crashed and self._request.value:
            record.fail(Interrupted("stopped"))
            return record
        if slot.failures >= MAX_FAILURES:
            slot.given_up = True
            self._note(f"a process on {slot.device} was given up: {record.problem}")
        if record.elsewhere or slot.crashed:
            alive = any(not one.given_up for one in self._slots)
            if alive and queue.try_again(record):
                return None
        return record


@contextmanager
def _starting() -> Iterator[None]:
    """Translate OSErrors of starting processes to OutOfMemoryError."""
    try:
        yield
    except OSError as error:
        if lacks_working_folder(error):  # main() explains it
            raise
        problem = f"cannot start so many processes: {error.strerror or error}"
        hint = "use fewer --jobs, or allow more files with `ulimit -n`, processes with `ulimit -u`"
        raise OutOfMemoryError(problem, hint=hint) from error


def _threads(count: int) -> dict[str, str]:
    """Environment variables that limit NumPy's products to so many threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(count))


def _is_numpy(device: str) -> bool:
    """Whether a device is NumPy, whose products use several threads."""
    if device == "auto":
        return all(info.kind == "numpy" for info in list_devices())
    return device.startswith("numpy")


@contextmanager
def _default_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Within the context, set environment variables for new processes, unless the user has."""
    unset = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


class _Slot:
    """A process that is started when there is a task for it, and again after it has ended."""

    def __init__(self, work: Work, device: str, request: Any, variables: Mapping[str, str]) -> None:
        self.device, self.given_up, self.crashed, self.failures = device, False, False, 0
        self.future: Future[Record] | None = None
        self._work, self._request, self._variables = work, request, variables
        self._numbers = _SPAWN.RawArray("d", 3)  # step, steps and PSNR
        self._task: Task | None = None
        self._executor: ProcessPoolExecutor | None = None

    def start(self, task: Task) -> None:
        self._task, self._numbers[:] = task, [0.0] * len(self._numbers)
        try:
            self.future = self._submit(task)
        except BrokenProcessPool:  # it ended while it was idle
            self.close()
            self.future = self._submit(task)

    def _submit(self, task: Task) -> Future[Record]:
        with _default_variables(self._variables):
            return self._ready().submit(_carry_out, task)

    def _ready(self) -> ProcessPoolExecutor:
        if self._executor is None:
            given = self._work, self.device, self._numbers, self._request
            self._executor = ProcessPoolExecutor(1, _SPAWN, _prepare, given)
        return self._executor

    def result(self, failed: Container[Task]) -> Record:
        """The record of the task.

        A crash does not count against the device if the task is in `failed`, so that it may be the
        file's fault.
        """
        assert self.future is not None
        assert self._task is not None
        try:
            record = self.future.result()
            self.crashed = False
        except BrokenProcessPool:
            record = Record(self._task)
            problem = f"{self._task.source}: its process on {self.device} died"
            hint = "its driver may have failed, or memory ran out: try `imgmlp devices --check`"
            record.fail(TrainingError(problem, hint=hint))
            self.crashed = True
        if self.crashed or record.exit_code == DeviceError.exit_code:
            if not (self.crashed and self._task in failed):
                self.failures += 1
            self.close()  # after a failure, a device may only work in a new process
        else:
            self.failures = 0
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


# --- in a process of the pool ---


_process: dict[str, Any] = {}  # the arguments of _prepare


def _prepare(work: Work, device: str, numbers: Any, request: Any) -> None:
    ignore_signals()  # the parent handles them
    opened = cache(lambda: keep_open(open_device(device)))
    util.Finalize(None, exit_quickly, exitpriority=-100)  # after all other finalizers
    _process.update(work=work, device=opened, numbers=numbers, request=request, preparing=False)
    threading.Thread(target=_exit_with_parent, args=(request,), daemon=True).start()


def exit_quickly() -> None:
    if sys.exc_info()[0] is None:  # otherwise Python reports the error
        announce_exit()


def _exit_with_parent(request: Any) -> None:
    """Exit when the parent has ended or asks for it, also if it asks to save and stop while this
    process is still preparing, as there is nothing to save yet."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and request.value != _END:
        if request.value == _STOP and _process["preparing"]:
            break
        parent.join(TICK)
    os._exit(1)


def _carry_out(task: Task) -> Record:
    numbers, request = _process["numbers"], _process["request"]

    def tell(*now: float) -> None:
        numbers[:] = now

    def prepare(begins: bool) -> None:
        _process["preparing"] = begins

    given = _process["work"], task, _process["device"], lambda: bool(request.value), tell, prepare
    return attempt_elsewhere(*given)
