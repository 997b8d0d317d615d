"""Overlapped tiling: chains of stencil kernels become one launch over tiles with halos.

In: a scheduled Procedure for a GPU. Out: the same, where chains of elementwise kernels that read
each other's results around their own element are `Tiled` launches.

Convolutions of a few channels that follow each other, and their gradients, do little work, and each
waits for the last work-group of the one before. In tiles with halos (Ragan-Kelley et al. 2013,
PLDI) a work-group recomputes what its neighbours compute at its border, and waits for nobody. The
tile size is the one that computes fewest elements among those that fit in local memory. Kernels
must stay apart if they read further away, or read anything but zeros beyond the edge of a value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from imgmlp.engine.ir.conditions import all_of, at_least, less
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Buffer, Node, Shape, buffer, move, substitute, toposort
from imgmlp.engine.ir.index_values import source_and_access
from imgmlp.engine.ir.kernel import (
    Kernel,
    Launch,
    Loop,
    Procedure,
    Store,
    Tiled,
    access,
    is_plain,
    leaves,
    part_begin,
)
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, linear_parts, unravel
from imgmlp.engine.ir.target import LOCAL_MEMORY_BYTES
from imgmlp.engine.passes.horizontal_fusion import MAX_LAUNCH_BUFFERS

MAX_READ_DISTANCE = 2  # rows and columns between an element and those that it reads
MAX_HALO = 4  # rows and columns around a tile
# Elements of a Buffer that all elements read alike, such as a convolution's weights.
MAX_UNIFORM_ELEMENTS = 512
# Inputs of which each element reads so many are copied to local memory before the first kernel.
MIN_READS_FOR_LOCAL_COPY = 3
TILE_ROW_CHOICES = (8, 16, 32)
TILE_COLUMN_CHOICES = range(16, 129, 4)

Value = tuple[int, int]  # what a kernel computes: its number in the chain, and which of its stores


def fuse_in_halo_tiles(procedure: Procedure) -> Procedure:
    """The same Procedure, where chains of kernels that read near elements are one launch."""
    items, chain = list[Launch | Loop](), list[Kernel]()
    for item in (*procedure.items, None):
        if not isinstance(item, Kernel) or not _may_join(chain, item, procedure):
            items += _launches(chain, procedure)
            chain = []
        if isinstance(item, Kernel):
            chain.append(item)
        elif item is not None:
            items.append(item)
    return replace(procedure, items=tuple(items))


def _may_join(chain: Sequence[Kernel], kernel: Kernel, procedure: Procedure) -> bool:
    """Whether a kernel reads results of the chain and fits into one launch with it."""
    stencil = StencilChain.of([*chain, kernel])
    if stencil is None or not all(stencil.reads[1:]) or not _fits(stencil):
        return False
    buffers = {b for k in stencil.members for b in (*k.reads(), *k.writes())}
    if len(buffers) > MAX_LAUNCH_BUFFERS:
        return False
    others = [store for k in _other_kernels(chain, procedure) for store in k.all_stores()]
    return stencil.reads_zeros_outside(others)


def _other_kernels(chain: Sequence[Kernel], procedure: Procedure) -> Iterator[Kernel]:
    """All kernels of a Procedure that are not in the chain."""
    stack = list(procedure.kernels)
    while stack:
        launch = stack.pop()
        if not isinstance(launch, Kernel):
            stack += launch.parts
        elif all(launch is not kernel for kernel in chain):
            yield launch


def _launches(chain: Sequence[Kernel], procedure: Procedure) -> Sequence[Launch]:
    """A chain of several kernels as one launch; its private Buffers move to local memory."""
    if len(chain) < 2:
        return chain
    others = list(_other_kernels(chain, procedure))
    seen = {b for k in others for b in (*k.reads(), *k.writes())}
    written = dict.fromkeys(b for k in chain for b in k.writes())
    own = {b: _local(b) for b in written if b.device is None and b not in seen}
    chain = _replace_buffers(chain, own)
    ways = (StencilChain.of(members) for members in (_with_copies(chain), chain))
    stencil = next(stencil for stencil in ways if stencil and _fits(stencil))
    assert stencil.tile is not None
    return [Tiled("tiled", stencil.members, stencil.pitch, stencil.halos, stencil.tile)]


# --- which elements a chain reads ---


@dataclass(frozen=True)
class NeighbourRead:
    """A read of an earlier kernel's value, near the element that is computed."""

    value: Value
    distance: int  # elements from the one that is computed to the one that is read, signed
    masked: bool  # whether a read beyond the value's edge gives 0, or else what memory holds there


