"""Algebraic simplification: rewrite rules, applied to a Node graph until none fires.

In: roots of a graph. Out: equivalent roots of the same shapes and dtypes.

The rules fold constants, drop operations that change nothing, merge constants, and multiply tables
instead of rows gathered from them. Dead code needs no rule, as it is never visited, nor do common
subexpressions, as Nodes are hash-consed. Values must stay the same, with three exceptions: rounding
where constants are merged, the sign of a zero, and a product with zero, which is zero even if the
other factor is infinite or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from imgmlp.engine.ir.control_flow import Body
from imgmlp.engine.ir.dtype import DType, bool_, f16
from imgmlp.engine.ir.graph import (
    Node,
    alu,
    cast,
    const,
    dot,
    gather,
    make,
    move,
    rebuild,
    substitute,
    toposort,
)
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.oracle.interpret import evaluate

# How often each row of a table is gathered, on average, from where on the table is multiplied
# instead of the gathered rows.
MIN_TABLE_REUSE = 16
ASSOCIATIVE = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.XOR, Op.AND, Op.OR})
COMMUTATIVE = ASSOCIATIVE | {Op.EQ}


def simplify(roots: Sequence[Node], min_table_reuse: int = MIN_TABLE_REUSE) -> list[Node]:
    """Equivalent roots of the same shapes and dtypes, to which no rule applies.

    Tables whose rows are gathered at least `min_table_reuse` times each are multiplied before.
    """
    done: dict[Node, Node] = {}
    for node in toposort(roots):
        done[node] = _to_fixed_point(
            rebuild(node, tuple(done[s] for s in node.src)), min_table_reuse
        )
    simplified = [done[r] for r in roots]
    return simplified if simplified == list(roots) else simplify(simplified, min_table_reuse)


def _to_fixed_point(node: Node, min_table_reuse: int) -> Node:
    while (better := _rewrite(node, min_table_reuse)) is not None and better is not node:
        node = better
    return node


def _rewrite(node: Node, min_table_reuse: int) -> Node | None:
    """The Node after one rule, or None if no rule applies."""
    if node.op is Op.FUNCTION:
        return node.src[0]
    if node.op in ELEMENTWISE:
        if all(s.op is Op.CONST for s in node.src):
            return _fold_constants(node)
        if node.op in COMMUTATIVE and node.src[0].op is Op.CONST:
            return rebuild(node, (node.src[1], node.src[0]))
        if (before := _move_reshape_after(node)) is not None:
            return before
        return _unary(node) if len(node.src) == 1 else _binary_or_ternary(node)
    if node.op in MOVEMENT:
        return _movement(node)
    if node.op is Op.DOT:
        return _multiply_tables_first(node, min_table_reuse)
    if node.op in REDUCE and node.src[0].op is Op.CONST:
        terms = node.src[0].size // node.size if node.op is Op.SUM else 1
        return const(node.src[0].arg * terms, node.dtype, node.shape)
    if node.op is Op.COND:
        return _where(node)
    return _simplify_loop(node, min_table_reuse) if node.op is Op.LOOP else None


def _simplify_loop(node: Node, min_table_reuse: int) -> Node:
    """A LOOP with a simplified body, in which captured constants become constants."""
    body: Body = node.arg
    carried = len(body.values)
    pairs = list(zip(body.parameters, node.src, strict=True))
    inside = {p: s for p, s in pairs[carried:] if s.op is Op.CONST}
    values = simplify(substitute(body.values, inside), min_table_reuse)
    kept = [(p, s) for p, s in pairs if p not in inside]
    new = Body(body.count, tuple(p for p, _ in kept), tuple(values))
    return make(Op.LOOP, tuple(s for _, s in kept), new, (), node.dtype)


def _fold_constants(node: Node) -> Node:
    """The constant result of an operation on constants, computed in the dtype's own width."""
    scalars = tuple(const(s.arg, s.dtype) for s in node.src)
    (value,) = evaluate([make(node.op, scalars, node.arg, (), node.dtype)], {})
    return const(value.item(), node.dtype, node.shape)


def _move_reshape_after(node: Node) -> Node | None:
    """op(reshape(x), reshape(y)) -> reshape(op(x, y)), if all sources are reshaped alike.

    The operation then has the shape of the product or reduction before it, and can share its
    kernel.
    """
    shapes = {
        s.src[0].shape if s.op is Op.RESHAPE else None for s in node.src if s.op is not Op.CONST
    }
    if len(shapes) != 1 or (shape := shapes.pop()) is None:
        return None
    inner = (const(s.arg, s.dtype, shape) if s.op is Op.CONST else s.src[0] for s in node.src)
    done = make(node.op, tuple(inner), node.arg, shape, node.dtype)
    return move(Op.RESHAPE, done, node.shape)


def _unary(node: Node) -> Node | None:
    x: Node = node.src[0]
    match node.op:
        case Op.NEG if x.op is Op.NEG:
            (inner,) = x.src
            return inner
        case Op.CAST if x.op is Op.CAST and _is_exact_cast(x.src[0].dtype, x.dtype):
            return cast(x.src[0], node.dtype)
    return None


def _is_exact_cast(narrow: DType, wide: DType) -> bool:
    """Whether every value of one dtype is a value of the other."""
    if narrow is bool_:
        return True
    if narrow.is_int and wide.is_int:
        return wide.min <= narrow.min and narrow.max <= wide.max
    return narrow.is_float and wide.is_float and narrow.itemsize <= wide.itemsize


