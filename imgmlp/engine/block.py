"""The block program: a step whose values belong to rows runs tile by tile in one launch.

rows.py says what each value is relative to the batch. ROW and ACC values become one Block: each
work-group walks tiles of rows, keeps a tile's ROW values in a room of its own and adds ACC values
to partial sums of its own, so nothing is atomic and a rerun gives the same bits. What is WHOLE and
not at hand is computed before; what remains is computed after, where a partial sum stands for its
ACC value. The tile's own graph, whose batch is as long as a tile, is scheduled like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.graph import (
    CONTROL,
    ELEMENTWISE,
    MOVEMENT,
    Buffer,
    Node,
    Op,
    Shape,
    alu,
    buffer,
    const,
    contiguous,
    gather,
    iota,
    make,
    move,
    part,
    rebuild,
    reduce,
    substitute,
    toposort,
)
from imgmlp.engine.head import ALIGN, Head, at_hand, own_room
from imgmlp.engine.kernel import Block, Kernel, Procedure, Store, Update, access, storage
from imgmlp.engine.local import LocalRoom
from imgmlp.engine.merge import attach_sums, merge, ordered
from imgmlp.engine.nearby import bring
from imgmlp.engine.place import Graph, is_plain_chain
from imgmlp.engine.rooms import share
from imgmlp.engine.rowfusion import fuse_rows
from imgmlp.engine.rows import Kind, Kinds, best
from imgmlp.engine.schedule import freeze, schedule
from imgmlp.engine.uops import FACTORS, Lanes, Multiply

TILE_ROWS = 256  # most rows of a tile: sums over rows are added to memory once a tile
MOST_ROWS = {"one": TILE_ROWS, "group": 64}
LEAST_ROWS = {"one": 64, "group": 8}  # of a tile, where more tiles keep more units busy
ROOM = {"one": 1 << 19, "group": 1 << 18}  # bytes that the rows of one tile may take
GROUPS_A_UNIT = {"one": 1, "group": 4}
GROUPS_ON_MATRIX_UNITS = 2  # instead, where lanes keep sums: as many as registers hold at a time
LEAST_SAVED = 1  # launches; below that a block is not worth it
# Rows of a tile of float32 from which matrix units pay, if local memory does not hold more. (Of
# halves, tiles with all rows whose factors pass by take less time than smaller ones.)
LEAST_NEAR = 24
FEW_PARTS = 4  # partial sums up to which they are added one by one
FEW_ROWS = 8  # fewer do not outweigh partial sums as large as the parameters
EVEN = 4  # tiles of each group from which one more or less matters little
WORTHWHILE = 7 / 8  # of a tile's rows: more of them save nothing that pays for uneven tiles


# --- the graph of one tile ---


@dataclass(frozen=True)
class _Cut:
    """How a batch is cut."""

    batch: int
    rows: int
    tiles: int
    groups: int

    @property
    def even(self) -> bool:
        """Whether the tiles have just the rows of the batch, none beyond."""
        return self.rows * self.tiles == self.batch


class _Tile:
    """The same values for one tile of rows; `before` collects what must be computed first."""

    def __init__(self, kinds: Kinds, cut: _Cut, lanes: Lanes) -> None:
        self.kinds, self.cut, self.lanes = kinds, cut, lanes
        self.before: dict[Node, Node] = {}
        self.head = Head(cut.groups)
        self.done: dict[Node, Node] = {}
        row = part(iota(cut.rows * cut.tiles), "tile", cut.tiles)
        limit = const(cut.batch, row.dtype, row.shape)
        self.exists = row < limit
        last = const(cut.batch - 1, row.dtype, row.shape)
        self.row = row if cut.even else alu(Op.WHERE, self.exists, row, last)

    def value(self, node: Node) -> Node:
        """The tile's value of a ROW Node, or what the tile adds to an ACC one."""
        if node not in self.done:
            leaf = node.op is Op.BUFFER or node in self.kinds.ahead
            self.done[node] = self._rows_of(node) if leaf else self._computed(node)
        return self.done[node]

    def _rows_of(self, leaf: Node) -> Node:
        axis = self.kinds.axis(leaf, len(leaf.shape))
        if leaf.op is not Op.BUFFER:
            leaf = self._ahead(leaf)
        if axis == 0 and self.cut.even:
            return part(leaf, "tile", self.cut.tiles)
        assert axis is not None
        order = (axis, *(a for a in range(len(leaf.shape)) if a != axis))
        rows = gather(move(Op.PERMUTE, leaf, order), self.row)
        return move(Op.PERMUTE, rows, tuple(order.index(a) for a in range(len(order))))

    def _computed(self, node: Node) -> Node:
        axis = self.kinds.axis(node, len(node.shape))
        src = tuple(self._source(node, s) for s in range(len(node.src)))
        if axis is None and not self.cut.even:
            src = (*src[:-1], self._masked(src[-1], self.kinds.source_axis(node, len(src) - 1)))
        if node.op is Op.GATHER and self.lanes == "group" and _is_costly(src[1]):
            src = (src[0], contiguous(src[1]))  # not once for each element of a row
        shape, arg = _resized(node.shape, axis, self.cut.rows), node.arg
        if node.op in (Op.RESHAPE, Op.EXPAND):
            arg = shape
        elif node.op is Op.SHRINK and axis is not None:
            arg = tuple((0, self.cut.rows) if a == axis else r for a, r in enumerate(arg))
        return make(node.op, src, arg, shape, node.dtype)

    def _source(self, node: Node, slot: int) -> Node:
        source = node.src[slot]
        if self.kinds.source(node, slot) is Kind.WHOLE:
            return self._factor(source) if node.op is Op.DOT and slot == 1 else self._whole(source)
        if source.op is Op.CONST:
            axis = self.kinds.source_axis(node, slot)
            return const(source.arg, source.dtype, _resized(source.shape, axis, self.cut.rows))
        return self.row if source.op is Op.IOTA else self.value(source)

    def _masked(self, terms: Node, axis: int | None) -> Node:
        """Terms of a sum over rows, zero where the last tile has rows beyond the batch."""
        ones = tuple(n if a == axis else 1 for a, n in enumerate(terms.shape))
        exists = move(Op.EXPAND, move(Op.RESHAPE, self.exists, ones), terms.shape)
        return alu(Op.WHERE, exists, terms, const(0, terms.dtype, terms.shape))

    def _factor(self, node: Node) -> Node:
        """A right factor, copied if its neighbours along a row do not lie together."""
        strided = self.lanes == "one" and node.op is not Op.BUFFER and node.shape[-1] >= ALIGN
        if strided and is_plain_chain(node) and _last_stride(node) != 1:
            return self.head.copy(node) or self._ahead(node)
        return self._whole(node)

    def _whole(self, node: Node) -> Node:
        if at_hand(node):
            return node
        if node.op in MOVEMENT or (node.op in ELEMENTWISE and node.size == 1):
            return rebuild(node, tuple(self._whole(s) for s in node.src))
        return self._ahead(node)

    def _ahead(self, node: Node) -> Node:
        if node not in self.before:
            room = Buffer(node.shape, node.dtype, name=f"ahead{len(self.before)}")
            self.before[node] = buffer(room)
        return self.before[node]


