"""Lowering of elementwise kernels, for CPUs and GPUs.

On a CPU one index runs over all elements if no operand needs a division of it. Transposes read
along one axis and write along another, in tiles: through a private array on a CPU, and through
local memory on a GPU, where neighbouring lanes then take neighbouring elements both times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from imgmlp.engine.ir.conditions import all_of, less
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Kernel, leaves
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, unravel
from imgmlp.engine.ir.target import LANES_PER_GROUP
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import (
    DeferredStores,
    Lowering,
    load_offsets,
    lower_stores,
    store_offset,
    store_values,
    trial_lowering,
)
from imgmlp.engine.lowering.scattered_terms import MAX_ROW_ELEMENTS, ScatteredSums

# --- on a CPU ---
MIN_ELEMENTS_PER_GROUP = 4096  # or terms of reductions; less work does not pay for a work-group
CPU_TRANSPOSE_TILE = 64  # rows and columns of a transposed tile in a private array
CACHE_LINE_ELEMENTS = 16  # float32 elements of a cache line

# --- on a GPU ---
# Elements from which each lane computes several, as a work-group costs time too.
MIN_ELEMENTS_FOR_SEVERAL_PER_LANE = 1 << 16
NEIGHBOURS_PER_LANE = 4  # elements side by side that a lane computes, loads and stores at once
MAX_ELEMENTS_PER_LANE = 8  # of a kernel outside of a block
MIN_GROUPS_PER_UNIT = 4  # work-groups of a compute unit, so that some run while others wait
MAX_VALUES_PER_LANE = 32  # values in registers that a lane of a block computes before it stores
GPU_TRANSPOSE_TILE = 32  # rows and columns of a transposed tile in local memory
MAX_LOCAL_TILES = 6  # transposed tiles, of 4 KiB each


def map_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """Lower an elementwise kernel; returns the launch's global and local size."""
    return (_map_on_gpu if lower.target.lanes == "group" else _map_on_cpu)(kernel, lower)


