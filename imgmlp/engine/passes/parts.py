"""Elementwise work on a concatenation becomes work on its parts, which joins the kernels that
compute these.

A kernel that gives several outputs at once, such as the channels of a convolution, leaves them one
behind the other. What follows, an activation or a mask, is one kernel of another shape, which has
to wait until all of them stand in memory. Cut along the same lines it has the shape of the kernel
before, so that `merge` can make one of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, Shape, base, const, make, move, toposort
from imgmlp.engine.ir.kernel import KernelDraft, Store, access, is_plain, leaves, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var

MOST_PARTS = 4  # of a concatenation; what follows is written out for each of them

Parts = dict[Buffer, Node]  # the place of one part of each


def cut_like_sources(drafts: Sequence[KernelDraft]) -> None:
    """Cut each elementwise kernel as one before it is, if it reads what that one stores and nothing
    else of it than the element that it computes."""
    by_order = {d.order: d for d in drafts}
    for draft in sorted(drafts, key=lambda d: d.order):
        for order in sorted(draft.after, reverse=True) if _is_map(draft) else ():
            first = by_order[order]
            if not _is_map(first) or first.guards != draft.guards:
                continue
            stores = _cut(draft, first.shape, _parts(first, draft))
            if stores:
                draft.shape, draft.stores = first.shape, stores
                break


def _is_map(draft: KernelDraft) -> bool:
    return draft.core is None and draft.loop is None and not draft.rows


def _parts(first: KernelDraft, draft: KernelDraft) -> list[Parts]:
    """Where a kernel stores what another one reads, for each index of that one's first axis; empty
    if they are not so many and of that size."""
    count, size = draft.shape[0] if draft.shape else 0, math.prod(first.shape)
    if not 1 < count <= MOST_PARTS or math.prod(draft.shape) != count * size:
        return []
    read = {storage(place) for place in draft.needs}
    found: list[Parts] = [{} for _ in range(count)]
    for target in read & {s.target for s in first.stores}:
        places = [s.place for s in first.stores if s.target is target]
        if len(places) != count:
            return []
        for parts, place in zip(found, places, strict=True):
            parts[target] = place
    return found if found[0] else []


def _cut(draft: KernelDraft, shape: Shape, parts: Sequence[Parts]) -> list[Store]:
    """A kernel's stores for each part; none if one reads more of the parts than its own element."""
    found = []
    for number, own in enumerate(parts):
        places: dict[Node, Node] = {}
        for node in leaves(draft.stores):
            moved = _part_of(node, number, shape)
            if any(n.op is Op.BUFFER and n.arg in own for n in toposort([node])):
                place = own.get(storage(node)) if base(node).op is Op.BUFFER else None
                if place is None or not _same(moved, place):
                    return []
                moved = place
            places[node] = moved
        for store in draft.stores:
            place = _part_of(store.place, number, shape)
            if not is_plain(place):
                return []
            found.append(Store(place, _value(store.value, shape, places), store.adds))
    return found


def _part_of(node: Node, number: int, shape: Shape) -> Node:
    """One index of the first axis, in another shape."""
    whole = [(0, n) for n in node.shape[1:]]
    return move(Op.RESHAPE, move(Op.SHRINK, node, ((number, number + 1), *whole)), shape)


def _same(a: Node, b: Node) -> bool:
    """Whether two views of one Buffer have the same elements."""
    indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(a.shape)]
    return access(a).index(indices) == access(b).index(indices)


def _value(value: Node, shape: Shape, leaves: Mapping[Node, Node]) -> Node:
    """An expression of other leaves, which have another shape."""
    done = dict(leaves)
    for n in toposort([value], lambda n: () if n in leaves else n.src):
        if n.op is Op.CONST:
            done[n] = const(n.arg, n.dtype, shape)
        elif n not in done:
            done[n] = make(n.op, tuple(done[s] for s in n.src), n.arg, shape, n.dtype)
    return done[value]
