"""Tensors put together and taken apart: axes, parts, and elements by other Tensors' indices.

Names and meaning are those of the Python array API standard, else NumPy's, else PyTorch's.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.operations.elementwise import Elementwise, Operand, check_list, node_of
from imgmlp.engine.operations.functions import Functions
from imgmlp.engine.operations.operands import (
    Axis,
    axes_of,
    broadcast_shapes,
    check_given,
    check_rows,
    whole_shape,
)

PLAIN = frozenset({int, slice})  # keys that name parts of axes, and nothing else


class Indexing(Functions):
    """All that came before, and what is made of Tensors by axes and indices."""

    __slots__ = ()

    def _axis(self, axis: int, operation: str) -> int:
        return graph.normal_axis(axis, self.shape, operation)

    # --- axes ---

    def unsqueeze(self, axis: int) -> Self:
        """With an axis of size 1, which is `axis` of the result."""
        axis = graph.normal_axis(axis, (*self.shape, 1), "unsqueeze")
        return self.reshape(*self.shape[:axis], 1, *self.shape[axis:])

    def squeeze(self, axis: Axis = None) -> Self:
        """Without axes of size 1: all, or those named. Raises ValueError for a longer one."""
        if axis is None:
            return self.reshape(*(n for n in self.shape if n != 1))
        axes = axes_of("squeeze", axis, self.shape)
        if any(self.shape[a] != 1 for a in axes):
            raise misuse(ValueError, f"squeeze: axes {axis} of shape {self.shape} are not all 1")
        return self.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Axes from `start` up to and with `end` as one."""
        if not self.shape:
            return self.reshape(1)
        first, last = self._axis(start, "flatten"), self._axis(end, "flatten")
        if first > last:
            raise misuse(ValueError, f"flatten: axis {start} comes after axis {end}")
        size = math.prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], size, *self.shape[last + 1 :])

    @classmethod
    def stack(cls, parts: Sequence[Operand], axis: int = 0) -> Self:
        """Tensors of one shape side by side along a new axis."""
        check_list("stack", parts)
        tensors = [p if isinstance(p, Indexing) else cls(node_of(p)) for p in parts]
        if len({t.shape for t in tensors}) > 1:
            shapes = ", ".join(str(t.shape) for t in tensors)
            raise misuse(ValueError, f"stack: shapes {shapes} differ")
        return cls.concat([t.unsqueeze(axis) for t in tensors], axis)

    def repeat(self, count: int, axis: int | None = None) -> Self:
        """Each element so many times, one after the other; without an axis of the flat Tensor."""
        if axis is None:
            return self.flatten().repeat(count, 0)
        axis = self._axis(axis, "repeat")
        (count,) = whole_shape("repeat", (count,))
        wider = (*self.shape[: axis + 1], count, *self.shape[axis + 1 :])
        return self.unsqueeze(axis + 1).expand(*wider).flatten(axis, axis + 1)

    def split(self, parts: int | Sequence[int], axis: int = 0) -> list[Self]:
        """So many equal parts, or those that end before each of some indices."""
        axis = self._axis(axis, "split")
        size = self.shape[axis]
        if isinstance(parts, int | np.integer):
            if parts < 1 or size % parts:
                raise misuse(ValueError, f"split: {size} elements are not {parts} equal parts")
            parts = [size // parts * i for i in range(1, parts)]
        try:
            parts = list(map(operator.index, parts))
        except TypeError:
            text = f"takes a number of parts, or a list of where they begin, not {parts!r}"
            raise misuse(TypeError, f"split: {text}") from None
        spans = itertools.pairwise([0, *parts, size])
        return [self[(*(slice(None),) * axis, slice(a, b))] for a, b in spans]

    # --- triangles ---

    def _places(self, axis: int, operation: str = "places") -> Self:
        """0, 1, 2 ... along an axis, of size 1 along the others."""
        axis = self._axis(axis, operation)
        ones = (n if a == axis else 1 for a, n in enumerate(self.shape))
        return self._with(graph.iota(self.shape[axis])).reshape(*ones)

    def tril(self, diagonal: int = 0) -> Self:
        """Zero above a diagonal of the last two axes, 0 being the main one, 1 that above it."""
        return self.where(self._above("tril") <= diagonal, self, False)

    def triu(self, diagonal: int = 0) -> Self:
        """Zero below a diagonal, as `tril`."""
        return self.where(self._above("triu") >= diagonal, self, False)

    def _above(self, operation: str) -> Self:
        """How far above the main diagonal of the last two axes."""
        return self._places(-1, operation) - self._places(-2, operation)

    # --- elements by indices ---

    def take(self, index: Operand, axis: int = 0) -> Self:
        """What lies at some indices of an axis; the index's axes take its place.

        Computed ones out of bounds are refused as in `gather`.
        """
        where = _checked(index if _is_array(index) or _is_empty(index) else _listed(index))
        if isinstance(where, bool) or _is_mask(where):
            raise misuse(TypeError, "take: indices are integers, not bools; use x[mask]")
        return self[(*(slice(None),) * self._axis(axis, "take"), where)]

    def one_hot(self, classes: int, dtype: DType = dt.i32) -> Self:
        """Along a new last axis 1 at each index and 0 elsewhere; all 0 for one beyond `classes`."""
        (classes,) = whole_shape("one_hot", (classes,))
        return self.unsqueeze(-1).eq(self._with(graph.iota(classes))).cast(dtype)

    def __getitem__(self, key: Any) -> Self:
        """Whole numbers, slices, None, ..., and arrays or Tensors of integers, as in NumPy.

        A mask is an array of bools on the host, as it says how many elements there are. Several
        arrays broadcast; with anything but numbers between them, or between them and a number,
        their axes come first. Computed indices out of bounds are refused as in `gather`.
        """
        given = key if isinstance(key, tuple) else (key,)
        if PLAIN.issuperset(map(type, given)):  # as nearly all are
            return super().__getitem__(given)
        keys = [_checked(k) for k in given]
        count = sum(map(_axes_taken, keys))
        if count > len(self.shape):
            raise misuse(OutOfBoundsError, f"{count} indices for a Tensor of shape {self.shape}")
        if sum(k is ... for k in keys) > 1:
            raise misuse(OutOfBoundsError, f"index {key} has more than one ...")
        gap = next((i for i, k in enumerate(keys) if k is ...), len(keys))
        left = len(self.shape) - count
        keys[gap : gap + 1] = [slice(None)] * left if left else keys[gap : gap + 1]
        keys = self._without_masks(keys)
        plain = (slice(None) if _is_array(k) else k for k in keys if _axes_taken(k))
        taken, axis = super().__getitem__(tuple(plain)), 0
        arrays: list[tuple[int, Any]] = []
        places = []  # of arrays and numbers: in the key, and among the axes
        for place, k in enumerate(keys):
            if k is ...:  # which stands for no axis, and between arrays all the same
                continue
            if k is None or isinstance(k, bool):
                taken = taken.unsqueeze(axis)
            if isinstance(k, bool):  # takes all of its axis, or nothing
                arrays.append((axis, np.zeros(int(k), int)))
            elif _is_array(k):
                arrays.append((axis, k))
            if not (k is None or isinstance(k, slice)):
                places.append((place, axis))
            axis += isinstance(k, bool) or not isinstance(k, int | np.integer)
        if not arrays:
            return taken
        (first, begin), (last, _) = places[0], places[-1]
        return taken._taken(arrays, begin if last - first < len(places) else 0)

    def _without_masks(self, keys: Sequence[Any]) -> list[Any]:
        """With indices of what is true in each mask. Raises IndexError for a mask of other axes."""
        found: list[Any] = []
        axis = 0
        for k in keys:
            its, end = _is_mask(k), axis + _axes_taken(k)
            if its and k.shape != self.shape[axis:end]:
                text = f"a mask of shape {k.shape} is not that of axes {axis} to {end - 1}"
                raise misuse(OutOfBoundsError, f"index: {text} of shape {self.shape}")
            found += np.nonzero(k) if its else [k]
            axis = end
        return found

    def _taken(self, arrays: Sequence[tuple[int, Any]], begin: int) -> Self:
        """Elements by arrays of indices, each for an axis; their own axes come after `begin`."""
        axes = [axis for axis, _ in arrays]
        rest = [a for a in range(len(self.shape)) if a not in axes]
        shape = broadcast_shapes("index", *(k.shape for _, k in arrays))
        count = math.prod(self.shape[a] for a in axes)
        graph.check_count(count)
        asked = [
            check_rows(self.shape, k.node, axis, negative=True)
            for axis, k in arrays
            if isinstance(k, Elementwise)
        ]
        where: Any = 0
        for axis, k in arrays:
            where = where * self.shape[axis] + self._from_start(axis, k)
        lines = self.permute(*axes, *rest).reshape(count, *(self.shape[a] for a in rest))
        rows = where if isinstance(where, Elementwise) else self._with(node_of(where))
        taken = lines._gathered(rows, asked)
        count = len(shape)
        end = count + begin
        return taken.permute(*range(count, end), *range(count), *range(end, len(taken.shape)))

    def _from_start(self, axis: int, index: Any) -> Any:
        """Indices of which negative ones count from the end; the host's own are checked."""
        size = self.shape[axis]
        if isinstance(index, np.ndarray):
            check_given(self.shape, index, axis, negative=True)
            return (index.astype(np.int64) % (size or 1)).astype(np.int32)
        wide = index.cast(dt.i32)  # as sums and products of places are more than a byte has
        return wide.where(wide < 0, wide + size, wide) if index.dtype.min < 0 else wide


def _listed(index: Any) -> Array:
    """Lists of integers as an array. Raises ValueError for those of several lengths."""
    try:
        return np.asarray(index)
    except ValueError as error:
        raise misuse(ValueError, f"index: {error}") from None


def _is_empty(index: Any) -> bool:
    return isinstance(index, list) and not index


def _is_array(key: Any) -> bool:
    return isinstance(key, Elementwise | np.ndarray)


def _is_mask(key: Any) -> bool:
    return isinstance(key, np.ndarray) and key.dtype.kind == "b"


def _axes_taken(key: Any) -> int:
    """How many axes a key is for; None and a single bool have one of their own."""
    if key is None or key is ... or isinstance(key, bool):
        return 0
    return key.ndim if _is_mask(key) else 1


def _checked(key: Any) -> Any:
    """A key with arrays for lists, and Python's bool for one that stands alone."""
    if isinstance(key, Elementwise):
        if key.dtype is dt.bool_:
            text = "a mask must be an array of the host, as its values decide the shape"
            raise misuse(TypeError, f"index: {text}; use Tensor.where, or mask.numpy()")
        if not key.dtype.is_int:
            raise misuse(TypeError, f"index: needs integers, not {key.dtype.name}; see gather")
    if isinstance(key, list):
        key = _listed(key) if key else np.zeros(0, int)
    if isinstance(key, np.ndarray | np.bool_) and key.dtype.kind not in "iub":
        raise misuse(TypeError, f"index: needs integers or bools, not {key.dtype}")
    return bool(key) if (_is_mask(key) and not key.ndim) or isinstance(key, np.bool_) else key
