"""Lowering of reductions: the order in which terms are read, and who reduces them.

On a CPU a work-item computes one output, or a vector of neighbouring ones. On a GPU one lane, a few
lanes, or a whole work-group share the terms of an output. The axis whose neighbours lie together in
memory runs innermost.
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
from imgmlp.engine.ir.target import LANES_PER_GROUP
from imgmlp.engine.ir.uops import Builder, Range, U
from imgmlp.engine.lowering.expressions import Accumulators, Lowering, load_offsets, lower_stores
from imgmlp.engine.lowering.map_kernels import MIN_ELEMENTS_PER_GROUP, stride
from imgmlp.engine.lowering.matmul_kernels import is_only_added
from imgmlp.engine.lowering.row_kernels import accumulate

# --- on a CPU ---
PAGE_ELEMENTS = 1024  # float32 elements of a page of memory
# Columns that are accumulated together if rows are at least a page long, so that each term of a
# column is in another page.
MAX_COLUMN_ACCUMULATORS = 128

# --- on a GPU ---
MAX_TERMS_LOADED_AT_ONCE = 8  # terms that a lane loads before it adds them
MIN_LONG_SUM_TERMS = 1 << 10  # terms of a single output from which LONG_SUM_LANES share them
LONG_SUM_LANES = 256
# Lanes that share the terms of one of many outputs. A group of 128 lanes then has 16 neighbouring
# outputs, which are 64 bytes.
MAX_LANES_PER_OUTPUT = 8
LANES_THAT_FILL_A_GPU = 1 << 16
MAX_REGISTER_TOTALS = 4  # elements of a sum over a block's rows that lanes accumulate in registers


def reduce_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """Lower a reduction; returns the launch's global and local size."""
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
    groups = max(
        1, min(4 * lower.target.compute_units, size * count // MIN_ELEMENTS_PER_GROUP, size)
    )
    if size > 1 and shape[-1] > 1 and _runs_along_outputs(core, neighbours):
        return _reduce_columns(kernel, lower, term, count, groups), 1
    out = lower.open_outermost("i", size, "share")
    lower.core_value = accumulate(lower, core, count, lambda at: term(unravel(out, shape), at))
    lower_stores(lower, kernel.stores, unravel(out, shape))
    build.close()
    return groups, 1


def _term(
    lower: Lowering, core: Node, axes: Sequence[int], out: Sequence[Expr], inner: Expr
) -> int:
    """The `inner`th term of one output, counted along the reduced `axes` in their order.

    Beyond the last term it is the neutral element.
    """
    build, source = lower.build, core.src[0]
    exists = lower.bounds = less(inner, source.size // core.size)
    inside = dict(zip(axes, unravel(inner, [source.shape[a] for a in axes]), strict=True))
    outside = iter(out)
    indices = [inside[a] if a in inside else next(outside) for a in range(len(source.shape))]
    term = lower.value(source, indices, exists)
    if exists is ONE:
        return term
    nothing = build.emit(U.CONST, core.dtype, (), 0 if core.op is Op.SUM else core.dtype.min)
    chosen = build.emit(U.INDEX, i32, (), exists, [exists])
    return build.emit(U.ALU, core.dtype, (chosen, term, nothing), Op.WHERE)


def _neighbours(core: Node) -> list[int]:
    """For each axis of the reduced value: how many loads have their neighbours along it."""
    indices, loads = load_offsets(core.src[0])
    return [sum(stride(offset, indices, i) == 1 for offset in loads) for i in indices]


def _runs_along_outputs(core: Node, neighbours: Sequence[int]) -> bool:
    """Whether neighbours in memory belong to neighbouring outputs, not to terms of one output.

    If loads do not decide, neighbours are assumed along the last axis.
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
    """Accumulate neighbouring outputs together, so that memory is read along rows."""
    core, build = kernel.core, lower.build
    assert core is not None
    shape = core.shape
    outer, width = math.prod(shape[:-1]), lower.target.vector_pair_width
    many = shape[-1] >= PAGE_ELEMENTS
    while width < MAX_COLUMN_ACCUMULATORS and many and outer * shape[-1] >= 2 * width * groups:
        if shape[-1] % width == 0 and shape[-1] % (2 * width):
            break  # only whole blocks are vectorised
        width *= 2
    blocks = -(-shape[-1] // width)
    share = lower.open_outermost("i", outer * blocks, "share")
    *lead, block = unravel(share, (*shape[:-1], blocks))
    left = None if shape[-1] % width == 0 else Const(shape[-1]) - block * width
    accumulators = Accumulators(build, core, width)
    inner = build.open(Range("r", count))
    lane = build.open(Range("v", width, "vector", left))
    column = block * width + lane
    accumulators.add(term([*lead, column], inner), lane)
    build.close(2)
    lane = build.open(Range("w", width, "vector", left))
    lower.core_value = build.effect(U.GET, (accumulators.acc,), lane, core.dtype)
    lower_stores(lower, kernel.stores, [*lead, block * width + lane])
    build.close(2)
    return max(1, min(groups, outer * blocks))


def _reduce_on_lanes(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int
) -> tuple[int, int]:
    """An output by one lane each, by all lanes of a group, or by some of them: few or many terms.

    Returns the launch's global and local size.
    """
    core, build = kernel.core, lower.build
    assert core is not None
    size, along = math.prod(core.shape), _runs_along_outputs(core, _neighbours(core))
    parts = _lanes_per_output(size, count) if along and not lower.in_block else 1
    if parts > 1:
        return _reduce_in_parts(kernel, lower, term, count, parts)
    one_lane, local = _lanes_of_output(lower, size, count, along)
    out = lower.open_outermost("i", size, "item" if one_lane else "group")
    sharing = 1 if one_lane else local
    several, rounds = _loads_per_lane(lower, count, sharing)
    accumulators = Accumulators(build, core, several)
    depth = len(build.scopes)
    if several == 1:
        at: Expr = build.open(Range("r", count, "loop" if one_lane else "lane"))
        lane: Expr = Const(0)
    else:
        first = Const(0) if one_lane else build.open(Range("l", local, "lane"))
        block = build.open(Range("r", rounds))
        lane = build.open(Range("v", several, "vector"))
        at = (block * several + lane) * sharing + first
    accumulators.add(term(unravel(out, core.shape), at), lane)
    build.close(len(build.scopes) - depth)
    lower.core_value = accumulators.total(0 if one_lane else 1)
    if lower.in_block and not one_lane:
        build.effect(U.BARRIER, ())  # the next round uses the same local memory
    if not one_lane:
        build.open(Range("first", 1, "lane"))
    lower_stores(lower, kernel.stores, unravel(out, core.shape))
    build.close(1 if one_lane else 2)
    return (-(-size // local) * local, local) if one_lane else (size * local, local)


def _lanes_of_output(lower: Lowering, size: int, count: int, along: bool) -> tuple[bool, int]:
    """Whether one lane computes a whole output, not a whole work-group; and a group's lanes.

    There are `size` outputs of `count` terms each. `along` says whether neighbouring outputs have
    neighbouring terms in memory.
    """
    is_alone = not (lower.in_block or lower.in_fused_launch)
    if size == 1 and count >= MIN_LONG_SUM_TERMS and is_alone:
        return False, LONG_SUM_LANES
    enough = LANES_PER_GROUP if lower.in_block else 1024 if along else 16384
    one_lane = size >= enough or count < 32
    return one_lane, 64 if one_lane else LANES_PER_GROUP


def _loads_per_lane(lower: Lowering, count: int, sharing: int) -> tuple[int, int]:
    """How many terms a lane loads at once, and how often, if `sharing` lanes share all terms."""
    if not lower.in_block:
        return _terms_per_load(-(-count // sharing))
    # Registers are scarce in a block.
    is_divisible = count % (sharing * MAX_TERMS_LOADED_AT_ONCE) == 0
    several = MAX_TERMS_LOADED_AT_ONCE if is_divisible else 1
    return several, count // (sharing * several)


def _terms_per_load(terms: int) -> tuple[int, int]:
    """How many terms a lane loads at once, and how often; together at least its terms."""
    most = min(MAX_TERMS_LOADED_AT_ONCE, terms)
    several = next(n for n in range(most, 0, -1) if terms % n == 0)
    several = several if 2 * several > most else most
    return several, -(-terms // several)


def _lanes_per_output(size: int, count: int) -> int:
    """How many lanes share the terms of each output, if outputs are neighbours in memory."""
    parts = 1
    while (
        parts < MAX_LANES_PER_OUTPUT
        and size * parts < LANES_THAT_FILL_A_GPU
        and count % (4 * parts) == 0
    ):
        parts *= 2
    return parts


def _reduce_in_parts(
    kernel: Kernel, lower: Lowering, term: Callable[..., int], count: int, parts: int
) -> tuple[int, int]:
    """Each group computes neighbouring outputs; `parts` lanes share the terms of each output."""
    core, build = kernel.core, lower.build
    assert core is not None
    size, columns = math.prod(core.shape), LANES_PER_GROUP // parts
    several = math.gcd(count // parts, MAX_TERMS_LOADED_AT_ONCE)
    groups, rounds = -(-size // columns), count // parts // several
    group = lower.open_outermost("i", groups, "group")
    accumulators = Accumulators(build, core, several)
    lane = build.open(Range("l", LANES_PER_GROUP, "lane"))
    output = group * columns + lane % columns
    limit = None if size % columns == 0 else less(output, size) * rounds
    block = build.open(Range("r", rounds, limit=limit), keeps_loads=limit is not None)
    each = build.open(Range("v", several, "vector"))
    at = (block * several + each) * parts + lane // columns
    accumulators.add(term(unravel(output, core.shape), at), each)
    build.close(3)
    lower.core_value = accumulators.total(columns)
    left = None if size % columns == 0 else Const(size) - group * columns
    first = build.open(Range("first", columns, "lane", left))
    lower_stores(lower, kernel.stores, unravel(group * columns + first, core.shape))
    build.close(2)
    return groups * LANES_PER_GROUP, LANES_PER_GROUP


class RegisterTotals:
    """A sum of a block to a few elements, of which each lane accumulates a part over all tiles."""

    def __init__(self, core: Node, build: Builder) -> None:
        self.core, self.build = core, build
        self.own = [Accumulators(build, core) for _ in range(core.size)]

    def add(self, lower: Lowering) -> None:
        """Add each lane's terms of the current tile."""
        build, core = self.build, self.core
        for number, own in enumerate(self.own):
            at = build.open(Range("r", core.src[0].size // core.size, "lane"))
            out = unravel(Const(number), core.shape)
            own.add(_term(lower, core, core.arg, out, at))
            build.close()

    def store_totals(self, kernel: Kernel, lower: Lowering) -> None:
        """Combine the parts of all lanes, and store the sums."""
        build = self.build
        for number, own in enumerate(self.own):
            lower.core_value = own.total(1)
            build.effect(U.BARRIER, ())  # the next one uses the same local memory
            build.open(Range("first", 1, "lane"))
            lower_stores(lower, kernel.stores, unravel(Const(number), self.core.shape))
            build.close()


def totals_in_registers(kernels: Sequence[Kernel], build: Builder) -> dict[Kernel, RegisterTotals]:
    """The sums of a block to a few elements whose result is only added to a Buffer."""
    totals: dict[Kernel, RegisterTotals] = {}
    for kernel in kernels:
        core = kernel.core
        if (
            core is not None
            and core.op is Op.SUM
            and core.size <= MAX_REGISTER_TOTALS
            and is_only_added(kernel)
        ):
            totals[kernel] = RegisterTotals(core, build)
    return totals
