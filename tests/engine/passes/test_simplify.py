"""Each rewrite rule applies where it should, and leaves similar expressions unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imgmlp.engine.ir.dtype import bool_, f16, f32, i8, i32, u32
from imgmlp.engine.ir.graph import (
    Buffer,
    Node,
    alu,
    buffer,
    cast,
    concat,
    const,
    dot,
    function,
    gather,
    make,
    move,
    reduce,
    toposort,
)
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle.interpret import evaluate
from imgmlp.engine.passes.simplify import simplify

SHAPE = (3, 2)
X = buffer(Buffer(SHAPE, f32, name="x"))
Y = buffer(Buffer(SHAPE, f32, name="y"))
I = buffer(Buffer(SHAPE, i32, name="i"))  # noqa: E741
J = buffer(Buffer(SHAPE, i32, name="j"))
K = buffer(Buffer(SHAPE, i32, name="k"))
U = buffer(Buffer(SHAPE, u32, name="u"))
S = buffer(Buffer(SHAPE, i8, name="s"))
C = buffer(Buffer(SHAPE, bool_, name="c"))
D = buffer(Buffer(SHAPE, bool_, name="d"))
H = buffer(Buffer(SHAPE, f16, name="h"))


FLAT = move(Op.RESHAPE, X, (6,))
ROW = move(Op.RESHAPE, buffer(Buffer((2,), f32, name="row")), (1, 1, 2))


def number(value: float, like: Node = X) -> Node:
    return const(value, like.dtype, like.shape)


def negated_twice(node: Node) -> Node:
    return alu(Op.NEG, alu(Op.NEG, node))


def both(op: Op, a: Node, b: Node | float) -> Node:
    return alu(op, a, b if isinstance(b, Node) else number(b, a))


INDEX = buffer(Buffer((48,), i32, name="index"))  # takes each row of X and Y 16 times
FEW = buffer(Buffer((47,), i32, name="few"))
MATRIX = buffer(Buffer((2, 4), f32, name="matrix"))
TALL = buffer(Buffer((4, 4), f32, name="tall"))
UPPER, LOWER = (move(Op.SHRINK, TALL, ((a, a + 2), (0, 4))) for a in (0, 2))


REWRITES: dict[str, tuple[Node, Node]] = {
    "x[index] @ w": (dot(gather(X, INDEX), MATRIX), gather(dot(X, MATRIX), INDEX)),
    "rows of tables side by side @ w": (
        dot(concat([gather(X, INDEX), gather(Y, INDEX)], 1), TALL),
        gather(dot(X, UPPER), INDEX) + gather(dot(Y, LOWER), INDEX),
    ),
    "x + 0": (X + 0.0, X),
    "0 + x": (number(0.0) + X, X),
    "x - 0": (X - 0.0, X),
    "x * 1": (X * 1.0, X),
    "x * 0": (X * 0.0, number(0.0)),
    "x * -1": (X * -1.0, -X),
    "x / 1": (X / 1.0, X),
    "x / 4": (X / 4.0, X * 0.25),
    "x - 3": (X - 3.0, X + -3.0),
    "-(-x)": (negated_twice(X), X),
    "(x + 2) + 3": ((X + 2.0) + 3.0, X + 5.0),
    "(2 * x) * 3": ((number(2.0) * X) * 3.0, X * 6.0),
    "2 + 3": (number(2.0) + number(3.0), number(5.0)),
    "constants all the way": ((number(2.0) * 3.0 + 1.0) * X, X * 7.0),
    "exp2 of a constant": (alu(Op.EXP2, number(3.0)), number(8.0)),
    "max(x, x)": (alu(Op.MAX, X, X), X),
    "i ^ i": (alu(Op.XOR, I, I), number(0, I)),
    "j ^ (j ^ i)": (alu(Op.XOR, J, alu(Op.XOR, J, I)), I),
    "(i ^ j) ^ j": (alu(Op.XOR, alu(Op.XOR, I, J), J), I),
    "(i ^ 5) ^ 6": (
        alu(Op.XOR, alu(Op.XOR, I, number(5, I)), number(6, I)),
        alu(Op.XOR, I, number(3, I)),
    ),
    "i & i": (alu(Op.AND, I, I), I),
    "i & -1": (both(Op.AND, I, -1), I),
    "u & all ones": (both(Op.AND, U, 2**32 - 1), U),
    "c & true": (both(Op.AND, C, True), C),
    "i | -1": (both(Op.OR, I, -1), number(-1, I)),
    "c | true": (both(Op.OR, C, True), number(True, C)),
    "i | i": (both(Op.OR, I, I), I),
    "i ^ 0": (both(Op.XOR, I, 0), I),
    "0 ^ i": (both(Op.XOR, number(0, I), I), I),
    "(j ^ i) ^ j": (both(Op.XOR, both(Op.XOR, J, I), J), I),
    "i ^ (j ^ i)": (both(Op.XOR, I, both(Op.XOR, J, I)), J),
    "not not i": (both(Op.XOR, both(Op.XOR, I, -1), -1), I),
    "not not c": (both(Op.XOR, both(Op.XOR, C, True), True), C),
    "(i & 6) & 3": (both(Op.AND, both(Op.AND, I, 6), 3), both(Op.AND, I, 2)),
    "(i | 6) | 3": (both(Op.OR, both(Op.OR, I, 6), 3), both(Op.OR, I, 7)),
    "max(max(x, 2), 3)": (both(Op.MAX, both(Op.MAX, X, 2.0), 3.0), both(Op.MAX, X, 3.0)),
    "3 == i": (both(Op.EQ, number(3, I), I), both(Op.EQ, I, 3)),
    "i >> 0": (both(Op.SHR, I, 0), I),
    "(s + 100) + 100 wraps": ((S + 100) + 100, S + -56),
    "i | 0": (alu(Op.OR, I, number(0, I)), I),
    "i & 0": (alu(Op.AND, I, number(0, I)), number(0, I)),
    "i << 0": (alu(Op.SHL, I, number(0, I)), I),
    "i % 1": (alu(Op.MOD, I, number(1, I)), number(0, I)),
    "where(true, x, y)": (alu(Op.WHERE, number(True, C), X, Y), X),
    "where(c, x, x)": (alu(Op.WHERE, C, X, X), X),
    "where(not c, x, y)": (
        alu(Op.WHERE, alu(Op.XOR, C, number(True, C)), X, Y),
        alu(Op.WHERE, C, Y, X),
    ),
    "where(false, x, y)": (alu(Op.WHERE, number(False, C), X, Y), Y),
    "x * 0 + y": (alu(Op.MULACC, X, number(0.0), Y), Y),
    "0 * x + y": (alu(Op.MULACC, number(0.0), X, Y), Y),
    "x * 1 + y": (alu(Op.MULACC, X, number(1.0), Y), X + Y),
    "2 * x + y": (alu(Op.MULACC, number(2.0), X, Y), alu(Op.MULACC, X, number(2.0), Y)),
    "2 * 3 + y": (alu(Op.MULACC, number(2.0), number(3.0), Y), Y + 6.0),
    "h / 2**14": (H / 2.0**14, H * 2.0**-14),
    "x * y + 0": (alu(Op.MULACC, X, Y, number(0.0)), X * Y),
    "half to float to half": (cast(cast(H, f32), f16), H),
    "bool to int to float": (cast(cast(C, i32), f32), cast(C, f32)),
    "reshape of reshape": (
        move(Op.RESHAPE, negated_twice(move(Op.RESHAPE, X, (6,))), (2, 3)),
        move(Op.RESHAPE, X, (2, 3)),
    ),
    "an operation on what was reshaped": (
        both(Op.MAX, FLAT, 0.0),
        move(Op.RESHAPE, both(Op.MAX, X, 0.0), (6,)),
    ),
    "and on two, and a cast": (
        cast(FLAT * move(Op.RESHAPE, Y, (6,)), f16),
        move(Op.RESHAPE, cast(X * Y, f16), (6,)),
    ),
    "permute twice": (move(Op.PERMUTE, move(Op.PERMUTE, X, (1, 0)), (1, 0)), X),
    "expand of expand": (
        move(Op.EXPAND, move(Op.EXPAND, ROW, (3, 1, 2)), (3, 4, 2)),
        move(Op.EXPAND, ROW, (3, 4, 2)),
    ),
    "permute to the order that is": (make(Op.PERMUTE, (X,), (0, 1), SHAPE, f32), X),
    "reshape to the shape that is": (make(Op.RESHAPE, (X,), SHAPE, SHAPE, f32), X),
    "expand by nothing": (make(Op.EXPAND, (X,), SHAPE, SHAPE, f32), X),
    "pad by nothing": (move(Op.PAD, X, ((0, 0), (0, 0))), X),
    "shrink to everything": (move(Op.SHRINK, X, ((0, 3), (0, 2))), X),
    "steps of one": (move(Op.STRIDE, X, (1, 1)), X),
    "a constant moved": (move(Op.RESHAPE, number(4.0), (6,)), const(4.0, f32, (6,))),
    "zero padded": (move(Op.PAD, number(0.0), ((1, 1), (0, 0))), const(0.0, f32, (5, 2))),
    "sum of a constant": (reduce(Op.SUM, number(2.0), (0, 1)), const(12.0, f32, ())),
    "sum of integers wraps": (reduce(Op.SUM, number(100, S), (0, 1)), const(88, i8)),
    "maximum of a constant": (reduce(Op.REDUCE_MAX, number(2.0), (1,)), const(2.0, f32, (3,))),
    "a function's answer": (function(X + 1.0, [X], lambda g, ans, x: (g,)), X + 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_rewrite_rule_gives_the_expected_node(name: str) -> None:
    before, after = REWRITES[name]
    assert before is not after
    (simplified,) = simplify([before])
    assert simplified is after


UNCHANGED: dict[str, Node] = {
    "rows taken few times, times a matrix": dot(gather(X, FEW), MATRIX),
    "rows of a table beside others, times a matrix": dot(
        concat([gather(X, INDEX), move(Op.RESHAPE, buffer(Buffer((96,), f32)), (48, 2))], 1), TALL
    ),
    "x + 1": X + 1.0,
    "0 - x": 0.0 - X,
    "1 / x": 1.0 / X,
    "i / 2 rounds": alu(Op.DIV, I, number(2, I)),
    "i - 2": alu(Op.SUB, I, number(2, I)),
    "max(x, y)": alu(Op.MAX, X, Y),
    "i ^ j": alu(Op.XOR, I, J),
    "(i ^ j) ^ k": both(Op.XOR, both(Op.XOR, I, J), K),
    "(i ^ j) ^ 1": both(Op.XOR, both(Op.XOR, I, J), 1),
    "c ^ d": both(Op.XOR, C, D),
    "c ^ true": both(Op.XOR, C, True),
    "i & j": both(Op.AND, I, J),
    "s & 255 is -1 in i32 only": cast(both(Op.AND, cast(S, i32), 255), i32),
    "i | 1": both(Op.OR, I, 1),
    "i | j": both(Op.OR, I, J),
    "c & d": both(Op.AND, C, D),
    "i << 1": both(Op.SHL, I, 1),
    "1 << i": both(Op.SHL, number(1, I), I),
    "0 >> i": both(Op.SHR, number(0, I), I),
    "i == 3": both(Op.EQ, I, 3),
    "x == x, which NaN is not": both(Op.EQ, X, X),
    "3 < i": both(Op.LT, number(3, I), I),
    "x * 2": X * 2.0,
    "u * -1 is a number": U * -1,
    "x / 0": X / 0.0,
    "x * y + z": alu(Op.MULACC, X, Y, X),
    "x * 2 + y": alu(Op.MULACC, X, number(2.0), Y),
    "x * y + 1": alu(Op.MULACC, X, Y, number(1.0)),
    "(x + 2) + y": (X + 2.0) + Y,
    "max(max(x, y), 2)": both(Op.MAX, both(Op.MAX, X, Y), 2.0),
    "max(x + 2, 3)": both(Op.MAX, X + 2.0, 3.0),
    "one factor, not two, overflows": (X * 1e30) * 1e30,
    "one factor, not two, underflows": (X * 1e-30) * 1e-30,
    "one half, not two, loses digits": (H * 1e-3) * 1e-3,
    "one addend, not two, overflows": (X + 3e38) + 3e38,
    "one addend, not two, brings back what was rounded": (X + 1.0) + -1.0,
    "one addend, not two, is rounded to a half": (H + 1.0) + 1.0,
    "h / 2**-15: its reciprocal is too large for a half": H / 2.0**-15,
    "where(c ^ d, x, y)": alu(Op.WHERE, both(Op.XOR, C, D), X, Y),
    "-x": -X,
    "-(x + 1)": -(X + 1.0),
    "i32 to float": cast(I, f32),
    "i ^ -1": alu(Op.XOR, I, number(-1, I)),
    "i % 2": alu(Op.MOD, I, number(2, I)),
    "i & 1": alu(Op.AND, I, number(1, I)),
    "where(c, x, y)": alu(Op.WHERE, C, X, Y),
    "float to half to float loses": cast(cast(X, f16), f32),
    "int to i8 to int loses": cast(cast(I, i8), i32),
    "u32 to int to u32": cast(cast(U, i32), u32),
    "int to u32 to float": cast(cast(S, u32), f32),
    "a one padded": move(Op.PAD, number(1.0), ((1, 0), (0, 0))),
    "reshaped from other shapes": FLAT + move(Op.RESHAPE, buffer(Buffer((2, 3), f32)), (6,)),
    "reshaped and not": FLAT + buffer(Buffer((6,), f32)),
    "permuted alike": move(Op.PERMUTE, X, (1, 0)) + move(Op.PERMUTE, Y, (1, 0)),
    "expand of reshape": move(Op.EXPAND, ROW, (3, 4, 2)),
    "pad of pad": move(Op.PAD, move(Op.PAD, X, ((1, 0), (0, 0))), ((1, 0), (0, 0))),
    "shrink to less": move(Op.SHRINK, X, ((0, 2), (0, 2))),
    "steps of two": move(Op.STRIDE, X, (2, 1)),
    "permute and permute on": move(Op.PERMUTE, move(Op.RESHAPE, X, (3, 1, 2)), (1, 2, 0)),
    "sum of values": reduce(Op.SUM, X, (0, 1)),
    "maximum of values": reduce(Op.REDUCE_MAX, X, (0, 1)),
    "permute once": move(Op.PERMUTE, X, (1, 0)),
    "a flip": move(Op.STRIDE, X, (-1, 1)),
    "(x + 2) * 3": (X + 2.0) * 3.0,
    "x / 3 has no exact reciprocal": X / 3.0,
    "the reciprocal would be infinite": X / 2.0**-130,
    "the reciprocal would be subnormal": X / 2.0**127,
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_expression_without_a_valid_rule_is_unchanged(name: str) -> None:
    (simplified,) = simplify([UNCHANGED[name]])
    assert simplified is UNCHANGED[name]


def test_table_is_multiplied_before_gather_if_its_rows_are_used_often() -> None:
    product = dot(gather(X, INDEX), MATRIX)
    often = INDEX.size // X.shape[0]
    assert simplify([product], often) == [gather(dot(X, MATRIX), INDEX)]
    assert simplify([product], often + 1) == [product]


def test_unused_computations_are_pruned() -> None:
    used, unused = X + 1.0, alu(Op.SIN, X)
    (simplified,) = simplify([alu(Op.WHERE, number(True, C), used, unused)])
    assert simplified is used


def test_equal_expressions_are_one_node_and_signed_zeros_differ() -> None:
    assert X * Y + 1.0 is X * Y + 1.0
    assert number(0.0) is not number(-0.0)
    assert const(1, i32) is not const(1, f32)


UNARY: list[Callable[[Node], Node]] = [
    lambda a: -a,
    lambda a: a + 0.0,
    lambda a: a * 1.0,
    lambda a: a * -1.0,
    lambda a: a / 2.0,
    lambda a: a - 1.5,
    lambda a: (a + 2.0) + 3.0,
    lambda a: move(Op.PERMUTE, move(Op.PERMUTE, a, (1, 0)), (1, 0)),
    lambda a: cast(cast(a, f32), f32),
]
BINARY: list[Callable[[Node, Node], Node]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: alu(Op.MAX, a, b),
    lambda a, b: alu(Op.WHERE, a < b, a, b),
    lambda a, b: alu(Op.MULACC, a, b, const(0.0, f32, SHAPE)),
]


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, 13), st.integers(0, 99), st.integers(0, 99)),
        min_size=1,
        max_size=12,
    )
)
def test_simplified_float_expressions_keep_their_values(steps: list[tuple[int, int, int]]) -> None:
    nodes = [X, Y, number(0.5), number(2.0)]
    for kind, first, second in steps:
        a, b = nodes[first % len(nodes)], nodes[second % len(nodes)]
        nodes.append(UNARY[kind](a) if kind < 9 else BINARY[kind - 9](a, b))
    rng = np.random.default_rng(1)
    values = {n.arg: rng.uniform(-2, 2, SHAPE) for n in (X, Y)}
    *on_the_way, before = evaluate(toposort([nodes[-1]]), values, wide=True)
    after = evaluate(simplify([nodes[-1]]), values, wide=True)[0]
    size = max(float(np.abs(v).max()) for v in (*on_the_way, before))
    assert np.abs(before - after).max() <= 16 * 2**-24 * size  # constants are folded at 32 bits
    assert math.prod(after.shape) == math.prod(SHAPE)


INTEGER_OPERATIONS = (Op.ADD, Op.SUB, Op.MUL, Op.XOR, Op.AND, Op.OR, Op.MAX)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from(INTEGER_OPERATIONS), st.integers(0, 99), st.integers(0, 99)),
        min_size=1,
        max_size=12,
    )
)
def test_simplified_integer_expressions_keep_their_values(steps: list[tuple[Op, int, int]]) -> None:
    nodes = [I, J, *(number(n, I) for n in (0, 1, -1, 12, 2**31 - 1))]
    for op, first, second in steps:
        nodes.append(alu(op, nodes[first % len(nodes)], nodes[second % len(nodes)]))
    rng = np.random.default_rng(1)
    values = {n.arg: rng.integers(-(2**31), 2**31, SHAPE) for n in (I, J)}
    before = evaluate([nodes[-1]], values)[0]
    assert np.array_equal(before, evaluate(simplify([nodes[-1]]), values)[0])
