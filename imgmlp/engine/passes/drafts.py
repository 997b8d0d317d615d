"""Drafts of kernels, and the graph of their dependencies while passes merge and order them.

Drafts are known by their `order`, a number. A step may have thousands of them, so no operation
here visits all drafts for each draft: levels bound every search.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from imgmlp.engine.ir.control_flow import Body
from imgmlp.engine.ir.graph import Buffer, Node, Shape, toposort
from imgmlp.engine.ir.kernel import Guard, Store

# Operations on the longest path through a kernel's expression. Lowering walks the expression
# recursively, and a driver's compiler is slow for expressions of thousands of operations.
MAX_EXPRESSION_DEPTH = 128


@dataclass
class KernelDraft:
    """A kernel, or a Loop, while kernels are still being merged and ordered."""

    order: int  # the number of the draft
    shape: Shape
    stores: list[Store]
    core: Node | None
    places_read: set[Node]
    old_states_read: set[Buffer]  # states that it reads as they were before the step
    predecessors: set[int] = field(default_factory=set)  # drafts that must run before
    column_sums: Store | None = None
    loop: LoopDraft | None = None  # instead of a kernel
    guards: frozenset[Guard] = frozenset()
    row_reductions: tuple[Node, ...] = ()
    row_stores: list[Store] = field(default_factory=list)


@dataclass(frozen=True)
class LoopDraft:
    """The body of a LOOP, and the places of its parameters: carried ones first, then captured."""

    body: Body
    places: tuple[Node, ...]


class DraftGraph:
    """The drafts that have not been merged into others, by order, and their users."""

    def __init__(self, drafts: Iterable[KernelDraft]) -> None:
        self.alive = {d.order: d for d in drafts}
        self._users: dict[int, set[int]] = {order: set() for order in self.alive}
        self._levels = dict.fromkeys(self.alive, 0)  # above the levels of all dependencies
        self._depths: dict[int, int] = {}
        for order, d in self.alive.items():
            for before in d.predecessors:
                self._users[before].add(order)
        for d in topological_order(list(self.alive.values())):
            self._levels[d.order] = 1 + max((self._levels[o] for o in d.predecessors), default=-1)

    def depends_on(self, starts: Iterable[int], target: int) -> bool:
        """Whether one of the drafts `starts` is the target or depends on it."""
        least = self._levels[target]
        stack = list(starts)
        seen = set(stack)
        while stack and target not in seen:
            order = stack.pop()
            if self._levels[order] > least:
                more = self.alive[order].predecessors - seen
                seen |= more
                stack.extend(more)
        return target in seen

    def indirect_dependencies(self, draft: KernelDraft, others: Sequence[KernelDraft]) -> set[int]:
        """A set of drafts that has those of `others` on which this one depends indirectly."""
        dependencies: set[int] = set()
        if not others:
            return dependencies
        least = min(self._levels[d.order] for d in others)
        stack = list(draft.predecessors)
        while stack:
            order = stack.pop()
            if self._levels[order] > least:
                more = self.alive[order].predecessors - dependencies
                dependencies |= more
                stack.extend(more)
        return dependencies

    def users(self, draft: KernelDraft) -> set[int]:
        """The drafts that depend directly on this one."""
        return self._users[draft.order]

    def merge_into(self, gone: KernelDraft, into: KernelDraft) -> None:
        """Remove a draft whose work another one now does: that one gets its edges."""
        into.places_read |= gone.places_read
        into.predecessors = (into.predecessors | gone.predecessors) - {into.order, gone.order}
        users = self._users.pop(gone.order) - {into.order}
        for before in gone.predecessors:
            self._users[before].discard(gone.order)
        for before in into.predecessors:
            self._users[before].add(into.order)
        for order in users:
            user = self.alive[order]
            user.predecessors = (user.predecessors - {gone.order}) | {into.order}
        self._users[into.order] = (self._users[into.order] - {gone.order}) | users
        del self.alive[gone.order]
        self._depths.pop(gone.order, None)
        self._depths.pop(into.order, None)
        level = max(self._levels.pop(gone.order), self._levels[into.order])
        self._levels[into.order] = -1
        self._raise_level(into.order, level)

    def depth(self, draft: KernelDraft) -> int:
        """Operations on the longest path from a draft's stores down to memory."""
        if draft.order not in self._depths:
            self._depths[draft.order] = depth([s.value for s in (*draft.stores, *draft.row_stores)])
        return self._depths[draft.order]

    def _raise_level(self, order: int, level: int) -> None:
        """Raise a draft to a level, and its users above it."""
        pending = [(order, level)]
        while pending:
            order, level = pending.pop()
            if self._levels[order] < level:
                self._levels[order] = level
                pending += [(user, level + 1) for user in self._users[order]]


def depth(values: Sequence[Node]) -> int:
    """Operations on the longest path from one of these values down to a leaf."""
    depths: dict[Node, int] = {}
    for node in toposort(values):
        depths[node] = 1 + max((depths[s] for s in node.src), default=-1)
    return max(depths.values(), default=0)


def topological_order(drafts: Sequence[KernelDraft]) -> list[KernelDraft]:
    """Each draft after its dependencies, otherwise by `order`, which follows the graph."""
    by_order = {d.order: d for d in drafts}
    missing = {d.order: len(d.predecessors) for d in drafts}
    users: dict[int, list[int]] = {d.order: [] for d in drafts}
    for d in drafts:
        for before in d.predecessors:
            users[before].append(d.order)
    ready = [order for order, count in missing.items() if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        order = heapq.heappop(ready)
        ordered.append(by_order[order])
        for other in users[order]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    if len(ordered) != len(drafts):
        raise AssertionError("kernels wait for each other in a circle")
    return ordered


def runs_after(edges: Mapping[int, Set[int]], starts: Iterable[int], target: int) -> bool:
    """Whether a draft of `starts` is the target or runs after it.

    `edges` lead from each draft to those that run before it.
    """
    stack = list(starts)
    seen = set(stack)
    while stack and target not in seen:
        more = edges[stack.pop()] - seen
        seen |= more
        stack.extend(more)
    return target in seen
