"""Parts of programs that other processes build meanwhile.

NVIDIA's driver compiles a program when it is built, on one thread of a process, and keeps on disk
what it made of a source. So where programs are new, other processes (build_for.py) build some of
their parts, the last of all first. Whoever comes to such a part finds it there: nothing depends on
these processes.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from imgmlp import child

IDLE = 5.0  # seconds without a part after which one ends, as it holds some of the device's memory
NOT_KEPT = 0.25  # seconds that a part takes, at least, which the driver does not find on disk
PATIENCE = 60.0  # seconds for the last parts of others, before these are taken for lost
PROCESS = "imgmlp.engine.device.build_for"


class Builders:
    """So many processes for a device, until they have nothing to do or are closed."""

    def __init__(self, spec: str, count: int) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()  # parts that nobody builds
        self._taken: set[str] = set()  # those that others build
        self._closed = False
        self.useless = False  # as the driver does not keep what they build
        self._workers = [child.Worker(PROCESS, spec) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def working(self) -> bool:
        """Whether any of them would still take a part."""
        return not self._closed and any(thread.is_alive() for thread in self._threads)

    def build(self, parts: Sequence[str], own: Callable[[str], object]) -> float:
        """Have parts built, all of them by `own` in the end; the seconds that others were waited
        for. Where the driver does not keep what these built, they end."""
        mine = set[str]()
        self._offer(parts)
        try:
            while (part := self._next()) is not None:
                own(part)
                mine.add(part)
        finally:
            self._offer(())
        waited = self._wait()
        for part in parts:
            if part not in mine:
                began = time.perf_counter()
                own(part)
                if time.perf_counter() - began > NOT_KEPT and not self.useless:
                    self.useless = True
                    self.close()
        return waited

    def close(self) -> None:
        """Have no more built by them, whatever they are doing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.end()

    def _offer(self, parts: Sequence[str]) -> None:
        with self._changed:
            self._waiting = deque(parts)
            self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def _wait(self) -> float:
        began = time.perf_counter()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._taken, PATIENCE)
        if not done:
            self.close()
        return time.perf_counter() - began

    def _serve(self, worker: child.Worker) -> None:
        """Give one of them parts as long as there are some, and it lives."""
        part: str | None = None
        with worker:
            while worker.hear():
                part = self._another(part)
                if part is None:
                    return
                worker.tell(part)
        self._another(part, ended=True)

    def _another(self, done: str | None, ended: bool = False) -> str | None:
        """Take a part after another one, waiting for it; none where there is nothing to do."""
        with self._changed:
            self._taken.discard(done or "")
            self._changed.notify_all()
            if ended or not self._changed.wait_for(lambda: self._waiting or self._closed, IDLE):
                return None
            if self._closed:
                return None
            part = self._waiting.pop()
            self._taken.add(part)
            return part


def task(source: str, options: Sequence[str]) -> str:
    """A part as a process is told of it."""
    return json.dumps([source, list(options)])
