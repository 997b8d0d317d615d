"""Memory of a device that nobody uses any more, kept for whoever wants as much of it next.

Drivers of graphics cards wait for the device, and for other processes on it, when memory is given
back; one picture after the other needs the same. What is kept may still be in use by work that is
queued, so that it serves only what is queued later.
"""

from __future__ import annotations

from typing import Any


class Spare:
    """Buffers by their sizes, of at most so many bytes together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[int, list[Any]] = {}
        self._bytes = 0

    def give(self, size: int, buffer: Any) -> None:
        """Keep a buffer; where there is no room for it beside the others, it alone."""
        if self._bytes + size > self.most:
            self.clear()
        if size <= self.most:
            self._kept.setdefault(size, []).append(buffer)
            self._bytes += size

    def take(self, size: int) -> Any:
        """A buffer of just this size and undefined content, or None."""
        kept = self._kept.get(size)
        if not kept:
            return None
        self._bytes -= size
        return kept.pop()

    def clear(self) -> bool:
        """Give all of it back to the driver; whether there was any."""
        self._kept, kept, self._bytes = {}, self._kept, 0
        return any(kept.values())
