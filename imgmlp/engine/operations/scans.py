"""Along an axis: products, running sums, the order of elements.

A running sum is log2(n) additions of the values shifted by 1, 2, 4 ... (Hillis and Steele, 1986).
Sorting counts for each element of a short line those that come before it, in one reduction that
takes no memory; of longer lines it does so block by block, and merges these in a loop of
log2(n)^2 / 2 stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from imgmlp.engine.ir import control_flow, graph
from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import Elementwise, Operand, in_f32, node_of
from imgmlp.engine.operations.indexing import Indexing
from imgmlp.engine.operations.operands import Axis, axes_of, check_given, check_rows, from_host
from imgmlp.engine.oracle.index_bounds import BoundedIndex

COUNTED = 64  # elements of a line that are ordered by counting; a power of two
COMPARED = 1 << 23  # indices with elements: about what sorting 4,096 of each takes on a processor


class Scans(Indexing):
    """All that came before, and what depends on the order along an axis."""

    __slots__ = ()

    # --- reductions ---

    @in_f32
    def std(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The square root of `var`."""
        axes = axes_of("std", axis, self.shape)
        return self.var(axes, keepdims, correction).sqrt()

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Halves of an axis are multiplied until one is left; bools become i32."""
        found = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        for a in (axes := axes_of("prod", axis, self.shape)):
            if not found.shape[a]:
                found = found.pad(*((0, int(b == a)) for b in range(len(self.shape)))) + 1
            while (n := found.shape[a]) > 1:
                joined = found._cut(a, 0, n // 2) * found._cut(a, n // 2, n // 2 * 2)
                found = self.concat([joined, found._cut(a, n - 1, n)], a) if n % 2 else joined
        return found if keepdims else found.squeeze(axes)

    @in_f32
    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The logarithm of the sum of exp(x), finite where that would overflow."""
        most = self._peak(axis).detach()
        most = self.where(most.isfinite(), most, 0.0)
        found = (self - most).exp().sum(axis, keepdims=True).log() + most
        return found if keepdims else found.squeeze(axes_of("logsumexp", axis, self.shape))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the largest is, the first of several, in i32; without an axis if it were flat."""
        return self._first_largest("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Where the smallest is, as `argmax`."""
        return self._inverse()._first_largest("argmin", axis, keepdims)

    def _first_largest(self, operation: str, axis: int | None, keepdims: bool) -> Self:
        if axis is None or not axes_of(operation, axis, self.shape):
            found = self.flatten()._first_largest(operation, 0, False)
            return found.reshape(*(1 for _ in self.shape)) if keepdims else found
        axis = self._axis(axis, operation)
        most = self._reduce(operation, Op.REDUCE_MAX, axis, True)
        chosen = self.eq(most) | self.isnan()
        return self.where(chosen, self._places(axis), self.shape[axis]).min(axis, keepdims)

    # --- scans ---

    def _cut(self, axis: int, begin: int, end: int) -> Self:
        spans = ((begin, end) if a == axis else (0, n) for a, n in enumerate(self.shape))
        return self.shrink(*spans)

    def _scan(
        self, operation: str, axis: int, join: Callable[[Self, Self], Self], first: Self | int = 0
    ) -> Self:
        """All from `first`, a place along the axis, up to each, joined."""
        axis = self._axis(axis, operation)
        places, found, step = self._places(axis) - first, self, 1
        size = self.shape[axis]
        while step < size:
            moved = found._cut(axis, 0, size - step)
            moved = moved.pad(*((step if a == axis else 0, 0) for a in range(len(self.shape))))
            found = self.where(places >= step, join(moved, found), found).contiguous()
            step *= 2
        return found

    def cumsum(self, axis: int = 0) -> Self:
        """The sum of all up to each; bools are counted in i32, halves added in f32."""
        if self.dtype is dt.f16:
            return self.cast(dt.f32).cumsum(axis).cast(dt.f16)
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._scan("cumsum", axis, type(self).__add__)

    def cumprod(self, axis: int = 0) -> Self:
        """The product of all up to each."""
        return self._scan("cumprod", axis, lambda a, b: a * b)

    def cummax(self, axis: int = 0) -> Self:
        """The largest of all up to each."""
        return self._scan("cummax", axis, lambda a, b: a.maximum(b))

    # --- order ---

    def _before(self, other: Self, tie: Self, descending: bool) -> Self:
        """Whether each comes before another one, NaN being the largest; `tie` of equal ones."""
        below, same = (other < self) if descending else (self < other), self.eq(other)
        if self.dtype.is_float:
            mine, its = self.isnan(), other.isnan()
            below |= (mine & ~its) if descending else (its & ~mine)
            same |= mine & its
        return below | (same & tie)

    def _inverse_order(self, axis: int) -> Self:
        """Of a permutation along an axis the one that undoes it."""
        if self.shape[axis] > COUNTED:
            return self.argsort(axis)
        chosen = self.unsqueeze(axis).eq(self._places(axis).unsqueeze(axis + 1))
        return self.where(chosen, self._places(axis).unsqueeze(axis), 0).sum(axis + 1)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """Indices, in i32, that bring each line along an axis in order; equal ones keep theirs."""
        axis = self._axis(axis, "argsort")
        if not self.node.size:
            return self.cast(dt.i32)
        if (size := self.shape[axis]) > COUNTED:
            lines = self.transpose(axis, -1)
            found = lines.reshape(math.prod(lines.shape[:-1]), size)._merged(descending)
            return found.reshape(*lines.shape).transpose(axis, -1)
        places = self._places(axis)
        others, tie = self.unsqueeze(axis), places.unsqueeze(axis) < places.unsqueeze(axis + 1)
        earlier = others._before(self.unsqueeze(axis + 1), tie, descending)
        return earlier.sum(axis + 1).contiguous()._inverse_order(axis)

    def _merged(self, descending: bool) -> Self:
        """`argsort` of long lines [lines, size]: blocks in order are merged two by two.

        What is added to fill the last block comes last: it is as far out as a value can be, and
        behind all that are equal.
        """
        count, size = self.shape
        blocks = -(-size // COUNTED)
        length = blocks * COUNTED
        graph.check_count(count * length)
        last = self.dtype.min if descending else math.nan if self.dtype.is_float else self.dtype.max
        places = self._with(graph.iota(length))
        keys = self.where(places < size, self.pad((0, 0), (0, length - size)), last)
        begins = self._with(graph.iota(count * blocks)).reshape(count, blocks, 1) * COUNTED
        start = keys.reshape(count, blocks, COUNTED).argsort(-1, descending) + begins
        keys, start = keys.flatten().contiguous(), start.reshape(count, length)
        first = self._with(graph.iota(count)).reshape(count, 1) * length
        distances = self._with(from_host(_distances(blocks), self.device))

        turn, order = (
            self._with(control_flow.parameter(-1, i, node))
            for i, node in enumerate((graph.const(0, dt.i32), start.node))
        )
        found = order
        for distance in distances._gathered(turn):
            partner = places ^ distance
            other = found.flatten()._gathered(first + partner.minimum(length - 1))
            theirs, mine = keys._gathered(other), keys._gathered(found)
            swap = theirs._before(mine, other < found, descending)
            chosen = (partner < length) & swap.eq(places < partner)
            found = self.where(chosen, other, found).contiguous()
        ends = control_flow.loop(
            len(distances), -1, [graph.const(0, dt.i32), start.node],
            [turn.node, order.node], [(turn + 1).node, found.node],
        )  # fmt: skip
        return (self._with(ends[1]) - first).shrink((0, count), (0, size))

    def _permuted(self, axis: int, index: Self) -> Self:
        """Lines in an order that has each element once, which their gradient goes back through."""

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            return self._with(g)._permuted(axis, index._inverse_order(axis)).node, None

        return self._own(self._along(index, axis), index, vjp=vjp)

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Each line along an axis in order; NaN is the largest."""
        axis = self._axis(axis, "sort")
        return self._permuted(axis, self.argsort(axis, descending))

    def topk(self, count: int, axis: int = -1) -> tuple[Self, Self]:
        """The largest of each line along an axis, in order, and their indices."""
        axis = self._axis(axis, "topk")
        if not isinstance(count, int | np.integer):
            raise misuse(TypeError, f"topk: {count!r} is no whole number")
        if not 0 <= count <= self.shape[axis]:
            raise misuse(ValueError, f"topk: {count} of {self.shape[axis]} elements")
        index = self.argsort(axis, descending=True)
        return self._permuted(axis, index)._cut(axis, 0, count), index._cut(axis, 0, count)

    # --- elements by computed indices ---

    def _index(self, index: Operand) -> Self:
        at = index if isinstance(index, Scans) else self._with(node_of(index))
        if not at.dtype.is_int:
            raise misuse(TypeError, f"indices are integers, not {at.dtype.name}; cast them")
        return at  # type: ignore[return-value]

    def _gathered(self, index: Elementwise, asked: Sequence[BoundedIndex] = ()) -> Self:
        taken, at = super()._gathered(index, asked), self._with(index.node)
        count = at.node.size
        if not _sorts(count, self.node.size):
            return taken

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            rows = self._with(g).reshape(1, count, self.node.size // len(self))
            sums = rows._added(at.cast(dt.i32).reshape(1, count), len(self))
            return sums.reshape(*self.shape).node, None

        return self._own(taken, at, vjp=vjp)

    def take_along_axis(self, index: Operand, axis: int = -1) -> Self:
        """From each line along an axis the elements at this line's own indices.

        Other axes of the index are those of the Tensor, or 1. Indices are not negative, and refused
        as in `gather` where they are out of bounds.
        """
        axis = self._axis(axis, "take_along_axis")
        check_given(self.shape, index, axis)
        at = self._index(index)
        if len(at.shape) != len(self.shape):
            raise misuse(
                ValueError, f"take_along_axis: ranks of {self.shape} and {at.shape} differ"
            )
        asked = check_rows(self.shape, at.node, axis)
        return self._along(at.cast(dt.i32), axis, [asked])

    def _along(self, at: Self, axis: int, asked: Sequence[BoundedIndex] = ()) -> Self:
        graph.check_count(self.node.size)
        wide = tuple(at.shape[a] if a == axis else n for a, n in enumerate(self.shape))
        at = at.broadcast_to(wide)
        where = self._with(graph.const(0, dt.i32, wide))
        for a in range(len(wide)):
            step = math.prod(self.shape[a + 1 :])
            where = where + (at if a == axis else at._places(a)) * step
        taken = self.reshape(-1)._gathered(where, asked)

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            zeros = self._with(graph.const(0, g.dtype, self.shape))
            return zeros.scatter_add(axis, at, self._with(g)).node, None

        return self._own(taken, at, vjp=vjp)

    def scatter_add(self, axis: int, index: Operand, values: Operand) -> Self:
        """With values added to the elements at these indices of each line along an axis.

        Index and values have one shape, which may differ from the Tensor's along the axis. What
        has an index out of bounds, negative ones too, goes nowhere.
        """
        axis, at, new = self._scattered(axis, index, values)
        sums = new.unsqueeze(2)._added(at, self.shape[axis])
        return self + sums.reshape(*self.transpose(axis, -1).shape).transpose(axis, -1)

    def scatter(self, axis: int, index: Operand, values: Operand) -> Self:
        """With values instead of the elements at these indices, the last of several.

        Shapes are as in `scatter_add`; there too what has an index out of bounds goes nowhere.
        """
        axis, at, new = self._scattered(axis, index, values)
        if not at.node.size:
            return self
        shape = self.transpose(axis, -1).shape
        last = at._last(self.shape[axis])
        kept = new._along(last.maximum(0), 1)
        last, kept = (t.reshape(*shape).transpose(axis, -1) for t in (last, kept))
        return self.where(last < 0, self, kept)

    def _scattered(self, axis: int, index: Operand, values: Operand) -> tuple[int, Self, Self]:
        """The axis, and indices and values as lines along it, [lines, count]."""
        axis, at = self._axis(axis, "scatter"), self._index(index).cast(dt.i32)
        new = values if isinstance(values, Scans) else self._with(node_of(values, self.dtype))
        new = new.cast(self.dtype).broadcast_to(at.shape)
        others = [a for a in range(len(self.shape)) if a != axis]
        if len(at.shape) != len(self.shape) or any(at.shape[a] != self.shape[a] for a in others):
            raise misuse(ValueError, f"scatter: indices {at.shape} do not fit {self.shape}")
        lines = math.prod(self.shape[a] for a in others), at.shape[axis]
        found = (t.transpose(axis, -1).reshape(*lines) for t in (at, new))
        return axis, *found  # type: ignore[return-value]

    def _chosen(self, size: int) -> Self:
        """Which of indices [lines, count] are 0, 1 ... size - 1: [lines, size, count]."""
        return self.unsqueeze(1).eq(self._with(graph.iota(size)).reshape(size, 1))

    def _last(self, size: int) -> Self:
        """Of indices [lines, count] where the last 0, 1 ... size - 1 are, -1 for none."""
        if not _sorts(self.node.size, size):
            return self.where(self._chosen(size), self._places(1).unsqueeze(1), -1).max(2)
        order, _, last = self._runs(size)
        return self.where(last < 0, last, order._along(last.maximum(0), 1))

    def _added(self, at: Self, size: int) -> Self:
        """Sums of rows [lines, count, row] with the same index of each line: [lines, size, row].

        Of many, rows in the order of their indices are a running sum that begins anew at each.
        """
        if not _sorts(self.node.size, size):
            return self.where(at._chosen(size).unsqueeze(3), self.unsqueeze(1), 0).sum(2)
        order, first, last = at._runs(size)
        wide = self.cast(dt.f32 if self.dtype.is_float else dt.i32)
        kind = dt.i32 if self.dtype is dt.bool_ else self.dtype
        sums = wide._rows(order)._scan("sum", 1, type(self).__add__, first.unsqueeze(2))
        found = self.where(last.unsqueeze(2) < 0, 0, sums._rows(last.maximum(0)))

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            inside = at.clip(0, size - 1)
            back = self._with(g)._rows(inside)
            return self.where(at.eq(inside).unsqueeze(2), back, 0).node, None

        return self._own(found.cast(kind), at, vjp=vjp)

    def _rows(self, at: Self) -> Self:
        """Of [lines, count, row] each line's rows at its own indices [lines, ...]."""
        lines, count, row = self.shape
        first = self._with(graph.iota(lines)).reshape(lines, 1) * count
        return self.reshape(lines * count, row)._gathered(at + first)

    def _runs(self, size: int) -> tuple[Self, Self, Self]:
        """The order of indices [lines, count]; of each in it the first place that is the same; and
        where the last 0, 1 ... size - 1 are in it, -1 for none, by bisection.
        """
        (lines, count), order = self.shape, self.argsort(1)
        keys = self._along(order, 1).contiguous()
        below = self._with(graph.const(0, dt.i32, (lines, size + 1)))  # how many are
        for step in (1 << n for n in reversed(range(count.bit_length()))):
            probe = below + step
            fits = keys._along(probe.minimum(count) - 1, 1) < below._places(1)
            below = self.where((probe <= count) & fits, probe, below)
        below = below.contiguous()
        begin, end = below._cut(1, 0, size), below._cut(1, 1, size + 1)
        first = below._along(keys.clip(0, size), 1)
        return order, first, self.where(end > begin, end - 1, -1)


def _sorts(indices: int, size: int) -> bool:
    """Whether indices are sorted, as so many comparisons of each with all elements take longer."""
    return indices > COUNTED and indices * size > COMPARED


def _distances(blocks: int) -> np.ndarray:
    """How the places of two elements that are compared differ, stage by stage, as bits to flip.

    Blocks of 1, 2, 4 ... so many are merged, each with its neighbour read from its end: Batcher's
    network (1968) in the form that always puts the smaller one first.
    """
    found, half = [], COUNTED
    while half < blocks * COUNTED:
        found += [2 * half - 1, *(half >> n for n in range(1, half.bit_length()))]
        half *= 2
    return np.array([*found, 0][: len(found) + len(found) % 2], np.int32).reshape(-1, 2)
