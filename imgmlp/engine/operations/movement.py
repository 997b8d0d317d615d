"""Operations that move elements: views, which copy nothing, slices, concatenation and gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.operations.elementwise import (
    Elementwise,
    Operand,
    check_list,
    common_device,
    node_of,
)
from imgmlp.engine.operations.operands import (
    axes_of,
    broadcast,
    check_host_index,
    check_index_bounds,
    check_shape,
    out_of_bounds,
    unpack_sizes,
)
from imgmlp.engine.oracle.index_bounds import BoundedIndex, bound_gather


class Movement(Elementwise):
    """Elementwise operations, and those that change the shape or move elements."""

    __slots__ = ()

    def _move(self, op: Op, arg: Any) -> Self:
        return self._wrap(graph.move(op, self.node, arg))

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same elements in another shape; one size may be -1.

        The sizes are separate arguments or one tuple, as for `permute` and `expand`. Raises
        ValueError if the numbers of elements differ.
        """
        return self._move(Op.RESHAPE, unpack_sizes(shape))

    def permute(self, *axes: int | Sequence[int]) -> Self:
        """Axes in another order. Raises ValueError unless each axis is named exactly once."""
        return self._move(Op.PERMUTE, unpack_sizes(axes))

    def transpose(self, a: int = -2, b: int = -1) -> Self:
        """With two axes exchanged. Raises ValueError for an axis that does not exist."""
        rank = len(self.shape)
        axes = list(range(rank))
        a, b = (graph.normal_axis(axis, self.shape, "transpose") for axis in (a, b))
        axes[a], axes[b] = axes[b], axes[a]
        return self.permute(*axes)

    @property
    def T(self) -> Self:
        """The transposed matrix. Raises ValueError unless there are two axes."""
        if len(self.shape) != 2:
            text = f"T: shape {self.shape} has not two axes; use transpose or permute"
            raise misuse(ValueError, text)
        return self.transpose()

    def expand(self, *shape: int | Sequence[int]) -> Self:
        """Axes of size 1 repeated; the rank stays. Raises ValueError where another size changes."""
        return self._move(Op.EXPAND, unpack_sizes(shape))

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """A larger shape by NumPy's rule: missing axes are put in front, axes of size 1 repeat."""
        return self._wrap(broadcast(self.node, check_shape("broadcast_to", shape)))

    def pad(self, *pairs: tuple[int, int]) -> Self:
        """Zeros (before, after) each axis."""
        return self._move(Op.PAD, pairs)

    def shrink(self, *ranges: tuple[int, int]) -> Self:
        """Elements [begin, end) of each axis."""
        return self._move(Op.SHRINK, ranges)

    def stride(self, *steps: int) -> Self:
        """Every step-th element of each axis, from the end where the step is negative."""
        return self._move(Op.STRIDE, steps)

    def flip(self, *axes: int | Sequence[int]) -> Self:
        """Reversed along some axes, or all. Raises ValueError for an axis that does not exist."""
        flipped = axes_of("flip", unpack_sizes(axes) if axes else None, self.shape)
        return self.stride(*(-1 if i in flipped else 1 for i in range(len(self.shape))))

    def __len__(self) -> int:
        if not self.shape:
            raise misuse(TypeError, "len: a Tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Self:
        """Elements by integers and by slices with positive or negative steps."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise misuse(
                OutOfBoundsError, f"{len(keys)} indices for a Tensor of shape {self.shape}"
            )
        ranges, steps, remaining = [], [], []
        for axis, n in enumerate(self.shape):
            item = keys[axis] if axis < len(keys) else slice(None)
            span, step = self._range_and_step(item, n, axis)
            ranges.append(span)
            steps.append(step)
            if isinstance(item, slice):
                remaining.append(axis)
        part = self.shrink(*ranges)
        if any(s != 1 for s in steps):
            part = part.stride(*steps)
        return part.reshape(*(part.shape[a] for a in remaining))

    @classmethod
    def concat(cls, parts: Sequence[Operand], axis: int = 0) -> Self:
        """Tensors and arrays concatenated along an axis, in their common dtype."""
        check_list("concat", parts)
        if not len(parts):
            raise misuse(ValueError, "concat: needs at least one tensor")
        nodes = list(map(node_of, parts))
        kind = dt.concrete(dt.promote(*(n.dtype for n in nodes)))
        joined = graph.concat([graph.cast(n, kind) for n in nodes], axis)
        return cls(joined, common_device(*(p for p in parts if isinstance(p, Elementwise))))

    def contiguous(self) -> Self:
        """The same values, stored in memory in row-major order before they are read."""
        return self._wrap(graph.contiguous(self.node))

    def gather(self, index: Operand) -> Self:
        """Rows of this table [N, ...] by integers [...] in [0, N).

        Raises OutOfBoundsError for an index that is out of bounds, if it comes from the host or if
        the result is computed immediately. A compiled step checks computed indices only under
        DEBUG.
        """
        if self.shape:
            check_host_index(self.shape, index)
        rows = node_of(index)
        graph.gather(self.node, rows)  # raises if one of them is no table or no index
        bounded = check_index_bounds(self.shape, rows)
        return self._gathered(
            index if isinstance(index, Elementwise) else self._wrap(rows), [bounded]
        )

    def _gathered(self, index: Elementwise, bounded: Sequence[BoundedIndex] = ()) -> Self:
        """`gather` without checks. `bounded` are the user's indices that `index` is made of."""
        node = graph.gather(self.node, index.node)
        bound_gather(node, bounded)
        return type(self)(node, common_device(self, index))

    def _range_and_step(self, item: Any, n: int, axis: int) -> tuple[tuple[int, int], int]:
        """[begin, end) and the step of an index or slice of an axis of n elements."""
        if isinstance(item, int | np.integer) and not isinstance(item, bool):
            item = int(item)
            if not -n <= item < n:
                raise out_of_bounds(item, axis, self.shape)
            return (item % n, item % n + 1), 1
        if not isinstance(item, slice):
            allowed = "whole numbers, slices, None, ..., lists, arrays and Tensors of integers only"
            raise misuse(TypeError, f"index {item!r} of shape {self.shape}: {allowed}")
        if any(isinstance(end, Elementwise) for end in (item.start, item.stop, item.step)):
            advice = "x[Tensor.arange(count) + start] begins where a Tensor says"
            raise misuse(TypeError, f"slices take numbers only; {advice}")
        begin, end, step = item.indices(n)
        count = len(range(begin, end, step))
        if not count:
            return (0, 0), 1
        if step > 0:
            return (begin, end), step
        return (begin + (count - 1) * step, begin + 1), step
