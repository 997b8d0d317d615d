"""What each value of a step is relative to its batch: the rule of the block program.

The batch is one axis of the graph, followed through all operations that keep it. Relative to it
a value is

- ROW: it has that axis, and each row is computed from the same row of others;
- WHOLE: it does not, and needs nothing that does;
- ACC: it sums over that axis;
- AFTER: anything else, computed from finished sums or from all rows at once.

Nothing here knows of tiles, groups or kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

from imgmlp.engine.ir.graph import Buffer, Node, Shape
from imgmlp.engine.ir.kernel import CORES
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op

CANDIDATES = 4  # classes of axes that are looked at

Axis = tuple[Any, int]  # of a Node, or of one use of a constant: (user, slot)


class Kind(Enum):
    """What a value is relative to the batch; the module's docstring says which is which."""

    ROW = auto()
    WHOLE = auto()
    ACC = auto()
    AFTER = auto()


OF_ROWS = Kind.ROW, Kind.ACC  # what a block computes


# --- which axes are the same ---


def _links(node: Node) -> Iterator[tuple[int, int, int]]:
    """(slot, axis of that source, axis of the Node) that run over the same things."""
    match node.op:
        case op if op in ELEMENTWISE or op is Op.CONTIGUOUS:
            yield from ((s, a, a) for s in range(len(node.src)) for a in range(len(node.shape)))
        case Op.RESHAPE:
            yield from ((0, a, b) for a, b in _unchanged(node.src[0].shape, node.shape))
        case Op.EXPAND:
            sizes = zip(node.src[0].shape, node.shape, strict=True)
            yield from ((0, a, a) for a, (n, m) in enumerate(sizes) if n == m)
        case Op.PERMUTE:
            yield from ((0, a, b) for b, a in enumerate(node.arg))
        case Op.SHRINK | Op.PAD | Op.STRIDE:
            moved = enumerate(zip(node.src[0].shape, node.arg, strict=True))
            yield from ((0, a, a) for a, (n, arg) in moved if arg == _none(node.op, n))
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


def _none(movement: Op, size: int) -> Any:
    """The argument with which a movement leaves an axis as it is."""
    return (0, size) if movement is Op.SHRINK else (0, 0) if movement is Op.PAD else 1


def _unchanged(old: Shape, new: Shape) -> Iterator[tuple[int, int]]:
    """Axes of more than one element that a reshape leaves as they are."""
    ends = {math.prod(old[: a + 1]): a for a, n in enumerate(old) if n > 1}
    for b, n in enumerate(new):
        a = ends.get(math.prod(new[: b + 1]))
        if n > 1 and a is not None and old[a] == n:
            yield a, b


class Axes:
    """Classes of axes that run over the same things (a union-find forest)."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.parent: dict[Axis, Axis] = {}
        self.links = {node: tuple(_links(node)) for node in nodes}
        self._classes: dict[Any, tuple[Axis, ...]] = {}
        for node in nodes:
            for slot, a, b in self.links[node]:
                self._join((_use(node, slot), a), (node, b))
            if node.op is Op.DOT:
                last = len(node.shape) - 1
                self._join((_use(node, 0), last), (_use(node, 1), last - 1))

    def find(self, axis: Axis) -> Axis:
        """The one that stands for this axis's class."""
        parent = self.parent
        while (above := parent.get(axis)) is not None:
            if (top := parent.get(above)) is None:
                return above
            parent[axis] = top  # the next way up is half as long
            axis = top
        return axis

    def classes(self, who: Any, rank: int) -> tuple[Axis, ...]:
        """What stands for each axis of a Node or a use."""
        if who not in self._classes:
            self._classes[who] = tuple(self.find((who, a)) for a in range(rank))
        return self._classes[who]

    def _join(self, a: Axis, b: Axis) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[a] = b


def _use(node: Node, slot: int) -> Any:
    """A source, or only this use of it if it is one of those that stand for many things."""
    source = node.src[slot]
    return (node, slot) if source.op in (Op.CONST, Op.IOTA) else source


def _work(node: Node) -> int:
    """Elementary operations."""
    if node.op in MOVEMENT or not node.src:
        return 0
    return node.size * (node.src[0].shape[-1] if node.op is Op.DOT else 1)


def _busiest(nodes: Sequence[Node], axes: Axes) -> list[Axis]:
    """Classes of axes, those first along which most of the work runs."""
    work: dict[Axis, int] = {}
    for node in nodes:
        uses = [(_use(node, s), len(n.shape)) for s, n in enumerate(node.src)]
        own = _work(node)
        pairs = [(node, len(node.shape)), *uses] if own else []
        for axis in {axis for who, rank in pairs for axis in axes.classes(who, rank)}:
            work[axis] = work.get(axis, 0) + own
    return sorted(work, key=lambda a: -work[a])


