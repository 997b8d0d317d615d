"""Lowering of row kernels: reductions of a row, and elements computed from them, row by row.

Stages follow each other on one row: one for each reduction, then one for the stores. A value that a
later stage needs again is kept if it is costly to recompute. A CPU keeps it at the place of a
result of the row or in a private array, which are in its cache. A GPU keeps it in registers; there
a load from global memory counts as costly too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from imgmlp.engine.ir.dtype import f16
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Kernel, Store
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, unravel
from imgmlp.engine.ir.target import LANES_PER_GROUP, MIN_VECTOR_WIDTH
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import (
    Accumulators,
    Lowering,
    lower_stores,
    store_offset,
    store_values,
)
from imgmlp.engine.lowering.map_kernels import MIN_ELEMENTS_PER_GROUP
from imgmlp.engine.passes.row_fusion import MIN_COST_TO_KEEP, values_to_keep

MAX_KEPT_ELEMENTS = 1 << 13  # of all values kept in private arrays of a row on a CPU
MAX_KEPT_PER_LANE = 64  # registers of each lane of a GPU for kept values
MIN_SHARED_ROW_ELEMENTS = 64  # elements of a row from which the lanes of a group share it


def row_kernel(kernel: Kernel, lower: Lowering) -> tuple[int, int]:
    """Lower a kernel with `rows`; returns the launch's global and local size."""
    core = kernel.row_reductions[0]
    size, count = core.size, core.src[0].size // core.size
    if lower.target.lanes == "one":
        _RowLowering(
            kernel, lower, 0, MAX_KEPT_ELEMENTS // count, in_results=True
        ).on_one_work_item()
        return max(
            1, min(4 * lower.target.compute_units, size * count // MIN_ELEMENTS_PER_GROUP, size)
        ), 1
    one_lane = count < MIN_SHARED_ROW_ELEMENTS
    own = count if one_lane else -(-count // LANES_PER_GROUP)
    _RowLowering(kernel, lower, MIN_COST_TO_KEEP, MAX_KEPT_PER_LANE // own).on_lanes(one_lane, own)
    if one_lane and not lower.in_block:
        return -(-size // 64) * 64, 64
    return size * LANES_PER_GROUP, LANES_PER_GROUP


class _RowLowering:
    """Lowers all stages of a row.

    A load counts as `loads` operations. At most `max_kept` values are kept in arrays, and one more
    at the place of a result if `in_results`.
    """

    def __init__(
        self, kernel: Kernel, lower: Lowering, loads: int, max_kept: int, in_results: bool = False
    ) -> None:
        self.kernel, self.lower, self.build = kernel, lower, lower.build
        self.reduced, self.shape = (
            kernel.row_reductions[0].shape,
            kernel.row_reductions[0].src[0].shape,
        )
        self.size = math.prod(self.reduced)
        self.count = math.prod(self.shape) // self.size
        roots = [[core.src[0]] for core in kernel.row_reductions] + [
            [s.value for s in kernel.stores]
        ]
        nothing: list[list[Node]] = [[] for _ in roots]
        plans = (values_to_keep(roots, loads), values_to_keep(roots, 0), nothing)
        self.arrays: dict[Node, int] = {}
        self.results: dict[Node, Store] = {}  # values kept at the place of a result
        for plan in plans:
            self.keeps = plan
            if in_results and (result := self._value_in_result(plan)) is not None:
                self.results = dict([result])
            if sum(map(len, plan)) - len(self.results) <= max_kept:
                break
        self.stored: dict[Node, Store] = {}  # those of them that have been stored
        self.lead: list[Expr] = []  # indices of the current row

    def on_one_work_item(self) -> None:
        """Lower for a CPU: a loop for each stage, which the driver's compiler vectorises."""
        self._open("share")
        for core, keeps in zip(self.kernel.row_reductions, self.keeps, strict=False):
            arrays = self._declare(keeps, self.count)
            if keeps:
                column = self.build.open(Range("c", self.count))
                indices = self._indices(column, column)
                self._keep(arrays, indices, column)
                results = [self.results[n] for n in keeps if n in self.results]
                values = [self.lower.value(n, indices) for n in keeps if n in self.results]
                store_values(self.build, results, values, indices)
                self.build.close()
            self.arrays |= arrays
            self.stored |= {n: self.results[n] for n in keeps if n in self.results}
            self.lower.totals[core] = accumulate(
                self.lower, core, self.count, partial(self._term, core)
            )
        lower_stores(self.lower, self.kernel.row_stores, self.lead)
        if self.kernel.stores:
            column = self.build.open(Range("c", self.count))
            lower_stores(self.lower, self.kernel.stores, self._indices(column, column))
            self.build.close()
        self.build.close()

    def on_lanes(self, one_lane: bool, own: int) -> None:
        """Lower for a GPU: one lane has the whole row, or all lanes of a group share it.

        `own` is the number of elements of each lane, at most.
        """
        build = self.build
        self._open("item" if one_lane else "group")
        for core, keeps in zip(self.kernel.row_reductions, self.keeps, strict=False):
            arrays = self._declare(keeps, own)
            accumulators = Accumulators(build, core)
            for place, at in self._elements(one_lane):
                indices = self._indices(at, place)
                self._keep(arrays, indices, place)
                accumulators.add(self.lower.value(core.src[0], indices))
            self.arrays |= arrays
            self.lower.totals[core] = accumulators.total(0 if one_lane else 1)
            if not one_lane:
                build.effect(U.BARRIER, ())  # the next stage uses the same local memory
        if self.kernel.row_stores and not one_lane:
            build.open(Range("first", 1, "lane"))
        lower_stores(self.lower, self.kernel.row_stores, self.lead)
        if self.kernel.row_stores and not one_lane:
            build.close()
        for place, at in self._elements(one_lane) if self.kernel.stores else ():
            lower_stores(self.lower, self.kernel.stores, self._indices(at, place))
        build.close()

    def _elements(self, one_lane: bool) -> Iterator[tuple[Expr, Expr]]:
        """Open loops over a lane's elements; yields their numbers in its arrays and in the row."""
        build = self.build
        rounds, rest = (self.count, 0) if one_lane else divmod(self.count, LANES_PER_GROUP)
        kind = "vector" if rounds <= MAX_KEPT_PER_LANE else "loop"
        if one_lane:
            place = build.open(Range("r", rounds, kind))
            yield place, place
            build.close()
        elif rounds:
            lane = build.open(Range("l", LANES_PER_GROUP, "lane"))
            place = build.open(Range("r", rounds, kind))
            yield place, place * LANES_PER_GROUP + lane
            build.close(2)
        if rest:  # some lanes have one more
            lane = build.open(Range("x", rest, "lane"))
            yield Const(rounds), lane + rounds * LANES_PER_GROUP
            build.close()

    # --- parts of stages ---

    def _open(self, kind: str) -> None:
        self.lead = unravel(self.lower.open_outermost("i", self.size, kind), self.reduced)

    def _declare(self, keeps: Sequence[Node], size: int) -> dict[Node, int]:
        private = [n for n in keeps if n not in self.results]
        return {n: self.build.effect(U.ACC, (), (size, None), n.dtype) for n in private}

    def _value_in_result(self, plan: Sequence[Sequence[Node]]) -> tuple[Node, Store] | None:
        """A value to keep, and a store of its dtype, whose place can hold it until the end."""
        stores = [s for s in self.kernel.stores if not s.adds and s.value.dtype is not f16]
        pairs = ((n, s) for keeps in plan for n in keeps for s in stores)
        return next(((n, s) for n, s in pairs if n.dtype is s.value.dtype), None)

    def _indices(self, at: Expr, place: Expr) -> list[Expr]:
        """The indices of an element; kept values are read from their arrays at these."""
        indices = [*self.lead, *unravel(at, self.shape[len(self.reduced) :])]
        for node, array in self.arrays.items():
            element = self.build.effect(U.GET, (array,), place, node.dtype)
            self.build.live.add(element)  # in this loop
            self.lower.memo[node, tuple(indices), ONE] = element
        for node, store in self.stored.items():
            data = self.build.parameter(store.target, True)
            offset = store_offset(store, indices)
            element = self.build.effect(U.LOAD, (data,), (offset, ONE), node.dtype)
            self.build.live.add(element)
            self.lower.memo[node, tuple(indices), ONE] = element
        return indices

    def _term(self, core: Node, at: Expr) -> int:
        return self.lower.value(core.src[0], self._indices(at, at))

    def _keep(self, arrays: dict[Node, int], indices: Sequence[Expr], place: Expr) -> None:
        for node, array in arrays.items():
            value = self.lower.value(node, indices)
            self.build.effect(U.SET, (array, value), place, node.dtype)


def accumulate(lower: Lowering, core: Node, count: int, term: Callable[[Expr], int]) -> int:
    """A reduction of `count` terms by one work-item, two vectors of terms at once."""
    build, wide = lower.build, lower.target.vector_pair_width
    accumulators = Accumulators(build, core, wide if count >= MIN_VECTOR_WIDTH else count)

    def add(first: Expr, terms: int) -> None:
        lane = build.open(Range("v", terms, "vector"))
        accumulators.add(term(first + lane), lane)
        build.close()

    if blocks := count // wide:
        add(build.open(Range("b", blocks)) * wide, wide)
        build.close()
    done = blocks * wide
    # A vector, half of one, and what is left.
    for least in (lower.target.vector_width, MIN_VECTOR_WIDTH, 1):
        if (left := count - done) >= least:
            terms = least if least > 1 else left
            add(Const(done), terms)
            done += terms
    return accumulators.total()
