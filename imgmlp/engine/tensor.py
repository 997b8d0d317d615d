"""Tensor: the lazy API that users write networks with.

A Tensor wraps a Node and remembers its device. Operators broadcast and promote, then
build Nodes; nothing runs until `realize()`, `numpy()` or a compiled step does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from imgmlp.engine import dtype as dt
from imgmlp.engine import graph
from imgmlp.engine.device import AnyDevice
from imgmlp.engine.dtype import DType
from imgmlp.engine.grad import gradient as node_gradient
from imgmlp.engine.graph import Buffer, Node, Op
from imgmlp.engine.program import Program, read_buffer, run_once, write_buffer

Scalar = bool | int | float
Axis = int | Sequence[int] | None
Seed: TypeAlias = "Tensor | int | tuple[Tensor | int, ...]"
PHI = 0x9E3779B9  # 2**32 over the golden ratio: keeps streams of random numbers apart


class Tensor:
    """A value of some shape and dtype on a device, perhaps not computed yet.

    `data` is anything that NumPy takes; float64 becomes f32 and int64 becomes i32 unless
    `dtype` says otherwise. Raises TypeError for a dtype that the engine has not.
    """

    __slots__ = ("device", "node")

    def __init__(
        self,
        data: Any,
        device: AnyDevice | None = None,
        dtype: DType | None = None,
        name: str = "",
    ) -> None:
        self.device = device
        if isinstance(data, Node):
            self.node = data
            return
        array = np.asarray(data)
        if array.size == 0:
            raise ValueError(f"a Tensor of shape {array.shape} would hold no elements")
        kind = dtype or dt.from_numpy(array.dtype)
        _check_range(array, kind)
        host = np.ascontiguousarray(array, dtype=kind.np).reshape(array.shape)
        self.node = graph.buffer(Buffer(array.shape, kind, device, host.copy(), name))

    # --- what it is ---

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis of the realized, row-major value."""
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def flat_index(self, *indices: int) -> int:
        """Position of an element in the row-major value. Raises IndexError outside the shape."""
        if len(indices) != len(self.shape):
            raise IndexError(f"{len(indices)} indices for a tensor of {len(self.shape)} axes")
        for axis, (i, n) in enumerate(zip(indices, self.shape, strict=True)):
            if not 0 <= i < n:
                raise IndexError(f"index {i} is out of bounds for axis {axis} of size {n}")
        return sum(i * s for i, s in zip(indices, self.strides, strict=True))

    @property
    def realized(self) -> bool:
        return self.node.op is Op.BUFFER

    def __repr__(self) -> str:
        state = "realized" if self.realized else graph.label(self.node)
        where = self.device.info.spec if self.device is not None else "any device"
        return f"Tensor({self.dtype.name}{list(self.shape)}, {state}, {where})"

    __hash__ = object.__hash__

    # --- making ---

    @staticmethod
    def full(
        shape: Sequence[int], value: Scalar, dtype: DType | None = None, device: Any = None
    ) -> Tensor:
        kind = dtype or dt.concrete(dt.of(value))
        return Tensor(graph.const(value, kind, tuple(shape)), device)

    @staticmethod
    def zeros(*shape: int, dtype: DType = dt.f32, device: Any = None) -> Tensor:
        return Tensor.full(shape, 0, dtype, device)

    @staticmethod
    def ones(*shape: int, dtype: DType = dt.f32, device: Any = None) -> Tensor:
        return Tensor.full(shape, 1, dtype, device)

    @staticmethod
    def arange(count: int, dtype: DType = dt.i32, device: Any = None) -> Tensor:
        """0, 1, ... count - 1."""
        return Tensor(graph.cast(graph.iota(count), dtype), device)

    @staticmethod
    def random_bits(shape: Sequence[int], seed: Seed, device: Any = None) -> Tensor:
        """Uniform u32 by hashing a counter with the seed: numbers or u32 of one element."""
        count = math.prod(shape)
        counter = Tensor.arange(count, dt.u32, device)._unary(Op.HASH)
        mixed = Tensor.zeros(1, dtype=dt.u32)
        for part in seed if isinstance(seed, tuple) else (seed,):
            if not isinstance(part, Tensor):
                part = Tensor.full((), part & 0xFFFFFFFF, dt.u32)
            mixed = (mixed + part.cast(dt.u32).reshape(1) + PHI)._unary(Op.HASH)
        return (counter + mixed)._unary(Op.HASH).reshape(*shape)

    @staticmethod
    def uniform(shape: Sequence[int], seed: Seed, device: Any = None) -> Tensor:
        """Uniform f32 in [0, 1), 24 random bits each."""
        return _unit(Tensor.random_bits(shape, seed, device))

    @staticmethod
    def normal(
        shape: Sequence[int],
        seed: Seed,
        mean: float = 0.0,
        variance: float = 1.0,
        device: Any = None,
    ) -> Tensor:
        """Gaussian f32 by Box and Muller (1958) from two hashes of the counter."""
        bits = Tensor.random_bits(shape, seed, device)
        radius = ((1.0 - _unit(bits)).log() * -2.0 * variance).sqrt()
        angle = _unit(bits._unary(Op.HASH)) * (2 * math.pi)
        return radius * angle.cos() + mean

    # --- elementwise ---

    def _unary(self, op: Op) -> Tensor:
        return Tensor(graph.alu(op, self.node), self.device)

    def _float(self) -> Tensor:
        return self if self.dtype.is_float else self.cast(dt.f32)

    def _binary(self, op: Op, other: Tensor | Scalar, swapped: bool = False) -> Tensor:
        a, b = _aligned(self, other, op.name.lower())
        if swapped:
            a, b = b, a
        return Tensor(graph.alu(op, a.node, b.node), a.device)

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.ADD, other)

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.MUL, other)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.SUB, other)

    def __rsub__(self, other: Scalar) -> Tensor:
        return self._binary(Op.SUB, other, swapped=True)

    def __truediv__(self, other: Tensor | Scalar) -> Tensor:
        return self._float()._binary(Op.DIV, other)

    def __rtruediv__(self, other: Scalar) -> Tensor:
        return self._float()._binary(Op.DIV, other, swapped=True)

    def __floordiv__(self, other: Tensor | Scalar) -> Tensor:
        """Integer division rounding towards minus infinity."""
        kind = dt.promote(self.dtype, other.dtype if isinstance(other, Tensor) else dt.of(other))
        if kind.is_float:
            raise TypeError(f"//: needs integers, not {kind.name}; use / on floats")
        return self._binary(Op.DIV, other)

    def __mod__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.MOD, other)

    def __neg__(self) -> Tensor:
        return self._unary(Op.NEG)

    def __pow__(self, exponent: int) -> Tensor:
        """Whole powers, by squaring."""
        if not isinstance(exponent, int) or exponent < 1:
            raise ValueError(f"power {exponent}: only whole exponents from 1; use exp and log")
        half = self if exponent == 1 else (self * self) ** (exponent // 2)
        return half if exponent == 1 or exponent % 2 == 0 else half * self

    def __xor__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.XOR, other)

    def __and__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.AND, other)

    def __or__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.OR, other)

    def __lshift__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.SHL, other)

    def __rshift__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.SHR, other)

    def __lt__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.LT, other)

    def __gt__(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.LT, other, swapped=True)

    def __ge__(self, other: Tensor | Scalar) -> Tensor:
        return (self > other) | self.eq(other)  # not "not <", which NaN would satisfy

    def __le__(self, other: Tensor | Scalar) -> Tensor:
        return (self < other) | self.eq(other)

    def eq(self, other: Tensor | Scalar) -> Tensor:
        """Elementwise equality; `==` compares identity, as for any object."""
        return self._binary(Op.EQ, other)

    def logical_not(self) -> Tensor:
        return self._binary(Op.XOR, True)

    def maximum(self, other: Tensor | Scalar) -> Tensor:
        return self._binary(Op.MAX, other)

    def minimum(self, other: Tensor | Scalar) -> Tensor:
        """inverse(max(inverse a, inverse b)), the inverse being one that undoes itself."""
        a, b = _aligned(self, other, "minimum")
        return a._inverse().maximum(b._inverse())._inverse()

    def _inverse(self) -> Tensor:
        if self.dtype is dt.bool_:
            return self.logical_not()
        return -self if self.dtype.is_float else self ^ -1

    @staticmethod
    def where(condition: Tensor, a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
        if isinstance(a, Tensor):
            x, y = _aligned(a, b, "where")
        elif isinstance(b, Tensor):
            y, x = _aligned(b, a, "where")
        else:
            x, y = _aligned(Tensor.full((), a), b, "where")
        shape = _broadcast("where", condition.shape, x.shape)
        device = _common_device(condition, x, y)
        nodes = [t.broadcast_to(shape).node for t in (condition, x, y)]
        return Tensor(graph.alu(Op.WHERE, *nodes), device)

    def multiply_add(self, factor: Tensor | Scalar, addend: Tensor | Scalar) -> Tensor:
        """self * factor + addend in one operation."""
        a, b = _aligned(self, factor, "multiply_add")
        a, c = _aligned(a, addend, "multiply_add")
        a, b = _aligned(a, b, "multiply_add")
        return Tensor(graph.alu(Op.MULACC, a.node, b.node, c.node), a.device)

    def exp2(self) -> Tensor:
        return self._float()._unary(Op.EXP2)

    def log2(self) -> Tensor:
        return self._float()._unary(Op.LOG2)

    def exp(self) -> Tensor:
        return (self * (1 / math.log(2))).exp2()

    def log(self) -> Tensor:
        return self.log2() * math.log(2)

    def sin(self) -> Tensor:
        return self._float()._unary(Op.SIN)

    def cos(self) -> Tensor:
        """To half a unit in the last place of x, which for large x is not small."""
        return (self + math.pi / 2).sin()

    def sqrt(self) -> Tensor:
        return self._float()._unary(Op.SQRT)

    def square(self) -> Tensor:
        return self * self

    def reciprocal(self) -> Tensor:
        return 1.0 / self

    def abs(self) -> Tensor:
        return Tensor.where(self < 0, -self, self)

    def sign(self) -> Tensor:
        """-1, 0 or 1; 0 for NaN."""
        return (self > 0).cast(self.dtype) - (self < 0).cast(self.dtype)

    def copysign(self, other: Tensor | Scalar) -> Tensor:
        """The magnitude of self with the sign of other; zero counts as positive."""
        magnitude = self.abs()
        negative = other < 0
        if isinstance(negative, Tensor):
            return Tensor.where(negative, -magnitude, magnitude)
        return -magnitude if negative else magnitude

    def relu(self) -> Tensor:
        return self.leaky_relu(0.0)

    def leaky_relu(self, slope: float = 0.01) -> Tensor:
        """x where x >= 0, slope * x elsewhere; its gradient needs the answer only.

        Raises ValueError for a negative slope, whose answers do not show the sign of x.
        """
        if slope < 0:
            raise ValueError(f"leaky_relu: the slope must not be negative, not {slope}")
        if slope == 0:  # the answer 0 hides whether x was negative: the gradient at 0 is 0
            answer = Tensor.where(self < 0, 0.0, self)
            return Tensor(graph.function(answer.node, [self.node], _relu_vjp), self.device)
        answer = Tensor.where(self < 0, self * slope, self)

        def vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
            low, high = (graph.const(v, g.dtype, g.shape) for v in (slope, 1.0))
            return (g * graph.alu(Op.WHERE, ans < 0.0, low, high),)

        return Tensor(graph.function(answer.node, [self.node], vjp), self.device)

    def sigmoid(self) -> Tensor:
        return 1.0 / ((-self).exp() + 1.0)

    def tanh(self) -> Tensor:
        return (self * 2.0).sigmoid() * 2.0 - 1.0

    def gelu(self) -> Tensor:
        """The tanh form of Hendrycks and Gimpel (2016), within 1e-3 of the exact one."""
        inner = (self + self * self * self * 0.044715) * math.sqrt(2 / math.pi)
        return self * (inner.tanh() + 1.0) * 0.5

    def cast(self, dtype: DType) -> Tensor:
        return Tensor(graph.cast(self.node, dtype), self.device)

    # --- reductions ---

    def _reduce(self, op: Op, axis: Axis, keepdims: bool) -> Tensor:
        axes = _axes(axis, len(self.shape))
        reduced = Tensor(graph.reduce(op, self.node, axes), self.device)
        if not keepdims:
            return reduced
        kept = {graph.normal_axis(a, len(self.shape), "reduce") for a in axes}
        return reduced.reshape(*(1 if i in kept else n for i, n in enumerate(self.shape)))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Bools are counted, in i32; other dtypes stay, and integers wrap."""
        numbers = self.cast(dt.i32) if self.dtype is dt.bool_ else self
        return numbers._reduce(Op.SUM, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._reduce(Op.REDUCE_MAX, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        count = self.node.size // max(1, self.sum(axis).node.size)
        return self._float().sum(axis, keepdims) * (1.0 / count)

    def variance(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Mean squared distance from the mean."""
        return (self - self.mean(axis, keepdims=True)).square().mean(axis, keepdims)

    def softmax(self, axis: int = -1) -> Tensor:
        shifted = (self - self.max(axis, keepdims=True)).exp()
        return shifted / shifted.sum(axis, keepdims=True)

    def log_softmax(self, axis: int = -1) -> Tensor:
        shifted = self - self.max(axis, keepdims=True)
        return shifted - shifted.exp().sum(axis, keepdims=True).log()

    # --- movement: no copies ---

    def _move(self, op: Op, arg: Any) -> Tensor:
        return Tensor(graph.move(op, self.node, arg), self.device)

    def reshape(self, *shape: int) -> Tensor:
        """One entry may be -1. Raises ValueError if the numbers of elements differ."""
        return self._move(Op.RESHAPE, shape)

    def permute(self, *axes: int) -> Tensor:
        return self._move(Op.PERMUTE, axes)

    def transpose(self, a: int = -2, b: int = -1) -> Tensor:
        rank = len(self.shape)
        axes = list(range(rank))
        a, b = (graph.normal_axis(axis, rank, "transpose") for axis in (a, b))
        axes[a], axes[b] = axes[b], axes[a]
        return self.permute(*axes)

    def expand(self, *shape: int) -> Tensor:
        return self._move(Op.EXPAND, shape)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """NumPy's rule: axes of size 1 repeat, missing ones are added in front."""
        shape = tuple(shape)
        missing = len(shape) - len(self.shape)
        if missing < 0:
            raise ValueError(f"cannot broadcast shape {self.shape} to {shape}")
        return self.reshape(*(1,) * missing, *self.shape).expand(*shape)

    def pad(self, *pairs: tuple[int, int]) -> Tensor:
        """Zeros (before, after) each axis."""
        return self._move(Op.PAD, pairs)

    def shrink(self, *ranges: tuple[int, int]) -> Tensor:
        """Elements [begin, end) of each axis."""
        return self._move(Op.SHRINK, ranges)

    def stride(self, *steps: int) -> Tensor:
        """Every step-th element of each axis, from the end where the step is negative."""
        return self._move(Op.STRIDE, steps)

    def flip(self, *axes: int) -> Tensor:
        flipped = {graph.normal_axis(a, len(self.shape), "flip") for a in axes}
        return self.stride(*(-1 if i in flipped else 1 for i in range(len(self.shape))))

    def __getitem__(self, key: Any) -> Tensor:
        """Whole numbers and slices with positive or negative steps."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise IndexError(f"{len(keys)} indices for a tensor of {len(self.shape)} axes")
        ranges, steps, kept = [], [], []
        for axis, n in enumerate(self.shape):
            item = keys[axis] if axis < len(keys) else slice(None)
            span, step = _span(item, n, axis)
            ranges.append(span)
            steps.append(step)
            if isinstance(item, slice):
                kept.append(axis)
        taken = self.shrink(*ranges)
        if any(s != 1 for s in steps):
            taken = taken.stride(*steps)
        return taken.reshape(*(taken.shape[a] for a in kept))

    @staticmethod
    def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        if not parts:
            raise ValueError("concat: needs at least one tensor")
        kind = dt.concrete(dt.promote(*(p.dtype for p in parts)))
        nodes = [p.cast(kind).node for p in parts]
        return Tensor(graph.concat(nodes, axis), _common_device(*parts))

    def contiguous(self) -> Tensor:
        return Tensor(graph.contiguous(self.node), self.device)

    # --- products and tables ---

    def __matmul__(self, other: Tensor) -> Tensor:
        """[..., M, K] @ [..., K, N] -> [..., M, N]; leading axes and vectors as in NumPy.

        Halves are multiplied and added in f32 and rounded once.
        """
        kind = dt.concrete(dt.promote(self.dtype, other.dtype, dt.weak_float))
        if kind is not dt.f32:
            return (self.cast(dt.f32) @ other.cast(dt.f32)).cast(kind)
        a, b = self.cast(kind), other.cast(kind)
        if len(a.shape) == 1:
            product = a.reshape(1, -1) @ (b if len(b.shape) > 1 else b.reshape(-1, 1))
            return product.reshape(*product.shape[:-2], *b.shape[1:][-1:])
        if len(b.shape) == 1:
            return (a @ b.reshape(-1, 1)).reshape(*a.shape[:-1])
        lead = _broadcast("dot", a.shape[:-2], b.shape[:-2])
        a, b = (t.broadcast_to((*lead, *t.shape[-2:])) for t in (a, b))
        return Tensor(graph.dot(a.node, b.node), _common_device(a, b))

    def gather(self, index: Tensor) -> Tensor:
        """Rows of a table: [N, ...] at int [...]. Indices must lie in [0, N)."""
        return Tensor(graph.gather(self.node, index.node), _common_device(self, index))

    # --- gradients ---

    def gradient(self, wrt: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of this single number by each of `wrt`; zeros where unconnected."""
        nodes = node_gradient(self.node, [w.node for w in wrt])
        return [Tensor(n, self.device or w.device) for n, w in zip(nodes, wrt, strict=True)]

    # --- running ---

    def assign(self, value: Tensor | Scalar) -> Tensor:
        """Give a realized Tensor a new value: at once, or at the end of the step being compiled.

        Within one step every use reads the value from before the step.
        """
        if not self.realized:
            raise ValueError("assign: only a realized Tensor holds state; call realize() first")
        other = value if isinstance(value, Tensor) else Tensor.full((), value, self.dtype)
        node = other.cast(self.dtype).broadcast_to(self.shape).node
        if _captured:
            _captured[-1].append((self.node.arg, node))
        else:
            run_once(self._run_on(), [(self.node.arg, node)])
        return self

    def _run_on(self) -> AnyDevice:
        if self.device is None:
            raise ValueError(f"{self!r} was made without a device; pass device=open_device()")
        return self.device

    def realize(self, name: str = "") -> Tensor:
        """Compute the value now, in place of the expression; later uses read it.

        Gradients end here, as they do at any value that stands in memory. Listings show the
        storage by its name.
        """
        if not self.realized:
            storage = Buffer(self.shape, self.dtype, self._run_on(), name=name)
            run_once(self._run_on(), [(storage, self.node)])
            self.node = graph.buffer(storage)
        return self

    def write(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Replace the value of a realized Tensor from the host, for the steps that follow.

        Raises ValueError if shape or dtype differ.
        """
        if not self.realized:
            raise ValueError("write: only a realized Tensor holds state; call realize() first")
        write_buffer(self.node.arg, array)
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as a NumPy array of the same shape and dtype.

        Looking changes nothing: what was an expression stays one and has gradients still.
        """
        seen = Tensor(self.node, self.device).realize()
        return read_buffer(seen._run_on(), seen.node.arg)

    def item(self) -> Scalar:
        value: Scalar = self.numpy().item()
        return value


def _check_range(array: np.ndarray[Any, Any], kind: DType) -> None:
    """Refuse integers that the dtype cannot hold, which NumPy would wrap."""
    if kind.is_int and array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if low < kind.min or high > kind.max:
            raise ValueError(f"{kind.name} cannot hold {low if low < kind.min else high}")


def _relu_vjp(g: Node, ans: Node, x: Node) -> tuple[Node]:
    zero = graph.const(0, g.dtype, g.shape)
    return (graph.alu(Op.WHERE, zero < ans, g, zero),)


def _unit(bits: Tensor) -> Tensor:
    return (bits >> 8).cast(dt.f32) * 2.0**-24


def _aligned(a: Tensor, b: Tensor | Scalar, operation: str) -> tuple[Tensor, Tensor]:
    """Both at one shape, dtype and device; a Python number takes the Tensor's dtype if it can."""
    if not isinstance(b, Tensor):
        kind = dt.concrete(dt.promote(a.dtype, dt.of(b)))
        if kind.is_int and kind is not dt.bool_:
            b = _wrapped(int(b), kind)
        return a.cast(kind), Tensor(graph.const(b, kind, a.shape), a.device)
    kind = dt.concrete(dt.promote(a.dtype, b.dtype))
    device = _common_device(a, b)
    shape = _broadcast(operation, a.shape, b.shape)
    x, y = (t.cast(kind).broadcast_to(shape) for t in (a, b))
    x.device = y.device = device
    return x, y


def _broadcast(operation: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's rule: axes count from the last, and those of size 1 repeat."""
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise ValueError(f"{operation}: shapes {a} and {b} do not broadcast") from None


def _wrapped(value: int, dtype: DType) -> int:
    """The number modulo the dtype's range, as arithmetic in it wraps."""
    span = 1 << (8 * dtype.itemsize)
    low = int(dtype.min)
    return (value - low) % span + low


def _common_device(*tensors: Tensor) -> AnyDevice | None:
    devices = {id(t.device): t.device for t in tensors if t.device is not None}
    if len(devices) > 1:
        names = " and ".join(d.info.spec for d in devices.values())
        raise ValueError(f"tensors are on different devices: {names}")
    return next(iter(devices.values()), None)


def _axes(axis: Axis, rank: int) -> Sequence[int]:
    if axis is None:
        return range(rank)
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _span(item: Any, n: int, axis: int) -> tuple[tuple[int, int], int]:
    if isinstance(item, int | np.integer):
        item = int(item)
        if not -n <= item < n:
            raise IndexError(f"index {item} is out of bounds for axis {axis} of size {n}")
        return (item % n, item % n + 1), 1
    if not isinstance(item, slice):
        raise TypeError(f"index {item!r}: whole numbers and slices only; use gather for tensors")
    begin, end, step = item.indices(n)
    count = len(range(begin, end, step))
    if step > 0:
        return (begin, max(begin, end)) if count else (0, 0), step
    return (begin + (count - 1) * step, begin + 1), step


# --- compiled steps ---

_captured: list[list[tuple[Buffer, Node]]] = []  # assignments of the steps being compiled


@contextmanager
def _capture() -> Iterator[list[tuple[Buffer, Node]]]:
    _captured.append([])
    try:
        yield _captured[-1]
    finally:
        _captured.pop()


def compile(step: Callable[[], Mapping[str, Tensor]], device: AnyDevice) -> Program:
    """A Program from a function that builds one step.

    `step` is called once. What it returns by name can be read by a Receiver; what it
    assigns becomes the state after the step. Nothing runs until `Program.run`.
    """
    with _capture() as updates:
        outputs = step()
    return Program(device, {name: t.node for name, t in outputs.items()}, updates)
