"""How far from float64 the rounding of each operation may lead, element by element.

A graph of Nodes is evaluated in float64, and beside each value goes a bound of how far a device
may be from it: what its inputs may be off by, as the operation carries that on, and what the
operation's own rounding adds. Where a comparison, a whole part or an index could go either way, the
bound says so, up to infinity, which is no claim at all. What is exact stays so: halves are rounded
as they are defined, so that of halves added and multiplied even the last bit is known.

Half a unit in the last place is 2^-24 of a float32 and 2^-11 of a half; functions have the accuracy
that OpenCL C 1.2, section 7.4, asks for in its full profile. What sums and products of matrices
lose, in whatever order, is in Higham, Accuracy and Stability of Numerical Algorithms (2002),
sections 3.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.op import MOVEMENT, Op
from imgmlp.engine.oracle.interpret import FUNCTIONS

Array = np.ndarray[Any, Any]

UNIT = 2.0**-24  # of a float32
TINY = 2.0**-126  # below which a device may take float32 for zero
ULPS = {Op.DIV: 2.5, Op.SQRT: 3, Op.EXP2: 3, Op.LOG2: 3, Op.SIN: 4, Op.COS: 4}  # of float32
CHOICES = {Op.WHERE, Op.MAX, Op.REDUCE_MAX, Op.NEG}  # of what was rounded already


@dataclass(frozen=True)
class Near:
    """Numbers, and how far from them what a device has for each may be."""

    value: Array
    error: Array

    @staticmethod
    def of(value: Any, error: Any = 0.0) -> Near:
        value = np.asarray(value)
        return Near(value, np.broadcast_to(np.asarray(error, np.float64), value.shape))

    @property
    def most(self) -> Array:
        """How large each may be."""
        return np.abs(self.value) + self.error


def bounds(roots: Sequence[Node], leaves: Mapping[Buffer, Near], halves: bool = True) -> list[Near]:
    """Values of Nodes with bounds, given those of Buffers whose values are not the host's.

    With `halves` what is written as a half is rounded to one, else that is part of the bound.
    """
    with np.errstate(all="ignore"):
        return _Evaluation(leaves, halves).of(roots)


class _Evaluation:
    def __init__(self, leaves: Mapping[Buffer, Near], halves: bool) -> None:
        self.leaves, self.halves = leaves, halves
        self.done: dict[Node, Any] = {}  # a Near, or a list of them for a LOOP

    def of(self, roots: Sequence[Node]) -> list[Near]:
        for node in toposort(roots):
            if node not in self.done:
                self.done[node] = self._of(node)
        return [self.done[r] for r in roots]

    def _of(self, node: Node) -> Any:
        sources = [self.done[s] for s in node.src]
        match node.op:
            case Op.BUFFER:
                known = self.leaves.get(node.arg)
                return Near.of(node.arg.host) if known is None else known
            case Op.CONST:
                value = np.asarray(node.arg, np.float64 if node.dtype.is_float else node.dtype.np)
                return self._rounded(np.broadcast_to(value, node.shape), 0.0, node.dtype)
            case Op.IOTA:
                return Near.of(np.arange(node.shape[0], dtype=np.int32))
            case Op.FUNCTION:
                return sources[0]
            case Op.LOOP:
                return self._loop(node, sources)
            case Op.RESULT:
                return sources[0][node.arg]
            case Op.COND:
                condition, a, b = sources
                chosen = a if condition.value else b
                return Near.of(chosen.value, np.inf) if condition.error else chosen
            case Op.CAST:
                return self._cast(node.src[0].dtype, node.dtype, sources[0])
            case Op.LT | Op.EQ:
                x, y = sources
                value = FUNCTIONS[node.op](node)(x.value, y.value)
                return Near(value, _undecided(x, y))
            case Op.GATHER:
                return _gathered(*sources)
            case op if op in MOVEMENT | {Op.CONCAT, Op.CONTIGUOUS}:
                move = FUNCTIONS[node.op](node)
                return Near(move(*(s.value for s in sources)), move(*(s.error for s in sources)))
        return self._computed(node, sources)

    def _computed(self, node: Node, sources: list[Near]) -> Near:
        values = [s.value for s in sources]
        mulacc = node.op is Op.MULACC  # which rounds halves by itself
        value = np.asarray(
            values[0] * values[1] + values[2] if mulacc else FUNCTIONS[node.op](node)(*values)
        )
        error = RULES.get(node.op, _exact)(node, value, *sources)
        error = np.where(np.isnan(error), np.inf, error)
        if not node.dtype.is_float:
            return Near(value, np.where(error > 0, np.inf, 0.0))
        if node.op in CHOICES:
            return Near(value, error)
        # functions and sums are computed in float32, of halves too
        own = 2 * ULPS.get(node.op, 0) * UNIT * (np.abs(value) + error)
        if node.op in (Op.SUM, Op.DOT):
            terms = (
                node.src[0].shape[-1]
                if node.op is Op.DOT
                else node.src[0].size // max(1, node.size)
            )
            sums = FUNCTIONS[node.op](node)(*(s.most for s in sources))
            own = terms * (UNIT * np.where(np.isnan(sums), np.inf, sums) + TINY)
        if mulacc:
            own = UNIT * sources[0].most * sources[1].most
        return self._rounded(value, error + own, node.dtype)

    def _rounded(self, value: Array, error: Any, kind: DType) -> Near:
        """What is written in a format; `error` is what it was off by before."""
        if not kind.is_float:
            return Near.of(value, error)
        error = np.broadcast_to(error, value.shape)
        if kind is dt.f16 and self.halves:
            ends = (value, value - error, value + error)
            nearest, low, high = (v.astype(np.float16).astype(np.float64) for v in ends)
            off = np.where(low == high, 0.0, np.maximum(high - nearest, nearest - low))
            return Near(nearest, np.where(np.isfinite(off) & np.isfinite(error), off, np.inf))
        unit, tiny = (UNIT, TINY) if kind is dt.f32 else (2.0**-11, 2.0**-25)
        kept = (value.astype(kind.np) == value) & (error == 0)
        error = error + unit * (np.abs(value) + error) + tiny
        error = np.where(np.abs(value) + error <= np.finfo(kind.np).max, error, np.inf)
        return Near(value, np.where(kept, 0.0, error))

    def _cast(self, before: DType, after: DType, x: Near) -> Near:
        if after.is_float:
            value = x.value.astype(np.float64)
            widened = before.is_float and before.itemsize <= after.itemsize
            return Near(value, x.error) if widened else self._rounded(value, x.error, after)
        if not before.is_float:
            return Near(x.value.astype(after.np), x.error)
        if after is dt.bool_:
            return Near.of(x.value != 0, _undecided(x, Near.of(0.0)))
        low, high = np.trunc(x.value - x.error), np.trunc(x.value + x.error)
        known = (low == high) & (low >= after.min) & (high <= after.max)
        return Near.of(np.where(known, low, 0).astype(after.np), np.where(known, 0.0, np.inf))

    def _loop(self, node: Node, sources: list[Near]) -> list[Near]:
        states = len(node.arg.values)
        carried, captured = sources[:states], sources[states:]
        for _ in range(node.arg.count):
            inside = _Evaluation(self.leaves, self.halves)
            inside.done = dict(zip(node.arg.parameters, [*carried, *captured], strict=True))
            carried = inside.of(node.arg.values)
        return carried


def _undecided(x: Near, y: Near) -> Array:
    """0 where a comparison can have one answer only."""
    off = x.error + y.error
    apart = np.abs(x.value.astype(np.float64) - y.value.astype(np.float64)) > off
    return np.where(apart | (off == 0), 0.0, np.inf)


def _gathered(table: Near, index: Near) -> Near:
    value, error = (np.take(a, index.value, 0, mode="clip") for a in (table.value, table.error))
    shape = index.value.shape + (1,) * (value.ndim - index.value.ndim)
    return Near(value, error + index.error.reshape(shape))


# --- what an operation makes of its sources' errors ---


def _exact(node: Node, value: Array, *sources: Near) -> Array:
    """Of bits nothing is near: 0 where all sources are exact, else infinity."""
    return np.where(np.logical_or.reduce([s.error > 0 for s in sources]), np.inf, 0.0)


def _product(node: Node, value: Array, x: Near, y: Near, *z: Near) -> Array:
    error = np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error
    error = np.where((x.error == 0) & (y.error == 0), 0.0, error)  # of infinities too
    return error + sum(s.error for s in z)


def _quotient(node: Node, value: Array, x: Near, y: Near) -> Array:
    if not node.dtype.is_float:
        return _exact(node, value, x, y)
    error = (x.error + np.abs(value) * y.error) / (np.abs(y.value) - y.error)
    error = np.where(np.abs(y.value) > y.error, error, np.inf)
    return np.where((x.error == 0) & (y.error == 0), 0.0, error)


def _remainder(node: Node, value: Array, x: Near, y: Near) -> Array:
    """What is left may be as much as the divisor off where the quotient may be another one."""
    error = x.error + np.abs(x.value / y.value) * y.error
    same = (np.abs(value) > error) & (np.abs(value) + error < np.abs(y.value))
    return np.where((x.error == 0) & (y.error == 0), 0.0, np.where(same, error, y.most))


def _where(node: Node, value: Array, c: Near, a: Near, b: Near) -> Array:
    apart = np.abs(a.value.astype(np.float64) - b.value.astype(np.float64))
    either = np.maximum(a.error, b.error) + np.where(a.value == b.value, 0.0, apart)
    return np.where(c.error > 0, either, np.where(c.value, a.error, b.error))


def _root(node: Node, value: Array, x: Near) -> Array:
    error = np.sqrt(x.value + x.error) - np.sqrt(x.value - x.error)
    return np.where(x.error == 0, 0.0, error)


def _log2(node: Node, value: Array, x: Near) -> Array:
    error = np.where(x.value > x.error, -np.log1p(-x.error / x.value) / np.log(2), np.inf)
    return np.where(x.error == 0, 0.0, error)


def _dot(node: Node, value: Array, x: Near, y: Near) -> Array:
    return x.error @ y.most + np.abs(x.value) @ y.error


RULES: dict[Op, Callable[..., Array]] = {
    Op.NEG: lambda node, value, x: x.error,
    Op.ADD: lambda node, value, x, y: x.error + y.error,
    Op.SUB: lambda node, value, x, y: x.error + y.error,
    Op.MUL: _product,
    Op.DIV: _quotient,
    Op.FMOD: _remainder,
    Op.MAX: lambda node, value, x, y: np.maximum(x.error, y.error),
    Op.MULACC: _product,
    Op.WHERE: _where,
    Op.EXP2: lambda node, value, x: value * np.expm1(x.error * np.log(2)),
    Op.LOG2: _log2,
    Op.SIN: lambda node, value, x: np.minimum(x.error, 2.0),
    Op.COS: lambda node, value, x: np.minimum(x.error, 2.0),
    Op.SQRT: _root,
    Op.SUM: lambda node, value, x: x.error.sum(node.arg),
    Op.REDUCE_MAX: lambda node, value, x: x.error.max(node.arg),
    Op.DOT: _dot,
}
