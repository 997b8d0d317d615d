"""Nodes whose values depend only on indices, as symbolic expressions.

If such a Node is the condition of a WHERE, no select is needed: the condition becomes the validity
of a load, as for padding. Nothing here emits instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.conditions import all_of, at_least, is_logic, less, xor
from imgmlp.engine.ir.dtype import DType, bool_
from imgmlp.engine.ir.graph import Node, base, const
from imgmlp.engine.ir.kernel import access, part_begin
from imgmlp.engine.ir.op import MOVEMENT, Op
from imgmlp.engine.ir.symbolic import LONG_MAX, ONE, Const, Expr, max_magnitude, unravel

MAX_INDEX_MAGNITUDE = 1 << 30  # so that the sum of two values still fits an int of OpenCL C


def source_and_access(node: Node) -> tuple[Node, Access]:
    """The Node below a chain of movements, and their Access to it."""
    return base(node), access(node)


def index_value(node: Node, indices: Sequence[Expr]) -> Expr | None:
    """The value of an integer or bool Node at these indices; None if it depends on other values.

    Also None if the value might wrap in the Node's dtype.
    """
    if node.dtype.is_float:
        return None
    if node.op is Op.CONST:
        return _within(Const(int(node.arg)), node.dtype)
    if node.op is Op.IOTA:
        return indices[0]
    if node.op is Op.PART:
        return part_begin(node) + indices[0] if node.src[0].op is Op.IOTA else None
    if node.op in MOVEMENT:
        source, moved = source_and_access(node)
        offset, valid = moved.index(indices)
        return index_value(source, unravel(offset, source.shape)) if valid is ONE else None
    rule = _RULES.get(node.op)
    if rule is None or any(s.dtype.is_float for s in node.src):
        return None
    values = [index_value(s, indices) for s in node.src]
    sources = [f for f in values if f is not None]
    value = rule(node.dtype, *sources) if len(sources) == len(values) else None
    return None if value is None else _within(value, node.dtype)


def _within(value: Expr, dtype: DType) -> Expr | None:
    low, high = max(dtype.min, -MAX_INDEX_MAGNITUDE), min(dtype.max, MAX_INDEX_MAGNITUDE)
    fits = low <= value.lo and value.hi <= high and max_magnitude(value) <= LONG_MAX
    return value if fits else None


def negated(condition: Expr) -> Expr:
    """1 where the condition is 0, and 0 where it is 1."""
    return at_least(condition.x, condition.n) if is_logic(condition, "<") else 1 - condition


def _equal(a: Expr, b: Expr) -> Expr:
    return all_of(less(a - b, 1), at_least(a - b, 0))


def _cast(dtype: DType, x: Expr) -> Expr:
    is_number = dtype is bool_ and not 0 <= x.lo <= x.hi <= 1
    return negated(_equal(x, Const(0))) if is_number else x


def _product(dtype: DType, a: Expr, b: Expr) -> Expr | None:
    return a * b if isinstance(a, Const) or isinstance(b, Const) else None


def _exclusive_or(dtype: DType, a: Expr, b: Expr) -> Expr:
    return negated(a) if dtype is bool_ and b is ONE else xor(a, b)


def _positive(b: Expr) -> int:
    """The value of a positive constant, by which expressions can be divided; else 0."""
    return b.value if isinstance(b, Const) and b.value > 0 else 0


_RULES: dict[Op, Callable[..., Expr | None]] = {
    Op.CAST: _cast,
    Op.NEG: lambda dtype, x: -x,
    Op.ADD: lambda dtype, a, b: a + b,
    Op.SUB: lambda dtype, a, b: a - b,
    Op.MUL: _product,
    Op.DIV: lambda dtype, a, b: a // n if (n := _positive(b)) else None,
    Op.MOD: lambda dtype, a, b: a % n if (n := _positive(b)) else None,
    Op.XOR: _exclusive_or,
    Op.LT: lambda dtype, a, b: less(a - b, 0),
    Op.EQ: lambda dtype, a, b: _equal(a, b),
    Op.AND: lambda dtype, a, b: all_of(a, b) if dtype is bool_ else None,
    Op.OR: lambda dtype, a, b: negated(all_of(negated(a), negated(b))) if dtype is bool_ else None,
}


def zero_outside(node: Node) -> bool:
    """Whether a Node is zero wherever its loads are masked out, as masked loads give zero.

    That holds for loads, zeros, and what moves, gathers, casts and selects them.
    """
    if node.op in MOVEMENT or node.op in (Op.CAST, Op.GATHER):
        return zero_outside(node.src[0])
    if node.op is Op.WHERE:
        return all(map(zero_outside, node.src[1:]))
    if node.op is Op.PART:
        return node.src[0].op is not Op.IOTA
    return node.op is Op.BUFFER or node is const(0, node.dtype, node.shape)
