"""NumPy execution of a kernel's UOps, as one launch would run them on a device.

Here is what each kind of instruction does, for all iterations of the loops that are open. Which
those are is decided in emulate_loops.py. A tile of a product is a matrix product of arrays: how a
device would copy factors or share a tile among lanes does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Expr
from imgmlp.engine.ir.uops import Code, Product, U, UOp
from imgmlp.engine.oracle.emulate_kernels import both, grid, operate
from imgmlp.engine.oracle.emulate_loops import LANE, EmulatedLaunch
from imgmlp.engine.oracle.sanitizer import Loops, Memory, register

JOINS = {Op.SUM: Op.ADD, Op.REDUCE_MAX: Op.MAX}


def run_code(code: Code, memory: Memory) -> None:
    """Launch a kernel's UOps once. Raises IndexError and ValueError as Sanitizer does, and
    ValueError for a kind of UOp that is not in EMULATED."""
    with np.errstate(all="ignore"):
        EmulatedLaunch(code, memory, EMULATED).run()


# --- memory ---


def _load(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    storage, begin = launch.storage(u.src[0])
    offset, valid = u.arg
    needed = launch.active if valid is ONE else both(launch.at(valid) != 0, launch.active)
    _check_rows(launch, i, offset, storage, needed)
    offsets = begin + launch.at(offset)
    return launch.watch.read(launch.what(i), storage, offsets, needed, launch.loops)


def _store(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    if not launch.loops.sizes:
        raise launch.fault(i, "stands outside of all work-items")
    storage, begin = launch.storage(u.src[0])
    offsets, value = begin + launch.at(u.arg), launch.values[u.src[1]]
    _check_rows(launch, i, u.arg, storage, launch.active)
    where = launch.what(i), storage, offsets, launch.active, launch.loops
    if u.op is U.ADD:
        value = value + launch.watch.read(*where)
    launch.watch.write(*where, value)


def _check_rows(
    launch: EmulatedLaunch, i: int, offset: Expr, storage: Buffer, needed: Array | None
) -> None:
    """Offsets were simplified by bounds of their variables, which data may break."""
    for v in offset.variables():
        if v.name in launch.defined:
            row = launch.variables[v.name]
            wrong = both((row < v.lo) | (row > v.hi), needed)
            if wrong is not None and wrong.any():
                bad = np.broadcast_to(row, wrong.shape)[wrong][0]
                raise IndexError(
                    f"{launch.code.name}: {launch.what(i)} takes row {bad} of {storage!r}, "
                    f"which has rows {v.lo} to {v.hi}"
                )


# --- values ---


def _const(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    assert u.dtype is not None
    return np.full([1] * launch.rank, u.arg, u.dtype.np).astype(_register(u))


def _index(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    return launch.at(u.arg).astype(np.int32)


def _define(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    launch.defined.add(u.arg)
    launch.variables[u.arg] = launch.values[u.src[0]].astype(np.int32).astype(np.int64)


def _alu(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    return operate(u.arg, u, *(launch.values[s] for s in u.src))


def _register(u: UOp) -> np.dtype[Any]:
    assert isinstance(u.dtype, DType)
    return register(u.dtype)


# --- accumulators, and elements of a tile ---


def _acc(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, lanes]"""
    lanes, start = u.arg
    return np.full((*launch.shape, lanes), 0 if start is None else start, _register(u))


