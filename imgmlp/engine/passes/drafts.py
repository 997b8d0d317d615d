"""The dependency graph of kernel drafts, while passes merge and order them.

Drafts are known by their `order`, a number. A step may have thousands of them, so no operation
here visits all drafts for each draft: levels bound every search.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from imgmlp.engine.ir.graph import Node, toposort
from imgmlp.engine.ir.kernel import KernelDraft

# Operations on the longest path through a kernel's expression. Lowering walks the expression
# recursively, and a driver's compiler is slow for expressions of thousands of operations.
MAX_EXPRESSION_DEPTH = 128


class DraftGraph:
    """The drafts that have not been merged into others, by order, and their users."""

    def __init__(self, drafts: Iterable[KernelDraft]) -> None:
        self.alive = {d.order: d for d in drafts}
        self._users: dict[int, set[int]] = {order: set() for order in self.alive}
        self._levels = dict.fromkeys(self.alive, 0)  # above the levels of all dependencies
        self._depths: dict[int, int] = {}
        for order, d in self.alive.items():
            for before in d.after:
                self._users[before].add(order)
        for d in topological_order(list(self.alive.values())):
            self._levels[d.order] = 1 + max((self._levels[o] for o in d.after), default=-1)

    def depends_on(self, starts: Iterable[int], target: int) -> bool:
        """Whether one of the drafts `starts` is the target or depends on it."""
        least = self._levels[target]
        stack = list(starts)
        seen = set(stack)
        while stack and target not in seen:
            order = stack.pop()
            if self._levels[order] > least:
                more = self.alive[order].after - seen
                seen |= more
                stack.extend(more)
        return target in seen

    def indirect_dependencies(self, draft: KernelDraft, others: Sequence[KernelDraft]) -> set[int]:
        """A set of drafts that has those of `others` on which this one depends indirectly."""
        dependencies: set[int] = set()
        if not others:
            return dependencies
        least = min(self._levels[d.order] for d in others)
        stack = list(draft.after)
        while stack:
            order = stack.pop()
            if self._levels[order] > least:
                more = self.alive[order].after - dependencies
                dependencies |= more
                stack.extend(more)
        return dependencies

    def users(self, draft: KernelDraft) -> set[int]:
        """The drafts that depend directly on this one."""
        return self._users[draft.order]

    def merge_into(self, gone: KernelDraft, into: KernelDraft) -> None:
        """Remove a draft whose work another one now does: that one gets its edges."""
        into.needs |= gone.needs
        into.after = (into.after | gone.after) - {into.order, gone.order}
        users = self._users.pop(gone.order) - {into.order}
        for before in gone.after:
            self._users[before].discard(gone.order)
        for before in into.after:
            self._users[before].add(into.order)
        for order in users:
            user = self.alive[order]
            user.after = (user.after - {gone.order}) | {into.order}
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
            self._depths[draft.order] = depth([s.value for s in (*draft.stores, *draft.totals)])
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
    missing = {d.order: len(d.after) for d in drafts}
    users: dict[int, list[int]] = {d.order: [] for d in drafts}
    for d in drafts:
        for before in d.after:
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
