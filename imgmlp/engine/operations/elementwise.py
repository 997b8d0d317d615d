"""Operations on each element: arithmetic, comparisons, functions, activations.

Operands broadcast and promote as NumPy's and Python's would; then a Node is built. Other
families of operations are in movement.py and reduction.py; tensor.py joins them.
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
    filled,
    from_host,
)

Operand: TypeAlias = "Elementwise | Scalar | Array"
T = TypeVar("T", bound="Elementwise")
P = ParamSpec("P")


def _operator(op: Op, swapped: bool = False) -> Callable[[T, Operand], T]:
    """A method for one of Python's operators; `swapped`: its own value is the second one."""
    return lambda self, other: self._binary(op, other, swapped)


def _shift(op: Op) -> Callable[[T, Operand], T]:
    """The same for shifts, by at least 0 and fewer bits than there are. Raises ValueError for other
    numbers; what elements of a Tensor beyond that give is the device's."""

    def shift(self: T, other: Operand) -> T:
        if isinstance(other, int | np.integer):
            kind = self._joint(other)
            if kind.is_int and not 0 <= other < 8 * kind.itemsize:
                text = f"{op.name.lower()}: {kind.name} has no {other} bits to shift by"
                raise misuse(ValueError, text)
        return self._binary(op, other)

    return shift


def _comparison(swapped: bool = False) -> Callable[[T, Operand], T]:
    return lambda self, other: self._compare(Op.LT, other, swapped)


