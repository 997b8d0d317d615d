"""Splitting elementwise work on a concatenation, so that it fuses with the kernel of the parts.

In and out: kernel drafts, changed in place.

A kernel with several outputs, such as the channels of a convolution, stores them one after the
other as the parts of a concatenation. An elementwise kernel that follows, an activation or a mask,
has another shape and must wait until all parts are in memory. Split into the same parts it has the
shape of the kernel before it, so that merge.py can fuse both. A kernel is split only if it reads
nothing of the parts but the element that it computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from imgmlp.engine.ir.graph import Buffer, Node, Shape, base, const, make, move, toposort
from imgmlp.engine.ir.kernel import Store, access, is_plain, leaves, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.passes.drafts import KernelDraft

MAX_CONCAT_PARTS = 4  # the split kernel repeats its expression for each part

Parts = dict[Buffer, Node]  # for one index of the first axis: where each Buffer has that part


def split_at_concatenations(drafts: Sequence[KernelDraft]) -> None:
    """Split elementwise kernels like earlier ones whose stores they read element by element."""
    by_order = {d.order: d for d in drafts}
    for draft in sorted(drafts, key=lambda d: d.order):
        for order in sorted(draft.predecessors, reverse=True) if _is_map(draft) else ():
            first = by_order[order]
            if not _is_map(first) or first.guards != draft.guards:
                continue
            stores = _split_stores(draft, first.shape, _stored_parts(first, draft))
            if stores:
                draft.shape, draft.stores = first.shape, stores
                break


def _is_map(draft: KernelDraft) -> bool:
    return draft.core is None and draft.loop is None and not draft.row_reductions


def _stored_parts(first: KernelDraft, draft: KernelDraft) -> list[Parts]:
    """Where `first` stores what `draft` reads, for each index of the first axis of `draft`.

    Empty if the stores of `first` are not just these parts.
    """
    count, size = draft.shape[0] if draft.shape else 0, math.prod(first.shape)
    if not 1 < count <= MAX_CONCAT_PARTS or math.prod(draft.shape) != count * size:
        return []
    read = {storage(place) for place in draft.places_read}
    stored: list[Parts] = [{} for _ in range(count)]
    for target in read & {s.target for s in first.stores}:
        places = [s.place for s in first.stores if s.target is target]
        if len(places) != count:
            return []
        for parts, place in zip(stored, places, strict=True):
            parts[target] = place
    return stored if stored[0] else []


def _split_stores(draft: KernelDraft, shape: Shape, parts: Sequence[Parts]) -> list[Store]:
    """The stores for each part; empty if one reads more of the parts than its own element."""
    stores = []
    for number, own in enumerate(parts):
        places: dict[Node, Node] = {}
        for node in leaves(draft.stores):
            moved = _slice_part(node, number, shape)
            if any(n.op is Op.BUFFER and n.arg in own for n in toposort([node])):
                place = own.get(storage(node)) if base(node).op is Op.BUFFER else None
                if place is None or not _are_same_elements(moved, place):
                    return []
                moved = place
            places[node] = moved
        for store in draft.stores:
            place = _slice_part(store.place, number, shape)
            if not is_plain(place):
                return []
            stores.append(Store(place, _substitute_leaves(store.value, shape, places), store.adds))
    return stores


def _slice_part(node: Node, number: int, shape: Shape) -> Node:
    """The slice of a value at one index of its first axis, reshaped."""
    whole = [(0, n) for n in node.shape[1:]]
    return move(Op.RESHAPE, move(Op.SHRINK, node, ((number, number + 1), *whole)), shape)


def _are_same_elements(a: Node, b: Node) -> bool:
    """Whether two views of one Buffer have the same elements in the same order."""
    indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(a.shape)]
    return access(a).index(indices) == access(b).index(indices)


def _substitute_leaves(value: Node, shape: Shape, leaves: Mapping[Node, Node]) -> Node:
    """The same expression over other leaves, which have another shape."""
    done = dict(leaves)
    for n in toposort([value], lambda n: () if n in leaves else n.src):
        if n.op is Op.CONST:
            done[n] = const(n.arg, n.dtype, shape)
        elif n not in done:
            done[n] = make(n.op, tuple(done[s] for s in n.src), n.arg, shape, n.dtype)
    return done[value]
