"""Tensors as Python objects: identity, conversion, assignment, and what misuse is told.

test_values_and_gradients.py compares the operations with NumPy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import (
    AnyDevice,
    Pages,
    Tensor,
    assign_all,
    check_device,
    compile,
    dtype,
    memory_needed,
    open_device,
    optim,
)

Array = np.ndarray[Any, Any]
NUMPY = open_device("numpy")


def test_tensor_equals_no_other_type_and_is_hashed_by_identity() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
    assert (x == None, x != "x") == (False, True)  # noqa: E711
    assert {x: 1, y: 2}[y] == 2
    x.requires_grad = y.requires_grad = True
    y.requires_grad = False
    assert (x.requires_grad, y.requires_grad) == (True, False)


def test_tensor_of_one_element_converts_to_bool_and_number() -> None:
    one = Tensor([[2.5]], open_mapping("numpy"))
    assert one
    assert not one - 2.5
    assert one.item() == 2.5
    with pytest.raises(TypeError, match="Tensor"):
        np.sqrt(one)
    rows = Tensor([[1, 2], [3, 4]], one.device)
    assert len(rows) == 2
    assert [row.numpy().tolist() for row in rows] == [[1, 2], [3, 4]]
    assert np.asarray(rows, np.float16).dtype == np.float16
    assert np.array_equal(rows, [[1, 2], [3, 4]])


def test_python_condition_on_a_tensor_in_a_step_is_refused() -> None:
    x = Tensor([1.0], open_mapping("numpy"))

    def step() -> dict[str, Tensor]:
        return {"y": x if x > 0 else -x}

    with pytest.raises(TypeError, match="where"):
        compile(step, open_mapping("numpy"))


def test_augmented_assignment_makes_an_expression_and_assign_is_in_place() -> None:
    x = held = Tensor(np.zeros(3), open_mapping("numpy"))
    x += 1
    assert (x.numpy() == 1).all()
    assert (held.numpy() == 0).all()
    same = held
    held.assign(held + 2)
    assert (same.numpy() == 2).all()


def test_error_of_writing_a_wrong_array_suggests_the_conversion() -> None:
    w = Tensor(np.zeros((2, 3)), open_mapping("numpy"))
    given = np.ones(6, np.float16)
    for remedy in (r"use .astype\(np.float32\).reshape\(2, 3\) ", r"use .reshape\(2, 3\) "):
        with pytest.raises(ValueError, match=rf"f32\[2, 3\] cannot take float\d+\[6\]; {remedy}"):
            w.write(given)
        given = given.astype(np.float64)
    w.write(given.reshape(2, 3))
    with pytest.raises(ValueError, match=r"cannot take float32\[7\] "):
        w.write(np.zeros(7, np.float32))


def test_write_narrows_64_bit_arrays_as_the_constructor_does() -> None:
    w, n = Tensor(np.zeros(2), NUMPY), Tensor([0, 0], NUMPY)
    assert w.write(np.array([0.1, 1e300])).numpy().tolist() == [np.float32(0.1), np.inf]
    assert n.write(np.array([3, -4])).numpy().tolist() == [3, -4]
    with pytest.raises(ValueError, match="i32 cannot hold 2147483648"):
        n.write(np.array([0, 2**31]))
    for wrong, state in ((np.zeros(2), n), (np.zeros(2, int), w), (np.zeros(3), w)):
        with pytest.raises(ValueError, match="cannot take"):
            state.write(wrong)
    Tensor(np.zeros((0, 2)), NUMPY).write(np.zeros((0, 2)))


def test_expression_is_computed_from_the_state_at_evaluation() -> None:
    w = Tensor(np.ones(3), open_mapping("numpy"))
    loss, kept = w.square().sum(), w.square().sum().realize()
    assert loss.item() == 3
    w.assign(w * 2)
    assert (loss.item(), kept.item()) == (12, 3)


def test_copied_tensor_sees_later_assignments() -> None:
    w = Tensor(np.ones(3), NUMPY)
    seen = copy.copy(w)
    w.assign(w * 2)
    assert seen.numpy().tolist() == [2, 2, 2]


def test_strides_and_flat_index_are_those_of_row_major_order() -> None:
    x = Tensor(np.zeros((3, 5, 7)))
    assert x.strides == (35, 7, 1)
    assert x.flat_index(2, 3, 4) == 2 * 35 + 3 * 7 + 4
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1"):
        x.flat_index(0, 5, 0)
    with pytest.raises(IndexError, match="2 indices"):
        x.flat_index(0, 1)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x + Tensor(np.ones((3, 2))), ValueError, ["add", "(2, 3)", "(3, 2)"]),
        (lambda x: x.minimum(Tensor([1, 2])), ValueError, ["minimum", "(2, 3)", "(2,)"]),
        (lambda x: Tensor.where(Tensor([True, False]), x, 0), ValueError, ["where", "(2,)"]),
        (lambda x: x[0].reshape(3, 1, 1) @ x[:, 0].reshape(2, 1, 1), ValueError, ["dot", "(3,)"]),
        (lambda x: x.transpose(0, 2), ValueError, ["transpose", "axis 2"]),
        (lambda x: x // "2", TypeError, ["//", "str"]),
        (lambda x: (x > 0) % (x > 1), TypeError, ["mod", "bool"]),
        (lambda x: Tensor.concat([]), ValueError, ["concat"]),
        (lambda x: Tensor.concat(x, x), TypeError, ["concat: takes a list", "not Tensor"]),
        (lambda x: Tensor.stack(x, x), TypeError, ["stack: takes a list", "not Tensor"]),
        (lambda x: Tensor([1.0], "cpu"), TypeError, ["Tensor", "open_device()", "'cpu'"]),
        (lambda x: Tensor([1.0], dtype.f16), TypeError, ["Tensor", "open_device()", "f16"]),
        (lambda x: Tensor.zeros(2, device="cpu"), TypeError, ["open_device()", "'cpu'"]),
        (lambda x: compile(lambda: {"a": x}, "cpu"), TypeError, ["compile", "'cpu'"]),
        (lambda x: copy.deepcopy([x]), TypeError, ["copied deeply", "numpy()", "test_tensor.py"]),
        (lambda x: x.__reduce_ex__(4), TypeError, ["pickled", "numpy()"]),
        (lambda x: Tensor([2**31]), ValueError, ["i32", "2147483648"]),
        (lambda x: Tensor([1, -1], dtype=dtype.u8), ValueError, ["u8", "-1"]),
        (lambda x: Tensor(np.ones(2, np.complex64)), TypeError, ["complex64"]),
        (lambda x: Tensor([1j], dtype=dtype.f32), TypeError, ["complex128", ".real"]),
        (lambda x: Tensor(2**63), ValueError, ["i32 cannot hold", str(2**63)]),
        (lambda x: Tensor([2**70]), ValueError, ["i32 cannot hold", str(2**70)]),
        (lambda x: Tensor(np.array([2**70])), TypeError, ["object"]),
        (lambda x: Tensor(np.array([1], np.uint64)), TypeError, ["uint64", "astype"]),
        (lambda x: x.split(2.0), TypeError, ["split", "not 2.0"]),
        (lambda x: x.split("a"), TypeError, ["split", "not 'a'"]),
        (lambda x: round(x, 2), TypeError, ["round", "2 digits"]),
        (lambda x: assign_all([(3, x)]), TypeError, ["assign_all", "int"]),
        (lambda x: Pages("x"), TypeError, ["Pages", "str"]),
        (lambda x: check_device("cpu"), TypeError, ["check_device", "'cpu'"]),
        (lambda x: memory_needed(x.device, list), TypeError, ["memory_needed", "list"]),
        (lambda x: Tensor([1, None], dtype=dtype.f32), TypeError, ["object", "no numbers"]),
        (lambda x: Tensor("3", dtype=dtype.i32), TypeError, ["<U1", "no numbers"]),
        (lambda x: Tensor(np.array(["NaT"], "M8[s]"), dtype=dtype.i32), TypeError, ["datetime64"]),
        (lambda x: x == [1, 2], TypeError, ["eq", "arrays and numbers", "not list"]),
        (lambda x: x != (1, 2), TypeError, ["eq", "arrays and numbers", "not tuple"]),
        (lambda x: x.pad((1, 2, 3), (1, 1)), ValueError, ["pad", "(1, 2, 3)", "pair"]),
        (lambda x: x.shrink((0, 1), (1,)), ValueError, ["shrink", "(1,)", "pair"]),
        (lambda x: x[[[0], [0, 1]]], ValueError, ["index", "inhomogeneous", "test_tensor.py"]),
        (lambda x: x.take([[0], [0, 1]]), ValueError, ["index", "inhomogeneous", "test_tensor"]),
        (lambda x: np.asarray(x, copy=False), ValueError, ["copy=False", "test_tensor.py"]),
        (lambda x: Tensor.empty(2, dtype=np.float32), TypeError, ["empty", "float32", "f32"]),
        (lambda x: Tensor.normal((2,), 1, variance=-1), ValueError, ["normal", "variance", "-1"]),
        (lambda x: Tensor.normal((2,), 1, 0, math.nan), ValueError, ["normal", "variance", "nan"]),
        (lambda x: Tensor([1.5, np.nan], dtype=dtype.i32), ValueError, ["i32", "nan"]),
        (lambda x: Tensor([-1.5, 3.0], dtype=dtype.u8), ValueError, ["u8", "-1.5"]),
        (lambda x: x.sum().gradient(x), TypeError, ["gradient", "list", "not Tensor"]),
        (lambda x: x.sum().gradient([x.numpy]), TypeError, ["gradient", "list", "not method"]),
        (lambda x: optim.SGD(x, 0.1), TypeError, ["SGD", "list", "not Tensor"]),
        (lambda x: optim.AdamW([x], form="seeds"), ValueError, ["AdamW", "seeds", "standard"]),
        (lambda x: Tensor.zeros(2, dtype=np.float32), TypeError, ["zeros", "float32", "f32"]),
        (lambda x: Tensor.ones(2, dtype=np.float32), TypeError, ["ones", "float32", "f32"]),
        (lambda x: Tensor.arange(2, dtype=np.float32), TypeError, ["arange", "float32", "f32"]),
        (lambda x: Tensor.uniform((2,), 1.5), TypeError, ["seed", "1.5"]),
        (lambda x: x.write(np.ones((2, 3), np.float32)), ValueError, ["device"]),
        (lambda x: x.cast(dtype.i32) << 32, ValueError, ["shl", "i32", "32"]),
        (lambda x: x.cast(dtype.u8) >> -1, ValueError, ["shr", "u8", "-1"]),
        (lambda x: x.cast(dtype.i32) << np.int64(40), ValueError, ["shl", "i32", "40"]),
        (lambda x: x << 40, TypeError, ["shl", "integers", "f32"]),
        (lambda x: x.pad(1, 2), TypeError, ["pad", "(1, 2)"]),
        (lambda x: compile(lambda: {"a": 1.0}, NUMPY), TypeError, ["compile", "'a'", "float"]),
        (lambda x: compile(lambda: {"a": x}, NUMPY).read("b"), ValueError, ["'b'", "has a"]),
        (lambda x: compile(3, NUMPY), TypeError, ["compile", "function", "not 3"]),
        (
            lambda x: compile(lambda: {"a": x}, NUMPY).stages.show("xyz"),
            ValueError,
            ["show", "'xyz'", "nodes, tree"],
        ),
        (lambda x: Tensor.zeros(2.5), TypeError, ["zeros", "(2.5,)", "whole numbers"]),
        (lambda x: Tensor.full(3, 1), TypeError, ["full", "sizes 3", "tuple"]),
        (lambda x: x.reshape("ab"), TypeError, ["reshape", "'ab'", "whole numbers"]),
        (lambda x: compile(lambda: {"a": x}, NUMPY).run(-1), ValueError, ["run", "-1"]),
        (lambda x: x.numpy(), ValueError, ["device"]),
        (lambda x: x[Tensor([1.0])], TypeError, ["f32", "gather"]),
    ],
)
def test_errors_of_tensor_misuse_name_the_operation(
    act: Callable[[Tensor], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in words:
        assert word in str(raised.value)


def test_lists_and_numpy_scalars_are_taken_as_arguments(device: AnyDevice) -> None:
    """Lists are taken for pairs and values, NumPy scalars for numbers."""
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device)
    assert x.pad([1, 1], [0, 2]).shape == (4, 5)  # type: ignore[arg-type]
    assert x.shrink([0, 1], [1, 3]).numpy().tolist() == [[1, 2]]  # type: ignore[arg-type]
    assert ((x > 2) << 10).numpy().max() == 1024
    assert [part.shape for part in x.split(np.int64(3), 1)] == [(2, 1)] * 3  # type: ignore[arg-type]
    drawn = (Tensor.uniform((3,), seed, device).numpy() for seed in (5, np.int32(5)))  # type: ignore[arg-type]
    assert np.array_equal(*drawn)
    with pytest.raises(ValueError, match="cannot take"):
        x.write([1.0, 2.0])  # type: ignore[arg-type]


def test_write_while_a_step_is_built_is_refused() -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    with pytest.raises(TypeError, match=r"write: .*assigns.*Feeder.*test_tensor\.py"):
        compile(lambda: {"y": x.write([3.0, 4.0])}, open_device("numpy"))  # type: ignore[arg-type]
    assert x.numpy().tolist() == [1.0, 2.0]
