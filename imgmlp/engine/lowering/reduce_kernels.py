"""Reductions: which way a processor reads memory, and who adds up whose terms.

On a CPU a work-item has an output, or neighbouring ones as a vector; on a GPU a lane has one,
several lanes share its terms, or a whole group does. This module knows no other kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from imgmlp.engine.ir.conditions import less
from imgmlp.engine.ir.dtype import i32
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Kernel
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, unravel
from imgmlp.engine.ir.target import GPU_LANES
from imgmlp.engine.ir.uops import Builder, Range, U
from imgmlp.engine.lowering.expressions import Accumulators, Lowering, offsets_read, store_all
from imgmlp.engine.lowering.map_kernels import GRAIN, stride
from imgmlp.engine.lowering.matmul_kernels import only_added
from imgmlp.engine.lowering.row_kernels import accumulate

PAGE = 1024  # elements of a row that are a page of memory
WIDE = 128  # columns of such rows that a CPU adds up together: they are a page each
AT_ONCE = 8  # terms of a reduction that a lane of a GPU loads before it adds them
LONG = 1 << 10  # terms of a single sum that is a launch of its own, which more lanes share
LONE_LANES = 256
MOST_PARTS = 8  # lanes that share the terms of one of many outputs; 16 outputs are 64 bytes then
BUSY = 1 << 16  # lanes that keep a GPU busy
FEW = 4  # sums over a block's rows of which lanes keep parts: of as many channels


def reduce_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """The sizes of a launch whose every output is a sum, or another reduction, of many terms."""
    core, build = kernel.core, lower.build
    assert core is not None
    neighbours = _neighbours(core)
    axes = sorted(core.arg, key=neighbours.__getitem__)
    shape, count = core.shape, core.src[0].size // core.size
    size = math.prod(shape)

    def term(out: Sequence[Expr], inner: Expr) -> int:
        return _term(lower, core, axes, out, inner)

    if lower.target.lanes == "group":
        return _reduce_on_lanes(kernel, lower, term, count)
    groups = max(1, min(4 * lower.target.units, size * count // GRAIN, size))
    if size > 1 and shape[-1] > 1 and _runs_along_outputs(core, neighbours):
        return _reduce_columns(kernel, lower, term, count, groups), 1
    out = lower.outermost("i", size, "share")
    lower.core_value = accumulate(lower, core, count, lambda at: term(unravel(out, shape), at))
    store_all(lower, kernel.stores, unravel(out, shape))
    build.close()
    return groups, 1


def _term(
    lower: Lowering, core: Node, axes: Sequence[int], out: Sequence[Expr], inner: Expr
) -> int:
    """The `inner`th term of one output of a reduction over axes, which go in this order; beyond
    the last one what changes no result."""
    build, source = lower.build, core.src[0]
    exists = lower.bounds = less(inner, source.size // core.size)
    inside = dict(zip(axes, unravel(inner, [source.shape[a] for a in axes]), strict=True))
    outside = iter(out)
    indices = [inside[a] if a in inside else next(outside) for a in range(len(source.shape))]
    found = lower.value(source, indices, exists)
    if exists is ONE:
        return found
    nothing = build.emit(U.CONST, core.dtype, (), 0 if core.op is Op.SUM else core.dtype.min)
    chosen = build.emit(U.INDEX, i32, (), exists, [exists])
    return build.emit(U.ALU, core.dtype, (chosen, found, nothing), Op.WHERE)


def _neighbours(core: Node) -> list[int]:
    """For each axis of what is reduced: how many loads have their neighbours in memory along it."""
    indices, loads = offsets_read(core.src[0])
    return [sum(stride(offset, indices, i) == 1 for offset in loads) for i in indices]


def _runs_along_outputs(core: Node, neighbours: Sequence[int]) -> bool:
    """Whether neighbours in memory belong to neighbouring outputs, not to terms of one.

    Where nothing that is read says so, they are neighbours along the last axis.
    """
    last = len(neighbours) - 1
    outputs = max((a for a in range(last + 1) if a not in core.arg), default=None)
    if outputs is None:
        return False
    of_outputs, of_terms = neighbours[outputs], max(neighbours[a] for a in core.arg)
    return of_outputs > of_terms if of_outputs != of_terms else last not in core.arg


def _reduce_columns(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int, groups: int
) -> int:
    """Accumulate neighbouring outputs together, so that rows are read along."""
    core, build = kernel.core, lower.build
    assert core is not None
    shape = core.shape
    outer, width = math.prod(shape[:-1]), lower.target.wide
    many = shape[-1] >= PAGE
    while width < WIDE and many and outer * shape[-1] >= 2 * width * groups:
        if shape[-1] % width == 0 and shape[-1] % (2 * width):
            break  # as only whole blocks go in vectors
        width *= 2
    blocks = -(-shape[-1] // width)
    share = lower.outermost("i", outer * blocks, "share")
    *lead, block = unravel(share, (*shape[:-1], blocks))
    left = None if shape[-1] % width == 0 else Const(shape[-1]) - block * width
    accumulators = Accumulators(build, core, width)
    inner = build.open(Range("r", count))
    lane = build.open(Range("v", width, "vector", left))
    column = block * width + lane
    accumulators.add(term([*lead, column], inner), lane)
    build.close(2)
    lane = build.open(Range("w", width, "vector", left))
    lower.core_value = build.effect(U.LANE, (accumulators.found,), lane, core.dtype)
    store_all(lower, kernel.stores, [*lead, block * width + lane])
    build.close(2)
    return max(1, min(groups, outer * blocks))


def _reduce_on_lanes(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int
) -> tuple[int, int]:
    core, build = kernel.core, lower.build
    assert core is not None
    size, along = math.prod(core.shape), _runs_along_outputs(core, _neighbours(core))
    parts = _parts(size, count) if along and not lower.inside else 1
    if parts > 1:
        return _reduce_in_parts(kernel, lower, term, count, parts)
    enough = 1024 if along else 16384
    if lower.inside:
        enough = GPU_LANES
    alone = size >= enough or count < 32
    local = 64 if alone else GPU_LANES
    if size == 1 and count >= LONG and not (lower.inside or lower.beside):
        local = LONE_LANES
    out = lower.outermost("i", size, "item" if alone else "group")
    sharing = 1 if alone else local
    several, rounds = _at_once(-(-count // sharing))
    if lower.inside:  # where registers are scarce, and other groups' loads wait as well
        several = AT_ONCE if count % (sharing * AT_ONCE) == 0 else 1
        rounds = count // (sharing * several)
    accumulators = Accumulators(build, core, several)
    depth = len(build.scopes)
    if several == 1:
        at: Expr = build.open(Range("r", count, "loop" if alone else "lane"))
        lane: Expr = Const(0)
    else:
        first = Const(0) if alone else build.open(Range("l", local, "lane"))
        block = build.open(Range("r", rounds))
        lane = build.open(Range("v", several, "vector"))
        at = (block * several + lane) * sharing + first
    accumulators.add(term(unravel(out, core.shape), at), lane)
    build.close(len(build.scopes) - depth)
    lower.core_value = accumulators.total(0 if alone else 1)
    if lower.inside and not alone:
        build.effect(U.BARRIER, ())  # the next round uses the same local memory
    if alone:
        store_all(lower, kernel.stores, unravel(out, core.shape))
    else:
        build.open(Range("first", 1, "lane"))
        store_all(lower, kernel.stores, unravel(out, core.shape))
        build.close()
    build.close()
    return (-(-size // local) * local, local) if alone else (size * local, local)


def _at_once(terms: int) -> tuple[int, int]:
    """How many of its terms a lane loads at once, and how often; perhaps more than there are."""
    most = min(AT_ONCE, terms)
    several = next(n for n in range(most, 0, -1) if terms % n == 0)
    several = several if 2 * several > most else most
    return several, -(-terms // several)


def _parts(size: int, count: int) -> int:
    """How many lanes share the terms of each output, where neighbours have neighbouring ones."""
    parts = 1
    while parts < MOST_PARTS and size * parts < BUSY and count % (4 * parts) == 0:
        parts *= 2
    return parts


def _reduce_in_parts(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int, parts: int
) -> tuple[int, int]:
    """Neighbouring outputs for a group, as many times as each output's terms have parts."""
    core, build = kernel.core, lower.build
    assert core is not None
    size, columns = math.prod(core.shape), GPU_LANES // parts
    several = math.gcd(count // parts, AT_ONCE)
    groups, rounds = -(-size // columns), count // parts // several
    group = lower.outermost("i", groups, "group")
    accumulators = Accumulators(build, core, several)
    lane = build.open(Range("l", GPU_LANES, "lane"))
    output = group * columns + lane % columns
    limit = None if size % columns == 0 else less(output, size) * rounds
    block = build.open(Range("r", rounds, limit=limit), holds=limit is not None)
    each = build.open(Range("v", several, "vector"))
    at = (block * several + each) * parts + lane // columns
    accumulators.add(term(unravel(output, core.shape), at), each)
    build.close(3)
    lower.core_value = accumulators.total(columns)
    left = None if size % columns == 0 else Const(size) - group * columns
    first = build.open(Range("first", columns, "lane", left))
    store_all(lower, kernel.stores, unravel(group * columns + first, core.shape))
    build.close(2)
    return groups * GPU_LANES, GPU_LANES


class Totals:
    """A few sums of which lanes have parts in registers, from one tile of a block to the next."""

    def __init__(self, core: Node, build: Builder) -> None:
        self.core, self.build = core, build
        self.own = [Accumulators(build, core) for _ in range(core.size)]

    def add(self, lower: Lowering) -> None:
        """Each lane its terms of a tile."""
        build, core = self.build, self.core
        for number, own in enumerate(self.own):
            at = build.open(Range("r", core.src[0].size // core.size, "lane"))
            out = unravel(Const(number), core.shape)
            own.add(_term(lower, core, core.arg, out, at))
            build.close()

    def leave(self, kernel: Kernel, lower: Lowering) -> None:
        """Add up what the lanes have, and store it."""
        build = self.build
        for number, own in enumerate(self.own):
            lower.core_value = own.total(1)
            build.effect(U.BARRIER, ())  # the next one uses the same local memory
            build.open(Range("first", 1, "lane"))
            store_all(lower, kernel.stores, unravel(Const(number), self.core.shape))
            build.close()


def keep_totals(kernels: Sequence[Kernel], build: Builder) -> dict[Kernel, Totals]:
    """Sums of a block to a few elements that are only added up."""
    found: dict[Kernel, Totals] = {}
    for kernel in kernels:
        core = kernel.core
        if core is not None and core.op is Op.SUM and core.size <= FEW and only_added(kernel):
            found[kernel] = Totals(core, build)
    return found
