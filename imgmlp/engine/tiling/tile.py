"""Tiling a batch: how it is cut into tiles of rows, and the graph of one tile.

In: the Nodes of a step and their Kinds. Out: the Nodes of one tile, which read its rows of inputs
and of values computed before the block, and the values that must be computed before.

`tile` and `group` are index variables: PART Nodes select the elements that belong to the running
tile or group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from imgmlp.engine.ir.graph import (
    Node,
    Shape,
    alu,
    const,
    contiguous,
    gather,
    iota,
    make,
    move,
    part,
    rebuild,
    substitute,
    toposort,
)
from imgmlp.engine.ir.kernel import access
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.target import Lanes
from imgmlp.engine.passes.materialize import Graph, is_strided_view, whole_buffer
from imgmlp.engine.tiling.batch_axis import BatchKinds, Kind
from imgmlp.engine.tiling.batch_last import (
    TRANSPOSE,
    computed_transposed,
    is_rows_by_columns,
    transposed,
)
from imgmlp.engine.tiling.prologue import ALIGNMENT_ELEMENTS, Prologue, is_available, is_cheap
from imgmlp.engine.tiling.tile_skipping import split_condition

# Tiles of each group from which it matters little if some groups have one tile more than others.
MIN_TILES_TO_LEAVE_UNEVEN = 4
# Tiles are made smaller, to give each group the same number, only if they then have at most this
# fraction of their rows. A smaller saving does not pay for tiles that do not divide the batch.
MAX_ROW_FRACTION = 7 / 8


@dataclass(frozen=True)
class Tiling:
    """How a batch is cut into tiles, and how many work-groups share them."""

    batch: int  # rows of the batch
    rows: int  # rows of each tile
    tiles: int
    groups: int

    @property
    def even(self) -> bool:
        """Whether the tiles cover the rows of the batch and none beyond."""
        return self.rows * self.tiles == self.batch


class Tile:
    """The graph of one tile: the values of a step for the rows of the running tile.

    With `batch_last`, inputs whose last axis is the batch, values of two axes are computed
    transposed as well (batch_last.py). With `skips_tiles`, `conditions` has for some ACC values the
    bool without which the tile adds nothing to them (tile_skipping.py). `computed_before` collects
    the values that must be computed before the block, and their places.
    """

    def __init__(
        self,
        kinds: BatchKinds,
        tiling: Tiling,
        lanes: Lanes,
        batch_last: Set[Node] = frozenset(),
        skips_tiles: bool = False,
    ) -> None:
        self.kinds, self.tiling, self.lanes, self.batch_last = kinds, tiling, lanes, batch_last
        self.skips_tiles = skips_tiles and tiling.even
        self.conditions: dict[Node, Node] = {}
        self.computed_before: dict[Node, Node] = {}
        self.prologue = Prologue(tiling.groups)
        self.values: dict[Node, Node] = {}
        self.availability: dict[Node, bool] = {}  # cache of `is_available`
        row = part(iota(tiling.rows * tiling.tiles), "tile", tiling.tiles)
        limit = const(tiling.batch, row.dtype, row.shape)
        self.exists = row < limit
        highest = const(tiling.batch - 1, row.dtype, row.shape)
        self.row = row if tiling.even else alu(Op.WHERE, self.exists, row, highest)

    def value(self, node: Node) -> Node:
        """The tile's value of a ROW Node, or what the tile adds to an ACC one."""
        stack: list[tuple[Node, list[Node]]] = [(node, [])]
        while stack:
            n, src = stack.pop()
            if n in self.values:
                continue
            leaf = n.op is Op.BUFFER or n in self.kinds.read_from_whole
            wanted = None if leaf else self._gather_sources(n, src)
            if wanted is None:
                self.values[n] = self._rows_of(n) if leaf else self._computed(n, tuple(src))
            else:
                stack += [(n, src), (wanted, [])]
        return self.values[node]

    def _gather_sources(self, node: Node, src: list[Node]) -> Node | None:
        """Append a Node's sources to `src` until one has no value yet: that one, or None."""
        for slot in range(len(src), len(node.src)):
            source, kind = node.src[slot], self.kinds.source_kind(node, slot)
            rows = kind is not Kind.WHOLE and source.op not in (Op.CONST, Op.IOTA)
            if rows and source not in self.values:
                return source
            src.append(self._source(node, slot))
        return None

    def read_stored(self, values: Sequence[Node], replaced: Mapping[Node, Node]) -> list[Node]:
        """The values computed after the block, reading those that are stored before it.

        Intermediates stored on the way to values before the block are stored for these as well.
        """
        places = {v: p for v, p in self.computed_before.items() if v.op not in MOVEMENT}
        after = substitute(values, {**replaced, **places})
        stored = {n for n in Graph(list(self.computed_before)).materialized if n.op not in MOVEMENT}
        needed = toposort(after, lambda n: () if n in stored else n.src)
        for node in needed:
            if node in stored:
                places[node] = self._compute_before(node)
        return substitute(values, {**replaced, **places})

    def _rows_of(self, leaf: Node) -> Node:
        axis, factor = self.kinds.axis(leaf, len(leaf.shape)), leaf in self.batch_last
        if leaf.op is not Op.BUFFER:
            leaf = self._whole(leaf)
        if axis == 0 and self.tiling.even and _is_all_of_a_buffer(leaf):
            return part(leaf, "tile", self.tiling.tiles)
        assert axis is not None
        order = (axis, *(a for a in range(len(leaf.shape)) if a != axis))
        rows = gather(move(Op.PERMUTE, leaf, order), self.row)
        reordered = move(Op.PERMUTE, rows, tuple(order.index(a) for a in range(len(order))))
        return contiguous(reordered) if factor else reordered

    def _computed(self, node: Node, src: tuple[Node, ...]) -> Node:
        axis = self.kinds.axis(node, len(node.shape))
        if axis is None and not self.tiling.even:
            src = (*src[:-1], self._masked(src[-1], self.kinds.source_axis(node, len(src) - 1)))
        if axis is None and self.skips_tiles:
            src = self._split_conditions(node, src)
        if node.op is Op.GATHER and self.lanes == "group" and _is_costly(src[1]):
            src = (src[0], contiguous(src[1]))  # computed once, not for each element of a row
        if node.op is Op.SUM and self.lanes == "one" and _has_slow_function(src[0]):
            src = (contiguous(src[0]),)  # computed by the kernel of its own sources
        shape, arg = _resized(node.shape, axis, self.tiling.rows), node.arg
        if node.op in (Op.RESHAPE, Op.EXPAND):
            arg = shape
        elif node.op is Op.SHRINK and axis is not None:
            arg = tuple((0, self.tiling.rows) if a == axis else r for a, r in enumerate(arg))
        if self.batch_last and node.op is Op.PERMUTE and arg == TRANSPOSE:
            return transposed(src[0])
        computed = make(node.op, src, arg, shape, node.dtype)
        return (
            computed_transposed(computed)
            if self.batch_last and is_rows_by_columns(node, self.kinds)
            else computed
        )

    def _split_conditions(self, node: Node, src: tuple[Node, ...]) -> tuple[Node, ...]:
        """The sources of an ACC value without the condition on its terms, which is noted."""
        for slot, terms in enumerate(src):
            if split := split_condition(terms):
                self.conditions[node], terms = split
                return (*src[:slot], terms, *src[slot + 1 :])
        return src

    def _source(self, node: Node, slot: int) -> Node:
        source = node.src[slot]
        if self.kinds.source_kind(node, slot) is Kind.WHOLE:
            return self._factor(source) if node.op is Op.DOT and slot == 1 else self._whole(source)
        if source.op is Op.CONST:
            axis = self.kinds.source_axis(node, slot)
            return const(source.arg, source.dtype, _resized(source.shape, axis, self.tiling.rows))
        return self.row if source.op is Op.IOTA else self.values[source]

    def _masked(self, terms: Node, axis: int | None) -> Node:
        """Terms of a sum over rows, with zeros for rows of the last tile beyond the batch."""
        ones = tuple(n if a == axis else 1 for a, n in enumerate(terms.shape))
        exists = move(Op.EXPAND, move(Op.RESHAPE, self.exists, ones), terms.shape)
        return alu(Op.WHERE, exists, terms, const(0, terms.dtype, terms.shape))

    def _factor(self, node: Node) -> Node:
        """The right factor of a product, copied if its rows are not contiguous."""
        if self.batch_last:  # transposed products have it on the left
            return self._whole(node)
        strided = (
            self.lanes == "one"
            and node.op is not Op.BUFFER
            and node.shape[-1] >= ALIGNMENT_ELEMENTS
        )
        if strided and is_strided_view(node) and _last_stride(node) != 1:
            return self.prologue.copy(node) or self._compute_before(node)
        return self._whole(node)

    def _whole(self, node: Node) -> Node:
        done: dict[Node, Node] = {}
        stack = [node]
        while stack:
            n = stack[-1]
            missing = [s for s in n.src if s not in done]
            if is_available(n, self.availability):
                done[n] = n
            elif not is_cheap(n):
                done[n] = self._compute_before(n)
            elif missing:
                stack += reversed(missing)
                continue
            else:
                done[n] = rebuild(n, tuple(done[s] for s in n.src))
            stack.pop()
        return done[node]

    def _compute_before(self, node: Node) -> Node:
        if node not in self.computed_before:
            self.computed_before[node] = whole_buffer(node, f"ahead{len(self.computed_before)}")
        return self.computed_before[node]


