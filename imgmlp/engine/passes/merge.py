"""Merging: kernels of one shape become one kernel with several outputs.

In and out: kernel drafts. A kernel may be merged with an earlier one if nothing must run between
them, and if each reads what the other stores only at its own element: that value then stays in a
register. The nearest candidates are tried first, as far as the merged expression does not get too
deep. Merging must not join two products or reductions, which need loops of their own.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from imgmlp.engine.ir.graph import Node, Shape, substitute
from imgmlp.engine.ir.kernel import Store, read_at_element_only, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.passes.drafts import MAX_EXPRESSION_DEPTH, DraftGraph, KernelDraft

MAX_MERGE_CANDIDATES = 128  # the nearest kernels of the same shape, with which merging is tried


def merge_drafts(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Merge kernels of one shape until no two can be merged any more."""
    graph = DraftGraph(drafts)
    candidates = _MergeCandidates(drafts)
    merged = True
    while merged:
        merged = False
        for second in sorted(graph.alive.values(), key=lambda d: d.order):
            near = [f for f in candidates.of(second) if _is_worthwhile(f, second, graph)]
            blocked = graph.indirect_dependencies(second, near)
            free = (f for f in near if f.order not in blocked)
            first = next((f for f in free if _can_merge(f, second, graph)), None)
            if first is not None:
                candidates.forget(first, second)
                _merge_into(first, second, graph)
                candidates.add(first)
                merged = True
    return list(graph.alive.values())


class _MergeCandidates:
    """Drafts by shape, and by whether they have a core (a reduction or product)."""

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
        """Earlier drafts of the same shape, the nearest first. Two cores never meet."""
        if second.loop is not None:
            return []
        candidates: list[KernelDraft] = []
        for core in (False, True) if second.core is None else (False,):
            same = self._found.get((second.shape, core), [])
            end = bisect.bisect_left(same, second.order, key=_order)
            candidates += same[max(0, end - MAX_MERGE_CANDIDATES) : end]
        return sorted(candidates, key=lambda d: -d.order)[:MAX_MERGE_CANDIDATES]


def _order(draft: KernelDraft) -> int:
    return draft.order


def _is_worthwhile(first: KernelDraft, second: KernelDraft, graph: DraftGraph) -> bool:
    """Whether merging saves a read, or a launch of work with the same guards."""
    if first.guards != second.guards:
        return False
    if first.order in second.predecessors or second.order in first.predecessors:
        return graph.depth(first) + graph.depth(second) <= MAX_EXPRESSION_DEPTH
    return not (first.core or second.core) or not first.shape


def _can_merge(first: KernelDraft, second: KernelDraft, graph: DraftGraph) -> bool:
    """Whether two drafts may be merged, given that the second has no indirect dependency on the
    first."""
    if graph.depends_on(first.predecessors - {second.order}, second.order):
        return False
    return _reads_only_own_element(first, second) and _reads_only_own_element(second, first)


def _reads_only_own_element(writer: KernelDraft, reader: KernelDraft) -> bool:
    """Whether the reader reads the writer's stores only at the element being computed."""
    values, places = [s.value for s in reader.stores], {s.place for s in writer.stores}
    return all(read_at_element_only(values, s.target, places) for s in writer.stores)


def _merge_into(first: KernelDraft, second: KernelDraft, graph: DraftGraph) -> None:
    """Add the second draft's stores to the first; values of either stay in registers."""
    if second.order in first.predecessors:
        first.stores = _with_values_in_registers(first, second.stores) + second.stores
    else:
        first.stores += _with_values_in_registers(second, first.stores)
    first.core = first.core or second.core
    first.old_states_read |= second.old_states_read
    graph.merge_into(second, first)


def _with_values_in_registers(reader: KernelDraft, stores: list[Store]) -> list[Store]:
    """The reader's stores, which take the values of other stores instead of reading them back."""
    needed = {storage(p) for p in reader.places_read}
    values_by_place = {s.place: s.value for s in stores if s.target in needed}
    values = substitute([s.value for s in reader.stores], values_by_place)
    return [Store(s.place, v) for s, v in zip(reader.stores, values, strict=True)]


def attach_column_sums(drafts: list[KernelDraft]) -> list[KernelDraft]:
    """Make column sums of a product's right factor a second output of that product.

    This fuses a bias gradient with the weight gradient, whose kernel reads the same rows.
    """
    graph = DraftGraph(drafts)
    by_factor: dict[Node, list[KernelDraft]] = {}
    for draft in drafts:
        if draft.core is not None and draft.core.op is Op.DOT:
            by_factor.setdefault(draft.core.src[1], []).append(draft)
    for second in drafts:
        summed = second.core.src[0] if second.core is not None else None
        for first in by_factor.get(summed, []) if summed is not None else []:
            orders = first.order, second.order
            if not _sums_right_factor(first, second) or any(
                graph.depends_on([a], b) for a, b in (orders, orders[::-1])
            ):
                continue
            (first.column_sums,) = second.stores
            graph.merge_into(second, first)
            break
    return list(graph.alive.values())


def _sums_right_factor(product: KernelDraft, second: KernelDraft) -> bool:
    if product.column_sums is not None or product.core is None or product.core.op is not Op.DOT:
        return False
    if product.guards != second.guards:
        return False
    core = second.core
    if core is None or core.op is not Op.SUM or [s.value for s in second.stores] != [core]:
        return False
    return core.src[0] is product.core.src[1] and core.arg == (len(product.shape) - 2,)
