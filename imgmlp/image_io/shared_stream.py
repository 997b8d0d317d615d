"""Independent readers of one stream, for Pillow.

Some of Pillow's plugins rely on the position of the stream between calls, or close the stream,
while other modules read the same file.
"""

from __future__ import annotations

import io
from typing import BinaryIO


class _IndependentReader(io.RawIOBase):
    """The bytes of a stream, with a position of its own."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._position = stream, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._stream.seek(self._position)
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset, whence = offset + self._position, io.SEEK_SET
        self._stream.seek(offset, whence)
        self._position = self._stream.tell()  # `seek` of some streams returns nothing
        return self._position

    def tell(self) -> int:
        return self._position

    def fileno(self) -> int:
        try:
            return self._stream.fileno()
        except AttributeError:  # a stream with only the methods that Pillow needs
            raise io.UnsupportedOperation("fileno") from None


def reader(stream: BinaryIO) -> BinaryIO:
    """A buffered reader of the whole stream; closing it does not close the stream."""
    return io.BufferedReader(_IndependentReader(stream))
