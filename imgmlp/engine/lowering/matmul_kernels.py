"""Lowering of matrix products: tiles with register blocking.

On a CPU one work-item computes a tile. Tiles of few enough terms stay in registers until they are
stored; others are formed in a private array. On a GPU the lanes of a group share the sums of a tile
in registers. Matrix units leave each lane elements that it stores itself; other sums go through
local memory, so that each lane stores neighbours. In a block, sums over rows may stay in registers
from one tile of rows to the next. The loops over terms are building blocks in kernels/*.cl.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.ir.conditions import all_of, less
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.index_values import source_and_access
from imgmlp.engine.ir.kernel import Kernel, Store, part_begin, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, linear_parts, unravel
from imgmlp.engine.ir.target import (
    FACTOR_DTYPES,
    GPU_TILE_SIDE,
    LANES_PER_GROUP,
    MIN_VECTOR_WIDTH,
    NARROW_TILE_COLUMNS,
    SLIM_TILE_COLUMNS,
    Target,
)
from imgmlp.engine.ir.uops import Builder, Product, Range, U
from imgmlp.engine.ir.view import View
from imgmlp.engine.lowering.expressions import DeferredStores, Lowering, lower_stores

CPU_TILE_ROWS = 64  # rows of a product's tile on a CPU
# Rows of a tile in registers, by the elements of a vector and the tile's columns. Vectors of 16
# come with 32 registers instead of 16. With them 13 rows of 32 columns save 2% of a step but take
# longer to compile (docs/performance-notes.md, "One tile on one core", "Vectors of sixteen").
MAX_REGISTER_ROWS = {8: {16: 6, 8: 8}, 16: {32: 8, 16: 8, 8: 8}}
MAX_REGISTER_TERMS = 256  # of a tile in registers: 16 or 32 KiB of the right factor
# Tiles whose vectors take neighbouring terms instead of neighbouring columns ("along").
ALONG_REGISTERS = {8: 11, 16: 22}  # for sums and left vectors, by the elements of a vector
MAX_ALONG_ROWS = 8
MIN_ALONG_TERMS = 128  # fewer do not pay for adding up the elements of each vector


@dataclass(frozen=True)
class _Tile:
    """A tile of a kernel's product, and its position in the result."""

    product: Product
    left: int  # the parameters of both factors
    right: int
    lead: tuple[Expr, ...]  # indices in a batch of products
    row: Expr  # of the tile's first element
    column: Expr
    row_tile: Expr  # how many tiles of the same columns lie above it


