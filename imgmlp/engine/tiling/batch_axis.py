"""Which axis of a step is its batch, and what each value is relative to it.

In: the Nodes of a step. Out: the batch axis, and a Kind for each Node.

The batch is one class of axes of the graph: axes that run over the same things, as operations keep
them. Relative to it a value is

- ROW: it has that axis, and each row is computed from the same row of other values;
- WHOLE: it does not have it, and depends on nothing that does;
- ACC: it is a sum over that axis;
- AFTER: anything else, computed from finished sums or from all rows at once.

The batch chosen is the class along which most operations run in ROW and ACC values. Nothing here
may know of tiles, work-groups or kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

from imgmlp.engine.ir.graph import Buffer, Node, Shape
from imgmlp.engine.ir.kernel import CORE_OPS
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op

MAX_CANDIDATE_AXES = 4  # classes of axes for which all values are classified

# (owner, number of the axis). The owner is a Node, or one use of a constant: (user, slot).
Axis = tuple[Any, int]


class Kind(Enum):
    """What a value is relative to the batch; the module's docstring says which is which."""

    ROW = auto()
    WHOLE = auto()
    ACC = auto()
    AFTER = auto()


ROW_KINDS = Kind.ROW, Kind.ACC  # the values that a block computes


# --- which axes are the same ---


def _axis_links(node: Node) -> Iterator[tuple[int, int, int]]:
    """(slot, axis of that source, axis of the Node) for axes that run over the same things."""
    match node.op:
        case op if op in ELEMENTWISE or op is Op.CONTIGUOUS:
            yield from ((s, a, a) for s in range(len(node.src)) for a in range(len(node.shape)))
        case Op.RESHAPE:
            yield from ((0, a, b) for a, b in _unchanged_axes(node.src[0].shape, node.shape))
        case Op.EXPAND:
            sizes = zip(node.src[0].shape, node.shape, strict=True)
            yield from ((0, a, a) for a, (n, m) in enumerate(sizes) if n == m)
        case Op.PERMUTE:
            yield from ((0, a, b) for b, a in enumerate(node.arg))
        case Op.SHRINK | Op.PAD | Op.STRIDE:
            moved = enumerate(zip(node.src[0].shape, node.arg, strict=True))
            yield from ((0, a, a) for a, (n, arg) in moved if arg == _identity_argument(node.op, n))
        case op if op in REDUCE:
            kept = (a for a in range(len(node.src[0].shape)) if a not in node.arg)
            yield from ((0, a, b) for b, a in enumerate(kept))
        case Op.DOT:
            last = len(node.shape) - 1
            yield from ((s, a, a) for s in (0, 1) for a in range(last - 1))
            yield from ((0, last - 1, last - 1), (1, last, last))
        case Op.GATHER:
            rank = len(node.src[1].shape)
            yield from ((1, a, a) for a in range(rank))
            yield from ((0, a, rank + a - 1) for a in range(1, len(node.src[0].shape)))
        case Op.CONCAT:
            others = [a for a in range(len(node.shape)) if a != node.arg]
            yield from ((s, a, a) for s in range(len(node.src)) for a in others)


def _identity_argument(movement: Op, size: int) -> Any:
    """The argument of a movement that leaves an axis of some size unchanged."""
    return (0, size) if movement is Op.SHRINK else (0, 0) if movement is Op.PAD else 1


def _unchanged_axes(old: Shape, new: Shape) -> Iterator[tuple[int, int]]:
    """Pairs (old, new) of axes of more than one element that a reshape leaves unchanged."""
    ends = {math.prod(old[: a + 1]): a for a, n in enumerate(old) if n > 1}
    for b, n in enumerate(new):
        a = ends.get(math.prod(new[: b + 1]))
        if n > 1 and a is not None and old[a] == n:
            yield a, b


