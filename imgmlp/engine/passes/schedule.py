"""Scheduling: a Node graph becomes a Procedure, a list of kernels in order.

In: states and the Nodes of their new values. Out: Kernels, and Loops of them, that compute every
new value from the old ones.

The passes run in this order: long reductions are split (below), materialize.py decides which values
are stored, in_place.py which states are overwritten directly, merge.py fuses kernels of one shape,
split_concat.py splits users of a concatenation, and row_fusion.py fuses reductions of rows with
what follows. This module must know neither devices nor instructions.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from imgmlp.engine.ir.graph import (
    Buffer,
    Node,
    buffer,
    dot,
    move,
    rebuild,
    reduce,
    substitute,
    toposort,
)
from imgmlp.engine.ir.kernel import Guard, Kernel, Loop, Procedure, Update, storage
from imgmlp.engine.ir.op import REDUCE, Op
from imgmlp.engine.passes.drafts import KernelDraft, LoopDraft, topological_order
from imgmlp.engine.passes.in_place import choose_places, final_copies, order_after_readers
from imgmlp.engine.passes.materialize import Graph
from imgmlp.engine.passes.merge import attach_column_sums, merge_drafts
from imgmlp.engine.passes.row_fusion import fuse_rows
from imgmlp.engine.passes.split_concat import split_at_concatenations

# A reduction to one value takes two stages: partial results, then their reduction.
MIN_TWO_STAGE_ELEMENTS = 1 << 14  # fewer elements are reduced in one stage
MIN_PARTIAL_RESULTS = 64  # results of the first stage
MAX_PARTIAL_RESULTS = 1 << 10  # likewise, on a device with many compute units
ELEMENTS_PER_PARTIAL_RESULT = 1 << 12  # at least, where there are more than the fewest results

# A product or column sum over a long axis is split into parts that work-groups compute separately.
MIN_TERMS_PER_PART = 64
MAX_PRODUCT_PARTS = 512
MIN_BUSY_COLUMNS = 1 << 11  # column sums of so many columns occupy a device without being split


def schedule(updates: Sequence[Update], split_products: bool = False) -> Procedure:
    """Kernels that give each Buffer its new value, all computed from the old values.

    `split_products` spreads products and sums of few results and many terms over more work-groups,
    for devices with many compute units.
    """
    return _Scheduler(split_products).procedure(updates)


class _Scheduler:
    """Schedules a step and the bodies of its loops, with one numbering of kernels and places."""

    def __init__(self, split_products: bool) -> None:
        self.split_products = split_products
        self.kernels = self.places = 0

    def procedure(
        self, updates: Sequence[Update], guards: frozenset[Guard] = frozenset()
    ) -> Procedure:
        roots = _prepare([value for _, value in updates], self.split_products)
        targets = [(state, root) for (state, _), root in zip(updates, roots, strict=True)]
        graph = Graph(roots, self.places)
        places, in_place, copied = choose_places(graph, targets)
        self.places += len(places)
        drafts = graph.drafts(places)
        order_after_readers(drafts, in_place)
        lasting = {storage(places[root]) for root in roots if root in places}
        drafts = merge_drafts(drafts)
        split_at_concatenations(drafts)
        drafts = merge_drafts(drafts)
        drafts = fuse_rows(attach_column_sums(drafts), lasting)
        drafts += final_copies(drafts, places, copied)
        _drop_unread_stores(drafts, lasting)
        return Procedure(
            tuple(self._freeze(d, d.guards | guards) for d in topological_order(drafts))
        )

    def _freeze(self, draft: KernelDraft, guards: frozenset[Guard]) -> Kernel | Loop:
        if draft.loop is not None:
            return self._loop(draft.loop, guards)
        self.kernels += 1
        return freeze(draft, self.kernels - 1, guards)

    def _loop(self, iteration: LoopDraft, guards: frozenset[Guard]) -> Loop:
        """A Loop whose body is scheduled like a step: its states are the carried values."""
        body, places = iteration.body, iteration.places
        values = substitute(body.values, dict(zip(body.parameters, places, strict=True)))
        carried = [storage(place) for place in places[: len(values)]]
        updates = [(s, v) for s, v in zip(carried, values, strict=True) if v is not buffer(s)]
        lasting = frozenset(storage(p) for p in (*places, *(guard.condition for guard in guards)))
        return Loop(body.count, self.procedure(updates, guards), lasting)


def _drop_unread_stores(drafts: Sequence[KernelDraft], lasting: Set[Buffer]) -> None:
    """Drop stores whose readers have all been fused into the kernel; `lasting` Buffers stay."""
    used = [guard.condition for d in drafts for guard in d.guards]
    for d in drafts:
        used += d.loop.places if d.loop is not None else ()
        used += [s.value for s in (*d.stores, *d.row_stores)] + (
            [d.column_sums.value] if d.column_sums else []
        )
    read = {n.arg for n in toposort(used) if n.op is Op.BUFFER} | lasting
    for d in drafts:
        if d.loop is None:
            d.stores = [s for s in d.stores if s.target in read] or d.stores[:1]


def freeze(draft: KernelDraft, number: int, guards: frozenset[Guard] = frozenset()) -> Kernel:
    """The immutable Kernel of a draft, named by its number and kind."""
    kind = {None: "map", Op.DOT: "product"}.get(draft.core.op if draft.core else None, "reduce")
    name = f"k{number}_{'rows' if draft.row_reductions else kind}"
    sorted_guards = tuple(sorted(guards, key=lambda g: (g.condition.number, g.expected)))
    stores, totals = tuple(draft.stores), tuple(draft.row_stores)
    return Kernel(
        name,
        draft.shape,
        stores,
        draft.core,
        draft.column_sums,
        sorted_guards,
        draft.row_reductions,
        totals,
    )


# --- rewriting before scheduling ---


def _prepare(roots: Sequence[Node], split_products: bool) -> list[Node]:
    """Replace FUNCTIONs by their answers, and split long reductions and products."""
    done: dict[Node, Node] = {}
    for node in toposort(roots):
        if node.op is Op.FUNCTION:
            done[node] = done[node.src[0]]
            continue
        new = rebuild(node, tuple(done[s] for s in node.src))
        if new.op in REDUCE:
            new = _reduce_in_two_stages(
                new, MAX_PARTIAL_RESULTS if split_products else MIN_PARTIAL_RESULTS
            )
        if split_products and new.op is Op.DOT:
            new = _split_product(new)
        elif split_products and new.op is Op.SUM and new.arg == (0,):
            new = _split_sum(new)
        done[node] = new
    return [done[r] for r in roots]


def _reduce_in_two_stages(node: Node, max_partial_results: int) -> Node:
    """Reduce to one value by way of partial results: 64 doubled as needed, up to a maximum."""
    source, count = node.src[0], MIN_PARTIAL_RESULTS
    if node.size > 1 or source.size < MIN_TWO_STAGE_ELEMENTS:
        return node
    while count < max_partial_results and source.size >= 2 * count * ELEMENTS_PER_PARTIAL_RESULT:
        count *= 2
    flat = move(Op.RESHAPE, source, (source.size,))
    rest = -source.size % count
    if rest and node.op is not Op.SUM:
        return node  # the padding, zeros, is neutral for sums only
    if rest:
        flat = move(Op.PAD, flat, ((0, rest),))
    parts = reduce(node.op, move(Op.RESHAPE, flat, (count, -1)), (1,))
    return move(Op.RESHAPE, reduce(node.op, parts, (0,)), node.shape)


def _split_product(node: Node) -> Node:
    """Split a product along its inner axis and sum the parts, if that axis is by far longest."""
    left, right = node.src
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    parts = _count_parts(inner)
    if len(node.shape) != 2 or parts == 1 or rows * columns > inner * MIN_TERMS_PER_PART:
        return node
    left = move(Op.PERMUTE, move(Op.RESHAPE, left, (rows, parts, inner // parts)), (1, 0, 2))
    right = move(Op.RESHAPE, right, (parts, inner // parts, columns))
    return reduce(Op.SUM, dot(left, right), (0,))


def _split_sum(node: Node) -> Node:
    """Split column sums [inner, columns] -> [columns] like products, unless there are many."""
    source = node.src[0]
    parts = _count_parts(source.shape[0])
    if len(source.shape) != 2 or parts == 1 or source.shape[1] >= MIN_BUSY_COLUMNS:
        return node
    inner = move(Op.RESHAPE, source, (parts, source.shape[0] // parts, source.shape[1]))
    return reduce(Op.SUM, reduce(Op.SUM, inner, (1,)), (0,))


def _count_parts(terms: int) -> int:
    """How many equal parts a sum of `terms` is split into; 1 if splitting does not pay."""
    most = min(MAX_PRODUCT_PARTS, terms // MIN_TERMS_PER_PART)
    return next((p for p in range(most, 3, -1) if terms % p == 0), 1)
