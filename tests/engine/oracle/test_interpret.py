"""The interpreter of Nodes, the reference for all devices.

Expected values are written by hand or computed without NumPy's operators of the same name, so
that the interpreter is not compared with itself.
"""

from __future__ import annotations

import math
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from imgmlp.engine.ir.control_flow import cond
from imgmlp.engine.ir.dtype import DType, bool_, f16, f32, i8, i32, u8, u32
from imgmlp.engine.ir.graph import (
    Buffer,
    Node,
    alu,
    buffer,
    cast,
    concat,
    const,
    contiguous,
    dot,
    function,
    gather,
    iota,
    move,
    reduce,
)
from imgmlp.engine.ir.op import CONTROL, LOAD, Op
from imgmlp.engine.oracle.interpret import (
    FUNCTIONS,
    Evaluation,
    evaluate,
    lowbias32,
    peak_bytes,
    select,
)


def leaf(values: Any, dtype: DType) -> tuple[Node, dict[Buffer, np.ndarray]]:
    array = np.array(values, dtype.np)
    storage = Buffer(array.shape, dtype)
    return buffer(storage), {storage: array}


def value(node: Node, held: dict[Buffer, np.ndarray] | None = None, wide: bool = False) -> Any:
    (actual,) = evaluate([node], held or {}, wide)
    assert actual.shape == node.shape
    assert actual.dtype == (np.float64 if wide and node.dtype.is_float else node.dtype.np)
    return actual.tolist()


def test_every_operation_can_be_interpreted() -> None:
    assert set(FUNCTIONS) == set(Op) - LOAD - CONTROL


BINARY: list[tuple[Op, DType, float, float, float]] = [
    (Op.ADD, u8, 250, 10, 4),
    (Op.SUB, u32, 1, 2, 2**32 - 1),
    (Op.MUL, i8, 100, 3, 44),
    (Op.DIV, i32, -7, 2, -4),
    (Op.DIV, i32, 7, -2, -4),
    (Op.DIV, f32, -7, 2, -3.5),
    (Op.MOD, i32, -7, 3, 2),
    (Op.MOD, i32, 7, -3, -2),
    (Op.MAX, f32, -1, -2, -1),
    (Op.LT, f32, -2, -1, True),
    (Op.LT, f32, -1, -1, False),
    (Op.EQ, i32, 3, 3, True),
    (Op.XOR, u8, 0b1100, 0b1010, 0b0110),
    (Op.AND, u8, 0b1100, 0b1010, 0b1000),
    (Op.OR, u8, 0b1100, 0b1010, 0b1110),
    (Op.SHL, u8, 0b11000001, 1, 0b10000010),
    (Op.SHR, u32, 2**32 - 1, 31, 1),
    (Op.SHR, i32, -8, 1, -4),
]


@pytest.mark.parametrize(("op", "dtype", "a", "b", "wanted"), BINARY)
def test_interpreter_computes_binary_operations(
    op: Op, dtype: DType, a: float, b: float, wanted: float
) -> None:
    assert value(alu(op, const(a, dtype, (2,)), const(b, dtype, (2,)))) == [wanted] * 2


UNARY: list[tuple[Op, float, float]] = [
    (Op.NEG, 3.0, -3.0),
    (Op.EXP2, -3.0, 0.125),
    (Op.LOG2, 32.0, 5.0),
    (Op.SIN, math.pi / 6, 0.5),
    (Op.COS, math.pi / 3, 0.5),
    (Op.SQRT, 6.25, 2.5),
]


@pytest.mark.parametrize(("op", "x", "wanted"), UNARY)
def test_interpreter_computes_unary_operations(op: Op, x: float, wanted: float) -> None:
    assert value(alu(op, const(x, f32))) == pytest.approx(wanted, rel=1e-7)  # one rounding
    assert value(alu(op, const(x, f32)), wide=True) == pytest.approx(wanted, rel=1e-15)


def test_interpreter_computes_ternary_operations() -> None:
    two, three, five = (const(v, f32) for v in (2, 3, 5))
    assert value(alu(Op.WHERE, const(True, bool_), two, three)) == 2
    assert value(alu(Op.WHERE, const(False, bool_), two, three)) == 3
    assert value(alu(Op.MULACC, two, three, five)) == 11