def _binary_or_ternary(node: Node) -> Node | None:
    x, y, *rest = node.src
    value: float | None = y.arg if y.op is Op.CONST else None
    zero = const(0, node.dtype, node.shape)
    match node.op:
        case Op.AND if y is _all_bits_set(node):
            return x
        case Op.OR if y is _all_bits_set(node):
            return y
        case Op.ADD | Op.SUB | Op.OR | Op.XOR | Op.SHL | Op.SHR if value == 0:
            return x
        case Op.MUL | Op.AND if value == 0:
            return zero
        case Op.MUL | Op.DIV if value == 1:
            return x
        case Op.MUL if value == -1:
            return -x
        case Op.DIV if value is not None and _has_reciprocal(value, node.dtype):
            return x * (1 / value)
        case Op.SUB if value is not None:
            return x + const(-value, y.dtype, y.shape) if node.dtype.is_float else None
        case Op.MOD if value == 1:
            return zero
        case Op.MAX | Op.AND | Op.OR if x is y:
            return x
        case Op.XOR:
            return _xor(x, y)
        case Op.WHERE:
            return _where(node)
        case Op.MULACC if value == 0:
            return rest[0]
        case Op.MULACC if value == 1:
            return x + rest[0]
        case Op.MULACC if x.op is Op.CONST:  # the other sources are not all constants
            return alu(Op.MULACC, y, x, rest[0]) if value is None else x * y + rest[0]
        case Op.MULACC if rest[0].op is Op.CONST and rest[0].arg == 0:
            return x * y
    return _merge_constants(node, x, y)


def _all_bits_set(node: Node) -> Node:
    """The constant with every bit set, in the dtype and shape of another Node."""
    return const(1 if node.dtype is bool_ else -1, node.dtype, node.shape)


def _has_reciprocal(value: float, dtype: DType) -> bool:
    """Whether 1 / value is exact in a float dtype, and neither of both is subnormal."""
    if not dtype.is_float or not math.isfinite(value):
        return False
    mantissa, exponent = math.frexp(value)
    limit = 15 if dtype is f16 else 127
    return abs(mantissa) == 0.5 and 2 - limit <= exponent <= limit


def _multiply_tables_first(node: Node, min_table_reuse: int) -> Node | None:
    """table[index] @ w -> (table @ w)[index], also for several tables side by side.

    That is less work if each row of the table is gathered at least `min_table_reuse` times.
    """
    left, right = node.src
    is_side_by_side = left.op is Op.CONCAT and left.arg == len(left.shape) - 1
    parts = left.src if is_side_by_side else (left,)
    total, begin = None, 0
    for part in parts:
        if part.op is not Op.GATHER or len(part.shape) != 2 or len(part.src[0].shape) != 2:
            return None
        table, index = part.src
        if table.shape[0] * min_table_reuse > index.size:
            return None
        end = begin + part.shape[1]
        factor = move(Op.SHRINK, right, ((begin, end), (0, right.shape[1])))
        rows = gather(dot(table, factor), index)
        total, begin = rows if total is None else total + rows, end
    return total


def _xor(x: Node, y: Node) -> Node | None:
    """x ^ x -> 0 and y ^ (y ^ x) -> x, on either side."""
    if x is y:
        return const(0, x.dtype, x.shape)
    for one, other in ((x, y), (y, x)):
        if one.op is Op.XOR and other in one.src:
            return one.src[1] if one.src[0] is other else one.src[0]
    return _merge_constants(alu(Op.XOR, x, y), x, y)


def _where(node: Node) -> Node | None:
    condition, a, b = node.src
    if condition.op is Op.CONST:
        return a if condition.arg else b
    if a is b:
        return a
    if condition.op is Op.XOR and condition.src[1].op is Op.CONST:  # a condition negated
        return rebuild(node, (condition.src[0], b, a))
    return None


def _merge_constants(node: Node, x: Node, y: Node) -> Node | None:
    """(x + 2) + 3 -> x + 5, and likewise for every associative operation."""
    if node.op not in ASSOCIATIVE or y.op is not Op.CONST:
        return None
    if node.dtype is f16 and node.op is not Op.MAX:  # each result is rounded
        return None
    if x.op is not node.op or x.src[1].op is not Op.CONST:
        return None
    one, both = x.src[1], _fold_constants(alu(node.op, x.src[1], y))
    return alu(node.op, x.src[0], both) if _can_merge_constants(one, y, both, node.op) else None


def _can_merge_constants(one: Node, other: Node, both: Node, op: Op) -> bool:
    """Whether two constants may be merged: without overflow, without underflow of a product, and
    without undoing a rounding that is done on purpose, as in (x + 1) - 1."""
    if not both.dtype.is_float or op is Op.MAX:
        return True
    if op is Op.ADD and (one.arg < 0) != (other.arg < 0):
        return False
    normal = float(np.finfo(both.dtype.np).tiny) if op is Op.MUL else 0.0
    return bool(normal <= abs(both.arg) < math.inf)


def _movement(node: Node) -> Node | None:
    source = node.src[0]
    if source.op is Op.CONST and (node.op is not Op.PAD or source.arg == 0):
        return const(source.arg, node.dtype, node.shape)
    if node.shape == source.shape and _is_identity_movement(node):
        return source
    if node.op is source.op and node.op in (Op.RESHAPE, Op.EXPAND):
        return move(node.op, source.src[0], node.arg)
    if node.op is Op.PERMUTE and source.op is Op.PERMUTE:
        return move(Op.PERMUTE, source.src[0], tuple(source.arg[a] for a in node.arg))
    return None


def _is_identity_movement(node: Node) -> bool:
    match node.op:
        case Op.PAD:
            return all(pair == (0, 0) for pair in node.arg)
        case Op.SHRINK | Op.RESHAPE | Op.EXPAND:
            return True
        case Op.STRIDE:
            return all(step == 1 for step in node.arg)
        case Op.PERMUTE:
            return tuple(node.arg) == tuple(range(len(node.shape)))
    return False