class Axes:
    """Classes of axes that run over the same things, as a union-find forest."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.parent: dict[Axis, Axis] = {}
        self.links = {node: tuple(_axis_links(node)) for node in nodes}
        self._classes: dict[Any, tuple[Axis, ...]] = {}
        for node in nodes:
            for slot, a, b in self.links[node]:
                self._join((_use(node, slot), a), (node, b))
            if node.op is Op.DOT:
                last = len(node.shape) - 1
                self._join((_use(node, 0), last), (_use(node, 1), last - 1))

    def find(self, axis: Axis) -> Axis:
        """The representative of an axis's class."""
        parent = self.parent
        while (above := parent.get(axis)) is not None:
            if (top := parent.get(above)) is None:
                return above
            parent[axis] = top  # path halving
            axis = top
        return axis

    def classes(self, who: Any, rank: int) -> tuple[Axis, ...]:
        """The representative of each axis of a Node, or of one use of a constant."""
        if who not in self._classes:
            self._classes[who] = tuple(self.find((who, a)) for a in range(rank))
        return self._classes[who]

    def _join(self, a: Axis, b: Axis) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[a] = b


def _use(node: Node, slot: int) -> Any:
    """The owner of a source's axes: the source, or this use of it if it is a constant or range.

    Equal constants are one Node, whose uses have nothing to do with each other.
    """
    source = node.src[slot]
    return (node, slot) if source.op in (Op.CONST, Op.IOTA) else source


def _operations(node: Node) -> int:
    """Elementary operations of a Node."""
    if node.op in MOVEMENT or not node.src:
        return 0
    return node.size * (node.src[0].shape[-1] if node.op is Op.DOT else 1)


def _axes_by_operations(nodes: Sequence[Node], axes: Axes) -> list[Axis]:
    """Classes of axes, in order of the operations that run along them, most first."""
    operations: dict[Axis, int] = {}
    for node in nodes:
        uses = [(_use(node, s), len(n.shape)) for s, n in enumerate(node.src)]
        own = _operations(node)
        pairs = [(node, len(node.shape)), *uses] if own else []
        for axis in {axis for who, rank in pairs for axis in axes.classes(who, rank)}:
            operations[axis] = operations.get(axis, 0) + own
    return sorted(operations, key=lambda a: -operations[a])


def choose_batch(
    nodes: Sequence[Node], states: set[Buffer], product_operations: int = 0
) -> BatchKinds | None:
    """Kinds relative to the best batch axis, or None if there is no candidate.

    It is the axis whose ROW and ACC values take most operations, and among equals the longest. With
    `products` it is the longest axis whose ROW and ACC products take that many operations. Axes of
    `states` that the step changes are excluded: parameters are no rows.
    """
    if sum(_operations(n) for n in nodes if n.op is Op.DOT) < product_operations:
        return None
    axes = Axes(nodes)
    changed = [n for n in nodes if n.op is Op.BUFFER and n.arg in states]
    parameters = {axes.find((n, a)) for n in changed for a in range(len(n.shape))}
    wanted = [axis for axis in _axes_by_operations(nodes, axes) if axis not in parameters]
    candidates = [BatchKinds(nodes, axes, batch) for batch in wanted[:MAX_CANDIDATE_AXES]]
    if product_operations:
        candidates = [k for k in candidates if k.product_operations() >= product_operations]
        return max(candidates, key=lambda k: (k.batch_size(), k.row_operations()), default=None)
    return max(candidates, key=lambda k: (k.row_operations(), k.batch_size()), default=None)


# --- what each value is ---


