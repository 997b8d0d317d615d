"""A picture file as Pillow reads it, beside what else looks at the same bytes.

Some of its plugins go on where they stopped before, or close what they were given.
"""

from __future__ import annotations

import io
from typing import BinaryIO


class _Place(io.RawIOBase):
    """Bytes of a stream, from a place of its own on."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._at = stream, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._stream.seek(self._at)
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset, whence = offset + self._at, io.SEEK_SET
        self._stream.seek(offset, whence)
        self._at = self._stream.tell()  # as some streams do not say where they are by then
        return self._at

    def tell(self) -> int:
        return self._at

    def fileno(self) -> int:
        try:
            return self._stream.fileno()
        except AttributeError:  # of a stream that has no more than Pillow asks for
            raise io.UnsupportedOperation("fileno") from None


def reader(stream: BinaryIO) -> BinaryIO:
    """What reads the same bytes from the first one on, and may be closed by itself."""
    return io.BufferedReader(_Place(stream))