def _accumulate(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    op, lane = u.arg
    cells = _cells(launch, i, u.src[0], lane)
    before = launch.values[u.src[0]][cells]
    _put(launch, i, u, cells, operate(JOINS[op], u, before, launch.values[u.src[1]]))


def _keep(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    if u.src[0] in launch.local:
        where = _in_local(launch, i, u)
        launch.watch.write(*where, launch.values[u.src[1]])
        return
    _put(launch, i, u, _cells(launch, i, u.src[0], u.arg), launch.values[u.src[1]])


def _put(launch: EmulatedLaunch, i: int, u: UOp, cells: tuple[Array, ...], value: Array) -> None:
    """Change some accumulators, where the iteration is one that runs."""
    accumulators = launch.values[u.src[0]]
    before = accumulators[cells]
    after = value if launch.active is None else np.where(launch.active, value, before)
    if np.broadcast_shapes(after.shape, before.shape) != before.shape:
        raise launch.fault(i, "changes one accumulator in several iterations at once")
    accumulators[cells] = after


def _combine(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    accumulators = launch.values[u.src[0]]
    total: Array = accumulators[..., 0]
    for lane in range(1, accumulators.shape[-1]):
        total = operate(JOINS[u.arg], u, total, accumulators[..., lane])
    return total


def _lane(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    if u.src[0] in launch.local:
        return launch.watch.read(*_in_local(launch, i, u))
    found: Array = launch.values[u.src[0]][_cells(launch, i, u.src[0], u.arg)]
    return found


def _element(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    found: Array = launch.values[u.src[0]][_cells(launch, i, u.src[0], *u.arg[:2])]
    return found


def _group(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """The tree that lanes form in local memory."""
    axis, (op, results) = launch.meet(i), u.arg
    values = np.broadcast_to(launch.values[u.src[0]], launch.shape)
    while (lanes := values.shape[axis]) > results:
        low, high = np.split(values, [lanes // 2], axis)
        values = operate(JOINS[op], u, low, high)
    return np.concatenate([values] * (launch.shape[axis] // results), axis)


def _cells(launch: EmulatedLaunch, i: int, source: int, *wanted: Expr) -> tuple[Array, ...]:
    """Where every iteration's accumulator, or element of a tile, is."""
    array: Array = launch.values[source]
    indices = []
    for expr, size in zip(wanted, array.shape[launch.rank :], strict=True):
        index = launch.at(expr)
        wrong = both((index < 0) | (index >= size), launch.active)
        if wrong is not None and wrong.any():
            raise IndexError(f"{launch.code.name}: {launch.what(i)} reaches beyond {size} cells")
        indices.append(index.clip(0, size - 1))
    return (*grid(array.shape[: launch.rank]), *indices)


def _in_local(
    launch: EmulatedLaunch, i: int, u: UOp
) -> tuple[str, Buffer, Array, Array | None, Loops]:
    """An element of the group's local memory, as the watch wants it named."""
    storage, index = launch.local[u.src[0]], launch.at(u.arg)
    count = launch.code.uops[u.src[0]].arg
    wrong = both((index < 0) | (index >= count), launch.active)
    if launch.number is None or (wrong is not None and wrong.any()):
        raise IndexError(f"{launch.code.name}: {launch.what(i)} leaves {count} local elements")
    there = launch.number * count + index.clip(0, count - 1)
    return launch.what(i), storage, there, launch.active, launch.loops


# --- products ---


def _tile(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, rows + 1, columns], the last row for sums of columns of the right factor."""
    rows, columns = u.arg
    lanes = launch.loops.names.index(LANE)
    shape = [1 if axis == lanes else n for axis, n in enumerate(launch.shape)]
    return np.zeros((*shape, rows + 1, columns), np.float32)


def _product(launch: EmulatedLaunch, i: int, u: UOp) -> Array | None:
    """[*loops, rows, columns], the tile of every group; a group's lanes add it to a TILE."""
    p: Product = u.arg
    waits = launch.wide and any(s not in launch.local for s in u.src[:2])
    if waits:
        launch.meet(i)
    rows, terms = np.arange(p.tile_rows)[:, None], np.arange(p.inner)
    offsets = _beside(launch, p.left) + rows * p.left_row + terms * p.left_inner
    left = _factor(launch, i, u.src[0], offsets, _below(launch, p.rows, rows))
    packed = launch.code.uops[u.src[1]].op is U.PANEL
    right = launch.values[u.src[1]] if packed else _right(launch, i, u.src[1], p)
    found: Array = left @ right
    if not launch.wide:
        return found
    if waits:
        launch.meet(i)
    runs = True if launch.active is None else launch.active[..., None, None]
    sums: Array = launch.values[u.src[2]]
    sums[..., :-1, :] += np.where(runs, found, 0)
    sums[..., -1, :] += np.where(runs, right, 0).sum(axis=-2)
    return None


def _spread(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    launch.meet(i)
    found: Array = launch.values[u.src[0]][..., :-1, :]
    return found


def _panel(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, terms, columns]"""
    return _right(launch, i, u.src[0], u.arg)


def _columns(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, columns]"""
    if launch.wide:
        totals: Array = launch.values[u.src[1]][..., -1, :]
        return totals
    found: Array = _right(launch, i, u.src[0], u.arg).sum(axis=-2)
    return found


def _right(launch: EmulatedLaunch, i: int, data: int, p: Product) -> Array:
    """[*loops, terms, columns] of the right factor, zero beyond the last column."""
    columns = np.arange(p.tile_columns)
    terms = np.arange(p.inner)[:, None]
    offsets = _beside(launch, p.right) + terms * p.right_inner + columns * p.right_column
    if p.direct and not launch.wide:
        if (offsets[..., 0] % 8).any():
            raise launch.fault(i, "reads vectors that are not aligned")
        return _factor(launch, i, data, offsets, _below(launch, None, columns))
    return _factor(launch, i, data, offsets, _below(launch, p.columns, columns))


def _factor(
    launch: EmulatedLaunch, i: int, data: int, offsets: Array, needed: Array | None
) -> Array:
    """Read by the group as one, whichever lane reads what."""
    storage, begin = launch.storage(data)
    loops = launch.loops.of_group() if launch.wide else launch.loops
    offsets = offsets + np.asarray(begin)[..., None, None]
    return launch.watch.read(launch.what(i), storage, offsets, needed, loops)


def _beside(launch: EmulatedLaunch, expr: Expr) -> Array:
    """An index expression with two more axes."""
    return launch.at(expr)[..., None, None]


def _below(launch: EmulatedLaunch, limit: Expr | None, index: Array) -> Array | None:
    """Where a row or column is below its limit, and the iteration is one that runs."""
    active = None if launch.active is None else launch.active[..., None, None]
    return active if limit is None else both(index < _beside(launch, limit), active)


EMULATED: dict[U, Callable[[EmulatedLaunch, int, UOp], Any]] = {
    U.GLOBAL: lambda launch, i, u: None,
    U.GUARD: lambda launch, i, u: None,  # one that does not hold ends the launch
    U.CONST: _const,
    U.INDEX: _index,
    U.DEFINE: _define,
    U.LOAD: _load,
    U.PREFETCH: lambda launch, i, u: None,  # changes times only
    U.ALU: _alu,
    U.STORE: _store,
    U.ADD: _store,
    U.BARRIER: lambda launch, i, u: launch.meet(i),
    U.ACC: _acc,
    U.LOCAL: lambda launch, i, u: None,  # a Buffer that only this launch has
    U.SCRATCH: lambda launch, i, u: None,
    U.ACCUMULATE: _accumulate,
    U.KEEP: _keep,
    U.COMBINE: _combine,
    U.LANE: _lane,
    U.GROUP: _group,
    U.PANEL: _panel,
    U.TILE: _tile,
    U.PRODUCT: _product,
    U.SPREAD: _spread,
    U.ELEMENT: _element,
    U.COLUMNS: _columns,
}  # RANGE and END are control flow, which EmulatedLaunch follows
