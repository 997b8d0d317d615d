"""Which kernels, in which order: a Node graph becomes a Procedure.

Elementwise chains fuse with each other, with the reduction before them and with the reads
after it (materialize.py); values of one shape share a kernel (merge.py). This module knows
neither devices nor instructions.
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
from imgmlp.engine.ir.kernel import (
    Guard,
    Iteration,
    Kernel,
    KernelDraft,
    Loop,
    Procedure,
    Update,
    storage,
)
from imgmlp.engine.ir.op import REDUCE, Op
from imgmlp.engine.passes.drafts import ordered
from imgmlp.engine.passes.in_place import choose_places, copies_at_the_end, order_after_readers
from imgmlp.engine.passes.materialize import Graph
from imgmlp.engine.passes.merge import attach_sums, merge
from imgmlp.engine.passes.parts import cut_like_sources
from imgmlp.engine.passes.row_fusion import fuse_rows

LONG_REDUCTION = 1 << 14  # elements from which a full reduction takes two stages
PARTS = 64  # partial results of the first stage, at least
PART_ELEMENTS = 1 << 12  # of each, where many compute units share them
PART_TERMS = 64  # least terms of each part of a split product
MANY_SUMS = 1 << 11  # columns that keep all compute units busy without parts
MOST_GROUPS = 1 << 10  # partial results of the first stage, at most
MOST_PARTS = 512  # work-groups that a split product is spread over


def schedule(updates: Sequence[Update], split_products: bool = False) -> Procedure:
    """Kernels that give each Buffer its new value, all computed from the old ones.

    `split_products` also spreads what has few results and many terms over more work-groups, as a
    device with many compute units needs.
    """
    return _Scheduler(split_products).procedure(updates)


class _Scheduler:
    """Numbers kernels and places through a Procedure and the bodies of its loops."""

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
        drafts = merge(drafts)
        cut_like_sources(drafts)
        drafts = merge(drafts)
        drafts = fuse_rows(attach_sums(drafts), lasting)
        drafts += copies_at_the_end(drafts, places, copied)
        _leave_out(drafts, lasting)
        return Procedure(tuple(self._freeze(d, d.guards | guards) for d in ordered(drafts)))

    def _freeze(self, draft: KernelDraft, guards: frozenset[Guard]) -> Kernel | Loop:
        if draft.loop is not None:
            return self._loop(draft.loop, guards)
        self.kernels += 1
        return freeze(draft, self.kernels - 1, guards)

    def _loop(self, iteration: Iteration, guards: frozenset[Guard]) -> Loop:
        """Each iteration is a step of its own, whose states are the carried values."""
        body, places = iteration.body, iteration.places
        values = substitute(body.values, dict(zip(body.parameters, places, strict=True)))
        carried = [storage(place) for place in places[: len(values)]]
        updates = [(s, v) for s, v in zip(carried, values, strict=True) if v is not buffer(s)]
        lasting = frozenset(storage(p) for p in (*places, *(guard.condition for guard in guards)))
        return Loop(body.count, self.procedure(updates, guards), lasting)


def _leave_out(drafts: Sequence[KernelDraft], lasting: Set[Buffer]) -> None:
    """Store nothing that nobody reads, as its readers have become part of its kernel."""
    wanted = [guard.condition for d in drafts for guard in d.guards]
    for d in drafts:
        wanted += d.loop.places if d.loop is not None else ()
        wanted += [s.value for s in (*d.stores, *d.totals)] + ([d.sums.value] if d.sums else [])
    read = {n.arg for n in toposort(wanted) if n.op is Op.BUFFER} | lasting
    for d in drafts:
        if d.loop is None:
            d.stores = [s for s in d.stores if s.target in read] or d.stores[:1]


def freeze(draft: KernelDraft, number: int, guards: frozenset[Guard] = frozenset()) -> Kernel:
    """A finished kernel, named by its number and what is inside."""
    kind = {None: "map", Op.DOT: "product"}.get(draft.core.op if draft.core else None, "reduce")
    name = f"k{number}_{'rows' if draft.rows else kind}"
    ordered = tuple(sorted(guards, key=lambda g: (g.condition.number, g.wanted)))
    stores, totals = tuple(draft.stores), tuple(draft.totals)
    return Kernel(name, draft.shape, stores, draft.core, draft.sums, ordered, draft.rows, totals)


# --- rewriting before scheduling ---


def _prepare(roots: Sequence[Node], split_products: bool) -> list[Node]:
    """Functions give way to their answers; long reductions and products get two stages."""
    done: dict[Node, Node] = {}
    for node in toposort(roots):
        if node.op is Op.FUNCTION:
            done[node] = done[node.src[0]]
            continue
        new = rebuild(node, tuple(done[s] for s in node.src))
        if new.op in REDUCE:
            new = _two_stages(new, MOST_GROUPS if split_products else PARTS)
        if split_products and new.op is Op.DOT:
            new = _split_product(new)
        elif split_products and new.op is Op.SUM and new.arg == (0,):
            new = _split_sum(new)
        done[node] = new
    return [done[r] for r in roots]


def _two_stages(node: Node, most: int) -> Node:
    """A reduction to one value by way of 64 partial results, or twice as many, up to `most`."""
    source, count = node.src[0], PARTS
    if node.size > 1 or source.size < LONG_REDUCTION:
        return node
    while count < most and source.size >= 2 * count * PART_ELEMENTS:
        count *= 2
    flat = move(Op.RESHAPE, source, (source.size,))
    rest = -source.size % count
    if rest and node.op is not Op.SUM:
        return node  # zeros would not be neutral
    if rest:
        flat = move(Op.PAD, flat, ((0, rest),))
    parts = reduce(node.op, move(Op.RESHAPE, flat, (count, -1)), (1,))
    return move(Op.RESHAPE, reduce(node.op, parts, (0,)), node.shape)


def _split_product(node: Node) -> Node:
    """A sum of products over parts of the inner axis, if that axis is by far the longest."""
    left, right = node.src
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    parts = _parts(inner)
    if len(node.shape) != 2 or parts == 1 or rows * columns > inner * PART_TERMS:
        return node
    left = move(Op.PERMUTE, move(Op.RESHAPE, left, (rows, parts, inner // parts)), (1, 0, 2))
    right = move(Op.RESHAPE, right, (parts, inner // parts, columns))
    return reduce(Op.SUM, dot(left, right), (0,))


def _split_sum(node: Node) -> Node:
    """Column sums [inner, columns] -> [columns] over the same parts as products, if few."""
    source = node.src[0]
    parts = _parts(source.shape[0])
    if len(source.shape) != 2 or parts == 1 or source.shape[1] >= MANY_SUMS:
        return node
    inner = move(Op.RESHAPE, source, (parts, source.shape[0] // parts, source.shape[1]))
    return reduce(Op.SUM, reduce(Op.SUM, inner, (1,)), (0,))


def _parts(terms: int) -> int:
    """Into how many equal parts so many terms are split; 1 if that does not pay."""
    most = min(MOST_PARTS, terms // PART_TERMS)
    return next((p for p in range(most, 3, -1) if terms % p == 0), 1)
