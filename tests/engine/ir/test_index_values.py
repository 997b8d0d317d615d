"""Selections by index arithmetic become masks of loads; others remain WHERE operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import FORMS, open_mapping
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import close

from imgmlp.engine import Tensor, compile
from imgmlp.engine.ir.conditions import all_of
from imgmlp.engine.ir.dtype import DType, bool_, f16, f32, i8, i32, u8, u32
from imgmlp.engine.ir.graph import Buffer, Node, alu, buffer, cast, const, gather, iota, move
from imgmlp.engine.ir.index_values import index_value, negated
from imgmlp.engine.ir.kernel import Kernel, Store
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.uops import U, UOp
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.oracle.interpret import evaluate

SHAPE = (5, 7)
X, Y = (buffer(Buffer(SHAPE, f32, name=name)) for name in "xy")
H = buffer(Buffer(SHAPE, f16, name="h"))
DATA = buffer(Buffer(SHAPE, i32, name="data"))
ROWS = gather(buffer(Buffer((9, 7), f32, name="table")), iota(5))
ZERO = const(0, f32, SHAPE)


def along(axis: int) -> Node:
    """The index along an axis, at every element."""
    ones = tuple(n if i == axis else 1 for i, n in enumerate(SHAPE))
    return move(Op.EXPAND, move(Op.RESHAPE, iota(SHAPE[axis]), ones), SHAPE)


ROW, COLUMN = along(0), along(1)
UPPER = ROW < COLUMN
AND_UPPER, NOT_UPPER = "((i-c)<0)", "((c-i)<1)"


def number(value: int, kind: DType = i32) -> Node:
    return const(value, kind, SHAPE)


def pick(condition: Node, a: Node, b: Node) -> Node:
    return alu(Op.WHERE, condition, a, b)


def uops(value: Node) -> list[UOp]:
    """The loads and arithmetic instructions of a kernel that stores a value."""
    store = Store(buffer(Buffer(value.shape, value.dtype)), value)
    code = linearize(Kernel("k", value.shape, (store,), None), Target())
    return [u for u in code.uops if u.op in (U.LOAD, U.ALU)]


FOLDED: dict[str, tuple[Node, str]] = {
    "a load": (pick(UPPER, X, ZERO), AND_UPPER),
    "the other choice": (pick(UPPER, ZERO, X), NOT_UPPER),
    "a cast": (pick(UPPER, cast(H, f32), ZERO), AND_UPPER),
    "a view": (pick(UPPER, move(Op.STRIDE, X, (-1, 1)), ZERO), AND_UPPER),
    "a view of a cast": (pick(UPPER, move(Op.STRIDE, cast(H, f32), (-1, 1)), ZERO), AND_UPPER),
    "a padded view": (
        pick(UPPER, move(Op.PAD, move(Op.SHRINK, X, ((0, 5), (0, 5))), ((0, 0), (0, 2))), ZERO),
        "((c<5)&((i-c)<0))",
    ),
    "rows of a table": (pick(UPPER, ROWS, ZERO), AND_UPPER),
    "one selection in another": (
        pick(COLUMN < 3, pick(UPPER, X, ZERO), ZERO),
        "((c<3)&((i-c)<0))",
    ),
    "a moved condition": (pick(move(Op.STRIDE, UPPER, (1, -1)), X, ZERO), "((c+i)<6)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_selection_by_indices_masks_the_load(name: str) -> None:
    value, mask = FOLDED[name]
    instructions = uops(value)
    assert [str(u.arg[1]) for u in instructions if u.op is U.LOAD] == [mask]
    assert [u.arg for u in instructions if u.op is U.ALU] in ([], [Op.CAST])


@pytest.mark.parametrize(
    "value",
    [
        pick(ROW < DATA, X, ZERO),
        pick(UPPER, X, const(-0.0, f32, SHAPE)),
        pick(UPPER, X, const(1.0, f32, SHAPE)),
        pick(UPPER, X, Y),
        pick(UPPER, alu(Op.EXP2, X), ZERO),
        pick(UPPER, X * 2.0, ZERO),
        pick(cast(cast(ROW, f32) * 0.5, i32) < COLUMN, X, ZERO),
    ],
    ids=[
        "by data", "negative zero elsewhere", "one elsewhere", "a value elsewhere",
        "exp2(0) is 1", "what may be infinite", "by floats",
    ],
)  # fmt: skip
def test_selections_by_other_values_stay_where_operations(value: Node) -> None:
    instructions = uops(value)
    assert any(u.arg is Op.WHERE for u in instructions if u.op is U.ALU)
    assert all(str(u.arg[1]) == "1" for u in instructions if u.op is U.LOAD)


def test_selection_with_a_constant_condition_is_resolved() -> None:
    (load,) = uops(pick(ROW < 5, X, Y))
    assert load.arg[0].lo == 0
    (load,) = uops(pick(alu(Op.EQ, ROW, number(-1)), alu(Op.EXP2, X), Y))
    assert load.op is U.LOAD


I, C = Var("i", 0, SHAPE[0] - 1), Var("c", 0, SHAPE[1] - 1)  # noqa: E741


@pytest.mark.parametrize(
    "node",
    [
        DATA,
        ROW * COLUMN,
        alu(Op.DIV, ROW, COLUMN),
        alu(Op.MOD, ROW, number(-3)),
        ROW * (1 << 30),  # wraps
        cast(ROW * 64, i8),
        cast(ROW - 1, u32),
        cast(ROW, f32),
        move(Op.PAD, move(Op.SHRINK, ROW, ((0, 4), (0, 7))), ((0, 1), (0, 0))),
        alu(Op.HASH, cast(ROW, u32)),
    ],
    ids=str,
)
def test_values_beyond_index_arithmetic_have_no_expression(node: Node) -> None:
    assert index_value(node, (I, C)) is None


INTEGERS: list[Callable[[Node, Node], Node]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: -a,
    lambda a, b: alu(Op.DIV, a, number(3)),
    lambda a, b: alu(Op.MOD, a, number(4)),
    lambda a, b: alu(Op.XOR, a, b),
    lambda a, b: cast(cast(a, u8), i32),
    lambda a, b: move(Op.STRIDE, a, (-1, -1)),
    lambda a, b: cast(a < b, i32),
]
CONDITIONS: list[Callable[[Node, Node], Node]] = [
    lambda a, b: a < b,
    lambda a, b: alu(Op.EQ, a, b),
    lambda a, b: cast(a, bool_),
]
LOGIC = (Op.AND, Op.OR, Op.XOR)


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 99)), min_size=2),
    st.sampled_from(LOGIC),
    st.booleans(),
)
def test_index_expressions_equal_the_values_of_their_nodes(
    steps: list[tuple[int, int, int]], ends: list[tuple[int, int, int]], logic: Op, flipped: bool
) -> None:
    nodes = [ROW, COLUMN, number(2), number(-5)]
    for kind, a, b in steps:
        nodes.append(INTEGERS[kind](nodes[a % len(nodes)], nodes[b % len(nodes)]))
    last = len(nodes)
    conditions = [CONDITIONS[k](nodes[-1 - a % 2], nodes[b % last]) for k, a, b in ends[:2]]
    condition = alu(logic, *conditions)
    if flipped:
        condition = alu(Op.XOR, condition, number(1, bool_))
    expression = index_value(condition, (I, C))
    if expression is None:
        return
    row, column = np.indices(SHAPE)
    expected = evaluate([condition], {})[0]
    values = {"i": row, "c": column}
    assert np.array_equal(expression.evaluate(values) + 0 * row, expected)
    assert np.array_equal(negated(expression).evaluate(values) + 0 * row, ~expected)
    assert all_of(expression, negated(expression)).lo == 0


@pytest.mark.parametrize("mapping", FORMS)
def test_masked_values_equal_numpy_on_every_mapping(mapping: str) -> None:
    device = open_mapping(mapping)
    a = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    a[4, 0] = np.inf  # outside of every mask below
    half = a.astype(np.float16)
    x, h = Tensor(a, device), Tensor(half, device)
    row = Tensor.arange(5).reshape(5, 1)
    column = Tensor.arange(7).reshape(1, 7)
    upper = row < column
    outputs = {
        "load": Tensor.where(upper, x, 0),
        "cast": Tensor.where(upper, h.cast(f32), 0.0),
        "odd": Tensor.where((column % 2).eq(1), x, 0.0),
        "either": Tensor.where((column % 3).eq(1) | upper, 0.0, x[::-1]),
        "sum": Tensor.where(upper, x, 0.0).sum(1),
    }
    program = compile(lambda: outputs, device)
    program.run()
    i, c = np.indices(SHAPE)
    zero = np.float32(0)
    expected = {
        "load": np.where(i < c, a, zero),
        "cast": np.where(i < c, half, zero),
        "odd": np.where(c % 2 == 1, a, zero),
        "either": np.where((c % 3 == 1) | (i < c), zero, a[::-1]),
        "sum": np.where(i < c, a, zero).sum(1),
    }
    sums = expected.pop("sum")
    assert close(program.read("sum"), sums, np.where(i < c, np.abs(a), 0).sum(1), roundings=16)
    for name, value in expected.items():
        assert np.array_equal(program.read(name), value), name


@pytest.mark.parametrize("mapping", FORMS)
def test_indices_whose_simplified_form_overflows_an_int_are_right(mapping: str) -> None:
    device = open_mapping(mapping)
    row = Tensor.arange(10, device=device).reshape(10, 1)
    column = Tensor.arange(64, device=device)
    i, c = np.indices((10, 64))
    table = np.arange(10, dtype=np.float32)
    taken = Tensor(table, device).gather((column // 16 + row * 99_999_999) // 100_000_000)
    assert np.array_equal(taken.numpy(), table[(c // 16 + i * 99_999_999) // 100_000_000])
    ones = Tensor(np.ones((10, 64), np.float32), device)
    chosen = Tensor.where(column // 16 + row * 100_000_000 < 500_000_000, ones, 0.0)
    assert np.array_equal(chosen.numpy(), c // 16 + i * 100_000_000 < 500_000_000)


def test_values_whose_simplified_form_overflows_a_long_are_computed() -> None:
    x = COLUMN
    for _ in range(3):
        x = alu(Op.DIV, x + ROW * number(200_000_003), number(536_870_909))
    assert index_value(x, (I, C)) is None