@pytest.mark.parametrize("kind", ["bool", "i1", "u1", "i4", "u4", "f2", "f4", "f8"])
def test_select_keeps_every_bit(kind: str) -> None:
    """Signed zeros, NaNs and all other values are kept, also with broadcast operands."""
    random, dtype = np.random.default_rng(0), np.dtype(kind)
    x, y = random.integers(0, 2 if kind == "bool" else 256, (2, 7, 5 * dtype.itemsize), np.uint8)
    x, y = x.view(dtype), y.view(dtype)
    condition = random.random(x.shape) < 0.5
    one, row, whole = (np.broadcast_to(v, x.shape) for v in (x[0, 0], x[0], condition[0, 0]))
    for c, a, b in (
        (condition, x, y),
        (condition, one, y),
        (condition, x, one),
        (condition, one, np.broadcast_to(y[0, 0], x.shape)),
        (condition, row, y.T.copy().T),
        (whole, x, y),
        (whole, one, one),
        (condition[0, 0], x[0, 0], y[0, 0]),
        (condition[:, :1], x[:1], y),
    ):
        kept = a.copy(), b.copy(), c.copy()
        actual, expected = select(c, a, b), np.where(c, a, b)
        assert actual.dtype == dtype
        assert actual.shape == expected.shape
        assert actual.tobytes() == expected.tobytes()
        assert all(u.tobytes() == v.tobytes() for u, v in zip((a, b, c), kept, strict=True))


def test_evaluation_can_be_repeated_with_other_values() -> None:
    x, _ = leaf([0.0, 0.0], f32)
    ready = Evaluation([x * x + (const(2, f32, (2,)) + 1.0), x])
    for given in ([1.0, 2.0], [3.0, -4.0]):
        squares, same = ready.run({x.arg: np.array(given, np.float32)})
        assert squares.tolist() == [g * g + 3 for g in given]
        assert same.tolist() == given


def test_interpreter_computes_reductions_and_products() -> None:
    x, held = leaf([[1, 2, 3], [4, 9, 6]], f32)
    assert value(reduce(Op.SUM, x, (0,)), held) == [5, 11, 9]
    assert value(reduce(Op.SUM, x, (0, 1)), held) == 25
    assert value(reduce(Op.REDUCE_MAX, x, (1,)), held) == [3, 9]
    assert value(dot(x, move(Op.PERMUTE, x, (1, 0))), held) == [[14, 40], [40, 133]]
    small, held = leaf([200, 100], u8)
    assert value(reduce(Op.SUM, small, (0,)), held) == 44


def test_interpreter_computes_movements() -> None:
    x, held = leaf([[1, 2, 3], [4, 5, 6]], i32)
    for op, arg, expected in (
        (Op.RESHAPE, (3, 2), [[1, 2], [3, 4], [5, 6]]),
        (Op.PERMUTE, (1, 0), [[1, 4], [2, 5], [3, 6]]),
        (Op.PAD, ((0, 1), (1, 0)), [[0, 1, 2, 3], [0, 4, 5, 6], [0, 0, 0, 0]]),
        (Op.SHRINK, ((1, 2), (0, 2)), [[4, 5]]),
        (Op.STRIDE, (-1, 2), [[4, 6], [1, 3]]),
    ):
        assert value(move(op, x, arg), held) == expected, op
    row = move(Op.SHRINK, x, ((0, 1), (0, 3)))
    assert value(move(Op.EXPAND, row, (2, 3)), held) == [[1, 2, 3], [1, 2, 3]]


def test_interpreter_computes_gather_concat_and_casts() -> None:
    x, held = leaf([[1, 2], [3, 4], [5, 6]], f32)
    index, places = leaf([[2, 0]], u8)
    assert value(gather(x, index), held | places) == [[[5, 6], [1, 2]]]
    assert value(concat([x, x], 1), held) == [[1, 2, 1, 2], [3, 4, 3, 4], [5, 6, 5, 6]]
    assert value(contiguous(move(Op.PERMUTE, x, (1, 0))), held) == [[1, 3, 5], [2, 4, 6]]
    assert value(function(x + 1.0, [x], lambda g, ans, x: (g,)), held) == [[2, 3], [4, 5], [6, 7]]
    assert value(iota(4)) == [0, 1, 2, 3]
    assert value(cast(const(-1.7, f32), i32)) == -1
    assert value(cast(const(-1, i32), u32)) == 2**32 - 1


def test_interpreter_rounds_to_the_dtype_unless_wide() -> None:
    """1 + 2**-30 needs more than 24 bits, 2049 more than the 11 of a half."""
    x, held = leaf([1.0], f32)
    assert value(x + 2.0**-30, held) == [1.0]
    assert value(x + 2.0**-30, held, wide=True) == [1.0 + 2.0**-30]
    assert value(const(2048, f16) + const(1, f16)) == 2048
    assert value(const(2048, f16) + const(1, f16), wide=True) == 2049
    assert value(const(250, u8) + const(10, u8), wide=True) == 4  # integers wrap all the same


def test_interpreter_emits_no_warnings_for_infinities() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(const(1, f32) / 0.0) == math.inf
        assert value(alu(Op.LOG2, const(0, f32))) == -math.inf
        assert math.isnan(value(alu(Op.SQRT, const(-1, f32))))


