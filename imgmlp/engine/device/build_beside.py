"""Builds parts of programs in parallel processes, for NVIDIA's driver.

The driver compiles a program when it is built, on a single thread of the process, and caches the
result of each source on disk. If a program is new, other processes (build_for.py) build some of its
parts, the last one first. This process then finds them in the driver's cache. Nothing is lost if
these processes fail.
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

# Seconds without a part after which a process ends, as it occupies memory of the device: after a
# program was built, and while one is expected, which is lowered meanwhile.
IDLE_TIMEOUT, EXPECTED_TIMEOUT = 5.0, 120.0
MIN_BUILD_SECONDS = 0.25  # that a part takes at least if it is not in the driver's cache
LAST_PARTS_TIMEOUT = 60.0  # seconds to wait for parts that other processes are building
MODULE = "imgmlp.engine.device.build_for"


class Builders:
    """`count` processes that build parts for a device, until they are idle for long or closed."""

    def __init__(self, spec: str, count: int) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()  # parts that are not being built
        self._in_progress: set[str] = set()  # parts that the processes are building
        self._built: set[str] = set()  # parts that they have built and that were not used yet
        self._idle_until = time.monotonic() + EXPECTED_TIMEOUT  # when idle processes end
        self._closed = self._has_given_up = self._was_ready = False
        self._workers: list[child.Worker] = []
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self._begin(child.Worker(MODULE, spec))

    def _begin(self, worker: child.Worker) -> None:
        thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads can be started
            worker.end()
            return
        self._workers.append(worker)
        self._threads.append(thread)

    @property
    def working(self) -> bool:
        """Whether any process would still take a part."""
        return not self._closed and any(thread.is_alive() for thread in self._threads)

    @property
    def is_useless(self) -> bool:
        """Whether new processes would not help: none became ready, one never answered, or the
        driver does not cache what they build."""
        return self._has_given_up or not (self._was_ready or self.working)

    def expect(self) -> None:
        """Keep the processes waiting for a program that will come after some time."""
        self._stay_idle(EXPECTED_TIMEOUT)

    def offer(self, parts: Sequence[str]) -> None:
        """Let the processes begin with parts that will be needed."""
        with self._changed:
            seen = {*self._waiting, *self._in_progress, *self._built}
            self._waiting.extend(part for part in parts if part not in seen)
            self._changed.notify_all()

    def build(self, parts: Sequence[str], own: Callable[[str], object]) -> float:
        """Build parts, with the processes' help; returns the seconds spent waiting for these.

        In the end `own` is called for every part; it takes little time where the result is cached.
        Other parts that were offered are built as well. If one of those fails, the error comes up
        when it is needed.
        """
        own_parts, needed = set[str](), set(parts)
        self.offer(parts)
        try:
            while (part := self._next()) is not None:
                with nullcontext() if part in needed else suppress(DeviceError):
                    own(part)
                own_parts.add(part)
            waited = self._wait(needed)
        finally:
            with self._changed:
                self._waiting.clear()
            self._stay_idle(IDLE_TIMEOUT)
        others, uncached = [part for part in parts if part not in own_parts], 0
        for part in others:
            began = time.perf_counter()
            own(part)
            with self._changed:
                built = part in self._built
                self._built.discard(part)
            uncached += built and time.perf_counter() - began > MIN_BUILD_SECONDS
        if 2 * uncached > len(others):
            self._give_up()
        return waited

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()

    def _give_up(self) -> None:
        self._has_given_up = True
        self.close()

    def _stay_idle(self, seconds: float) -> None:
        with self._changed:
            self._idle_until = time.monotonic() + seconds
            self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def _wait(self, parts: set[str]) -> float:
        """Wait for parts that the processes build; returns the seconds, 0 after a timeout."""
        began = time.perf_counter()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._in_progress & parts, LAST_PARTS_TIMEOUT)
        if done:
            return time.perf_counter() - began
        self._give_up()
        return 0.0

    def _serve(self, worker: child.Worker) -> None:
        """Give one process parts, as long as there are any and it lives."""
        part: str | None = None
        try:
            with worker:
                while worker.wait_until_ready():
                    self._record_ready(part)
                    part = self._wait_for_part()
                    if part is None:
                        return
                    worker.send(json.dumps(part))
        finally:
            self._record_end(part)

    def _record_ready(self, part: str | None) -> None:
        """Record that a process is ready, and has built its part if it had one."""
        with self._changed:
            self._was_ready = True
            if part is not None:
                self._built.add(part)
        self._record_end(part)

    def _record_end(self, part: str | None) -> None:
        """Record that a part is not being built any more."""
        with self._changed:
            if part is not None:
                self._in_progress.discard(part)
            self._changed.notify_all()

    def _wait_for_part(self) -> str | None:
        """Wait for a part and take it; None if the process should end."""
        with self._changed:
            while not self._waiting and not self._closed:
                left = self._idle_until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if self._closed:
                return None
            part = self._waiting.pop()
            self._in_progress.add(part)
            return part
