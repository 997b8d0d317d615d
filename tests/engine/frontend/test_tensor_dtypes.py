"""Dtypes of Tensors: what two become together, casts, and how each wraps, rounds and counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import close
from small_programs import draw, results

from imgmlp.engine import AnyDevice, Tensor, dtype

Array = np.ndarray[Any, Any]


STORED = (dtype.bool_, dtype.i8, dtype.u8, dtype.i32, dtype.u32, dtype.f16, dtype.f32)


def test_two_dtypes_meet_in_the_one_that_holds_both(device: AnyDevice) -> None:
    """Every pair, on values that all dtypes have; i32 and u32 meet in u32."""
    numbers = np.array([1, 0, 1, 1])
    tensors = {d.name: Tensor(numbers, device, d) for d in STORED}
    pairs = {
        f"{a.name} {b.name}": tensors[a.name] * tensors[b.name]
        for a, b in itertools.product(STORED, STORED)
    }
    found = results(pairs, device)
    for a, b in itertools.product(STORED, STORED):
        name, kind = f"{a.name} {b.name}", dtype.concrete(dtype.promote(a, b))
        assert found[name].dtype == kind.np, name
        assert np.array_equal(found[name], numbers), name


def test_casts_truncate_wrap_and_test_as_in_numpy(device: AnyDevice) -> None:
    f = np.array([-2.7, -0.5, 0.0, 0.5, 2.7, 100.9], np.float32)
    i = np.array([-129, -1, 0, 1, 200, 70_000], np.int32)
    x, y = Tensor(f, device), Tensor(i, device)
    found = results(
        {
            "f to i32": x.cast(dtype.i32),
            "f to bool": x.cast(dtype.bool_),
            "f to f16": x.cast(dtype.f16),
            "i to i8": y.cast(dtype.i8),
            "i to u8": y.cast(dtype.u8),
            "i to u32": y.cast(dtype.u32),
            "i to bool": y.cast(dtype.bool_),
            "bool to f32": (y > 0).cast(dtype.f32) * 2.5,
        },
        device,
    )
    wanted = {
        "f to i32": f.astype(np.int32),
        "f to bool": f != 0,
        "f to f16": f.astype(np.float16),
        "i to i8": i.astype(np.int8),
        "i to u8": i.astype(np.uint8),
        "i to u32": i.astype(np.uint32),
        "i to bool": i != 0,
        "bool to f32": (i > 0) * 2.5,
    }
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name


INTEGERS = {
    "i8": (np.array([-128, -7, 0, 5, 127], np.int8), np.array([3, -3, 7, -1, 100], np.int8)),
    "u8": (np.array([0, 7, 200, 255, 3], np.uint8), np.array([3, 250, 7, 1, 100], np.uint8)),
    "i32": (np.array([1 - 2**31, -7, 0, 5, 2**31 - 1]), np.array([3, -3, 7, -2, 100])),
    "u32": (
        np.array([0, 7, 2**31, 2**32 - 1, 3], np.uint32),
        np.array([3, 2**32 - 2, 7, 1, 100], np.uint32),
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_width_wrap_divide_and_compare(device: AnyDevice, name: str) -> None:
    a, b = INTEGERS[name]
    kind = np.dtype(np.int32) if a.dtype == np.int64 else a.dtype
    a, b = a.astype(kind), b.astype(kind)
    x, y, shift = Tensor(a, device), Tensor(b, device), Tensor(np.arange(5).astype(kind), device)
    functions: dict[str, tuple[Tensor, Callable[[], Array]]] = {
        "+": (x + y, lambda: a + b),
        "-": (x - y, lambda: a - b),
        "*": (x * y, lambda: a * b),
        "//": (x // y, lambda: a // b),
        "%": (x % y, lambda: a % b),
        "neg": (-x, lambda: -a),
        "multiply_add": (x.multiply_add(y, y), lambda: a * b + b),
        "min": (x.minimum(y), lambda: np.minimum(a, b)),
        "max": (x.maximum(y), lambda: np.maximum(a, b)),
        "<": (x < y, lambda: a < b),
        "<=": (x <= y, lambda: a <= b),
        "sign": (x.sign(), lambda: np.sign(a)),
        "<<": (x << shift, lambda: a << np.arange(5).astype(kind)),
        ">>": (x >> shift, lambda: a >> np.arange(5).astype(kind)),
        "& ^ |": ((x & y) ^ (x | y), lambda: (a & b) ^ (a | b)),
        "sum": (x.sum(), lambda: np.asarray(a.sum(dtype=kind))),
        "most": (x.max(), lambda: np.asarray(a.max())),
        "negative": (x + -1, lambda: a - np.ones(1, kind)),
    }
    found = results({key: tensor for key, (tensor, _) in functions.items()}, device)
    with np.errstate(over="ignore"):
        for key, (_, array) in functions.items():
            assert np.array_equal(found[key], array()), key


def test_bools_are_zero_or_one_whatever_is_done_to_them(device: AnyDevice) -> None:
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    x, y = Tensor(a, device), Tensor(b, device)
    found = results(
        {
            "&": x & y, "|": x | y, "^": x ^ y, "*": x * y, "not": x.logical_not(),
            "max": x.maximum(y), "min": x.minimum(y), "<": x < y, "eq": x.eq(y), "any": x.max(),
            "where": Tensor.where(x, y, x),
        },
        device,
    )  # fmt: skip
    wanted = {
        "&": a & b, "|": a | b, "^": a ^ b, "*": a & b, "not": ~a, "max": a | b, "min": a & b,
        "<": ~a & b, "eq": a == b, "any": np.asarray(True), "where": np.where(a, b, a),
    }  # fmt: skip
    for name, value in wanted.items():
        assert found[name].dtype == np.bool_, name
        assert np.array_equal(found[name].view(np.uint8), value.view(np.uint8)), name


def test_bools_are_counted(device: AnyDevice, rng: np.random.Generator) -> None:
    a = draw(rng, 33, 700)
    x = Tensor(a, device)
    found = results({"all": (x < 0).sum(), "rows": (x < 0).sum(1), "mean": (x < 0).mean()}, device)
    assert found["all"] == (a < 0).sum()
    assert np.array_equal(found["rows"], (a < 0).sum(1))
    assert close(found["mean"], (a < 0).mean(), roundings=2)


@pytest.mark.parametrize(
    "act", [lambda x: x + x, lambda x: x - x, lambda x: -x, lambda x: x // x, lambda x: x << x]
)
def test_arithmetic_that_leaves_the_bools_is_refused(act: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="bool"):
        act(Tensor([True, False]))


def test_halves_are_rounded_where_they_are_stored(device: AnyDevice) -> None:
    """11 bits of significand: one rounding of each result is 2**-11 of it."""
    a = np.linspace(-3, 3, 37).astype(np.float16)
    b = np.linspace(0.5, 5, 37).astype(np.float16)
    x, y = Tensor(a, device), Tensor(b, device)
    matrix = y.reshape(37, 1) @ x.reshape(1, 37)
    loss = (x.cast(dtype.f32) * x.cast(dtype.f32)).sum()
    found = results(
        {
            "+": x + y, "/": x / y, "exp": x.exp(), "sin": x.sin(), "max": x.max(),
            "dot": x @ y, "outer": matrix, "rows": x.pad((1, 2)).flip(0), "up": x.cast(dtype.f32),
            "gather": x.gather(Tensor([3, 36, 3], device)), "gradient": loss.gradient([x])[0],
        },
        device,
    )  # fmt: skip
    wa, wb = a.astype(np.float64), b.astype(np.float64)
    wanted = {
        "+": wa + wb, "/": wa / wb, "exp": np.exp(wa), "sin": np.sin(wa), "max": wa.max(),
        "dot": wa @ wb, "outer": np.outer(wb, wa), "rows": np.pad(wa, (1, 2))[::-1], "up": wa,
        "gather": wa[[3, 36, 3]], "gradient": 2 * wa,
    }  # fmt: skip
    for name, value in wanted.items():
        kind = np.float32 if name == "up" else np.float16
        assert found[name].dtype == kind, name
        # exp is 2 ** (x / ln 2): the numpy device rounds the exponent, up to 4.4, to a half as well
        size = np.abs(wa) @ wb if name == "dot" else np.abs(value)
        assert close(found[name], value, size, roundings=8), name