def _is_all_of_a_buffer(node: Node) -> bool:
    return node.op is Op.BUFFER or (node.op is Op.RESHAPE and node.src[0].op is Op.BUFFER)


def _resized(shape: Shape, axis: int | None, rows: int) -> Shape:
    return tuple(rows if a == axis else n for a, n in enumerate(shape))


def _is_costly(index: Node) -> bool:
    return any(n.op in (Op.HASH, Op.GATHER) for n in toposort([index]))


def _has_slow_function(term: Node) -> bool:
    """Whether an expression calls a function that would slow down the loop of a sum."""
    within = toposort([term], lambda n: n.src if n.op in ELEMENTWISE else ())
    return any(n.op in (Op.LOG2, Op.EXP2) for n in within)


def _last_stride(node: Node) -> int:
    return access(node).views[0].strides[-1]


def tile_batch(batch: int, rows: int, most_groups: int) -> Tiling:
    """Tiles of at most `rows` rows, of equal size and equally many for each group if possible."""
    tiles = -(-batch // rows)
    groups = min(tiles, most_groups)
    if batch % rows or tiles < MIN_TILES_TO_LEAVE_UNEVEN * groups:
        balanced_tiles = min(batch, -(-tiles // groups) * groups)
        balanced_rows = -(-batch // balanced_tiles)
        if batch % rows or balanced_rows <= MAX_ROW_FRACTION * rows:
            rows, tiles = balanced_rows, -(-batch // balanced_rows)
    return Tiling(batch, rows, tiles, min(groups, tiles))
