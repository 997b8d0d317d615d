"""Counts of allocated memory are right if several threads allocate and free."""

from __future__ import annotations

import time
from threading import Thread

from imgmlp.engine.device.base import Usage


class SlowInt(int):
    """An int with a slow addition, so that unlocked updates by threads would be lost."""

    def __add__(self, other: int) -> SlowInt:
        time.sleep(0.01)
        return SlowInt(int(self) + other)

    def __sub__(self, other: int) -> SlowInt:
        return self + -other


def test_usage_is_counted_correctly_by_concurrent_threads() -> None:
    usage = Usage(SlowInt(0), SlowInt(0), SlowInt(0))
    work = [Thread(target=usage.take, args=(5,)) for _ in range(3)]
    work.append(Thread(target=usage.free, args=(5,)))
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert (usage.live, usage.live_bytes, usage.freed) == (2, 10, 1)
