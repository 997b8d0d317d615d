"""Buffer allocation within a tile: intermediate values with disjoint live ranges share a Buffer.

In: the kernels of a tile in order, and its Buffers. Out: the same kernels in fewer Buffers.

A value has a part of a Buffer in each work-group. The part is free after the last kernel that reads
it. A value of the same size may even overwrite it in that kernel, if the old value is read only at
the element that is computed. A tile then needs the memory of the values live at one time, which
decides whether it stays in a cache or in local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.ir.graph import Buffer, Node, move, substitute
from imgmlp.engine.ir.kernel import Kernel, Store, read_at_element_only
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op

TileBuffers = dict[Buffer, Node]  # each Buffer, and the Node of the running group's part of it


@dataclass
class _Slot:
    """Memory that holds several values, one after the other."""

    first: Buffer  # the Buffer of the first value, which all of them share
    owner: Buffer  # the Buffer of the current value
    last: int  # the last kernel that reads or writes the current value


def share_buffers(kernels: Sequence[Kernel], buffers: TileBuffers) -> list[Kernel]:
    """The kernels of a tile, with values in Buffers that are shared where possible."""
    last = {b: i for i, k in enumerate(kernels) for b in (*k.reads(), *k.writes()) if b in buffers}
    slots: list[_Slot] = []
    placed: dict[Node, Node] = {}
    for i, kernel in enumerate(kernels):
        for value in [b for b in kernel.writes() if b in buffers]:
            if buffers[value] in placed:
                continue
            slot = next((s for s in slots if _can_hold(s, value, i, kernel, buffers)), None)
            if slot is None:
                slots.append(slot := _Slot(value, value, last[value]))
            slot.owner, slot.last = value, last[value]
            placed[buffers[value]] = _begin(buffers[slot.first], buffers[value])
    return [replace_nodes(k, placed) for k in kernels]


def _can_hold(slot: _Slot, value: Buffer, i: int, kernel: Kernel, buffers: TileBuffers) -> bool:
    """Whether kernel i may store another value in this slot."""
    if slot.first.dtype is not value.dtype or not _fits(slot.first, value) or slot.last > i:
        return False
    return slot.last < i or _in_place(kernel, slot.owner, value, buffers)


def _fits(first: Buffer, value: Buffer) -> bool:
    if isinstance(first, LocalBuffer):
        return first.has_layout_of(value)
    return not isinstance(value, LocalBuffer) and first.size >= value.size


def _in_place(kernel: Kernel, old: Buffer, new: Buffer, buffers: TileBuffers) -> bool:
    stores = [s for s in kernel.stores if s.target is new]
    if len(stores) != 1 or old.size != new.size or kernel.row_reductions:
        return False
    (leaf,) = substitute([stores[0].place], {buffers[new]: buffers[old]})
    return read_at_element_only([s.value for s in kernel.all_stores()], old, {leaf})


def _begin(slot: Node, value: Node) -> Node:
    return slot if value.size == slot.size else move(Op.SHRINK, slot, ((0, 1), (0, value.size)))


def replace_nodes(kernel: Kernel, placed: dict[Node, Node]) -> Kernel:
    """The kernel with some of its Nodes replaced by others of the same shape and dtype."""
    inside = [*kernel.row_reductions, *([] if kernel.core is None else [kernel.core])]
    roots = [*inside, *(n for s in kernel.all_stores() for n in (s.place, s.value))]
    replacements = dict(zip(roots, substitute(roots, placed), strict=True))

    def stores(given: Sequence[Store]) -> tuple[Store, ...]:
        return tuple(
            replace(s, place=replacements[s.place], value=replacements[s.value]) for s in given
        )

    return replace(
        kernel,
        stores=stores(kernel.stores),
        core=kernel.core and replacements[kernel.core],
        column_sums=kernel.column_sums and stores([kernel.column_sums])[0],
        row_reductions=tuple(replacements[n] for n in kernel.row_reductions),
        row_stores=stores(kernel.row_stores),
    )
