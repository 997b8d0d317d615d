"""Buffers in local memory, where a tile's values are and matrix units read the factors of products.

The factor of a product is stored line by line, in float32 or in half precision. Lines whose pitch
is a multiple of 128 bytes are swizzled, others are padded, so that few of the elements that are
read at once share a memory bank. Lines and columns beyond the value's own are zero, because
products read them as well. A value that is no factor is stored as it is.
"""

from __future__ import annotations

import math

from imgmlp.engine.ir.conditions import xor
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.graph import Buffer, Node, Shape, buffer, move
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Expr

LINES_PER_READ = 16  # lines of a factor that matrix units read at once
ELEMENTS_PER_READ = 8  # elements of each of these lines
BYTES_OF_ALL_BANKS = 128  # contiguous bytes that are in all memory banks once


class LocalBuffer(Buffer):
    """A Buffer in the local memory of each group. That of a factor has the shape [lines, pitch]."""

    __slots__ = ("extent", "stored")

    def __init__(self, shape: Shape, dtype: DType, stored: DType, extent: Shape, name: str) -> None:
        super().__init__(shape, dtype, name=name)
        self.stored = stored  # the dtype of the elements in local memory
        self.extent = extent  # the shape of the value; all else is padding

    @staticmethod
    def of(shape: Shape, dtype: DType, factor: DType | None, name: str) -> LocalBuffer:
        """A Buffer for a value. `factor` is the dtype in which products read it, or None.

        A factor has two axes.
        """
        if factor is None:
            return LocalBuffer((math.prod(shape),), dtype, dtype, shape, name)
        rows, columns = shape
        chunks = -(-columns // ELEMENTS_PER_READ)
        chunks += (
            chunks % 2 == 0
            and chunks * ELEMENTS_PER_READ * factor.itemsize % BYTES_OF_ALL_BANKS != 0
        )
        lines = -(-rows // LINES_PER_READ) * LINES_PER_READ
        return LocalBuffer((lines, chunks * ELEMENTS_PER_READ), dtype, factor, shape, name)

    @property
    def pitch(self) -> int:
        """Elements from line to line of a factor; 0 for another value."""
        return self.shape[1] if len(self.shape) == 2 else 0

    @property
    def cells(self) -> int:
        """Elements in local memory, with those after the last line that may be read as well."""
        return self.size + (ELEMENTS_PER_READ if self.pitch else 0)

    @property
    def local_bytes(self) -> int:
        """Bytes in local memory, where each Buffer begins at a multiple of 16."""
        return -(-self.cells * self.stored.itemsize // 16) * 16

    @property
    def is_padded(self) -> bool:
        return self.pitch > 0 and self.extent != self.shape

    def cell(self, offset: Expr) -> Expr:
        """The offset in local memory of the element at an offset of the value.

        Elements of the same 16 bytes stay together. SWIZZLE in product_matrix.cl computes the same.
        """
        size = self.stored.itemsize
        if not self.pitch or self.pitch * size % BYTES_OF_ALL_BANKS:
            return offset
        line, column = offset // self.pitch, offset % self.pitch
        swizzle = line % 8 * 8 if size == 2 else line % 4 * 8 + line // 4 % 2 * 4
        return line * self.pitch + xor(column, swizzle)

    def has_layout_of(self, other: Buffer) -> bool:
        """Whether another Buffer has its elements and zeros at the same offsets."""
        if not isinstance(other, LocalBuffer):
            return False
        return (other.shape, other.stored, other.extent) == (self.shape, self.stored, self.extent)

    @property
    def place(self) -> Node:
        """The place of the value, without the padding."""
        if not self.pitch:
            return move(Op.RESHAPE, buffer(self), self.extent)
        return move(Op.SHRINK, buffer(self), tuple((0, n) for n in self.extent))
