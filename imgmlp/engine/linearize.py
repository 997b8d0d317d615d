"""How a kernel runs: a Kernel becomes UOps.

There are two mappings, chosen by the device: `one` work-item a group that loops over its
share (CPUs, whose compiler vectorises the innermost loop), or a `group` of lanes with an
element each (GPUs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from imgmlp.engine.dtype import f32, i32
from imgmlp.engine.graph import Buffer, Node, Op
from imgmlp.engine.indices import through
from imgmlp.engine.kernel import (
    Block,
    Fused,
    Kernel,
    Launch,
    Store,
    part_begin,
    storage,
)
from imgmlp.engine.lowering import Lowering, store_all
from imgmlp.engine.maps import GRAIN, map_kernel
from imgmlp.engine.rowwise import accumulate, identity, row_kernel
from imgmlp.engine.symbolic import Const, Expr, split, unravel
from imgmlp.engine.uops import (
    GPU_LANES,
    GPU_TILE,
    NARROW,
    VECTOR,
    Builder,
    Code,
    Lanes,
    Product,
    Range,
    U,
    UOp,
)

TILE_ROWS = 64  # rows of a product's tile on a CPU
REGISTER_ROWS = {VECTOR: 6, NARROW: 8}  # most rows of a tile in registers, by its columns
REGISTER_INNER = 256  # most terms of a tile in registers: 16 KiB of the right factor
AT_ONCE = 8  # terms of a reduction that a lane of a GPU loads before it adds them


# --- kernels ---


def linearize(kernel: Launch, lanes: Lanes, units: int = 1) -> Code:
    """UOps of a kernel for a device of so many compute units."""
    if isinstance(kernel, Fused):
        return _fused(kernel.name, [linearize(k, lanes, units) for k in kernel.members])
    build = Builder()
    for target in kernel.writes():
        build.parameter(target, True)
    if isinstance(kernel, Block):
        sizes = _block(kernel, build, lanes)
    else:
        lower = Lowering(build, kernel.core)
        for guard in kernel.guards:
            build.effect(U.GUARD, (lower.value(guard.place, ()),), guard.wanted)
        sizes = _body(kernel, lower, lanes, units)
    return Code(kernel.name, build.finish(), tuple(build.buffers), *sizes)


def _fused(name: str, codes: Sequence[Code]) -> Code:
    """One launch of several: members of few groups come first, as what begins last should be short
    and is a part of a large one then."""
    local = max(c.local_size for c in codes)
    buffers = tuple(dict.fromkeys(b for c in codes for b in c.buffers))
    given = [u.arg for c in codes for u in c.uops if u.op is U.GLOBAL]
    uops = [UOp(U.GLOBAL, b.dtype, (), (b, (b, True) in given)) for b in buffers]
    first = 0
    for code in sorted(codes, key=lambda c: c.global_size // c.local_size):
        groups = -(-code.global_size // local)
        uops.append(UOp(U.RANGE, i32, (), Range("group", groups, "member", first=first)))
        _append(uops, code.uops, buffers)
        uops.append(UOp(U.END, None, (), None))
        first += groups
    return Code(name, tuple(uops), buffers, first * local, local)


def _append(uops: list[UOp], more: Sequence[UOp], buffers: Sequence[Buffer]) -> None:
    """Add a kernel's instructions behind others, which hold its globals already."""
    place: list[int] = []
    for u in more:
        if u.op is U.GLOBAL:
            place.append(buffers.index(u.arg[0]))
        else:
            place.append(len(uops))
            uops.append(replace(u, src=tuple(place[s] for s in u.src)))


def _body(kernel: Kernel, lower: Lowering, lanes: Lanes, units: int) -> tuple[int, int]:
    if kernel.rows:
        return row_kernel(kernel, lower, lanes, units)
    if kernel.core is None:
        return map_kernel(kernel, lower, lanes, units)
    if kernel.core.op is Op.DOT:
        return _product(kernel, lower, lanes, units)
    return _reduce(kernel, lower, lanes, units)


