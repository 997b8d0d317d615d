"""Lowering: a launch becomes UOps, the instructions of its loop nest.

In: a launch of a Procedure, and the Target. Out: its Code: UOps, and the size of the launch.

The device chooses one of two mappings. With lanes "one" a work-group has one work-item, which loops
over its share of the elements (CPUs, whose compiler vectorises the innermost loop). With lanes
"group" its lanes have an element each (GPUs). The modules beside this one lower one kind of kernel
each. Values and the order of additions must be those of the kernel, up to the partial sums of the
mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from imgmlp.engine.ir.dtype import i32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Block, Fused, Kernel, Launch, Persistent, Tiled
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import INT_MAX, LONG_MAX, Expr, Var, max_magnitude
from imgmlp.engine.ir.target import LANES_PER_GROUP, MAX_UNITS_PER_PHASE, Lanes, ProductMode, Target
from imgmlp.engine.ir.uops import Builder, Code, Range, U, UOp
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.lowering.expressions import Lowering
from imgmlp.engine.lowering.halo_tiles import tiled_kernel
from imgmlp.engine.lowering.map_kernels import map_kernel
from imgmlp.engine.lowering.matmul_kernels import RegisterSums, matmul_kernel, sums_in_registers
from imgmlp.engine.lowering.reduce_kernels import RegisterTotals, reduce_kernel, totals_in_registers
from imgmlp.engine.lowering.row_kernels import row_kernel

# Registers of each lane for sums that a block accumulates over its tiles. In float32 by lanes, more
# work-groups at a time gain more than sums in registers do (docs/performance-notes.md, "One tile on
# a GPU").
SUM_REGISTERS_PER_LANE: dict[ProductMode, int] = {"float32": 0, "split": 104, "half": 104}
MAX_ELEMENTS = INT_MAX  # of a Buffer or a loop: an index is an int in OpenCL C


# --- kernels ---


def linearize(kernel: Launch, target: Target, in_fused_launch: bool = False) -> Code:
    """The UOps of a launch, or of a member of a Fused one."""
    if isinstance(kernel, Fused):
        members = [linearize(k, target, in_fused_launch=True) for k in kernel.members]
        return _fused(kernel.name, members)
    if isinstance(kernel, Persistent):
        phases = [linearize(p, target) for p in kernel.phases]
        return _persistent(kernel.name, phases, target.compute_units)
    build = Builder()
    for written in kernel.writes():
        build.parameter(written, True)
    if isinstance(kernel, Block):
        sizes = _lower_block(kernel, build, target)
    elif isinstance(kernel, Tiled):
        sizes = tiled_kernel(kernel, build, target)
    else:
        lower = Lowering(build, kernel.core, target, in_fused_launch=in_fused_launch)
        for guard in kernel.guards:
            build.effect(U.GUARD, (lower.value(guard.condition, ()),), guard.expected)
        sizes = _lower_kernel(kernel, lower)
    code = Code(kernel.name, build.finish(), build.buffers, *sizes)
    _check_indices(code)
    return code


def _check_indices(code: Code) -> None:
    """Raise a ValueError if a Buffer or an index is larger than an int of C."""
    for u in code.uops:
        most = 0
        if u.op is U.GLOBAL:
            most = u.arg[0].size
        elif u.op is U.RANGE:
            most = u.arg.count
        elif u.op in (U.LOAD, U.STORE, U.STORE_ADD, U.INDEX):
            most = max(map(_largest_magnitude, u.arg if u.op is U.LOAD else (u.arg,)))
        if most > MAX_ELEMENTS:
            raise misuse(
                ValueError,
                f"{code.name}: {most:,} elements are more than a kernel can count, which is "
                f"{MAX_ELEMENTS:,}; cut the Tensor in parts, or use device 'numpy'",
            )


def _largest_magnitude(index: Expr) -> int:
    """The largest magnitude of an index, or of an intermediate result if no long can hold it."""
    way = max_magnitude(index)
    return way if way > LONG_MAX else max(index.hi, -index.lo)


def _fused(name: str, codes: Sequence[Code]) -> Code:
    """One launch of several kernels, side by side.

    Members of few work-groups come first: the groups that start last should be short, as those of a
    member with many groups are.
    """
    local = max(c.local_size for c in codes)
    members, first = [], 0
    for code in sorted(codes, key=lambda c: c.global_size // c.local_size):
        groups = -(-code.global_size // local)
        members.append((code, Range("group", groups, "member", first=first)))
        first += groups
    return Code(name, *_concatenate(codes, members), first * local, local)


def _persistent(name: str, codes: Sequence[Code], units: int) -> Code:
    """One launch whose groups, of one work-item each, run the work-groups of several launches."""
    phases = [(c, Range("unit", c.global_size, "phase", first=i)) for i, c in enumerate(codes)]
    shares = tuple(min(c.global_size, MAX_UNITS_PER_PHASE) for c in codes)
    return Code(name, *_concatenate(codes, phases), min(units, max(shares)), 1, shares)


def _concatenate(
    codes: Sequence[Code], parts: Sequence[tuple[Code, Range]]
) -> tuple[tuple[UOp, ...], tuple[Buffer, ...]]:
    """The UOps of several kernels, each in its own Range, after the parameters of all of them."""
    buffers = tuple(dict.fromkeys(b for c in codes for b in c.buffers))
    given = [u.arg for c in codes for u in c.uops if u.op is U.GLOBAL]
    uops = [UOp(U.GLOBAL, b.dtype, (), (b, (b, True) in given)) for b in buffers]
    for code, loop in parts:
        uops.append(UOp(U.RANGE, i32, (), loop))
        place: list[int] = []
        for u in code.uops:
            if u.op is U.GLOBAL:
                place.append(buffers.index(u.arg[0]))
            else:
                place.append(len(uops))
                uops.append(replace(u, src=tuple(place[s] for s in u.src)))
        uops.append(UOp(U.END, None, (), None))
    return tuple(uops), buffers


def _lower_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    if kernel.row_reductions:
        return row_kernel(kernel, lower)
    if kernel.core is None:
        return map_kernel(kernel, lower)
    if kernel.core.op is Op.DOT:
        return matmul_kernel(kernel, lower)
    return reduce_kernel(kernel, lower)


def _lower_block(block: Block, build: Builder, target: Target) -> tuple[int, int]:
    """Lower the kernels of a block one after the other for each tile.

    On a GPU, sums over rows may stay in registers from tile to tile: `accumulated` has their
    kernels, which store once, after the last tile.
    """
    lanes, one_unit = target.lanes, replace(target, compute_units=1)

    def lowering(kernel: Kernel) -> Lowering:
        return Lowering(build, kernel.core, one_unit, in_block=True)

    build.open(Range("group", block.groups, "group"))
    accumulated: dict[Kernel, RegisterSums | RegisterTotals] = {}
    if lanes == "group":
        registers = SUM_REGISTERS_PER_LANE[target.product_mode]
        lower = Lowering(build, None, one_unit, in_block=True)
        accumulated |= sums_in_registers(block.kernels, lower, registers)
        accumulated |= totals_in_registers(block.kernels, build)
    others = (k for k in block.kernels if k not in accumulated)
    stored_once = _added_buffers(accumulated) - _added_buffers(others)
    for kernel in block.prologue:
        if not stored_once.issuperset(kernel.writes()):  # these need not be cleared before
            _lower_kernel(kernel, lowering(kernel))
    _barrier(build, lanes)
    build.open(Range("tile", block.tiles, "share"))
    barriers = _BarrierPlacer(build, lanes)
    for number, kernel in enumerate(block.kernels):
        barriers.wait_before(kernel, stores=kernel not in accumulated)
        if kernel in accumulated:
            accumulated[kernel].add(lowering(kernel))
        else:
            lower = lowering(kernel)
            _open_guards(kernel, lower, number)
            _lower_kernel(kernel, lower)
            build.close(len(kernel.guards))
    _barrier(build, lanes)
    build.close()
    for kernel, sums in accumulated.items():
        storing = kernel.adding_to(_added_buffers([kernel]) - stored_once)
        sums.store_totals(storing, lowering(storing))
    build.close()
    local = 1 if lanes == "one" else LANES_PER_GROUP
    return block.groups * local, local


def _open_guards(kernel: Kernel, lower: Lowering, number: int) -> None:
    """Open a loop for each guard of a kernel in a block, which runs once or not at all."""
    build = lower.build
    for depth, guard in enumerate(kernel.guards):
        holds, name = lower.value(guard.condition, ()), f"holds{number}_{depth}"
        build.define(name, holds, build.depth[holds])
        assert guard.expected
        build.open(Range(f"once{number}_{depth}", 1, limit=Var(name, 0, 1)), keeps_loads=True)


def _added_buffers(kernels: Iterable[Kernel]) -> set[Buffer]:
    """The Buffers that kernels add to."""
    return {s.target for k in kernels for s in k.all_stores() if s.adds}


class _BarrierPlacer:
    """Puts barriers between kernels of a block, where one touches what another one stored or read.

    They are needed on a GPU only, where the lanes of a group share each kernel.
    """

    def __init__(self, build: Builder, lanes: Lanes) -> None:
        self.build, self.lanes = build, lanes
        self.read: set[Buffer] = set()
        self.written: set[Buffer] = set()

    def wait_before(self, kernel: Kernel, stores: bool) -> None:
        """Emit a barrier before a kernel if it needs one; `stores` is whether it stores here."""
        read, written = set(kernel.reads()), set(kernel.writes()) if stores else set()
        if self.written & (read | written) or self.read & written:
            _barrier(self.build, self.lanes)
            self.read, self.written = set(), set()
        self.read |= read
        self.written |= written


def _barrier(build: Builder, lanes: Lanes) -> None:
    if lanes == "group":
        build.effect(U.BARRIER, ())
