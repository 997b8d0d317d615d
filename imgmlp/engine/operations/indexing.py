"""Tensors put together and taken apart: axes, parts, and elements by other Tensors' indices.

Names and meaning are those of the Python array API standard, else NumPy's, else PyTorch's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.operations.elementwise import Elementwise, Operand, node_of
from imgmlp.engine.operations.functions import Functions


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

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Without axes of size 1: all, or those named. Raises ValueError for a longer one."""
        if axis is None:
            return self.reshape(*(n for n in self.shape if n > 1))
        given = (axis,) if isinstance(axis, int) else axis
        axes = {self._axis(a, "squeeze") for a in given}
        if any(self.shape[a] != 1 for a in axes):
            raise misuse(ValueError, f"squeeze: axes {axis} of shape {self.shape} are not all 1")
        return self.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Axes from `start` up to and with `end` as one."""
        if not self.shape:
            return self.reshape(1)
        first, last = self._axis(start, "flatten"), self._axis(end, "flatten")
        size = math.prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], size, *self.shape[last + 1 :])

    @classmethod
    def stack(cls, parts: Sequence[Operand], axis: int = 0) -> Self:
        """Tensors of one shape side by side along a new axis."""
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
        wider = (*self.shape[: axis + 1], count, *self.shape[axis + 1 :])
        return self.unsqueeze(axis + 1).expand(*wider).flatten(axis, axis + 1)

    def split(self, parts: int | Sequence[int], axis: int = 0) -> list[Self]:
        """So many equal parts, or those that end before each of some indices."""
        axis = self._axis(axis, "split")
        size = self.shape[axis]
        if isinstance(parts, int):
            if parts < 1 or size % parts:
                raise misuse(ValueError, f"split: {size} elements are not {parts} equal parts")
            parts = [size // parts * i for i in range(1, parts)]
        spans = itertools.pairwise([0, *parts, size])
        return [self[(*(slice(None),) * axis, slice(a, b))] for a, b in spans]

    # --- triangles ---

    def _places(self, axis: int) -> Self:
        """0, 1, 2 ... along an axis, of size 1 along the others."""
        axis = self._axis(axis, "index")
        ones = (n if a == axis else 1 for a, n in enumerate(self.shape))
        return self._with(graph.iota(self.shape[axis])).reshape(*ones)

    def tril(self, diagonal: int = 0) -> Self:
        """Zero above a diagonal of the last two axes, 0 being the main one, 1 that above it."""
        return self.where(self._places(-1) - self._places(-2) <= diagonal, self, False)

    def triu(self, diagonal: int = 0) -> Self:
        """Zero below a diagonal, as `tril`."""
        return self.where(self._places(-1) - self._places(-2) >= diagonal, self, False)

    # --- elements by indices ---

    def take(self, index: Operand, axis: int = 0) -> Self:
        """What lies at some indices of an axis; the index's axes take its place."""
        where = index if _is_array(index) else np.asarray(index)
        return self[(*(slice(None),) * self._axis(axis, "take"), where)]

    def one_hot(self, classes: int, dtype: DType = dt.i32) -> Self:
        """Along a new last axis 1 at each index and 0 elsewhere; all 0 for one beyond `classes`."""
        return self.unsqueeze(-1).eq(self._with(graph.iota(classes))).cast(dtype)

    def __getitem__(self, key: Any) -> Self:
        """Whole numbers, slices, None, ..., and arrays or Tensors of integers, as in NumPy.

        A mask is an array of bools on the host, as it says how many elements there are. Several
        arrays broadcast; with anything between them their axes come first.
        """
        keys = [*key] if isinstance(key, tuple) else [key]
        keys = [k for given in keys for k in _of_mask(given)]
        plain = sum(k is not None and k is not ... and k is not False for k in keys)
        if plain > len(self.shape):
            raise misuse(OutOfBoundsError, f"{plain} indices for a Tensor of shape {self.shape}")
        if sum(k is ... for k in keys) > 1:
            raise misuse(OutOfBoundsError, f"index {key} has more than one ...")
        gap = next((i for i, k in enumerate(keys) if k is ...), len(keys))
        keys[gap : gap + 1] = [slice(None)] * (len(self.shape) - plain)
        simple = tuple(slice(None) if _is_array(k) else k for k in keys if not _is_new(k))
        taken = super().__getitem__(simple)
        arrays: list[tuple[int, Any]] = []
        axis = 0
        for k in keys:
            if _is_new(k):
                taken = taken.unsqueeze(axis)
            if k is False:  # of size 0
                taken = taken.shrink(*((0, n * (a != axis)) for a, n in enumerate(taken.shape)))
            if _is_array(k):
                arrays.append((axis, k))
            axis += _is_new(k) or isinstance(k, slice) or _is_array(k)
        return taken._taken(arrays) if arrays else taken

    def _taken(self, arrays: Sequence[tuple[int, Any]]) -> Self:
        """Elements by arrays of indices, each for an axis."""
        axes = [axis for axis, _ in arrays]
        rest = [a for a in range(len(self.shape)) if a not in axes]
        sizes = [self.shape[a] for a in axes]
        where: Any = 0
        for (_, k), n in zip(arrays, sizes, strict=True):
            where = where * n + _from_end(k, n)
        count = math.prod(sizes)
        lines = self.permute(*axes, *rest).reshape(count, *(self.shape[a] for a in rest))
        taken = lines.gather(where)
        count = len(taken.shape) - len(rest)
        begin = axes[0] if axes == [*range(axes[0], axes[0] + len(axes))] else 0
        end = count + begin
        return taken.permute(*range(count, end), *range(count), *range(end, len(taken.shape)))


def _is_new(key: Any) -> bool:
    """Whether a key is an axis of its own: None and True one of size 1, False one of size 0."""
    return key is None or key is False


def _is_array(key: Any) -> bool:
    return isinstance(key, Elementwise | np.ndarray | list)


def _of_mask(key: Any) -> tuple[Any, ...]:
    """The keys that one stands for: a mask for indices of what is true in it."""
    if isinstance(key, bool | np.bool_):
        return (None,) if key else (False,)
    if isinstance(key, Elementwise):
        if key.dtype is dt.bool_:
            text = "a mask must be an array of the host, as its values decide the shape"
            raise misuse(TypeError, f"index: {text}; use Tensor.where, or mask.numpy()")
        if not key.dtype.is_int:
            raise misuse(TypeError, f"index: needs integers, not {key.dtype.name}; see gather")
        return (key,)
    if isinstance(key, np.ndarray | list):
        array = np.asarray(key)
        return np.nonzero(array) if array.dtype == np.bool_ else (array,)
    return (key,)


def _from_end(index: Any, size: int) -> Any:
    """Indices of which negative ones count from the end; those of the host are checked."""
    if isinstance(index, np.ndarray):
        wrong = index[(index < -size) | (index >= size)]
        if wrong.size:
            text = f"index {wrong.flat[0]} is out of bounds for an axis of size {size}"
            raise misuse(OutOfBoundsError, text)
        return (index % size).astype(np.int32)
    return index.where(index < 0, index + size, index) if index.dtype.min < 0 else index