def _map_on_gpu(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    size = math.prod(kernel.shape)
    transposed = None if lower.in_block else _transposed_reads(kernel)
    if transposed is not None:
        return _map_transposed_on_gpu(kernel, lower, *transposed)
    many = size >= MIN_ELEMENTS_FOR_SEVERAL_PER_LANE and size % LANES_PER_GROUP == 0
    if many or (lower.in_block and size > LANES_PER_GROUP):
        return _map_several_per_lane(kernel, lower, size)
    local = min(64, size)
    _map_flat(kernel, lower, "item")
    return -(-size // local) * local, local


def _map_on_cpu(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    units, size = lower.target.compute_units, math.prod(kernel.shape)
    groups = max(1, min(4 * units, size // MIN_ELEMENTS_PER_GROUP))
    if groups > units:  # equally many for each unit
        groups = groups // units * units
    if _is_flat(kernel):
        _map_flat(kernel, lower, "share")
        return groups, 1
    if (transposed := _transposed_reads(kernel)) is not None:
        return _map_transposed_on_cpu(kernel, lower, transposed[0], groups), 1
    return _map_rows(kernel, lower, groups), 1


def _map_flat(kernel: Kernel, lower: Lowering, kind: str) -> None:
    """One index runs over all elements."""
    flat = lower.open_outermost("i", math.prod(kernel.shape), kind)
    lower_stores(lower, kernel.stores, unravel(flat, kernel.shape))
    lower.build.close()


def _map_rows(kernel: Kernel, lower: Lowering, groups: int) -> int:
    """A loop over rows, or parts of long ones, and one over their elements.

    Returns how many work-groups share the rows.
    """
    build, shape, size = lower.build, kernel.shape, math.prod(kernel.shape)
    last = max((a for a, n in enumerate(shape) if n > 1), default=len(shape) - 1)
    parts = _row_parts(size // shape[last], shape[last], groups)
    inner = shape[last] // parts
    part = lower.open_outermost("i", size // inner, "share")
    rows = unravel(part // parts, shape[:last])
    scattered = ScatteredSums(lower, [s.value for s in kernel.stores], rows)
    column = part % parts * inner + build.open(Range("c", inner))
    beyond = [Const(0)] * (len(shape) - 1 - last)
    scattered.at(indices := [*rows, column, *beyond])
    lower_stores(lower, kernel.stores, indices)
    build.close(2)
    return min(groups, size // inner)


def _row_parts(rows: int, columns: int, groups: int) -> int:
    """Into how many parts each of a few long rows is cut, to balance the groups with few parts."""
    most = columns // MIN_ELEMENTS_PER_GROUP if columns > MAX_ROW_ELEMENTS and rows < groups else 1
    counts = (n for n in range(1, most + 1) if columns % n == 0)
    return min(counts, key=lambda n: -(-rows * n // groups) / n)


def _map_several_per_lane(kernel: Kernel, lower: Lowering, size: int) -> tuple[int, int]:
    """Each lane computes several elements: neighbours, and again some for each round of lanes."""
    build, stores = lower.build, kernel.stores
    beside, rounds, groups = _elements_per_lane(kernel, lower, size)
    parts = size // beside
    group = lower.open_outermost("i", groups, "group")
    lane = build.open(Range("l", LANES_PER_GROUP, "lane"))
    deferred = DeferredStores(build, stores, rounds * beside)

    def each(names: str) -> tuple[Expr, list[Expr]]:
        """Open the loops over a lane's elements; returns the element's number and its indices."""
        place = build.open(Range(names[0], rounds, "vector"))
        part = (group * rounds + place) * LANES_PER_GROUP + lane
        if parts % (groups * rounds * LANES_PER_GROUP):
            build.open(Range(names[1], 1, "loop", less(part, parts)), keeps_loads=True)
        side = build.open(Range(names[2], beside, "vector"))
        return place * beside + side, unravel(part * beside + side, kernel.shape)

    depth = len(build.scopes)
    own, indices = each("rxn")
    deferred.defer([lower.value(s.value, indices) for s in stores], own)
    build.close(len(build.scopes) - depth)
    deferred.store_values(*each("pyq"))
    build.close(len(build.scopes) - depth + 2)
    return groups * LANES_PER_GROUP, LANES_PER_GROUP


def _elements_per_lane(kernel: Kernel, lower: Lowering, size: int) -> tuple[int, int, int]:
    """How many neighbours a lane computes at once, in how many rounds, in how many work-groups."""
    beside = NEIGHBOURS_PER_LANE if lower.in_block or _reads_aligned_neighbours(kernel) else 1
    beside = beside if kernel.shape[-1] % beside == 0 else 1
    most = MAX_VALUES_PER_LANE // len(kernel.stores) if lower.in_block else MAX_ELEMENTS_PER_LANE
    most = max(1, most // beside)
    rounds = -(-(size // beside) // LANES_PER_GROUP)
    most = min(most, lower.target.vector_pair_width)  # longer loops are not unrolled: no registers
    if not lower.in_block:  # all units have groups before a lane has more elements
        most = max(1, min(most, rounds // (MIN_GROUPS_PER_UNIT * lower.target.compute_units)))
        most = next(n for n in range(most, 0, -1) if rounds % n == 0)
    groups = -(-rounds // most)
    return beside, -(-rounds // groups), groups


def _reads_aligned_neighbours(kernel: Kernel) -> bool:
    """Whether most reads are of aligned neighbours, which a lane can load at once.

    With other reads, a lane that takes several neighbours loads them one by one, and the loads of
    neighbouring lanes are spread over more cache lines.
    """
    well = ill = 0
    for leaf in leaves(kernel.stores):
        indices, offsets = load_offsets(leaf)
        for offset in offsets:
            along = abs(stride(offset, indices, indices[-1])) if indices else 0
            if along > 1:
                ill += 1
            elif along == 1:
                begins = [offset.substitute({i.name: 0 for i in indices}).lo]
                begins += [stride(offset, indices, i) for i in indices[:-1]]
                aligned = all(n % NEIGHBOURS_PER_LANE == 0 for n in begins)
                well, ill = well + aligned, ill + (not aligned)
    return well >= NEIGHBOURS_PER_LANE * ill


def _is_flat(kernel: Kernel) -> bool:
    """Whether one running index reaches every operand without a division."""
    if len(kernel.shape) < 2:
        return True
    lower = trial_lowering()
    flat = lower.build.open(Range("i", math.prod(kernel.shape), "share"))
    lower_stores(lower, kernel.stores, unravel(flat, kernel.shape))
    uops = [u for _, u in lower.build.scopes[-1]]
    exprs = [e for u in uops if u.op is U.LOAD for e in u.arg]
    exprs += [u.arg for u in uops if u.op in (U.STORE, U.INDEX)]
    own = [e.substitute({"group": 0, "tile": 0}) for e in exprs]
    return all(e is flat or flat not in e.variables() for e in own)


def _transposed_reads(kernel: Kernel) -> tuple[int, list[Node]] | None:
    """The axis along which values are read transposed, and these values; None if there are none.

    A value is read transposed if its neighbours in memory lie along another axis than the last one,
    along which results are written.
    """
    shape = kernel.shape
    long = [a for a, n in enumerate(shape[:-1]) if n >= CACHE_LINE_ELEMENTS]
    if not long or shape[-1] < CACHE_LINE_ELEMENTS:
        return None
    reads: list[tuple[int, Node]] = []
    for leaf in leaves(kernel.stores):
        indices, offsets = load_offsets(leaf)
        for offset in offsets:
            if abs(stride(offset, indices, indices[-1])) > 1:
                along = [a for a in long if stride(offset, indices, indices[a]) == 1]
                reads += [(along[0], leaf)] if along else []
    if not reads:
        return None
    axis = reads[0][0]
    return axis, list(dict.fromkeys(leaf for a, leaf in reads if a == axis))


def stride(offset: Expr, indices: Sequence[Var], index: Var) -> int:
    """The stride of an offset along one index, at its beginning; 0 if it is not constant."""
    here = offset.substitute({i.name: 0 for i in indices})
    moved = offset.substitute({i.name: int(i is index) for i in indices}) - here
    return moved.lo if moved.lo == moved.hi else 0


class _TransposeTiles:
    """A kernel's elements, cut into square tiles of `axis` and the last axis.

    `sizes` are those of the other axes, and the numbers of tiles along the last axis and `axis`.
    """

    def __init__(self, shape: Sequence[int], axis: int, side: int) -> None:
        self._axis, self._last = axis, len(shape) - 1
        self._other_axes = [a for a in range(self._last) if a != axis]
        self.sizes = [shape[a] for a in self._other_axes]
        self.sizes += [-(-shape[a] // side) for a in (self._last, axis)]

    def indices(self, outer: Sequence[Expr], row: Expr, column: Expr) -> list[Expr]:
        """The indices of an element, by those of the other axes, of `axis` and of the last axis."""
        by_axis = dict(zip(self._other_axes, outer, strict=True))
        by_axis |= {self._axis: row, self._last: column}
        return [by_axis[a] for a in range(self._last + 1)]


def _map_transposed_on_cpu(kernel: Kernel, lower: Lowering, axis: int, groups: int) -> int:
    """Compute tiles of `axis` and the last axis along `axis`, and store them along the last one.

    Returns how many work-groups share the tiles.
    """
    build, shape, side = lower.build, kernel.shape, CPU_TRANSPOSE_TILE
    tiles = _TransposeTiles(shape, axis, side)
    share = lower.open_outermost("i", math.prod(tiles.sizes), "share")
    *outer, column_tile, row_tile = unravel(share, tiles.sizes)

    def limits(size: int, tile: Expr) -> tuple[Expr, Expr | None]:
        first = tile * side
        return first, Const(size) - first if size % side else None

    first_row, rows = limits(shape[axis], row_tile)
    first_column, columns = limits(shape[-1], column_tile)

    def at(row: Expr, column: Expr) -> list[Expr]:
        return tiles.indices(outer, first_row + row, first_column + column)

    deferred = DeferredStores(build, kernel.stores, side * side)
    column = build.open(Range("c", side, "loop", columns))
    row = build.open(Range("r", side, "vector", rows))
    values = [lower.value(s.value, at(row, column)) for s in kernel.stores]
    deferred.defer(values, column * side + row)
    loads = [u for _, u in build.scopes[-1] if u.op is U.LOAD and len(u.src) == 1]
    build.close()
    along_rows = [u for u in loads if stride(u.arg[0], [row], row) == 1]
    for first in range(0, side, CACHE_LINE_ELEMENTS):  # prefetch the same column of the next tile
        for u in along_rows:
            offset = u.arg[0].substitute({row.name: side + first})
            build.effect(U.PREFETCH, u.src, (offset, False))
        for store in kernel.stores:
            offset = store_offset(store, at(column + side, Const(first)))
            build.effect(U.PREFETCH, (build.parameter(store.target, True),), (offset, True))
    build.close()
    row = build.open(Range("p", side, "loop", rows))
    column = build.open(Range("q", side, "vector", columns))
    deferred.store_values(column * side + row, at(row, column))
    build.close(3)
    return max(1, min(groups, math.prod(tiles.sizes)))


def _map_transposed_on_gpu(
    kernel: Kernel, lower: Lowering, axis: int, transposed: Sequence[Node]
) -> tuple[int, int]:
    """Each group transposes a tile of `axis` and the last axis through local memory.

    Rows there have one element more than the tile, so that columns fall on different memory banks.
    """
    build, shape, side = lower.build, kernel.shape, GPU_TRANSPOSE_TILE
    tiles = _TransposeTiles(shape, axis, side)
    group = lower.open_outermost("t", math.prod(tiles.sizes), "group")
    *outer, column_tile, row_tile = unravel(group, tiles.sizes)

    def at(row: Expr, column: Expr) -> tuple[list[Expr], Expr]:
        """The indices of an element of the tile, and whether it exists."""
        row, column = row_tile * side + row, column_tile * side + column
        exists = all_of(less(row, shape[axis]), less(column, shape[-1]))
        return tiles.indices(outer, row, column), exists

    def open_elements(lane_name: str, round_name: str) -> tuple[Expr, Expr]:
        """Open loops over the elements of a tile, so that neighbouring lanes differ in the second
        coordinate that is returned."""
        lane = build.open(Range(lane_name, LANES_PER_GROUP, "lane"))
        rounds = build.open(Range(round_name, side * side // LANES_PER_GROUP, "vector"))
        element = rounds * LANES_PER_GROUP + lane
        return element // side, element % side

    leaves_in_local = transposed[:MAX_LOCAL_TILES]
    arrays = [
        build.effect(U.LOCAL_ARRAY, (), side * (side + 1), leaf.dtype) for leaf in leaves_in_local
    ]
    column, row = open_elements("l", "r")
    indices, exists = at(row, column)
    for array, leaf in zip(arrays, leaves_in_local, strict=True):
        value = lower.value(leaf, indices, exists)
        build.effect(U.SET, (array, value), column * (side + 1) + row, leaf.dtype)
    build.close(2)
    build.effect(U.BARRIER, ())
    row, column = open_elements("m", "q")
    indices, exists = at(row, column)
    for array, leaf in zip(arrays, leaves_in_local, strict=True):
        place = column * (side + 1) + row
        element = build.emit(U.GET, leaf.dtype, (array,), place, [place])
        lower.memo[leaf, tuple(indices), exists] = element
    values = [lower.value(s.value, indices, exists) for s in kernel.stores]
    if exists is not ONE:
        build.open(Range("x", 1, "loop", exists))
    store_values(build, kernel.stores, values, indices)
    build.close(3 if exists is ONE else 4)
    return math.prod(tiles.sizes) * LANES_PER_GROUP, LANES_PER_GROUP