def test_hash_is_lowbias32() -> None:
    """The reference uses Python's unbounded integers."""

    def reference(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 16)

    inputs = [0, 1, 2, 0xDEADBEEF, 2**31, 2**32 - 1]
    result = lowbias32(np.array(inputs, np.uint32))
    assert result.dtype == np.uint32
    assert result.tolist() == [reference(x) for x in inputs]
    assert value(alu(Op.HASH, const(77, u32))) == reference(77)


def test_hash_maps_different_numbers_to_different_ones() -> None:
    """Checked for all values of one half of the bits, and some of the other half."""
    low = np.arange(2**16, dtype=np.uint32)
    for high in (0, 0x1234, 0xFFFF):
        assert len(np.unique(lowbias32(low | np.uint32(high << 16)))) == 2**16
        assert len(np.unique(lowbias32(low << np.uint32(16) | np.uint32(high)))) == 2**16


def test_expand_is_materialised_where_numpy_does_not_broadcast() -> None:
    """NumPy broadcasts only in arithmetic with an operand of the whole shape."""
    (row, a), (column, b), (full, c) = (
        leaf(x, f32) for x in ([[1, 2, 3]], [[4], [5]], [[6] * 3] * 2)
    )
    wide, tall = (move(Op.EXPAND, node, (2, 3)) for node in (row, column))
    rows, columns, whole = [[1, 2, 3]] * 2, [[4] * 3, [5] * 3], [[6] * 3] * 2
    answers: list[tuple[Node, Any]] = [
        (wide * full, np.multiply(rows, whole)),
        (full - tall, np.subtract(whole, columns)),
        (wide + tall, np.add(rows, columns)),
        (wide * wide, np.square(rows)),
        (alu(Op.MULACC, wide, tall, wide), np.multiply(rows, columns) + rows),
        (-wide, np.negative(rows)),
        (reduce(Op.SUM, tall, (1,)), np.array([12, 15])),
        (move(Op.RESHAPE, wide, (6,)), np.array([1, 2, 3, 1, 2, 3])),
        (alu(Op.WHERE, wide < full, tall, full), np.array(columns)),
    ]
    for node, expected in answers:
        assert value(node, a | b | c) == expected.tolist(), node
    actual = evaluate([node for node, _ in answers] + [wide], a | b | c)
    for array, (_, expected) in zip(actual, answers, strict=False):
        assert array.tolist() == expected.tolist()
    assert actual[-1].tolist() == rows
    flat = move(Op.RESHAPE, wide, (6,))  # values that cond reads are not known in advance
    chosen = cond(const(True, bool_), flat, const(0, f32, (6,)))
    actual = evaluate([wide * full, chosen], a | b | c)
    assert actual[1].tolist() == [1, 2, 3, 1, 2, 3]


def test_values_shared_by_conds_have_their_full_shape() -> None:
    """A later choice reuses values of an earlier one, but not their sources."""
    (row, a), (full, b), (flag, c) = (leaf(x, f32) for x in ([[1, 2, 3]], [[6] * 3] * 2, [[1.0]]))
    wide, yes = move(Op.EXPAND, row, (2, 3)), move(Op.RESHAPE, flag, ()) < const(2, f32)
    made = wide * full
    choices = [
        cond(yes, made, full),
        cond(yes, -made, full),
        cond(yes, reduce(Op.SUM, wide, (0,)), const(0, f32, (3,))),
    ]
    for wide_floats in (False, True):
        actual = evaluate(choices, a | b | c, wide_floats)
        assert actual[0].tolist() == [[6, 12, 18]] * 2
        assert actual[1].tolist() == [[-6, -12, -18]] * 2
        assert actual[2].tolist() == [2, 4, 6]


def test_values_are_freed_after_their_last_use() -> None:
    start, values = leaf(np.zeros(1 << 17), f32)
    value = start
    for number in range(20):
        value = alu(Op.ADD, alu(Op.MUL, value, start), const(number, f32, start.shape))
    tracemalloc.start()
    evaluate([value, start], values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * start.size * 4  # bytes; there are 40 values


def test_peak_bytes_equal_the_live_values_of_an_evaluation() -> None:
    """Of three consecutive values two are live at a time; views and Buffers take no memory."""
    x, held = leaf(np.ones((500, 400)), f32)
    turned = move(Op.PERMUTE, x, (1, 0))
    total = reduce(Op.SUM, (turned + turned) * turned * turned, (0, 1))
    one = 500 * 400 * 4
    assert 2 * one <= peak_bytes([total]) <= 2 * one + 4
    tracemalloc.start()
    evaluate([total], held)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak >= peak_bytes([total])


def test_contiguous_scalar_has_no_axes() -> None:
    node = contiguous(alu(Op.NEG, const(2.0, f32)))
    (actual,) = evaluate([node], {})
    assert actual.shape == ()
