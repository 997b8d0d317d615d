"""Freed allocations of a device, kept for the next request of the same size.

When memory is released, drivers of graphics cards wait for the device and for other processes on
it, and successive pictures need the same sizes. Queued work may still use a kept buffer, so it only
serves work that is queued later.
"""

from __future__ import annotations

from typing import Any


class Spare:
    """Free buffers by their sizes, of at most `most` bytes in total."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[int, list[Any]] = {}
        self._bytes = 0

    def give(self, size: int, buffer: Any) -> None:
        """Keep a buffer. If it does not fit beside the others, they are released first."""
        if self._bytes + size > self.most:
            self.clear()
        if size <= self.most:
            self._kept.setdefault(size, []).append(buffer)
            self._bytes += size

    def take(self, size: int) -> Any:
        """A buffer of exactly this size, with undefined content, or None."""
        kept = self._kept.get(size)
        if not kept:
            return None
        self._bytes -= size
        return kept.pop()

    def clear(self) -> bool:
        """Release all buffers to the driver; returns whether there were any."""
        self._kept, kept, self._bytes = {}, self._kept, 0
        return any(kept.values())
