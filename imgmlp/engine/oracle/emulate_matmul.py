"""NumPy execution of UOps about products: a tile is a matrix product of arrays.

Each function runs one instruction, number `i`, for all open iterations of a launch. How a
device would copy factors or share a tile among lanes does not matter here.
"""

from __future__ import annotations

import numpy as np

from imgmlp.engine.ir.symbolic import Expr
from imgmlp.engine.ir.uops import Product, U, UOp
from imgmlp.engine.oracle.emulate_kernels import both
from imgmlp.engine.oracle.emulate_loops import LANE, EmulatedLaunch
from imgmlp.engine.oracle.sanitizer import Array


def tile(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, rows + 1, columns], the last row for sums of columns of the right factor."""
    rows, columns = u.arg
    lanes = launch.loops.names.index(LANE)
    shape = [1 if axis == lanes else n for axis, n in enumerate(launch.shape)]
    return np.zeros((*shape, rows + 1, columns), np.float32)


def product(launch: EmulatedLaunch, i: int, u: UOp) -> Array | None:
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


def spread(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    launch.meet(i)
    found: Array = launch.values[u.src[0]][..., :-1, :]
    return found


def panel(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
    """[*loops, terms, columns]"""
    return _right(launch, i, u.src[0], u.arg)


def columns(launch: EmulatedLaunch, i: int, u: UOp) -> Array:
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
