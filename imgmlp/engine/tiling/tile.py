"""A tile of rows: how a batch is cut into them, and the graph of one."""

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
from imgmlp.engine.tiling.batch_axis import Kind, Kinds
from imgmlp.engine.tiling.batch_last import TURNED, computed_transposed, of_rows, transposed
from imgmlp.engine.tiling.left_out import chosen
from imgmlp.engine.tiling.prologue import ALIGN, Prologue, at_hand, is_light

EVEN = 4  # tiles of each group from which one more or less matters little
WORTHWHILE = 7 / 8  # of a tile's rows: more of them save nothing that pays for uneven tiles


@dataclass(frozen=True)
class Cut:
    """How a batch is cut."""

    batch: int
    rows: int
    tiles: int
    groups: int

    @property
    def even(self) -> bool:
        """Whether the tiles have just the rows of the batch, none beyond."""
        return self.rows * self.tiles == self.batch


class Tile:
    """The same values for one tile of rows; `before` collects what must be computed first.

    With `last`, factors whose last axis is the batch, values of two axes are computed so too. If it
    `chooses`, what is added to an ACC value is a bool's matter in `when` for some of them.
    """

    def __init__(
        self,
        kinds: Kinds,
        cut: Cut,
        lanes: Lanes,
        last: Set[Node] = frozenset(),
        chooses: bool = False,
    ) -> None:
        self.kinds, self.cut, self.lanes, self.last = kinds, cut, lanes, last
        self.chooses = chooses and cut.even
        self.when: dict[Node, Node] = {}
        self.before: dict[Node, Node] = {}
        self.prologue = Prologue(cut.groups)
        self.done: dict[Node, Node] = {}
        self.hand: dict[Node, bool] = {}  # what has been found to be at hand, or not to be
        row = part(iota(cut.rows * cut.tiles), "tile", cut.tiles)
        limit = const(cut.batch, row.dtype, row.shape)
        self.exists = row < limit
        highest = const(cut.batch - 1, row.dtype, row.shape)
        self.row = row if cut.even else alu(Op.WHERE, self.exists, row, highest)

    def value(self, node: Node) -> Node:
        """The tile's value of a ROW Node, or what the tile adds to an ACC one."""
        stack: list[tuple[Node, list[Node]]] = [(node, [])]
        while stack:
            n, src = stack.pop()
            if n in self.done:
                continue
            leaf = n.op is Op.BUFFER or n in self.kinds.ahead
            wanted = None if leaf else self._gather_sources(n, src)
            if wanted is None:
                self.done[n] = self._rows_of(n) if leaf else self._computed(n, tuple(src))
            else:
                stack += [(n, src), (wanted, [])]
        return self.done[node]

    def _gather_sources(self, node: Node, src: list[Node]) -> Node | None:
        """Add to a Node's sources what the tile has of them; the first row that it has not yet."""
        for slot in range(len(src), len(node.src)):
            source, kind = node.src[slot], self.kinds.source(node, slot)
            rows = kind is not Kind.WHOLE and source.op not in (Op.CONST, Op.IOTA)
            if rows and source not in self.done:
                return source
            src.append(self._source(node, slot))
        return None

    def read_ahead(self, values: Sequence[Node], replaced: Mapping[Node, Node]) -> list[Node]:
        """What follows the block, reading what stands in memory before it.

        What is stored on the way to that is stored for those as well who need it afterwards.
        """
        ahead = {v: b for v, b in self.before.items() if v.op not in MOVEMENT}
        found = substitute(values, {**replaced, **ahead})
        stored = {n for n in Graph(list(self.before)).materialized if n.op not in MOVEMENT}
        needed = toposort(found, lambda n: () if n in stored else n.src)  # nothing inside of these
        for node in needed:
            if node in stored:
                ahead[node] = self._ahead(node)
        return substitute(values, {**replaced, **ahead})

    def _rows_of(self, leaf: Node) -> Node:
        axis, factor = self.kinds.axis(leaf, len(leaf.shape)), leaf in self.last
        if leaf.op is not Op.BUFFER:
            leaf = self._whole(leaf)
        if axis == 0 and self.cut.even and _is_all_of_a_buffer(leaf):
            return part(leaf, "tile", self.cut.tiles)
        assert axis is not None
        order = (axis, *(a for a in range(len(leaf.shape)) if a != axis))
        rows = gather(move(Op.PERMUTE, leaf, order), self.row)
        found = move(Op.PERMUTE, rows, tuple(order.index(a) for a in range(len(order))))
        return contiguous(found) if factor else found

    def _computed(self, node: Node, src: tuple[Node, ...]) -> Node:
        axis = self.kinds.axis(node, len(node.shape))
        if axis is None and not self.cut.even:
            src = (*src[:-1], self._masked(src[-1], self.kinds.source_axis(node, len(src) - 1)))
        if axis is None and self.chooses:
            src = self._chosen(node, src)
        if node.op is Op.GATHER and self.lanes == "group" and _is_costly(src[1]):
            src = (src[0], contiguous(src[1]))  # not once for each element of a row
        if node.op is Op.SUM and self.lanes == "one" and _calls(src[0]):
            src = (contiguous(src[0]),)  # by the kernel that has most of it anyway
        shape, arg = _resized(node.shape, axis, self.cut.rows), node.arg
        if node.op in (Op.RESHAPE, Op.EXPAND):
            arg = shape
        elif node.op is Op.SHRINK and axis is not None:
            arg = tuple((0, self.cut.rows) if a == axis else r for a, r in enumerate(arg))
        if self.last and node.op is Op.PERMUTE and arg == TURNED:
            return transposed(src[0])
        found = make(node.op, src, arg, shape, node.dtype)
        return computed_transposed(found) if self.last and of_rows(node, self.kinds) else found

    def _chosen(self, node: Node, src: tuple[Node, ...]) -> tuple[Node, ...]:
        """What an ACC value sums where the bool holds that says whether the tile adds to it."""
        for slot, terms in enumerate(src):
            if found := chosen(terms):
                self.when[node], terms = found
                return (*src[:slot], terms, *src[slot + 1 :])
        return src

    def _source(self, node: Node, slot: int) -> Node:
        source = node.src[slot]
        if self.kinds.source(node, slot) is Kind.WHOLE:
            return self._factor(source) if node.op is Op.DOT and slot == 1 else self._whole(source)
        if source.op is Op.CONST:
            axis = self.kinds.source_axis(node, slot)
            return const(source.arg, source.dtype, _resized(source.shape, axis, self.cut.rows))
        return self.row if source.op is Op.IOTA else self.done[source]

    def _masked(self, terms: Node, axis: int | None) -> Node:
        """Terms of a sum over rows, zero where the last tile has rows beyond the batch."""
        ones = tuple(n if a == axis else 1 for a, n in enumerate(terms.shape))
        exists = move(Op.EXPAND, move(Op.RESHAPE, self.exists, ones), terms.shape)
        return alu(Op.WHERE, exists, terms, const(0, terms.dtype, terms.shape))

    def _factor(self, node: Node) -> Node:
        """A right factor, copied if its neighbours along a row do not lie together."""
        if self.last:  # a left one then
            return self._whole(node)
        strided = self.lanes == "one" and node.op is not Op.BUFFER and node.shape[-1] >= ALIGN
        if strided and is_strided_view(node) and _last_stride(node) != 1:
            return self.prologue.copy(node) or self._ahead(node)
        return self._whole(node)

    def _whole(self, node: Node) -> Node:
        done: dict[Node, Node] = {}
        stack = [node]
        while stack:
            n = stack[-1]
            missing = [s for s in n.src if s not in done]
            if at_hand(n, self.hand):
                done[n] = n
            elif not is_light(n):
                done[n] = self._ahead(n)
            elif missing:
                stack += reversed(missing)
                continue
            else:
                done[n] = rebuild(n, tuple(done[s] for s in n.src))
            stack.pop()
        return done[node]

    def _ahead(self, node: Node) -> Node:
        if node not in self.before:
            self.before[node] = whole_buffer(node, f"ahead{len(self.before)}")
        return self.before[node]