def matmul_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """Lower a kernel around a product; returns the launch's global and local size."""
    core, build = kernel.core, lower.build
    assert core is not None
    wanted = 0 if lower.in_block else 4 * lower.target.compute_units
    if lower.target.lanes == "one":
        panels = _column_panels(core, lower.target)
        return max(_lower_panel(kernel, lower, each, wanted) for each in panels), 1
    *batch, rows, columns = core.shape
    size = _gpu_tile_size(core, wanted, lower.target)
    shape = (*batch, -(-rows // size[0]), -(-columns // size[1]))
    tiles = math.prod(shape)
    number = lower.open_outermost("t", tiles, "group")
    tile = _tile(core, unravel(number, shape), size, lower)
    sums = RegisterSums(tile, kernel.column_sums is not None, build)
    sums.add(lower)
    sums.store_totals(kernel, lower)
    build.close()
    return tiles * LANES_PER_GROUP, LANES_PER_GROUP


def _tile(
    core: Node, index: Sequence[Expr], size: tuple[int, int], lower: Lowering, first: int = 0
) -> _Tile:
    """The tile at some index. Both factors are strided views of Buffers.

    Columns are counted from `first` on.
    """
    *lead, row_tile, column_tile = index
    row, column = row_tile * size[0], column_tile * size[1] + first
    rows, columns = core.shape[-2:]
    (left, left_view), (right, right_view) = (source_and_access(s) for s in core.src)
    a, b = left_view.views[0], right_view.views[0]
    left_offset, _ = left_view.index([*lead, row, Const(0)])
    right_offset, _ = right_view.index([*lead, Const(0), column])
    begins = [part_begin(s) for s in (left, right)]
    product = Product(
        rows_left=Const(rows) - row if rows % size[0] else None,
        columns_left=Const(columns) - column if column.hi + size[1] > columns else None,
        terms=core.src[0].shape[-1],
        left_offset=left_offset + begins[0],
        left_row_stride=a.strides[-2],
        left_term_stride=a.strides[-1],
        right_offset=right_offset + begins[1],
        right_term_stride=b.strides[-2],
        right_column_stride=b.strides[-1],
        tile_rows=size[0],
        tile_columns=size[1],
        is_left_aligned=_aligned(a, begins[0], -1, -2),
        is_right_aligned=_aligned(b, begins[1], -2, -1),
        vector_width=min(size[1], lower.target.vector_width),
        runs_along_terms=lower.target.lanes == "one" and _reads_along_terms(core, lower.target),
    )
    build = lower.build
    sources = build.parameter(storage(left)), build.parameter(storage(right))
    return _Tile(product, *sources, tuple(lead), row, column, row_tile)


def _reads_along_terms(core: Node, target: Target) -> bool:
    """Whether the terms of both factors are contiguous, and whole vectors of them."""
    (_, left), (_, right) = (source_and_access(s) for s in core.src)
    steps = left.views[0].strides[-1], right.views[0].strides[-2], right.views[0].strides[-1]
    inner = core.src[0].shape[-1]
    whole = inner >= MIN_ALONG_TERMS and inner % target.vector_width == 0
    return whole and steps[0] == steps[1] == 1 < steps[2]


def _aligned(view: View, begin: Expr, inner: int, outer: int) -> bool:
    """Whether all lines of contiguous float32 elements along one axis begin on 32 bytes."""
    along = inner if view.strides[inner] == 1 else outer
    others = [n for axis, n in enumerate(view.strides) if axis - len(view.strides) != along]
    pitches = [*others, view.offset, *(n for _, n in linear_parts(begin)[1])]
    return view.strides[along] == 1 and all(n % 8 == 0 for n in pitches)


def _store_columns(
    sums: Store, lower: Lowering, tile: _Tile, values: Sequence[int], kind: str
) -> None:
    """Store column sums of the right factor, by the topmost tile of each column only."""
    build = lower.build
    build.open(Range("first", 1, "loop", Const(1) - tile.row_tile))
    total = build.effect(U.COLUMN_SUMS, values, tile.product, f32)
    column = build.open(Range("s", tile.product.tile_columns, kind, tile.product.columns_left))
    core, value = lower.core, build.effect(U.GET, (total,), column, f32)
    lower.core, lower.core_value = sums.value, value
    lower_stores(lower, [sums], [*tile.lead, tile.column + column])
    lower.core = core
    build.close(2)


# --- on a CPU: one work-item for a tile ---


def _column_panels(core: Node, target: Target) -> Iterator[tuple[int, int, int]]:
    """Panels of columns, as (first column, number of tiles, columns of each tile).

    Narrower panels take the columns that do not fill a whole tile. Products of too many terms for
    registers have tiles of full width only.
    """
    columns, inner, width = core.shape[-1], core.src[0].shape[-1], target.vector_pair_width
    if _reads_along_terms(core, target):
        whole = columns // MIN_VECTOR_WIDTH
        yield from [(0, whole, MIN_VECTOR_WIDTH)] if whole else []
        yield from (
            [(whole * MIN_VECTOR_WIDTH, 1, left)] if (left := columns % MIN_VECTOR_WIDTH) else []
        )
        return
    first, short = 0, inner <= MAX_REGISTER_TERMS
    while (left := columns - first) > 0:
        if short and width > MIN_VECTOR_WIDTH and left <= width - MIN_VECTOR_WIDTH:
            width //= 2
            continue
        count = max(1, left // width)
        yield first, count, width
        first += count * width


def _lower_panel(kernel: Kernel, lower: Lowering, panels: tuple[int, int, int], wanted: int) -> int:
    """Lower the tiles of a panel; returns how many work-groups share them.

    Tiles have fewer rows if there would be fewer tiles than `wanted`, to keep all cores busy.
    """
    core, build, (first, count, width) = kernel.core, lower.build, panels
    assert core is not None
    *batch, rows, _ = core.shape
    parts, others = -(-rows // CPU_TILE_ROWS), math.prod(batch) * count
    while others * parts < wanted and parts * 16 <= rows:
        parts *= 2
    height, inner = -(-rows // parts), core.src[0].shape[-1]
    shared = parts > -(-rows // CPU_TILE_ROWS)  # cut further, to balance the cores
    if (
        rows % height
        and not shared
        and inner <= MAX_REGISTER_TERMS
        and not _reads_along_terms(core, lower.target)
    ):
        most = MAX_REGISTER_ROWS[lower.target.vector_width][width]
        height += -height % most  # the last tile is short anyway; this avoids tiles of two heights
    shape = (*batch, -(-rows // height), count)
    tiles = math.prod(shape)
    number = lower.open_outermost("t", tiles, "share")
    tile = _tile(core, unravel(number, shape), (height, width), lower, first)
    _lower_cpu_tile(kernel, lower, tile)
    build.close()
    return min(tiles, wanted) or 1


def _lower_cpu_tile(kernel: Kernel, lower: Lowering, tile: _Tile) -> None:
    build, product = lower.build, tile.product
    if product.runs_along_terms or product.terms <= MAX_REGISTER_TERMS:
        _tile_in_registers(kernel, lower, tile)
    else:
        value = build.effect(U.PRODUCT, (tile.left, tile.right), product, f32)
        _store_tile(kernel, lower, product, value, [*tile.lead, tile.row, tile.column])
    if kernel.column_sums is not None:
        _store_columns(kernel.column_sums, lower, tile, (tile.right,), "vector")


def _tile_in_registers(kernel: Kernel, lower: Lowering, tile: _Tile) -> None:
    """Lower a tile as parts of a few rows, each stored directly from registers."""
    build, product, right, done = lower.build, tile.product, tile.right, 0
    if product.runs_along_terms:
        fitting = ALONG_REGISTERS[lower.target.vector_width] // (product.tile_columns + 1)
        most = min(MAX_ALONG_ROWS, fitting)
    else:
        most = MAX_REGISTER_ROWS[lower.target.vector_width][product.tile_columns]
    if not (product.runs_along_terms or product.can_load_right_vectors):
        right = build.effect(U.PANEL, (right,), product, f32)
    for height, count in _row_parts(product.tile_rows, most):
        loops = [Range("b", count)] if count > 1 else []
        first = sum([build.open(loop) * height for loop in loops], Const(done))
        left = None if product.rows_left is None else product.rows_left - first
        if left is not None:
            loops.append(Range("any", 1, "loop", left))
            build.open(loops[-1])
        place = product.left_offset + first * product.left_row_stride
        part = replace(
            product, tile_rows=height, rows_left=left, left_offset=place, is_in_registers=True
        )
        value = build.effect(U.PRODUCT, (tile.left, right), part, f32)
        _store_tile(kernel, lower, part, value, [*tile.lead, tile.row + first, tile.column])
        build.close(len(loops))
        done += height * count


def _row_parts(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """(rows, number) of parts of nearly equal height: 64 rows by 6 are 9 parts of 6 and 2 of 5."""
    parts = -(-rows // most)
    height, larger = divmod(rows, parts)
    yield from ((h, n) for h, n in ((height + 1, larger), (height, parts - larger)) if n)


def _store_tile(
    kernel: Kernel, lower: Lowering, tile: Product, value: int, begin: Sequence[Expr]
) -> None:
    """Compute and store the kernel's values for each element of a product's tile."""
    build, (*lead, first_row, first_column) = lower.build, begin
    row = build.open(Range("m", tile.tile_rows, "row", tile.rows_left))
    column = build.open(Range("n", tile.tile_columns, "column", tile.columns_left))
    lower.core_value = build.effect(U.ELEMENT, (value,), (row, column), f32)
    lower_stores(lower, kernel.stores, [*lead, first_row + row, first_column + column])
    build.close(2)


# --- on a GPU: the lanes of a group for a tile ---


def _gpu_tile_size(core: Node, wanted: int, target: Target) -> tuple[int, int]:
    """Rows and columns of a tile: fewer rows if there would be fewer tiles than `wanted`."""
    batch, (rows, columns) = math.prod(core.shape[:-2]), core.shape[-2:]
    on_units = target.product_mode in FACTOR_DTYPES
    if columns <= NARROW_TILE_COLUMNS and (on_units or 2 * rows >= GPU_TILE_SIDE):
        return GPU_TILE_SIDE, NARROW_TILE_COLUMNS
    width = SLIM_TILE_COLUMNS if on_units and columns <= SLIM_TILE_COLUMNS else GPU_TILE_SIDE
    height, panels = GPU_TILE_SIDE, -(-columns // width)
    while height > 8 and height >= 2 * rows:
        height //= 2
    while height > 8 and batch * -(-rows // height) * panels < wanted:
        height //= 2
    return height, width


@dataclass(frozen=True)
class Fragments:
    """Which sums of a tile matrix units leave in which lane, as kernels/product_matrix.cl has them.

    A group has four warps, some above one another and some side by side.
    """

    down: int  # warps above one another
    blocks: int  # of 16 rows, for each warp
    halves: int  # of a block, of 8 rows each
    panels: int  # of 8 columns, for each warp

    @staticmethod
    def of(rows: int, columns: int) -> Fragments:
        down = 4 if columns == NARROW_TILE_COLUMNS else 2 if rows >= 32 else 1
        return Fragments(down, max(1, rows // down // 16), min(2, rows // 8), columns * down // 32)

    def place(self, lane: Expr, pair: Expr) -> tuple[Expr, Expr]:
        """Row and column of the first of two neighbours, the `pair`th of a lane."""
        warp, across = lane // 32, 4 // self.down
        rest, half = pair // self.halves, pair % self.halves
        block, panel = rest // self.panels, rest % self.panels
        row = (warp // across * self.blocks + block) * 16 + half * 8 + lane % 32 // 4
        return row, (warp % across * self.panels + panel) * 8 + lane % 4 * 2


class RegisterSums:
    """A tile of a product, whose sums the lanes of a group have in registers."""

    def __init__(self, tile: _Tile, summed: bool, build: Builder) -> None:
        self.tile = replace(tile, product=replace(tile.product, has_column_sums=summed))
        self.build = build
        size = tile.product.tile_rows, tile.product.tile_columns
        self.sums = build.effect(U.TILE, (), size, f32)

    def add(self, lower: Lowering) -> None:
        """Add the product of the tile's factors to the sums."""
        tile = self.tile
        self.build.effect(U.PRODUCT, (tile.left, tile.right, self.sums), tile.product, f32)

    def store_totals(self, kernel: Kernel, lower: Lowering) -> None:
        """Compute and store the kernel's values from the sums."""
        if lower.target.product_mode in FACTOR_DTYPES:
            self._store_from_registers(kernel, lower)
        else:
            self._store_from_local_memory(kernel, lower)
        if kernel.column_sums is not None:
            _store_columns(
                kernel.column_sums, lower, self.tile, (self.tile.right, self.sums), "lane"
            )

    def _store_from_registers(self, kernel: Kernel, lower: Lowering) -> None:
        """Each lane stores its own elements, two neighbours at a time."""
        build, tile, product = self.build, self.tile, self.tile.product
        size, left = (product.tile_rows, product.tile_columns), product.columns_left
        pairs = math.prod(size) // LANES_PER_GROUP // 2
        whole = left is None or (isinstance(left, Const) and left.value % 2 == 0)  # or odd ones too
        lane = build.open(Range("l", LANES_PER_GROUP, "lane"))
        deferred, depth = DeferredStores(build, kernel.stores, 2 * pairs), len(build.scopes)
        for first, names in ((True, "en"), (False, "pq")):
            pair = build.open(Range(names[0], pairs, "vector"))
            row, begin = Fragments.of(*size).place(lane, pair)
            both = self._exists(row, begin) if whole else ONE
            if not first and both is not ONE:
                build.open(Range("x", 1, "loop", both))
            side = build.open(Range(names[1], 2, "vector"))
            column = begin + side
            indices = [*tile.lead, tile.row + row, tile.column + column]
            inside = both if whole else self._exists(row, column)
            place = row, column, pair * 2 + side
            if first:
                lower.core_value = build.effect(U.ELEMENT, (self.sums,), place, f32)
                values = [lower.value(s.value, indices, inside) for s in kernel.stores]
                deferred.defer(values, place[-1])
            else:
                if inside is not both:
                    build.open(Range("x", 1, "loop", inside))
                deferred.store_values(place[-1], indices)
            build.close(len(build.scopes) - depth)
        build.close()

    def _exists(self, row: Expr, column: Expr) -> Expr:
        """Whether an element of the tile exists in the result."""
        limits = (row, self.tile.product.rows_left), (column, self.tile.product.columns_left)
        return all_of(*(less(at - left, 0) for at, left in limits if left is not None))

    def _store_from_local_memory(self, kernel: Kernel, lower: Lowering) -> None:
        """Spread the sums over local memory, so that each lane stores four neighbours at a time."""
        build, tile, product = self.build, self.tile, self.tile.product
        seen = build.effect(U.SHARE_TILE, (self.sums,), product, f32)
        fours = product.tile_columns // 4
        limit = product.rows_left * fours if product.rows_left is not None else None
        four = build.open(Range("e", product.tile_rows * fours, "lane", limit))
        row, begin = four // fours, four % fours * 4
        left = product.columns_left - begin if product.columns_left is not None else None
        column = begin + build.open(Range("n", 4, "vector", left))
        lower.core_value = build.effect(U.ELEMENT, (seen,), (row, column), f32)
        lower_stores(lower, kernel.stores, [*tile.lead, tile.row + row, tile.column + column])
        build.close(2)


def is_only_added(kernel: Kernel) -> bool:
    """Whether the result of a reduction or product is only added to Buffers, unchanged."""
    return all(s.adds and s.value is kernel.core for s in kernel.stores)


def sums_in_registers(
    kernels: Sequence[Kernel], lower: Lowering, registers: int
) -> dict[Kernel, RegisterSums]:
    """The products of a block that are only added to Buffers, as long as lanes have registers."""
    sums: dict[Kernel, RegisterSums] = {}
    for kernel in kernels:
        core = kernel.core
        if core is None or core.op is not Op.DOT or len(core.shape) != 2:
            continue
        size = _gpu_tile_size(core, 0, lower.target)
        alone = core.shape[0] <= size[0] and core.shape[1] <= size[1]
        needed = size[0] * size[1] // LANES_PER_GROUP
        if alone and is_only_added(kernel) and needed <= registers:
            registers -= needed
            tile = _tile(core, (Const(0), Const(0)), size, lower)
            sums[kernel] = RegisterSums(tile, kernel.column_sums is not None, lower.build)
    return sums
