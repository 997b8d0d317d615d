"""Many files done by the workers of a Dask cluster, which reach the same files as this process.

Queue, heartbeats, and what becomes of the files of a worker that is lost are Dask's. A chunk of
files may be done twice, wholly or in part; what was written before is known and passed over. Knows
no codec.
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

CHUNK = 4  # files that travel together, if they are small
FILL = 2**20  # pixels of a chunk, so that a lost worker costs little
AHEAD = 2  # chunks for each worker that the scheduler knows of: one to do, one to come
ANSWER = 30.0  # seconds for a cluster to answer, or to have a worker again
LOOK = 2.0  # seconds between two looks at how many workers there are
SAME = "install the same version on this machine and on every worker"


@dataclass
class _Chunk:
    """Files that one worker is given at once."""

    tasks: list[Task]
    tries: int = 0  # how often it was lost with its workers, or found no device


@dataclass(frozen=True)
class _Job:
    """What a worker is to do with every file, and who asks."""

    work: Work
    device: str
    version: str
    here: bool  # for workers of this machine, whose environment is this process's


class Cluster:
    """Workers of a scheduler, or on this machine alone for as long as this lives."""

    def __init__(self, work: Work, address: str, device: str, processes: int) -> None:
        """Connect to tcp://…, or start `processes` workers here if `address` is "local".

        Raises DeviceError if nobody answers, if there is no worker, or if one has another version
        of imgmlp.
        """
        self._address = address
        self._job = _Job(work, device, _version(), address == LOCAL)
        self._again: deque[_Chunk] = deque()
        self._running: dict[Any, _Chunk] = {}
        self._workers, self._looked, self._alive = 0, 0.0, time.monotonic()
        _silence()
        self._own: Any = None
        try:
            self._client = self._connected(processes)
            self._workers = len(self._versions())
        except BaseException:
            self.close()
            raise

    def _connected(self, processes: int) -> Any:
        target: Any = self._address
        if target == LOCAL:
            target = self._own = _local(processes)
        try:
            if self._own is None:  # a Client waits for ever where somebody listens and is silent
                asyncio.run(asyncio.wait_for(_identity(target), ANSWER))
            return distributed.Client(target, timeout=ANSWER, set_as_default=False)
        except (OSError, ValueError) as error:  # a time-out is an OSError
            hint = "is a scheduler running there? `dask scheduler` prints its address"
            raise DeviceError(f"no cluster answers at {self._address}", hint=hint) from error
        except (ImportError, RuntimeError, TypeError) as error:  # Dask's, where it lacks something
            hint = "tls:// needs certificates in Dask's configuration, ucx:// a package of its own"
            raise DeviceError(f"Dask cannot connect to {self._address} here", hint=hint) from error

    def _versions(self) -> dict[str, object]:
        """Each worker's version. Raises DeviceError if it is not this one everywhere."""
        try:
            self._client.wait_for_workers(1, timeout=ANSWER)
        except TimeoutError as error:
            hint = f"start some: `dask worker {self._address}`"
            raise DeviceError(f"the cluster at {self._address} has no worker", hint=hint) from error
        try:
            versions = self._client.run(_version, on_error="return")
        except OSError:  # a worker goes away at this moment; each is asked again with its files
            return {}
        for worker, theirs in versions.items():
            if isinstance(theirs, Exception) and not isinstance(theirs, OSError):
                theirs = f"an unknown version ({theirs!r})"
            if isinstance(theirs, str) and theirs != self._job.version:
                raise _other_version(worker, theirs, self._job.version)
        return dict(versions)

    def seats(self) -> list[Seat]:
        """How many workers there are, and what they have to do."""
        files = sum(len(chunk.tasks) for chunk in self._running.values())
        return [Seat(f"{self._workers} workers", f"{files:,} files" if files else "")]

    def run(self, tasks: Iterator[Task], stopping: Stopping, tick: Callable[[], None]) -> Records:
        """Do files; records come as chunks end. `tick` is called several times a second.

        Ends early where it is asked to stop or the disk is full; what workers are doing then, they
        finish, and the next run knows it. Raises DeviceError if the cluster is gone for good.
        """
        chunks, full = _chunks(tasks), False
        try:
            while not stopping():
                self._look()
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
        """Let go of the cluster; workers of this process's own are ended."""
        for part in (self.__dict__.get("_client"), self._own):
            if part is not None:
                part.close()

    def _hand_out(self, chunks: Iterator[_Chunk]) -> None:
        while len(self._running) < AHEAD * max(1, self._workers):
            # Whatever may have ended its workers is done alone, not to be mistaken for another.
            alone = any(chunk.tries for chunk in self._running.values())
            waits = self._again and not (alone and self._again[0].tries)
            chunk = self._again.popleft() if waits else next(chunks, None)
            if chunk is None:
                return
            key = f"imgmlp-{uuid.uuid4()}"
            tasks = [_sent(task) for task in chunk.tasks]
            future = self._client.submit(_do, self._job, tasks, key=key, pure=False)
            self._running[future] = chunk

    def _ended(self, future: Any, chunk: _Chunk) -> Iterator[Record]:
        """Records of files that are done or cannot be; others go back to those that wait."""
        try:
            records = future.result(timeout=ANSWER)
        except KilledWorker:
            yield from self._lost(chunk)
            return
        except (distributed.CancelledError, OSError):  # the scheduler went away, or is going
            self._again.append(chunk)
            return
        except Exception as error:
            problem = f"the cluster failed: {type(error).__name__}: {error}"
            yield from _failed(chunk.tasks, ImgmlpError(problem, hint=SAME))
            return
        future.release()  # or it would be done again if its worker went away now
        for task, record in zip(chunk.tasks, records, strict=True):
            if record.interrupted:  # its worker left in good order
                self._again.append(_Chunk([task], chunk.tries))
            elif record.elsewhere and chunk.tries < MAX_TRIES:
                self._again.append(_Chunk([task], chunk.tries + 1))
            else:
                record.task = task
                yield record

    def _lost(self, chunk: _Chunk) -> Iterator[Record]:
        """Every worker that was given the chunk is gone: then each of its files alone."""
        if len(chunk.tasks) > 1 or chunk.tries < MAX_TRIES:
            alone = (_Chunk([task], chunk.tries + 1) for task in chunk.tasks)
            self._again.extend(alone)
            return
        hint = "its driver may have failed, or memory ran out: see the workers' logs"
        problem = f"{url(chunk.tasks[0].source)}: every worker that tried it died"
        yield from _failed(chunk.tasks, TrainingError(problem, hint=hint))

    def _look(self) -> None:
        """See now and then who is there. Raises DeviceError if nobody has been for long."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            try:
                self._workers = len(self._client.nthreads())
            except Exception:  # Dask's or Python's own: the scheduler is gone, perhaps for good
                self._workers = 0
            if self._workers:
                self._alive = time.monotonic()
        if self._client.status == "closed" or now - self._alive > 2 * ANSWER:
            hint = "start its scheduler and workers; then the same command continues"
            raise DeviceError(f"the cluster at {self._address} is gone", hint=hint)


def _chunks(tasks: Iterator[Task]) -> Iterator[_Chunk]:
    """Few large files or more small ones."""
    chunk: list[Task] = []
    for task in tasks:
        chunk.append(task)
        if len(chunk) == CHUNK or sum(one.weight for one in chunk) >= FILL:
            yield _Chunk(chunk)
            chunk = []
    if chunk:
        yield _Chunk(chunk)


def _sent(task: Task) -> Task:
    """The task as any worker sees it, whatever folder it was started in."""
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
    """Workers on this machine, which do not hear of Ctrl-C: it is for this process, which ends
    them."""
    if os.name == "posix":
        with (
            blocked_for_new_threads()
        ):  # else the first worker's thread starts it, and hears from then on
            resource_tracker.ensure_running()
    with blocked_for_new_threads():
        return distributed.LocalCluster(
            n_workers=processes, threads_per_worker=1, dashboard_address=":0"
        )


def _silence() -> None:
    """Have Dask tell nothing in this process: what matters of it is told otherwise."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


