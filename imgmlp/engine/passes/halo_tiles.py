"""Kernels that read what the ones before them leave around their own elements become one launch.

Convolutions of a few channels that follow each other, and their gradients, do little, and each
waits until the one before is done everywhere. In tiles with a halo (overlapped tiling: Ragan-Kelley
et al. 2013, PLDI) a group computes again what its neighbours compute at its border, and waits for
nobody. That pays on a GPU, whose groups have local memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from imgmlp.engine.ir.conditions import at_least, conj, less
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Buffer, Node, Shape, buffer, move, substitute, toposort
from imgmlp.engine.ir.index_values import through
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
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var, split, unravel
from imgmlp.engine.ir.target import LOCAL
from imgmlp.engine.passes.horizontal_fusion import MOST_BUFFERS

REACH = 2  # rows and columns that an element is read away from
MOST_HALO = 4
MOST_SHARED = 512  # elements of a Buffer of which each reads some, as of a convolution's weights
AROUND = 3  # elements of a value that is read; of so many it is brought to local memory first
ROWS, COLUMNS = (8, 16, 32), range(16, 129, 4)  # of a tile

Value = tuple[int, int]  # a member, and which of its stores


def in_tiles(procedure: Procedure) -> Procedure:
    """The same, where kernels one behind the other that are near to each other are one launch."""
    found, chain = list[Launch | Loop](), list[Kernel]()
    for item in (*procedure.items, None):
        if not isinstance(item, Kernel) or not _may_join(chain, item, procedure):
            found += _launches(chain, procedure)
            chain = []
        if isinstance(item, Kernel):
            chain.append(item)
        elif item is not None:
            found.append(item)
    return replace(procedure, items=tuple(found))


def _may_join(chain: Sequence[Kernel], kernel: Kernel, procedure: Procedure) -> bool:
    """Whether it can be one launch with those before it, and reads what these leave."""
    window = Window.of([*chain, kernel])
    if window is None or not all(window.reads[1:]) or not _fits(window):
        return False
    buffers = {b for k in window.members for b in (*k.reads(), *k.writes())}
    if len(buffers) > MOST_BUFFERS:
        return False
    others = [store for k in _others(chain, procedure) for store in k.all_stores()]
    return window.are_zero_outside(others)


def _others(chain: Sequence[Kernel], procedure: Procedure) -> Iterator[Kernel]:
    """Kernels of all launches but these."""
    stack = list(procedure.kernels)
    while stack:
        launch = stack.pop()
        if not isinstance(launch, Kernel):
            stack += launch.parts
        elif all(launch is not kernel for kernel in chain):
            yield launch


def _launches(chain: Sequence[Kernel], procedure: Procedure) -> Sequence[Launch]:
    """One launch, if these are several kernels."""
    if len(chain) < 2:
        return chain
    others = list(_others(chain, procedure))
    seen = {b for k in others for b in (*k.reads(), *k.writes())}
    written = dict.fromkeys(b for k in chain for b in k.writes())
    own = {b: _local(b) for b in written if b.device is None and b not in seen}
    chain = _elsewhere(chain, own)
    ways = (Window.of(members) for members in (_with_copies(chain), chain))
    window = next(window for window in ways if window and _fits(window))
    assert window.tile is not None
    return [Tiled("tiled", window.members, window.pitch, window.halos, window.tile)]


# --- what is near ---


@dataclass(frozen=True)
class Read:
    """A value of a member before, so many elements from the own one on; 0 beyond all elements
    where it is masked, or else whatever stands there."""

    value: Value
    away: int
    masked: bool


@dataclass(frozen=True)
class Window:
    """What each member reads of those before it."""

    members: tuple[Kernel, ...]
    reads: tuple[tuple[Read, ...], ...]
    begins: dict[Value, int]  # where in its Buffer each value begins

    @staticmethod
    def of(members: Sequence[Kernel]) -> Window | None:
        """None if that is more than what is near, or if something is written that was read."""
        size = math.prod(members[0].shape)
        if not all(_is_map(kernel) and math.prod(kernel.shape) == size for kernel in members):
            return None
        element, found = Var("p", 0, size - 1), list[tuple[Read, ...]]()
        places, touched = dict[Buffer, dict[int, Value]](), set[Buffer]()
        for number, kernel in enumerate(members):
            touched |= {*kernel.reads(), *places}
            reads, written = _reads(kernel, element, places), _written(kernel, element)
            if reads is None or written is None or written.keys() & touched:
                return None
            found.append(tuple(reads))
            places |= {b: {at: (number, n) for at, n in of.items()} for b, of in written.items()}
        begins = {value: at for of in places.values() for at, value in of.items()}
        return Window(tuple(members), tuple(found), begins)

    @cached_property
    def pitch(self) -> int:
        """Elements of a row, 0 if there are none such that all that is read is near."""
        away = {abs(read.away) for reads in self.reads for read in reads}
        near = sorted(range(-REACH, REACH + 1), key=abs)
        pitches = [(max(away, default=0) - n) // rows for rows in range(1, REACH + 1) for n in near]
        pitches = [n for n in pitches if n > 2 * MOST_HALO and _reach(away, n) <= REACH]
        return min(pitches, key=lambda pitch: _reach(away, pitch), default=0)

    @cached_property
    def around(self) -> dict[Value, int]:
        """Of each value that is read: how far around a tile, as others are around that."""
        halos, found = [0] * len(self.members), dict[Value, int]()
        for number in reversed(range(len(self.members))):
            for read in self.reads[number]:
                halo = halos[number] + _reach([abs(read.away)], self.pitch)
                found[read.value] = max(found.get(read.value, 0), halo)
                halos[read.value[0]] = max(halos[read.value[0]], halo)
        return found

    @cached_property
    def halos(self) -> tuple[int, ...]:
        """Of each member the widest of its values."""
        numbers = range(len(self.members))
        return tuple(
            max((halo for value, halo in self.around.items() if value[0] == n), default=0)
            for n in numbers
        )

    @cached_property
    def last(self) -> dict[Value, int]:
        """The last member that reads each value."""
        pairs = enumerate(self.reads)
        return {read.value: number for number, reads in pairs for read in reads}

    @cached_property
    def shared(self) -> dict[Buffer, range]:
        """Elements of Buffers that are the same for all elements, and those between them."""
        found = dict[Buffer, range]()
        for kernel in self.members:
            indices = unravel(Var("p", 0, math.prod(kernel.shape) - 1), kernel.shape)
            for leaf in leaves(kernel.stores):
                source, moved = through(leaf)
                offset, valid = moved.index(indices)
                same = isinstance(offset, Const) and valid is ONE and source.dtype is f32
                if source.op is Op.BUFFER and same:
                    known = found.get(source.arg, range(offset.lo, offset.lo + 1))
                    ends = min(known.start, offset.lo), max(known.stop, offset.lo + 1)
                    found[source.arg] = range(*ends)
        return {b: elements for b, elements in found.items() if len(elements) <= MOST_SHARED}

    @cached_property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of tiles that have room, by which least is computed, if any have."""
        height = -(-math.prod(self.members[0].shape) // self.pitch)
        shared = sum(map(len, self.shared.values()))

        def cost(size: tuple[int, int]) -> int:
            tiles = -(-height // size[0]) * -(-self.pitch // size[1])
            return tiles * sum((size[0] + 2 * h) * (size[1] + 2 * h) for h in self.halos)

        for size in sorted(itertools.product(ROWS, COLUMNS), key=cost):
            if (shared + sum(Arrays.of(self, size).sizes)) * f32.itemsize <= LOCAL:
                return size
        return None

    def store(self, value: Value) -> Store:
        return self.members[value[0]].stores[value[1]]

    def are_zero_outside(self, stores: Iterable[Store]) -> bool:
        """Whether nothing but zeros stands beside the values that are read there unmasked; `stores`
        are those of all other kernels."""
        reads = [read for reads in self.reads for read in reads if read.away and not read.masked]
        unmasked = {self.store(read.value).target for read in reads}
        beside = [store.value for store in stores if store.target in unmasked]
        zeros = all(value.op is Op.CONST and value.arg == 0 for value in beside)
        return zeros and not any(self._meets_another(read) for read in reads)

    def _meets_another(self, read: Read) -> bool:
        """Whether what stands beside a value, as far as that is read, is another one."""
        storage, begin = self.store(read.value).target, self.begins[read.value]
        room = math.prod(self.members[0].shape) + abs(read.away)
        return any(
            0 < abs(other - begin) < room and self.store(value).target is storage
            for value, other in self.begins.items()
        )


def apart(away: int, pitch: int) -> tuple[int, int]:
    """Rows and columns that so many elements are."""
    rows = (away + pitch // 2) // pitch
    return rows, away - rows * pitch


def _reach(away: Iterable[int], pitch: int) -> int:
    return max((abs(n) for each in away for n in apart(each, pitch)), default=0)


def _is_map(kernel: Kernel) -> bool:
    adds = any(store.adds for store in kernel.stores)
    return kernel.core is None and not (kernel.guards or kernel.rows or kernel.totals or adds)


def _along(offset: Expr, element: Var) -> int | None:
    """How far behind the element it is, if that is the same for all."""
    constant, terms = split(offset)
    return constant if terms == ((element, 1),) else None


def _written(kernel: Kernel, element: Var) -> dict[Buffer, dict[int, int]] | None:
    """Where its stores' first elements are; None if elements do not follow each other there."""
    found: dict[Buffer, dict[int, int]] = {}
    indices = unravel(element, kernel.shape)
    for number, store in enumerate(kernel.stores):
        at = _along(access(store.place).index(indices)[0] + part_begin(store.place), element)
        if at is None or not is_plain(store.place):
            return None
        found.setdefault(store.target, {})[at] = number
    return found


def _reads(
    kernel: Kernel, element: Var, places: Mapping[Buffer, Mapping[int, Value]]
) -> list[Read] | None:
    """What it reads of some Buffers; None if that is anything else than elements beside its own."""
    indices, found = unravel(element, kernel.shape), list[Read]()
    for leaf in leaves(kernel.stores):
        if not any(n.op is Op.BUFFER and n.arg in places for n in toposort([leaf])):
            continue
        source, moved = through(leaf)
        offset, valid = moved.index(indices)
        at = _along(offset, element)
        if source.op is not Op.BUFFER or at is None:
            return None
        begin = min(places[source.arg], key=lambda begin: abs(at - begin))
        away = at - begin
        inside = conj(at_least(element + away, 0), less(element + away, element.hi + 1))
        if valid is not ONE and valid is not inside:
            return None
        found.append(Read(places[source.arg][begin], away, valid is inside))
    return found


# --- local memory ---


def _local(storage: Buffer) -> LocalBuffer:
    """What takes the place of a Buffer that a tile alone needs."""
    return LocalBuffer.of(storage.shape, storage.dtype, None, f"near {storage.name or ''}".strip())


def _with_copies(chain: Sequence[Kernel]) -> Sequence[Kernel]:
    """The same behind a kernel that brings to local memory what is read around elements."""
    shape, written = chain[0].shape, {b for k in chain for b in k.writes()}
    size = math.prod(shape)
    read = dict.fromkeys(b for k in chain for b in k.reads() if b not in written)
    near = {b: _local(b) for b in read if b.dtype is f32 and _is_around(chain, b, size)}
    if not near:
        return chain
    stores = [
        Store(_part(local.place, n, shape), _part(buffer(b), n, shape))
        for b, local in near.items()
        for n in range(b.size // size)
    ]
    moved = list[Kernel]()
    for kernel in chain:
        around = {b: local for b, local in near.items() if _is_around([kernel], b, size)}
        moved += _elsewhere([kernel], around)
    return [Kernel("copy", shape, tuple(stores), None), *moved]


def _is_around(chain: Sequence[Kernel], storage: Buffer, size: int) -> bool:
    """Whether values of a Buffer, which has nothing else, are read around each element."""
    if storage.size % size:
        return False
    begins = {n * size: (0, n) for n in range(storage.size // size)}
    element, around = Var("p", 0, size - 1), dict[Value, set[int]]()
    for kernel in chain:
        reads = _reads(kernel, element, {storage: begins})
        if reads is None or any(read.away and not read.masked for read in reads):
            return False
        for read in reads:
            around.setdefault(read.value, set()).add(read.away)
    return any(len(away) >= AROUND for away in around.values())


def _part(place: Node, number: int, shape: Shape) -> Node:
    """As many elements as a shape has, those number so many of a Buffer."""
    size = math.prod(shape)
    flat = move(Op.RESHAPE, place, (place.size,))
    part = move(Op.SHRINK, flat, ((number * size, (number + 1) * size),))
    return move(Op.RESHAPE, part, shape)


def _elsewhere(chain: Sequence[Kernel], moved: Mapping[Buffer, LocalBuffer]) -> list[Kernel]:
    """The same kernels where Buffers are others."""
    others = {buffer(b): local.place for b, local in moved.items()}

    def store(s: Store) -> Store:
        place, value = substitute([s.place, s.value], others)
        return Store(place, value)

    return [replace(k, stores=tuple(map(store, k.stores))) for k in chain]


@dataclass(frozen=True)
class Arrays:
    """Where values are in local memory: in arrays, each of which has one after the other."""

    sizes: tuple[int, ...]  # elements of each
    holding: dict[Value, int]  # which array has a value

    @staticmethod
    def of(window: Window, tile: tuple[int, int]) -> Arrays:
        """Those of tiles of so many rows and columns; one is free again behind its last reader."""
        sizes, ends, holding = list[int](), list[int](), dict[Value, int]()
        for value, last in sorted(window.last.items()):
            halo = 2 * window.around[value]
            size = (tile[0] + halo) * (tile[1] + halo)
            number = next((n for n, end in enumerate(ends) if end < value[0]), len(ends))
            if number == len(ends):
                ends.append(0)
                sizes.append(0)
            ends[number], holding[value] = last, number
            sizes[number] = max(sizes[number], size)
        return Arrays(tuple(sizes), holding)


def _fits(window: Window) -> bool:
    """Whether what it reads is near, and has room in local memory."""
    kinds = {window.store(value).value.dtype for value in window.last}
    small = window.pitch > 0 and max(window.halos) <= MOST_HALO
    return small and kinds == {f32} and window.tile is not None
