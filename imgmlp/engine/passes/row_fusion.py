"""Reductions of rows and what follows from them become one kernel.

A softmax needs the maximum of a row, the sum of what follows from that, and then both for each
element. No row needs another one, so a kernel can compute all three for one row after the other
while it is at hand, and keep for the next stage what is costly to compute again (row_kernels.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, Shape, base, move, substitute, toposort
from imgmlp.engine.ir.index_values import through
from imgmlp.engine.ir.kernel import KernelDraft, Store
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.ir.symbolic import ZERO, Expr, Var, unravel
from imgmlp.engine.passes.drafts import DEEPEST, Drafts
from imgmlp.engine.passes.materialize import COSTS

LEAST_ROWS = 64  # fewer long rows would leave work-groups idle that separate kernels keep busy
COSTLY = 8  # operations from which a value is worth keeping
FAR = 16  # elements of an axis that make it worth a tile where it is read along
SMALL = 1 << 14  # elements up to which a launch less counts for more than that


def fuse_rows(drafts: list[KernelDraft], lasting: set[Buffer]) -> list[KernelDraft]:
    """Each reduction of rows joins what alone needs it at the same row; `lasting` is kept."""
    left = Drafts(drafts)
    for last in drafts:
        while last.order in left.alive and (first := _partner(last, left)) is not None:
            _fuse(first, last, left, lasting)
    return list(left.alive.values())


def _full(draft: KernelDraft) -> Shape | None:
    """The shape whose rows a draft computes or reduces; None if it does something else."""
    if draft.loop is not None:
        return None
    if draft.core is None:
        return draft.shape
    if draft.core.op not in REDUCE:
        return None
    shape: Shape = draft.core.src[0].shape
    return shape if draft.core.arg == tuple(range(len(draft.shape), len(shape))) else None


def _totals(draft: KernelDraft) -> list[Store]:
    """What a draft stores once a row, if it reduces rows."""
    return draft.totals if draft.core is None else draft.stores


def _partner(last: KernelDraft, left: Drafts) -> KernelDraft | None:
    full = _full(last)
    before = (left.alive[order] for order in sorted(last.after, reverse=True))
    return next((d for d in before if full and _fits(d, last, full, left)), None)


def _fits(first: KernelDraft, last: KernelDraft, full: Shape, left: Drafts) -> bool:
    totals = _totals(first)
    if not totals or (first.rows and first.stores):
        return False
    if _full(first) != full or first.guards != last.guards:
        return False
    reduced = totals[0].value.shape
    if any(s.value.shape != reduced for s in _totals(last)):
        return False
    rows, size = math.prod(reduced), math.prod(full)
    if size == rows or (rows < LEAST_ROWS and size > SMALL):
        return False
    if left.waits(last.after - {first.order}, first.order):
        return False
    if left.depth(first) + left.depth(last) > DEEPEST:
        return False
    values = _values([*_known(first, last), *totals])
    written = {s.target for s in (*totals, *last.stores, *last.totals)}
    if any(n.op is Op.BUFFER and n.arg in written for n in toposort(values)):
        return False
    if last.core is None and _reads_across(values[: len(last.stores)], _cores(values)):
        return False
    return _by_row(values, reduced, full)


def _known(first: KernelDraft, last: KernelDraft) -> list[Store]:
    """The stores of `last`, totals after the others, with what `first` computes in its place."""
    stores = [*last.stores, *last.totals]
    known: dict[Node, Node] = {}
    for total in _totals(first):
        place = base(total.place, {Op.RESHAPE})  # others may read it in another shape
        known[place] = move(Op.RESHAPE, total.value, place.shape)
    values = substitute(_values(stores), known)
    return [Store(s.place, v, s.adds) for s, v in zip(stores, values, strict=True)]


def _values(stores: Iterable[Store]) -> list[Node]:
    return [s.value for s in stores]


def _cores(values: Sequence[Node]) -> list[Node]:
    """Reductions inside, each after those that it needs."""
    return [n for n in toposort(values) if n.op in REDUCE]


def _by_row(values: Sequence[Node], reduced: Shape, full: Shape) -> bool:
    """Whether totals are needed only where their own row is computed."""
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
            source, moved = through(node)
            wanted.append((source, tuple(unravel(moved.index(indices)[0], source.shape))))
        elif any(n in cores for n in toposort([node])):
            return False
    return True


def _reads_across(elements: Sequence[Node], cores: Sequence[Node]) -> bool:
    """Whether elements need again what lies along another axis, as in a transpose, and is not kept:
    a kernel of their own does that in tiles.
    """
    known = {n for keeps in kept([*([c.src[0]] for c in cores), elements], 0) for n in keeps}
    stack, seen = list(elements), set(known)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ELEMENTWISE:
            stack += node.src
        elif node.op in MOVEMENT:
            views = through(node)[1].views
            if len(views) > 1:  # their strides say nothing of what is read
                continue
            strides = [abs(s) for s in views[0].strides]
            long = [s for s, n in zip(strides, node.shape, strict=True) if n >= FAR]
            if strides and strides[-1] > 1 and strides[-1] in long and 1 in long:
                return True
    return False


def _fuse(first: KernelDraft, last: KernelDraft, left: Drafts, lasting: set[Buffer]) -> None:
    """All that `first` does, `last` does too; who waited for the one waits for the other."""
    full, stores, totals = _full(last), _known(first, last), _totals(first)
    assert full is not None
    others = left.users(first) - {last.order}
    kept = [s for s in totals if others or s.target in lasting]
    elements = len(last.stores) if last.core is None else 0
    last.stores, last.totals = stores[:elements], [*stores[elements:], *kept]
    last.rows = tuple(_cores(_values([*stores, *kept])))
    last.shape, last.core = full, None
    last.needs -= {s.place for s in totals}
    last.old |= first.old
    left.join(first, last)


# --- what is kept ---


def kept(roots: Sequence[Sequence[Node]], loads: int) -> list[list[Node]]:
    """Which values of each stage are kept for later ones; `loads` is what a load costs."""
    first: dict[Node, int] = {}
    found: list[list[Node]] = [[] for _ in roots]
    costs: dict[Node, int] = {}
    size = roots[0][0].size
    for stage, wanted in enumerate(roots):
        stack, seen = list(wanted), set[Node]()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            known = first.get(node, stage) < stage
            if known and _cost(node, size, loads, costs) >= COSTLY:
                found[first[node]].append(node)
            elif node.op in ELEMENTWISE:
                stack += node.src
        for node in seen:
            first.setdefault(node, stage)
    return [list(dict.fromkeys(nodes)) for nodes in found]


def _cost(node: Node, size: int, loads: int, known: dict[Node, int]) -> int:
    """Operations that each element of a row takes: none where all elements share one value."""
    if node not in known:
        known[node] = 0
        if node.op in ELEMENTWISE:
            inner = sum(_cost(s, size, loads, known) for s in node.src)
            own = COSTS.get(node.op, 1) if any(_varies(s, size) for s in node.src) else 0
            known[node] = inner + own
        elif node.op in MOVEMENT and _varies(node, size):
            known[node] = _cost(base(node), size, loads, known)
        elif node.op is Op.GATHER or (node.op in (Op.BUFFER, Op.PART) and node.size >= size):
            known[node] = loads
    return known[node]


def _varies(node: Node, size: int) -> bool:
    """Whether a value is one of each element, not one that many share."""
    return base(node).size >= size
