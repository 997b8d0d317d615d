"""Control flow of the UOp emulator: which iterations run, and where their variables and memory are.

Work-items, lanes, rows and columns of a tile, and iterations of a loop that accumulates nothing are
axes of arrays: an instruction runs once for all of them. A loop that accumulates runs step by step.
What an instruction computes is up to a table of functions (emulate_uops.py).
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
from imgmlp.engine.oracle.emulate_kernels import conjunction
from imgmlp.engine.oracle.sanitizer import Loops, Memory, Sanitizer

LANE_AXIS = "lane"  # the name of the axis of a group's lanes
# For each kind of UOp: the function from the launch, the UOp's number and the UOp to its value.
Instructions = Mapping[U, Callable[["EmulatedLaunch", int, UOp], Any]]


class EmulatedLaunch:
    """One launch, with a value for every UOp.

    Values have `rank` axes: one for each open loop in `loops`, outermost first, then axes of 1.
    Accumulators have one more axis, and a tile has two more, for rows and columns.
    """

    def __init__(self, code: Code, memory: Memory, instructions: Instructions) -> None:
        self.code, self.instructions = code, instructions
        self.launched = code.global_size  # work-items of the launch, or of the running member
        self.has_lanes = code.local_size > 1  # whether a group has several lanes
        self.ends = _ends(code.uops)
        depths = accumulate((u.op is U.RANGE) - (u.op is U.END) for u in code.uops)
        self.rank = max(depths) + 1  # with an axis for a group's lanes
        self.values: list[Any] = [None] * len(code.uops)
        self.variables: dict[str, Array] = {}
        self.defined: set[str] = set()  # variables whose values come from data
        self.loops = Loops()
        self.lanes: Array | None = None  # numbers of the lanes, once a group is open
        self.active: Array | None = None  # which iterations are below all limits; None: all
        parameters = [u.arg for u in code.uops if u.op is U.GLOBAL]
        read, written = (
            [b for b, w in parameters if w is is_written] for is_written in (False, True)
        )
        groups = code.global_size // code.local_size
        self.number: Array | None = None  # numbers of the groups, once they are open
        self.local = {
            i: _local(i, u, groups)
            for i, u in enumerate(code.uops)
            if u.op in (U.LOCAL_ARRAY, U.LOCAL_BUFFER)
        }
        memory = {**memory, **{b: np.zeros(b.size, b.dtype.np) for b in self.local.values()}}
        written += self.local.values()
        self.sanitizer_arguments = code.name, memory, read, written
        self.sanitizer = Sanitizer(*self.sanitizer_arguments, groups, code.global_size)

    def run(self) -> None:
        self._block(0, len(self.code.uops))
        self.sanitizer.finish()

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
        return ValueError(f"{self.code.name}: {self.describe(i)} {why}")

    def describe(self, i: int) -> str:
        return f"instruction {i}, {self.code.uops[i].op.name},"

    # --- loops ---

    def _range(self, i: int, loop: Range) -> None:
        """Run a loop's body, for all iterations at once if they do not depend on each other."""
        if loop.kind == "phase":  # which is checked like a launch of its own
            self.sanitizer.finish()
            self.sanitizer = Sanitizer(*self.sanitizer_arguments, loop.count, loop.count)
        if loop.kind in ("phase", "member"):
            self.launched = loop.count * self.code.local_size
            self._block(i + 1, self.ends[i])
            return
        outside, lanes, active = self.loops, self.lanes, self.active
        for step, (variable, inside) in enumerate(self._steps(i, loop)):
            if self.loops is outside:  # steps are ordered, so each is a loop of its own
                self._axis(f"{loop.name} {i} step {step}", 1)
            self.variables[loop.name] = variable
            self.active = active if inside.all() else conjunction(active, inside)
            if loop.limit is not None:
                self.active = conjunction(self.active, variable < self.at(loop.limit))
            self._block(i + 1, self.ends[i])
            self.loops, self.lanes, self.active = outside, lanes, active

    def _steps(self, i: int, loop: Range) -> Iterator[tuple[Array, Array]]:
        """For each step of a loop: the values of its variable, and which of them are in range."""
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
        """Whether all iterations of a loop add to the same accumulators of before the loop."""
        body = self.code.uops[i : self.ends[i]]
        lanes = (u.arg[1] for u in body if u.op is U.ACCUMULATE and u.src[0] < i)
        tiles = (u.src[2] for u in body if u.op is U.PRODUCT and self.has_lanes)
        shared = any(name not in {v.name for v in lane.variables()} for lane in lanes)
        return shared or any(tile < i for tile in tiles)

    def _shares(self, count: int) -> Iterator[tuple[Array, Array]]:
        """The steps of a loop over each group's share of `count` iterations."""
        groups = self.loops.sizes[0]
        group = np.arange(groups + 1).reshape([-1, *[1] * (self.rank - 1)])
        begin = group * (count // groups) + np.minimum(group, count % groups)
        for step in range(-(-count // groups)):
            variable = begin[:-1] + step
            yield variable, variable < begin[1:]

    def _open(self, i: int, loop: Range) -> Array:
        """Open a loop as a new axis; returns its variable's values. A group opens one for lanes."""
        launched, local, name = self.launched, self.code.local_size, f"{loop.name} {i}"
        if loop.kind == "group":
            self.number = variable = self._axis(name, launched // local)
            self.lanes = self._axis(LANE_AXIS, local)
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

    def barrier(self, i: int) -> int:
        """Let all lanes of each group wait for each other; returns the axis of the lanes."""
        axis = self.loops.names.index(LANE_AXIS) if self.lanes is not None else -1
        if axis < 0 or (self.active is not None and self.active.shape[axis] > 1):
            raise self.fault(i, "waits for lanes that do not come there")
        self.sanitizer.barrier()
        return axis

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value that has an element for each open iteration."""
        return (*self.loops.sizes, *[1] * (self.rank - len(self.loops.sizes)))

    # --- indices and memory ---

    def at(self, expr: Expr) -> Array:
        """The values of an index expression in all iterations."""
        values = np.asarray(expr.evaluate(self.variables), np.int64)
        return values if values.ndim else values.reshape([1] * self.rank)

    def storage(self, data: int) -> tuple[Buffer, Array | int]:
        """The Buffer of a GLOBAL or a LOCAL_BUFFER, and where it begins for each group."""
        if data not in self.local:
            buffer: Buffer = self.code.uops[data].arg[0]
            return buffer, 0
        assert self.number is not None
        return self.local[data], self.number * self.code.uops[data].arg.size


def _ends(uops: tuple[UOp, ...]) -> dict[int, int]:
    """The number of the END of each RANGE."""
    ends: dict[int, int] = {}
    open_ranges: list[int] = []
    for i, u in enumerate(uops):
        if u.op is U.RANGE:
            open_ranges.append(i)
        elif u.op is U.END:
            ends[open_ranges.pop()] = i
    return ends


def _local(i: int, u: UOp, groups: int) -> Buffer:
    """A Buffer for the local memory of all groups, one after the other."""
    assert u.dtype is not None
    size = u.arg if u.op is U.LOCAL_ARRAY else u.arg.size
    return Buffer((groups * size,), f32 if u.dtype is f16 else u.dtype, name=f"local {i}")
