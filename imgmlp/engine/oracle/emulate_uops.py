"""The emulator of UOps in NumPy: what each kind of UOp computes.

A function runs a UOp for all iterations of the open loops at once; emulate_loops.py decides which
these are. A tile of a product is a matrix product of arrays: how a device copies factors, or shares
a tile among lanes, is not emulated.
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
from imgmlp.engine.oracle.emulate_kernels import apply_op, conjunction, index_grid
from imgmlp.engine.oracle.emulate_loops import LANE_AXIS, EmulatedLaunch
from imgmlp.engine.oracle.sanitizer import Loops, Memory, register_dtype

COMBINE_OPS = {Op.SUM: Op.ADD, Op.REDUCE_MAX: Op.MAX}


def run_code(code: Code, memory: Memory) -> None:
    """Run a kernel's UOps as one launch.

    Raises IndexError and ValueError as Sanitizer does, and ValueError for a kind of UOp that is not
    in UOP_FUNCTIONS.
    """
    with np.errstate(all="ignore"):
        EmulatedLaunch(code, memory, UOP_FUNCTIONS).run()


# --- memory ---


def _load(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    storage, begin = launch.storage(u.src[0])
    offset, valid = u.arg
    mask = launch.active if valid is ONE else conjunction(launch.at(valid) != 0, launch.active)
    _check_rows(launch, i, offset, storage, mask)
    offsets = begin + launch.at(offset)
    return launch.sanitizer.read(launch.describe(i), storage, offsets, mask, launch.loops)


def _store(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    if not launch.loops.sizes:
        raise launch.fault(i, "stands outside of all work-items")
    storage, begin = launch.storage(u.src[0])
    offsets, value = begin + launch.at(u.arg), launch.values[u.src[1]]
    _check_rows(launch, i, u.arg, storage, launch.active)
    where = launch.describe(i), storage, offsets, launch.active, launch.loops
    if u.op is U.STORE_ADD:
        value = value + launch.sanitizer.read(*where)
    launch.sanitizer.write(*where, value)


def _check_rows(
    launch: EmulatedLaunch, i: int, offset: Expr, storage: Buffer, mask: Array | None
) -> None:
    """Raise IndexError if data breaks the bounds of variables, by which offsets were simplified."""
    for v in offset.variables():
        if v.name in launch.defined:
            row = launch.variables[v.name]
            out_of_range = conjunction((row < v.lo) | (row > v.hi), mask)
            if out_of_range is not None and out_of_range.any():
                bad = np.broadcast_to(row, out_of_range.shape)[out_of_range][0]
                raise IndexError(
                    f"{launch.code.name}: {launch.describe(i)} takes row {bad} of {storage!r}, "
                    f"which has rows {v.lo} to {v.hi}"
                )


# --- values ---


def _const(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    assert u.dtype is not None
    return np.full([1] * launch.rank, u.arg, u.dtype.np).astype(_register_dtype(u))


def _index(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    return launch.at(u.arg).astype(np.int32)


def _define(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    launch.defined.add(u.arg)
    launch.variables[u.arg] = launch.values[u.src[0]].astype(np.int32).astype(np.int64)


def _alu(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    return apply_op(u.arg, u, *(launch.values[s] for s in u.src))


def _register_dtype(u: UOp) -> np.dtype[Any]:
    assert isinstance(u.dtype, DType)
    return register_dtype(u.dtype)


# --- accumulators, and elements of a tile ---


def _acc(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, lanes]"""
    lanes, start = u.arg
    return np.full((*launch.shape, lanes), 0 if start is None else start, _register_dtype(u))


