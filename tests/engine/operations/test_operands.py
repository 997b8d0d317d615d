"""Operands: their devices, Python numbers beside Tensors, and what errors say about wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping
from small_programs import pair, results

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, nn, open_device

BINARY_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": lambda x, y: x + y,
    "@": lambda x, y: x[0, 0] @ y[0, 0],
    "**": lambda x, y: x**y,
    "copysign": lambda x, y: x.copysign(y),
    "where": lambda x, y: Tensor.where(x > 0, y, 0.0),
    "gather": lambda x, y: x.gather(y[0, 0, 0, 0].cast(dtype.i32) - 1),
    "scatter_add": lambda x, y: x.scatter_add(0, y.cast(dtype.i32), y),
    "concat": lambda x, y: Tensor.concat([x, y]),
    "einsum": lambda x, y: Tensor.einsum("...ij,...jk", x, y),
    "conv2d": lambda x, y: x.conv2d(y),
    "conv_transpose2d": lambda x, y: x.conv_transpose2d(y),
}


@pytest.mark.parametrize("name", BINARY_OPERATIONS)
def test_result_is_on_the_device_of_either_operand(name: str) -> None:
    devices, array = [open_device("numpy") for _ in range(2)], np.ones((1, 1, 2, 2))
    nowhere, here, there = (Tensor(array, device) for device in (None, *devices))
    for operands in ((here, nowhere), (nowhere, here), (here, here)):
        assert BINARY_OPERATIONS[name](*operands).device is devices[0]
    with pytest.raises(ValueError, match="different devices"):
        BINARY_OPERATIONS[name](here, there)


def test_error_of_mixing_two_openings_of_a_device_says_so() -> None:
    x, y = (Tensor([1.0], open_device("numpy")) for _ in range(2))
    with pytest.raises(ValueError, match="another opening of it: call open_device once"):
        x + y
    with pytest.raises(ValueError, match="another opening of it: call open_device once"):
        compile(lambda: {"x": x * 2}, open_device("numpy"))


def test_python_numbers_adopt_the_dtype_of_the_tensor() -> None:
    half = Tensor(np.ones(2, np.float16))
    assert (half + 3).dtype is dtype.f16
    assert (Tensor([1]) + 0.5).dtype is dtype.f32
    assert (Tensor([1]) + 2).dtype is dtype.i32
    assert (Tensor([True]) + 1).dtype is dtype.i32


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x + Tensor(np.ones((3, 2))), ValueError, ["(2, 3)", "(3, 2)"]),
        (lambda x: x.reshape(7), ValueError, ["reshape", "(2, 3)", "7"]),
        (lambda x: x.permute(1, 0, 2), ValueError, ["permute", "(2, 3)"]),
        (lambda x: x @ Tensor(np.ones((2, 2))), ValueError, ["dot", "(2, 3)", "(2, 2)"]),
        (lambda x: x.sum(5), ValueError, ["axis 5"]),
        (lambda x: x[2], IndexError, ["2", "axis 0"]),
        (lambda x: x.gradient([x]), ValueError, ["single number", "(2, 3)"]),
        (lambda x: x.cast(dtype.i32).sum().gradient([x]), TypeError, ["float", "i32"]),
        (lambda x: x ^ x, TypeError, ["xor", "f32"]),
        (lambda x: x.gather(x), TypeError, ["gather", "f32"]),
        (lambda x: Tensor.concat([x, x.transpose()]), ValueError, ["concat", "axis 0"]),
        (lambda x: (x + 1).assign(x), ValueError, ["assign", "realize"]),
        (lambda x: x.leaky_relu(-1), ValueError, ["slope", "-1"]),
        (lambda x: x.sum(1.0), TypeError, ["sum", "axis 1.0"]),
        (lambda x: x.max("a"), TypeError, ["max", "axis 'a'"]),
        (lambda x: x.argmax((0, 1)), TypeError, ["argmax: axis (0, 1)"]),
        (lambda x: x.argmin((0, 1)), TypeError, ["argmin: axis (0, 1)"]),
        (lambda x: x.sum(True), TypeError, ["sum: axis True"]),
        (lambda x: x[0, 0].sum(False), TypeError, ["sum: axis False"]),
        (lambda x: x.cumsum(2), ValueError, ["cumsum: axis 2"]),
        (lambda x: x.cumprod(2), ValueError, ["cumprod: axis 2"]),
        (lambda x: x.cummax(2), ValueError, ["cummax: axis 2"]),
        (lambda x: x[0].tril(), ValueError, ["tril: axis -2"]),
        (lambda x: x[0].triu(), ValueError, ["triu: axis -2"]),
        (lambda x: x[1.0], TypeError, ["index 1.0", "lists, arrays and Tensors"]),
        (lambda x: bool(x[:0]), ValueError, ["shape (0, 3)", "no element"]),
        (bool, ValueError, ["shape (2, 3)", "several elements"]),
        (lambda x: x.softmax(2), ValueError, ["softmax", "axis 2"]),
        (lambda x: x.flatten(1, 0), ValueError, ["flatten", "axis 1"]),
        (lambda x: x.repeat(-1), ValueError, ["repeat", "-1"]),
        (lambda x: x.take([True, False]), TypeError, ["take", "bools"]),
        (lambda x: x.broadcast_to(3), TypeError, ["broadcast_to", "3"]),  # type: ignore[arg-type]
        (lambda x: x.take_along_axis([[3], [0]]), IndexError, ["3", "axis 1"]),
        (lambda x: x.take_along_axis([[-1], [0]]), IndexError, ["-1", "axis 1"]),
        (lambda x: nn.nll_loss(x, np.array([0, 3])), IndexError, ["3", "axis 1"]),
        (lambda x: Tensor.arange(math.inf), ValueError, ["arange", "inf"]),
        (lambda x: x.interpolate((2,)), ValueError, ["size", "(2,)"]),
        (lambda x: x[:0].interpolate(2), ValueError, ["interpolate", "(0, 3)"]),
        (lambda x: (x + 1).write(np.zeros((2, 3), np.float32)), ValueError, ["write", "realize"]),
    ],
)
def test_errors_name_the_operation_shapes_and_axes(
    act: Callable[[Tensor], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    "act",
    [
        lambda: pair() + 300, lambda: 300 - pair(), lambda: pair() * -1, lambda: pair() // 300,
        lambda: pair("i4") + 2**40, lambda: pair("i4") & 0xFFFFFFFF, lambda: pair() ^ -1,
        lambda: pair("u4").multiply_add(1 << 32, 1), lambda: pair().full_like(300),
        lambda: Tensor.full((2,), 300, dtype.u8), lambda: Tensor.full((2,), 1 << 31),
        lambda: Tensor.full((), math.nan, dtype.i32), lambda: Tensor.arange(300, dtype=dtype.u8),
        lambda: Tensor.arange(2**31, 2**31 + 3), lambda: Tensor.where(pair() > 2, pair(), 300),
        lambda: pair().assign(300), lambda: pair().scatter(0, np.array([0, 1]), 300),
    ],
)  # fmt: skip
def test_numbers_that_a_dtype_cannot_hold_are_refused(act: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        act()


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x[x > 0], TypeError, "mask"),
        (lambda x: x[x], TypeError, "gather"),
        (lambda x: x[[7]], IndexError, "index 7"),
        (lambda x: x[..., ...], IndexError, "more than one"),
        (lambda x: x.squeeze(0), ValueError, "squeeze"),
        (lambda x: x.split(4, 1), ValueError, "4 equal parts"),
        (lambda x: x.min(5), ValueError, "^min: axis 5"),
        (lambda x: x.std(5), ValueError, "^std: axis 5"),
        (lambda x: x[:0].min(0), ValueError, "^min: .* no elements"),
        (lambda x: x[:0].max(0), ValueError, "^max: .* no elements"),
        (lambda x: x[:0].argmin(), ValueError, "^argmin: .* no elements"),
        (lambda x: x[:0].argmax(0), ValueError, "^argmax: .* no elements"),
        (lambda x: x[0, 0].argmin(5), ValueError, "^argmin: axis 5"),
        (lambda x: nn.nll_loss(x, np.zeros(3, int)), ValueError, "^nll_loss: needs"),
        (lambda x: nn.cross_entropy(x, np.zeros(3, int)), ValueError, "^cross_entropy: needs"),
        (lambda x: x.topk(9), ValueError, "topk: 9 of 3"),
        (lambda x: Tensor.stack([x, x[0]]), ValueError, "stack"),
        (lambda x: x.conv2d(x), ValueError, r"\[batch, channels\]"),
        (
            lambda x: x.reshape(1, 1, 2, 3).conv_transpose2d(Tensor(np.ones((2, 1, 1, 1)))),
            ValueError,
            "fit",
        ),
        (lambda x: x.max_pool2d(5), ValueError, "do not fit"),
        (lambda x: x.interpolate((2, 2), "cubic"), ValueError, "cubic"),
        (lambda x: Tensor.einsum("ij,jk->ik", x), ValueError, "1 operands"),
        (lambda x: Tensor.einsum("ii->i", x), ValueError, "does not fit shape"),
        (lambda x: Tensor.arange(3, 5, 0), ValueError, "steps of 0"),
        (lambda x: x.scatter(0, [[0, 1]], [[1.0, 2.0]]), ValueError, "scatter"),
    ],
)
def test_errors_of_misuse_name_the_operation(
    act: Callable[[Tensor], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        act(Tensor(np.ones((2, 3))))


def test_operators_take_arrays_and_numbers_on_the_left(device: AnyDevice) -> None:
    a = np.array([[1.0, 2.0, 4.0], [-8.0, 0.5, 3.0]], np.float32)
    i = np.array([[1, 2, 3], [12, 7, 5]], np.int32)
    x, n = Tensor(a, device), Tensor(i, device)
    cases: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda x, n: a + x,
        "-": lambda x, n: a - x,
        "*": lambda x, n: np.float32(3) * x,
        "/": lambda x, n: a[0] / x,
        "//": lambda x, n: 100 // n,
        "%": lambda x, n: i[:1] % n,
        "&": lambda x, n: 6 & n,
        "|": lambda x, n: i | n,
        "^": lambda x, n: -1 ^ n,
        "<<": lambda x, n: 1 << n,
        ">>": lambda x, n: i[::-1] >> n,
        "<": lambda x, n: a[::-1] < x,
        ">": lambda x, n: i[0] > n,
        "@": lambda x, n: a[:, :2] @ x,
        "**": lambda x, n: 2.5**x,
    }
    tensors = {name: act(x, n) for name, act in cases.items()}
    assert all(isinstance(t, Tensor) for t in tensors.values())
    for name, value in results(tensors, device).items():
        expected = cases[name](a, i)
        assert value.shape == expected.shape, name
        assert np.allclose(value, expected, rtol=1e-6), name


def test_operations_take_arrays_in_place_of_tensors() -> None:
    device = open_mapping("numpy")
    a = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    x = Tensor(a, device)
    assert np.array_equal(Tensor.where(a > 1.5, x, 0), np.where(a > 1.5, a, 0))
    assert np.array_equal(Tensor.where(True, x, 0), a)
    assert np.array_equal(Tensor.concat([x, a[:1], x]), np.concatenate([a, a[:1], a]))
    assert np.array_equal(x.gather(np.array([1, 0, 1])), a[[1, 0, 1]])
    assert np.array_equal(x.gather(1), a[1])
    assert np.array_equal(x.sum(np.int64(1)), [3, 7])
    assert np.array_equal(x.assign(a[1]), a[[1, 1]])
    assert np.array_equal(x.assign(7), np.full((2, 2), 7))