@dataclass(frozen=True)
class StencilChain:
    """Elementwise kernels of one size, and what each reads of the values of those before it."""

    members: tuple[Kernel, ...]
    reads: tuple[tuple[NeighbourRead, ...], ...]  # of each member
    begins: dict[Value, int]  # the element of its Buffer at which each value begins

    @staticmethod
    def of(members: Sequence[Kernel]) -> StencilChain | None:
        """The chain of some kernels; None if one reads more than near elements, or writes to a
        Buffer that an earlier one touched."""
        size = math.prod(members[0].shape)
        if not all(_is_map(kernel) and math.prod(kernel.shape) == size for kernel in members):
            return None
        element, all_reads = Var("p", 0, size - 1), list[tuple[NeighbourRead, ...]]()
        places, touched = dict[Buffer, dict[int, Value]](), set[Buffer]()
        for number, kernel in enumerate(members):
            touched |= {*kernel.reads(), *places}
            reads, written = _reads(kernel, element, places), _written(kernel, element)
            if reads is None or written is None or written.keys() & touched:
                return None
            all_reads.append(tuple(reads))
            places |= {b: {at: (number, n) for at, n in of.items()} for b, of in written.items()}
        begins = {value: at for of in places.values() for at, value in of.items()}
        return StencilChain(tuple(members), tuple(all_reads), begins)

    @cached_property
    def pitch(self) -> int:
        """Elements of a row, guessed from the distances of reads; 0 if no length makes all near."""
        distances = {abs(read.distance) for reads in self.reads for read in reads}
        furthest = max(distances, default=0)
        column_offsets = sorted(range(-MAX_READ_DISTANCE, MAX_READ_DISTANCE + 1), key=abs)
        row_offsets = range(1, MAX_READ_DISTANCE + 1)
        pitches = [(furthest - n) // rows for rows in row_offsets for n in column_offsets]
        pitches = [n for n in pitches if n > 2 * MAX_HALO]
        pitches = [n for n in pitches if _max_distance(distances, n) <= MAX_READ_DISTANCE]
        return min(pitches, key=lambda pitch: _max_distance(distances, pitch), default=0)

    @cached_property
    def value_halos(self) -> dict[Value, int]:
        """The halo of each value that is read: how far around a tile later kernels need it."""
        halos, value_halos = [0] * len(self.members), dict[Value, int]()
        for number in reversed(range(len(self.members))):
            for read in self.reads[number]:
                halo = halos[number] + _max_distance([abs(read.distance)], self.pitch)
                value_halos[read.value] = max(value_halos.get(read.value, 0), halo)
                halos[read.value[0]] = max(halos[read.value[0]], halo)
        return value_halos

    @cached_property
    def halos(self) -> tuple[int, ...]:
        """The halo that each member computes: the widest one of its values."""
        numbers = range(len(self.members))
        return tuple(
            max((halo for value, halo in self.value_halos.items() if value[0] == n), default=0)
            for n in numbers
        )

    @cached_property
    def last_reader(self) -> dict[Value, int]:
        """The last member that reads each value."""
        pairs = enumerate(self.reads)
        return {read.value: number for number, reads in pairs for read in reads}

    @cached_property
    def uniform(self) -> dict[Buffer, range]:
        """Of Buffers that every element reads alike: the range of elements that are read."""
        ranges = dict[Buffer, range]()
        for kernel in self.members:
            indices = unravel(Var("p", 0, math.prod(kernel.shape) - 1), kernel.shape)
            for leaf in leaves(kernel.stores):
                source, moved = source_and_access(leaf)
                offset, valid = moved.index(indices)
                same = isinstance(offset, Const) and valid is ONE and source.dtype is f32
                if source.op is Op.BUFFER and same:
                    previous = ranges.get(source.arg, range(offset.lo, offset.lo + 1))
                    ends = min(previous.start, offset.lo), max(previous.stop, offset.lo + 1)
                    ranges[source.arg] = range(*ends)
        return {
            b: elements for b, elements in ranges.items() if len(elements) <= MAX_UNIFORM_ELEMENTS
        }

    @cached_property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of the tiles that fit in local memory and compute fewest elements."""
        height = -(-math.prod(self.members[0].shape) // self.pitch)
        uniform = sum(map(len, self.uniform.values()))

        def cost(size: tuple[int, int]) -> int:
            tiles = -(-height // size[0]) * -(-self.pitch // size[1])
            return tiles * sum((size[0] + 2 * h) * (size[1] + 2 * h) for h in self.halos)

        for size in sorted(itertools.product(TILE_ROW_CHOICES, TILE_COLUMN_CHOICES), key=cost):
            if (
                uniform + sum(LocalArrays.of(self, size).sizes)
            ) * f32.itemsize <= LOCAL_MEMORY_BYTES:
                return size
        return None

    def store(self, value: Value) -> Store:
        return self.members[value[0]].stores[value[1]]

    def reads_zeros_outside(self, stores: Iterable[Store]) -> bool:
        """Whether unmasked reads beyond the edge of a value meet nothing but zeros.

        `stores` are those of all kernels outside of the chain.
        """
        reads = [
            read for reads in self.reads for read in reads if read.distance and not read.masked
        ]
        unmasked = {self.store(read.value).target for read in reads}
        beside = [store.value for store in stores if store.target in unmasked]
        zeros = all(value.op is Op.CONST and value.arg == 0 for value in beside)
        return zeros and not any(self._reads_another_value(read) for read in reads)

    def _reads_another_value(self, read: NeighbourRead) -> bool:
        """Whether a read beyond the edge of a value may meet another value in the same Buffer."""
        storage, begin = self.store(read.value).target, self.begins[read.value]
        room = math.prod(self.members[0].shape) + abs(read.distance)
        return any(
            0 < abs(other - begin) < room and self.store(value).target is storage
            for value, other in self.begins.items()
        )


def row_column_distance(distance: int, pitch: int) -> tuple[int, int]:
    """A distance in elements as rows and columns, both signed, of rows of `pitch` elements."""
    rows = (distance + pitch // 2) // pitch
    return rows, distance - rows * pitch


def _max_distance(distances: Iterable[int], pitch: int) -> int:
    """The largest number of rows or of columns that any distance spans."""
    return max((abs(n) for d in distances for n in row_column_distance(d, pitch)), default=0)


def _is_map(kernel: Kernel) -> bool:
    adds = any(store.adds for store in kernel.stores)
    return kernel.core is None and not (
        kernel.guards or kernel.row_reductions or kernel.row_stores or adds
    )


def _constant_offset(offset: Expr, element: Var) -> int | None:
    """The distance from the element to an offset, if that is constant."""
    constant, terms = linear_parts(offset)
    return constant if terms == ((element, 1),) else None


def _written(kernel: Kernel, element: Var) -> dict[Buffer, dict[int, int]] | None:
    """For each Buffer the first element of each store; None if stores are not contiguous."""
    written: dict[Buffer, dict[int, int]] = {}
    indices = unravel(element, kernel.shape)
    for number, store in enumerate(kernel.stores):
        offset = access(store.place).index(indices)[0] + part_begin(store.place)
        at = _constant_offset(offset, element)
        if at is None or not is_plain(store.place):
            return None
        written.setdefault(store.target, {})[at] = number
    return written


def _reads(
    kernel: Kernel, element: Var, places: Mapping[Buffer, Mapping[int, Value]]
) -> list[NeighbourRead] | None:
    """What a kernel reads of the values in `places`; None if a read is at no constant distance."""
    indices, reads = unravel(element, kernel.shape), list[NeighbourRead]()
    for leaf in leaves(kernel.stores):
        if not any(n.op is Op.BUFFER and n.arg in places for n in toposort([leaf])):
            continue
        source, moved = source_and_access(leaf)
        offset, valid = moved.index(indices)
        at = _constant_offset(offset, element)
        if source.op is not Op.BUFFER or at is None:
            return None
        begin = min(places[source.arg], key=lambda begin: abs(at - begin))
        distance = at - begin
        inside = all_of(at_least(element + distance, 0), less(element + distance, element.hi + 1))
        if valid is not ONE and valid is not inside:
            return None
        reads.append(NeighbourRead(places[source.arg][begin], distance, valid is inside))
    return reads


# --- local memory ---


def _local(storage: Buffer) -> LocalBuffer:
    """The Buffer in local memory that replaces one in global memory."""
    return LocalBuffer.of(storage.shape, storage.dtype, None, f"near {storage.name or ''}".strip())


def _with_copies(chain: Sequence[Kernel]) -> Sequence[Kernel]:
    """The chain after a kernel that copies inputs to local memory, if it reads around elements."""
    shape, written = chain[0].shape, {b for k in chain for b in k.writes()}
    size = math.prod(shape)
    read = dict.fromkeys(b for k in chain for b in k.reads() if b not in written)
    near = {b: _local(b) for b in read if b.dtype is f32 and _reads_neighbours(chain, b, size)}
    if not near:
        return chain
    stores = [
        Store(_slice(local.place, n, shape), _slice(buffer(b), n, shape))
        for b, local in near.items()
        for n in range(b.size // size)
    ]
    moved = list[Kernel]()
    for kernel in chain:
        value_halos = {
            b: local for b, local in near.items() if _reads_neighbours([kernel], b, size)
        }
        moved += _replace_buffers([kernel], value_halos)
    return [Kernel("copy", shape, tuple(stores), None), *moved]


def _reads_neighbours(chain: Sequence[Kernel], storage: Buffer, size: int) -> bool:
    """Whether each element reads at least MIN_READS_FOR_LOCAL_COPY neighbours of a value.

    The Buffer must consist of whole values of `size` elements.
    """
    if storage.size % size:
        return False
    begins = {n * size: (0, n) for n in range(storage.size // size)}
    element, value_halos = Var("p", 0, size - 1), dict[Value, set[int]]()
    for kernel in chain:
        reads = _reads(kernel, element, {storage: begins})
        if reads is None or any(read.distance and not read.masked for read in reads):
            return False
        for read in reads:
            value_halos.setdefault(read.value, set()).add(read.distance)
    return any(len(distance) >= MIN_READS_FOR_LOCAL_COPY for distance in value_halos.values())


def _slice(place: Node, number: int, shape: Shape) -> Node:
    """The `number`th value of a shape in a place that has several, one after the other."""
    size = math.prod(shape)
    flat = move(Op.RESHAPE, place, (place.size,))
    part = move(Op.SHRINK, flat, ((number * size, (number + 1) * size),))
    return move(Op.RESHAPE, part, shape)


def _replace_buffers(chain: Sequence[Kernel], moved: Mapping[Buffer, LocalBuffer]) -> list[Kernel]:
    """The same kernels with some Buffers replaced."""
    others = {buffer(b): local.place for b, local in moved.items()}

    def store(s: Store) -> Store:
        place, value = substitute([s.place, s.value], others)
        return Store(place, value)

    return [replace(k, stores=tuple(map(store, k.stores))) for k in chain]


@dataclass(frozen=True)
class LocalArrays:
    """Arrays in local memory; values with disjoint live ranges share one."""

    sizes: tuple[int, ...]  # elements of each array
    array_of: dict[Value, int]  # the array that holds each value

    @staticmethod
    def of(stencil: StencilChain, tile: tuple[int, int]) -> LocalArrays:
        """The arrays for tiles of some rows and columns."""
        sizes, ends, array_of = list[int](), list[int](), dict[Value, int]()
        for value, last_reader in sorted(stencil.last_reader.items()):
            halo = 2 * stencil.value_halos[value]
            size = (tile[0] + halo) * (tile[1] + halo)
            number = next((n for n, end in enumerate(ends) if end < value[0]), len(ends))
            if number == len(ends):
                ends.append(0)
                sizes.append(0)
            ends[number], array_of[value] = last_reader, number
            sizes[number] = max(sizes[number], size)
        return LocalArrays(tuple(sizes), array_of)


def _fits(stencil: StencilChain) -> bool:
    """Whether all reads are near, and the values of a tile fit in local memory."""
    kinds = {stencil.store(value).value.dtype for value in stencil.last_reader}
    small = stencil.pitch > 0 and max(stencil.halos) <= MAX_HALO
    return small and kinds == {f32} and stencil.tile is not None
