"""Kernels of one launch that are computed tile by tile, with a halo of what the next ones read.

Each leaves what these read in local memory, zeros where there is no element, and stores what is the
tile's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from imgmlp.engine.ir.conditions import at_least, conj, less
from imgmlp.engine.ir.dtype import f32, i32
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.index_values import through
from imgmlp.engine.ir.kernel import Tiled
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, split, unravel
from imgmlp.engine.ir.target import GPU_LANES, Target
from imgmlp.engine.ir.uops import Builder, Range, U
from imgmlp.engine.lowering.expressions import Lowering, put
from imgmlp.engine.passes.halo_tiles import Arrays, Window, apart


@dataclass(frozen=True)
class _Cell:
    """An element of a tile, or of the halo around it."""

    row: Expr  # from the halo's first on
    column: Expr
    halo: int


@dataclass(frozen=True)
class _Kept:
    """A value in local memory."""

    array: int
    begin: int  # of its first element in the Buffer
    halo: int
    rows: int  # of the tile and the halo
    columns: int

    def at(self, cell: _Cell, away: tuple[int, int] = (0, 0)) -> Expr:
        """Where that of so many rows and columns away from a cell is."""
        rows, columns = (self.halo - cell.halo + n for n in away)
        return (cell.row + rows) * self.columns + cell.column + columns

    def has(self, cell: _Cell) -> Expr:
        """Whether a cell is within its halo."""
        more = cell.halo - self.halo
        row, column = cell.row - more, cell.column - more
        limits = less(row, self.rows), less(column, self.columns)
        return conj(at_least(row, 0), at_least(column, 0), *limits)


@dataclass(frozen=True)
class _Local:
    """What a group has in local memory: by the Buffers where it would be otherwise."""

    shared: Mapping[Buffer, tuple[int, range]]  # an array, and which elements it has
    kept: dict[Buffer, list[_Kept]]
    pitch: int

    def place(self, storage: Buffer, offset: Expr, cell: _Cell) -> tuple[int, Expr] | None:
        """An array and where in that an element is, seen from a cell."""
        at, terms = split(offset)
        if not terms:
            array, elements = self.shared.get(storage, (0, range(0)))
            return (array, Const(at - elements.start)) if at in elements else None
        if storage not in self.kept:
            return None
        value = min(self.kept[storage], key=lambda one: abs(at - one.begin))
        return value.array, value.at(cell, apart(at - value.begin, self.pitch))


class _Near(Lowering):
    """Reads from local memory what is there."""

    def __init__(
        self, build: Builder, target: Target, local: _Local, cell: _Cell, there: Expr
    ) -> None:
        super().__init__(build, None, target)
        self.local, self.cell, self.there = local, cell, there

    def _moved(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        source, moved = through(node)
        offset, valid = moved.index(indices)
        known = source.op is Op.BUFFER and self.local.place(source.arg, offset, self.cell)
        if not known:
            return super()._moved(node, indices, guard)
        array, place = known
        if isinstance(place, Const):  # read where it is used: there are too few registers for all
            found, guard = self.build.effect(U.LANE, (array,), place, f32), conj(valid, guard)
        else:  # where that is not valid are zeros
            found = self.build.emit(U.LANE, f32, (array,), place, [place])
        return found if guard is self.there else self.or_zero(guard, found, f32)


def tiled_kernel(tiled: Tiled, build: Builder, target: Target) -> tuple[int, int]:
    """The launch's global and local size."""
    window = Window.of(tiled.members)
    assert window is not None
    (height, width), pitch = tiled.tile, tiled.pitch
    across, down = -(-pitch // width), -(-tiled.size // (pitch * height))
    group = build.open(Range("t", across * down, "group"))
    top, left = group // across * height, group % across * width
    arrays = Arrays.of(window, tiled.tile)
    found = [build.effect(U.LOCAL, (), size, f32) for size in arrays.sizes]
    local = _Local(_shared(window, build), {}, pitch)
    for number, (kernel, halo) in enumerate(zip(tiled.members, tiled.halos, strict=True)):
        if number or local.shared:
            build.effect(U.BARRIER, ())
        rows, columns = height + 2 * halo, width + 2 * halo
        lane = build.open(Range("l", GPU_LANES, "lane"))
        count = build.open(Range("r", -(-rows * columns // GPU_LANES))) * GPU_LANES + lane
        with _where(build, "x", less(count, rows * columns)):
            count = _defined(build, f"c{number}", count, rows * columns)
            cell = _Cell(count // columns, count % columns, halo)
            row, column = cell.row - halo, cell.column - halo
            place = (top + row) * pitch + left + column
            element = _defined(build, f"p{number}", place, tiled.size)  # if it is one
            place = Var(element.name, place.lo, place.hi)
            there = conj(at_least(place, 0), less(place, tiled.size))
            indices = unravel(element, kernel.shape)
            near = _Near(build, target, local, cell, there)
            values = [near.value(store.value, indices, there) for store in kernel.stores]
            for n, value in enumerate(values):
                if (around := window.around.get((number, n))) is None:
                    continue
                array, begin = found[arrays.holding[number, n]], window.begins[number, n]
                one = _Kept(array, begin, around, height + 2 * around, width + 2 * around)
                local.kept.setdefault(kernel.stores[n].target, []).append(one)
                kept = near.or_zero(there, value, f32)
                with _where(build, "z", one.has(cell)):
                    build.effect(U.KEEP, (array, kept), one.at(cell), f32)
            pairs = zip(kernel.stores, values, strict=True)
            stored = [(s, value) for s, value in pairs if not isinstance(s.target, LocalBuffer)]
            if stored:
                rest = [
                    at_least(row, 0),
                    less(row, height),
                    at_least(column, 0),
                    less(column, width),
                ]
                with _where(build, "y", conj(there, less(left + column, pitch), *rest)):
                    put(build, [s for s, _ in stored], [value for _, value in stored], indices)
        build.close(2)
    build.close()
    return across * down * GPU_LANES, GPU_LANES


def _shared(window: Window, build: Builder) -> dict[Buffer, tuple[int, range]]:
    """Bring to local memory what is the same for all elements."""
    found = {}
    for storage, elements in window.shared.items():
        array = build.effect(U.LOCAL, (), len(elements), f32)
        lane = build.open(Range("l", len(elements), "lane"))
        place = lane + elements.start
        data = build.parameter(storage)
        value = build.emit(U.LOAD, f32, (data,), (place, ONE), [place])
        build.effect(U.KEEP, (array, value), lane, f32)
        build.close()
        found[storage] = array, elements
    return found


def _defined(build: Builder, name: str, value: Expr, count: int) -> Var:
    """A variable of the innermost loop, for a value in [0, count)."""
    number = build.emit(U.INDEX, i32, (), value, [value])
    build.define(name, number, len(build.scopes) - 1)
    return Var(name, 0, count - 1)


@contextmanager
def _where(build: Builder, name: str, condition: Expr) -> Iterator[None]:
    """What is done under a condition."""
    if condition is not ONE:
        build.open(Range(name, 1, limit=condition))
    yield
    if condition is not ONE:
        build.close()
