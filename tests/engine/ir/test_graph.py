"""Nodes: equal expressions are one object, builders infer and check, and listings."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import bool_, f16, f32, i32, u32
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
    gather,
    iota,
    move,
    reduce,
    substitute,
    toposort,
)
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.printer import render_dot, render_nodes, render_tree


@pytest.fixture
def x() -> Node:
    return buffer(Buffer((2, 3), f32, name="x"))


def test_equal_expressions_are_one_node(x: Node) -> None:
    assert alu(Op.SIN, x * 2.0) is alu(Op.SIN, x * 2.0)
    assert x + 1.0 is not x + 2.0
    assert reduce(Op.SUM, x, (-1,)) is reduce(Op.SUM, x, (1,))
    assert buffer(Buffer((2, 3), f32)) is not buffer(Buffer((2, 3), f32))


def test_constants_differ_in_sign_of_zero_dtype_and_shape() -> None:
    values = [
        const(0.0, f32),
        const(-0.0, f32),
        const(0, i32),
        const(False, bool_),
        const(0.0, f32, (1,)),
        const(float("nan"), f32),
    ]
    assert len(set(values)) == len(values)
    assert const(1, f32) is const(1.0, f32)
    assert const(float("nan"), f32) is const(float("nan"), f32)


def test_unused_nodes_are_garbage_collected(x: Node) -> None:
    before = len(graph._interned)
    node = alu(Op.SIN, x * 123.0)
    assert len(graph._interned) > before
    del node
    gc.collect()
    assert len(graph._interned) <= before


def test_nodes_are_immutable(x: Node) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        x.shape = (6,)


def test_builders_infer_shapes_and_dtypes(x: Node) -> None:
    y = buffer(Buffer((3, 5), f32))
    index = buffer(Buffer((4, 1), u32))
    assert (x < 0.5).dtype is bool_
    assert alu(Op.WHERE, x < 0.5, x, x).dtype is f32
    assert cast(x, f16).dtype is f16
    assert iota(7).shape == (7,)
    assert dot(x, y).shape == (2, 5)
    assert gather(x, index).shape == (4, 1, 3)
    assert concat([x, x, x], -1).shape == (2, 9)
    assert reduce(Op.REDUCE_MAX, x, (0, 1)).shape == ()
    assert move(Op.RESHAPE, x, (-1,)).shape == (6,)
    assert move(Op.PAD, x, ((1, 0), (0, 2))).shape == (3, 5)
    assert move(Op.STRIDE, x, (1, -2)).shape == (2, 2)


def test_operations_without_effect_make_no_node(x: Node) -> None:
    assert cast(x, f32) is x
    assert reduce(Op.SUM, x, ()) is x
    assert move(Op.RESHAPE, x, (2, 3)) is x
    assert move(Op.EXPAND, x, (2, 3)) is x
    assert move(Op.PERMUTE, x, (0, 1)) is x
    assert move(Op.RESHAPE, move(Op.RESHAPE, x, (6,)), (3, 2)) is move(Op.RESHAPE, x, (3, 2))
    assert concat([x], 0) is x
    assert contiguous(x) is x
    assert contiguous(contiguous(x + 1.0)) is contiguous(x + 1.0)


def test_toposort_puts_sources_before_their_users(x: Node) -> None:
    left = x * 2.0
    root = alu(Op.MAX, alu(Op.SIN, left), left + x)
    order = toposort([root])
    assert len(order) == len(set(order)) == 6
    for node in order:
        assert all(order.index(s) < order.index(node) for s in node.src)


def test_deep_graphs_need_no_recursion(x: Node) -> None:
    node = x
    for _ in range(20_000):
        node = alu(Op.SIN, node)
    assert len(toposort([node])) == 20_001
    assert substitute([node], {x: x * 2.0})[0].shape == (2, 3)


def test_toposort_keeps_the_order_of_creation(x: Node) -> None:
    second, first = alu(Op.SIN, x), alu(Op.COS, x)
    assert toposort([first + second])[1:3] == [second, first]


def test_toposort_ignores_nodes_of_other_graphs() -> None:
    def graph() -> list[str]:
        x = buffer(Buffer((), f32))
        low = alu(Op.SIN, x * 7.25) + alu(Op.SIN, const(7.5, f32)) * 7.75
        every = toposort([low, alu(Op.COS, const(8.5, f32))])
        return [f"{n.op.name} {n.arg if n.op is Op.CONST else ''}" for n in every]

    expected = graph()
    constants = [text for text in expected if "CONST" in text]
    assert constants == ["CONST 7.25", "CONST 7.5", "CONST 7.75", "CONST 8.5"]
    held = [alu(op, const(n, f32)) for n in (8.5, 7.75, 7.5, 7.25) for op in (Op.COS, Op.SIN)]
    assert graph() == expected
    assert len(held) == 8


def test_substitution_replaces_everywhere_and_keeps_the_rest(x: Node) -> None:
    y = buffer(Buffer((2, 3), f32))
    untouched = alu(Op.SIN, y)
    (replaced,) = substitute([(x + untouched) * x], {x: y})
    assert replaced is (y + untouched) * y
    assert substitute([untouched], {x: y})[0] is untouched


def test_listing_ignores_constants_of_other_graphs() -> None:
    def listing(number: float) -> str:
        x = buffer(Buffer((2, 3), f32))
        return render_nodes([alu(Op.SIN, x) * number]).replace(str(number), "number")

    held = const(7.25, f32, (2, 3))  # older than the graph that reuses it
    assert listing(7.25) == listing(3.75)
    assert held.op is Op.CONST


def test_listings_number_every_node_and_name_its_sources(x: Node) -> None:
    text = render_nodes([reduce(Op.SUM, x * 2.0, (1,))])
    lines = [line.split() for line in text.splitlines()]
    assert lines == [
        ["0", "BUFFER", "x", "()", "f32[2,", "3]"],
        ["1", "CONST", "2.0", "()", "f32[2,", "3]"],
        ["2", "MUL", "(0,", "1)", "f32[2,", "3]"],
        ["3", "SUM", "(1,)", "(2)", "f32[2]"],
    ]
    drawn = render_dot([reduce(Op.SUM, x * 2.0, (1,))])
    assert drawn.startswith("digraph")
    assert drawn.count("->") == 3
    assert all(arrow in drawn for arrow in ("n0 -> n2;", "n1 -> n2;", "n2 -> n3;"))


def test_tree_shows_sources_below_their_users_once(x: Node) -> None:
    squares = (x + 1.0) * (x + 1.0)
    assert render_tree([squares, reduce(Op.SUM, squares, (1,))]).splitlines() == [
        "3 MUL f32[2, 3]",
        "  2 ADD f32[2, 3]",
        "    0 BUFFER x f32[2, 3]",
        "    1 CONST 1.0 f32[2, 3]",
        "  2 Intermediate",
        "4 SUM (1,) f32[2]",
        "  3 Intermediate",
    ]


def integers() -> Node:
    return buffer(Buffer((2, 3), i32))


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: alu(Op.ADD, x, const(1, f32)), ValueError, ["add", "(2, 3)", "()"]),
        (lambda x: alu(Op.MUL, x, integers()), TypeError, ["mul", "f32", "i32"]),
        (lambda x: alu(Op.WHERE, x, x, x), TypeError, ["where", "bool", "f32"]),
        (lambda x: alu(Op.SQRT, integers()), TypeError, ["sqrt", "i32"]),
        (lambda x: alu(Op.SHR, x, x), TypeError, ["shr", "f32"]),
        (lambda x: alu(Op.MOD, x, x), TypeError, ["mod", "f32"]),
        (lambda x: alu(Op.HASH, integers()), TypeError, ["hash", "u32", "i32"]),
        (lambda x: alu(Op.ADD, x < x, x < x), TypeError, ["add", "bool"]),
        (lambda x: reduce(Op.SUM, x < x, (0,)), TypeError, ["sum", "bool"]),
        (lambda x: reduce(Op.SUM, x, (2,)), ValueError, ["sum", "axis 2"]),
        (lambda x: dot(x, x), ValueError, ["dot", "(2, 3)"]),
        (lambda x: dot(x, const(1, f32, (1, 3, 2))), ValueError, ["dot", "(1, 3, 2)"]),
        (lambda x: dot(cast(x, f16), const(1, f16, (3, 2))), TypeError, ["dot", "f16"]),
        (lambda x: gather(x, x), TypeError, ["gather", "f32"]),
        (lambda x: gather(const(1, f32), iota(2)), ValueError, ["gather", "axis"]),
        (lambda x: concat([x, const(1, f32, (3, 2))], 0), ValueError, ["concat", "[3, 2]"]),
        (lambda x: concat([x, integers()], 0), ValueError, ["concat", "i32"]),
        (lambda x: concat([x, x], 2), ValueError, ["concat", "axis 2"]),
        (lambda x: move(Op.RESHAPE, x, (4, 2)), ValueError, ["reshape", "(2, 3)", "(4, 2)"]),
        (lambda x: move(Op.EXPAND, x, (4, 3)), ValueError, ["expand", "(2, 3)", "(4, 3)"]),
        (lambda x: move(Op.SHRINK, x, ((0, 3), (0, 3))), ValueError, ["shrink", "(2, 3)"]),
        (lambda x: move(Op.PAD, x, ((-1, 0), (0, 0))), ValueError, ["pad", "negative"]),
        (lambda x: move(Op.STRIDE, x, (0, 1)), ValueError, ["stride", "zero"]),
        (lambda x: move(Op.PERMUTE, x, (0, 0)), ValueError, ["permute", "(0, 0)"]),
    ],
)
def test_errors_of_builders_name_the_operation(
    x: Node, act: Callable[[Node], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(x)
    for word in words:
        assert word in str(raised.value)


def test_buffer_has_a_size_and_a_description() -> None:
    storage = Buffer((3, 5), f16, host=np.zeros((3, 5), np.float16), name="table")
    assert (storage.size, storage.nbytes) == (15, 30)
    assert repr(storage) == "table f16[3, 5]"
