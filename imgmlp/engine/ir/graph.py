"""Node, the highest-level IR: a directed acyclic graph of operations, immutable and hash-consed.

A Node says what a value is, never how or where it is computed. Building the same expression twice
gives the same object, so common subexpressions cost nothing and `is` compares whole graphs. This
module knows neither gradients nor kernels.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.dtype import DType, bool_, check, f16, f32, i32, u32, wrapped_number
from imgmlp.engine.ir.op import BITWISE, COMPARE, FLOAT_ONLY, MOVEMENT, NOT_BOOL, Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse

Shape = tuple[int, ...]


class Buffer:
    """The storage behind a BUFFER Node: a shape, a dtype and, once allocated, data on a device.

    `host` holds the initial values until they are uploaded, and `data` is the device's allocation.
    `is_from_host` tells that the host has written the current values. A Buffer without a device is
    an intermediate of a Procedure. Where steps use the values as indices, `readers` holds the
    limits that each of these steps sets for the values (oracle/index_bounds.py).
    """

    __slots__ = (
        "__weakref__", "data", "device", "dtype", "host", "is_from_host", "name", "readers",
        "shape",
    )  # fmt: skip

    def __init__(
        self,
        shape: Shape,
        dtype: DType,
        device: Any = None,
        host: np.ndarray | None = None,
        name: str = "",
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.host, self.name = host, name
        self.is_from_host = False
        self.readers: weakref.WeakKeyDictionary[Any, dict[Any, tuple[int, int]]] | None = None
        self.data: Any = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def limits(self) -> dict[Any, tuple[int, int]]:
        """The half-open range of each index made of this Buffer's values that all readers allow."""
        limits: dict[Any, tuple[int, int]] = {}
        for of_reader in [] if self.readers is None else list(self.readers.values()):
            for key, (low, high) in of_reader.items():
                begin, end = limits.get(key, (low, high))
                limits[key] = max(low, begin), min(high, end)
        return limits

    def __repr__(self) -> str:
        return f"{self.name or 'buffer'} {self.dtype.name}{list(self.shape)}"


def _operator(op: Op, swapped: bool = False) -> Callable[[Node, Node | float], Node]:
    """The method of a Python operator; with `swapped`, `self` is the right operand."""

    def method(self: Node, other: Node | float) -> Node:
        pair = self, as_node(other, self)
        return alu(op, *(reversed(pair) if swapped else pair))

    return method


class Node:
    """One value of a graph: an operation, its sources, its shape and dtype. Immutable."""

    __slots__ = ("__weakref__", "arg", "dtype", "has_buffer", "number", "op", "shape", "src")

    op: Op
    src: tuple[Node, ...]
    arg: Any  # a parameter of the operation, as `Op` documents
    shape: Shape
    dtype: DType
    number: int  # counts Nodes in the order of their creation, so sources have smaller numbers
    # Whether it depends on a Buffer. The `number` of any other Node is arbitrary, because unrelated
    # graphs share it and the first of them has created it.
    has_buffer: bool

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Node is immutable; cannot set {name}")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"Node({label(self)}, {kind_of(self)})"

    # Operators keep the gradient rules readable. Shapes must agree; Python numbers become CONSTs.
    __add__ = __radd__ = _operator(Op.ADD)
    __mul__ = __rmul__ = _operator(Op.MUL)
    __sub__, __rsub__ = _operator(Op.SUB), _operator(Op.SUB, swapped=True)
    __truediv__, __rtruediv__ = _operator(Op.DIV), _operator(Op.DIV, swapped=True)
    __lt__ = _operator(Op.LT)

    def __neg__(self) -> Node:
        return alu(Op.NEG, self)


_interned: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()
_next_number = itertools.count()
_FIELDS = "op", "src", "arg", "shape", "dtype", "number", "has_buffer"
# The slots' own setters, which bypass Node.__setattr__ and its refusal.
_SETTERS = [getattr(Node, name).__set__ for name in _FIELDS]


def make(op: Op, src: tuple[Node, ...], arg: Any, shape: Shape, dtype: DType) -> Node:
    """The one Node with these fields. It checks nothing; use the builders below.

    A value without elements becomes a CONST, so that nothing computes it.
    """
    if 0 in shape and op is not Op.CONST:
        return const(0, dtype, shape)
    # repr distinguishes 0.0 from -0.0 and 1 from True, which == does not.
    constant = repr(arg) if op is Op.CONST else arg
    key = (op, src, constant, shape, dtype.name)
    node = _interned.get(key)
    if node is None:
        node = Node.__new__(Node)
        has_buffer = op is Op.BUFFER or True in [s.has_buffer for s in src]
        values = op, src, arg, shape, dtype, next(_next_number), has_buffer
        for set_field, value in zip(_SETTERS, values, strict=True):
            set_field(node, value)
        _interned[key] = node
    return node