def _block(block: Block, build: Builder, lanes: Lanes) -> tuple[int, int]:
    """Kernels one after the other on each tile; what one stores, the next ones load anew."""
    build.open(Range("group", block.groups, "group"))
    for kernel in block.head:
        _body(kernel, Lowering(build, kernel.core, inside=True), lanes, units=1)
    _wait(build, lanes)
    build.open(Range("tile", block.tiles, "share"))
    for kernel in block.kernels:
        _body(kernel, Lowering(build, kernel.core, inside=True), lanes, units=1)
        _wait(build, lanes)
    build.close()
    build.close()
    local = 1 if lanes == "one" else GPU_LANES
    return block.groups * local, local


def _wait(build: Builder, lanes: Lanes) -> None:
    if lanes == "group":
        build.effect(U.BARRIER, ())


def _reduce(kernel: Kernel, lower: Lowering, lanes: Lanes, units: int) -> tuple[int, int]:
    core, build = kernel.core, lower.build
    assert core is not None
    source, axes = core.src[0], core.arg
    shape, count = core.shape, math.prod(source.shape[a] for a in core.arg)
    size = math.prod(shape)
    start = identity(core.op, core.dtype)

    def term(out: Sequence[Expr], inner: Expr) -> int:
        inside = dict(zip(axes, unravel(inner, [source.shape[a] for a in axes]), strict=True))
        outside = iter(out)
        indices = [inside[a] if a in inside else next(outside) for a in range(len(source.shape))]
        return lower.value(source, indices)

    if lanes == "group":
        return _reduce_on_lanes(kernel, lower, term, count, start)
    groups = max(1, min(4 * units, size * count // GRAIN, size))
    if size > 1 and shape[-1] > 1 and _keeps_last_axis(kernel):
        return _reduce_columns(kernel, lower, term, count, groups), 1
    out = lower.outermost("i", size, "share")
    lower.core_value = accumulate(lower, core, count, lambda at: term(unravel(out, shape), at))
    store_all(lower, kernel.stores, unravel(out, shape))
    build.close()
    return groups, 1


def _keeps_last_axis(kernel: Kernel) -> bool:
    """Whether the axis along which neighbours usually lie together is not reduced."""
    core = kernel.core
    assert core is not None
    source = core.src[0]
    reduces_last: bool = len(source.shape) - 1 in core.arg
    return not reduces_last


def _reduce_columns(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int, groups: int
) -> int:
    """Accumulate VECTOR neighbouring outputs together, so that rows are read along."""
    core, build = kernel.core, lower.build
    assert core is not None
    shape = core.shape
    blocks = -(-shape[-1] // VECTOR)
    outer = math.prod(shape[:-1])
    share = lower.outermost("i", outer * blocks, "share")
    *lead, block = unravel(share, (*shape[:-1], blocks))
    left = None if shape[-1] % VECTOR == 0 else Const(shape[-1]) - block * VECTOR
    start = identity(core.op, core.dtype)
    accumulators = build.effect(U.ACC, (), (VECTOR, start), core.dtype)
    inner = build.open(Range("r", count))
    lane = build.open(Range("v", VECTOR, "vector", left))
    column = block * VECTOR + lane
    found = term([*lead, column], inner)
    build.effect(U.ACCUMULATE, (accumulators, found), (core.op, lane), core.dtype)
    build.close()
    build.close()
    lane = build.open(Range("w", VECTOR, "vector", left))
    lower.core_value = build.effect(U.LANE, (accumulators,), lane, core.dtype)
    store_all(lower, kernel.stores, [*lead, block * VECTOR + lane])
    build.close()
    build.close()
    return max(1, min(groups, outer * blocks))


def _reduce_on_lanes(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int, start: float
) -> tuple[int, int]:
    core, build = kernel.core, lower.build
    assert core is not None
    size = math.prod(core.shape)
    enough = GPU_LANES if lower.inside else 1024 if _keeps_last_axis(kernel) else 16384
    alone = size >= enough or count < 32
    local = 64 if alone else GPU_LANES
    out = lower.outermost("i", size, "item" if alone else "group")
    sharing = 1 if alone else local
    several = AT_ONCE if count % (sharing * AT_ONCE) == 0 else 1  # loads that wait together
    accumulators = build.effect(U.ACC, (), (several, start), core.dtype)
    depth = len(build.scopes)
    if several == 1:
        at: Expr = build.open(Range("r", count, "loop" if alone else "lane"))
        lane: Expr = Const(0)
    else:
        first = Const(0) if alone else build.open(Range("l", local, "lane"))
        block = build.open(Range("r", count // (sharing * several)))
        lane = build.open(Range("v", several, "vector"))
        at = (block * several + lane) * sharing + first
    found = term(unravel(out, core.shape), at)
    build.effect(U.ACCUMULATE, (accumulators, found), (core.op, lane), core.dtype)
    while len(build.scopes) > depth:
        build.close()
    total = build.effect(U.COMBINE, (accumulators,), core.op, core.dtype)
    if not alone:
        total = build.effect(U.GROUP, (total,), core.op, core.dtype)
        if lower.inside:
            build.effect(U.BARRIER, ())  # the next round uses the same local memory
    lower.core_value = total
    if alone:
        store_all(lower, kernel.stores, unravel(out, core.shape))
    else:
        build.open(Range("first", 1, "lane"))
        store_all(lower, kernel.stores, unravel(out, core.shape))
        build.close()
    build.close()
    return (-(-size // local) * local, local) if alone else (size * local, local)


# --- products ---


def _product(kernel: Kernel, lower: Lowering, lanes: Lanes, units: int) -> tuple[int, int]:
    core, build = kernel.core, lower.build
    assert core is not None
    *batch, rows, columns = core.shape
    wanted = 0 if lower.inside else 4 * units
    cut = _tile if lanes == "group" else _tile_by_one
    tile_rows, tile_columns = cut(core, wanted)
    shape = (*batch, -(-rows // tile_rows), -(-columns // tile_columns))
    tiles = math.prod(shape)
    tile = lower.outermost("t", tiles, "share" if lanes == "one" else "group")
    *lead, row_tile, column_tile = unravel(tile, shape)
    first_row, first_column = row_tile * tile_rows, column_tile * tile_columns
    rows_left = Const(rows) - first_row if rows % tile_rows else None
    columns_left = Const(columns) - first_column if columns % tile_columns else None
    product, sources = _operands(core, lead, first_row, first_column, build)
    product["direct"] &= columns % tile_columns == 0
    product |= {"tile_rows": tile_rows, "tile_columns": tile_columns}
    arg = Product(rows_left, columns_left, **product)
    begin = [*lead, first_row, first_column]
    if lanes == "one" and arg.inner <= REGISTER_INNER:
        _in_registers(kernel, lower, arg, sources, begin)
    else:
        found = build.effect(U.PRODUCT, sources, arg, f32)
        _store_tile(kernel, lower, arg, found, begin)
    if kernel.sums is not None:
        both = sources[1:] if lanes == "one" else [sources[1], found]
        _column_sums(kernel.sums, lower, arg, both, lead, row_tile, column_tile, lanes)
    build.close()
    if lanes == "group":
        return tiles * GPU_LANES, GPU_LANES
    return min(tiles, 4 * units), 1


def _in_registers(
    kernel: Kernel, lower: Lowering, tile: Product, sources: Sequence[int], begin: Sequence[Expr]
) -> None:
    """A tile, a few rows after the other, each stored right from registers."""
    build, (*lead, first_row, first_column), done = lower.build, begin, 0
    if not tile.direct:
        sources = [sources[0], build.effect(U.PANEL, sources[1:], tile, f32)]
    for height, count in _heights(tile.tile_rows, REGISTER_ROWS[tile.tile_columns]):
        loops = [Range("b", count)] if count > 1 else []
        first = sum([build.open(loop) * height for loop in loops], Const(done))
        left = None if tile.rows is None else tile.rows - first
        if left is not None:
            loops.append(Range("any", 1, "loop", left))
            build.open(loops[-1])
        place = tile.left + first * tile.left_row
        part = replace(tile, tile_rows=height, rows=left, left=place, registers=True)
        found = build.effect(U.PRODUCT, sources, part, f32)
        _store_tile(kernel, lower, part, found, [*lead, first_row + first, first_column])
        for _ in loops:
            build.close()
        done += height * count


def _heights(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """(rows, how many) of parts that have nearly the same height: 64 by 6 is 9 of 6, 2 of 5."""
    parts = -(-rows // most)
    height, larger = divmod(rows, parts)
    yield from ((h, n) for h, n in ((height + 1, larger), (height, parts - larger)) if n)


def _store_tile(
    kernel: Kernel, lower: Lowering, tile: Product, found: int, begin: Sequence[Expr]
) -> None:
    """What the kernel makes of each element of a product's tile."""
    build, (*lead, first_row, first_column) = lower.build, begin
    row = build.open(Range("m", tile.tile_rows, "row", tile.rows))
    column = build.open(Range("n", tile.tile_columns, "column", tile.columns))
    lower.core_value = build.effect(U.ELEMENT, (found,), (row, column), f32)
    store_all(lower, kernel.stores, [*lead, first_row + row, first_column + column])
    build.close()
    build.close()


def _column_sums(
    sums: Store, lower: Lowering, product: Product, sources: Sequence[int],
    lead: list[Expr], row_tile: Expr, column_tile: Expr, lanes: Lanes,
) -> None:  # fmt: skip
    """The second output, by the first tile of each column only."""
    build, width = lower.build, product.tile_columns
    build.open(Range("first", 1, "loop", Const(1) - row_tile))
    found = build.effect(U.COLUMNS, sources, product, f32)
    column = build.open(Range("s", width, "vector" if lanes == "one" else "lane", product.columns))
    lower.core, lower.core_value = sums.value, build.effect(U.LANE, (found,), column, f32)
    store_all(lower, [sums], [*lead, column_tile * width + column])
    build.close()
    build.close()


def _tile_by_one(core: Node, wanted: int) -> tuple[int, int]:
    """Tile sizes: smaller ones where fewer tiles than wanted would leave cores idle."""
    batch, (rows, columns) = math.prod(core.shape[:-2]), core.shape[-2:]
    narrow = columns <= NARROW and core.src[0].shape[-1] <= REGISTER_INNER
    width = NARROW if narrow else VECTOR
    tiles, panels = -(-rows // TILE_ROWS), -(-columns // width)
    while batch * tiles * panels < wanted and tiles * 16 <= rows:
        tiles *= 2
    return -(-rows // tiles), width


def _tile(core: Node, wanted: int) -> tuple[int, int]:
    """Tile sizes: smaller ones where fewer tiles than wanted would leave cores idle."""
    batch, (rows, columns) = math.prod(core.shape[:-2]), core.shape[-2:]
    height, width = GPU_TILE, GPU_TILE
    panels = -(-columns // width)
    while height > 8 and height >= 2 * rows:
        height //= 2
    while height > 8 and batch * -(-rows // height) * panels < wanted:
        height //= 2
    return height, width


def _operands(
    core: Node, lead: list[Expr], row: Expr, column: Expr, build: Builder
) -> tuple[dict[str, Any], list[int]]:
    """Offsets and strides of both factors, which are plain views of Buffers."""
    (left, left_view), (right, right_view) = (through(s) for s in core.src)
    a, b = left_view.views[0], right_view.views[0]
    left_offset, _ = left_view.index([*lead, row, Const(0)])
    right_offset, _ = right_view.index([*lead, Const(0), column])
    begins = [part_begin(s) for s in (left, right)]
    pitches = [n for _, n in split(begins[1])[1]] + [*b.strides[:-1], b.offset]
    aligned = all(n % 8 == 0 for n in pitches)
    product = {
        "inner": core.src[0].shape[-1],
        "left": left_offset + begins[0],
        "left_row": a.strides[-2],
        "left_inner": a.strides[-1],
        "right": right_offset + begins[1],
        "right_inner": b.strides[-2],
        "right_column": b.strides[-1],
        "direct": aligned and b.strides[-1] == 1,
    }
    return product, [build.parameter(storage(n)) for n in (left, right)]
