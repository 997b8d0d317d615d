"""Kernels that reduce rows and compute their elements from the totals, a row at a time.

Stages follow each other on one row: a reduction each, then what is stored. A value that a
later stage needs again is kept if it is costly to compute: on a CPU where the row's result will
be, or in a private array, both in the cache; on a GPU in registers of lanes, to which a load from
global memory is costly too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from imgmlp.engine.ir.dtype import f16
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Kernel, Store
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, unravel
from imgmlp.engine.ir.target import GPU_LANES, NARROW
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import (
    Accumulators,
    Lowering,
    destination,
    put,
    store_all,
)
from imgmlp.engine.lowering.map_kernels import GRAIN
from imgmlp.engine.passes.row_fusion import MIN_COST_TO_KEEP, values_to_keep

MOST_KEPT = 1 << 13  # elements of a row's private arrays on a CPU
MOST_REGISTERS = 64  # of the arrays of a lane
FEW = 64  # elements below which a lane takes a row alone


def row_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """The launch's global and local size."""
    core = kernel.rows[0]
    size, count = core.size, core.src[0].size // core.size
    if lower.target.lanes == "one":
        _Row(kernel, lower, 0, MOST_KEPT // count, in_results=True).by_one()
        return max(1, min(4 * lower.target.units, size * count // GRAIN, size)), 1
    alone = count < FEW
    own = count if alone else -(-count // GPU_LANES)
    _Row(kernel, lower, MIN_COST_TO_KEEP, MOST_REGISTERS // own).on_lanes(alone, own)
    if alone and not lower.inside:
        return -(-size // 64) * 64, 64
    return size * GPU_LANES, GPU_LANES


class _Row:
    """Emits all stages of a row; `loads` is what a load costs, `most` how many values are kept."""

    def __init__(
        self, kernel: Kernel, lower: Lowering, loads: int, most: int, in_results: bool = False
    ) -> None:
        self.kernel, self.lower, self.build = kernel, lower, lower.build
        self.reduced, self.shape = kernel.rows[0].shape, kernel.rows[0].src[0].shape
        self.size = math.prod(self.reduced)
        self.count = math.prod(self.shape) // self.size
        roots = [[core.src[0]] for core in kernel.rows] + [[s.value for s in kernel.stores]]
        nothing: list[list[Node]] = [[] for _ in roots]
        plans = (values_to_keep(roots, loads), values_to_keep(roots, 0), nothing)
        self.arrays: dict[Node, int] = {}
        self.results: dict[Node, Store] = {}  # values that are kept where a result will be
        for plan in plans:
            self.keeps = plan
            if in_results and (found := self._in_result(plan)) is not None:
                self.results = dict([found])
            if sum(map(len, plan)) - len(self.results) <= most:
                break
        self.stored: dict[Node, Store] = {}  # those of them that are there
        self.lead: list[Expr] = []  # indices of the row

    def by_one(self) -> None:
        """One work-item: a loop that the compiler makes vectors of for each stage."""
        self._open("share")
        for core, keeps in zip(self.kernel.rows, self.keeps, strict=False):
            arrays = self._declare(keeps, self.count)
            if keeps:
                column = self.build.open(Range("c", self.count))
                indices = self._indices(column, column)
                self._keep(arrays, indices, column)
                results = [self.results[n] for n in keeps if n in self.results]
                values = [self.lower.value(n, indices) for n in keeps if n in self.results]
                put(self.build, results, values, indices)
                self.build.close()
            self.arrays |= arrays
            self.stored |= {n: self.results[n] for n in keeps if n in self.results}
            self.lower.totals[core] = accumulate(
                self.lower, core, self.count, partial(self._term, core)
            )
        store_all(self.lower, self.kernel.totals, self.lead)
        if self.kernel.stores:
            column = self.build.open(Range("c", self.count))
            store_all(self.lower, self.kernel.stores, self._indices(column, column))
            self.build.close()
        self.build.close()

    def on_lanes(self, alone: bool, own: int) -> None:
        """Lanes of a GPU: each has `own` elements at most, of a row that it has `alone` or with
        all others of its group."""
        build = self.build
        self._open("item" if alone else "group")
        for core, keeps in zip(self.kernel.rows, self.keeps, strict=False):
            arrays = self._declare(keeps, own)
            accumulators = Accumulators(build, core)
            for place, at in self._elements(alone):
                indices = self._indices(at, place)
                self._keep(arrays, indices, place)
                accumulators.add(self.lower.value(core.src[0], indices))
            self.arrays |= arrays
            self.lower.totals[core] = accumulators.total(0 if alone else 1)
            if not alone:
                build.effect(U.BARRIER, ())  # the next stage uses the same local memory
        if self.kernel.totals and not alone:
            build.open(Range("first", 1, "lane"))
        store_all(self.lower, self.kernel.totals, self.lead)
        if self.kernel.totals and not alone:
            build.close()
        for place, at in self._elements(alone) if self.kernel.stores else ():
            store_all(self.lower, self.kernel.stores, self._indices(at, place))
        build.close()

    def _elements(self, alone: bool) -> Iterator[tuple[Expr, Expr]]:
        """Loops over a lane's own elements: their numbers in its arrays and in the row."""
        build = self.build
        rounds, rest = (self.count, 0) if alone else divmod(self.count, GPU_LANES)
        kind = "vector" if rounds <= MOST_REGISTERS else "loop"
        if alone:
            place = build.open(Range("r", rounds, kind))
            yield place, place
            build.close()
        elif rounds:
            lane = build.open(Range("l", GPU_LANES, "lane"))
            place = build.open(Range("r", rounds, kind))
            yield place, place * GPU_LANES + lane
            build.close(2)
        if rest:  # some lanes have one more
            lane = build.open(Range("x", rest, "lane"))
            yield Const(rounds), lane + rounds * GPU_LANES
            build.close()

    # --- parts of stages ---

    def _open(self, kind: str) -> None:
        self.lead = unravel(self.lower.outermost("i", self.size, kind), self.reduced)

    def _declare(self, keeps: Sequence[Node], size: int) -> dict[Node, int]:
        private = [n for n in keeps if n not in self.results]
        return {n: self.build.effect(U.ACC, (), (size, None), n.dtype) for n in private}

    def _in_result(self, plan: Sequence[Sequence[Node]]) -> tuple[Node, Store] | None:
        """A kept value, and a store that can hold it as it is until then."""
        stores = [s for s in self.kernel.stores if not s.adds and s.value.dtype is not f16]
        pairs = ((n, s) for keeps in plan for n in keeps for s in stores)
        return next(((n, s) for n, s in pairs if n.dtype is s.value.dtype), None)

    def _indices(self, at: Expr, place: Expr) -> list[Expr]:
        """Those of an element, at which all that is kept is read from its array."""
        indices = [*self.lead, *unravel(at, self.shape[len(self.reduced) :])]
        for node, array in self.arrays.items():
            found = self.build.effect(U.LANE, (array,), place, node.dtype)
            self.build.live.add(found)  # in this loop
            self.lower.memo[node, tuple(indices), ONE] = found
        for node, store in self.stored.items():
            data = self.build.parameter(store.target, True)
            offset = destination(store, indices)
            found = self.build.effect(U.LOAD, (data,), (offset, ONE), node.dtype)
            self.build.live.add(found)
            self.lower.memo[node, tuple(indices), ONE] = found
        return indices

    def _term(self, core: Node, at: Expr) -> int:
        return self.lower.value(core.src[0], self._indices(at, at))

    def _keep(self, arrays: dict[Node, int], indices: Sequence[Expr], place: Expr) -> None:
        for node, array in arrays.items():
            value = self.lower.value(node, indices)
            self.build.effect(U.KEEP, (array, value), place, node.dtype)


def accumulate(lower: Lowering, core: Node, count: int, term: Callable[[Expr], int]) -> int:
    """A reduction of `count` terms by one work-item, two vectors of them at once."""
    build, wide = lower.build, lower.target.wide
    accumulators = Accumulators(build, core, wide if count >= NARROW else count)

    def add(first: Expr, terms: int) -> None:
        lane = build.open(Range("v", terms, "vector"))
        accumulators.add(term(first + lane), lane)
        build.close()

    if blocks := count // wide:
        add(build.open(Range("b", blocks)) * wide, wide)
        build.close()
    done = blocks * wide
    for least in (lower.target.vector, NARROW, 1):  # a vector, half of one, and what is left
        if (left := count - done) >= least:
            terms = least if least > 1 else left
            add(Const(done), terms)
            done += terms
    return accumulators.total()
