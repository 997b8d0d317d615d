"""Where intermediates lie: lifetimes packed into one arena, or into a few whole allocations.

Two Buffers share bytes when no kernel needs both. Offsets respect the device's alignment; a
device that cannot slice an allocation has each Buffer at the start of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Procedure


@dataclass(frozen=True)
class Plan:
    """Offsets in bytes of each intermediate, and how large the arena must be.

    `allocations` are what the arena consists of, side by side: itself, or whole buffers.
    """

    offsets: dict[Buffer, int]
    lifetimes: dict[Buffer, tuple[int, int]]  # first and last kernel that needs it
    allocations: tuple[int, ...]  # bytes of each
    separate_bytes: int  # what the intermediates would take side by side

    @property
    def arena_bytes(self) -> int:
        return sum(self.allocations)

    def starts(self) -> list[int]:
        """The offset at which each allocation begins."""
        return [sum(self.allocations[:i]) for i in range(len(self.allocations))]

    def holding(self, position: int) -> list[Buffer]:
        """The intermediates whose content kernel `position`, or a later one, still needs."""
        return [b for b, (first, last) in self.lifetimes.items() if first < position <= last]

    def summary(self) -> str:
        saved = 1 - self.arena_bytes / self.separate_bytes if self.separate_bytes else 0.0
        return f"using {self.arena_bytes:,} of {self.separate_bytes:,} bytes, saves {saved:.0%}"

    def render(self) -> str:
        """A picture of the arena: a row a buffer by offset, a column a kernel while it lives."""
        last = max((end for _, end in self.lifetimes.values()), default=-1)
        lines = [self.summary()]
        for storage, offset in sorted(self.offsets.items(), key=lambda item: item[1]):
            begin, end = self.lifetimes[storage]
            alive = "." * begin + "#" * (end - begin + 1) + "." * (last - end)
            lines.append(f"{offset:>12,}  {alive}  {storage}")
        return "\n".join(lines)


def lifetimes(procedure: Procedure) -> dict[Buffer, tuple[int, int]]:
    """Positions of the first and the last kernel that touch each intermediate.

    What lasts from one iteration of a loop to the next is needed by all of its kernels. What
    kernels beside others touch ends no sooner than these others, so that both are there at once.
    """
    found: dict[Buffer, tuple[int, int]] = {}
    wanted = set(procedure.intermediates())
    for position, kernel in enumerate(procedure.kernels):
        for storage in [*kernel.reads(), *kernel.writes()]:
            if storage in wanted:
                first, _ = found.get(storage, (position, position))
                found[storage] = (first, position)
    for begin, end, loop in procedure.loops():
        for storage in loop.lasting & found.keys():
            first, last = found[storage]
            found[storage] = (min(first, begin), max(last, end))
    if (side := procedure.side) is not None:
        for kernel in procedure.kernels[side.begin : side.end]:
            for storage in found.keys() & {*kernel.reads(), *kernel.writes()}:
                first, last = found[storage]
                found[storage] = first, max(last, side.join - 1)
    return found


def plan(procedure: Procedure, align: int, slices: bool = True) -> Plan:
    """Where every intermediate lies; `align` is in bytes. Largest first.

    With `slices` each goes to the lowest offset that nobody alive at the same time covers,
    without them into the smallest allocation that nobody needs as long as it lives.
    """
    lives = lifetimes(procedure)
    wanted = sorted(lives, key=lambda b: (-b.nbytes, lives[b]))
    offsets, allocations = (_pack if slices else _pool)(wanted, lives, align)
    separate = sum(_rounded(b.nbytes, align) for b in lives)
    return Plan(offsets, lives, allocations, separate)


Lives = dict[Buffer, tuple[int, int]]
Placed = tuple[dict[Buffer, int], tuple[int, ...]]  # offsets, and sizes of the allocations


def _pack(wanted: Sequence[Buffer], lives: Lives, align: int) -> Placed:
    offsets: dict[Buffer, int] = {}
    # ends are rounded up; rows in order of begins
    begins, ends, since, until = placed = np.zeros((4, len(wanted)), np.int64)
    for count, storage in enumerate(wanted):
        first, last = lives[storage]
        meets = (since[:count] <= last) & (first <= until[:count])
        lows, highs = begins[:count][meets], ends[:count][meets]
        free = np.maximum.accumulate(
            np.append(0, highs)
        )  # from where on, before each and after all
        fits = np.flatnonzero(free[:-1] + storage.nbytes <= lows)
        offsets[storage] = begin = int(free[fits[0] if fits.size else -1])
        at = int(np.searchsorted(begins[:count], begin))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = begin, begin + _rounded(storage.nbytes, align), first, last
    return offsets, (int(ends.max()),) if wanted else ()


def _pool(wanted: Sequence[Buffer], lives: Lives, align: int) -> Placed:
    users: list[list[Buffer]] = []  # of each allocation; the first one is the largest
    for storage in wanted:
        free = (u for u in reversed(users) if not any(overlap(lives[b], lives[storage]) for b in u))
        found = next(free, None)
        if found is None:
            users.append([storage])
        else:
            found.append(storage)
    sizes = tuple(_rounded(u[0].nbytes, align) for u in users)
    return {b: sum(sizes[:i]) for i, u in enumerate(users) for b in u}, sizes


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two spans, from a first to a last one, have any in common."""
    return a[0] <= b[1] and b[0] <= a[1]


def _rounded(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align
