"""Rooms of a tile in local memory, where matrix units read the factors of products.

A factor lies there in half precision, line by line; other values lie as they are. Lines that are
a multiple of 64 elements apart are swizzled and others padded, so that eight lines meet all banks
once; what is beyond a value's own lines and columns is zero, as products run over it.
"""

from __future__ import annotations

import math

from imgmlp.engine.dtype import DType, f16
from imgmlp.engine.graph import Buffer, Node, Op, Shape, buffer, move

LINES = 16  # of a factor's, which matrix units take at once
CHUNK = 8  # elements of a line that they read at once


class LocalRoom(Buffer):
    """A Buffer of which every group has one in local memory; a factor's is [lines, pitch]."""

    __slots__ = ("extent", "stored")

    def __init__(self, shape: Shape, dtype: DType, stored: DType, extent: Shape, name: str) -> None:
        super().__init__(shape, dtype, name=name)
        self.stored = stored  # the type of its elements in memory
        self.extent = extent  # the shape of the value; the rest is padding

    @staticmethod
    def of(shape: Shape, dtype: DType, factor: bool, name: str) -> LocalRoom:
        """Room for a value; `factor` says whether products read it, which has two axes then."""
        if not factor:
            return LocalRoom((math.prod(shape),), dtype, dtype, shape, name)
        rows, columns = shape
        chunks = -(-columns // CHUNK)
        chunks += chunks % 2 == 0 and chunks % CHUNK != 0
        lines = -(-rows // LINES) * LINES
        return LocalRoom((lines, chunks * CHUNK), dtype, f16, shape, name)

    @property
    def pitch(self) -> int:
        """Elements from line to line, 0 if this is no factor's."""
        return self.shape[1] if len(self.shape) == 2 else 0

    @property
    def room(self) -> int:
        """Bytes in local memory."""
        return self.size * self.stored.itemsize

    @property
    def padded(self) -> bool:
        return self.pitch > 0 and self.extent != self.shape

    def takes(self, other: Buffer) -> bool:
        """Whether another value's elements and zeros lie as this one's."""
        if not isinstance(other, LocalRoom):
            return False
        return (other.shape, other.stored, other.extent) == (self.shape, self.stored, self.extent)

    @property
    def place(self) -> Node:
        """Where the value lies."""
        if not self.pitch:
            return move(Op.RESHAPE, buffer(self), self.extent)
        return move(Op.SHRINK, buffer(self), tuple((0, n) for n in self.extent))
