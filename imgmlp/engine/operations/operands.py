"""What operations take: numbers and arrays of the host as Nodes, shapes that broadcast.

NumPy's and Python's conventions live here; the Nodes below them are strict.
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
NO_NUMBERS = "cOSUMm"  # NumPy's kinds of complex numbers, objects, text and times


def from_host(data: Any, device: Any, dtype: DType | None = None, name: str = "") -> Node:
    """A Buffer with anything that NumPy takes; what holds no elements needs none.

    float64 becomes f32 and int64 becomes i32 unless `dtype` says otherwise; floats lose their
    fraction on the way to integers. Raises TypeError for what holds no numbers, ValueError for what
    integers cannot hold.
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
        dtype = dtype or (dt.i32 if whole else dt.f32)  # of Python's numbers beyond 63 bits
    if array.dtype.kind in NO_NUMBERS and not (mixed and dtype):
        dt.from_numpy(array.dtype)  # says so, whatever the dtype is to be
    kind = dtype or dt.from_numpy(array.dtype)
    if mixed and kind.is_float:
        array = np.reshape([dt.as_float(n) for n in array.flat], array.shape)
    if not array.size:
        return graph.const(0, kind, array.shape)
    _check_range(array, kind)
    with np.errstate(over="ignore"):  # what is too large for a float is infinite
        host = np.ascontiguousarray(array, dtype=kind.np).reshape(array.shape)
    if np.may_share_memory(host, array):  # which its owner may change
        host = host.copy()
    return graph.buffer(Buffer(array.shape, kind, device, host, name))


def narrowed(array: Array, kind: DType) -> Array:
    """float64 as f32 and int64 as i32, which `from_host` makes of them too; all else as it is."""
    if array.dtype not in (np.float64, np.int64) or dt.from_numpy(array.dtype) is not kind:
        return array
    if array.size:
        _check_range(array, kind)
    with np.errstate(over="ignore"):
        return array.astype(kind.np)


def _check_range(array: Array, kind: DType) -> None:
    """Refuse what an integer dtype cannot hold, of which NumPy would make something else."""
    if kind.is_int and array.dtype.kind in "iufO":
        ends = array.min(), array.max()
        low, high = (n.item() if isinstance(n, np.generic) else n for n in ends)
        if not (low > kind.min - 1 and high < kind.max + 1):  # NaN is neither
            wrong = high if low > kind.min - 1 else low
            raise misuse(ValueError, f"{kind.name} cannot hold {wrong}")


def check_device(operation: str, device: object) -> None:
    """Raises TypeError for what is none, such as a name."""
    if not isinstance(device, AnyDevice):
        text = f"takes a device that open_device() gives, not {device!r}"
        raise misuse(TypeError, f"{operation}: {text}")


def spread(sizes: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Numbers that are given as arguments of their own, or all as one tuple or list."""
    only = sizes[0] if len(sizes) == 1 else None
    return tuple(only) if isinstance(only, tuple | list) else cast(tuple[int, ...], sizes)


def whole_shape(operation: str, shape: Sequence[int]) -> Shape:
    """A shape to make a Tensor of: whole numbers from 0."""
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        text = f"{operation}: sizes {shape} are no tuple of whole numbers"
        raise misuse(TypeError, text) from None
    if any(n < 0 for n in sizes):
        raise misuse(ValueError, f"{operation}: no size of shape {sizes} may be negative")
    return sizes


def check_rows(shape: Shape, index: Node, axis: int = 0, negative: bool = False) -> BoundedIndex:
    """Refuse indices out of bounds of an axis where the host gives them; negative ones may count
    from its end. What reads by them is told the answer, so that later ones are refused too."""
    asked = index, -shape[axis] if negative else 0, shape[axis]
    wrong = find_out_of_bounds(*asked)
    if wrong is not None:
        raise out_of_bounds(wrong, axis, shape)
    return asked


def hold_rows(asked: BoundedIndex, chosen: Node) -> Node:
    """The comparison that chooses rows, as a FUNCTION of its own (see `gather_index`).

    As long as that Node exists, later indices from the host must lie within the bounds as well, and
    computed ones are checked. Equal comparisons elsewhere have no bounds.
    """
    held = graph.function(chosen, (), _ungraded)
    bound_gather(held, [asked])
    return held


def _ungraded(*_: Node) -> tuple[()]:
    """Gradients for no inputs."""
    return ()


def check_given(shape: Shape, index: object, axis: int = 0, negative: bool = False) -> None:
    """The same for integers of the host, also those that no i32 holds."""
    if not isinstance(index, int | np.integer | np.ndarray):
        return
    given, low = np.asarray(index), -shape[axis] if negative else 0
    if isinstance(index, np.ndarray) and given.dtype.kind not in "iu":
        return
    wrong = given[(given < low) | (given >= shape[axis])]
    if wrong.size:
        raise out_of_bounds(int(wrong[0]), axis, shape)


def out_of_bounds(index: int, axis: int, shape: Shape) -> OutOfBoundsError:
    text = f"index {index} is out of bounds for axis {axis} of size {shape[axis]}"
    return misuse(OutOfBoundsError, f"{text}, shape {shape}")


def filled(operation: str, value: Scalar, kind: DType, shape: Shape = ()) -> Node:
    """One number everywhere. Raises ValueError for what an integer dtype cannot hold."""
    if kind.is_int and not kind.min <= value <= kind.max:
        raise misuse(ValueError, f"{operation}: {kind.name} cannot hold {value}; cast first")
    return graph.const(value, kind, shape)


def broadcast_shapes(operation: str, *shapes: Shape) -> Shape:
    """NumPy's rule: axes count from the last, and those of size 1 repeat."""
    if len(set(shapes)) == 1:
        return shapes[0]
    try:
        return _common_shape(*shapes)
    except ValueError:
        text = " and ".join(str(s) for s in shapes)
        raise misuse(ValueError, f"{operation}: shapes {text} do not broadcast") from None


_common_shape = lru_cache(maxsize=1 << 12)(np.broadcast_shapes)


def broadcast(node: Node, shape: Sequence[int], operation: str = "broadcast_to") -> Node:
    """The Node at a larger shape, by the same rule."""
    shape = tuple(shape)
    if shape == node.shape:
        return node
    if broadcast_shapes(operation, node.shape, shape) != shape:
        raise misuse(ValueError, f"{operation}: shape {node.shape} does not fit into {shape}")
    missing = len(shape) - len(node.shape)
    ones = graph.move(Op.RESHAPE, node, (*(1,) * missing, *node.shape))
    return graph.move(Op.EXPAND, ones, shape)


def axes_of(operation: str, axis: Axis, shape: Shape) -> tuple[int, ...]:
    """The axes that an argument names, counted from the first; None names all.

    Raises ValueError for an axis that is not there, or named twice.
    """
    none = not shape and axis in (0, -1) and not isinstance(axis, bool)
    if axis is None or none:  # of what has none, as PyTorch
        return tuple(range(len(shape)))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = tuple(graph.normal_axis(a, shape, operation) for a in given)
    if len(set(axes)) < len(axes):
        raise misuse(ValueError, f"{operation}: axes {given} of shape {shape} name one twice")
    return axes
