"""Expressions become UOps: a kernel's value at given indices, and where it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from imgmlp.engine.ir.conditions import conj
from imgmlp.engine.ir.dtype import DType, i32
from imgmlp.engine.ir.graph import Node, const
from imgmlp.engine.ir.index_values import index_value, negated, through, zero_outside
from imgmlp.engine.ir.kernel import Store, access, part_begin
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, ZERO, Const, Expr, Var, unravel
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.uops import Builder, Range, U


class Lowering:
    """Emits a kernel's expression at given indices."""

    def __init__(
        self, build: Builder, core: Node | None, target: Target, inside: bool = False,
        beside: bool = False,
    ) -> None:  # fmt: skip
        self.build = build
        self.core = core
        self.target = target
        self.inside = inside  # a block, whose groups and lanes are given
        self.beside = beside  # other kernels of a launch, whose groups are of one size
        self.bounds: Expr = ONE  # a guard that keeps loads within a Buffer, and does nothing else
        self.core_value: int | None = None
        self.totals: dict[Node, int] = {}  # of the row that is being computed
        self.memo: dict[Any, int] = {}

    def outermost(self, name: str, count: int, kind: str) -> Var:
        """Open the loop over a kernel's work; inside a block one group does all of it."""
        if self.inside:
            kind = {"share": "loop", "group": "loop", "item": "lane"}[kind]
        return self.build.open(Range(name, count, kind))

    def value(self, node: Node, indices: Sequence[Expr], guard: Expr = ONE) -> int:
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
        if node.op is Op.WHERE and (found := self._masked(node, indices, guard)) is not None:
            return found
        if node.op in ELEMENTWISE:
            src = [self.value(s, indices, guard) for s in node.src]
            return emit(U.ALU, node.dtype, src, node.op)
        raise AssertionError(f"{node.op.name} does not belong inside a kernel")

    def _moved(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        source, moved = through(node)
        offset, valid = moved.index(indices)
        if source.op is Op.PART:
            offset, source = offset + part_begin(source), source.src[0]
            source = source.src[0] if source.op is Op.RESHAPE else source  # all of a Buffer
        if source.op is Op.BUFFER:
            data = self.build.parameter(source.arg)
            needed = conj(valid, guard)
            if isinstance(offset, Const) and guard == self.bounds:  # the same for every term
                needed = valid
            return self.build.emit(U.LOAD, node.dtype, (data,), (offset, needed), [offset, needed])
        inner = unravel(offset, source.shape)
        if valid is ONE:
            return self.value(source, inner, guard)
        found = self.value(source, inner, conj(valid, guard))
        return self.or_zero(valid, found, node.dtype)

    def or_zero(self, condition: Expr, value: int, dtype: DType) -> int:
        """The value where the condition is 1, else 0."""
        zero = self.build.emit(U.CONST, dtype, (), 0)
        chosen = self.build.emit(U.INDEX, i32, (), condition, [condition])
        return self.build.emit(U.ALU, dtype, (chosen, value, zero), Op.WHERE)

    def _masked(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int | None:
        """A selection between a load and zero, by indices alone: nothing else is read."""
        condition, a, b = node.src
        chosen = index_value(condition, indices)
        if chosen is None:
            return None
        zero = const(0, node.dtype, node.shape)
        for source, other, when in ((a, b, chosen), (b, a, negated(chosen))):
            if when is ONE or (other is zero and zero_outside(source)):
                return self.value(source, indices, conj(when, guard))
        return None

    def _gathered(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        table, index = node.src
        rank = len(index.shape)
        known = index_value(index, indices[:rank])
        if known is not None and known.lo >= 0 and known.hi < table.shape[0]:
            return self.value(table, (known, *indices[rank:]), guard)
        row = self.value(index, indices[:rank], guard)
        name = f"g{row}"
        if name not in self.build.variables:
            self.build.define(name, row, self.build.depth[row])
        return self.value(table, (Var(name, 0, table.shape[0] - 1), *indices[rank:]), guard)


def trial() -> Lowering:
    """What only shows the instructions that it emits, also of parts of a block."""
    build = Builder()
    for variable in ("group", "tile"):
        build.open(Range(variable, 1))
    return Lowering(build, None, Target())


_offsets: WeakKeyDictionary[Node, tuple[list[Var], list[Expr]]] = WeakKeyDictionary()


def offsets_read(value: Node) -> tuple[Sequence[Var], Sequence[Expr]]:
    """An index for each axis of a value, and where all that is loaded for it lies at these."""
    found = _offsets.get(value)
    if found is None:
        lower = trial()
        indices = [lower.build.open(Range(f"x{a}", n)) for a, n in enumerate(value.shape)]
        lower.value(value, indices)
        uops = (u for scope in lower.build.scopes for _, u in scope)
        found = _offsets[value] = indices, [u.arg[0] for u in uops if u.op is U.LOAD]
    return found


def store_all(lower: Lowering, stores: Sequence[Store], indices: Sequence[Expr]) -> None:
    """All values first, then all stores: what is overwritten has been read."""
    values = [lower.value(s.value, indices) for s in stores]
    put(lower.build, stores, values, indices)


def put(
    build: Builder, stores: Sequence[Store], values: Sequence[int], indices: Sequence[Expr]
) -> None:
    """Store values that are computed already, at given indices."""
    for store, value in zip(stores, values, strict=True):
        offset = destination(store, indices)
        names = sorted({v.name for v in offset.variables()})
        extra = [n for v in names if (n := build.variables[v][1]) is not None]
        op = U.ADD if store.adds else U.STORE
        build.effect(op, (build.parameter(store.target, True), value, *extra), offset)


class Accumulators:
    """Those of a reduction: so many for each lane, or for the only work-item."""

    def __init__(self, build: Builder, core: Node, count: int = 1) -> None:
        self.build, self.core = build, core
        nothing = 0 if core.op is Op.SUM else core.dtype.min
        self.found = build.effect(U.ACC, (), (count, nothing), core.dtype)

    def add(self, term: int, number: Expr = ZERO) -> None:
        """A term to one of them."""
        core = self.core
        self.build.effect(U.ACCUMULATE, (self.found, term), (core.op, number), core.dtype)

    def total(self, shared: int = 0) -> int:
        """All of them as one value; if `shared`, those of all lanes of a group as so many."""
        core = self.core
        own = self.build.effect(U.COMBINE, (self.found,), core.op, core.dtype)
        if not shared:
            return own
        return self.build.effect(U.GROUP, (own,), (core.op, shared), core.dtype)


class Kept:
    """What the stores of a kernel will store, `count` values of a lane each, in its registers.

    A lane that has all of its values before it stores the first waits once for what it reads: the
    compiler of a GPU's driver moves no load before a store to local memory.
    """

    def __init__(self, build: Builder, stores: Sequence[Store], count: int) -> None:
        self.build, self.stores = build, stores
        kinds = [store.value.dtype for store in stores]
        self.found = [(build.effect(U.ACC, (), (count, None), kind), kind) for kind in kinds]

    def keep(self, values: Sequence[int], place: Expr) -> None:
        """The `place`th of the lane's values of each Store."""
        for (kept, kind), value in zip(self.found, values, strict=True):
            self.build.effect(U.KEEP, (kept, value), place, kind)

    def put(self, place: Expr, indices: Sequence[Expr]) -> None:
        """Store them."""
        taken = [self.build.effect(U.LANE, (kept,), place, kind) for kept, kind in self.found]
        put(self.build, self.stores, taken, indices)


def destination(store: Store, indices: Sequence[Expr]) -> Expr:
    """Where in its Buffer a Store writes the element at some indices."""
    return access(store.place).index(indices)[0] + part_begin(store.place)
