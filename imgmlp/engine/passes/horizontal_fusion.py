"""Horizontal fusion: kernels that do not wait for each other become one launch.

A launch costs some microseconds, whatever it does. Kernels are put into levels: each into the
earliest one after everything that it depends on, and a level's kernels run side by side, each in
work-groups of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Fused, Kernel, Launch, Loop, Procedure, access
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var, split
from imgmlp.engine.passes.memory_plan import overlap

LARGE = 1 << 22  # elements, or terms of sums, that take longer than a launch by far
MOST_BUFFERS = 48  # that a launch takes as arguments

Box = tuple[int, tuple[tuple[int, int], ...]]  # the first element; (stride, count) of each axis
Boxes = dict[Buffer, list[Box]]  # what is written


def fuse(procedure: Procedure) -> Procedure:
    """The same kernels in fewer launches, those of loops too; named by position."""
    return numbered(replace(procedure, items=tuple(_fused(procedure.items))))


def _fused(items: Sequence[Launch | Loop]) -> list[Launch | Loop]:
    levels: list[Level] = []
    for item in items:
        if isinstance(item, Loop):
            item = replace(item, body=replace(item.body, items=tuple(_fused(item.body.items))))
        put_in(levels, Level.of(item))
    return [level.launch() for level in levels]


def put_in(levels: list[Level], added: Level, least: int = 0) -> None:
    """Into the first level behind all that it waits for, from number `least` on."""
    ends = range(len(levels), least, -1)
    first = next((i for i in ends if levels[i - 1].meets(added)), least)
    found = next((other for other in levels[first:] if other.takes(added)), None)
    if found is None:
        levels.append(added)
    else:
        found.add(added)


@dataclass
class Level:
    """What runs at the same time, and what it touches."""

    items: list[Launch | Loop]
    read: set[Buffer]
    written: Boxes
    large: int = 0  # members that fill a device by themselves
    buffers: set[Buffer] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = self.read | self.written.keys()

    @staticmethod
    def of(item: Launch | Loop) -> Level:
        kernels = item.body.kernels if isinstance(item, Loop) else (item,)
        read = {b for k in kernels for b in k.reads()}
        if isinstance(item, Kernel):
            return Level([item], read, _boxes(item), int(work(item) > LARGE))
        if isinstance(item, Loop):
            read |= item.lasting
        whole: Boxes = {b: [(0, ((1, b.size),))] for k in kernels for b in k.writes()}
        return Level([item], read, whole)

    def meets(self, later: Level) -> bool:
        """Whether something must be over before the later one begins."""
        if self.written.keys() & later.read or self.read & later.written.keys():
            return True
        shared = self.written.keys() & later.written.keys()
        pairs = (p for b in shared for p in itertools.product(self.written[b], later.written[b]))
        return any(_overlap(one, other) for one, other in pairs)

    def takes(self, other: Level) -> bool:
        """Whether both fit into one launch, and whether that pays."""
        kernels = all(isinstance(i, Kernel) for i in (*self.items, *other.items))
        few = len(self.buffers | other.buffers) <= MOST_BUFFERS
        return kernels and few and self.large + other.large <= 1

    def add(self, other: Level) -> None:
        self.items += other.items
        self.read |= other.read
        self.large += other.large
        self.buffers |= other.buffers
        for b, boxes in other.written.items():
            self.written[b] = [*self.written.get(b, []), *boxes]

    def launch(self) -> Launch | Loop:
        if len(self.items) == 1:
            return self.items[0]
        members = [k for k in self.items if isinstance(k, Kernel)]
        named = (replace(k, name=_name(k, i)) for i, k in enumerate(members))
        return Fused("fused", tuple(named))


def work(kernel: Kernel) -> int:
    """Elements computed, each counted as often as it has terms."""
    core = kernel.core
    if core is None:
        return math.prod(kernel.shape)
    source = core.src[0]
    return core.size * source.shape[-1] if core.op is Op.DOT else source.size


def _boxes(kernel: Kernel) -> Boxes:
    """Where a kernel writes, store by store."""
    found: Boxes = {}
    for store in kernel.all_stores():
        indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(store.place.shape)]
        offset, _ = access(store.place).index(indices)
        constant, terms = split(offset)
        box = constant, _joined([(step, term.hi + 1) for term, step in terms])
        if not all(isinstance(term, Var) and step > 0 for term, step in terms):
            box = offset.lo, ((1, offset.hi - offset.lo + 1),)
        found.setdefault(store.target, []).append(box)
    return found


def _joined(axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same elements by fewer axes: one that goes on where another one ends is part of it."""
    found: list[tuple[int, int]] = []
    for step, count in sorted(axes):
        if found and step == math.prod(found[-1]):
            found[-1] = found[-1][0], found[-1][1] * count
        else:
            found.append((step, count))
    return tuple(found)


def _overlap(one: Box, other: Box) -> bool:
    """Whether two boxes may have an element in common.

    They have none if, written with the strides of both as their digits, the elements of one have
    other digits in some place than those of the other.
    """
    steps = sorted({step for _, axes in (one, other) for step, _ in axes} | {1}, reverse=True)
    ranges = [_digits(box, steps) for box in (one, other)]
    if None in ranges:
        ranges = [_digits(box, [1]) for box in (one, other)]
    first, second = (r or [] for r in ranges)
    return all(overlap(a, b) for a, b in zip(first, second, strict=True))


def _digits(box: Box, steps: Sequence[int]) -> list[tuple[int, int]] | None:
    """The least and the largest digit of a box's elements for each step; None if one carries."""
    rest, axes = box
    if len(steps) == 1:
        return [(rest, rest + sum(step * (count - 1) for step, count in axes))]
    counts = dict(axes)
    found = []
    for step, above in zip(steps, (0, *steps), strict=False):
        least, rest = divmod(rest, step)
        most = least + counts.get(step, 1) - 1
        if above and most >= above // step:
            return None
        found.append((least, most))
    return found if len(counts) == len(axes) else None


# --- names ---


def numbered(procedure: Procedure) -> Procedure:
    """The same, where names say each launch's position."""
    return replace(procedure, items=_numbered(procedure.items, itertools.count()))


def _numbered(items: Sequence[Launch | Loop], numbers: Iterator[int]) -> tuple[Launch | Loop, ...]:
    found: list[Launch | Loop] = []
    for item in items:
        if isinstance(item, Loop):
            body = replace(item.body, items=_numbered(item.body.items, numbers))
            found.append(replace(item, body=body))
        else:
            found.append(replace(item, name=_name(item, next(numbers))))
    return tuple(found)


def _name(item: Launch, number: int) -> str:
    return f"k{number}_{item.name.rpartition('_')[2]}"
