"""How a kernel runs: a Kernel becomes UOps.

There are two mappings, chosen by the device: `one` work-item a group that loops over its
share (CPUs, whose compiler vectorises the innermost loop), or a `group` of lanes with an
element each (GPUs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from imgmlp.engine.ir.dtype import i32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Block, Fused, Kernel, Launch, Persistent, Tiled
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import INT, LONG, Expr, Var, reach
from imgmlp.engine.ir.target import GPU_LANES, MOST_UNITS, Lanes, Multiply, Target
from imgmlp.engine.ir.uops import Builder, Code, Range, U, UOp
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.lowering.expressions import Lowering
from imgmlp.engine.lowering.halo_tiles import tiled_kernel
from imgmlp.engine.lowering.map_kernels import map_kernel
from imgmlp.engine.lowering.matmul_kernels import Sums, keep_sums, product
from imgmlp.engine.lowering.reduce_kernels import Totals, keep_totals, reduce_kernel
from imgmlp.engine.lowering.row_kernels import row_kernel

# of each lane, for sums that a block keeps from tile to tile; in float32 more lanes pay more
KEPT_REGISTERS: dict[Multiply, int] = {"float32": 0, "split": 104, "half": 104}


MOST_ELEMENTS = INT  # of what a kernel reads, writes or counts: an index is an int of C


# --- kernels ---


def linearize(kernel: Launch, target: Target, beside: bool = False) -> Code:
    """UOps of a kernel, which may be `beside` others in a launch."""
    if isinstance(kernel, Fused):
        members = [linearize(k, target, beside=True) for k in kernel.members]
        return _fused(kernel.name, members)
    if isinstance(kernel, Persistent):
        phases = [linearize(p, target) for p in kernel.phases]
        return _persistent(kernel.name, phases, target.units)
    build = Builder()
    for written in kernel.writes():
        build.parameter(written, True)
    if isinstance(kernel, Block):
        sizes = _block(kernel, build, target)
    elif isinstance(kernel, Tiled):
        sizes = tiled_kernel(kernel, build, target)
    else:
        lower = Lowering(build, kernel.core, target, beside=beside)
        for guard in kernel.guards:
            build.effect(U.GUARD, (lower.value(guard.condition, ()),), guard.wanted)
        sizes = _body(kernel, lower)
    code = Code(kernel.name, build.finish(), build.buffers, *sizes)
    _check_indices(code)
    return code


def _check_indices(code: Code) -> None:
    """Refuse, as a ValueError, what has more elements than an index can count."""
    for u in code.uops:
        most = 0
        if u.op is U.GLOBAL:
            most = u.arg[0].size
        elif u.op is U.RANGE:
            most = u.arg.count
        elif u.op in (U.LOAD, U.STORE, U.ADD, U.INDEX):
            most = max(map(_most, u.arg if u.op is U.LOAD else (u.arg,)))
        if most > MOST_ELEMENTS:
            raise misuse(
                ValueError,
                f"{code.name}: {most:,} elements are more than a kernel can count, which is "
                f"{MOST_ELEMENTS:,}; cut the Tensor in parts, or use device 'numpy'",
            )


def _most(index: Expr) -> int:
    """The largest magnitude that an index has, or meets on the way if that is none of a long."""
    way = reach(index)
    return way if way > LONG else max(index.hi, -index.lo)


def _fused(name: str, codes: Sequence[Code]) -> Code:
    """One launch of several: members of few groups come first, as what begins last should be short
    and is a part of a large one then."""
    local = max(c.local_size for c in codes)
    members, first = [], 0
    for code in sorted(codes, key=lambda c: c.global_size // c.local_size):
        groups = -(-code.global_size // local)
        members.append((code, Range("group", groups, "member", first=first)))
        first += groups
    return Code(name, *_joined(codes, members), first * local, local)


def _persistent(name: str, codes: Sequence[Code], units: int) -> Code:
    """One launch whose groups of one work-item each take what were groups of several launches."""
    phases = [(c, Range("unit", c.global_size, "phase", first=i)) for i, c in enumerate(codes)]
    shares = tuple(min(c.global_size, MOST_UNITS) for c in codes)
    return Code(name, *_joined(codes, phases), min(units, max(shares)), 1, shares)


def _joined(
    codes: Sequence[Code], parts: Sequence[tuple[Code, Range]]
) -> tuple[tuple[UOp, ...], tuple[Buffer, ...]]:
    """Kernels one after the other, each in its Range, behind the Buffers that all of them have."""
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


def _body(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    if kernel.rows:
        return row_kernel(kernel, lower)
    if kernel.core is None:
        return map_kernel(kernel, lower)
    if kernel.core.op is Op.DOT:
        return product(kernel, lower)
    return reduce_kernel(kernel, lower)


def _block(block: Block, build: Builder, target: Target) -> tuple[int, int]:
    """Kernels one after the other on each tile; what one stores, the next ones load anew."""

    lanes, alone = target.lanes, replace(target, units=1)

    def inside(kernel: Kernel) -> Lowering:
        return Lowering(build, kernel.core, alone, inside=True)

    build.open(Range("group", block.groups, "group"))
    kept: dict[Kernel, Sums | Totals] = {}
    if lanes == "group":
        registers = KEPT_REGISTERS[target.multiply]
        kept |= keep_sums(block.kernels, Lowering(build, None, alone, inside=True), registers)
        kept |= keep_totals(block.kernels, build)
    once = _targets(kept) - _targets(k for k in block.kernels if k not in kept)
    for kernel in block.prologue:
        if not once.issuperset(kernel.writes()):  # as that sets to zero what is stored once
            _body(kernel, inside(kernel))
    _wait(build, lanes)
    build.open(Range("tile", block.tiles, "share"))
    order = _Order(build, lanes)
    for number, kernel in enumerate(block.kernels):
        order.before(kernel, kernel not in kept)
        if kernel in kept:
            kept[kernel].add(inside(kernel))
        else:
            lower = inside(kernel)
            _enter(kernel, lower, number)
            _body(kernel, lower)
            build.close(len(kernel.guards))
    _wait(build, lanes)
    build.close()
    for kernel, sums in kept.items():
        whole = kernel.adding_to(_targets([kernel]) - once)
        sums.leave(whole, inside(whole))
    build.close()
    local = 1 if lanes == "one" else GPU_LANES
    return block.groups * local, local


def _enter(kernel: Kernel, lower: Lowering, number: int) -> None:
    """Open a loop of one round for each guard of a kernel in a block, or of none."""
    build = lower.build
    for depth, guard in enumerate(kernel.guards):
        found, name = lower.value(guard.condition, ()), f"holds{number}_{depth}"
        build.define(name, found, build.depth[found])
        assert guard.wanted
        build.open(Range(f"once{number}_{depth}", 1, limit=Var(name, 0, 1)), holds=True)


def _targets(kernels: Iterable[Kernel]) -> set[Buffer]:
    """What kernels add to."""
    return {s.target for k in kernels for s in k.all_stores() if s.adds}


class _Order:
    """Has lanes wait where a kernel of a block needs what another one read or stored."""

    def __init__(self, build: Builder, lanes: Lanes) -> None:
        self.build, self.lanes = build, lanes
        self.read: set[Buffer] = set()
        self.written: set[Buffer] = set()

    def before(self, kernel: Kernel, stores: bool) -> None:
        """`stores` is false if it keeps what it computes until all tiles are done."""
        read, written = set(kernel.reads()), set(kernel.writes()) if stores else set()
        if self.written & (read | written) or self.read & written:
            _wait(self.build, self.lanes)
            self.read, self.written = set(), set()
        self.read |= read
        self.written |= written


def _wait(build: Builder, lanes: Lanes) -> None:
    if lanes == "group":
        build.effect(U.BARRIER, ())