class BatchKinds:
    """The Kind of every Node relative to one class of axes."""

    def __init__(self, nodes: Sequence[Node], axes: Axes, batch: Axis) -> None:
        self.axes, self.batch = axes, batch
        self.of: dict[Node, Kind] = {}
        # ROW values that are read as rows of a value computed before the block.
        self.read_from_whole: set[Node] = set()
        # ROW values without reductions or products below them.
        self.cheap: set[Node] = set()
        for node in nodes:
            self.of[node] = self._kind(node)

    def row_operations(self) -> int:
        """Operations of ROW and ACC values."""
        return sum(_operations(n) for n, k in self.of.items() if k in ROW_KINDS)

    def product_operations(self) -> int:
        """Operations of ROW and ACC products."""
        return sum(_operations(n) for n, k in self.of.items() if k in ROW_KINDS and n.op is Op.DOT)

    def other_product_operations(self) -> int:
        """Operations of all other products."""
        return sum(
            _operations(n) for n, k in self.of.items() if k not in ROW_KINDS and n.op is Op.DOT
        )

    def batch_size(self) -> int:
        """The number of rows in the batch."""
        for node, kind in self.of.items():
            if kind is Kind.ROW:
                axis = self.axis(node, len(node.shape))
                assert axis is not None
                return node.shape[axis]
        return 0

    def axis(self, who: Any, rank: int) -> int | None:
        """The batch axis of a Node or use of `rank` axes; None if it has none, -1 if several."""
        classes = self.axes.classes(who, rank)
        count = classes.count(self.batch)
        return None if not count else classes.index(self.batch) if count == 1 else -1

    def source_axis(self, node: Node, slot: int) -> int | None:
        """The batch axis of a source as this Node uses it; None or -1 as for `axis`."""
        return self.axis(_use(node, slot), len(node.src[slot].shape))

    def source_kind(self, node: Node, slot: int) -> Kind:
        """The kind of a source; that of a constant or a range depends on this use of it."""
        if node.src[slot].op in (Op.CONST, Op.IOTA):
            return Kind.WHOLE if self.source_axis(node, slot) is None else Kind.ROW
        return self.of[node.src[slot]]

    def computable_in_another_block(self, nodes: Sequence[Node]) -> set[Node]:
        """AFTER Nodes that would be ROW or ACC if the AFTER values that they need were available.

        A second block computes them. It may recompute the ROW values that they need.
        """
        computable: set[Node] = set()
        for node in nodes:
            if self.of[node] is not Kind.AFTER:
                continue
            links, own = self.axes.links[node], self.axis(node, len(node.shape))
            axes = [self.source_axis(node, s) for s in range(len(node.src))]
            if own is None:
                is_row_or_sum = self._sums_rows(node)
            else:
                is_row_or_sum = own != -1 and all(
                    a is None or (s, a, own) in links for s, a in enumerate(axes)
                )
            if is_row_or_sum:
                computable.add(node)
        return computable

    def _kind(self, node: Node) -> Kind:
        kinds = [self.source_kind(node, s) for s in range(len(node.src))]
        own = self.axis(node, len(node.shape))
        if own == -1 or Kind.AFTER in kinds or Kind.ACC in kinds:
            return Kind.AFTER
        row_slots = [s for s, kind in enumerate(kinds) if kind is Kind.ROW]
        sources = [node.src[s] for s in row_slots]
        cheap = all(s in self.cheap or s.op in (Op.CONST, Op.IOTA) for s in sources)
        if own is not None:
            links = self.axes.links[node]
            by_row = all((s, self.source_axis(node, s), own) in links for s in row_slots)
            leaf = not node.src or (node.op is not Op.EXPAND if not row_slots else not by_row)
            if cheap and (leaf or node.op not in CORE_OPS):
                self.cheap.add(node)
            if cheap and leaf and node.src:
                self.read_from_whole.add(node)
            return Kind.ROW if by_row or cheap else Kind.AFTER
        if not row_slots:
            return Kind.WHOLE
        return Kind.ACC if self._sums_rows(node) else Kind.WHOLE if cheap else Kind.AFTER

    def _sums_rows(self, node: Node) -> bool:
        if node.op is Op.SUM:
            return self.source_axis(node, 0) in node.arg
        last = len(node.src[0].shape) - 1
        ends = (self.source_axis(node, 0), self.source_axis(node, 1)) if node.op is Op.DOT else ()
        return ends == (last, last - 1)
