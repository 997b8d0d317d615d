"""Elementwise operations: integer arithmetic that wraps, dtypes that are kept, and rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import roundings
from reference import close
from small_programs import pair

from imgmlp.engine import AnyDevice, Tensor, compile, dtype


def test_integer_and_bitwise_operations_equal_numpys(device: AnyDevice) -> None:
    a = np.array([-7, -1, 0, 5, 6, 123456, -(2**31)], np.int32)
    b = np.array([3, 3, -2, -2, 7, 1000, 7], np.int32)
    u = np.array([0, 1, 2**31, 2**32 - 1, 77, 5, 6], np.uint32)
    x, y, z = Tensor(a, device), Tensor(b, device), Tensor(u, device)

    def step() -> dict[str, Tensor]:
        return {
            "//": x // y, "%": x % y, "^": x ^ y, "&": x & y, "|": x | y, "<": x < y, ">=": x >= y,
            "not": x ^ -1, "min": x.minimum(y), "max": x.maximum(y), "eq": x.eq(5),
            "wrap": z * 3 + 5, ">>": z >> 3, "<<": z << 3, "u%": z % 10, "f": z.cast(dtype.f32),
            "u8": (x % 256).cast(dtype.u8),
        }  # fmt: skip

    program = compile(step, device)
    program.run()
    with np.errstate(over="ignore"):
        expected = {
            "//": a // b, "%": a % b, "^": a ^ b, "&": a & b, "|": a | b, "<": a < b, ">=": a >= b,
            "not": ~a, "min": np.minimum(a, b), "max": np.maximum(a, b), "eq": a == 5,
            "wrap": u * np.uint32(3) + np.uint32(5), ">>": u >> 3, "<<": u << 3, "u%": u % 10,
            "f": u.astype(np.float32), "u8": (a % 256).astype(np.uint8),
        }  # fmt: skip
    for name, value in expected.items():
        assert np.array_equal(program.read(name), value), name


def test_8_bit_integers_wrap_and_float16_reductions_are_exact(device: AnyDevice) -> None:
    x = Tensor(np.array([0, 7, 250], np.uint8), device)
    half = Tensor(np.array([[0.5, 1.5], [2.0, -1.0]], np.float16), device)
    program = compile(
        lambda: {
            "+": x + 200 + 100,
            "min": x.minimum(9),
            "not": ~x,
            "sum": half.sum(1),
            "max": half.max(0),
            "relu": Tensor([np.nan, -1.0], device).relu(),
            "c": Tensor([0.0], device) + (1 + 2**-24),
        },
        device,
    )
    program.run()
    assert program.read("+").tolist() == [44, 51, 38]
    assert program.read("min").tolist() == [0, 7, 9]
    assert program.read("not").tolist() == [255, 248, 5]
    assert program.read("sum").tolist() == [2, 1]
    assert program.read("max").tolist() == [2, 1.5]
    assert np.array_equal(program.read("relu"), [np.nan, 0], equal_nan=True)
    assert program.read("c") == 1.0  # a constant is rounded to float32 once, to even


def test_difference_of_equal_products_is_zero(device: AnyDevice) -> None:
    """Neither product may be fused with the subtraction, which would leave the other's rounding."""
    values = np.float32([0.1, 0.3, 1 / 3, 2.7] * 4)
    a, b, c = (Tensor(v.copy(), device) for v in (values, values[::-1], values))
    program = compile(lambda: {"y": a * b - b * a, "roots": (a * a - c * c).sqrt()}, device)
    program.run()
    assert not program.read("y").any()
    assert not program.read("roots").any()


