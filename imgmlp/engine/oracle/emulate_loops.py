"""One launch of a kernel's UOps by NumPy: which iterations run, and where they find things.

Work-items, lanes, rows and columns of a tile, and iterations of a loop that accumulates
nothing are axes of arrays: an instruction runs once for all of them. A loop that accumulates
runs step by step. A table says what an instruction does: nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import Array, f16, f32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.symbolic import Expr
from imgmlp.engine.ir.uops import Code, Range, U, UOp
from imgmlp.engine.oracle.emulate_kernels import both
from imgmlp.engine.oracle.sanitizer import Loops, Memory, Sanitizer

LANE = "lane"  # name of the axis that tells lanes of a group apart
# What each kind of instruction does, given its number and itself; the value that it leaves.
Instructions = Mapping[U, Callable[["EmulatedLaunch", int, UOp], Any]]


class EmulatedLaunch:
    """One launch: a value for every instruction.

    Values have `rank` axes: one for each open loop in `loops`, outermost first, then 1s.
    Accumulators have one more, a tile two, of a row and a column each.
    """

    def __init__(self, code: Code, memory: Memory, instructions: Instructions) -> None:
        self.code, self.instructions = code, instructions
        self.launched = code.global_size  # work-items, of a member those that are its own
        self.wide = code.local_size > 1  # whether lanes share the work of a group
        self.ends = _ends(code.uops)
        depths = accumulate((u.op is U.RANGE) - (u.op is U.END) for u in code.uops)
        self.rank = max(depths) + 1  # a group's lanes have an axis too
        self.values: list[Any] = [None] * len(code.uops)
        self.variables: dict[str, Array] = {}
        self.defined: set[str] = set()  # those that data decides
        self.loops = Loops()
        self.lanes: Array | None = None  # of a group, once that is open
        self.active: Array | None = None  # iterations below all limits; None: every one
        given = [u.arg for u in code.uops if u.op is U.GLOBAL]
        read, written = ([b for b, w in given if w is wanted] for wanted in (False, True))
        groups = code.global_size // code.local_size
        self.number: Array | None = None  # of the group, once it is open
        self.local = {
            i: _local(i, u, groups) for i, u in enumerate(code.uops) if u.op in (U.LOCAL, U.SCRATCH)
        }
        memory = {**memory, **{b: np.zeros(b.size, b.dtype.np) for b in self.local.values()}}
        written += self.local.values()
        self.watched = code.name, memory, read, written
        self.watch = Sanitizer(*self.watched, groups, code.global_size)

    def run(self) -> None:
        self._block(0, len(self.code.uops))
        self.watch.finish()

    def _block(self, begin: int, end: int) -> None:
        i = begin
        while i < end:
            u = self.code.uops[i]
            if u.op is U.GUARD and bool(self.values[u.src[0]]) != u.arg:
                return
            if u.op is U.RANGE:
                self._range(i, u.arg)
                i = self.ends[i]
            elif u.op in self.instructions:
                self.values[i] = self.instructions[u.op](self, i, u)
            else:
                raise self.fault(i, f"is of a kind that cannot be emulated: {u.op.name}")
            i += 1

    def fault(self, i: int, why: str) -> ValueError:
        return ValueError(f"{self.code.name}: {self.what(i)} {why}")

    def what(self, i: int) -> str:
        return f"instruction {i}, {self.code.uops[i].op.name},"

    # --- loops ---

    def _range(self, i: int, loop: Range) -> None:
        """Run a loop's body, for all iterations at once where none needs another."""
        if loop.kind == "phase":  # as a launch of its own
            self.watch.finish()
            self.watch = Sanitizer(*self.watched, loop.count, loop.count)
        if loop.kind in ("phase", "member"):
            self.launched = loop.count * self.code.local_size
            self._block(i + 1, self.ends[i])
            return
        outside, lanes, active = self.loops, self.lanes, self.active
        for step, (variable, inside) in enumerate(self._steps(i, loop)):
            if self.loops is outside:  # what is done in one step is in order with the next
                self._axis(f"{loop.name} {i} step {step}", 1)
            self.variables[loop.name] = variable
            self.active = active if inside.all() else both(active, inside)
            if loop.limit is not None:
                self.active = both(self.active, variable < self.at(loop.limit))
            self._block(i + 1, self.ends[i])
            self.loops, self.lanes, self.active = outside, lanes, active

    def _steps(self, i: int, loop: Range) -> Iterator[tuple[Array, Array]]:
        """The variable in each step of a loop, and which of its iterations there are."""
        if loop.kind == "lane":
            assert self.lanes is not None
            rounds, local = -(-loop.count // self.code.local_size), self.code.local_size
            if self._accumulates(i, loop.name):
                for first in range(rounds):
                    variable = self.lanes + first * local
                    yield variable, variable < loop.count
            else:
                variable = self.lanes + self._axis(f"{loop.name} {i}", rounds) * local
                yield variable, variable < loop.count
        elif loop.kind == "share" and self.lanes is not None:
            yield from self._shares(loop.count)
        elif loop.kind in ("loop", "vector") and self._accumulates(i, loop.name):
            for step in range(loop.count):
                yield np.full([1] * self.rank, step), np.ones([1] * self.rank, np.bool_)
        else:
            yield self._open(i, loop), np.ones([1] * self.rank, np.bool_)

    def _accumulates(self, i: int, name: str) -> bool:
        """Whether each iteration of a loop adds to the same accumulators, from before it."""
        body = self.code.uops[i : self.ends[i]]
        lanes = (u.arg[1] for u in body if u.op is U.ACCUMULATE and u.src[0] < i)
        tiles = (u.src[2] for u in body if u.op is U.PRODUCT and self.wide)
        shared = any(name not in {v.name for v in lane.variables()} for lane in lanes)
        return shared or any(tile < i for tile in tiles)

    def _shares(self, count: int) -> Iterator[tuple[Array, Array]]:
        """What each of the open groups takes of `count` things, one after the other."""
        groups = self.loops.sizes[0]
        group = np.arange(groups + 1).reshape([-1, *[1] * (self.rank - 1)])
        begin = group * (count // groups) + np.minimum(group, count % groups)
        for step in range(-(-count // groups)):
            variable = begin[:-1] + step
            yield variable, variable < begin[1:]

    def _open(self, i: int, loop: Range) -> Array:
        """The variable's values along an axis of its own; a group's lanes get one too."""
        launched, local, name = self.launched, self.code.local_size, f"{loop.name} {i}"
        if loop.kind == "group":
            self.number = variable = self._axis(name, launched // local)
            self.lanes = self._axis(LANE, local)
            return variable
        if loop.kind == "item":
            return self._axis(name, min(launched, loop.count))
        return self._axis(name, loop.count)

    def _axis(self, name: str, size: int) -> Array:
        """0, 1, 2 ... along a new axis."""
        shape = [1] * self.rank
        shape[len(self.loops.sizes)] = size
        self.loops = Loops((*self.loops.names, name), (*self.loops.sizes, size))
        return np.arange(size).reshape(shape)

    def meet(self, i: int) -> int:
        """Have all lanes of each group wait for each other; which axis they are."""
        axis = self.loops.names.index(LANE) if self.lanes is not None else -1
        if axis < 0 or (self.active is not None and self.active.shape[axis] > 1):
            raise self.fault(i, "waits for lanes that do not come there")
        self.watch.barrier()
        return axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a value for each open iteration."""
        return (*self.loops.sizes, *[1] * (self.rank - len(self.loops.sizes)))

    # --- where things are ---

    def at(self, expr: Expr) -> Array:
        """An index expression in all iterations."""
        found = np.asarray(expr.evaluate(self.variables), np.int64)
        return found if found.ndim else found.reshape([1] * self.rank)

    def storage(self, data: int) -> tuple[Buffer, Array | int]:
        """What a GLOBAL or a SCRATCH is, and where it begins for each group."""
        if data not in self.local:
            found: Buffer = self.code.uops[data].arg[0]
            return found, 0
        assert self.number is not None
        return self.local[data], self.number * self.code.uops[data].arg.size


def _ends(uops: tuple[UOp, ...]) -> dict[int, int]:
    """The END of each RANGE."""
    found: dict[int, int] = {}
    open_ranges: list[int] = []
    for i, u in enumerate(uops):
        if u.op is U.RANGE:
            open_ranges.append(i)
        elif u.op is U.END:
            found[open_ranges.pop()] = i
    return found


def _local(i: int, u: UOp, groups: int) -> Buffer:
    """Local memory of all groups, one after the other."""
    assert u.dtype is not None
    size = u.arg if u.op is U.LOCAL else u.arg.size
    return Buffer((groups * size,), f32 if u.dtype is f16 else u.dtype, name=f"local {i}")
