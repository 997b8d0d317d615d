"""Horizontal fusion: kernels that do not depend on each other become one launch.

In: a scheduled Procedure. Out: the same kernels in fewer launches, numbered by position.

A launch costs some microseconds, whatever it does. Each kernel goes into the earliest level after
everything that it depends on. The kernels of a level run side by side, each in work-groups of its
own. A level has at most one kernel that is large enough to fill a device by itself, and a limited
number of Buffers. The pass must not change what a kernel computes, nor join kernels that touch the
same element unless both only read it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Fused, Kernel, Launch, Loop, Procedure, access
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var, linear_parts
from imgmlp.engine.passes.memory_plan import spans_overlap

# Operations from which a kernel is large: it takes much longer than the launch itself.
MIN_LARGE_KERNEL_OPERATIONS = 1 << 22
MAX_LAUNCH_BUFFERS = 48  # arguments of a launch

# A strided set of elements of a Buffer: the first element, then (stride, count) of each axis.
Box = tuple[int, tuple[tuple[int, int], ...]]
Boxes = dict[Buffer, list[Box]]  # the elements that are written


def fuse(procedure: Procedure) -> Procedure:
    """The same kernels in fewer launches, in loop bodies too, named by position."""
    return number_launches(replace(procedure, items=tuple(_fused(procedure.items))))


def _fused(items: Sequence[Launch | Loop]) -> list[Launch | Loop]:
    levels: list[Level] = []
    for item in items:
        if isinstance(item, Loop):
            item = replace(item, body=replace(item.body, items=tuple(_fused(item.body.items))))
        place_in_level(levels, Level.of(item))
    return [level.to_launch() for level in levels]


def place_in_level(levels: list[Level], added: Level, first_level: int = 0) -> None:
    """Add items to the earliest level after all their dependencies, from `first_level` on."""
    ends = range(len(levels), first_level, -1)
    earliest = next((i for i in ends if levels[i - 1].must_precede(added)), first_level)
    level = next((level for level in levels[earliest:] if level.can_join(added)), None)
    if level is None:
        levels.append(added)
    else:
        level.add(added)


@dataclass
class Level:
    """Items that run at the same time, and the memory that they touch."""

    items: list[Launch | Loop]
    read: set[Buffer]
    written: Boxes
    large: int = 0  # how many of the items fill a device by themselves
    buffers: set[Buffer] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = self.read | self.written.keys()

    @staticmethod
    def of(item: Launch | Loop) -> Level:
        kernels = item.body.kernels if isinstance(item, Loop) else (item,)
        read = {b for k in kernels for b in k.reads()}
        if isinstance(item, Kernel):
            return Level(
                [item],
                read,
                _written_boxes(item),
                int(kernel_operations(item) > MIN_LARGE_KERNEL_OPERATIONS),
            )
        if isinstance(item, Loop):
            read |= item.buffers_across_iterations
        whole: Boxes = {b: [(0, ((1, b.size),))] for k in kernels for b in k.writes()}
        return Level([item], read, whole)

    def must_precede(self, later: Level) -> bool:
        """Whether this level must be finished before the later one begins."""
        if self.written.keys() & later.read or self.read & later.written.keys():
            return True
        shared = self.written.keys() & later.written.keys()
        pairs = (p for b in shared for p in itertools.product(self.written[b], later.written[b]))
        return any(_boxes_overlap(one, other) for one, other in pairs)

    def can_join(self, other: Level) -> bool:
        """Whether both fit into one launch, and whether one launch pays."""
        kernels = all(isinstance(i, Kernel) for i in (*self.items, *other.items))
        few = len(self.buffers | other.buffers) <= MAX_LAUNCH_BUFFERS
        return kernels and few and self.large + other.large <= 1

    def add(self, other: Level) -> None:
        self.items += other.items
        self.read |= other.read
        self.large += other.large
        self.buffers |= other.buffers
        for b, boxes in other.written.items():
            self.written[b] = [*self.written.get(b, []), *boxes]

    def to_launch(self) -> Launch | Loop:
        if len(self.items) == 1:
            return self.items[0]
        members = [k for k in self.items if isinstance(k, Kernel)]
        named = (replace(k, name=_numbered_name(k, i)) for i, k in enumerate(members))
        return Fused("fused", tuple(named))


def kernel_operations(kernel: Kernel) -> int:
    """Elementary operations of a kernel: its elements, each times its number of terms."""
    core = kernel.core
    if core is None:
        return math.prod(kernel.shape)
    source = core.src[0]
    return core.size * source.shape[-1] if core.op is Op.DOT else source.size


def _written_boxes(kernel: Kernel) -> Boxes:
    """The elements that a kernel writes, a Box for each of its stores."""
    boxes: Boxes = {}
    for store in kernel.all_stores():
        indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(store.place.shape)]
        offset, _ = access(store.place).index(indices)
        constant, terms = linear_parts(offset)
        box = constant, _merge_axes([(step, term.hi + 1) for term, step in terms])
        if not all(isinstance(term, Var) and step > 0 for term, step in terms):
            box = offset.lo, ((1, offset.hi - offset.lo + 1),)
        boxes.setdefault(store.target, []).append(box)
    return boxes


def _merge_axes(axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same elements with fewer axes: an axis that continues another one is merged into it."""
    merged: list[tuple[int, int]] = []
    for step, count in sorted(axes):
        if merged and step == math.prod(merged[-1]):
            merged[-1] = merged[-1][0], merged[-1][1] * count
        else:
            merged.append((step, count))
    return tuple(merged)


def _boxes_overlap(one: Box, other: Box) -> bool:
    """Whether two boxes may have an element in common.

    Element numbers are written in a mixed radix whose digits are the strides of both boxes. The
    boxes are disjoint if their digits differ at some position.
    """
    steps = sorted({step for _, axes in (one, other) for step, _ in axes} | {1}, reverse=True)
    ranges = [_digit_ranges(box, steps) for box in (one, other)]
    if None in ranges:
        ranges = [_digit_ranges(box, [1]) for box in (one, other)]
    first, second = (r or [] for r in ranges)
    return all(spans_overlap(a, b) for a, b in zip(first, second, strict=True))


def _digit_ranges(box: Box, steps: Sequence[int]) -> list[tuple[int, int]] | None:
    """The smallest and largest digit of a box's elements at each stride; None if one carries."""
    rest, axes = box
    if len(steps) == 1:
        return [(rest, rest + sum(step * (count - 1) for step, count in axes))]
    counts = dict(axes)
    ranges = []
    for step, above in zip(steps, (0, *steps), strict=False):
        first_level, rest = divmod(rest, step)
        most = first_level + counts.get(step, 1) - 1
        if above and most >= above // step:
            return None
        ranges.append((first_level, most))
    return ranges if len(counts) == len(axes) else None


# --- names ---


def number_launches(procedure: Procedure) -> Procedure:
    """The same Procedure with each launch named by its position."""
    return replace(procedure, items=_number_launches(procedure.items, itertools.count()))


def _number_launches(
    items: Sequence[Launch | Loop], numbers: Iterator[int]
) -> tuple[Launch | Loop, ...]:
    numbered: list[Launch | Loop] = []
    for item in items:
        if isinstance(item, Loop):
            body = replace(item.body, items=_number_launches(item.body.items, numbers))
            numbered.append(replace(item, body=body))
        else:
            numbered.append(replace(item, name=_numbered_name(item, next(numbers))))
    return tuple(numbered)


def _numbered_name(item: Launch, number: int) -> str:
    return f"k{number}_{item.name.rpartition('_')[2]}"
