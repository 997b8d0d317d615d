"""Operations along an axis: products, running sums, sorting, and scattering by indices.

A line is all elements along one axis. A running sum consists of log2(n) additions of the values
shifted by 1, 2, 4 ... (Hillis and Steele, 1986). A short line is sorted by counting: the rank of an
element is the number of elements that come before it, which is one reduction and takes no memory.
Longer lines are sorted block by block in this way, and the blocks are merged in a loop of about
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
from imgmlp.engine.operations.elementwise import Elementwise, Operand, computed_in_f32, node_of
from imgmlp.engine.operations.indexing import Indexing
from imgmlp.engine.operations.operands import (
    Axis,
    axes_of,
    check_host_index,
    check_index_bounds,
    from_host,
)
from imgmlp.engine.oracle.index_bounds import BoundedIndex

MAX_COUNTED_LINE = 64  # elements of a line that is sorted by counting; a power of two
# Comparisons of indices with positions, up to which scattered rows are added by a mask. From there
# on indices are sorted. A CPU takes about as long to sort 4,096 indices of 4,096 positions.
MAX_INDEX_COMPARISONS = 1 << 23


class Scans(Indexing):
    """Indexing and all before it, and operations that depend on the order along an axis."""

    __slots__ = ()

    # --- reductions ---

    @computed_in_f32
    def std(self, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Self:
        """The square root of `var`."""
        axes = axes_of("std", axis, self.shape)
        return self.var(axes, keepdims, correction).sqrt()

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The product; of bools in i32. The halves of an axis are multiplied until one is left."""
        product = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        for a in (axes := axes_of("prod", axis, self.shape)):
            if not product.shape[a]:
                product = product.pad(*((0, int(b == a)) for b in range(len(self.shape)))) + 1
            while (n := product.shape[a]) > 1:
                low, high = (product._slice_axis(a, b, b + n // 2) for b in (0, n // 2))
                last = [product._slice_axis(a, n - 1, n)] if n % 2 else []
                product = self.concat([low * high, *last], a) if last else low * high
        return product if keepdims else product.squeeze(axes)

    @computed_in_f32
    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The logarithm of the sum of exp(x), without overflow."""
        maximum = self._max_for_exp(axis).detach()
        maximum = self.where(maximum.isfinite(), maximum, 0.0)
        result = (self - maximum).exp().sum(axis, keepdims=True).log() + maximum
        return result if keepdims else result.squeeze(axes_of("logsumexp", axis, self.shape))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the largest element, the first of several, in i32.

        Without an axis it is the index in the flattened Tensor.
        """
        return self._argmax("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the smallest element, like `argmax`."""
        return self._reverse_order()._argmax("argmin", axis, keepdims)

    def _argmax(self, operation: str, axis: int | None, keepdims: bool) -> Self:
        if axis is None or not axes_of(operation, axis, self.shape):
            index = self.flatten()._argmax(operation, 0, False)
            return index.reshape(*(1 for _ in self.shape)) if keepdims else index
        axis = self._axis(axis, operation)
        maximum = self._reduce(operation, Op.REDUCE_MAX, axis, True)
        is_maximum = self.eq(maximum) | self.isnan()
        return self.where(is_maximum, self._positions(axis), self.shape[axis]).min(axis, keepdims)

    # --- scans ---

    def _slice_axis(self, axis: int, begin: int, end: int) -> Self:
        spans = ((begin, end) if a == axis else (0, n) for a, n in enumerate(self.shape))
        return self.shrink(*spans)

    def _scan(
        self, operation: str, axis: int, join: Callable[[Self, Self], Self], first: Self | int = 0
    ) -> Self:
        """For each element the elements from index `first` up to it, combined by `join`."""
        axis = self._axis(axis, operation)
        positions, result, step = self._positions(axis) - first, self, 1
        size = self.shape[axis]
        while step < size:
            shifted = result._slice_axis(axis, 0, size - step)
            shifted = shifted.pad(*((step if a == axis else 0, 0) for a in range(len(self.shape))))
            result = self.where(positions >= step, join(shifted, result), result).contiguous()
            step *= 2
        return result

    def cumsum(self, axis: int = 0) -> Self:
        """Running sums along an axis; bools are counted in i32, halves added in f32."""
        if self.dtype is dt.f16:
            return self.cast(dt.f32).cumsum(axis).cast(dt.f16)
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._scan("cumsum", axis, type(self).__add__)

    def cumprod(self, axis: int = 0) -> Self:
        """Running products along an axis."""
        return self._scan("cumprod", axis, lambda a, b: a * b)

    def cummax(self, axis: int = 0) -> Self:
        """Running maxima along an axis."""
        return self._scan("cummax", axis, lambda a, b: a.maximum(b))

    # --- order ---

    def _comes_before(self, other: Self, tie: Self, descending: bool) -> Self:
        """Whether each element comes before another one; `tie` says so if both are equal.

        NaN is the largest.
        """
        below, same = (other < self) if descending else (self < other), self.eq(other)
        if self.dtype.is_float:
            is_nan, other_is_nan = self.isnan(), other.isnan()
            below |= (is_nan & ~other_is_nan) if descending else (other_is_nan & ~is_nan)
            same |= is_nan & other_is_nan
        return below | (same & tie)

    def _inverse_order(self, axis: int) -> Self:
        """The inverse of a permutation along an axis."""
        if self.shape[axis] > MAX_COUNTED_LINE:
            return self.argsort(axis)
        chosen = self.unsqueeze(axis).eq(self._positions(axis).unsqueeze(axis + 1))
        return self.where(chosen, self._positions(axis).unsqueeze(axis), 0).sum(axis + 1)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """Indices in i32 that sort each line along an axis; equal elements keep their order."""
        axis = self._axis(axis, "argsort")
        if not self.node.size:
            return self.cast(dt.i32)
        if (size := self.shape[axis]) > MAX_COUNTED_LINE:
            lines = self.transpose(axis, -1)
            order = lines.reshape(math.prod(lines.shape[:-1]), size)._argsort_by_merging(descending)
            return order.reshape(*lines.shape).transpose(axis, -1)
        positions = self._positions(axis)
        others = self.unsqueeze(axis)
        tie = positions.unsqueeze(axis) < positions.unsqueeze(axis + 1)
        earlier = others._comes_before(self.unsqueeze(axis + 1), tie, descending)
        return earlier.sum(axis + 1).contiguous()._inverse_order(axis)

    def _argsort_by_merging(self, descending: bool) -> Self:
        """`argsort` of long lines [lines, size]: sorted blocks are merged two by two.

        The padding of the last block comes last: it has the extreme value, and a later position
        than equal elements.
        """
        count, size = self.shape
        blocks = -(-size // MAX_COUNTED_LINE)
        length = blocks * MAX_COUNTED_LINE
        graph.check_count(count * length)
        last = self.dtype.min if descending else math.nan if self.dtype.is_float else self.dtype.max
        positions = self._wrap(graph.iota(length))
        keys = self.where(positions < size, self.pad((0, 0), (0, length - size)), last)
        begins = self._wrap(graph.iota(count * blocks)).reshape(count, blocks, 1) * MAX_COUNTED_LINE
        start = keys.reshape(count, blocks, MAX_COUNTED_LINE).argsort(-1, descending) + begins
        keys, start = keys.flatten().contiguous(), start.reshape(count, length)
        first = self._wrap(graph.iota(count)).reshape(count, 1) * length
        distances = self._wrap(from_host(_merge_distances(blocks), self.device))

        stage, order = (
            self._wrap(control_flow.parameter(-1, i, node))
            for i, node in enumerate((graph.const(0, dt.i32), start.node))
        )
        new_order = order
        for distance in distances._gathered(stage):
            partner = positions ^ distance
            other = new_order.flatten()._gathered(first + partner.minimum(length - 1))
            other_keys, own_keys = keys._gathered(other), keys._gathered(new_order)
            swap = other_keys._comes_before(own_keys, other < new_order, descending)
            chosen = (partner < length) & swap.eq(positions < partner)
            new_order = self.where(chosen, other, new_order).contiguous()
        results = control_flow.loop(
            len(distances), -1, [graph.const(0, dt.i32), start.node],
            [stage.node, order.node], [(stage + 1).node, new_order.node],
        )  # fmt: skip
        return (self._wrap(results[1]) - first).shrink((0, count), (0, size))

    def _reordered(self, axis: int, index: Self) -> Self:
        """Lines in the order of a permutation; the gradient is permuted back."""

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            return self._wrap(g)._reordered(axis, index._inverse_order(axis)).node, None

        return self._with_vjp(self._take_along(index, axis), index, vjp=vjp)

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Each line along an axis sorted; NaN is the largest."""
        axis = self._axis(axis, "sort")
        return self._reordered(axis, self.argsort(axis, descending))

    def topk(self, count: int, axis: int = -1) -> tuple[Self, Self]:
        """The `count` largest elements of each line along an axis, in order, and their indices."""
        axis = self._axis(axis, "topk")
        if not isinstance(count, int | np.integer):
            raise misuse(TypeError, f"topk: {count!r} is no whole number")
        if not 0 <= count <= self.shape[axis]:
            raise misuse(ValueError, f"topk: {count} of {self.shape[axis]} elements")
        index = self.argsort(axis, descending=True)
        return self._reordered(axis, index)._slice_axis(axis, 0, count), index._slice_axis(
            axis, 0, count
        )

    # --- elements by computed indices ---

    def _as_index(self, index: Operand) -> Self:
        tensor = index if isinstance(index, Scans) else self._wrap(node_of(index))
        if not tensor.dtype.is_int:
            raise misuse(TypeError, f"indices are integers, not {tensor.dtype.name}; cast them")
        return tensor  # type: ignore[return-value]

    def _gathered(self, index: Elementwise, bounded: Sequence[BoundedIndex] = ()) -> Self:
        rows_taken, at = super()._gathered(index, bounded), self._wrap(index.node)
        count = at.node.size
        if not _should_sort(count, self.node.size):
            return rows_taken

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            rows = self._wrap(g).reshape(1, count, self.node.size // len(self))
            sums = rows._sum_rows_by_index(at.cast(dt.i32).reshape(1, count), len(self))
            return sums.reshape(*self.shape).node, None

        return self._with_vjp(rows_taken, at, vjp=vjp)

    def take_along_axis(self, index: Operand, axis: int = -1) -> Self:
        """The elements of each line along an axis at indices that the line has of its own.

        The other axes of the index are those of the Tensor, or 1. Negative indices are out of
        bounds; those are refused as in `gather`.
        """
        axis = self._axis(axis, "take_along_axis")
        check_host_index(self.shape, index, axis)
        at = self._as_index(index)
        if len(at.shape) != len(self.shape):
            raise misuse(
                ValueError, f"take_along_axis: ranks of {self.shape} and {at.shape} differ"
            )
        bounded = check_index_bounds(self.shape, at.node, axis)
        return self._take_along(at.cast(dt.i32), axis, [bounded])

    def _take_along(self, at: Self, axis: int, bounded: Sequence[BoundedIndex] = ()) -> Self:
        graph.check_count(self.node.size)
        shape = tuple(at.shape[a] if a == axis else n for a, n in enumerate(self.shape))
        at = at.broadcast_to(shape)
        positions = self._wrap(graph.const(0, dt.i32, shape))
        for a in range(len(shape)):
            step = math.prod(self.shape[a + 1 :])
            positions = positions + (at if a == axis else at._positions(a)) * step
        elements = self.reshape(-1)._gathered(positions, bounded)

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            zeros = self._wrap(graph.const(0, g.dtype, self.shape))
            return zeros.scatter_add(axis, at, self._wrap(g)).node, None

        return self._with_vjp(elements, at, vjp=vjp)

    def scatter_add(self, axis: int, index: Operand, values: Operand) -> Self:
        """This Tensor with values added to the elements at some indices of each line.

        Index and values have the same shape, which may differ from the Tensor's along the axis.
        Values whose index is out of bounds, or negative, are ignored.
        """
        axis, at, added = self._scatter_lines(axis, index, values)
        sums = added.unsqueeze(2)._sum_rows_by_index(at, self.shape[axis])
        return self + sums.reshape(*self.transpose(axis, -1).shape).transpose(axis, -1)

    def scatter(self, axis: int, index: Operand, values: Operand) -> Self:
        """This Tensor with values instead of the elements at some indices of each line.

        The last of several values with the same index is used. Otherwise like `scatter_add`.
        """
        axis, at, new = self._scatter_lines(axis, index, values)
        if not at.node.size:
            return self
        shape = self.transpose(axis, -1).shape
        last = at._last_positions(self.shape[axis])
        last_values = new._take_along(last.maximum(0), 1)
        last, last_values = (t.reshape(*shape).transpose(axis, -1) for t in (last, last_values))
        return self.where(last < 0, self, last_values)

    def _scatter_lines(self, axis: int, index: Operand, values: Operand) -> tuple[int, Self, Self]:
        """The axis, and indices and values as lines along it, [lines, count]."""
        axis, at = self._axis(axis, "scatter"), self._as_index(index).cast(dt.i32)
        new = values if isinstance(values, Scans) else self._wrap(node_of(values, self.dtype))
        new = new.cast(self.dtype).broadcast_to(at.shape)
        others = [a for a in range(len(self.shape)) if a != axis]
        if len(at.shape) != len(self.shape) or any(at.shape[a] != self.shape[a] for a in others):
            raise misuse(ValueError, f"scatter: indices {at.shape} do not fit {self.shape}")
        lines = math.prod(self.shape[a] for a in others), at.shape[axis]
        as_lines = (t.transpose(axis, -1).reshape(*lines) for t in (at, new))
        return axis, *as_lines  # type: ignore[return-value]

    def _matches_index(self, size: int) -> Self:
        """Whether indices [lines, count] equal 0, 1 ... size - 1: bools [lines, size, count]."""
        return self.unsqueeze(1).eq(self._wrap(graph.iota(size)).reshape(size, 1))

    def _last_positions(self, size: int) -> Self:
        """The last position of 0, 1 ... size - 1 in indices [lines, count]; -1 if there is none."""
        if not _should_sort(self.node.size, size):
            return self.where(self._matches_index(size), self._positions(1).unsqueeze(1), -1).max(2)
        order, _, last = self._sorted_runs(size)
        return self.where(last < 0, last, order._take_along(last.maximum(0), 1))

    def _sum_rows_by_index(self, at: Self, size: int) -> Self:
        """Sums of the rows [lines, count, row] of each line with equal index: [lines, size, row].

        If there are many, they are sorted by index and added by a running sum that restarts at each
        index.
        """
        if not _should_sort(self.node.size, size):
            return self.where(at._matches_index(size).unsqueeze(3), self.unsqueeze(1), 0).sum(2)
        order, first, last = at._sorted_runs(size)
        rows = self.cast(dt.f32 if self.dtype.is_float else dt.i32)
        kind = dt.i32 if self.dtype is dt.bool_ else self.dtype
        sums = rows._rows_of_lines(order)._scan("sum", 1, type(self).__add__, first.unsqueeze(2))
        totals = self.where(last.unsqueeze(2) < 0, 0, sums._rows_of_lines(last.maximum(0)))

        def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, None]:
            inside = at.clip(0, size - 1)
            gradients = self._wrap(g)._rows_of_lines(inside)
            return self.where(at.eq(inside).unsqueeze(2), gradients, 0).node, None

        return self._with_vjp(totals.cast(kind), at, vjp=vjp)

    def _rows_of_lines(self, at: Self) -> Self:
        """Rows of [lines, count, row] at indices [lines, ...] that each line has of its own."""
        lines, count, row = self.shape
        first = self._wrap(graph.iota(lines)).reshape(lines, 1) * count
        return self.reshape(lines * count, row)._gathered(at + first)

    def _sorted_runs(self, size: int) -> tuple[Self, Self, Self]:
        """The runs of equal indices when indices [lines, count] are sorted.

        Returns the `argsort`; for each sorted index the position where its run begins; and the last
        position of 0, 1 ... size - 1, found by bisection, -1 if there is none.
        """
        (lines, count), order = self.shape, self.argsort(1)
        keys = self._take_along(order, 1).contiguous()
        below = self._wrap(
            graph.const(0, dt.i32, (lines, size + 1))
        )  # indices that are less than 0, 1 ... size
        for step in (1 << n for n in reversed(range(count.bit_length()))):
            probe = below + step
            fits = keys._take_along(probe.minimum(count) - 1, 1) < below._positions(1)
            below = self.where((probe <= count) & fits, probe, below)
        below = below.contiguous()
        begin, end = below._slice_axis(1, 0, size), below._slice_axis(1, 1, size + 1)
        first = below._take_along(keys.clip(0, size), 1)
        return order, first, self.where(end > begin, end - 1, -1)


def _should_sort(indices: int, size: int) -> bool:
    """Whether sorting indices is faster than comparing each of them with all positions."""
    return indices > MAX_COUNTED_LINE and indices * size > MAX_INDEX_COMPARISONS


def _merge_distances(blocks: int) -> np.ndarray:
    """For each stage of merging the bits in which the positions of compared elements differ.

    Blocks of MAX_COUNTED_LINE elements are merged with their neighbours, then blocks of twice as
    many, and so on. In the first stage of a merge the second block is read backwards. This is
    Batcher's bitonic network (1968) in the form that always puts the smaller element first.
    """
    distances, block = [], MAX_COUNTED_LINE
    while block < blocks * MAX_COUNTED_LINE:
        distances += [2 * block - 1, *(block >> n for n in range(1, block.bit_length()))]
        block *= 2
    return np.array([*distances, 0][: len(distances) + len(distances) % 2], np.int32).reshape(-1, 2)
