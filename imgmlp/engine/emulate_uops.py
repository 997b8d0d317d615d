"""NumPy execution of a kernel's UOps, as one launch would run them on a device.

Work-items, lanes, rows and columns of a tile, and iterations of a loop that accumulates
nothing are axes of arrays: an instruction runs once for all of them. A loop that accumulates
runs step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from imgmlp.engine.dtype import DType, f16, f32
from imgmlp.engine.emulate import both, grid, operate
from imgmlp.engine.graph import Buffer, Op
from imgmlp.engine.symbolic import ONE, Expr
from imgmlp.engine.uops import Code, Product, Range, U, UOp
from imgmlp.engine.watch import Array, Loops, Memory, Watch, register

LANE = "lane"  # name of the axis that tells lanes of a group apart
JOINS = {Op.SUM: Op.ADD, Op.REDUCE_MAX: Op.MAX}


def run_code(code: Code, memory: Memory) -> None:
    """Launch a kernel's UOps once. Raises IndexError and ValueError as Watch does, and
    ValueError for a kind of UOp that is not in EMULATED."""
    with np.errstate(all="ignore"):
        _Launch(code, memory).run()


class _Launch:
    """One launch: a value for every instruction.

    Values have `rank` axes: one for each open loop in `loops`, outermost first, then 1s.
    Accumulators have one more, a tile two, of a row and a column each.
    """

    def __init__(self, code: Code, memory: Memory) -> None:
        self.code = code
        self.launched = code.global_size  # work-items, of a member those that are its own
        self.wide = code.local_size > 1  # whether lanes share the work of a group
        self.ends = _ends(code.uops)
        depths = accumulate((u.op is U.RANGE) - (u.op is U.END) for u in code.uops)
        self.rank = max(depths) + 1  # a group's lanes have an axis too
        self.values: list[Any] = [None] * len(code.uops)
        self.variables: dict[str, Array] = {}
        self.defined: set[str] = set()  # those that data decides
        self.loops = Loops()
        self.lanes: Array | None = None  # of a group, once that is open
        self.active: Array | None = None  # iterations below all limits; None: every one
        given = [u.arg for u in code.uops if u.op is U.GLOBAL]
        read, written = ([b for b, w in given if w is wanted] for wanted in (False, True))
        groups = code.global_size // code.local_size
        self.number: Array | None = None  # of the group, once it is open
        self.local = {
            i: _local(i, u, groups) for i, u in enumerate(code.uops) if u.op in (U.LOCAL, U.ROOM)
        }
        memory = {**memory, **{b: np.zeros(b.size, b.dtype.np) for b in self.local.values()}}
        written += self.local.values()
        self.watched = code.name, memory, read, written
        self.watch = Watch(*self.watched, groups, code.global_size)

    def run(self) -> None:
        self._block(0, len(self.code.uops))
        self.watch.finish()

    def _block(self, begin: int, end: int) -> None:
        i = begin
        while i < end:
            u = self.code.uops[i]
            if u.op is U.GUARD and bool(self.values[u.src[0]]) != u.arg:
                return
            if u.op is U.RANGE:
                self._range(i, u.arg)
                i = self.ends[i]
            elif u.op in EMULATED:
                self.values[i] = EMULATED[u.op](self, i, u)
            else:
                raise self._fault(i, f"is of a kind that cannot be emulated: {u.op.name}")
            i += 1

    def _fault(self, i: int, why: str) -> ValueError:
        return ValueError(f"{self.code.name}: {self._what(i)} {why}")

    def _what(self, i: int) -> str:
        return f"instruction {i}, {self.code.uops[i].op.name},"

    # --- loops ---

    def _range(self, i: int, loop: Range) -> None:
        """Run a loop's body, for all iterations at once where none needs another."""
        if loop.kind == "phase":  # as a launch of its own
            self.watch.finish()
            self.watch = Watch(*self.watched, loop.count, loop.count)
        if loop.kind in ("phase", "member"):
            self.launched = loop.count * self.code.local_size
            self._block(i + 1, self.ends[i])
            return
        outside, lanes, active = self.loops, self.lanes, self.active
        for step, (variable, inside) in enumerate(self._steps(i, loop)):
            if self.loops is outside:  # what is done in one step is in order with the next
                self._axis(f"{loop.name} {i} step {step}", 1)
            self.variables[loop.name] = variable
            self.active = active if inside.all() else both(active, inside)
            if loop.limit is not None:
                self.active = both(self.active, variable < self._index(loop.limit))
            self._block(i + 1, self.ends[i])
            self.loops, self.lanes, self.active = outside, lanes, active

    def _steps(self, i: int, loop: Range) -> Iterator[tuple[Array, Array]]:
        """The variable in each step of a loop, and which of its iterations there are."""
        if loop.kind == "lane":
            assert self.lanes is not None
            rounds, local = -(-loop.count // self.code.local_size), self.code.local_size
            if self._accumulates(i, loop.name):
                for first in range(rounds):
                    variable = self.lanes + first * local
                    yield variable, variable < loop.count
            else:
                variable = self.lanes + self._axis(f"{loop.name} {i}", rounds) * local
                yield variable, variable < loop.count
        elif loop.kind == "share" and self.lanes is not None:
            yield from self._shares(loop.count)
        elif loop.kind in ("loop", "vector") and self._accumulates(i, loop.name):
            for step in range(loop.count):
                yield np.full([1] * self.rank, step), np.ones([1] * self.rank, np.bool_)
        else:
            yield self._open(i, loop), np.ones([1] * self.rank, np.bool_)

    def _accumulates(self, i: int, name: str) -> bool:
        """Whether each iteration of a loop adds to the same accumulators, from before it."""
        body = self.code.uops[i : self.ends[i]]
        lanes = (u.arg[1] for u in body if u.op is U.ACCUMULATE and u.src[0] < i)
        tiles = (u.src[2] for u in body if u.op is U.PRODUCT and self.wide)
        shared = any(name not in {v.name for v in lane.variables()} for lane in lanes)
        return shared or any(tile < i for tile in tiles)

    def _shares(self, count: int) -> Iterator[tuple[Array, Array]]:
        """What each of the open groups takes of `count` things, one after the other."""
        groups = self.loops.sizes[0]
        group = np.arange(groups + 1).reshape([-1, *[1] * (self.rank - 1)])
        begin = group * (count // groups) + np.minimum(group, count % groups)
        for step in range(-(-count // groups)):
            variable = begin[:-1] + step
            yield variable, variable < begin[1:]

    def _open(self, i: int, loop: Range) -> Array:
        """The variable's values along an axis of its own; a group's lanes get one too."""
        launched, local, name = self.launched, self.code.local_size, f"{loop.name} {i}"
        if loop.kind == "group":
            self.number = variable = self._axis(name, launched // local)
            self.lanes = self._axis(LANE, local)
            return variable
        if loop.kind == "item":
            return self._axis(name, min(launched, loop.count))
        return self._axis(name, loop.count)

    def _axis(self, name: str, size: int) -> Array:
        """0, 1, 2 ... along a new axis."""
        shape = [1] * self.rank
        shape[len(self.loops.sizes)] = size
        self.loops = Loops((*self.loops.names, name), (*self.loops.sizes, size))
        return np.arange(size).reshape(shape)

    def meet(self, i: int) -> int:
        """Have all lanes of each group wait for each other; which axis they are."""
        axis = self.loops.names.index(LANE) if self.lanes is not None else -1
        if axis < 0 or (self.active is not None and self.active.shape[axis] > 1):
            raise self._fault(i, "waits for lanes that do not come there")
        self.watch.barrier()
        return axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a value for each open iteration."""
        return (*self.loops.sizes, *[1] * (self.rank - len(self.loops.sizes)))

    # --- memory ---

    def _index(self, expr: Expr) -> Array:
        """An index expression in all iterations."""
        found = np.asarray(expr.evaluate(self.variables), np.int64)
        return found if found.ndim else found.reshape([1] * self.rank)

    def _check_rows(self, i: int, offset: Expr, storage: Buffer, needed: Array | None) -> None:
        """Offsets were simplified by bounds of their variables, which data may break."""
        for v in offset.variables():
            if v.name in self.defined:
                row = self.variables[v.name]
                wrong = both((row < v.lo) | (row > v.hi), needed)
                if wrong is not None and wrong.any():
                    bad = np.broadcast_to(row, wrong.shape)[wrong][0]
                    raise IndexError(
                        f"{self.code.name}: {self._what(i)} takes row {bad} of {storage!r}, "
                        f"which has rows {v.lo} to {v.hi}"
                    )

    def _storage(self, data: int) -> tuple[Buffer, Array | int]:
        """What a GLOBAL or a ROOM is, and where it begins for each group."""
        if data not in self.local:
            found: Buffer = self.code.uops[data].arg[0]
            return found, 0
        assert self.number is not None
        return self.local[data], self.number * self.code.uops[data].arg.size

    def load(self, i: int, u: UOp) -> Array:
        storage, begin = self._storage(u.src[0])
        offset, valid = u.arg
        needed = self.active if valid is ONE else both(self._index(valid) != 0, self.active)
        self._check_rows(i, offset, storage, needed)
        offsets = begin + self._index(offset)
        return self.watch.read(self._what(i), storage, offsets, needed, self.loops)

    def store(self, i: int, u: UOp) -> None:
        if not self.loops.sizes:
            raise self._fault(i, "stands outside of all work-items")
        storage, begin = self._storage(u.src[0])
        offsets, value = begin + self._index(u.arg), self.values[u.src[1]]
        self._check_rows(i, u.arg, storage, self.active)
        where = self._what(i), storage, offsets, self.active, self.loops
        if u.op is U.ADD:
            value = value + self.watch.read(*where)
        self.watch.write(*where, value)

    # --- values ---

    def const(self, i: int, u: UOp) -> Array:
        return np.full([1] * self.rank, u.arg, _register(u))

    def index(self, i: int, u: UOp) -> Array:
        return self._index(u.arg).astype(np.int32)

    def define(self, i: int, u: UOp) -> None:
        self.defined.add(u.arg)
        self.variables[u.arg] = self.values[u.src[0]].astype(np.int32).astype(np.int64)

    def alu(self, i: int, u: UOp) -> Array:
        return operate(u.arg, u, *(self.values[s] for s in u.src))

    # --- accumulators ---

    def acc(self, i: int, u: UOp) -> Array:
        """[*loops, lanes]"""
        lanes, start = u.arg
        return np.full((*self.shape, lanes), 0 if start is None else start, _register(u))

    def _cells(self, i: int, source: int, *wanted: Expr) -> tuple[Array, ...]:
        """Where every iteration's accumulator, or element of a tile, is."""
        array: Array = self.values[source]
        indices = []
        for expr, size in zip(wanted, array.shape[self.rank :], strict=True):
            index = self._index(expr)
            wrong = both((index < 0) | (index >= size), self.active)
            if wrong is not None and wrong.any():
                raise IndexError(f"{self.code.name}: {self._what(i)} reaches beyond {size} cells")
            indices.append(index.clip(0, size - 1))
        return (*grid(array.shape[: self.rank]), *indices)

    def accumulate(self, i: int, u: UOp) -> None:
        op, lane = u.arg
        cells = self._cells(i, u.src[0], lane)
        before = self.values[u.src[0]][cells]
        self._put(i, u, cells, operate(JOINS[op], u, before, self.values[u.src[1]]))

    def keep(self, i: int, u: UOp) -> None:
        if u.src[0] in self.local:
            where = self._in_local(i, u)
            self.watch.write(*where, self.values[u.src[1]])
            return
        self._put(i, u, self._cells(i, u.src[0], u.arg), self.values[u.src[1]])

    def _put(self, i: int, u: UOp, cells: tuple[Array, ...], value: Array) -> None:
        """Change some accumulators, where the iteration is one that runs."""
        accumulators = self.values[u.src[0]]
        before = accumulators[cells]
        after = value if self.active is None else np.where(self.active, value, before)
        if np.broadcast_shapes(after.shape, before.shape) != before.shape:
            raise self._fault(i, "changes one accumulator in several iterations at once")
        accumulators[cells] = after

    def combine(self, i: int, u: UOp) -> Array:
        accumulators = self.values[u.src[0]]
        total: Array = accumulators[..., 0]
        for lane in range(1, accumulators.shape[-1]):
            total = operate(JOINS[u.arg], u, total, accumulators[..., lane])
        return total

    def _in_local(self, i: int, u: UOp) -> tuple[str, Buffer, Array, Array | None, Loops]:
        """An element of the group's local memory, as the watch wants it named."""
        storage, index = self.local[u.src[0]], self._index(u.arg)
        count = self.code.uops[u.src[0]].arg
        if self.number is None or index.min() < 0 or index.max() >= count:
            raise IndexError(f"{self.code.name}: {self._what(i)} leaves {count} local elements")
        return self._what(i), storage, self.number * count + index, self.active, self.loops

    def lane(self, i: int, u: UOp) -> Array:
        if u.src[0] in self.local:
            return self.watch.read(*self._in_local(i, u))
        found: Array = self.values[u.src[0]][self._cells(i, u.src[0], u.arg)]
        return found

    def group(self, i: int, u: UOp) -> Array:
        """The tree that lanes form in local memory."""
        axis, (op, results) = self.meet(i), u.arg
        values = np.broadcast_to(self.values[u.src[0]], self.shape)
        while (lanes := values.shape[axis]) > results:
            low, high = np.split(values, [lanes // 2], axis)
            values = operate(JOINS[op], u, low, high)
        return np.concatenate([values] * (self.shape[axis] // results), axis)

    # --- products ---

    def tile(self, i: int, u: UOp) -> Array:
        """[*loops, rows + 1, columns], the last row for sums of columns of the right factor."""
        rows, columns = u.arg
        lanes = self.loops.names.index(LANE)
        shape = [1 if axis == lanes else n for axis, n in enumerate(self.shape)]
        return np.zeros((*shape, rows + 1, columns), np.float32)

    def product(self, i: int, u: UOp) -> Array | None:
        """[*loops, rows, columns], the tile of every group; a group's lanes add it to a TILE."""
        p: Product = u.arg
        waits = self.wide and any(s not in self.local for s in u.src[:2])
        if waits:
            self.meet(i)
        rows, terms = np.arange(p.tile_rows)[:, None], np.arange(p.inner)
        offsets = self._beside(p.left) + rows * p.left_row + terms * p.left_inner
        left = self._factor(i, u.src[0], offsets, self._below(p.rows, rows))
        packed = self.code.uops[u.src[1]].op is U.PANEL
        right = self.values[u.src[1]] if packed else self._right(i, u.src[1], p)
        found: Array = left @ right
        if not self.wide:
            return found
        if waits:
            self.meet(i)
        runs = True if self.active is None else self.active[..., None, None]
        tile: Array = self.values[u.src[2]]
        tile[..., :-1, :] += np.where(runs, found, 0)
        tile[..., -1, :] += np.where(runs, right, 0).sum(axis=-2)
        return None

    def spread(self, i: int, u: UOp) -> Array:
        self.meet(i)
        found: Array = self.values[u.src[0]][..., :-1, :]
        return found

    def panel(self, i: int, u: UOp) -> Array:
        """[*loops, terms, columns]"""
        return self._right(i, u.src[0], u.arg)

    def columns(self, i: int, u: UOp) -> Array:
        """[*loops, columns]"""
        if self.wide:
            totals: Array = self.values[u.src[1]][..., -1, :]
            return totals
        found: Array = self._right(i, u.src[0], u.arg).sum(axis=-2)
        return found

    def element(self, i: int, u: UOp) -> Array:
        found: Array = self.values[u.src[0]][self._cells(i, u.src[0], *u.arg[:2])]
        return found

    def _right(self, i: int, data: int, p: Product) -> Array:
        """[*loops, terms, columns] of the right factor, zero beyond the last column."""
        columns = np.arange(p.tile_columns)
        terms = np.arange(p.inner)[:, None]
        offsets = self._beside(p.right) + terms * p.right_inner + columns * p.right_column
        if p.direct and not self.wide:
            if (offsets[..., 0] % 8).any():
                raise self._fault(i, "reads vectors that are not aligned")
            return self._factor(i, data, offsets, self._below(None, columns))
        return self._factor(i, data, offsets, self._below(p.columns, columns))

    def _factor(self, i: int, data: int, offsets: Array, needed: Array | None) -> Array:
        """Read by the group as one, whichever lane reads what."""
        storage, begin = self._storage(data)
        loops = self.loops.of_group() if self.wide else self.loops
        offsets = offsets + np.asarray(begin)[..., None, None]
        return self.watch.read(self._what(i), storage, offsets, needed, loops)

    def _beside(self, expr: Expr) -> Array:
        """An index expression with two more axes."""
        return self._index(expr)[..., None, None]

    def _below(self, limit: Expr | None, index: Array) -> Array | None:
        """Where a row or column is below its limit, and the iteration is one that runs."""
        active = None if self.active is None else self.active[..., None, None]
        return active if limit is None else both(index < self._beside(limit), active)


EMULATED: dict[U, Callable[[_Launch, int, UOp], Any]] = {
    U.GLOBAL: lambda launch, i, u: None,
    U.GUARD: lambda launch, i, u: None,  # one that does not hold ends the launch, _block
    U.CONST: _Launch.const,
    U.INDEX: _Launch.index,
    U.DEFINE: _Launch.define,
    U.LOAD: _Launch.load,
    U.PREFETCH: lambda launch, i, u: None,  # changes times only
    U.ALU: _Launch.alu,
    U.STORE: _Launch.store,
    U.ADD: _Launch.store,
    U.BARRIER: lambda launch, i, u: launch.meet(i),
    U.ACC: _Launch.acc,
    U.LOCAL: lambda launch, i, u: None,  # a Buffer that only this launch has
    U.ROOM: lambda launch, i, u: None,
    U.ACCUMULATE: _Launch.accumulate,
    U.KEEP: _Launch.keep,
    U.COMBINE: _Launch.combine,
    U.LANE: _Launch.lane,
    U.GROUP: _Launch.group,
    U.PANEL: _Launch.panel,
    U.TILE: _Launch.tile,
    U.PRODUCT: _Launch.product,
    U.SPREAD: _Launch.spread,
    U.ELEMENT: _Launch.element,
    U.COLUMNS: _Launch.columns,
}  # RANGE and END are control flow, _range


def _ends(uops: tuple[UOp, ...]) -> dict[int, int]:
    """The END of each RANGE."""
    found: dict[int, int] = {}
    open_ranges: list[int] = []
    for i, u in enumerate(uops):
        if u.op is U.RANGE:
            open_ranges.append(i)
        elif u.op is U.END:
            found[open_ranges.pop()] = i
    return found


def _local(i: int, u: UOp, groups: int) -> Buffer:
    """Local memory of all groups, one after the other."""
    assert u.dtype is not None
    size = u.arg if u.op is U.LOCAL else u.arg.size
    return Buffer((groups * size,), f32 if u.dtype is f16 else u.dtype, name=f"local {i}")


def _register(u: UOp) -> np.dtype[Any]:
    assert isinstance(u.dtype, DType)
    return register(u.dtype)
