"""Fewer kernels: several outputs of one."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from imgmlp.engine.ir.graph import Node, Shape, substitute
from imgmlp.engine.ir.kernel import KernelDraft, Store, read_at_element_only, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.passes.drafts import DEEPEST, Drafts

MOST_PARTNERS = 128  # of one shape that a kernel may be merged with, the nearest ones


def merge(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Kernels of one shape become one with several stores, where nothing must run between."""
    left = Drafts(drafts)
    partners = _Partners(drafts)
    merged = True
    while merged:
        merged = False
        for second in sorted(left.alive.values(), key=lambda d: d.order):
            near = [f for f in partners.of(second) if _alike(f, second, left)]
            blocked = left.around(second, near)
            free = (f for f in near if f.order not in blocked)
            first = next((f for f in free if _mergeable(f, second, left)), None)
            if first is not None:
                partners.forget(first, second)
                _absorb(first, second, left)
                partners.add(first)
                merged = True
    return list(left.alive.values())


class _Partners:
    """Drafts by shape, those with a reduction or product and those without."""

    def __init__(self, drafts: Iterable[KernelDraft]) -> None:
        self._found: dict[tuple[Shape, bool], list[KernelDraft]] = {}
        for draft in drafts:
            self.add(draft)

    def add(self, draft: KernelDraft) -> None:
        if draft.loop is None:
            same = self._found.setdefault((draft.shape, draft.core is not None), [])
            bisect.insort(same, draft, key=_order)

    def forget(self, *drafts: KernelDraft) -> None:
        for draft in drafts:
            same = self._found[draft.shape, draft.core is not None]
            del same[bisect.bisect_left(same, draft.order, key=_order)]

    def of(self, second: KernelDraft) -> list[KernelDraft]:
        """Those before it that it might join, the nearest ones first."""
        if second.loop is not None:
            return []
        found: list[KernelDraft] = []
        for core in (False, True) if second.core is None else (False,):
            same = self._found.get((second.shape, core), [])
            end = bisect.bisect_left(same, second.order, key=_order)
            found += same[max(0, end - MOST_PARTNERS) : end]
        return sorted(found, key=lambda d: -d.order)[:MOST_PARTNERS]


def _order(draft: KernelDraft) -> int:
    return draft.order


def _alike(first: KernelDraft, second: KernelDraft, left: Drafts) -> bool:
    """Whether one kernel of both would be worth it."""
    if first.guards != second.guards:
        return False
    if first.order in second.after or second.order in first.after:
        return left.depth(first) + left.depth(second) <= DEEPEST
    return not (first.core or second.core) or not first.shape


def _mergeable(first: KernelDraft, second: KernelDraft, left: Drafts) -> bool:
    """Whether they may be one, if the second waits for the first at most directly."""
    if left.waits(first.after - {second.order}, second.order):
        return False
    return _harmless(first, second) and _harmless(second, first)


def _harmless(writer: KernelDraft, reader: KernelDraft) -> bool:
    """Whether the reader meets what the writer stores only at the element being computed."""
    values, places = [s.value for s in reader.stores], {s.place for s in writer.stores}
    return all(read_at_element_only(values, s.target, places) for s in writer.stores)


def _absorb(first: KernelDraft, second: KernelDraft, left: Drafts) -> None:
    """The second's stores join the first's; who needs the other's values has them in registers."""
    if second.order in first.after:
        first.stores = _from_registers(first, second.stores) + second.stores
    else:
        first.stores += _from_registers(second, first.stores)
    first.core = first.core or second.core
    first.old |= second.old
    left.join(second, first)


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
    left = Drafts(drafts)
    by_factor: dict[Node, list[KernelDraft]] = {}
    for draft in drafts:
        if draft.core is not None and draft.core.op is Op.DOT:
            by_factor.setdefault(draft.core.src[1], []).append(draft)
    for second in drafts:
        summed = second.core.src[0] if second.core is not None else None
        for first in by_factor.get(summed, []) if summed is not None else []:
            orders = first.order, second.order
            if not _sums_right_factor(first, second) or any(
                left.waits([a], b) for a, b in (orders, orders[::-1])
            ):
                continue
            (first.sums,) = second.stores
            left.join(second, first)
            break
    return list(left.alive.values())


def _sums_right_factor(product: KernelDraft, second: KernelDraft) -> bool:
    if product.sums is not None or product.core is None or product.core.op is not Op.DOT:
        return False
    if product.guards != second.guards:
        return False
    core = second.core
    if core is None or core.op is not Op.SUM or [s.value for s in second.stores] != [core]:
        return False
    return core.src[0] is product.core.src[1] and core.arg == (len(product.shape) - 2,)
