"""Fewer kernels: several outputs of one, and the order in which they run."""

from __future__ import annotations

import heapq

from imgmlp.engine.ir.graph import substitute
from imgmlp.engine.ir.kernel import (
    KernelDraft,
    Store,
    edges_of,
    forget,
    read_at_element_only,
    storage,
    waits,
)
from imgmlp.engine.ir.op import Op

# --- several outputs of one kernel ---


def merge(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Kernels of one shape become one with several stores, where nothing must run between."""
    alive = {d.order: d for d in drafts}
    merged = True
    while merged:
        merged = False
        for second in sorted(alive.values(), key=lambda d: d.order):
            first = next(
                (f for f in _partners(second, alive) if _mergeable(f, second, alive)), None
            )
            if first is not None:
                _absorb(first, second, alive)
                merged = True
    return list(alive.values())


def _partners(second: KernelDraft, alive: dict[int, KernelDraft]) -> list[KernelDraft]:
    if second.loop is not None:
        return []
    same = [
        d
        for d in alive.values()
        if d.shape == second.shape and d.order < second.order and d.loop is None
    ]
    return sorted(same, key=lambda d: -d.order)


def _mergeable(first: KernelDraft, second: KernelDraft, alive: dict[int, KernelDraft]) -> bool:
    if first.guards != second.guards or (first.core is not None and second.core is not None):
        return False
    related = first.order in second.after or second.order in first.after
    if not related and (first.core or second.core) and len(first.shape) > 0:
        return False
    edges = edges_of(alive)
    if waits(edges, second.after - {first.order}, first.order):
        return False
    if waits(edges, first.after - {second.order}, second.order):
        return False
    return _harmless(first, second) and _harmless(second, first)


def _harmless(writer: KernelDraft, reader: KernelDraft) -> bool:
    """Whether the reader meets what the writer stores only at the element being computed."""
    values = [s.value for s in reader.stores]
    return all(read_at_element_only(values, s.target, s.place) for s in writer.stores)


def _absorb(first: KernelDraft, second: KernelDraft, alive: dict[int, KernelDraft]) -> None:
    """The second's stores join the first's; who needs the other's values has them in registers."""
    if second.order in first.after:
        first.stores = _from_registers(first, second.stores) + second.stores
    else:
        first.stores += _from_registers(second, first.stores)
    first.core = first.core or second.core
    first.needs |= second.needs
    first.old |= second.old
    first.after = (first.after | second.after) - {first.order, second.order}
    forget(second, first, alive)


def _from_registers(reader: KernelDraft, stores: list[Store]) -> list[Store]:
    """The reader's stores, with what is read where these stores go replaced by their values."""
    needed = {storage(p) for p in reader.needs}
    known = {s.place: s.value for s in stores if s.target in needed}
    values = substitute([s.value for s in reader.stores], known)
    return [Store(s.place, v) for s, v in zip(reader.stores, values, strict=True)]


def attach_sums(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Column sums of a product's right factor become a second output of that product.

    So a bias gradient comes with the weight gradient, whose kernel reads the same rows.
    """
    alive = {d.order: d for d in drafts}
    for second in drafts:
        for first in [p for p in alive.values() if _sums_right_factor(p, second)]:
            edges = edges_of(alive)
            orders = first.order, second.order
            if any(waits(edges, [a], b) for a, b in (orders, orders[::-1])):
                continue
            (first.sums,) = second.stores
            first.needs |= second.needs
            first.after |= second.after
            forget(second, first, alive)
            break
    return list(alive.values())


def _sums_right_factor(product: KernelDraft, second: KernelDraft) -> bool:
    if product.sums is not None or product.core is None or product.core.op is not Op.DOT:
        return False
    if product.guards != second.guards:
        return False
    core = second.core
    if core is None or core.op is not Op.SUM or [s.value for s in second.stores] != [core]:
        return False
    return core.src[0] is product.core.src[1] and core.arg == (len(product.shape) - 2,)


# --- order ---


def ordered(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Each draft after those it waits for, otherwise in the order of the graph."""
    by_order = {d.order: d for d in drafts}
    waiting = {d.order: set(d.after) for d in drafts}
    ready = [o for o, before in waiting.items() if not before]
    heapq.heapify(ready)
    found = []
    while ready:
        order = heapq.heappop(ready)
        found.append(by_order[order])
        for other, before in waiting.items():
            if order in before:
                before.remove(order)
                if not before:
                    heapq.heappush(ready, other)
    if len(found) != len(drafts):
        raise AssertionError("kernels wait for each other in a circle")
    return found