def _is_all_of_a_buffer(node: Node) -> bool:
    return node.op is Op.BUFFER or (node.op is Op.RESHAPE and node.src[0].op is Op.BUFFER)


def _resized(shape: Shape, axis: int | None, rows: int) -> Shape:
    return tuple(rows if a == axis else n for a, n in enumerate(shape))


def _is_costly(index: Node) -> bool:
    return any(n.op in (Op.HASH, Op.GATHER) for n in toposort([index]))


def _calls(term: Node) -> bool:
    """Whether an expression has a function that a sum's loop had better not."""
    within = toposort([term], lambda n: n.src if n.op in ELEMENTWISE else ())
    return any(n.op in (Op.LOG2, Op.EXP2) for n in within)


def _last_stride(node: Node) -> int:
    return access(node).views[0].strides[-1]


def cut_batch(batch: int, rows: int, most_groups: int) -> Cut:
    """Tiles of at most so many rows: equal ones if they can be, a like number for each group."""
    tiles = -(-batch // rows)
    groups = min(tiles, most_groups)
    if batch % rows or tiles < EVEN * groups:
        like = min(batch, -(-tiles // groups) * groups)
        fewer = -(-batch // like)
        if batch % rows or fewer <= WORTHWHILE * rows:
            rows, tiles = fewer, -(-batch // fewer)
    return Cut(batch, rows, tiles, min(groups, tiles))
