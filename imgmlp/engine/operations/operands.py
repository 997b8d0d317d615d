"""Arguments of operations: numbers and arrays of the host as Nodes, shapes, axes and indices.

NumPy's and Python's conventions are handled here. Nodes have no broadcasting or promotion.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Buffer, Node, Shape
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.oracle.index_bounds import BoundedIndex, bound_gather, find_out_of_bounds

Scalar = bool | int | float
Axis = int | Sequence[int] | None
NON_NUMERIC_KINDS = "cOSUMm"  # NumPy's dtype.kind of complex numbers, objects, text, dates


def from_host(data: Any, device: Any, dtype: DType | None = None, name: str = "") -> Node:
    """A Buffer with the values of anything that NumPy accepts; a constant if it has no elements.

    Without a `dtype`, float64 becomes f32 and int64 becomes i32. Floats lose their fraction if they
    become integers. Raises TypeError if the data are not numbers, ValueError for numbers that do
    not fit an integer dtype.
    """
    if dtype is not None:
        dt.check(dtype, "Tensor")
    try:
        array = np.asarray(data)
    except ValueError as error:  # lists of several lengths
        raise misuse(ValueError, f"Tensor: {error}") from None
    mixed = array.dtype.kind == "O" and all(isinstance(n, numbers.Real) for n in array.flat)
    if not isinstance(data, np.ndarray | np.generic) and (mixed or array.dtype == np.uint64):
        whole = not mixed or all(isinstance(n, int) for n in array.flat)
        dtype = dtype or (
            dt.i32 if whole else dt.f32
        )  # some of Python's integers need over 63 bits
    if array.dtype.kind in NON_NUMERIC_KINDS and not (mixed and dtype):
        dt.from_numpy(array.dtype)  # raises the TypeError
    kind = dtype or dt.from_numpy(array.dtype)
    if mixed and kind.is_float:
        array = np.reshape([dt.as_float(n) for n in array.flat], array.shape)
    if not array.size:
        return graph.const(0, kind, array.shape)
    _check_range(array, kind)
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        host = np.ascontiguousarray(array, dtype=kind.np).reshape(array.shape)
    if np.may_share_memory(host, array):  # the owner of the array may change it later
        host = host.copy()
    return graph.buffer(Buffer(array.shape, kind, device, host, name))


def narrow(array: Array, kind: DType) -> Array:
    """float64 as f32 and int64 as i32, like `from_host`; other arrays unchanged."""
    if array.dtype not in (np.float64, np.int64) or dt.from_numpy(array.dtype) is not kind:
        return array
    if array.size:
        _check_range(array, kind)
    with np.errstate(over="ignore"):
        return array.astype(kind.np)


def _check_range(array: Array, kind: DType) -> None:
    """Raise ValueError for numbers that an integer dtype cannot hold; NumPy would wrap them."""
    if kind.is_int and array.dtype.kind in "iufO":
        ends = array.min(), array.max()
        low, high = (n.item() if isinstance(n, np.generic) else n for n in ends)
        if not (low > kind.min - 1 and high < kind.max + 1):  # NaN is out of range as well
            misfit = high if low > kind.min - 1 else low
            raise misuse(ValueError, f"{kind.name} cannot hold {misfit}")


def check_device(operation: str, device: object) -> None:
    """Raise TypeError for anything but an open device, such as its name."""
    if not isinstance(device, AnyDevice):
        text = f"takes a device that open_device() gives, not {device!r}"
        raise misuse(TypeError, f"{operation}: {text}")


def unpack_sizes(sizes: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Sizes or axes that are given as separate arguments, or as one tuple or list."""
    only = sizes[0] if len(sizes) == 1 else None
    return tuple(only) if isinstance(only, tuple | list) else cast(tuple[int, ...], sizes)


def check_shape(operation: str, shape: Sequence[int]) -> Shape:
    """A shape as a tuple. Raises TypeError or ValueError unless all sizes are integers >= 0."""
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        text = f"{operation}: sizes {shape} are no tuple of whole numbers"
        raise misuse(TypeError, text) from None
    if any(n < 0 for n in sizes):
        raise misuse(ValueError, f"{operation}: no size of shape {sizes} may be negative")
    return sizes


