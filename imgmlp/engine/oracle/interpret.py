"""NumPy execution of a Node graph: the oracle, and the device called `numpy`.

Each operation is one entry of a table. Arithmetic has the width of the Node's dtype,
as on a device; with `wide=True` floats are float64, which is what tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.ir.control_flow import Body
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.op import CONTROL, LOAD, MOVEMENT, Op

Array = np.ndarray[Any, Any]


def lowbias32(x: Array) -> Array:
    """A 32-bit bijection of low bias: constants by C. Wellons' hash-prospector."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    mixed: Array = x ^ (x >> np.uint32(16))
    return mixed


def _pad(node: Node, x: Array) -> Array:
    return np.pad(x, node.arg)


def _slices(ranges: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in ranges)


def _sum(node: Node, x: Array) -> Array:
    return np.asarray(np.sum(x, axis=node.arg, dtype=x.dtype))


TABLE: dict[Op, Callable[..., Any]] = {
    Op.NEG: lambda node, x: -x,
    Op.EXP2: lambda node, x: np.exp2(x),
    Op.LOG2: lambda node, x: np.log2(x),
    Op.SIN: lambda node, x: np.sin(x),
    Op.COS: lambda node, x: np.cos(x),
    Op.SQRT: lambda node, x: np.sqrt(x),
    Op.HASH: lambda node, x: lowbias32(x),
    Op.ADD: lambda node, x, y: x + y,
    Op.SUB: lambda node, x, y: x - y,
    Op.MUL: lambda node, x, y: x * y,
    Op.DIV: lambda node, x, y: x / y if node.dtype.is_float else x // y,
    Op.MOD: lambda node, x, y: x % y,
    Op.MAX: lambda node, x, y: np.maximum(x, y),
    Op.LT: lambda node, x, y: x < y,
    Op.EQ: lambda node, x, y: x == y,
    Op.XOR: lambda node, x, y: x ^ y,
    Op.AND: lambda node, x, y: x & y,
    Op.OR: lambda node, x, y: x | y,
    Op.SHL: lambda node, x, y: x << y,
    Op.SHR: lambda node, x, y: x >> y,
    Op.WHERE: lambda node, c, x, y: np.where(c, x, y),
    Op.MULACC: lambda node, x, y, z: x * y + z,
    Op.SUM: _sum,
    Op.REDUCE_MAX: lambda node, x: np.max(x, axis=node.arg),
    Op.RESHAPE: lambda node, x: x.reshape(node.shape),
    Op.PERMUTE: lambda node, x: x.transpose(node.arg),
    Op.EXPAND: lambda node, x: np.broadcast_to(x, node.shape),
    Op.PAD: _pad,
    Op.SHRINK: lambda node, x: x[_slices(node.arg)],
    Op.STRIDE: lambda node, x: x[tuple(slice(None, None, s) for s in node.arg)],
    Op.DOT: lambda node, x, y: x @ y,
    Op.GATHER: lambda node, table, index: table[index],
    Op.CONCAT: lambda node, *parts: np.concatenate(parts, axis=node.arg),
    Op.CONTIGUOUS: lambda node, x: np.ascontiguousarray(x),
    Op.FUNCTION: lambda node, answer, *inputs: answer,
}


# Values that are nothing of their own in memory, or are counted elsewhere.
VIEWS = (MOVEMENT - {Op.PAD}) | CONTROL | (LOAD - {Op.IOTA}) | {Op.FUNCTION, Op.CONTIGUOUS}


def numpy_dtype(dtype: DType, wide: bool) -> np.dtype[Any]:
    return np.dtype(np.float64) if wide and dtype.is_float else np.dtype(dtype.np)


def evaluate(
    roots: Sequence[Node], values: Mapping[Buffer, Array], wide: bool = False
) -> list[Array]:
    """The values of the roots, given those of the Buffers they read."""
    with np.errstate(all="ignore"):
        return _evaluate(roots, {}, values, wide)


def most_bytes(roots: Sequence[Node]) -> int:
    """Bytes of all values that `evaluate` holds at once, at the least: views count as nothing."""
    order = toposort(roots, _always_needed)
    dead = _dead_after(order, roots, {})
    now = most = 0
    for node in order:
        now += _own_bytes(node)
        most = max(most, now)
        now -= sum(map(_own_bytes, dead.get(node, ())))
    return most


def _own_bytes(node: Node) -> int:
    """What a Node's value takes beside those that it is computed from."""
    return 0 if node.op in VIEWS else node.size * node.dtype.itemsize


def _evaluate(
    roots: Sequence[Node], given: Mapping[Node, Array], values: Mapping[Buffer, Array], wide: bool
) -> list[Array]:
    """As `evaluate`, where the values of some Nodes are known."""
    done: dict[Node, Any] = dict(given)  # of a LOOP: all that it carries
    _extend(done, roots, values, wide)
    return [done[r] for r in roots]


def _extend(
    done: dict[Node, Any], roots: Sequence[Node], values: Mapping[Buffer, Array], wide: bool
) -> None:
    """Compute the roots and what they need, but of a COND only the value that it chooses."""
    order = toposort(roots, _always_needed)
    dead = _dead_after(order, roots, done)
    for node in order:
        if node in done:
            continue
        if node.op is Op.COND:
            condition, a, b = node.src
            chosen = a if done[condition] else b
            _extend(done, [chosen], values, wide)
            done[node] = done[chosen]
            continue
        src = [done[s] for s in node.src]
        if node.op is Op.LOOP:
            done[node] = _loop(node, src, values, wide)
        elif node.op is Op.RESULT:
            done[node] = src[0][node.arg]
        else:
            done[node] = _step(node, src, values, wide)
        src.clear()
        for old in dead.get(node, ()):
            del done[old]


def _dead_after(
    order: Sequence[Node], roots: Sequence[Node], given: Mapping[Node, Any]
) -> dict[Node, list[Node]]:
    """Which values nobody needs any more once a Node is computed.

    Memory that is freed early is used again, which saves more time than the arithmetic takes:
    the system would have to clear all of it. None are named where a COND may want any of them.
    """
    found: dict[Node, list[Node]] = {}
    if any(node.op is Op.COND for node in order):
        return found
    kept = {*roots, *given}
    for node in reversed(order):
        if node not in given:
            last = [s for s in dict.fromkeys(node.src) if s not in kept]
            kept.update(last)
            found[node] = last
    return found


def _always_needed(node: Node) -> Sequence[Node]:
    return node.src[:1] if node.op is Op.COND else node.src


def _loop(node: Node, src: list[Array], values: Mapping[Buffer, Array], wide: bool) -> list[Array]:
    """What a loop carries after its last iteration."""
    body: Body = node.arg
    carried, captured = src[: len(body.values)], src[len(body.values) :]
    for _ in range(body.count):
        given = dict(zip(body.parameters, [*carried, *captured], strict=True))
        carried = _evaluate(body.values, given, values, wide)
    return carried


def _step(node: Node, src: list[Array], values: Mapping[Buffer, Array], wide: bool) -> Array:
    dtype = numpy_dtype(node.dtype, wide)
    if node.op is Op.BUFFER:
        return np.asarray(values[node.arg], dtype).reshape(node.shape)
    if node.op is Op.CONST:
        return np.broadcast_to(np.asarray(node.arg, dtype), node.shape)
    if node.op is Op.IOTA:
        return np.arange(node.shape[0], dtype=dtype)
    if node.op is Op.CAST:
        return src[0].astype(dtype)
    return np.asarray(TABLE[node.op](node, *src), dtype)
