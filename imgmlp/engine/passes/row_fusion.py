"""Row fusion: reductions of rows and what is computed from their results become one kernel.

In and out: kernel drafts. A fused draft has `rows`, its reductions in order, instead of a core.

A softmax needs the maximum of a row, the sum of the exponentials, and then both for each element.
No row needs another one, so one kernel can do all three stages row by row while the row is in
cache, and keep values for the next stage that are costly to recompute (lowering/row_kernels.py).
The pass must not fuse kernels where elements need results of other rows, nor where a transposed
read would gain from tiles of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, Shape, base, move, substitute, toposort
from imgmlp.engine.ir.index_values import source_and_access
from imgmlp.engine.ir.kernel import Store
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.ir.symbolic import ZERO, Expr, Var, unravel
from imgmlp.engine.passes.drafts import MAX_EXPRESSION_DEPTH, DraftGraph, KernelDraft
from imgmlp.engine.passes.materialize import OPERATION_COSTS

MIN_ROWS = 64  # fewer rows leave work-groups idle that separate kernels would keep busy
MAX_SMALL_SIZE = 1 << 14  # elements up to which saving a launch is worth idle work-groups
MIN_COST_TO_KEEP = 8  # operations; cheaper values are recomputed in the next stage
MIN_TRANSPOSED_LENGTH = 16  # elements of an axis from which a transposed read is done in tiles


def fuse_rows(drafts: list[KernelDraft], lasting: set[Buffer]) -> list[KernelDraft]:
    """Fuse reductions of rows with the drafts that use them at the same row.

    Totals are still stored if other drafts read them or if they go to `lasting` Buffers.
    """
    graph = DraftGraph(drafts)
    for last in drafts:
        while last.order in graph.alive and (first := _fusion_partner(last, graph)) is not None:
            _fuse(first, last, graph, lasting)
    return list(graph.alive.values())


def _full_shape(draft: KernelDraft) -> Shape | None:
    """The shape whose rows a draft computes or reduces; None if it does neither."""
    if draft.loop is not None:
        return None
    if draft.core is None:
        return draft.shape
    if draft.core.op not in REDUCE:
        return None
    shape: Shape = draft.core.src[0].shape
    return shape if draft.core.arg == tuple(range(len(draft.shape), len(shape))) else None


def _totals(draft: KernelDraft) -> list[Store]:
    """The stores of one value for each row, of a draft that reduces rows."""
    return draft.row_stores if draft.core is None else draft.stores


def _fusion_partner(last: KernelDraft, graph: DraftGraph) -> KernelDraft | None:
    full = _full_shape(last)
    before = (graph.alive[order] for order in sorted(last.predecessors, reverse=True))
    return next((d for d in before if full and _can_fuse(d, last, full, graph)), None)


def _can_fuse(first: KernelDraft, last: KernelDraft, full: Shape, graph: DraftGraph) -> bool:
    totals = _totals(first)
    if not totals or (first.row_reductions and first.stores):
        return False
    if _full_shape(first) != full or first.guards != last.guards:
        return False
    reduced = totals[0].value.shape
    if any(s.value.shape != reduced for s in _totals(last)):
        return False
    rows, size = math.prod(reduced), math.prod(full)
    if size == rows or (rows < MIN_ROWS and size > MAX_SMALL_SIZE):
        return False
    if graph.depends_on(last.predecessors - {first.order}, first.order):
        return False
    if graph.depth(first) + graph.depth(last) > MAX_EXPRESSION_DEPTH:
        return False
    values = _values([*_stores_with_values(first, last), *totals])
    written = {s.target for s in (*totals, *last.stores, *last.row_stores)}
    if any(n.op is Op.BUFFER and n.arg in written for n in toposort(values)):
        return False
    if last.core is None and _reads_transposed(values[: len(last.stores)], _cores(values)):
        return False
    return _by_row(values, reduced, full)


def _stores_with_values(first: KernelDraft, last: KernelDraft) -> list[Store]:
    """The stores of `last`, totals at the end, with the totals of `first` computed, not read."""
    stores = [*last.stores, *last.row_stores]
    replacements: dict[Node, Node] = {}
    for total in _totals(first):
        place = base(total.place, {Op.RESHAPE})  # others may read it in another shape
        replacements[place] = move(Op.RESHAPE, total.value, place.shape)
    values = substitute(_values(stores), replacements)
    return [Store(s.place, v, s.adds) for s, v in zip(stores, values, strict=True)]


def _values(stores: Iterable[Store]) -> list[Node]:
    return [s.value for s in stores]


def _cores(values: Sequence[Node]) -> list[Node]:
    """The reductions inside some values, in topological order."""
    return [n for n in toposort(values) if n.op in REDUCE]


def _by_row(values: Sequence[Node], reduced: Shape, full: Shape) -> bool:
    """Whether every use of a reduction is in the row that it reduces."""
    every = tuple(Var(f"i{a}", 0, n - 1) if n > 1 else ZERO for a, n in enumerate(full))
    row, cores = every[: len(reduced)], set(_cores(values))
    wanted: list[tuple[Node, tuple[Expr, ...]]] = [(core.src[0], every) for core in cores]
    wanted += [(v, every if v.shape == full else row) for v in values]
    seen: set[tuple[Node, tuple[Expr, ...]]] = set()
    while wanted:
        node, indices = wanted.pop()
        if (node, indices) in seen:
            continue
        seen.add((node, indices))
        if node in cores:
            if indices != row:
                return False
        elif node.op in ELEMENTWISE:
            wanted += [(s, indices) for s in node.src]
        elif node.op in MOVEMENT:
            source, moved = source_and_access(node)
            wanted.append((source, tuple(unravel(moved.index(indices)[0], source.shape))))
        elif any(n in cores for n in toposort([node])):
            return False
    return True


def _reads_transposed(elements: Sequence[Node], cores: Sequence[Node]) -> bool:
    """Whether elements read values that are not kept along another axis, as in a transpose.

    A separate kernel does that in tiles.
    """
    stored_values = {
        n for keeps in values_to_keep([*([c.src[0]] for c in cores), elements], 0) for n in keeps
    }
    stack, seen = list(elements), set(stored_values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ELEMENTWISE:
            stack += node.src
        elif node.op in MOVEMENT:
            views = source_and_access(node)[1].views
            if len(views) > 1:  # the strides of one view do not say what is read
                continue
            strides = [abs(s) for s in views[0].strides]
            long = [
                s for s, n in zip(strides, node.shape, strict=True) if n >= MIN_TRANSPOSED_LENGTH
            ]
            if strides and strides[-1] > 1 and strides[-1] in long and 1 in long:
                return True
    return False


def _fuse(first: KernelDraft, last: KernelDraft, graph: DraftGraph, lasting: set[Buffer]) -> None:
    """Merge `first` into `last`, which then depends on all that `first` depended on."""
    full, stores, totals = _full_shape(last), _stores_with_values(first, last), _totals(first)
    assert full is not None
    others = graph.users(first) - {last.order}
    kept = [s for s in totals if others or s.target in lasting]
    elements = len(last.stores) if last.core is None else 0
    last.stores, last.row_stores = stores[:elements], [*stores[elements:], *kept]
    last.row_reductions = tuple(_cores(_values([*stores, *kept])))
    last.shape, last.core = full, None
    last.places_read -= {s.place for s in totals}
    last.old_states_read |= first.old_states_read
    graph.merge_into(first, last)


# --- values to keep from stage to stage ---


def values_to_keep(roots: Sequence[Sequence[Node]], loads: int) -> list[list[Node]]:
    """For each stage, the values to keep for later stages; a load costs `loads` operations."""
    first: dict[Node, int] = {}
    kept: list[list[Node]] = [[] for _ in roots]
    costs: dict[Node, int] = {}
    size = roots[0][0].size
    for stage, wanted in enumerate(roots):
        stack, seen = list(wanted), set[Node]()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            is_from_earlier_stage = first.get(node, stage) < stage
            if is_from_earlier_stage and _cost(node, size, loads, costs) >= MIN_COST_TO_KEEP:
                kept[first[node]].append(node)
            elif node.op in ELEMENTWISE:
                stack += node.src
        for node in seen:
            first.setdefault(node, stage)
    return [list(dict.fromkeys(nodes)) for nodes in kept]


def _cost(node: Node, size: int, loads: int, cached_costs: dict[Node, int]) -> int:
    """Operations for one element of a row; a value that all elements of a row share costs none."""
    if node not in cached_costs:
        cached_costs[node] = 0
        if node.op in ELEMENTWISE:
            inner = sum(_cost(s, size, loads, cached_costs) for s in node.src)
            own = OPERATION_COSTS.get(node.op, 1) if any(_varies(s, size) for s in node.src) else 0
            cached_costs[node] = inner + own
        elif node.op in MOVEMENT and _varies(node, size):
            cached_costs[node] = _cost(base(node), size, loads, cached_costs)
        elif node.op is Op.GATHER or (node.op in (Op.BUFFER, Op.PART) and node.size >= size):
            cached_costs[node] = loads
    return cached_costs[node]


def _varies(node: Node, size: int) -> bool:
    """Whether a value has an element of its own for each of `size` elements."""
    return base(node).size >= size