def in_f32(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """Several operations that make one function of floats: halves go through f32 and are rounded
    once, integers become f32."""

    @wraps(method)
    def wide(self: T, /, *args: P.args, **named: P.kwargs) -> T:
        answer = method(self if self.dtype is dt.f32 else self.cast(dt.f32), *args, **named)
        return answer.cast(dt.f16) if self.dtype is dt.f16 else answer

    return wide


class Elementwise:
    """A Node and the device that it will run on, with the operations on each element."""

    __slots__ = ("__weakref__", "device", "node")

    # arrays leave operators to us, instead of taking this for a number of their own
    __array_ufunc__ = None

    def __init__(self, data: Node, device: AnyDevice | None = None) -> None:
        self.node, self.device = data, device

    def _with(self, node: Node) -> Self:
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
        return self._with(graph.alu(op, self.node))

    def _binary(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        nodes, device = aligned(op.name.lower(), self, other)
        return type(self)(graph.alu(op, *(reversed(nodes) if swapped else nodes)), device)

    def _float(self) -> Self:
        return self if self.dtype.is_float else self.cast(dt.f32)

    def cast(self, dtype: DType) -> Self:
        """The same numbers in another dtype; floats lose their fraction on the way to integers.

        What integers have no room for wraps; a float beyond what the dtype holds, as one below
        zero is for an unsigned one, becomes what the device makes of it.
        """
        return self._with(graph.cast(self.node, dtype))

    __add__ = __radd__ = _operator(Op.ADD)
    __mul__ = __rmul__ = _operator(Op.MUL)
    __sub__, __rsub__ = _operator(Op.SUB), _operator(Op.SUB, swapped=True)
    __xor__ = __rxor__ = _operator(Op.XOR)
    __and__ = __rand__ = _operator(Op.AND)
    __or__ = __ror__ = _operator(Op.OR)
    __lshift__, __rlshift__ = _shift(Op.SHL), _operator(Op.SHL, swapped=True)
    __rshift__, __rrshift__ = _shift(Op.SHR), _operator(Op.SHR, swapped=True)
    __hash__ = object.__hash__  # by identity, though == compares elements

    # an array's comparisons take anything, but leave those with us to us
    __lt__, __gt__ = _comparison(), _comparison(swapped=True)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self.eq(other) if _is_comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self.eq(other).logical_not() if _is_comparable(other) else NotImplemented

    def _compare(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        """A bool of each element; an integer is what it is, whatever the dtype can hold."""
        beyond = self._beyond(other)
        if not beyond:
            return self._binary(op, other, swapped)
        answer = op is Op.LT and (beyond < 0) == swapped
        return self._with(graph.const(answer, dt.bool_, self.shape))

    def _beyond(self, other: Operand) -> int:
        """1 if an integer is above all that the dtype of a result can hold, -1 if below."""
        if not isinstance(other, int | np.integer) or isinstance(other, bool):
            return 0
        kind, value = self._joint(other), int(other)
        return 0 if kind.is_float else (value > kind.max) - (value < kind.min)

    def _joint(self, other: Operand) -> DType:
        """The dtype of a result with a number."""
        return dt.concrete(dt.promote(self.dtype, dt.of(other)))

    def __truediv__(self, other: Operand) -> Self:
        return self._float()._binary(Op.DIV, other)

    def __rtruediv__(self, other: Operand) -> Self:
        return self._float()._binary(Op.DIV, other, swapped=True)

    def __neg__(self) -> Self:
        return self._unary(Op.NEG)

    def __ge__(self, other: Operand) -> Self:  # type: ignore[misc]
        return (self > other) | self.eq(other)  # not "not <", which NaN would satisfy

    def __le__(self, other: Operand) -> Self:  # type: ignore[misc]
        return (self < other) | self.eq(other)

    def eq(self, other: Operand) -> Self:
        """Elementwise equality, as `==`; NaN equals nothing."""
        return self._compare(Op.EQ, other)

    def logical_not(self) -> Self:
        """True where a bool is False, or a number 0."""
        return self._binary(Op.XOR, True) if self.dtype is dt.bool_ else self.eq(0)

    def maximum(self, other: Operand) -> Self:
        """The larger of both, by broadcast. Raises ValueError for an integer beyond the dtype."""
        if self._limits("maximum", other, 1):
            return self.cast(self._joint(other))
        return self._binary(Op.MAX, other)

    def minimum(self, other: Operand) -> Self:
        """The smaller of both, as `maximum`."""
        # inverse(max(inverse a, inverse b)), the inverse being one that undoes itself
        if self._limits("minimum", other, -1):
            return self.cast(self._joint(other))
        nodes, device = aligned("minimum", self, other)
        a, b = (type(self)(n, device) for n in nodes)
        return a._inverse().maximum(b._inverse())._inverse()

    def _limits(self, operation: str, other: Operand, wrong: int) -> bool:
        """Whether an integer is so far out that it limits nothing; an error on one side."""
        beyond = self._beyond(other)
        if beyond == wrong:
            raise misuse(ValueError, f"{operation}: {self.dtype.name} cannot hold {other}; cast it")
        return beyond != 0

    def _inverse(self) -> Self:
        return -self if self.dtype.is_float else ~self

    def __invert__(self) -> Self:
        """Of bools `not`, of integers each bit."""
        if self.dtype is dt.bool_:
            return self.logical_not()
        ones = graph.const(-1, self.dtype, self.shape)
        return self._with(graph.alu(Op.XOR, self.node, ones))

    @classmethod
    def where(cls, condition: Operand, a: Operand, b: Operand) -> Self:
        """a where the condition is true, b elsewhere; neither choice changes the other."""
        (x, y), device = aligned("where", a, b)
        chosen = cls(node_of(condition))
        shape = broadcast_shapes("where", chosen.shape, x.shape)
        nodes = (broadcast(n, shape) for n in (chosen.node, x, y))
        if isinstance(condition, Elementwise):
            device = _one_device(condition.device, device)
        return cls(graph.alu(Op.WHERE, *nodes), device)

    def multiply_add(self, factor: Operand, addend: Operand) -> Self:
        """self * factor + addend in one operation."""
        nodes, device = aligned("multiply_add", self, factor, addend)
        return type(self)(graph.alu(Op.MULACC, *nodes), device)

    def exp2(self) -> Self:
        """2 to the power of x; integers become f32."""
        return self._float()._unary(Op.EXP2)

    def log2(self) -> Self:
        """NaN below zero, -inf at zero; integers become f32."""
        return self._float()._unary(Op.LOG2)

    def sin(self) -> Self:
        """Of radians; integers become f32."""
        return self._float()._unary(Op.SIN)

    def cos(self) -> Self:
        """Of radians; integers become f32."""
        return self._float()._unary(Op.COS)

    def sqrt(self) -> Self:
        """NaN below zero; integers become f32."""
        return self._float()._unary(Op.SQRT)

    # --- what follows from them ---

    @in_f32
    def exp(self) -> Self:
        """e to the power of x, by exp2."""
        return (self * (1 / math.log(2))).exp2()

    @in_f32
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
        """The magnitude, in the same dtype."""
        return self.where(self < 0, -self, self)

    __abs__ = abs

    def sign(self) -> Self:
        """-1, 0 or 1; 0 for NaN."""
        return (self > 0).cast(self.dtype) - (self < 0).cast(self.dtype)

    def copysign(self, other: Operand) -> Self:
        """The magnitude of self with the sign of other; zero counts as positive."""
        magnitude = self.abs()
        dtype_of("copysign", other)
        if isinstance(other, Elementwise | np.ndarray):
            sign = other if isinstance(other, Elementwise) else self._with(node_of(other))
            return self.where(sign < 0, -magnitude, magnitude)
        return -magnitude if other < 0 else magnitude

    def relu(self) -> Self:
        """x where it is positive, 0 elsewhere."""
        return self.leaky_relu(0.0)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        """x where x >= 0, slope * x elsewhere; its gradient needs the answer only.

        Raises ValueError for a negative slope, whose answers do not show the sign of x.
        """
        if not slope >= 0:
            raise misuse(ValueError, f"leaky_relu: the slope must not be negative, not {slope}")
        answer = self.where(self < 0, self * slope if slope else 0, self)
        return self._with(graph.function(answer.node, [self.node], _leaky_relu_vjp(slope)))

    @in_f32
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)); its gradient comes from the answer, where exp may be infinite."""
        answer = 1.0 / ((-self).exp() + 1.0)
        return self._with(graph.function(answer.node, [self.node], BY_ANSWER["sigmoid"]))

    @in_f32
    def expm1(self) -> Self:
        """exp(x) - 1, as exact near 0: there it is (u - 1) x / log(u) with u = exp(x) as rounded.

        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 1.14.1.
        """
        u = self.exp()
        small = self.where(u.eq(1.0), self, (u - 1.0) * self / u.log())
        answer = self.where(self.abs() < 0.5, small, u - 1.0)
        return self._with(graph.function(answer.node, [self.node], BY_ANSWER["expm1"]))

    @in_f32
    def tanh(self) -> Self:
        """Between -1 and 1, as exact near 0; its gradient comes from the answer."""
        t = (self.abs() * -2.0).expm1()
        size = -t / (t + 2.0)
        answer = self.where(self < 0, -size, size)
        return self._with(graph.function(answer.node, [self.node], BY_ANSWER["tanh"]))


# One rule for each, by the answer, so that equal functions are one Node.
BY_ANSWER: dict[str, Callable[[Node, Node, Node], tuple[Node]]] = {
    "sigmoid": lambda g, ans, x: (g * (ans - ans * ans),),
    "expm1": lambda g, ans, x: (g * (ans + 1.0),),
    "tanh": lambda g, ans, x: (g * (1.0 - ans * ans),),
}


@cache
def _leaky_relu_vjp(slope: float) -> Any:
    """One rule for each slope, so that equal activations are one Node."""

    def vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        low, high = (graph.const(v, g.dtype, g.shape) for v in (slope, 1.0))
        return (g * graph.alu(Op.WHERE, ans < 0.0, low, high),)

    def relu_vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
        zero = graph.const(0, g.dtype, g.shape)
        return (graph.alu(Op.WHERE, zero < ans, g, zero),)

    # an answer of 0 hides whether x was negative: with slope 0 the gradient at 0 is 0
    return vjp if slope else relu_vjp


# --- operands ---


def node_of(value: Operand, kind: DType | None = None) -> Node:
    """A Tensor's Node, a number as a constant (of a dtype), or an array's values in a Buffer."""
    if isinstance(value, Elementwise):
        return value.node
    if isinstance(value, bool | int | float):
        return filled("number", value, kind or dt.concrete(dt.of(value)))
    return from_host(value, None)


def check_list(operation: str, parts: object) -> None:
    """Refuse, as a TypeError, a single Tensor, whose rows would be taken for Tensors."""
    if isinstance(parts, Elementwise):
        raise misuse(TypeError, f"{operation}: takes a list of Tensors, not Tensor")


def check_tensor(operation: str, value: object) -> None:
    """Refuse, as a TypeError, what is no Tensor."""
    if not isinstance(value, Elementwise):
        raise misuse(TypeError, f"{operation}: takes a Tensor, not {type(value).__name__}")


def _is_operand(value: object) -> TypeGuard[Operand]:
    return isinstance(value, Elementwise | bool | int | float | np.generic | np.ndarray)


def _is_comparable(value: object) -> TypeGuard[Operand]:
    """Whether `==` is left to `eq`: also of lists, which it refuses as all operations do, where
    Python would find them unequal."""
    return _is_operand(value) or isinstance(value, list | tuple)


def dtype_of(operation: str, value: Operand) -> DType:
    """That of an operand. Raises TypeError for what is none."""
    if isinstance(value, Elementwise):
        return value.dtype
    if not _is_operand(value):
        name = type(value).__name__
        raise misuse(TypeError, f"{operation}: takes Tensors, arrays and numbers, not {name}")
    return dt.of(value)


def aligned(operation: str, *values: Operand) -> tuple[list[Node], AnyDevice | None]:
    """All at one shape, dtype and device; a Python number takes the others' dtype if it can."""
    kind = dt.concrete(dt.promote(*[dtype_of(operation, v) for v in values]))
    nodes = [
        graph.cast(node_of(v), kind) if isinstance(v, Elementwise | np.ndarray) else None
        for v in values
    ]
    shape = broadcast_shapes(operation, *[n.shape for n in nodes if n is not None])
    shaped = [
        filled(operation, v, kind, shape) if n is None else broadcast(n, shape)  # type: ignore[arg-type]
        for v, n in zip(values, nodes, strict=True)
    ]
    return shaped, common_device(*[v for v in values if isinstance(v, Elementwise)])


def common_device(*values: Elementwise) -> AnyDevice | None:
    """The one device of all that have one. Raises ValueError if there are several."""
    return _one_device(*[v.device for v in values])


def _one_device(*devices: AnyDevice | None) -> AnyDevice | None:
    found = {id(d): d for d in devices if d is not None}
    if len(found) > 1:
        names = " and on ".join(distinct_names(*[*found.values()][:2]))
        raise misuse(ValueError, f"tensors are on different devices: on {names}")
    return next(iter(found.values()), None)
