"""Carries out tasks on the workers of a Dask cluster, which reach the same files as this process.

Dask provides the queue and the heartbeats, and gives the tasks of a lost worker to another one. A
chunk of tasks may be carried out twice, completely or in part; outputs that were written before are
recognised.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import distributed
from distributed.scheduler import KilledWorker
from distributed.security import Security

from imgmlp.batch.devices import LOCAL
from imgmlp.batch.pool import MAX_TRIES, TICK, Records, Seat, Stopping
from imgmlp.batch.store import is_stored, url
from imgmlp.batch.work import Record, Task, Work, attempt_elsewhere
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import DeviceError, ImgmlpError, TrainingError
from imgmlp.interrupt import blocked_for_new_threads

MAX_CHUNK_TASKS = 4  # that are sent to a worker together
CHUNK_PIXELS = 2**20  # that end a chunk, so that a lost worker costs little
CHUNKS_PER_WORKER = 2  # that are submitted: one in progress and one waiting
ANSWER_TIMEOUT = 30.0  # seconds for a cluster to answer
CHECK_INTERVAL = 2.0  # seconds between two counts of the workers
VERSION_HINT = "install the same version on this machine and on every worker"


@dataclass
class _Chunk:
    """Tasks that are sent to a worker together."""

    tasks: list[Task]
    tries: int = 0  # failures by lost workers or devices


@dataclass(frozen=True)
class _Job:
    """What workers do with every task."""

    work: Work
    device: str
    version: str
    here: bool  # whether workers are on this machine, with this process's environment


class Cluster:
    """The workers of a scheduler, or local ones, which end when this is closed."""

    def __init__(self, work: Work, address: str, device: str, processes: int) -> None:
        """Connect to tcp://…, or start `processes` workers here if `address` is "local".

        Raises DeviceError if there is no answer, no worker, or one with another version of imgmlp.
        """
        self._address = address
        self._job = _Job(work, device, _version(), address == LOCAL)
        self._again: deque[_Chunk] = deque()
        self._running: dict[Any, _Chunk] = {}
        self._workers, self._last_count, self._alive = 0, 0.0, time.monotonic()
        _silence()
        self._own: Any = None
        try:
            self._client = self._connect(processes)
            self._workers = len(self._versions())
        except BaseException:
            self.close()
            raise

    def _connect(self, processes: int) -> Any:
        target: Any = self._address
        if target == LOCAL:
            target = self._own = _local(processes)
        try:
            if self._own is None:  # a Client would wait for ever for a silent server
                asyncio.run(asyncio.wait_for(_identity(target), ANSWER_TIMEOUT))
            return distributed.Client(target, timeout=ANSWER_TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:  # includes TimeoutError
            hint = "is a scheduler running there? `dask scheduler` prints its address"
            raise DeviceError(f"no cluster answers at {self._address}", hint=hint) from error
        except (
            ImportError,
            RuntimeError,
            TypeError,
        ) as error:  # a missing package
            hint = "tls:// needs certificates in Dask's configuration, ucx:// a package of its own"
            raise DeviceError(f"Dask cannot connect to {self._address} here", hint=hint) from error

    def _versions(self) -> dict[str, object]:
        """The version of each worker. Raises DeviceError if one differs from this process."""
        try:
            self._client.wait_for_workers(1, timeout=ANSWER_TIMEOUT)
        except TimeoutError as error:
            hint = f"start some: `dask worker {self._address}`"
            raise DeviceError(f"the cluster at {self._address} has no worker", hint=hint) from error
        try:
            versions = self._client.run(_version, on_error="return")
        except OSError:  # a worker has just left; each checks again with its tasks
            return {}
        for worker, theirs in versions.items():
            if isinstance(theirs, Exception) and not isinstance(theirs, OSError):
                theirs = f"an unknown version ({theirs!r})"
            if isinstance(theirs, str) and theirs != self._job.version:
                raise _other_version(worker, theirs, self._job.version)
        return dict(versions)

    def seats(self) -> list[Seat]:
        """The number of workers and of files in progress."""
        files = sum(len(chunk.tasks) for chunk in self._running.values())
        return [Seat(f"{self._workers} workers", f"{files:,} files" if files else "")]

    def run(self, tasks: Iterator[Task], stopping: Stopping, tick: Callable[[], None]) -> Records:
        """Carry out tasks; yields their records as chunks end. `tick` is called every TICK seconds.

        Ends early if it is asked to stop or the disk is full. Workers then finish their tasks,
        which the next run recognises. Raises DeviceError if the cluster is lost.
        """
        chunks, full = _chunks(tasks), False
        try:
            while not stopping():
                self._count_workers()
                if not full:
                    self._hand_out(chunks)
                if not self._running:
                    return
                time.sleep(TICK)
                for future in [one for one in self._running if one.done()]:
                    for record in self._ended(future, self._running.pop(future)):
                        full = full or record.disk_full
                        yield record
                tick()
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect from the cluster; local workers are ended."""
        for part in (self.__dict__.get("_client"), self._own):
            if part is not None:
                part.close()

    def _hand_out(self, chunks: Iterator[_Chunk]) -> None:
        while len(self._running) < CHUNKS_PER_WORKER * max(1, self._workers):
            # Chunks that may have crashed their workers run one at a time, to tell which one did.
            alone = any(chunk.tries for chunk in self._running.values())
            waits = self._again and not (alone and self._again[0].tries)
            chunk = self._again.popleft() if waits else next(chunks, None)
            if chunk is None:
                return
            key = f"imgmlp-{uuid.uuid4()}"
            tasks = [_with_absolute_paths(task) for task in chunk.tasks]
            future = self._client.submit(_carry_out, self._job, tasks, key=key, pure=False)
            self._running[future] = chunk

    def _ended(self, future: Any, chunk: _Chunk) -> Iterator[Record]:
        """Yield the records of ended tasks; tasks that should be tried again are queued."""
        try:
            records = future.result(timeout=ANSWER_TIMEOUT)
        except KilledWorker:
            yield from self._lost(chunk)
            return
        except (distributed.CancelledError, OSError):  # the scheduler has left or is leaving
            self._again.append(chunk)
            return
        except Exception as error:
            problem = f"the cluster failed: {type(error).__name__}: {error}"
            yield from _failed(chunk.tasks, ImgmlpError(problem, hint=VERSION_HINT))
            return
        future.release()  # otherwise Dask repeats it if its worker leaves now
        for task, record in zip(chunk.tasks, records, strict=True):
            if record.interrupted:  # its worker was shut down
                self._again.append(_Chunk([task], chunk.tries))
            elif record.elsewhere and chunk.tries < MAX_TRIES:
                self._again.append(_Chunk([task], chunk.tries + 1))
            else:
                record.task = task
                yield record

    def _lost(self, chunk: _Chunk) -> Iterator[Record]:
        """Queue each task of a chunk separately after all its workers were lost, or give it up."""
        if len(chunk.tasks) > 1 or chunk.tries < MAX_TRIES:
            alone = (_Chunk([task], chunk.tries + 1) for task in chunk.tasks)
            self._again.extend(alone)
            return
        hint = "its driver may have failed, or memory ran out: see the workers' logs"
        problem = f"{url(chunk.tasks[0].source)}: every worker that tried it died"
        yield from _failed(chunk.tasks, TrainingError(problem, hint=hint))

    def _count_workers(self) -> None:
        """Count the workers from time to time. Raises DeviceError if there were none for long."""
        now = time.monotonic()
        if now - self._last_count >= CHECK_INTERVAL:
            self._last_count = now
            try:
                self._workers = len(self._client.nthreads())
            except Exception:  # of Dask or Python: the scheduler cannot be reached
                self._workers = 0
            if self._workers:
                self._alive = time.monotonic()
        if self._client.status == "closed" or now - self._alive > 2 * ANSWER_TIMEOUT:
            hint = "start its scheduler and workers; then the same command continues"
            raise DeviceError(f"the cluster at {self._address} is gone", hint=hint)


