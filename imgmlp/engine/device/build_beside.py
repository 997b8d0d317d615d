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
from contextlib import nullcontext, suppress

from imgmlp import child
from imgmlp.errors import DeviceError

# Seconds without a part after which one ends, as it holds some of the device's memory: behind a
# program, and where one is expected, which is lowered before.
IDLE, EXPECTED = 5.0, 120.0
NOT_KEPT = 0.25  # seconds that a part takes, at least, which the driver does not find on disk
PATIENCE = 60.0  # seconds for the last parts of others, before these are taken for lost
PROCESS = "imgmlp.engine.device.build_for"


class Builders:
    """So many processes for a device, until they have nothing to do or are closed."""

    def __init__(self, spec: str, count: int) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()  # parts that nobody builds
        self._taken: set[str] = set()  # those that others build
        self._built: set[str] = set()  # those that others have built, and nobody has asked for
        self._until = time.monotonic() + EXPECTED  # how long they stay without a part
        self._closed = self._given_up = self._served = False
        self._workers: list[child.Worker] = []
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self._begin(child.Worker(PROCESS, spec))

    def _begin(self, worker: child.Worker) -> None:
        thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no more of them
            worker.end()
            return
        self._workers.append(worker)
        self._threads.append(thread)

    @property
    def working(self) -> bool:
        """Whether any of them would still take a part."""
        return not self._closed and any(thread.is_alive() for thread in self._threads)

    @property
    def useless(self) -> bool:
        """Whether others had better not be begun: none got ready, one never answered, or the driver
        does not keep what they build."""
        return self._given_up or not (self._served or self.working)

    def expect(self) -> None:
        """Have them wait for a program that takes some time to come."""
        self._stay(EXPECTED)

    def offer(self, parts: Sequence[str]) -> None:
        """Have others begin with parts that will be wanted."""
        with self._changed:
            known = {*self._waiting, *self._taken, *self._built}
            self._waiting.extend(part for part in parts if part not in known)
            self._changed.notify_all()

    def build(self, parts: Sequence[str], own: Callable[[str], object]) -> float:
        """Have parts built, all of them by `own` in the end; the seconds that others were waited
        for. What else was offered is built as well; who wants that meets the error if it fails."""
        mine, wanted = set[str](), set(parts)
        self.offer(parts)
        try:
            while (part := self._next()) is not None:
                with nullcontext() if part in wanted else suppress(DeviceError):
                    own(part)
                mine.add(part)
            waited = self._wait(wanted)
        finally:
            with self._changed:
                self._waiting.clear()
            self._stay(IDLE)
        theirs, lost = [part for part in parts if part not in mine], 0
        for part in theirs:
            began = time.perf_counter()
            own(part)
            with self._changed:
                built = part in self._built
                self._built.discard(part)
            lost += built and time.perf_counter() - began > NOT_KEPT
        if 2 * lost > len(theirs):
            self._give_up()
        return waited

    def close(self) -> None:
        """Have no more built by them, whatever they are doing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()

    def _give_up(self) -> None:
        self._given_up = True
        self.close()

    def _stay(self, seconds: float) -> None:
        with self._changed:
            self._until = time.monotonic() + seconds
            self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def _wait(self, parts: set[str]) -> float:
        """For those of the parts that others build; the seconds, unless it was in vain."""
        began = time.perf_counter()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._taken & parts, PATIENCE)
        if done:
            return time.perf_counter() - began
        self._give_up()
        return 0.0

    def _serve(self, worker: child.Worker) -> None:
        """Give one of them parts as long as there are some, and it lives."""
        part: str | None = None
        try:
            with worker:
                while worker.wait_until_ready():
                    self._note(part)
                    part = self._another()
                    if part is None:
                        return
                    worker.send(json.dumps(part))
        finally:
            self._drop(part)

    def _note(self, part: str | None) -> None:
        """That one is ready, and has built a part if it had one."""
        with self._changed:
            self._served = True
            if part is not None:
                self._built.add(part)
        self._drop(part)

    def _drop(self, part: str | None) -> None:
        """That nobody builds a part any more."""
        with self._changed:
            if part is not None:
                self._taken.discard(part)
            self._changed.notify_all()

    def _another(self) -> str | None:
        """Take a part, waiting for it; none where there is nothing to do."""
        with self._changed:
            while not self._waiting and not self._closed:
                left = self._until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if self._closed:
                return None
            part = self._waiting.pop()
            self._taken.add(part)
            return part