# --- builders: each checks its arguments and infers shape and dtype ---


def buffer(storage: Buffer) -> Node:
    return make(Op.BUFFER, (), storage, storage.shape, storage.dtype)


def const(value: float, dtype: DType, shape: Shape = ()) -> Node:
    """A constant of any shape. An integer wraps to the range of its dtype."""
    return make(Op.CONST, (), wrapped_number(value, dtype), shape, dtype)


def iota(count: int) -> Node:
    """0, 1, 2, ... count - 1 as i32 [count]. Raises ValueError for more than 2**31."""
    check_count(count)
    return make(Op.IOTA, (), None, (count,), i32)


def check_count(count: int) -> None:
    """Raise ValueError for more elements than an i32 can index."""
    if count > 1 << 31:
        raise misuse(ValueError, f"{count:,} elements in a row are more than an i32 can count")


def part(whole: Node, variable: str, count: int, axis: int = 0) -> Node:
    """One of `count` equal parts along an axis. `variable` names the kernel variable that says
    which part."""
    shape = tuple(n // count if a == axis else n for a, n in enumerate(whole.shape))
    return make(Op.PART, (whole,), (variable, count, axis), shape, whole.dtype)


def as_node(value: Node | float, like: Node) -> Node:
    return value if isinstance(value, Node) else const(value, like.dtype, like.shape)


def alu(op: Op, *src: Node) -> Node:
    """An elementwise operation on sources of one shape and, except WHERE's condition, one dtype."""
    first = src[0]
    if any(s.shape != first.shape for s in src):
        shapes = ", ".join(str(s.shape) for s in src)
        raise misuse(ValueError, f"{op.name.lower()}: shapes {shapes} differ; broadcast them first")
    operands = src[1:] if op is Op.WHERE else src
    if any(s.dtype is not operands[0].dtype for s in operands):
        kinds = ", ".join(map(kind_of, operands))
        raise misuse(TypeError, f"{op.name.lower()}: dtypes of {kinds} differ; cast them first")
    _check_dtype(op, first, operands[0])
    dtype = bool_ if op in COMPARE else operands[0].dtype
    return make(op, src, None, first.shape, dtype)


def _check_dtype(op: Op, first: Node, operand: Node) -> None:
    dtype = operand.dtype
    if op is Op.WHERE and first.dtype is not bool_:
        raise misuse(TypeError, f"where: the condition must be bool, not {kind_of(first)}")
    if op in FLOAT_ONLY and not dtype.is_float:
        raise _unfit(op, "a float", operand, "use .cast(f32)")
    if (op in BITWISE or op is Op.MOD) and dtype.is_float:
        raise _unfit(op, "integers", operand, "use .cast(i32)")
    _check_not_bool(op, operand)
    if op is Op.HASH and dtype is not u32:
        raise _unfit(op, "u32", operand, "use .cast(u32)")


def _check_not_bool(op: Op, node: Node) -> None:
    if op in NOT_BOOL and node.dtype is bool_:
        raise _unfit(op, "numbers", node, "use & | ^ or cast them")


def _unfit(op: Op, needed: str, node: Node, advice: str) -> TypeError:
    name = op.name.lower()
    return misuse(TypeError, f"{name}: needs {needed}, not {kind_of(node)}; {advice}")


def cast(node: Node, dtype: DType) -> Node:
    if node.dtype is dtype:
        return node
    check(dtype, "cast")
    return make(Op.CAST, (node,), None, node.shape, dtype)


def reduce(op: Op, node: Node, axes: Sequence[int], operation: str = "") -> Node:
    """SUM or REDUCE_MAX over axes, which are removed from the shape. f16 is summed in f32.

    `operation` is the user's name for it in error messages.
    """
    _check_not_bool(op, node)
    name = operation or op.name.lower().removeprefix("reduce_")
    if op is Op.SUM and node.dtype is f16:
        return cast(reduce(op, cast(node, f32), axes), f16)
    axes = tuple(sorted({normal_axis(a, node.shape, name) for a in axes}))
    if not axes:
        return node
    shape = tuple(n for i, n in enumerate(node.shape) if i not in axes)
    if not node.size and 0 not in shape:
        if op is Op.REDUCE_MAX:
            raise misuse(ValueError, f"{name}: {kind_of(node)} has no elements along {axes}")
        return const(0, node.dtype, shape)
    return make(op, (node,), axes, shape, node.dtype)


def move(op: Op, node: Node, arg: Any) -> Node:
    """A movement operation, with `arg` as `Op` documents. ir/access.py checks the argument."""
    if op is Op.RESHAPE and node.op is Op.RESHAPE:
        node = node.src[0]
    try:
        shape = _shape_after(node.shape, op, arg)
    except TypeError:
        name = op.name.lower()
        text = f"{name} of shape {node.shape}: {arg} are not whole numbers"
        raise misuse(TypeError, text) from None
    if shape == node.shape and op in (Op.RESHAPE, Op.EXPAND):
        return node
    if op is Op.RESHAPE or op is Op.EXPAND:
        arg = shape  # -1 filled in
    if op is Op.PAD or op is Op.SHRINK:
        arg = tuple(map(tuple, arg))  # which may be lists
    if op is Op.PERMUTE and arg == tuple(range(len(node.shape))):
        return node
    if not node.size:  # a PAD may have elements: zeros
        return const(0, node.dtype, shape)
    return make(op, (node,), arg, shape, node.dtype)


def _shape_after(shape: Shape, op: Op, arg: Any) -> Shape:
    """The shape after a movement. Most calls repeat earlier ones, hence the cache below."""
    try:
        if op is Op.PAD or op is Op.SHRINK:
            whole: Any = tuple([(operator.index(a), operator.index(b)) for a, b in arg])
        else:
            whole = tuple(map(operator.index, arg))
    except (TypeError, ValueError):
        return apply_movement(Access.of(shape), op, arg).shape  # raises the precise error
    return _moved_shape(shape, op, whole)


@lru_cache(maxsize=1 << 13)
def _moved_shape(shape: Shape, op: Op, arg: tuple[Any, ...]) -> Shape:
    return apply_movement(Access.of(shape), op, arg).shape


def apply_movement(access: Access, op: Op, arg: Any) -> Access:
    """The access after one more movement; Access has a method named after each."""
    moved: Access = getattr(access, op.name.lower())(arg)
    return moved


def base(node: Node, through: Set[Op] = MOVEMENT) -> Node:
    """The Node below a chain of movements, or of the unary operations in `through`."""
    while node.op in through:
        node = node.src[0]
    return node


def dot(a: Node, b: Node) -> Node:
    """Matrix product of f32 over equal leading axes: [..., M, K] x [..., K, N] -> [..., M, N]."""
    if len(a.shape) < 2 or len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2]:
        raise misuse(ValueError, f"dot: shapes {a.shape} and {b.shape} need equal leading axes")
    if a.shape[-1] != b.shape[-2]:
        raise misuse(ValueError, f"dot: {a.shape} x {b.shape}: {a.shape[-1]} is not {b.shape[-2]}")
    if a.dtype is not f32 or b.dtype is not f32:
        raise misuse(TypeError, f"dot: needs f32 factors, not {kind_of(a)} and {kind_of(b)}")
    shape = (*a.shape[:-1], b.shape[-1])
    return make(Op.DOT, (a, b), None, shape, a.dtype) if a.shape[-1] else const(0, f32, shape)


