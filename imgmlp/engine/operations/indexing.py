"""Axes, stacking and splitting, and elements by arrays or Tensors of indices.

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
    check_host_index,
    check_index_bounds,
    check_shape,
)

BASIC_KEY_TYPES = frozenset({int, slice})  # keys that `Movement.__getitem__` handles


class Indexing(Functions):
    """Functions and all before them, and operations with axes and indices."""

    __slots__ = ()

    def _axis(self, axis: int, operation: str) -> int:
        return graph.normal_axis(axis, self.shape, operation)

    # --- axes ---

    def unsqueeze(self, axis: int) -> Self:
        """With a new axis of size 1, which is `axis` of the result."""
        axis = graph.normal_axis(axis, (*self.shape, 1), "unsqueeze")
        return self.reshape(*self.shape[:axis], 1, *self.shape[axis:])

    def squeeze(self, axis: Axis = None) -> Self:
        """Without axes of size 1: all of them, or those that are named.

        Raises ValueError if a named axis is longer.
        """
        if axis is None:
            return self.reshape(*(n for n in self.shape if n != 1))
        axes = axes_of("squeeze", axis, self.shape)
        if any(self.shape[a] != 1 for a in axes):
            raise misuse(ValueError, f"squeeze: axes {axis} of shape {self.shape} are not all 1")
        return self.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """The axes from `start` to `end`, included, as one axis."""
        if not self.shape:
            return self.reshape(1)
        first, last = self._axis(start, "flatten"), self._axis(end, "flatten")
        if first > last:
            raise misuse(ValueError, f"flatten: axis {start} comes after axis {end}")
        size = math.prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], size, *self.shape[last + 1 :])

    @classmethod
    def stack(cls, parts: Sequence[Operand], axis: int = 0) -> Self:
        """Tensors of one shape stacked along a new axis."""
        check_list("stack", parts)
        tensors = [p if isinstance(p, Indexing) else cls(node_of(p)) for p in parts]
        if len({t.shape for t in tensors}) > 1:
            shapes = ", ".join(str(t.shape) for t in tensors)
            raise misuse(ValueError, f"stack: shapes {shapes} differ")
        return cls.concat([t.unsqueeze(axis) for t in tensors], axis)

    def repeat(self, count: int, axis: int | None = None) -> Self:
        """Each element repeated `count` times along an axis; by default of the flattened Tensor."""
        if axis is None:
            return self.flatten().repeat(count, 0)
        axis = self._axis(axis, "repeat")
        (count,) = check_shape("repeat", (count,))
        wider = (*self.shape[: axis + 1], count, *self.shape[axis + 1 :])
        return self.unsqueeze(axis + 1).expand(*wider).flatten(axis, axis + 1)

    def split(self, parts: int | Sequence[int], axis: int = 0) -> list[Self]:
        """The parts along an axis: a number of equal ones, or those between some indices."""
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

    def _positions(self, axis: int, operation: str = "places") -> Self:
        """0, 1, 2 ... along an axis. The other axes have size 1."""
        axis = self._axis(axis, operation)
        ones = (n if a == axis else 1 for a, n in enumerate(self.shape))
        return self._wrap(graph.iota(self.shape[axis])).reshape(*ones)

    def tril(self, diagonal: int = 0) -> Self:
        """Zeros above a diagonal of the last two axes; 0 is the main one, 1 the one above it."""
        return self.where(self._diagonal_numbers("tril") <= diagonal, self, False)

    def triu(self, diagonal: int = 0) -> Self:
        """Zeros below a diagonal, which is counted as for `tril`."""
        return self.where(self._diagonal_numbers("triu") >= diagonal, self, False)

    def _diagonal_numbers(self, operation: str) -> Self:
        """The number of the diagonal of the last two axes that each element is on."""
        return self._positions(-1, operation) - self._positions(-2, operation)

    # --- elements by indices ---

    def take(self, index: Operand, axis: int = 0) -> Self:
        """The elements at some indices of an axis, which the axes of the index replace.

        Indices out of bounds are refused as in `gather`.
        """
        where = _normal_key(
            index if _is_array(index) or _is_empty(index) else _list_as_array(index)
        )
        if isinstance(where, bool) or _is_mask(where):
            raise misuse(TypeError, "take: indices are integers, not bools; use x[mask]")
        return self[(*(slice(None),) * self._axis(axis, "take"), where)]

    def one_hot(self, classes: int, dtype: DType = dt.i32) -> Self:
        """1 at each index along a new last axis, 0 elsewhere; all 0 for an index out of bounds."""
        (classes,) = check_shape("one_hot", (classes,))
        return self.unsqueeze(-1).eq(self._wrap(graph.iota(classes))).cast(dtype)

    def __getitem__(self, key: Any) -> Self:
        """Elements by integers, slices, None, ..., and arrays or Tensors of integers, as in NumPy.

        A mask is an array of bools on the host, because it determines the shape. Several arrays are
        broadcast. Their axes replace those that they index; they come first if the arrays and
        integers are not all next to each other. Indices out of bounds are refused as in `gather`.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if BASIC_KEY_TYPES.issuperset(map(type, parts)):  # fast path for nearly all uses
            return super().__getitem__(parts)
        keys = self._keys_of_all_axes([_normal_key(k) for k in parts])
        plain = (slice(None) if _is_array(k) else k for k in keys if _axes_indexed(k))
        taken, axis = super().__getitem__(tuple(plain)), 0
        arrays: list[tuple[int, Any]] = []
        places = []  # of arrays and integers: (position in the key, axis)
        for place, k in enumerate(keys):
            if k is ...:  # stands for no axis, but separates arrays
                continue
            if k is None or isinstance(k, bool):
                taken = taken.unsqueeze(axis)
            if isinstance(k, bool):  # takes its new axis, or nothing
                arrays.append((axis, np.zeros(int(k), int)))
            elif _is_array(k):
                arrays.append((axis, k))
            if not (k is None or isinstance(k, slice)):
                places.append((place, axis))
            axis += isinstance(k, bool) or not isinstance(k, int | np.integer)
        if not arrays:
            return taken
        (first, begin), (last, _) = places[0], places[-1]
        return taken._take_elements(arrays, begin if last - first < len(places) else 0)

    def _keys_of_all_axes(self, keys: list[Any]) -> list[Any]:
        """The keys with slices for the remaining axes, and with indices instead of masks.

        A `...` stays if no axis remains. Raises OutOfBoundsError for too many keys, or several of
        `...`.
        """
        count = sum(map(_axes_indexed, keys))
        if count > len(self.shape):
            raise misuse(OutOfBoundsError, f"{count} indices for a Tensor of shape {self.shape}")
        if sum(k is ... for k in keys) > 1:
            raise misuse(OutOfBoundsError, f"index {tuple(keys)} has more than one ...")
        gap = next((i for i, k in enumerate(keys) if k is ...), len(keys))
        remaining = len(self.shape) - count
        if remaining:
            keys[gap : gap + 1] = [slice(None)] * remaining
        return self._masks_as_indices(keys)

    def _masks_as_indices(self, keys: Sequence[Any]) -> list[Any]:
        """The keys with the indices of True instead of each mask.

        Raises OutOfBoundsError for a mask whose shape is not that of its axes.
        """
        converted: list[Any] = []
        axis = 0
        for k in keys:
            is_mask, end = _is_mask(k), axis + _axes_indexed(k)
            if is_mask and k.shape != self.shape[axis:end]:
                text = f"a mask of shape {k.shape} is not that of axes {axis} to {end - 1}"
                raise misuse(OutOfBoundsError, f"index: {text} of shape {self.shape}")
            converted += np.nonzero(k) if is_mask else [k]
            axis = end
        return converted

    def _take_elements(self, arrays: Sequence[tuple[int, Any]], begin: int) -> Self:
        """Elements by arrays of indices, each for an axis; the arrays' axes come after `begin`."""
        axes = [axis for axis, _ in arrays]
        rest = [a for a in range(len(self.shape)) if a not in axes]
        shape = broadcast_shapes("index", *(k.shape for _, k in arrays))
        count = math.prod(self.shape[a] for a in axes)
        graph.check_count(count)
        bounded = [
            check_index_bounds(self.shape, k.node, axis, negative=True)
            for axis, k in arrays
            if isinstance(k, Elementwise)
        ]
        flat_index: Any = 0
        for axis, k in arrays:
            flat_index = flat_index * self.shape[axis] + self._nonnegative_index(axis, k)
        lines = self.permute(*axes, *rest).reshape(count, *(self.shape[a] for a in rest))
        rows = (
            flat_index if isinstance(flat_index, Elementwise) else self._wrap(node_of(flat_index))
        )
        elements = lines._gathered(rows, bounded)
        count = len(shape)
        end = count + begin
        return elements.permute(*range(count, end), *range(count), *range(end, len(elements.shape)))

    def _nonnegative_index(self, axis: int, index: Any) -> Any:
        """Indices as non-negative i32; those of the host are checked."""
        size = self.shape[axis]
        if isinstance(index, np.ndarray):
            check_host_index(self.shape, index, axis, negative=True)
            return (index.astype(np.int64) % (size or 1)).astype(np.int32)
        wide_index = index.cast(dt.i32)  # sums and products of indices may not fit a byte
        return (
            wide_index.where(wide_index < 0, wide_index + size, wide_index)
            if index.dtype.min < 0
            else wide_index
        )


def _list_as_array(index: Any) -> Array:
    """A list of integers as an array. Raises ValueError for lists of different lengths."""
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


def _axes_indexed(key: Any) -> int:
    """The number of axes that a key indexes; None and a single bool make a new one."""
    if key is None or key is ... or isinstance(key, bool):
        return 0
    return key.ndim if _is_mask(key) else 1


def _normal_key(key: Any) -> Any:
    """A key with an array instead of a list, and a Python bool instead of an array of one bool.

    Raises TypeError for what cannot be a key.
    """
    if isinstance(key, Elementwise):
        if key.dtype is dt.bool_:
            text = "a mask must be an array of the host, as its values decide the shape"
            raise misuse(TypeError, f"index: {text}; use Tensor.where, or mask.numpy()")
        if not key.dtype.is_int:
            raise misuse(TypeError, f"index: needs integers, not {key.dtype.name}; see gather")
    if isinstance(key, list):
        key = _list_as_array(key) if key else np.zeros(0, int)
    if isinstance(key, np.ndarray | np.bool_) and key.dtype.kind not in "iub":
        raise misuse(TypeError, f"index: needs integers or bools, not {key.dtype}")
    return bool(key) if (_is_mask(key) and not key.ndim) or isinstance(key, np.bool_) else key
