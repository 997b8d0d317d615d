"""Kernels that compute each element by itself, on either mapping.

On a CPU one index runs along all elements where it can. Where neighbours of the last axis are
far apart in what is read, as in a transpose, tiles are read along and written along instead: by
way of a private array, or of local memory, where neighbouring lanes take neighbouring elements
both times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from imgmlp.engine.ir.conditions import conj, less
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Kernel, leaves
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, unravel
from imgmlp.engine.ir.target import GPU_LANES
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import (
    Kept,
    Lowering,
    destination,
    offsets_read,
    put,
    store_all,
    trial,
)
from imgmlp.engine.lowering.scattered_terms import LONGEST, Scattered

GRAIN = 4096  # elements that make a work-group worth its launch on a CPU
STAGED = 64  # rows and columns of a tile that is read along one axis and written along another
LINE = 16  # elements that a line of a processor's cache holds, at least
MANY = 1 << 16  # elements from which a lane of a GPU takes several, as groups cost time too
SIDES = 4  # so many of them side by side
AT_ONCE = 8  # so many, one after the other for the group
GROUPS = 4  # of a unit, which hide what the others wait for
REGISTERS = 32  # of a lane, for values of a block's tile that it has before it stores them
SHARED = 32  # rows and columns of a tile in local memory
MOST_SHARED = 6  # such tiles, of 4 KiB each


def map_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """The launch's global and local size."""
    build, shape, units = lower.build, kernel.shape, lower.target.units
    size = math.prod(shape)
    if lower.target.lanes == "group":
        crossed = None if lower.inside else _crossed(kernel)
        if crossed is not None:
            return _map_shared(kernel, lower, *crossed)
        many = size >= MANY and size % GPU_LANES == 0
        if many or (lower.inside and size > GPU_LANES):
            return _map_several(kernel, lower, size)
        local = min(64, size)
        flat = lower.outermost("i", size, "item")
        store_all(lower, kernel.stores, unravel(flat, shape))
        build.close()
        return -(-size // local) * local, local
    groups = max(1, min(4 * units, size // GRAIN))
    if groups > units:  # as many for each
        groups = groups // units * units
    if _flat(kernel):
        flat = lower.outermost("i", size, "share")
        store_all(lower, kernel.stores, unravel(flat, shape))
        build.close()
        return groups, 1
    if (crossed := _crossed(kernel)) is not None:
        return _map_staged(kernel, lower, crossed[0], groups), 1
    last = max((a for a, n in enumerate(shape) if n > 1), default=len(shape) - 1)
    parts = _parts(size // shape[last], shape[last], groups)
    inner = shape[last] // parts
    part = lower.outermost("i", size // inner, "share")
    rows = unravel(part // parts, shape[:last])
    scattered = Scattered(lower, [s.value for s in kernel.stores], rows)
    column = part % parts * inner + build.open(Range("c", inner))
    beyond = [Const(0)] * (len(shape) - 1 - last)
    scattered.at(indices := [*rows, column, *beyond])
    store_all(lower, kernel.stores, indices)
    build.close(2)
    return min(groups, size // inner), 1


def _parts(rows: int, columns: int, groups: int) -> int:
    """How many pieces each of a few long rows is cut into, so that no group has much more than
    the others; as few as will do."""
    most = columns // GRAIN if columns > LONGEST and rows < groups else 1
    found = (n for n in range(1, most + 1) if columns % n == 0)
    return min(found, key=lambda n: -(-rows * n // groups) / n)


def _map_several(kernel: Kernel, lower: Lowering, size: int) -> tuple[int, int]:
    """Lanes take neighbouring elements, and again so many behind those of all lanes."""
    build, stores = lower.build, kernel.stores
    beside = SIDES if lower.inside or _lies_well(kernel) else 1
    beside = beside if kernel.shape[-1] % beside == 0 else 1
    most = max(1, (REGISTERS // len(stores) if lower.inside else AT_ONCE) // beside)
    parts = size // beside
    rounds = -(-parts // GPU_LANES)
    most = min(most, lower.target.wide)  # longer loops are not unrolled: no registers
    if not lower.inside:  # all units have groups before a lane has more elements
        most = max(1, min(most, rounds // (GROUPS * lower.target.units)))
        most = next(n for n in range(most, 0, -1) if rounds % n == 0)
    groups = -(-rounds // most)
    rounds = -(-rounds // groups)
    group = lower.outermost("i", groups, "group")
    lane = build.open(Range("l", GPU_LANES, "lane"))
    kept = Kept(build, stores, rounds * beside)

    def each(names: str) -> tuple[Expr, list[Expr]]:
        """Open the loops over a lane's elements: which of its own, and with which indices."""
        place = build.open(Range(names[0], rounds, "vector"))
        part = (group * rounds + place) * GPU_LANES + lane
        if parts % (groups * rounds * GPU_LANES):
            build.open(Range(names[1], 1, "loop", less(part, parts)), holds=True)
        side = build.open(Range(names[2], beside, "vector"))
        return place * beside + side, unravel(part * beside + side, kernel.shape)

    depth = len(build.scopes)
    own, indices = each("rxn")
    kept.keep([lower.value(s.value, indices) for s in stores], own)
    build.close(len(build.scopes) - depth)
    kept.put(*each("pyq"))
    build.close(len(build.scopes) - depth + 2)
    return groups * GPU_LANES, GPU_LANES


def _lies_well(kernel: Kernel) -> bool:
    """Whether rows that are read begin where so many neighbours can be loaded at once.

    Of others each lane would load one by one what lies between those of the lanes beside it, each
    time from as many lines of the cache; so it would where neighbours are apart.
    """
    well = ill = 0
    for leaf in leaves(kernel.stores):
        indices, offsets = offsets_read(leaf)
        for offset in offsets:
            along = abs(stride(offset, indices, indices[-1])) if indices else 0
            if along > 1:
                ill += 1
            elif along == 1:
                begins = [offset.substitute({i.name: 0 for i in indices}).lo]
                begins += [stride(offset, indices, i) for i in indices[:-1]]
                aligned = all(n % SIDES == 0 for n in begins)
                well, ill = well + aligned, ill + (not aligned)
    return well >= SIDES * ill


def _flat(kernel: Kernel) -> bool:
    """Whether one running index reaches every operand without division."""
    if len(kernel.shape) < 2:
        return True
    lower = trial()
    flat = lower.build.open(Range("i", math.prod(kernel.shape), "share"))
    store_all(lower, kernel.stores, unravel(flat, kernel.shape))
    uops = [u for _, u in lower.build.scopes[-1]]
    exprs = [e for u in uops if u.op is U.LOAD for e in u.arg]
    exprs += [u.arg for u in uops if u.op in (U.STORE, U.INDEX)]
    own = [e.substitute({"group": 0, "tile": 0}) for e in exprs]
    return all(e is flat or flat not in e.variables() for e in own)


def _crossed(kernel: Kernel) -> tuple[int, list[Node]] | None:
    """The axis that something is read along, if that is not the last one as in what is written,
    and which values are read so.
    """
    shape = kernel.shape
    long = [a for a, n in enumerate(shape[:-1]) if n >= LINE]
    if not long or shape[-1] < LINE:
        return None
    found: list[tuple[int, Node]] = []
    for leaf in leaves(kernel.stores):
        indices, offsets = offsets_read(leaf)
        for offset in offsets:
            if abs(stride(offset, indices, indices[-1])) > 1:
                along = [a for a in long if stride(offset, indices, indices[a]) == 1]
                found += [(along[0], leaf)] if along else []
    if not found:
        return None
    axis = found[0][0]
    return axis, list(dict.fromkeys(leaf for a, leaf in found if a == axis))


def stride(offset: Expr, indices: Sequence[Var], index: Var) -> int:
    """How far a step of one index moves from the beginning; 0 if that is not known."""
    here = offset.substitute({i.name: 0 for i in indices})
    moved = offset.substitute({i.name: int(i is index) for i in indices}) - here
    return moved.lo if moved.lo == moved.hi else 0


def _map_staged(kernel: Kernel, lower: Lowering, axis: int, groups: int) -> int:
    """Tiles of `axis` and the last one: computed along `axis` into a private array, stored along
    the other. Returns how many groups share them.
    """
    build, shape, last = lower.build, kernel.shape, len(kernel.shape) - 1
    lead = [a for a in range(last) if a != axis]
    sizes = [shape[a] for a in lead] + [-(-shape[a] // STAGED) for a in (last, axis)]
    share = lower.outermost("i", math.prod(sizes), "share")
    *outer, column_tile, row_tile = unravel(share, sizes)

    def limits(a: int, tile: Expr) -> tuple[Expr, Expr | None]:
        first = tile * STAGED
        return first, Const(shape[a]) - first if shape[a] % STAGED else None

    (first_row, rows), (first_column, columns) = limits(axis, row_tile), limits(last, column_tile)

    def at(row: Expr, column: Expr) -> list[Expr]:
        found = dict(zip(lead, outer, strict=True))
        found |= {axis: first_row + row, last: first_column + column}
        return [found[a] for a in range(last + 1)]

    kept = Kept(build, kernel.stores, STAGED * STAGED)
    column = build.open(Range("c", STAGED, "loop", columns))
    row = build.open(Range("r", STAGED, "vector", rows))
    values = [lower.value(s.value, at(row, column)) for s in kernel.stores]
    kept.keep(values, column * STAGED + row)
    loads = [u for _, u in build.scopes[-1] if u.op is U.LOAD and len(u.src) == 1]
    build.close()
    along = [u for u in loads if stride(u.arg[0], [row], row) == 1]
    for first in range(STAGED, 2 * STAGED, LINE):  # the same column of the next tile
        for u in along:
            build.effect(U.PREFETCH, u.src, (u.arg[0].substitute({row.name: first}), False))
        for store in kernel.stores:
            offset = destination(store, at(column + STAGED, Const(first - STAGED)))
            build.effect(U.PREFETCH, (build.parameter(store.target, True),), (offset, True))
    build.close()
    row = build.open(Range("p", STAGED, "loop", rows))
    column = build.open(Range("q", STAGED, "vector", columns))
    kept.put(column * STAGED + row, at(row, column))
    build.close(3)
    return max(1, min(groups, math.prod(sizes)))


def _map_shared(
    kernel: Kernel, lower: Lowering, axis: int, crossed: Sequence[Node]
) -> tuple[int, int]:
    """A tile of `axis` and the last one a group: what is read along `axis` goes to local memory
    and comes from there along the other. Rows have an element more, for other memory banks.
    """
    build, shape, last = lower.build, kernel.shape, len(kernel.shape) - 1
    lead = [a for a in range(last) if a != axis]
    sizes = [shape[a] for a in lead] + [-(-shape[a] // SHARED) for a in (last, axis)]
    group = lower.outermost("t", math.prod(sizes), "group")
    *outer, column_tile, row_tile = unravel(group, sizes)

    def at(row: Expr, column: Expr) -> tuple[list[Expr], Expr]:
        """The indices of an element of the tile, and whether it exists."""
        found = dict(zip(lead, outer, strict=True))
        found |= {axis: row_tile * SHARED + row, last: column_tile * SHARED + column}
        inside = conj(*(less(found[a], shape[a]) for a in (axis, last)))
        return [found[a] for a in range(last + 1)], inside

    moved = crossed[:MOST_SHARED]
    tiles = [build.effect(U.LOCAL, (), SHARED * (SHARED + 1), leaf.dtype) for leaf in moved]
    lane = build.open(Range("l", GPU_LANES, "lane"))
    place = build.open(Range("r", SHARED * SHARED // GPU_LANES, "vector")) * GPU_LANES + lane
    column, row = place // SHARED, place % SHARED
    indices, inside = at(row, column)
    for tile, leaf in zip(tiles, moved, strict=True):
        value = lower.value(leaf, indices, inside)
        build.effect(U.KEEP, (tile, value), column * (SHARED + 1) + row, leaf.dtype)
    build.close(2)
    build.effect(U.BARRIER, ())
    lane = build.open(Range("m", GPU_LANES, "lane"))
    place = build.open(Range("q", SHARED * SHARED // GPU_LANES, "vector")) * GPU_LANES + lane
    row, column = place // SHARED, place % SHARED
    indices, inside = at(row, column)
    for tile, leaf in zip(tiles, moved, strict=True):
        source = column * (SHARED + 1) + row
        lower.memo[leaf, tuple(indices), inside] = build.emit(
            U.LANE, leaf.dtype, (tile,), source, [source]
        )
    values = [lower.value(s.value, indices, inside) for s in kernel.stores]
    if inside is not ONE:
        build.open(Range("x", 1, "loop", inside))
    put(build, kernel.stores, values, indices)
    build.close(3 if inside is ONE else 4)
    return math.prod(sizes) * GPU_LANES, GPU_LANES
