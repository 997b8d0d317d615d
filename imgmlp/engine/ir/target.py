"""What a step is compiled for: facts of a device that passes decide by, and sizes they share.

No pass asks a device: what one is told of it stands here. This module knows no graph and no
instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imgmlp.engine.ir.dtype import DType, f16, f32

Lanes = Literal["one", "group"]
# Of products: that of float32, of factors in half precision, or whole numbers as they are.
Precision = Literal["float32", "half", "exact"]
# How: by a device's lanes, or by its matrix units, for which each element is split in two numbers
# of TF32, or rounded.
Multiply = Literal["float32", "split", "half"]
FACTORS: dict[Multiply, DType] = {"split": f32, "half": f16}  # as what they lie in local memory
ON_MATRIX_UNITS: dict[Precision, Multiply] = {
    "float32": "split",
    "half": "half",
    "exact": "float32",
}
NARROW = 8  # columns of the tile of a product that has no more; the least vector of float32
TURNS = 48  # words in which work-groups that stay for several steps count (kernels/persistent.cl)
MOST_UNITS = 24  # of one of their phases: bits of such a word
GPU_TILE = 64  # columns of a product's tile on a GPU, and most of its rows
SLIM = 32  # the same of one by matrix units if the product has no more
GPU_LANES = 128  # lanes that work on it, 8 x 16; also those that share one long reduction
BLOCK_ROWS = 256  # most rows of a block's tile: sums over rows are added to memory once a tile
LOCAL = 47 << 10  # bytes that a group may take; what lanes exchange takes the rest of 48 KiB
SLICE = 64 * 128  # bytes of a factor's slice on its way through local memory


@dataclass(frozen=True, slots=True)
class Target:
    """A device as passes see it."""

    lanes: Lanes = "one"  # work-items of a group: one, or as many as share its work
    units: int = 1  # compute units
    vector: int = NARROW  # elements of the widest vectors that its compiler may be given
    align: int = 128  # bytes, of whatever begins inside of an allocation
    slices: bool = True  # whether an allocation can be sliced
    joins: bool = True  # whether a launch may be of several kernels, which blocks are too
    stays: bool = False  # whether work-groups may stay for several steps
    queues: bool = False  # whether launches of two queues run at the same time
    aside: int = 0  # rows of a block that leaves room for what runs beside it
    multiply: Multiply = "float32"  # how products do, where splitting pays
    block_rows: int = BLOCK_ROWS  # most rows of a block's tile

    @property
    def wide(self) -> int:
        """Columns of a product's tile on a CPU, and accumulators of a reduction: two vectors."""
        return 2 * self.vector
