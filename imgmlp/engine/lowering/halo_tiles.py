"""Lowering of a Tiled launch: a chain of kernels on one tile with halos (passes/halo_tiles.py).

Each kernel leaves what later ones read in local memory, with zeros where there is no element, and
stores the elements of the tile itself to global memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from imgmlp.engine.ir.conditions import all_of, at_least, less
from imgmlp.engine.ir.dtype import f32, i32
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.index_values import source_and_access
from imgmlp.engine.ir.kernel import Kernel, Store, Tiled
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, linear_parts, unravel
from imgmlp.engine.ir.target import LANES_PER_GROUP, Target
from imgmlp.engine.ir.uops import Builder, Range, U
from imgmlp.engine.lowering.expressions import Lowering, store_values
from imgmlp.engine.passes.halo_tiles import LocalArrays, StencilChain, row_column_distance


@dataclass(frozen=True)
class _Cell:
    """An element of a tile with its halo, by its row and column."""

    row: Expr  # counted from the first row of the halo
    column: Expr
    halo: int  # rows and columns around the tile


@dataclass(frozen=True)
class _LocalValue:
    """A tile of a value in local memory, with its halo."""

    array: int  # the LOCAL_ARRAY instruction
    begin: int  # the first element of the value in its Buffer
    halo: int
    rows: int  # of the tile with its halo
    columns: int

    def at(self, cell: _Cell, distance: tuple[int, int] = (0, 0)) -> Expr:
        """The index in the array of the element some (rows, columns) away from a cell."""
        rows, columns = (self.halo - cell.halo + n for n in distance)
        return (cell.row + rows) * self.columns + cell.column + columns

    def has(self, cell: _Cell) -> Expr:
        """Whether a cell lies within this value's tile and halo."""
        more = cell.halo - self.halo
        row, column = cell.row - more, cell.column - more
        limits = less(row, self.rows), less(column, self.columns)
        return all_of(at_least(row, 0), at_least(column, 0), *limits)


@dataclass(frozen=True)
class _LocalValues:
    """What a work-group has in local memory, by the Buffers that would hold it otherwise."""

    uniform: Mapping[Buffer, tuple[int, range]]  # an array, and which elements it has
    values: dict[Buffer, list[_LocalValue]]
    pitch: int

    def place(self, storage: Buffer, offset: Expr, cell: _Cell) -> tuple[int, Expr] | None:
        """The array of an element of a Buffer and the index there, relative to a cell."""
        at, terms = linear_parts(offset)
        if not terms:
            array, elements = self.uniform.get(storage, (0, range(0)))
            return (array, Const(at - elements.start)) if at in elements else None
        if storage not in self.values:
            return None
        value = min(self.values[storage], key=lambda one: abs(at - one.begin))
        return value.array, value.at(cell, row_column_distance(at - value.begin, self.pitch))


class _LocalReads(Lowering):
    """Lowering that reads from local memory what is there, and all else from global memory."""

    def __init__(
        self, build: Builder, target: Target, local: _LocalValues, cell: _Cell, exists: Expr
    ) -> None:
        super().__init__(build, None, target)
        self.local, self.cell, self.exists = local, cell, exists

    def _moved(self, node: Node, indices: tuple[Expr, ...], guard: Expr) -> int:
        source, moved = source_and_access(node)
        offset, valid = moved.index(indices)
        local = source.op is Op.BUFFER and self.local.place(source.arg, offset, self.cell)
        if not local:
            return super()._moved(node, indices, guard)
        array, place = local
        if isinstance(place, Const):  # loaded at each use, as registers cannot hold all of them
            element, guard = self.build.effect(U.GET, (array,), place, f32), all_of(valid, guard)
        else:  # the halo has zeros where `valid` is false
            element = self.build.emit(U.GET, f32, (array,), place, [place])
        return element if guard is self.exists else self.select_or_zero(guard, element, f32)