def check_index_bounds(
    shape: Shape, index: Node, axis: int = 0, negative: bool = False
) -> BoundedIndex:
    """Raise OutOfBoundsError if an index that comes from the host is out of bounds of an axis.

    With `negative`, negative indices count from the end. Returns the index with its bounds. If a
    reader keeps these (`bound_gather`), later writes to the index are checked as well.
    """
    bounded = index, -shape[axis] if negative else 0, shape[axis]
    wrong = find_out_of_bounds(*bounded)
    if wrong is not None:
        raise out_of_bounds(wrong, axis, shape)
    return bounded


def bounded_choice(bounded: BoundedIndex, chosen: Node) -> Node:
    """The comparison that selects rows by an index, as a FUNCTION (see `gather_index`).

    As long as this Node exists, indices that the host writes later must be within the bounds, and
    computed ones are checked. Equal comparisons elsewhere have no bounds.
    """
    bounded_node = graph.function(chosen, (), _no_gradients)
    bound_gather(bounded_node, [bounded])
    return bounded_node


def _no_gradients(*_: Node) -> tuple[()]:
    """Gradients for no inputs."""
    return ()


def check_host_index(shape: Shape, index: object, axis: int = 0, negative: bool = False) -> None:
    """Raise OutOfBoundsError if an integer of the host, also beyond an i32, is out of bounds."""
    if not isinstance(index, int | np.integer | np.ndarray):
        return
    indices, lowest = np.asarray(index), -shape[axis] if negative else 0
    if isinstance(index, np.ndarray) and indices.dtype.kind not in "iu":
        return
    wrong = indices[(indices < lowest) | (indices >= shape[axis])]
    if wrong.size:
        raise out_of_bounds(int(wrong[0]), axis, shape)


def out_of_bounds(index: int, axis: int, shape: Shape) -> OutOfBoundsError:
    text = f"index {index} is out of bounds for axis {axis} of size {shape[axis]}"
    return misuse(OutOfBoundsError, f"{text}, shape {shape}")


def full_node(operation: str, value: Scalar, kind: DType, shape: Shape = ()) -> Node:
    """A constant of some shape. Raises ValueError for a number that the dtype cannot hold."""
    if kind.is_int and not kind.min <= value <= kind.max:
        raise misuse(ValueError, f"{operation}: {kind.name} cannot hold {value}; cast first")
    return graph.const(value, kind, shape)


def broadcast_shapes(operation: str, *shapes: Shape) -> Shape:
    """The common shape by NumPy's rule. Raises ValueError if there is none."""
    if len(set(shapes)) == 1:
        return shapes[0]
    try:
        return _common_shape(*shapes)
    except ValueError:
        text = " and ".join(str(s) for s in shapes)
        raise misuse(ValueError, f"{operation}: shapes {text} do not broadcast") from None


_common_shape = lru_cache(maxsize=1 << 12)(np.broadcast_shapes)


def broadcast(node: Node, shape: Sequence[int], operation: str = "broadcast_to") -> Node:
    """The Node broadcast to a larger shape. Raises ValueError if it does not fit."""
    shape = tuple(shape)
    if shape == node.shape:
        return node
    if broadcast_shapes(operation, node.shape, shape) != shape:
        raise misuse(ValueError, f"{operation}: shape {node.shape} does not fit into {shape}")
    missing = len(shape) - len(node.shape)
    ones = graph.move(Op.RESHAPE, node, (*(1,) * missing, *node.shape))
    return graph.move(Op.EXPAND, ones, shape)


def axes_of(operation: str, axis: Axis, shape: Shape) -> tuple[int, ...]:
    """The axes that an argument names, counted from the first; None stands for all.

    Raises ValueError for an axis that does not exist or is named twice.
    """
    is_scalar_axis = not shape and axis in (0, -1) and not isinstance(axis, bool)
    if axis is None or is_scalar_axis:  # a scalar has no axis, but PyTorch accepts these
        return tuple(range(len(shape)))
    named = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = tuple(graph.normal_axis(a, shape, operation) for a in named)
    if len(set(axes)) < len(axes):
        raise misuse(ValueError, f"{operation}: axes {named} of shape {shape} name one twice")
    return axes
