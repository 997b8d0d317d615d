"""Elementwise operations: arithmetic, comparisons, functions and activations.

Operands are broadcast as in NumPy and promoted by ir/dtype.py; then Nodes are built. Each further
module of this folder adds a family of operations to the class of the one before: movement.py,
reduction.py, functions.py, indexing.py, scans.py, windows.py, creation.py. The last class is the
base of Tensor (frontend/tensor.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeGuard, TypeVar

import numpy as np

from imgmlp.engine.device.discover import AnyDevice, distinct_names
from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.operands import (
    Scalar,
    broadcast,
    broadcast_shapes,
    from_host,
    full_node,
)

Operand: TypeAlias = "Elementwise | Scalar | Array"
T = TypeVar("T", bound="Elementwise")
P = ParamSpec("P")


def _operator(op: Op, swapped: bool = False) -> Callable[[T, Operand], T]:
    """The method of a Python operator; with `swapped`, `self` is the right operand."""
    return lambda self, other: self._binary(op, other, swapped)


def _shift(op: Op) -> Callable[[T, Operand], T]:
    """The method of a shift. It raises ValueError for a number that is negative, or not less than
    the number of bits. For such elements of a Tensor the result depends on the device.
    """

    def shift(self: T, other: Operand) -> T:
        if isinstance(other, int | np.integer):
            kind = self._result_dtype(other)
            if kind.is_int and not 0 <= other < 8 * kind.itemsize:
                text = f"{op.name.lower()}: {kind.name} has no {other} bits to shift by"
                raise misuse(ValueError, text)
        return self._binary(op, other)

    return shift


def _comparison(swapped: bool = False) -> Callable[[T, Operand], T]:
    return lambda self, other: self._compare(Op.LT, other, swapped)


def computed_in_f32(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """A decorator for functions of floats that consist of several operations.

    Halves are computed in f32 and rounded once at the end; integers become f32.
    """

    @wraps(method)
    def computed(self: T, /, *args: P.args, **named: P.kwargs) -> T:
        result = method(self if self.dtype is dt.f32 else self.cast(dt.f32), *args, **named)
        return result.cast(dt.f16) if self.dtype is dt.f16 else result

    return computed


class Elementwise:
    """A Node and the device that it will run on, with elementwise operations."""

    __slots__ = ("__weakref__", "device", "node")

    # NumPy's arrays leave binary operators with this class to it.
    __array_ufunc__ = None

    def __init__(self, data: Node, device: AnyDevice | None = None) -> None:
        self.node, self.device = data, device

    def _wrap(self, node: Node) -> Self:
        return type(self)(node, self.device)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    # --- primitives ---

    def _unary(self, op: Op) -> Self:
        return self._wrap(graph.alu(op, self.node))

    def _binary(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        nodes, device = align_operands(op.name.lower(), self, other)
        return type(self)(graph.alu(op, *(reversed(nodes) if swapped else nodes)), device)

    def _as_float(self) -> Self:
        return self if self.dtype.is_float else self.cast(dt.f32)

    def cast(self, dtype: DType) -> Self:
        """The same numbers in another dtype. Floats that become integers lose their fraction.

        Integers that do not fit the dtype wrap. For floats that do not fit an integer dtype, such
        as negative ones an unsigned dtype, the result depends on the device.
        """
        return self._wrap(graph.cast(self.node, dtype))

    __add__ = __radd__ = _operator(Op.ADD)
    __mul__ = __rmul__ = _operator(Op.MUL)
    __sub__, __rsub__ = _operator(Op.SUB), _operator(Op.SUB, swapped=True)
    __xor__ = __rxor__ = _operator(Op.XOR)
    __and__ = __rand__ = _operator(Op.AND)
    __or__ = __ror__ = _operator(Op.OR)
    __lshift__, __rlshift__ = _shift(Op.SHL), _operator(Op.SHL, swapped=True)
    __rshift__, __rrshift__ = _shift(Op.SHR), _operator(Op.SHR, swapped=True)
    __hash__ = object.__hash__  # by identity, although == compares elements

    __lt__, __gt__ = _comparison(), _comparison(swapped=True)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self.eq(other) if _is_comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self.eq(other).logical_not() if _is_comparable(other) else NotImplemented

    def _compare(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        """The comparison as bools. Integers that the dtype cannot hold are compared correctly."""
        side = self._out_of_range(other)
        if not side:
            return self._binary(op, other, swapped)
        result = op is Op.LT and (side < 0) == swapped
        return self._wrap(graph.const(result, dt.bool_, self.shape))

    def _out_of_range(self, other: Operand) -> int:
        """1 if a number is an integer above the range of the result's dtype, -1 if below; or 0."""
        if not isinstance(other, int | np.integer) or isinstance(other, bool):
            return 0
        kind, value = self._result_dtype(other), int(other)
        return 0 if kind.is_float else (value > kind.max) - (value < kind.min)

    def _result_dtype(self, other: Operand) -> DType:
        """The dtype of a result of this Tensor and a number."""
        return dt.concrete(dt.promote(self.dtype, dt.of(other)))

    def __truediv__(self, other: Operand) -> Self:
        return self._as_float()._binary(Op.DIV, other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self._as_float()._binary(Op.DIV, other, swapped=True)

    def __neg__(self) -> Self:
        return self._unary(Op.NEG)

    def __ge__(self, other: Operand) -> Self:  # type: ignore[misc]
        return (self > other) | self.eq(other)  # `not <` would be true for NaN

    def __le__(self, other: Operand) -> Self:  # type: ignore[misc]
        return (self < other) | self.eq(other)

    def eq(self, other: Operand) -> Self:
        """Whether elements are equal, like `==`. NaN equals nothing."""
        return self._compare(Op.EQ, other)

    def logical_not(self) -> Self:
        """Whether elements are False or 0."""
        return self._binary(Op.XOR, True) if self.dtype is dt.bool_ else self.eq(0)

    def maximum(self, other: Operand) -> Self:
        """The larger element of both operands.

        Raises ValueError for an integer above the range of the dtype.
        """
        if self._never_limits("maximum", other, 1):
            return self.cast(self._result_dtype(other))
        return self._binary(Op.MAX, other)

    def minimum(self, other: Operand) -> Self:
        """The smaller element of both operands.

        Raises ValueError for an integer below the range of the dtype.
        """
        if self._never_limits("minimum", other, -1):
            return self.cast(self._result_dtype(other))
        nodes, device = align_operands("minimum", self, other)
        a, b = (type(self)(n, device) for n in nodes)
        return a._reverse_order().maximum(b._reverse_order())._reverse_order()

    def _never_limits(self, operation: str, other: Operand, wrong_side: int) -> bool:
        """Whether a limit is an integer out of the dtype's range that no element can exceed.

        Raises ValueError if it is out of the range on the `wrong_side`, 1 above or -1 below.
        """
        side = self._out_of_range(other)
        if side == wrong_side:
            raise misuse(ValueError, f"{operation}: {self.dtype.name} cannot hold {other}; cast it")
        return side != 0

    def _reverse_order(self) -> Self:
        """A mapping that reverses the order of numbers and is its own inverse."""
        return -self if self.dtype.is_float else ~self

    def __invert__(self) -> Self:
        """The negation of bools, or of each bit of integers."""
        if self.dtype is dt.bool_:
            return self.logical_not()
        ones = graph.const(-1, self.dtype, self.shape)
        return self._wrap(graph.alu(Op.XOR, self.node, ones))

    @classmethod
    def where(cls, condition: Operand, a: Operand, b: Operand) -> Self:
        """a where the condition is true, b elsewhere.

        The value that is not chosen does not affect the result, even if it is NaN.
        """
        (x, y), device = align_operands("where", a, b)
        chosen = cls(node_of(condition))
        shape = broadcast_shapes("where", chosen.shape, x.shape)
        nodes = (broadcast(n, shape) for n in (chosen.node, x, y))
        if isinstance(condition, Elementwise):
            device = _one_device(condition.device, device)
        return cls(graph.alu(Op.WHERE, *nodes), device)

    def multiply_add(self, factor: Operand, addend: Operand) -> Self:
        """self * factor + addend in one operation."""
        nodes, device = align_operands("multiply_add", self, factor, addend)
        return type(self)(graph.alu(Op.MULACC, *nodes), device)

    def exp2(self) -> Self:
        """2 to the power of x; integers become f32."""
        return self._as_float()._unary(Op.EXP2)

    def log2(self) -> Self:
        """The logarithm to base 2: NaN below zero, -inf at zero; integers become f32."""
        return self._as_float()._unary(Op.LOG2)

    def sin(self) -> Self:
        """The sine of radians; integers become f32."""
        return self._as_float()._unary(Op.SIN)

    def cos(self) -> Self:
        """The cosine of radians; integers become f32."""
        return self._as_float()._unary(Op.COS)

    def sqrt(self) -> Self:
        """The square root: NaN below zero; integers become f32."""
        return self._as_float()._unary(Op.SQRT)

    # --- functions composed of primitives ---

    @computed_in_f32
    def exp(self) -> Self:
        """e to the power of x, by exp2."""
        return (self * (1 / math.log(2))).exp2()

    @computed_in_f32
    def log(self) -> Self:
        """The natural logarithm, by log2."""
        return self.log2() * math.log(2)

    def square(self) -> Self:
        """x * x, in the same dtype."""
        return self * self

    def reciprocal(self) -> Self:
        """1 / x; infinite at zero."""
        return 1.0 / self

    def abs(self) -> Self:
        """The absolute value, in the same dtype."""
        return self.where(self < 0, -self, self)

    __abs__ = abs

    def sign(self) -> Self:
        """-1, 0 or 1; 0 for NaN."""
        return (self > 0).cast(self.dtype) - (self < 0).cast(self.dtype)

    def copysign(self, other: Operand) -> Self:
        """The absolute value with the sign of `other`; zero counts as positive."""
        magnitude = self.abs()
        dtype_of("copysign", other)
        if isinstance(other, Elementwise | np.ndarray):
            sign = other if isinstance(other, Elementwise) else self._wrap(node_of(other))
            return self.where(sign < 0, -magnitude, magnitude)
        return -magnitude if other < 0 else magnitude

    def relu(self) -> Self:
        """x where it is positive, 0 elsewhere."""
        return self.leaky_relu(0.0)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        """x where x >= 0, slope * x elsewhere.

        The gradient is computed from the result alone, so x need not be stored. Raises ValueError
        for a negative slope, with which the result does not show the sign of x.
        """
        if not slope >= 0:
            raise misuse(ValueError, f"leaky_relu: the slope must not be negative, not {slope}")
        result = self.where(self < 0, self * slope if slope else 0, self)
        return self._wrap(graph.function(result.node, [self.node], _leaky_relu_vjp(slope)))

    @computed_in_f32
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)). The gradient is computed from the result, as exp(-x) may overflow."""
        result = 1.0 / ((-self).exp() + 1.0)
        return self._wrap(graph.function(result.node, [self.node], VJP_FROM_RESULT["sigmoid"]))

    @computed_in_f32
    def expm1(self) -> Self:
        """exp(x) - 1, accurate near 0 as well.

        There it is (u - 1) x / log(u), where u is exp(x) as rounded: Higham, Accuracy and Stability
        of Numerical Algorithms (2002), section 1.14.1.
        """
        u = self.exp()
        small = self.where(u.eq(1.0), self, (u - 1.0) * self / u.log())
        result = self.where(self.abs() < 0.5, small, u - 1.0)
        return self._wrap(graph.function(result.node, [self.node], VJP_FROM_RESULT["expm1"]))

    @computed_in_f32
    def tanh(self) -> Self:
        """The hyperbolic tangent, accurate near 0. The gradient is computed from the result."""
        t = (self.abs() * -2.0).expm1()
        size = -t / (t + 2.0)
        result = self.where(self < 0, -size, size)
        return self._wrap(graph.function(result.node, [self.node], VJP_FROM_RESULT["tanh"]))


# Gradient rules that need only the result; one object each, so that equal functions are one Node.
VJP_FROM_RESULT: dict[str, Callable[[Node, Node, Node], tuple[Node]]] = {
    "sigmoid": lambda g, ans, x: (g * (ans - ans * ans),),
    "expm1": lambda g, ans, x: (g * (ans + 1.0),),
    "tanh": lambda g, ans, x: (g * (1.0 - ans * ans),),
}


@cache
def _leaky_relu_vjp(slope: float) -> Any:
    """The same object for equal slopes, so that equal activations are one Node."""

    def vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        low, high = (graph.const(v, g.dtype, g.shape) for v in (slope, 1.0))
        return (g * graph.alu(Op.WHERE, ans < 0.0, low, high),)

    def relu_vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        zero = graph.const(0, g.dtype, g.shape)
        return (graph.alu(Op.WHERE, zero < ans, g, zero),)

    # With slope 0, a result of 0 does not tell whether x was negative; the gradient there is 0.
    return vjp if slope else relu_vjp


# --- operands ---


def node_of(value: Operand, kind: DType | None = None) -> Node:
    """The Node of an operand; a number becomes a constant, an array a Buffer."""
    if isinstance(value, Elementwise):
        return value.node
    if isinstance(value, bool | int | float):
        return full_node("number", value, kind or dt.concrete(dt.of(value)))
    return from_host(value, None)


def check_list(operation: str, parts: object) -> None:
    """Raise TypeError for a single Tensor, whose rows would be taken for a list of Tensors."""
    if isinstance(parts, Elementwise):
        raise misuse(TypeError, f"{operation}: takes a list of Tensors, not Tensor")


def check_tensor(operation: str, value: object) -> None:
    """Raise TypeError for anything but a Tensor."""
    if not isinstance(value, Elementwise):
        raise misuse(TypeError, f"{operation}: takes a Tensor, not {type(value).__name__}")


def _is_operand(value: object) -> TypeGuard[Operand]:
    return isinstance(value, Elementwise | bool | int | float | np.generic | np.ndarray)


def _is_comparable(value: object) -> TypeGuard[Operand]:
    """Whether `==` is handled by `eq`.

    That includes lists, for which `eq` raises TypeError; Python would call them unequal.
    """
    return _is_operand(value) or isinstance(value, list | tuple)


def dtype_of(operation: str, value: Operand) -> DType:
    """The dtype of an operand. Raises TypeError for anything else."""
    if isinstance(value, Elementwise):
        return value.dtype
    if not _is_operand(value):
        name = type(value).__name__
        raise misuse(TypeError, f"{operation}: takes Tensors, arrays and numbers, not {name}")
    return dt.of(value)


def align_operands(operation: str, *values: Operand) -> tuple[list[Node], AnyDevice | None]:
    """The operands as Nodes of one shape and dtype, and their device.

    A Python number takes the dtype of the others if that can hold it.
    """
    kind = dt.concrete(dt.promote(*[dtype_of(operation, v) for v in values]))
    nodes = [
        graph.cast(node_of(v), kind) if isinstance(v, Elementwise | np.ndarray) else None
        for v in values
    ]
    shape = broadcast_shapes(operation, *[n.shape for n in nodes if n is not None])
    shaped = [
        full_node(operation, v, kind, shape) if n is None else broadcast(n, shape)  # type: ignore[arg-type]
        for v, n in zip(values, nodes, strict=True)
    ]
    return shaped, common_device(*[v for v in values if isinstance(v, Elementwise)])


def common_device(*values: Elementwise) -> AnyDevice | None:
    """The device of all operands that have one. Raises ValueError if they have different ones."""
    return _one_device(*[v.device for v in values])


def _one_device(*devices: AnyDevice | None) -> AnyDevice | None:
    distinct = {id(d): d for d in devices if d is not None}
    if len(distinct) > 1:
        names = " and on ".join(distinct_names(*[*distinct.values()][:2]))
        raise misuse(ValueError, f"tensors are on different devices: on {names}")
    return next(iter(distinct.values()), None)