async def _identity(address: str) -> None:
    secrets = Security().get_connection_args("client")
    async with distributed.rpc(address, connection_args=secrets) as scheduler:
        await scheduler.identity()


def _other_version(worker: str, theirs: str, ours: str) -> DeviceError:
    problem = f"the worker {worker} has imgmlp {theirs}, but this machine has {ours}"
    return DeviceError(problem, hint=SAME)


# --- inside of a worker ---

_TURN = threading.Lock()  # a worker may have several threads; a device is for one at a time


def _version() -> str:
    return version("imgmlp")


@cache
def _opened(device: str) -> AnyDevice:
    return open_device(device)


def _do(job: _Job, tasks: list[Task]) -> list[Record]:
    """Do the files of a chunk, on the device that a worker elsewhere has in its environment."""
    worker, own = distributed.get_worker(), _version()
    if own != job.version:  # of a worker that came later
        return list(_failed(tasks, _other_version(worker.address, own, job.version)))
    device, records = job.device, []
    if job.here:
        _silence()
    else:
        device = os.environ.get("IMGMLP_DEVICE", device)

    def leaves() -> bool:
        """Whether the worker is to leave: another one goes on from the state that it saves."""
        return worker.status.name not in ("running", "paused")

    for task in tasks:
        with _TURN:
            record = attempt_elsewhere(job.work, task, lambda: _opened(device), leaves)
        record.device = f"{device} of {worker.address}"
        records.append(record)
    return records