def _resized(shape: Shape, axis: int | None, rows: int) -> Shape:
    return tuple(rows if a == axis else n for a, n in enumerate(shape))


def _is_costly(index: Node) -> bool:
    return any(n.op in (Op.HASH, Op.GATHER) for n in toposort([index]))


def _last_stride(node: Node) -> int:
    return access(node).views[0].strides[-1]


# --- partial sums ---


class _Sums:
    """Where each ACC value's partial sums lie: a row of one Buffer for each group.

    A concatenation of ACC values, such as the gradient of a flat Tensor of parameters, lies
    there in its own order, so that its total is one sum.
    """

    def __init__(self, sums: Sequence[Node], after: Sequence[Node], groups: int) -> None:
        self.groups, self.begin = groups, dict[Node, int]()
        self.spans: dict[Node, tuple[int, int]] = {}
        end = 0
        for node in [n for n in after if n.op is Op.CONCAT and len(n.shape) == 1] + list(sums):
            parts = [_unshaped(s) for s in node.src] if node.op is Op.CONCAT else [node]
            fresh = len(set(parts)) == len(parts) and not any(p in self.begin for p in parts)
            if not fresh or not all(p in sums and p.dtype is node.dtype for p in parts):
                continue
            begin = end
            for p in parts:
                self.begin[p], end = end, end + p.size
            self.spans[node] = (begin, end)
            end = -(-end // ALIGN) * ALIGN
        dtypes = dict.fromkeys(s.dtype for s in sums)
        self.buffers = {d: Buffer((groups, end), d, name="partial_sums") for d in dtypes}

    def room(self, node: Node) -> Node:
        """The running group's partial sum of an ACC Node."""
        whole = part(buffer(self.buffers[node.dtype]), "group", self.groups)
        begin = self.begin[node]
        row = move(Op.SHRINK, whole, ((0, 1), (begin, begin + node.size)))
        return move(Op.RESHAPE, row, node.shape)

    def totals(self) -> dict[Node, Node]:
        """Each ACC value, and each concatenation of them, as the sum over all groups."""
        alone = {n: (begin, begin + n.size) for n, begin in self.begin.items()}
        return {n: self._total(n, *span) for n, span in (alone | self.spans).items()}

    def _total(self, node: Node, begin: int, end: int) -> Node:
        partial = buffer(self.buffers[node.dtype])
        rows = move(Op.SHRINK, partial, ((0, self.groups), (begin, end)))
        if self.groups > FEW_PARTS:
            axes = (0,) if node.shape else (0, 1)
            return move(Op.RESHAPE, reduce(Op.SUM, rows, axes), node.shape)
        parts = [
            move(Op.RESHAPE, move(Op.SHRINK, rows, ((g, g + 1), (0, end - begin))), node.shape)
            for g in range(self.groups)
        ]
        return functools.reduce(Node.__add__, parts)

    def clear(self) -> list[Kernel]:
        """Kernels that set the running group's partial sums to zero."""
        kernels = []
        for dtype, room in self.buffers.items():
            place = part(buffer(room), "group", self.groups)
            zero = Store(place, const(0, dtype, place.shape))
            kernels.append(Kernel("clear", place.shape, (zero,), None))
        return kernels


def _unshaped(node: Node) -> Node:
    while node.op is Op.RESHAPE:
        node = node.src[0]
    return node


# --- the whole step ---


def program(
    updates: Sequence[Update],
    lanes: Lanes,
    units: int,
    tile_rows: int = TILE_ROWS,
    multiply: Multiply = "float32",
) -> Procedure:
    """The launches of a step for a device of so many units, most of it in one Block if it pays.

    Its tiles have `tile_rows` rows at most.

    The Procedure's note says what became of it and why.
    """
    split = lanes == "group"
    general = schedule(updates, split)
    launches = len(general.kernels)
    nodes = toposort(value for _, value in updates)
    if launches <= LEAST_SAVED + 1:
        return replace(general, note=f"no block: {launches} launches are few")
    if any(n.op in CONTROL for n in nodes):
        return replace(general, note="no block: the step has loops or choices")
    kinds = best(nodes, {s for s, _ in updates})
    if kinds is not None and kinds.rows() < FEW_ROWS:
        return replace(general, note=f"no block: {kinds.rows()} rows are few")
    how = lanes, multiply, units, tile_rows
    plan = None if kinds is None else _Plan(updates, nodes, kinds, *how)
    if plan is None or plan.block is None:
        return replace(general, note="no block: no value has rows of its own")
    before = schedule([(n.arg, value) for value, n in plan.tile.before.items()], split)
    ahead = (*before.items, *plan.tile.head.before())
    after = schedule(plan.after, split)
    found = Procedure((*ahead, plan.block, *after.items), plan.note)
    if len(found.kernels) + LEAST_SAVED > launches:
        why = f"a block would leave {len(found.kernels)} of {launches} launches"
        return replace(general, note=f"no block: {why}")
    return found


class _Plan:
    """What goes into the block and what comes after it."""

    def __init__(
        self, updates: Sequence[Update], nodes: Sequence[Node], kinds: Kinds,
        lanes: Lanes, multiply: Multiply, units: int, tile_rows: int,
    ) -> None:  # fmt: skip
        self.updates, self.nodes, self.kinds = updates, nodes, kinds
        self.lanes, self.multiply = lanes, multiply
        self.block: Block | None = None
        roots = {value for _, value in updates}
        after = [n for n in nodes if kinds.of[n] is Kind.AFTER]
        wanted = roots | {s for n in after for s in n.src}
        self.sums = [n for n in nodes if kinds.of[n] is Kind.ACC and n in wanted]
        self.rows = [n for n in nodes if kinds.of[n] is Kind.ROW and n in wanted and n.src]
        if not self.sums and not self.rows:
            return
        batch = kinds.rows()
        rows = min(tile_rows, MOST_ROWS[lanes])
        while rows > LEAST_ROWS[lanes] and batch < rows * units:
            rows //= 2
        rows = min(rows, batch)
        while True:
            cut = self._cut(batch, rows, units)
            kernels = self._scheduled(cut, after)
            if rows == 1 or self._room(kernels) <= ROOM[lanes]:
                break
            rows //= 2
        if multiply == "split":
            cut, kernels = self._nearer(cut, kernels, units, after)
        cleared = self.partial.clear() if cut.tiles > cut.groups else []
        head = (*cleared, *self.ready, *self.tile.head.kernels())
        self.block = Block("block", cut.tiles, cut.rows, cut.groups, head, tuple(kernels))
        self.note = self._told(cut, after)

    def _cut(self, batch: int, rows: int, units: int) -> _Cut:
        """How the batch is cut. On matrix units groups that have one tile each keep no sums from
        tile to tile, so more of them run at a time."""
        most = units * GROUPS_A_UNIT[self.lanes]
        if self.multiply in FACTORS and self.sums and -(-batch // rows) > most:
            most = units * GROUPS_ON_MATRIX_UNITS
        return _cut(batch, rows, most)

    def _nearer(
        self, cut: _Cut, kernels: list[Kernel], units: int, after: Sequence[Node]
    ) -> tuple[_Cut, list[Kernel]]:
        """The same with the most rows whose values local memory holds; if none are, as it is."""
        rows = cut.rows
        while not is_near(kernels) and rows // 2 >= LEAST_NEAR:
            rows //= 2
            fewer = self._cut(cut.batch, rows, units)
            found = self._scheduled(fewer, after)
            if is_near(found):
                return fewer, found
        return cut, kernels if rows == cut.rows else self._scheduled(cut, after)

    def _scheduled(self, cut: _Cut, after: Sequence[Node]) -> list[Kernel]:
        """The kernels of one tile; sets what comes before and after for this cut."""
        self.tile = _Tile(self.kinds, cut, self.lanes)
        self.partial = _Sums(self.sums, after, cut.groups)
        given = {self.tile.value(n): self.partial.room(n) for n in self.sums}
        self.finished: dict[Node, Node] = {}  # ROW values with all rows, in memory
        self.direct: set[Buffer] = set()  # states that the block itself fills
        for node in self.rows:
            self._finish(node, cut, given)
        kernels, self.ready = _kernels(given, cut.groups, self.lanes, self.multiply)
        targets = set(self.partial.buffers.values())
        replaced = self.partial.totals() | self.finished
        heavy = {v: b for v, b in self.tile.before.items() if v.op not in MOVEMENT}
        left = [(s, v) for s, v in self.updates if s not in self.direct]
        values = substitute([v for _, v in left], replaced | heavy)
        updates = [(s, v) for (s, _), v in zip(left, values, strict=True)]
        self.after = self.tile.head.set_aside(updates, bool(self.tile.before))
        if cut.tiles == cut.groups:  # what the only tile of a group leaves is its sum
            return kernels
        return [_adding(k, targets) for k in kernels]

    def _room(self, kernels: Sequence[Kernel]) -> int:
        """Bytes of the values of one tile, which fewer rows make fewer."""
        found = {b for k in kernels for b in k.writes() if b.device is None}
        found = {b for b in found if not isinstance(b, LocalRoom)}
        rooms = found - set(self.partial.buffers.values())
        return sum(b.nbytes // b.shape[0] for b in rooms)

    def _finish(self, node: Node, cut: _Cut, given: dict[Node, Node]) -> None:
        """Give the tile's rows of a value that is needed as a whole a place in memory."""
        axis = self.kinds.axis(node, len(node.shape))
        assert axis is not None
        order = (axis, *(a for a in range(len(node.shape)) if a != axis))
        rows = move(Op.PERMUTE, self.tile.value(node), order)
        if rows not in given:
            room = self._free_state(node, cut) if axis == 0 else None
            if room is not None:
                self.direct.add(room)
            shape = (cut.rows * cut.tiles, *rows.shape[1:])
            room = room or Buffer(shape, node.dtype, name=f"rows{len(self.finished)}")
            given[rows] = part(move(Op.RESHAPE, buffer(room), shape), "tile", cut.tiles)
        full = ((0, cut.batch), *((0, n) for n in rows.shape[1:]))
        back = tuple(order.index(a) for a in range(len(order)))
        whole = move(Op.PERMUTE, move(Op.SHRINK, given[rows].src[0], full), back)
        self.finished[node] = whole

    def _free_state(self, node: Node, cut: _Cut) -> Buffer | None:
        """A state that takes this value, in any shape, and whose old value nobody reads."""
        read = {n.arg for n in self.nodes if n.op is Op.BUFFER}
        takes = [s for s, v in self.updates if node in (v, v.op is Op.RESHAPE and v.src[0])]
        states = [s for s in takes if s not in read]
        return states[0] if states and cut.even else None

    def _told(self, cut: _Cut, after: Sequence[Node]) -> str:
        assert self.block is not None
        taken = f"{cut.batch} rows in {cut.tiles} tiles of {cut.rows}, {cut.groups} groups"
        inside = f"{len(self.block.kernels)} kernels in one launch, {len(self.sums)} sums over rows"
        outside = [n for n in after if any(self.kinds.of[s] is Kind.ROW for s in n.src)]
        left = f"; {len(outside)} values need all rows at once" if outside else ""
        return f"block: {taken}; {inside}{left}"


def _cut(batch: int, rows: int, most_groups: int) -> _Cut:
    """Tiles of at most so many rows: equal ones if they can be, a like number for each group."""
    tiles = -(-batch // rows)
    groups = min(tiles, most_groups)
    if batch % rows or tiles < EVEN * groups:
        like = min(batch, -(-tiles // groups) * groups)
        fewer = -(-batch // like)
        if batch % rows or fewer <= WORTHWHILE * rows:
            rows, tiles = fewer, -(-batch // fewer)
    return _Cut(batch, rows, tiles, min(groups, tiles))


def _kernels(
    given: dict[Node, Node], groups: int, lanes: Lanes, multiply: Multiply
) -> tuple[list[Kernel], list[Kernel]]:
    """Kernels that fill the given places, intermediates in rooms of the group's own, and those
    that a group needs to run before."""
    rooms: dict[Buffer, Node] = {}
    places: dict[Buffer, Node] = {}

    def room(node: Node, name: str) -> Node:
        place = own_room(groups, node, name)
        rooms[storage(place)] = part(buffer(storage(place)), "group", groups)
        places[storage(place)] = place
        return place

    graph = Graph(list(given))
    drafts = graph.drafts(graph.places(given, room))
    lasting = {storage(place) for place in given.values()}
    drafts = fuse_rows(attach_sums(merge(drafts)), lasting)
    kernels = [freeze(d, i) for i, d in enumerate(ordered(drafts))]
    found = bring(kernels, rooms, places, multiply) if lanes == "group" else None
    return found or (share(kernels, rooms), [])


def is_near(kernels: Sequence[Kernel]) -> bool:
    """Whether factors of a tile's products lie in local memory, if there are any products."""
    cores = [k.core for k in kernels if k.core is not None and k.core.op is Op.DOT]
    factors = {storage(s) for core in cores for s in core.src}
    return not factors or any(isinstance(b, LocalRoom) for b in factors)


def _adding(kernel: Kernel, targets: set[Buffer]) -> Kernel:
    """Stores to partial sums add to what is there."""
    stores = tuple(replace(s, adds=s.target in targets) for s in kernel.stores)
    totals = tuple(replace(s, adds=s.target in targets) for s in kernel.totals)
    sums = kernel.sums and replace(kernel.sums, adds=kernel.sums.target in targets)
    return replace(kernel, stores=stores, totals=totals, sums=sums)
