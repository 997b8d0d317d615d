"""Kernels while they are merged and ordered: which wait for which, and how deep they are.

A step may have thousands of them, so nothing here looks at all of them for each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from imgmlp.engine.ir.graph import Node, toposort
from imgmlp.engine.ir.kernel import KernelDraft

# Operations that one expression goes down: lowering walks it recursively, and a driver's compiler
# takes long for one that has thousands.
DEEPEST = 128


class Drafts:
    """Those that are left, by order."""

    def __init__(self, drafts: Iterable[KernelDraft]) -> None:
        self.alive = {d.order: d for d in drafts}
        self._users: dict[int, set[int]] = {order: set() for order in self.alive}
        self._levels = dict.fromkeys(self.alive, 0)  # each above those of what it waits for
        self._depths: dict[int, int] = {}
        for order, d in self.alive.items():
            for before in d.after:
                self._users[before].add(order)
        for d in ordered(list(self.alive.values())):
            self._levels[d.order] = 1 + max((self._levels[o] for o in d.after), default=-1)

    def waits(self, starts: Iterable[int], target: int) -> bool:
        """Whether a draft of `starts` is the target or runs after it."""
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

    def around(self, draft: KernelDraft, others: Sequence[KernelDraft]) -> set[int]:
        """Those of some others that it waits for by way of another one; perhaps more."""
        found: set[int] = set()
        if not others:
            return found
        least = min(self._levels[d.order] for d in others)
        stack = list(draft.after)
        while stack:
            order = stack.pop()
            if self._levels[order] > least:
                more = self.alive[order].after - found
                found |= more
                stack.extend(more)
        return found

    def users(self, draft: KernelDraft) -> set[int]:
        """Those that wait for it."""
        return self._users[draft.order]

    def join(self, gone: KernelDraft, into: KernelDraft) -> None:
        """One draft does what another did: it waits as that did, and is waited for instead."""
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
        self._raise(into.order, level)

    def depth(self, draft: KernelDraft) -> int:
        """The most operations from what it stores down to memory."""
        if draft.order not in self._depths:
            self._depths[draft.order] = depth([s.value for s in (*draft.stores, *draft.totals)])
        return self._depths[draft.order]

    def _raise(self, order: int, level: int) -> None:
        """Lift a draft to a level, and above it what waits for it."""
        pending = [(order, level)]
        while pending:
            order, level = pending.pop()
            if self._levels[order] < level:
                self._levels[order] = level
                pending += [(user, level + 1) for user in self._users[order]]


def depth(values: Sequence[Node]) -> int:
    """The most operations that lead from one of these down to what has no sources."""
    found: dict[Node, int] = {}
    for node in toposort(values):
        found[node] = 1 + max((found[s] for s in node.src), default=-1)
    return max(found.values(), default=0)


def ordered(drafts: Sequence[KernelDraft]) -> list[KernelDraft]:
    """Each draft after those it waits for, otherwise in the order of the graph."""
    by_order = {d.order: d for d in drafts}
    missing = {d.order: len(d.after) for d in drafts}
    users: dict[int, list[int]] = {d.order: [] for d in drafts}
    for d in drafts:
        for before in d.after:
            users[before].append(d.order)
    ready = [order for order, count in missing.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        order = heapq.heappop(ready)
        found.append(by_order[order])
        for other in users[order]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    if len(found) != len(drafts):
        raise AssertionError("kernels wait for each other in a circle")
    return found
