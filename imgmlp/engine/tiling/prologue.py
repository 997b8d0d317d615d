"""The prologue of a block: what each work-group does once, before its tiles, to save a launch.

- Weights that a product reads across their rows are copied in the order in which it reads them.
  Each group makes its own copy, which takes less time than a separate launch.
- States of one element, such as a count of steps, are copied as they were before the step. The
  kernels after the block read the copies, so that they can run side by side with the kernel that
  replaces the state.

No kernel of the prologue may read what another one stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, buffer, move, part, substitute, toposort
from imgmlp.engine.ir.kernel import Kernel, Store, Update, storage
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op

ALIGNMENT_ELEMENTS = 16  # 64 bytes of float32
MAX_COPIED_ELEMENTS = 1 << 14  # of all copies of a group; more take longer than a launch


def group_buffer(groups: int, node: Node, name: str) -> Node:
    """A place for a value of the running group, in a new Buffer with a row for each group."""
    pitch = -(-node.size // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    whole = part(buffer(Buffer((groups, pitch), node.dtype, name=name)), "group", groups)
    row = move(Op.SHRINK, whole, ((0, 1), (0, node.size)))
    return move(Op.RESHAPE, row, node.shape)


def is_available(node: Node, cached: dict[Node, bool] | None = None) -> bool:
    """Whether a WHOLE value can be read, or cheaply computed, wherever it is needed.

    `cached` holds earlier answers, and receives new ones.
    """
    available = {} if cached is None else cached
    for n in toposort([node], lambda n: n.src if n not in available and is_cheap(n) else ()):
        if n not in available:
            light = is_cheap(n) and all(available[s] for s in n.src)
            available[n] = light or n.op in (Op.BUFFER, Op.CONST, Op.IOTA)
    return available[node]


def is_cheap(node: Node) -> bool:
    """Whether an operation may be repeated wherever its value is needed."""
    return node.op in MOVEMENT or (node.op in ELEMENTWISE and node.size == 1)


class Prologue:
    """The copies that each work-group makes, and the kernels that make them."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.copies: dict[Node, Node] = {}  # views of weights, and the running group's copy
        self.saved: dict[Node, Node] = {}  # states, and the running group's copy
        # States, and a copy made by a launch before the block.
        self.copied_before: dict[Node, Node] = {}

    def copy(self, node: Node) -> Node | None:
        """The running group's copy of a view; None if all copies would be too large."""
        if node not in self.copies:
            if (
                not is_available(node)
                or sum(n.size for n in (*self.copies, node)) > MAX_COPIED_ELEMENTS
            ):
                return None
            self.copies[node] = group_buffer(self.groups, node, f"copy{len(self.copies)}")
        return self.copies[node]

    def save_states(self, updates: Sequence[Update], ahead: bool) -> list[Update]:
        """The updates after the block, reading copies of states of one element that they replace.

        Only the new value of a state itself still reads the state. With `ahead` a launch before the
        block makes the copies, not the block.
        """
        first: dict[Node, Node] = {}
        for state in states_read_by_others(updates):
            node, name = buffer(state), f"old_{state.name or 'state'}"
            if ahead:
                self.copied_before[node] = first[node] = buffer(
                    Buffer(state.shape, state.dtype, name=name)
                )
                continue
            self.saved[node] = group_buffer(self.groups, node, name)
            rows = buffer(storage(self.saved[node]))  # one for each group, all equal
            element = move(Op.SHRINK, rows, ((0, 1), (0, 1)))
            first[node] = move(Op.RESHAPE, element, node.shape)
        changed: list[Update] = []
        for state, value in updates:
            others = {n: old for n, old in first.items() if n.arg is not state}
            changed.append((state, substitute([value], others)[0]))
        return changed

    def kernels(self) -> list[Kernel]:
        """The kernels that each group runs before its tiles."""
        copies = [Kernel("copy", n.shape, (Store(p, n),), None) for n, p in self.copies.items()]
        return [*copies, *_copies("aside", self.saved)]

    def kernels_before(self) -> list[Kernel]:
        """The kernels that must run in a launch before the block."""
        return _copies("map", self.copied_before)


def _copies(name: str, places: Mapping[Node, Node]) -> list[Kernel]:
    """One kernel that copies values of one element to their places, if there are any."""
    one = ((move(Op.RESHAPE, p, ()), move(Op.RESHAPE, n, ())) for n, p in places.items())
    stores = tuple(Store(place, value) for place, value in one)
    return [Kernel(name, (), stores, None)] if stores else []


def states_read_by_others(updates: Sequence[Update]) -> list[Buffer]:
    """Replaced states of one element that the new value of another state reads as well."""
    replaced = {state for state, _ in updates}
    states: dict[Buffer, None] = {}
    for target, value in updates:
        for node in toposort([value]):
            if node.op is Op.BUFFER and node.size == 1 and node.arg in replaced - {target}:
                states[node.arg] = None
    return list(states)