def gather(table: Node, index: Node) -> Node:
    """Rows of a table: [N, ...] at int [...] -> index.shape + table.shape[1:].

    Indices must lie in [0, N); the caller is responsible for indices computed on the device.
    """
    if not index.dtype.is_int:
        raise misuse(TypeError, f"gather: the index must be of integers, not {kind_of(index)}")
    if not table.shape:
        raise misuse(ValueError, f"gather: {kind_of(table)} has no axis of rows")
    if not table.shape[0] and index.size:
        raise misuse(OutOfBoundsError, f"gather: {kind_of(table)} has no rows")
    return make(Op.GATHER, (table, index), None, index.shape + table.shape[1:], table.dtype)


def concat(parts: Sequence[Node], axis: int) -> Node:
    """Concatenate along an axis; the parts agree in dtype and in all other sizes."""
    first = parts[0]
    axis = normal_axis(axis, first.shape, "concat")
    rest = {(p.dtype.name, *p.shape[:axis], *p.shape[axis + 1 :]) for p in parts}
    if len(rest) > 1:
        kinds = ", ".join(map(kind_of, parts))
        raise misuse(ValueError, f"concat: {kinds} do not fit along axis {axis}")
    parts = [p for p in parts if p.shape[axis]] or [first]
    if len(parts) == 1:
        return parts[0]
    length = sum(p.shape[axis] for p in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return make(Op.CONCAT, tuple(parts), axis, shape, first.dtype)


def contiguous(node: Node) -> Node:
    if node.op in (Op.BUFFER, Op.CONTIGUOUS):
        return node
    return make(Op.CONTIGUOUS, (node,), None, node.shape, node.dtype)


def function(answer: Node, inputs: Sequence[Node], vjp: Callable[..., Any]) -> Node:
    """`answer` with a gradient rule: vjp(g, answer, *inputs) -> a gradient for each input."""
    return make(Op.FUNCTION, (answer, *inputs), vjp, answer.shape, answer.dtype)


def normal_axis(axis: int, shape: Shape, operation: str) -> int:
    """A non-negative axis; a negative argument counts from the end. `operation` is for errors."""
    rank = len(shape)
    try:
        place = operator.index(axis)
    except TypeError:
        place = None
    if place is None or isinstance(axis, bool):  # sum(True) is ambiguous
        raise misuse(TypeError, f"{operation}: axis {axis!r} is no whole number")
    if not -rank <= place < rank:
        raise misuse(ValueError, f"{operation}: axis {axis} is none of the {rank} of shape {shape}")
    return place % rank


# --- traversal, rewriting, and labels for printers ---


def toposort(
    roots: Iterable[Node], sources: Callable[[Node], Sequence[Node]] = attrgetter("src")
) -> list[Node]:
    """The roots and everything below them, every Node after its sources.

    `sources` may prune the graph. The order is the same in every process: Nodes that depend on a
    Buffer come in the order of their creation, which the step determines unless an earlier step on
    the same Buffers has created some of them. Each of the others, which unrelated graphs may have
    created, comes right before the first Node that needs it.
    """
    roots = list(roots)
    sources_of: dict[Node, Sequence[Node]] = {}
    stack = roots.copy()
    while stack:
        node = stack.pop()
        if node not in sources_of:
            sources_of[node] = own_sources = sources(node)
            stack += [s for s in own_sources if s not in sources_of]
    by_number = sorted(filter(attrgetter("has_buffer"), sources_of), key=attrgetter("number"))
    if len(by_number) == len(sources_of):
        return by_number
    order: dict[Node, None] = {}
    for node in (*by_number, *roots):
        for source in sources_of[node]:
            if source not in order:
                _append_after_sources(source, sources_of, order)
        order[node] = None
    return list(order)


def _append_after_sources(
    node: Node, sources_of: Mapping[Node, Sequence[Node]], order: dict[Node, None]
) -> None:
    """Append a Node to `order`, after those of its sources that are not there yet."""
    stack = [node]
    while stack:
        missing = [s for s in sources_of[stack[-1]] if s not in order]
        if missing:
            stack += reversed(missing)
        else:
            order[stack.pop()] = None


def rebuild(node: Node, src: tuple[Node, ...]) -> Node:
    """The same operation on other sources of the same shapes."""
    if src == node.src:
        return node
    return make(node.op, src, node.arg, node.shape, node.dtype)


def substitute(
    roots: Sequence[Node], replaced: dict[Node, Node], unchanged: Sequence[Node] = ()
) -> list[Node]:
    """The roots with some of their Nodes replaced by others of the same shape and dtype.

    The `unchanged` Nodes stay as they are, and so does everything below them.
    """
    done = replaced | {node: node for node in unchanged}
    for node in toposort(roots, lambda n: () if n in done else n.src):
        if node not in done and not done.keys().isdisjoint(node.src):
            done[node] = rebuild(node, tuple(done.get(s, s) for s in node.src))
            if node.op is Op.FUNCTION and done[node] is not node:
                vjp = _substituted_vjp(node.arg, replaced)
                done[node] = make(Op.FUNCTION, done[node].src, vjp, node.shape, node.dtype)
    return [done.get(r, r) for r in roots]


def _substituted_vjp(vjp: Callable[..., Any], replaced: dict[Node, Node]) -> Callable[..., Any]:
    """The vjp of a FUNCTION after a substitution, which also covers the Nodes in its closure."""

    def substituted(g: Node, *values: Node) -> tuple[Node | None, ...]:
        gradients = vjp(g, *values)
        nodes = [node for node in gradients if node is not None]
        rewritten = iter(substitute(nodes, replaced, (g, *values)))
        return tuple(node and next(rewritten) for node in gradients)

    return substituted


def kind_of(node: Node) -> str:
    """Dtype and shape of a Node, as printers and errors show them."""
    return f"{node.dtype.name}{list(node.shape)}"


def label(node: Node) -> str:
    """A Node's operation and argument, without its sources, as printers show it."""
    if node.op is Op.BUFFER:
        return f"BUFFER {node.arg.name}".rstrip()
    if node.op in (Op.FUNCTION, Op.IOTA) or node.arg is None:
        return node.op.name
    return f"{node.op.name} {node.arg}"