def _chunks(tasks: Iterator[Task]) -> Iterator[_Chunk]:
    """Group tasks, so that small files share a chunk."""
    chunk: list[Task] = []
    for task in tasks:
        chunk.append(task)
        if len(chunk) == MAX_CHUNK_TASKS or sum(one.weight for one in chunk) >= CHUNK_PIXELS:
            yield _Chunk(chunk)
            chunk = []
    if chunk:
        yield _Chunk(chunk)


def _with_absolute_paths(task: Task) -> Task:
    """The task with absolute paths, as workers may have other current folders."""
    output = task.output and _absolute(task.output)
    return replace(task, source=_absolute(task.source), output=output)


def _absolute(path: Path) -> Path:
    return path if is_stored(path) else Path(os.path.abspath(path))


def _failed(tasks: list[Task], error: ImgmlpError) -> Iterator[Record]:
    for task in tasks:
        record = Record(task)
        record.fail(error)
        yield record


def _local(processes: int) -> Any:
    """A cluster of workers on this machine. They do not receive Ctrl-C; this process ends them."""
    if os.name == "posix":
        # Otherwise the first worker's thread would start it, with signals unblocked from then on.
        with blocked_for_new_threads():
            resource_tracker.ensure_running()
    with blocked_for_new_threads():
        return distributed.LocalCluster(
            n_workers=processes, threads_per_worker=1, dashboard_address=":0"
        )


def _silence() -> None:
    """Suppress Dask's log messages in this process, as errors are reported otherwise."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


async def _identity(address: str) -> None:
    secrets = Security().get_connection_args("client")
    async with distributed.rpc(address, connection_args=secrets) as scheduler:
        await scheduler.identity()


def _other_version(worker: str, theirs: str, ours: str) -> DeviceError:
    problem = f"the worker {worker} has imgmlp {theirs}, but this machine has {ours}"
    return DeviceError(problem, hint=VERSION_HINT)


# --- in a worker ---

_TURN = threading.Lock()  # a worker may have several threads; a device is for one at a time


def _version() -> str:
    return version("imgmlp")


@cache
def _open_device(device: str) -> AnyDevice:
    return open_device(device)


def _carry_out(job: _Job, tasks: list[Task]) -> list[Record]:
    """Carry out the tasks of a chunk; remote workers use the device of their environment."""
    worker, own = distributed.get_worker(), _version()
    if own != job.version:  # a worker that joined later
        return list(_failed(tasks, _other_version(worker.address, own, job.version)))
    device, records = job.device, []
    if job.here:
        _silence()
    else:
        device = os.environ.get("IMGMLP_DEVICE", device)

    def leaves() -> bool:
        """Whether the worker is being shut down; another one continues from the saved state."""
        return worker.status.name not in ("running", "paused")

    for task in tasks:
        with _TURN:
            record = attempt_elsewhere(job.work, task, lambda: _open_device(device), leaves)
        record.device = f"{device} of {worker.address}"
        records.append(record)
    return records
