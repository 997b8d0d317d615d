"""Buffers of a tile in local memory, where matrix units read the factors of products.

A factor lies there line by line, in half precision or as it is; other values lie as they are.
Lines that are a multiple of 128 bytes apart are swizzled and others padded, so that few of those
that are read at once meet in one bank; what is beyond a value's own lines and columns is zero, as
products run over it.
"""

from __future__ import annotations

import math

from imgmlp.engine.ir.conditions import xor
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.graph import Buffer, Node, Shape, buffer, move
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Expr

LINES = 16  # of a factor's, which matrix units take at once
CHUNK = 8  # elements of a line that they read at once
LINE = 128  # bytes that meet all banks once


class LocalBuffer(Buffer):
    """A Buffer of which every group has one in local memory; a factor's is [lines, pitch]."""

    __slots__ = ("extent", "stored")

    def __init__(self, shape: Shape, dtype: DType, stored: DType, extent: Shape, name: str) -> None:
        super().__init__(shape, dtype, name=name)
        self.stored = stored  # the type of its elements in memory
        self.extent = extent  # the shape of the value; the rest is padding

    @staticmethod
    def of(shape: Shape, dtype: DType, factor: DType | None, name: str) -> LocalBuffer:
        """A Buffer for a value; `factor` says as what products read it, which has two axes then."""
        if factor is None:
            return LocalBuffer((math.prod(shape),), dtype, dtype, shape, name)
        rows, columns = shape
        chunks = -(-columns // CHUNK)
        chunks += chunks % 2 == 0 and chunks * CHUNK * factor.itemsize % LINE != 0
        lines = -(-rows // LINES) * LINES
        return LocalBuffer((lines, chunks * CHUNK), dtype, factor, shape, name)

    @property
    def pitch(self) -> int:
        """Elements from line to line, 0 if this is no factor's."""
        return self.shape[1] if len(self.shape) == 2 else 0

    @property
    def cells(self) -> int:
        """Elements in local memory: also those that may be read beside the last line."""
        return self.size + (CHUNK if self.pitch else 0)

    @property
    def local_bytes(self) -> int:
        """Bytes in local memory, where each begins on 16 of them."""
        return -(-self.cells * self.stored.itemsize // 16) * 16

    @property
    def padded(self) -> bool:
        return self.pitch > 0 and self.extent != self.shape

    def cell(self, offset: Expr) -> Expr:
        """Where an element lies; the kernel's TURNED says the same. Those of 16 bytes stay
        neighbours."""
        size = self.stored.itemsize
        if not self.pitch or self.pitch * size % LINE:
            return offset
        line, column = offset // self.pitch, offset % self.pitch
        turned = line % 8 * 8 if size == 2 else line % 4 * 8 + line // 4 % 2 * 4
        return line * self.pitch + xor(column, turned)

    def takes(self, other: Buffer) -> bool:
        """Whether another value's elements and zeros lie as this one's."""
        if not isinstance(other, LocalBuffer):
            return False
        return (other.shape, other.stored, other.extent) == (self.shape, self.stored, self.extent)

    @property
    def place(self) -> Node:
        """Where the value lies."""
        if not self.pitch:
            return move(Op.RESHAPE, buffer(self), self.extent)
        return move(Op.SHRINK, buffer(self), tuple((0, n) for n in self.extent))
