"""What operations take: numbers and arrays of the host as Nodes, shapes that broadcast.

NumPy's and Python's conventions live here; the Nodes below them are strict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.engine import dtype as dt
from imgmlp.engine import graph
from imgmlp.engine.dtype import DType
from imgmlp.engine.graph import Buffer, Node, Op, Shape

Scalar = bool | int | float
Array = np.ndarray[Any, Any]
Axis = int | Sequence[int] | None


def from_host(data: Any, device: Any, dtype: DType | None = None, name: str = "") -> Node:
    """A Buffer with anything that NumPy takes.

    float64 becomes f32 and int64 becomes i32 unless `dtype` says otherwise. Raises TypeError
    for what holds no numbers, ValueError for no elements or integers out of range.
    """
    array = np.asarray(data)
    if array.size == 0:
        raise ValueError(f"a Tensor of shape {array.shape} would hold no elements")
    kind = dtype or dt.from_numpy(array.dtype)
    _check_range(array, kind)
    host = np.ascontiguousarray(array, dtype=kind.np).reshape(array.shape)
    return graph.buffer(Buffer(array.shape, kind, device, host.copy(), name))


def _check_range(array: Array, kind: DType) -> None:
    """Refuse integers that the dtype cannot hold, which NumPy would wrap."""
    if kind.is_int and array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if low < kind.min or high > kind.max:
            raise ValueError(f"{kind.name} cannot hold {low if low < kind.min else high}")


def broadcast_shapes(operation: str, *shapes: Shape) -> Shape:
    """NumPy's rule: axes count from the last, and those of size 1 repeat."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join(str(s) for s in shapes)
        raise ValueError(f"{operation}: shapes {text} do not broadcast") from None


def broadcast(node: Node, shape: Sequence[int]) -> Node:
    """The Node at a larger shape, by the same rule."""
    shape = tuple(shape)
    missing = len(shape) - len(node.shape)
    if missing < 0:
        raise ValueError(f"cannot broadcast shape {node.shape} to {shape}")
    ones = graph.move(Op.RESHAPE, node, (*(1,) * missing, *node.shape))
    return graph.move(Op.EXPAND, ones, shape)


def axes_of(axis: Axis, rank: int) -> Sequence[int]:
    """The axes that an argument names; None names all."""
    if axis is None:
        return range(rank)
    return (axis,) if isinstance(axis, int) else tuple(axis)
