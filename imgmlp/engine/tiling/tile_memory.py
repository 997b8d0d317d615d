"""The memory of a tile: where the kernels of a block leave values for one another.

A value has a part of a Buffer in each group. That is free again once the last kernel that reads it
has run, and for a value of the same layout already in that kernel if it is read only at the
element that is being computed. So a tile needs as much memory as its values that are alive at one
time, which decides whether that stays in a cache or in local memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.ir.graph import Buffer, Node, move, substitute
from imgmlp.engine.ir.kernel import Kernel, Store, read_at_element_only
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op

TileBuffers = dict[Buffer, Node]  # each with the Node for what belongs to the running group


@dataclass
class _Slot:
    """Memory that several values have in turns."""

    first: Buffer  # whose Buffer it is
    owner: Buffer  # who has it now
    last: int  # the kernel that reads or writes this owner last


def share(kernels: Sequence[Kernel], buffers: TileBuffers) -> list[Kernel]:
    """The kernels of a tile, in as few Buffers as can take turns."""
    last = {b: i for i, k in enumerate(kernels) for b in (*k.reads(), *k.writes()) if b in buffers}
    slots: list[_Slot] = []
    placed: dict[Node, Node] = {}
    for i, kernel in enumerate(kernels):
        for value in [b for b in kernel.writes() if b in buffers]:
            if buffers[value] in placed:
                continue
            slot = next((s for s in slots if _takes(s, value, i, kernel, buffers)), None)
            if slot is None:
                slots.append(slot := _Slot(value, value, last[value]))
            slot.owner, slot.last = value, last[value]
            placed[buffers[value]] = _begin(buffers[slot.first], buffers[value])
    return [moved(k, placed) for k in kernels]


def _takes(slot: _Slot, value: Buffer, i: int, kernel: Kernel, buffers: TileBuffers) -> bool:
    """Whether kernel i may fill this slot with another value."""
    if slot.first.dtype is not value.dtype or not _fits(slot.first, value) or slot.last > i:
        return False
    return slot.last < i or _in_place(kernel, slot.owner, value, buffers)


def _fits(first: Buffer, value: Buffer) -> bool:
    if isinstance(first, LocalBuffer):
        return first.takes(value)
    return not isinstance(value, LocalBuffer) and first.size >= value.size


def _in_place(kernel: Kernel, old: Buffer, new: Buffer, buffers: TileBuffers) -> bool:
    stores = [s for s in kernel.stores if s.target is new]
    if len(stores) != 1 or old.size != new.size or kernel.rows:
        return False
    (leaf,) = substitute([stores[0].place], {buffers[new]: buffers[old]})
    return read_at_element_only([s.value for s in kernel.all_stores()], old, {leaf})


def _begin(slot: Node, value: Node) -> Node:
    return slot if value.size == slot.size else move(Op.SHRINK, slot, ((0, 1), (0, value.size)))


def moved(kernel: Kernel, placed: dict[Node, Node]) -> Kernel:
    """The kernel with some of its Nodes replaced by others of the same shape and dtype."""
    inside = [*kernel.rows, *([] if kernel.core is None else [kernel.core])]
    roots = [*inside, *(n for s in kernel.all_stores() for n in (s.place, s.value))]
    found = dict(zip(roots, substitute(roots, placed), strict=True))

    def stores(given: Sequence[Store]) -> tuple[Store, ...]:
        return tuple(replace(s, place=found[s.place], value=found[s.value]) for s in given)

    return replace(
        kernel,
        stores=stores(kernel.stores),
        core=kernel.core and found[kernel.core],
        sums=kernel.sums and stores([kernel.sums])[0],
        rows=tuple(found[n] for n in kernel.rows),
        totals=stores(kernel.totals),
    )
