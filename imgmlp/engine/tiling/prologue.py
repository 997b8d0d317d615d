"""What each work-group of a block does once, before its tiles, so that no launch has to.

Weights that a product reads across their rows are copied in the order in which it reads them, each
group for itself: that takes less than a launch in which the groups share it. And states of one
element, such as a count of steps, are set aside as they were: what follows the block reads them
there, so that all of it may run at once, also what replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, buffer, move, part, substitute, toposort
from imgmlp.engine.ir.kernel import Kernel, Store, Update, storage
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op

ALIGN = 16  # elements, 64 bytes of float32
MOST_COPIED = 1 << 14  # elements; more take longer than a launch


def group_buffer(groups: int, node: Node, name: str) -> Node:
    """Room for a value of the running group, in a Buffer that has a row for each."""
    pitch = -(-node.size // ALIGN) * ALIGN
    whole = part(buffer(Buffer((groups, pitch), node.dtype, name=name)), "group", groups)
    row = move(Op.SHRINK, whole, ((0, 1), (0, node.size)))
    return move(Op.RESHAPE, row, node.shape)


def at_hand(node: Node, known: dict[Node, bool] | None = None) -> bool:
    """Whether a WHOLE value can be read, or computed once a group, where it is needed.

    What is found out of others on the way goes to `known`.
    """
    found = {} if known is None else known
    for n in toposort([node], lambda n: n.src if n not in found and is_light(n) else ()):
        if n not in found:
            light = is_light(n) and all(found[s] for s in n.src)
            found[n] = light or n.op in (Op.BUFFER, Op.CONST, Op.IOTA)
    return found[node]


def is_light(node: Node) -> bool:
    """Whether an operation may be done wherever its value is needed."""
    return node.op in MOVEMENT or (node.op in ELEMENTWISE and node.size == 1)


class Prologue:
    """Copies and small values of each of some groups, and the kernels that make them."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.copies: dict[Node, Node] = {}
        self.aside: dict[Node, Node] = {}  # states, and the running group's copy of each
        self.ahead: dict[Node, Node] = {}  # states, and a copy that is made before the block

    def copy(self, node: Node) -> Node | None:
        """The running group's own copy of a view of a state; None if all would be too large."""
        if node not in self.copies:
            if not at_hand(node) or sum(n.size for n in (*self.copies, node)) > MOST_COPIED:
                return None
            self.copies[node] = group_buffer(self.groups, node, f"copy{len(self.copies)}")
        return self.copies[node]

    def set_aside(self, updates: Sequence[Update], ahead: bool) -> list[Update]:
        """What follows the block, reading copies of states that it replaces as well.

        Only the value that replaces a state reads the state itself, element by element. With
        `ahead` a launch before the block makes the copies, not the block.
        """
        first: dict[Node, Node] = {}
        for state in read_by_others(updates):
            node, name = buffer(state), f"old_{state.name or 'state'}"
            if ahead:
                self.ahead[node] = first[node] = buffer(Buffer(state.shape, state.dtype, name=name))
                continue
            self.aside[node] = group_buffer(self.groups, node, name)
            rows = buffer(storage(self.aside[node]))  # one for each group, all the same
            found = move(Op.SHRINK, rows, ((0, 1), (0, 1)))
            first[node] = move(Op.RESHAPE, found, node.shape)
        changed: list[Update] = []
        for state, value in updates:
            others = {n: old for n, old in first.items() if n.arg is not state}
            changed.append((state, substitute([value], others)[0]))
        return changed

    def kernels(self) -> list[Kernel]:
        """None of them reads what another one stores."""
        found = [Kernel("copy", n.shape, (Store(p, n),), None) for n, p in self.copies.items()]
        return [*found, *_copies("aside", self.aside)]

    def before(self) -> list[Kernel]:
        """What must run before the block."""
        return _copies("map", self.ahead)


def _copies(name: str, places: Mapping[Node, Node]) -> list[Kernel]:
    """A kernel that copies values of one element to their places, if there are any."""
    one = ((move(Op.RESHAPE, p, ()), move(Op.RESHAPE, n, ())) for n, p in places.items())
    stores = tuple(Store(place, value) for place, value in one)
    return [Kernel(name, (), stores, None)] if stores else []


def read_by_others(updates: Sequence[Update]) -> list[Buffer]:
    """States of one element that the new value of another state needs as well."""
    replaced = {state for state, _ in updates}
    found: dict[Buffer, None] = {}
    for target, value in updates:
        for node in toposort([value]):
            if node.op is Op.BUFFER and node.size == 1 and node.arg in replaced - {target}:
                found[node.arg] = None
    return list(found)