def test_floor_division_and_remainder_equal_numpys(device: AnyDevice) -> None:
    """Quotients are also large, infinite or near an integer; an integer divided by 0 gives 0."""
    inf = np.inf
    pairs = [(1e8, 3), (1e10, 3), (16777215, 0.1), (1, 0.1), (5.3, inf), (-5.3, inf), (5.3, -inf),
             (60000, 0.001), (-1, 0.1), (7, -2), (1, 0), (-1, 0), (0, 0), (inf, 3)]  # fmt: skip
    pairs += [(float(a), float(b)) for a, b in np.random.default_rng(0).normal(size=(50, 2)) ** 5]
    outputs, expected = {}, {}
    for kind in ("f4", "f2", "i1", "u1", "i4", "u4"):
        a, b = (np.array(v) for v in zip(*pairs, strict=True))
        if kind[0] != "f":
            a, b = (np.nan_to_num(v, posinf=99, neginf=-99) % 120 // 1 - 20 * (kind[0] == "i")
                    for v in (a, b))  # fmt: skip
        with np.errstate(all="ignore"):
            a, b = a.astype(kind), b.astype(kind)
            b[:3] = 0 if kind[0] != "f" else b[:3]
            x, y = Tensor(a, device), Tensor(b, device)
            outputs |= {f"{kind} //": x // y, f"{kind} %": x % y}
            expected |= {f"{kind} //": a // b, f"{kind} %": a % b}
    program = compile(lambda: outputs, device)
    program.run()
    for name, array in expected.items():
        kind, units = array.dtype.kind, roundings(device) if name == "f4 //" else 0
        outputs = program.read(name)
        assert outputs.shape == array.shape
        assert np.allclose(outputs, array, units * 2.0**-23, 0, equal_nan=kind == "f"), name


def test_powers_and_isclose_take_integers_beyond_the_dtype() -> None:
    results = [
        pair() ** -2,
        pair() ** 300,
        pair("i1") ** 100,
        pair().isclose(300),
    ]
    expected = [[1 / 4, 1 / 9], [math.inf, math.inf], [2.0**100, math.inf], [False, False]]
    for t, value in zip(results, expected, strict=True):
        assert close(t.numpy(), np.array(value), 200)
    assert (~pair()).numpy().tolist() == [253, 252]
    assert Tensor.arange(2**31, 2**31 + 2, dtype=dtype.u32)[1:].cast(dtype.i32).shape == (1,)
    assert Tensor.arange(np.int64(5)).dtype is dtype.i32


def test_operations_keep_8_bit_and_float16_dtypes(device: AnyDevice) -> None:
    a = np.array([[3, 0, 200], [7, 7, 1]], np.uint8)
    x, h = Tensor(a, device), Tensor(a.astype(np.float16), device)
    outputs = {
        "sort": x.sort(), "cumsum": x.cumsum(1), "prod": x.prod(1), "clip": x.clip(2, 100),
        "floor": x.floor(), "cummax": x.cummax(1), "take": x.take_along_axis(x.argsort()),
        "power": x**3, "scatter": x.scatter(1, np.array([[1], [2]]), np.array([[9], [8]])),
    }  # fmt: skip
    expected = {
        "sort": np.sort(a), "cumsum": a.cumsum(1, np.uint8), "prod": a.prod(1, np.uint8),
        "clip": a.clip(2, 100), "floor": a, "cummax": np.maximum.accumulate(a, 1),
        "take": np.sort(a), "power": a**3, "scatter": np.uint8([[3, 9, 200], [7, 7, 8]]),
    }  # fmt: skip
    halves = {"erf": h.erf(), "log1p": h.log1p(), "silu": h.silu(), "root": h**0.25}
    program = compile(lambda: outputs | halves, device)
    program.run()
    for name, value in expected.items():
        assert program.read(name).dtype == value.dtype, name
        assert np.array_equal(program.read(name), value), name
    assert all(program.read(name).dtype == np.float16 for name in halves)


def test_float16_powers_are_rounded_once(device: AnyDevice) -> None:
    h = np.float16([0.9, 0.99, 1.01, 11])
    x = Tensor(h, device)
    program = compile(lambda: {"power": x**64, "to the power": 2.5**x}, device)
    program.run()
    wide = h.astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(program.read("power"), (wide**64).astype(np.float16))
    np.testing.assert_allclose(program.read("to the power"), 2.5**wide, rtol=2**-11 * 1.01)


INT32_MAX = 2**31 - 1


INT32_EDGES = [2**31 - 1, -(2**31), 2**30, -(2**30) - 1, 46_341, 5, -7, 0]


# Functions of an int32 Tensor, and of an int64 array with `wrapped`, which reduces modulo 2^32.
# A compiler that assumes that signed integers do not overflow would simplify them.
OVERFLOWING_EXPRESSIONS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "more than before": lambda x, wrapped: wrapped(x + 1) > x,
    "less than before": lambda x, wrapped: wrapped(x - 1) < x,
    "doubled and halved": lambda x, wrapped: wrapped(x * 2) // 2,
    "times three over three": lambda x, wrapped: wrapped(x * 3) // 3,
    "times three modulo three": lambda x, wrapped: wrapped(x * 3) % 3,
    "squares below zero": lambda x, wrapped: wrapped(x * x) < 0,
    "negative": lambda x, wrapped: wrapped(-x) < 0,
    "a product and a sum": lambda x, wrapped: wrapped(wrapped(x * 7) + x) > x,
    "a sum of rows": lambda x, wrapped: wrapped(x.sum(0)) < 0,
    "a sum of columns": lambda x, wrapped: wrapped(x.sum(1)) < 0,
    "two that are not negative": lambda x, wrapped: wrapped((x & INT32_MAX)[:, 0:3:2].sum(1)) < 0,
    "all of them": lambda x, wrapped: wrapped((x & INT32_MAX).sum(1)) < 0,
}


def wrapped(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)


@pytest.mark.parametrize("repeats", [1, 40])
@pytest.mark.parametrize("case", OVERFLOWING_EXPRESSIONS)
def test_signed_integer_overflow_wraps_despite_compiler_assumptions(
    device: AnyDevice, case: str, repeats: int
) -> None:
    values = np.array([INT32_EDGES, INT32_EDGES[::-1], np.roll(INT32_EDGES, 3)] * repeats, np.int32)
    actual = OVERFLOWING_EXPRESSIONS[case](Tensor(values, device), lambda x: x).numpy()
    np.testing.assert_array_equal(
        actual, OVERFLOWING_EXPRESSIONS[case](values.astype(np.int64), wrapped)
    )


def test_arange_plus_a_constant_wraps(device: AnyDevice) -> None:
    is_negative = (Tensor.arange(10, device=device) + (2**31 - 5)) < 0
    assert is_negative.numpy().tolist() == [False] * 5 + [True] * 5


def test_absolute_value_of_the_least_integer_is_itself(device: AnyDevice) -> None:
    assert (Tensor(np.array(INT32_EDGES, np.int32), device).abs() < 0).numpy().sum() == 1
