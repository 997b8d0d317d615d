"""Memory planning: intermediate Buffers with disjoint live ranges share bytes.

In: the final Procedure. Out: a byte offset for each intermediate, in one arena or in a few
allocations.

Buffers are placed in order of size, the largest first. With one arena each goes to the lowest free
offset (first fit); a device that cannot slice an allocation has each Buffer at the start of one.
Offsets respect the device's alignment. Two Buffers that are live at the same time must not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Procedure


@dataclass(frozen=True)
class MemoryPlan:
    """The place of each intermediate, and the allocations that hold them."""

    offsets: dict[Buffer, int]  # bytes from the beginning of the first allocation
    live_ranges: dict[Buffer, tuple[int, int]]  # positions of the first and last kernel that use it
    allocations: tuple[int, ...]  # bytes of each, one after the other: one arena, or several
    separate_bytes: int  # what the intermediates would take if none shared bytes

    @property
    def arena_bytes(self) -> int:
        return sum(self.allocations)

    def allocation_offsets(self) -> list[int]:
        """The byte offset at which each allocation begins."""
        return [sum(self.allocations[:i]) for i in range(len(self.allocations))]

    def live_before(self, position: int) -> list[Buffer]:
        """Intermediates that an earlier kernel wrote and kernel `position` or a later one reads."""
        return [b for b, (first, last) in self.live_ranges.items() if first < position <= last]

    def summary(self) -> str:
        saved = 1 - self.arena_bytes / self.separate_bytes if self.separate_bytes else 0.0
        return f"using {self.arena_bytes:,} of {self.separate_bytes:,} bytes, saves {saved:.0%}"

    def render(self) -> str:
        """A picture of the arena: a row for each Buffer by offset, a column for each kernel."""
        last = max((end for _, end in self.live_ranges.values()), default=-1)
        lines = [self.summary()]
        for storage, offset in sorted(self.offsets.items(), key=lambda item: item[1]):
            begin, end = self.live_ranges[storage]
            alive = "." * begin + "#" * (end - begin + 1) + "." * (last - end)
            lines.append(f"{offset:>12,}  {alive}  {storage}")
        return "\n".join(lines)


def live_ranges(procedure: Procedure) -> dict[Buffer, tuple[int, int]]:
    """Positions of the first and the last kernel that touch each intermediate.

    A Buffer that a loop carries or captures is live in all kernels of the loop. A Buffer that a
    kernel of the second queue touches is live until both queues join.
    """
    ranges: dict[Buffer, tuple[int, int]] = {}
    buffers = set(procedure.intermediates())
    for position, kernel in enumerate(procedure.kernels):
        for storage in [*kernel.reads(), *kernel.writes()]:
            if storage in buffers:
                first, _ = ranges.get(storage, (position, position))
                ranges[storage] = (first, position)
    for begin, end, loop in procedure.loops():
        for storage in loop.buffers_across_iterations & ranges.keys():
            first, last = ranges[storage]
            ranges[storage] = (min(first, begin), max(last, end))
    if (side := procedure.side) is not None:
        for kernel in procedure.kernels[side.begin : side.end]:
            for storage in ranges.keys() & {*kernel.reads(), *kernel.writes()}:
                first, last = ranges[storage]
                ranges[storage] = first, max(last, side.join - 1)
    return ranges


def plan_memory(procedure: Procedure, align: int, slices: bool = True) -> MemoryPlan:
    """Place every intermediate, the largest first, at multiples of `align` bytes.

    With `slices` each goes to the lowest offset that is free while it is live. Without, it gets the
    smallest allocation that is free while it is live, or a new one.
    """
    ranges = live_ranges(procedure)
    buffers = sorted(ranges, key=lambda b: (-b.nbytes, ranges[b]))
    offsets, allocations = (_pack_into_arena if slices else _share_allocations)(
        buffers, ranges, align
    )
    separate = sum(_round_up(b.nbytes, align) for b in ranges)
    return MemoryPlan(offsets, ranges, allocations, separate)


LiveRanges = dict[Buffer, tuple[int, int]]
Placement = tuple[dict[Buffer, int], tuple[int, ...]]  # offsets, and bytes of each allocation


def _pack_into_arena(buffers: Sequence[Buffer], ranges: LiveRanges, align: int) -> Placement:
    offsets: dict[Buffer, int] = {}
    # A column for each Buffer placed so far, sorted by its first byte. Ends are rounded up.
    begins, ends, since, until = placed = np.zeros((4, len(buffers)), np.int64)
    for count, storage in enumerate(buffers):
        first, last = ranges[storage]
        is_live = (since[:count] <= last) & (first <= until[:count])  # while this Buffer is
        lows, highs = begins[:count][is_live], ends[:count][is_live]
        # Where the gap before each of these begins, and the one after all of them.
        gaps = np.maximum.accumulate(np.append(0, highs))
        fits = np.flatnonzero(gaps[:-1] + storage.nbytes <= lows)
        offsets[storage] = begin = int(gaps[fits[0] if fits.size else -1])
        at = int(np.searchsorted(begins[:count], begin))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = begin, begin + _round_up(storage.nbytes, align), first, last
    return offsets, (int(ends.max()),) if buffers else ()


def _share_allocations(buffers: Sequence[Buffer], ranges: LiveRanges, align: int) -> Placement:
    shared: list[list[Buffer]] = []  # the Buffers of each allocation, the largest one first

    def is_free(tenants: Sequence[Buffer], storage: Buffer) -> bool:
        return not any(spans_overlap(ranges[b], ranges[storage]) for b in tenants)

    for storage in buffers:
        tenants = next((t for t in reversed(shared) if is_free(t, storage)), None)
        if tenants is None:
            shared.append([storage])
        else:
            tenants.append(storage)
    sizes = tuple(_round_up(tenants[0].nbytes, align) for tenants in shared)
    return {b: sum(sizes[:i]) for i, tenants in enumerate(shared) for b in tenants}, sizes


def spans_overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two inclusive ranges have a position in common."""
    return a[0] <= b[1] and b[0] <= a[1]


def _round_up(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align