def _accumulate(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    op, lane = u.arg
    cells = _cells(launch, i, u.src[0], lane)
    before = launch.values[u.src[0]][cells]
    _update_accumulators(
        launch,
        i,
        u,
        cells,
        apply_op(COMBINE_OPS[op], u, before, launch.values[u.src[1]]),
    )


def _set(launch: EmulatedLaunch, i: int, u: UOp) -> None:
    if u.src[0] in launch.local:
        where = _local_element(launch, i, u)
        launch.sanitizer.write(*where, launch.values[u.src[1]])
        return
    _update_accumulators(launch, i, u, _cells(launch, i, u.src[0], u.arg), launch.values[u.src[1]])


def _update_accumulators(
    launch: EmulatedLaunch, i: int, u: UOp, cells: tuple[Array, ...], value: Array
) -> None:
    """Change some accumulators in the active iterations."""
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
        total = apply_op(COMBINE_OPS[u.arg], u, total, accumulators[..., lane])
    return total


def _get(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    if u.src[0] in launch.local:
        return launch.sanitizer.read(*_local_element(launch, i, u))
    values: Array = launch.values[u.src[0]][_cells(launch, i, u.src[0], u.arg)]
    return values


def _element(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    values: Array = launch.values[u.src[0]][_cells(launch, i, u.src[0], *u.arg[:2])]
    return values


def _group_reduce(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """Combine the lanes' values as a tree, like the reduction in local memory does."""
    axis, (op, results) = launch.barrier(i), u.arg
    values = np.broadcast_to(launch.values[u.src[0]], launch.shape)
    while (lanes := values.shape[axis]) > results:
        low, high = np.split(values, [lanes // 2], axis)
        values = apply_op(COMBINE_OPS[op], u, low, high)
    return np.concatenate([values] * (launch.shape[axis] // results), axis)


def _cells(launch: EmulatedLaunch, i: int, source: int, *exprs: Expr) -> tuple[Array, ...]:
    """The indices of every iteration's accumulator, or element of a tile."""
    array: Array = launch.values[source]
    indices = []
    for expr, size in zip(exprs, array.shape[launch.rank :], strict=True):
        index = launch.at(expr)
        out_of_range = conjunction((index < 0) | (index >= size), launch.active)
        if out_of_range is not None and out_of_range.any():
            raise IndexError(
                f"{launch.code.name}: {launch.describe(i)} reaches beyond {size} cells"
            )
        indices.append(index.clip(0, size - 1))
    return (*index_grid(array.shape[: launch.rank]), *indices)


def _local_element(
    launch: EmulatedLaunch, i: int, u: UOp
) -> tuple[str, Buffer, Array, Array | None, Loops]:
    """An element of the group's local memory, as arguments of the Sanitizer."""
    storage, index = launch.local[u.src[0]], launch.at(u.arg)
    count = launch.code.uops[u.src[0]].arg
    out_of_range = conjunction((index < 0) | (index >= count), launch.active)
    if launch.number is None or (out_of_range is not None and out_of_range.any()):
        raise IndexError(f"{launch.code.name}: {launch.describe(i)} leaves {count} local elements")
    there = launch.number * count + index.clip(0, count - 1)
    return launch.describe(i), storage, there, launch.active, launch.loops


# --- products ---


def _tile(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """Zeros [*loops, rows + 1, columns]; the last row is for column sums of the right factor."""
    rows, columns = u.arg
    lanes = launch.loops.names.index(LANE_AXIS)
    shape = [1 if axis == lanes else n for axis, n in enumerate(launch.shape)]
    return np.zeros((*shape, rows + 1, columns), np.float32)


def _product(launch: EmulatedLaunch, i: int, u: UOp) -> Array | None:
    """The tiles [*loops, rows, columns] of all groups; on a GPU they are added to a TILE."""
    p: Product = u.arg
    waits = launch.has_lanes and any(s not in launch.local for s in u.src[:2])
    if waits:
        launch.barrier(i)
    rows, terms = np.arange(p.tile_rows)[:, None], np.arange(p.terms)
    offsets = (
        _at_tile(launch, p.left_offset) + rows * p.left_row_stride + terms * p.left_term_stride
    )
    left = _factor(launch, i, u.src[0], offsets, _tile_mask(launch, p.rows_left, rows))
    packed = launch.code.uops[u.src[1]].op is U.PANEL
    right = launch.values[u.src[1]] if packed else _right(launch, i, u.src[1], p)
    product: Array = left @ right
    if not launch.has_lanes:
        return product
    if waits:
        launch.barrier(i)
    runs = True if launch.active is None else launch.active[..., None, None]
    sums: Array = launch.values[u.src[2]]
    sums[..., :-1, :] += np.where(runs, product, 0)
    sums[..., -1, :] += np.where(runs, right, 0).sum(axis=-2)
    return None


def _share_tile(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    launch.barrier(i)
    tile: Array = launch.values[u.src[0]][..., :-1, :]
    return tile


def _panel(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, terms, columns]"""
    return _right(launch, i, u.src[0], u.arg)


def _column_sums(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, columns]"""
    if launch.has_lanes:
        totals: Array = launch.values[u.src[1]][..., -1, :]
        return totals
    sums: Array = _right(launch, i, u.src[0], u.arg).sum(axis=-2)
    return sums


def _right(launch: EmulatedLaunch, i: int, data: int, p: Product) -> Array:
    """[*loops, terms, columns] of the right factor, zero beyond the last column."""
    columns = np.arange(p.tile_columns)
    terms = np.arange(p.terms)[:, None]
    offsets = (
        _at_tile(launch, p.right_offset)
        + terms * p.right_term_stride
        + columns * p.right_column_stride
    )
    if p.can_load_right_vectors and not launch.has_lanes:
        if (offsets[..., 0] % 8).any():
            raise launch.fault(i, "reads vectors that are not aligned")
        return _factor(launch, i, data, offsets, _tile_mask(launch, None, columns))
    return _factor(launch, i, data, offsets, _tile_mask(launch, p.columns_left, columns))


def _factor(launch: EmulatedLaunch, i: int, data: int, offsets: Array, mask: Array | None) -> Array:
    """A factor, read by all lanes of a group together."""
    storage, begin = launch.storage(data)
    loops = launch.loops.as_group() if launch.has_lanes else launch.loops
    offsets = offsets + np.asarray(begin)[..., None, None]
    return launch.sanitizer.read(launch.describe(i), storage, offsets, mask, loops)


def _at_tile(launch: EmulatedLaunch, expr: Expr) -> Array:
    """The values of an index expression, with two more axes for a tile."""
    return launch.at(expr)[..., None, None]


def _tile_mask(launch: EmulatedLaunch, limit: Expr | None, index: Array) -> Array | None:
    """Where a row or column is below its limit, and the iteration is active."""
    active = None if launch.active is None else launch.active[..., None, None]
    return active if limit is None else conjunction(index < _at_tile(launch, limit), active)


UOP_FUNCTIONS: dict[U, Callable[[EmulatedLaunch, int, UOp], Any]] = {
    U.GLOBAL: lambda launch, i, u: None,
    U.GUARD: lambda launch, i, u: None,  # EmulatedLaunch ends if it does not hold
    U.CONST: _const,
    U.INDEX: _index,
    U.DEFINE: _define,
    U.LOAD: _load,
    U.PREFETCH: lambda launch, i, u: None,  # affects speed only
    U.ALU: _alu,
    U.STORE: _store,
    U.STORE_ADD: _store,
    U.BARRIER: lambda launch, i, u: launch.barrier(i),
    U.ACC: _acc,
    U.LOCAL_ARRAY: lambda launch, i, u: None,  # EmulatedLaunch has a Buffer for it
    U.LOCAL_BUFFER: lambda launch, i, u: None,
    U.ACCUMULATE: _accumulate,
    U.SET: _set,
    U.COMBINE: _combine,
    U.GET: _get,
    U.GROUP_REDUCE: _group_reduce,
    U.PANEL: _panel,
    U.TILE: _tile,
    U.PRODUCT: _product,
    U.SHARE_TILE: _share_tile,
    U.ELEMENT: _element,
    U.COLUMN_SUMS: _column_sums,
}  # RANGE and END are control flow, which EmulatedLaunch follows
