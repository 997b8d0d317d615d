"""What each work-group of a block does once, before its tiles, so that no launch has to.

Weights that a product reads across their rows are copied in the order in which it reads them, each
group for itself: that takes less than a launch in which the groups share it. And values of one
element, such as a learning rate, that what follows the block needs are computed from states that
this step replaces: what follows need not read those states then, so all of it may run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imgmlp.engine.dtype import DType
from imgmlp.engine.graph import (
    ELEMENTWISE,
    MOVEMENT,
    Buffer,
    Node,
    Op,
    buffer,
    move,
    part,
    toposort,
)
from imgmlp.engine.kernel import Kernel, Store
from imgmlp.engine.rows import Kind, Kinds

ALIGN = 16  # elements, 64 bytes of float32
MOST_COPIED = 1 << 14  # elements; more take longer than a launch


def own_room(groups: int, node: Node, name: str) -> Node:
    """Room for a value of the running group, in a Buffer that has a row for each."""
    pitch = -(-node.size // ALIGN) * ALIGN
    whole = part(buffer(Buffer((groups, pitch), node.dtype, name=name)), "group", groups)
    row = move(Op.SHRINK, whole, ((0, 1), (0, node.size)))
    return move(Op.RESHAPE, row, node.shape)


def at_hand(node: Node) -> bool:
    """Whether a WHOLE value can be read, or computed once a group, where it is needed."""
    if node.op in (Op.BUFFER, Op.CONST, Op.IOTA):
        return True
    light = node.op in MOVEMENT or (node.op in ELEMENTWISE and node.size == 1)
    return light and all(at_hand(s) for s in node.src)


class Head:
    """Copies and small values of each of some groups, and the kernels that make them."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.copies: dict[Node, Node] = {}
        self.small: dict[Node, Node] = {}  # the running group's
        self.first: dict[Node, Node] = {}  # the same of the first group, for what follows

    def copy(self, node: Node) -> Node | None:
        """The running group's own copy of a view of a state; None if all would be too large."""
        if node not in self.copies:
            if not at_hand(node) or sum(n.size for n in (*self.copies, node)) > MOST_COPIED:
                return None
            self.copies[node] = own_room(self.groups, node, f"copy{len(self.copies)}")
        return self.copies[node]

    def compute(self, values: Sequence[Node]) -> None:
        """Have these values of one element computed; `first` says where they then stand."""
        rooms: dict[DType, Buffer] = {}
        for i, node in enumerate(values):
            shape = (self.groups, -(-len(values) // ALIGN) * ALIGN)
            room = rooms.setdefault(node.dtype, Buffer(shape, node.dtype, name="small"))
            one = ((0, 1), (i, i + 1))
            own = part(buffer(room), "group", self.groups)
            self.small[node] = move(Op.RESHAPE, move(Op.SHRINK, own, one), ())
            self.first[node] = move(Op.RESHAPE, move(Op.SHRINK, buffer(room), one), node.shape)

    def kernels(self) -> list[Kernel]:
        """None of them reads what another one stores."""
        found = [Kernel("copy", n.shape, (Store(p, n),), None) for n, p in self.copies.items()]
        stores = (Store(p, move(Op.RESHAPE, n, ())) for n, p in self.small.items())
        return [*found, Kernel("small", (), tuple(stores), None)] if self.small else found


def small_values(after: Sequence[Node], kinds: Kinds, replaced: set[Buffer]) -> list[Node]:
    """Values of one element that AFTER ones need, and that need states which the step replaces."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def look(node: Node) -> None:
        if node in seen or kinds.of[node] is not Kind.WHOLE:
            return
        seen.add(node)
        computed = node.op in ELEMENTWISE and node.size == 1 and at_hand(node)
        if computed and replaced & set(_leaves(node)):
            found[node] = None
        elif not computed:
            for source in node.src:
                look(source)

    for node in after:
        for source in node.src:
            look(source)
    return list(found)


def _leaves(node: Node) -> Iterator[Buffer]:
    return (n.arg for n in toposort([node]) if n.op is Op.BUFFER)
