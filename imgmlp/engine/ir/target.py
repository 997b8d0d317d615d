"""The properties of a device that the compiler decides by, and sizes that several passes share.

No pass asks a device anything: runtime/program.py describes it by a Target. This module knows no
graphs and no instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imgmlp.engine.ir.dtype import DType, f16, f32

Lanes = Literal["one", "group"]
# How precise the user wants matrix products to be: float32, or factors rounded to half precision.
# "exact" is for whole numbers, which must not be rounded or split.
Precision = Literal["float32", "half", "exact"]
# How a device computes products of float32 matrices: "float32" by ordinary instructions, the others
# by matrix units. "split" splits each element into two TF32 numbers, "half" rounds it.
ProductMode = Literal["float32", "split", "half"]
MATRIX_UNIT_MODES: dict[Precision, ProductMode] = {
    "float32": "split",
    "half": "half",
    "exact": "float32",
}
# The dtype that the factors have in local memory, for each mode that uses matrix units.
FACTOR_DTYPES: dict[ProductMode, DType] = {"split": f32, "half": f16}

MIN_VECTOR_WIDTH = 8  # float32 elements; kernels for CPUs need vectors of at least so many

# --- work-groups on a GPU ---
LANES_PER_GROUP = 128  # work-items; as 8 by 16 for the tile of a product
GPU_TILE_SIDE = 64  # columns of a product's tile, and its maximum number of rows
# Columns of the tiles of products that have no more: on matrix units, and on any GPU.
SLIM_TILE_COLUMNS = 32
NARROW_TILE_COLUMNS = 8
# Local memory that a group may use for values. What its lanes exchange takes the rest of 48 KiB.
LOCAL_MEMORY_BYTES = 47 << 10
FACTOR_SLICE_BYTES = 64 * 128  # of a factor that passes through local memory in slices

# Rows of a block's tile. Sums over rows are added to memory once for each tile.
MAX_BLOCK_TILE_ROWS = 256

# --- work-groups that stay for several steps (kernels/persistent.cl) ---
PHASE_COUNTER_WORDS = 48  # 32 bits each: three counters, each in a cache line of its own
MAX_UNITS_PER_PHASE = 24  # units of work, one bit each in the counter of units that are taken


@dataclass(frozen=True, slots=True)
class Target:
    """A device as the compiler sees it."""

    # Work-items of a work-group: one that loops over the group's work, or many that share it.
    lanes: Lanes = "one"
    compute_units: int = 1
    vector_width: int = MIN_VECTOR_WIDTH  # float32 elements of the widest vectors to use
    alignment: int = 128  # bytes; everything in an allocation begins at a multiple of it
    can_slice: bool = True  # whether a part of an allocation can be an argument of a kernel
    # Whether several kernels may be joined into one launch; blocks are such launches too.
    can_join_kernels: bool = True
    keeps_groups: bool = False  # whether work-groups may stay for several steps
    has_queues: bool = False  # whether launches in two queues run at the same time
    # Rows of the batch of the block that runs in the second queue. It gets fewer work-groups, so
    # that others can run at the same time. 0: there is none.
    side_block_rows: int = 0
    product_mode: ProductMode = "float32"
    max_tile_rows: int = MAX_BLOCK_TILE_ROWS  # rows of a block's tile

    @property
    def vector_pair_width(self) -> int:
        """Elements of two vectors: the columns of a product's tile on a CPU, and the accumulators
        of a reduction."""
        return 2 * self.vector_width