def tiled_kernel(tiled: Tiled, build: Builder, target: Target) -> tuple[int, int]:
    """Lower a Tiled launch; returns its global and local size."""
    stencil = StencilChain.of(tiled.members)
    assert stencil is not None
    (height, width), pitch = tiled.tile, tiled.pitch
    across, down = -(-pitch // width), -(-tiled.size // (pitch * height))
    group = build.open(Range("t", across * down, "group"))
    corner = group // across * height, group % across * width
    tile = _Tile(tiled, stencil, build, target, corner)
    for number, (kernel, halo) in enumerate(zip(tiled.members, tiled.halos, strict=True)):
        if number or tile.local.uniform:
            build.effect(U.BARRIER, ())
        tile.lower(number, kernel, halo)
    build.close()
    return across * down * LANES_PER_GROUP, LANES_PER_GROUP


class _Tile:
    """The tile of a work-group, on which it runs the kernels of a chain one after the other."""

    def __init__(
        self,
        tiled: Tiled,
        stencil: StencilChain,
        build: Builder,
        target: Target,
        corner: tuple[Expr, Expr],
    ) -> None:
        self.tiled, self.stencil, self.build, self.target = tiled, stencil, build, target
        self.top, self.left = corner
        self.height, self.width = tiled.tile
        self.layout = LocalArrays.of(stencil, tiled.tile)
        self.arrays = [build.effect(U.LOCAL_ARRAY, (), size, f32) for size in self.layout.sizes]
        self.local = _LocalValues(_load_uniform(stencil, build), {}, tiled.pitch)

    def lower(self, number: int, kernel: Kernel, halo: int) -> None:
        """Lower a member of the chain, whose cells are those of the tile and its halo."""
        build, size = self.build, self.tiled.size
        rows, columns = self.height + 2 * halo, self.width + 2 * halo
        lane = build.open(Range("l", LANES_PER_GROUP, "lane"))
        rounds = -(-rows * columns // LANES_PER_GROUP)
        count = build.open(Range("r", rounds)) * LANES_PER_GROUP + lane
        with _if(build, "x", less(count, rows * columns)):
            count = _define(build, f"c{number}", count, rows * columns)
            cell = _Cell(count // columns, count % columns, halo)
            row, column = cell.row - halo, cell.column - halo
            place = (self.top + row) * self.tiled.pitch + self.left + column
            element = _define(build, f"p{number}", place, size)  # in range if it exists
            place = Var(element.name, place.lo, place.hi)
            exists = all_of(at_least(place, 0), less(place, size))
            indices = unravel(element, kernel.shape)
            lower = _LocalReads(build, self.target, self.local, cell, exists)
            values = [lower.value(store.value, indices, exists) for store in kernel.stores]
            for n, value in enumerate(values):
                self._set_local(number, n, kernel.stores[n], value, lower)
            self._store_global(kernel, values, cell, exists, indices)
        build.close(2)

    def _set_local(self, number: int, n: int, store: Store, value: int, lower: _LocalReads) -> None:
        """Write store `n` of member `number` to local memory, if later members read its value."""
        halo = self.stencil.value_halos.get((number, n))
        if halo is None:
            return
        array, begin = self.arrays[self.layout.array_of[number, n]], self.stencil.begins[number, n]
        rows, columns = self.height + 2 * halo, self.width + 2 * halo
        local_value = _LocalValue(array, begin, halo, rows, columns)
        self.local.values.setdefault(store.target, []).append(local_value)
        value_or_zero = lower.select_or_zero(lower.exists, value, f32)
        with _if(self.build, "z", local_value.has(lower.cell)):
            index = local_value.at(lower.cell)
            self.build.effect(U.SET, (array, value_or_zero), index, f32)

    def _store_global(
        self,
        kernel: Kernel,
        values: Sequence[int],
        cell: _Cell,
        exists: Expr,
        indices: Sequence[Expr],
    ) -> None:
        """Store the elements of the tile itself, without its halo, to global memory."""
        pairs = zip(kernel.stores, values, strict=True)
        stored = [(s, value) for s, value in pairs if not isinstance(s.target, LocalBuffer)]
        if not stored:
            return
        row, column = cell.row - cell.halo, cell.column - cell.halo
        in_rows = at_least(row, 0), less(row, self.height)
        in_columns = at_least(column, 0), less(column, self.width)
        in_picture = less(self.left + column, self.tiled.pitch)
        with _if(self.build, "y", all_of(exists, in_picture, *in_rows, *in_columns)):
            stores, values = [s for s, _ in stored], [value for _, value in stored]
            store_values(self.build, stores, values, indices)


def _load_uniform(stencil: StencilChain, build: Builder) -> dict[Buffer, tuple[int, range]]:
    """Copy the elements of Buffers that all elements read alike to local memory."""
    arrays = {}
    for storage, elements in stencil.uniform.items():
        array = build.effect(U.LOCAL_ARRAY, (), len(elements), f32)
        lane = build.open(Range("l", len(elements), "lane"))
        place = lane + elements.start
        data = build.parameter(storage)
        value = build.emit(U.LOAD, f32, (data,), (place, ONE), [place])
        build.effect(U.SET, (array, value), lane, f32)
        build.close()
        arrays[storage] = array, elements
    return arrays


def _define(build: Builder, name: str, value: Expr, count: int) -> Var:
    """Define a variable in the innermost loop, for a value in [0, count)."""
    number = build.emit(U.INDEX, i32, (), value, [value])
    build.define(name, number, len(build.scopes) - 1)
    return Var(name, 0, count - 1)


@contextmanager
def _if(build: Builder, name: str, condition: Expr) -> Iterator[None]:
    """Instructions that run under a condition only."""
    if condition is not ONE:
        build.open(Range(name, 1, limit=condition))
    yield
    if condition is not ONE:
        build.close()