def best(nodes: Sequence[Node], states: set[Buffer], products: int = 0) -> Kinds | None:
    """Kinds relative to the axis whose rows and sums take most of the work; the longest of such.

    An axis of what the step changes is none: parameters are no rows. With so many operations of
    `products` it is the longest axis whose rows and sums have them.
    """
    if sum(_work(n) for n in nodes if n.op is Op.DOT) < products:
        return None
    axes = Axes(nodes)
    changed = [n for n in nodes if n.op is Op.BUFFER and n.arg in states]
    parameters = {axes.find((n, a)) for n in changed for a in range(len(n.shape))}
    wanted = [axis for axis in _busiest(nodes, axes) if axis not in parameters]
    found = [Kinds(nodes, axes, batch) for batch in wanted[:CANDIDATES]]
    if products:
        found = [k for k in found if k.products() >= products]
        return max(found, key=lambda k: (k.rows(), k.work()), default=None)
    return max(found, key=lambda k: (k.work(), k.rows()), default=None)


# --- what each value is ---


class Kinds:
    """Kinds of all Nodes relative to one class of axes."""

    def __init__(self, nodes: Sequence[Node], axes: Axes, batch: Axis) -> None:
        self.axes, self.batch = axes, batch
        self.of: dict[Node, Kind] = {}
        self.ahead: set[Node] = set()  # rows that only a whole value has
        self.light: set[Node] = set()  # rows without reductions and products, at hand early
        for node in nodes:
            self.of[node] = self._kind(node)

    def work(self) -> int:
        """What rows and sums over rows take."""
        return sum(_work(n) for n, k in self.of.items() if k in OF_ROWS)

    def products(self) -> int:
        """What products among them take."""
        return sum(_work(n) for n, k in self.of.items() if k in OF_ROWS and n.op is Op.DOT)

    def other_products(self) -> int:
        """What all others take."""
        return sum(_work(n) for n, k in self.of.items() if k not in OF_ROWS and n.op is Op.DOT)

    def rows(self) -> int:
        """The length of the batch."""
        for node, kind in self.of.items():
            if kind is Kind.ROW:
                axis = self.axis(node, len(node.shape))
                assert axis is not None
                return node.shape[axis]
        return 0

    def axis(self, who: Any, rank: int) -> int | None:
        """The batch axis of a Node or a use; None if it has none, -1 if it has several."""
        classes = self.axes.classes(who, rank)
        count = classes.count(self.batch)
        return None if not count else classes.index(self.batch) if count == 1 else -1

    def source_axis(self, node: Node, slot: int) -> int | None:
        """The batch axis of a source as this Node uses it; None or -1 as for `axis`."""
        return self.axis(_use(node, slot), len(node.src[slot].shape))

    def source(self, node: Node, slot: int) -> Kind:
        """The kind of a source; that of a constant or a range depends on this use of it."""
        if node.src[slot].op in (Op.CONST, Op.IOTA):
            return Kind.WHOLE if self.source_axis(node, slot) is None else Kind.ROW
        return self.of[node.src[slot]]

    def again(self, nodes: Sequence[Node]) -> set[Node]:
        """Those AFTER Nodes that would be rows, or sums over them, if others of them were given.

        A block of their own may compute once more what they need of rows.
        """
        found: set[Node] = set()
        for node in nodes:
            if self.of[node] is not Kind.AFTER:
                continue
            links, own = self.axes.links[node], self.axis(node, len(node.shape))
            axes = [self.source_axis(node, s) for s in range(len(node.src))]
            if own is None:
                fits = self._sums_rows(node)
            else:
                fits = own != -1 and all(
                    a is None or (s, a, own) in links for s, a in enumerate(axes)
                )
            if fits:
                found.add(node)
        return found

    def _kind(self, node: Node) -> Kind:
        kinds = [self.source(node, s) for s in range(len(node.src))]
        own = self.axis(node, len(node.shape))
        if own == -1 or Kind.AFTER in kinds or Kind.ACC in kinds:
            return Kind.AFTER
        rows = [s for s, kind in enumerate(kinds) if kind is Kind.ROW]
        sources = [node.src[s] for s in rows]
        light = all(s in self.light or s.op in (Op.CONST, Op.IOTA) for s in sources)
        if own is not None:
            links = self.axes.links[node]
            by_row = all((s, self.source_axis(node, s), own) in links for s in rows)
            leaf = not node.src or (node.op is not Op.EXPAND if not rows else not by_row)
            if light and (leaf or node.op not in CORES):
                self.light.add(node)
            if light and leaf and node.src:
                self.ahead.add(node)
            return Kind.ROW if by_row or light else Kind.AFTER
        if not rows:
            return Kind.WHOLE
        return Kind.ACC if self._sums_rows(node) else Kind.WHOLE if light else Kind.AFTER

    def _sums_rows(self, node: Node) -> bool:
        if node.op is Op.SUM:
            return self.source_axis(node, 0) in node.arg
        last = len(node.src[0].shape) - 1
        ends = (self.source_axis(node, 0), self.source_axis(node, 1)) if node.op is Op.DOT else ()
        return ends == (last, last - 1)
