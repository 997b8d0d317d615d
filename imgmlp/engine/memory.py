"""Where intermediates lie: lifetimes packed into one arena.

Two Buffers share bytes when no kernel needs both. Offsets respect the device's alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imgmlp.engine.graph import Buffer
from imgmlp.engine.kernel import Procedure


@dataclass(frozen=True)
class Plan:
    """Offsets in bytes of each intermediate, and how large the arena must be."""

    offsets: dict[Buffer, int]
    lifetimes: dict[Buffer, tuple[int, int]]  # first and last kernel that needs it
    arena_bytes: int
    separate_bytes: int  # what the intermediates would take side by side

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
    """Positions of the first and the last kernel that touch each intermediate."""
    found: dict[Buffer, tuple[int, int]] = {}
    wanted = set(procedure.intermediates())
    for position, kernel in enumerate(procedure.kernels):
        for storage in [*kernel.reads(), *kernel.writes()]:
            if storage in wanted:
                first, _ = found.get(storage, (position, position))
                found[storage] = (first, position)
    return found


def plan(procedure: Procedure, align: int) -> Plan:
    """Largest first, each at the lowest offset that nobody alive at the same time covers."""
    lives = lifetimes(procedure)
    placed: list[tuple[int, int, Buffer]] = []  # begin, end, who
    for storage in sorted(lives, key=lambda b: (-b.nbytes, lives[b])):
        neighbours = [p for p in placed if _overlap(lives[p[2]], lives[storage])]
        begin = _gap(sorted(neighbours, key=lambda p: p[0]), storage.nbytes, align)
        placed.append((begin, begin + storage.nbytes, storage))
    arena = max((end for _, end, _ in placed), default=0)
    separate = sum(_rounded(b.nbytes, align) for b in lives)
    offsets = {storage: begin for begin, _, storage in placed}
    return Plan(offsets, lives, _rounded(arena, align), separate)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _gap(taken: Sequence[tuple[int, int, Buffer]], nbytes: int, align: int) -> int:
    begin = 0
    for low, high, _ in taken:
        if begin + nbytes <= low:
            break
        begin = max(begin, _rounded(high, align))
    return begin


def _rounded(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align
