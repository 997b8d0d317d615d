"""Lowering of expressions: UOps for the value of a Node at given indices, and for its stores.

All kinds of kernels share this: each opens its own loops, and asks for values at their indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from imgmlp.engine.ir.conditions import all_of
from imgmlp.engine.ir.dtype import DType, i32
from imgmlp.engine.ir.graph import Node, const
from imgmlp.engine.ir.index_values import index_value, negated, source_and_access, zero_outside
from imgmlp.engine.ir.kernel import Store, access, part_begin
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, ZERO, Const, Expr, Var, unravel
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.uops import Builder, Range, U


class Lowering:
    """Emits UOps for the expressions of one kernel."""

    def __init__(
        self, build: Builder, core: Node | None, target: Target, in_block: bool = False,
        in_fused_launch: bool = False,
    ) -> None:  # fmt: skip
        self.build = build
        self.core = core
        self.target = target
        self.in_block = in_block  # whether the kernel is part of a Block, which opened its loops
        self.in_fused_launch = in_fused_launch  # whether other kernels set the size of groups
        self.bounds: Expr = ONE  # a guard that only keeps loads within their Buffer
        self.core_value: int | None = None  # the UOp of the core's result
        self.totals: dict[Node, int] = {}  # UOps of the reductions of the current row
        self.memo: dict[Any, int] = {}  # (Node, indices, guard) -> UOp

    def open_outermost(self, name: str, count: int, dtype: str) -> Var:
        """Open the loop over a kernel's work; in a block one group does all of it."""
        if self.in_block:
            dtype = {"share": "loop", "group": "loop", "item": "lane"}[dtype]
        return self.build.open(Range(name, count, dtype))

    def value(self, node: Node, indices: Sequence[Expr], guard: Expr = ONE) -> int:
        """The UOp of a Node's element at some indices; nothing is loaded unless `guard` is 1."""
        key = (node, tuple(indices), guard)
        if self.memo.get(key) not in self.build.live:
            self.memo[key] = self._emit(node, tuple(indices), guard)
        return self.memo[key]

    def _emit(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        emit = self.build.emit
        if node is self.core:
            assert self.core_value is not None
            return self.core_value
        if node in self.totals:
            return self.totals[node]
        if node.op is Op.CONST:
            return emit(U.CONST, node.dtype, (), node.arg)
        if node.op is Op.IOTA:
            return emit(U.INDEX, i32, (), indices[0], [indices[0]])
        if node.op in (Op.BUFFER, Op.PART) or node.op in MOVEMENT:
            return self._moved(node, indices, guard)
        if node.op is Op.GATHER:
            return self._gathered(node, indices, guard)
        if node.op is Op.WHERE and (masked := self._masked(node, indices, guard)) is not None:
            return masked
        if node.op in ELEMENTWISE:
            src = [self.value(s, indices, guard) for s in node.src]
            return emit(U.ALU, node.dtype, src, node.op)
        raise AssertionError(f"{node.op.name} does not belong inside a kernel")

    def _moved(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        source, moved = source_and_access(node)
        offset, valid = moved.index(indices)
        if source.op is Op.PART:
            offset, source = offset + part_begin(source), source.src[0]
            source = source.src[0] if source.op is Op.RESHAPE else source  # all of a Buffer
        if source.op is Op.BUFFER:
            data = self.build.parameter(source.arg)
            needed = all_of(valid, guard)
            if isinstance(offset, Const) and guard == self.bounds:  # the same for every term
                needed = valid
            return self.build.emit(U.LOAD, node.dtype, (data,), (offset, needed), [offset, needed])
        inner = unravel(offset, source.shape)
        if valid is ONE:
            return self.value(source, inner, guard)
        element = self.value(source, inner, all_of(valid, guard))
        return self.select_or_zero(valid, element, node.dtype)

    def select_or_zero(self, condition: Expr, value: int, dtype: DType) -> int:
        """The value if the condition is 1, else 0."""
        zero = self.build.emit(U.CONST, dtype, (), 0)
        chosen = self.build.emit(U.INDEX, i32, (), condition, [condition])
        return self.build.emit(U.ALU, dtype, (chosen, value, zero), Op.WHERE)

    def _masked(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int | None:
        """A WHERE between a load and 0 by a condition on indices: a guarded load, or None."""
        condition, a, b = node.src
        chosen = index_value(condition, indices)
        if chosen is None:
            return None
        zero = const(0, node.dtype, node.shape)
        for source, other, when in ((a, b, chosen), (b, a, negated(chosen))):
            if when is ONE or (other is zero and zero_outside(source)):
                return self.value(source, indices, all_of(when, guard))
        return None

    def _gathered(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        table, index = node.src
        rank = len(index.shape)
        position = index_value(index, indices[:rank])
        if position is not None and position.lo >= 0 and position.hi < table.shape[0]:
            return self.value(table, (position, *indices[rank:]), guard)
        row = self.value(index, indices[:rank], guard)
        name = f"g{row}"
        if name not in self.build.variables:
            self.build.define(name, row, self.build.depth[row])
        return self.value(table, (Var(name, 0, table.shape[0] - 1), *indices[rank:]), guard)


def trial_lowering() -> Lowering:
    """A Lowering for looking at the UOps that it emits, also for kernels of a block."""
    build = Builder()
    for variable in ("group", "tile"):
        build.open(Range(variable, 1))
    return Lowering(build, None, Target())


_offsets: WeakKeyDictionary[Node, tuple[list[Var], list[Expr]]] = WeakKeyDictionary()


def load_offsets(value: Node) -> tuple[Sequence[Var], Sequence[Expr]]:
    """An index for each axis of a value, and the offsets of all loads for the element there."""
    entry = _offsets.get(value)
    if entry is None:
        lower = trial_lowering()
        indices = [lower.build.open(Range(f"x{a}", n)) for a, n in enumerate(value.shape)]
        lower.value(value, indices)
        uops = (u for scope in lower.build.scopes for _, u in scope)
        entry = _offsets[value] = indices, [u.arg[0] for u in uops if u.op is U.LOAD]
    return entry


def lower_stores(lower: Lowering, stores: Sequence[Store], indices: Sequence[Expr]) -> None:
    """Compute all values at some indices, then store them: nothing is overwritten before a read."""
    values = [lower.value(s.value, indices) for s in stores]
    store_values(lower.build, stores, values, indices)


def store_values(
    build: Builder, stores: Sequence[Store], values: Sequence[int], indices: Sequence[Expr]
) -> None:
    """Store computed values at given indices."""
    for store, value in zip(stores, values, strict=True):
        offset = store_offset(store, indices)
        names = sorted({v.name for v in offset.variables()})
        extra = [n for v in names if (n := build.variables[v][1]) is not None]
        op = U.STORE_ADD if store.adds else U.STORE
        build.effect(op, (build.parameter(store.target, True), value, *extra), offset)


class Accumulators:
    """The accumulators of a reduction: `count` for each lane, or for the only work-item."""

    def __init__(self, build: Builder, core: Node, count: int = 1) -> None:
        self.build, self.core = build, core
        nothing = 0 if core.op is Op.SUM else core.dtype.min
        self.acc = build.effect(U.ACC, (), (count, nothing), core.dtype)

    def add(self, term: int, number: Expr = ZERO) -> None:
        """Add a term to the accumulator with some number."""
        core = self.core
        self.build.effect(U.ACCUMULATE, (self.acc, term), (core.op, number), core.dtype)

    def total(self, shared: int = 0) -> int:
        """All accumulators combined: of this lane, or of the group's lanes as `shared` values.

        Lane i then has value i % shared.
        """
        core = self.core
        own = self.build.effect(U.COMBINE, (self.acc,), core.op, core.dtype)
        if not shared:
            return own
        return self.build.effect(U.GROUP_REDUCE, (own,), (core.op, shared), core.dtype)


class DeferredStores:
    """Values of a kernel's stores that each lane keeps in registers, `count` for each Store.

    A lane that computes all its values before it stores the first waits for its loads only once:
    a GPU driver's compiler does not move a load before a store to local memory.
    """

    def __init__(self, build: Builder, stores: Sequence[Store], count: int) -> None:
        self.build, self.stores = build, stores
        dtypes = [store.value.dtype for store in stores]
        self.acc = [(build.effect(U.ACC, (), (count, None), dtype), dtype) for dtype in dtypes]

    def defer(self, values: Sequence[int], place: Expr) -> None:
        """Keep the `place`th value of the lane for each Store."""
        for (array, dtype), value in zip(self.acc, values, strict=True):
            self.build.effect(U.SET, (array, value), place, dtype)

    def store_values(self, place: Expr, indices: Sequence[Expr]) -> None:
        """Store the `place`th value of the lane for each Store."""
        taken = [self.build.effect(U.GET, (array,), place, dtype) for array, dtype in self.acc]
        store_values(self.build, self.stores, taken, indices)


def store_offset(store: Store, indices: Sequence[Expr]) -> Expr:
    """The offset in its Buffer at which a Store writes the element at some indices."""
    return access(store.place).index(indices)[0] + part_begin(store.place)
