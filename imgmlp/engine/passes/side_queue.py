"""What of a step gets a queue of its own, beside the rest.

Launches of one queue run one after the other: each waits until the last group of the one before is
done, and a small one leaves most of a device idle. Where a step has a block that nothing waits for
but its end, as the bits of latents have beside the picture's error, the block and what follows from
it run at the same time as all else. Both are put into launches by themselves. What is computed at
the same time also lies in memory at the same time, so blocks of many rows, which fill a device by
themselves, are left in one queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.ir.kernel import Block, Phase, Procedure, Side
from imgmlp.engine.passes.horizontal_fusion import Level, numbered, put_in
from imgmlp.engine.passes.persistent import operations

# Rows of a block, at most. In two queues a latent codec's step has 323 bytes a pixel, and not 294,
# and is 8% faster with 0.6 million of them, 3% with 10 and 2% with 19 (an H200).
MOST_ASIDE = 12 * 2**20


@dataclass(frozen=True)
class _Branch:
    """Numbers of a Procedure's items: a block and all that follows from it alone, what that waits
    for, and what waits for that and for others."""

    own: frozenset[int]
    before: frozenset[int]
    behind: frozenset[int]


def rows_aside(procedure: Procedure) -> int:
    """Rows of the block that would run beside others, before anything is fused; 0 without one."""
    branch = _found(procedure)
    own = () if branch is None else (procedure.items[n] for n in branch.own)
    return next((item.batch for item in own if isinstance(item, Block)), 0)


def _found(procedure: Procedure) -> _Branch | None:
    items = [item for item in procedure.items if isinstance(item, Phase)]
    if len(items) < len(procedure.items):
        return None  # as loops know no queues
    return _branch(items, _waits([Level.of(item) for item in items]))


def fuse_aside(procedure: Procedure) -> Procedure | None:
    """The same kernels in fewer launches, some of which may run beside others; None if there is
    nothing to set apart, which is left to `fuse` then."""
    branch = _found(procedure)
    if branch is None:
        return None
    items = [item for item in procedure.items if isinstance(item, Phase)]
    levels = [Level.of(item) for item in items]
    own, rest = list[Level](), list[Level]()
    others = [n for n in range(len(items)) if n not in branch.own | branch.behind]
    for number in others:
        put_in(rest, Level.of(items[number]))
    for number in sorted(branch.own):
        put_in(own, Level.of(items[number]))
    fork = _behind(rest, [levels[n] for n in branch.before])
    join = len(rest) - 1
    for number in sorted(branch.behind):
        put_in(rest, Level.of(items[number]), max(join, fork))
    last = next((n for n in range(fork, len(rest)) if any(o.meets(rest[n]) for o in own)), 0)
    if not fork or not last:
        return None
    placed = [*rest[:fork], *own, *rest[fork:]]
    side = Side(fork, fork + len(own), last + len(own))
    launches = tuple(level.launch() for level in placed)
    return numbered(replace(procedure, items=launches, side=side))


def _waits(levels: Sequence[Level]) -> list[set[int]]:
    """For each item the numbers of those before it that must be over when it begins."""
    return [
        {n for n, other in enumerate(levels[:number]) if other.meets(level)}
        for number, level in enumerate(levels)
    ]


def _branch(items: Sequence[Phase], waits: Sequence[set[int]]) -> _Branch | None:
    """The one beside which most is left, and which is most itself, whichever of both is less."""
    blocks = {n: item.batch for n, item in enumerate(items) if isinstance(item, Block)}
    if max(blocks.values(), default=0) > MOST_ASIDE:
        return None
    everything, found = set(range(len(items))), list[tuple[int, _Branch]]()

    def busy(numbers: Iterable[int]) -> int:
        return sum(operations(items[n]) for n in numbers)

    for block in blocks:
        own, before, behind = {block}, _before(block, waits), set[int]()
        for number in range(block + 1, len(items)):
            if waits[number] & (own | behind):
                (own if waits[number] <= own | before else behind).add(number)
        beside = everything - own - before - behind
        if blocks.keys() & beside and behind:
            branch = _Branch(frozenset(own), frozenset(before), frozenset(behind))
            found.append((min(busy(own), busy(beside)), branch))
    return max(found, key=lambda pair: pair[0], default=(0, None))[1]


def _before(number: int, waits: Sequence[set[int]]) -> set[int]:
    """All that an item waits for, also by way of others."""
    found, stack = set[int](), [number]
    while stack:
        more = waits[stack.pop()] - found
        found |= more
        stack += more
    return found


def _behind(levels: Sequence[Level], needed: Sequence[Level]) -> int:
    """How many levels there are up to the last one that has one of these."""
    wanted = {id(item) for level in needed for item in level.items}
    holding = [n for n, level in enumerate(levels) if wanted & {id(i) for i in level.items}]
    return max(holding, default=-1) + 1
