"""Two queues: a block that little depends on runs at the same time as the rest of the step.

In: a scheduled Procedure without loops. Out: the same kernels, fused into launches as in
horizontal_fusion.py, some of which are marked (`SideQueue`) to run in a second queue; or None.

Launches of one queue run one after the other: each waits for the last work-group of the one
before, and a small launch leaves most of a device idle. In some steps only the end depends on a
block, such as the one for the bits of latents, beside that for the picture's error. That block and
what depends on it alone go to the second queue. The pass picks the block for which the smaller of
the two queues has most operations. Values that are computed at the same time lie in memory at the
same time, so blocks of many rows, which fill a device by themselves, stay in the main queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from imgmlp.engine.ir.kernel import Block, Phase, Procedure, SideQueue
from imgmlp.engine.passes.horizontal_fusion import Level, number_launches, place_in_level
from imgmlp.engine.passes.persistent import phase_operations

# Rows of a block in the second queue. On an H200 (docs/performance-notes.md, "Two queues")
# a latent codec's step takes 323 instead of 294 bytes a pixel in two queues, and is 8% faster with
# 0.6 million rows, 3% with 10 million and 2% with 19 million.
MAX_SIDE_BLOCK_ROWS = 12 * 2**20


@dataclass(frozen=True)
class _Branch:
    """A part of a Procedure that can run beside the rest, as numbers of the Procedure's items."""

    own: frozenset[int]  # a block, and what depends on it and its ancestors alone
    ancestors: frozenset[int]  # what the block depends on
    joined: frozenset[int]  # what depends on `own` and on other items


def side_block_rows(procedure: Procedure) -> int:
    """Rows of the block that would run in the second queue of an unfused Procedure, or 0."""
    branch = _find_branch(procedure)
    own = () if branch is None else (procedure.items[n] for n in branch.own)
    return next((item.batch for item in own if isinstance(item, Block)), 0)


def _find_branch(procedure: Procedure) -> _Branch | None:
    items = [item for item in procedure.items if isinstance(item, Phase)]
    if len(items) < len(procedure.items):
        return None  # there are loops, whose bodies run in one queue
    return _best_branch(items, _dependencies([Level.of(item) for item in items]))


def fuse_in_two_queues(procedure: Procedure) -> Procedure | None:
    """The same kernels in fewer launches, some of them in a second queue; None if none can be."""
    branch = _find_branch(procedure)
    if branch is None:
        return None
    items = [item for item in procedure.items if isinstance(item, Phase)]
    levels = [Level.of(item) for item in items]
    own, rest = list[Level](), list[Level]()  # launches of the second and of the main queue
    others = [n for n in range(len(items)) if n not in branch.own | branch.joined]
    for number in others:
        place_in_level(rest, Level.of(items[number]))
    for number in sorted(branch.own):
        place_in_level(own, Level.of(items[number]))
    fork = _levels_through(rest, [levels[n] for n in branch.ancestors])
    join = len(rest) - 1
    for number in sorted(branch.joined):
        place_in_level(rest, Level.of(items[number]), max(join, fork))
    last = next((n for n in range(fork, len(rest)) if any(o.must_precede(rest[n]) for o in own)), 0)
    if not fork or not last:
        return None
    placed = [*rest[:fork], *own, *rest[fork:]]
    side = SideQueue(fork, fork + len(own), last + len(own))
    launches = tuple(level.to_launch() for level in placed)
    return number_launches(replace(procedure, items=launches, side=side))


def _dependencies(levels: Sequence[Level]) -> list[set[int]]:
    """For each item the numbers of the earlier ones that must be finished before it begins."""
    return [
        {n for n, other in enumerate(levels[:number]) if other.must_precede(level)}
        for number, level in enumerate(levels)
    ]


def _best_branch(items: Sequence[Phase], dependencies: Sequence[set[int]]) -> _Branch | None:
    """The branch for which the smaller of both queues has most operations."""
    blocks = {n: item.batch for n, item in enumerate(items) if isinstance(item, Block)}
    if max(blocks.values(), default=0) > MAX_SIDE_BLOCK_ROWS:
        return None
    everything, candidates = set(range(len(items))), list[tuple[int, _Branch]]()

    def operations(numbers: Iterable[int]) -> int:
        return sum(phase_operations(items[n]) for n in numbers)

    for block in blocks:
        own, ancestors, joined = {block}, _ancestors(block, dependencies), set[int]()
        for number in range(block + 1, len(items)):
            if dependencies[number] & (own | joined):
                (own if dependencies[number] <= own | ancestors else joined).add(number)
        beside = everything - own - ancestors - joined
        if blocks.keys() & beside and joined:
            branch = _Branch(frozenset(own), frozenset(ancestors), frozenset(joined))
            candidates.append((min(operations(own), operations(beside)), branch))
    return max(candidates, key=lambda pair: pair[0], default=(0, None))[1]


def _ancestors(number: int, dependencies: Sequence[set[int]]) -> set[int]:
    """All items that an item depends on, directly or not."""
    ancestors, stack = set[int](), [number]
    while stack:
        more = dependencies[stack.pop()] - ancestors
        ancestors |= more
        stack += more
    return ancestors


def _levels_through(levels: Sequence[Level], needed: Sequence[Level]) -> int:
    """How many levels there are up to and including the last one that has a needed item."""
    wanted = {id(item) for level in needed for item in level.items}
    matching = [n for n, level in enumerate(levels) if wanted & {id(i) for i in level.items}]
    return max(matching, default=-1) + 1
