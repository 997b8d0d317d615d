"""Dtypes of Tensors: promotion, casts, wrapping integers, rounding floats, counting bools."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import close
from small_programs import draw, results

from imgmlp.engine import AnyDevice, Tensor, dtype, open_device

Array = np.ndarray[Any, Any]


STORED = (dtype.bool_, dtype.i8, dtype.u8, dtype.i32, dtype.u32, dtype.f16, dtype.f32)


def test_product_of_two_dtypes_has_their_promoted_dtype(device: AnyDevice) -> None:
    """Every pair of dtypes, on values that all can hold; i32 and u32 are promoted to u32."""
    numbers = np.array([1, 0, 1, 1])
    tensors = {d.name: Tensor(numbers, device, d) for d in STORED}
    pairs = {
        f"{a.name} {b.name}": tensors[a.name] * tensors[b.name]
        for a, b in itertools.product(STORED, STORED)
    }
    actual = results(pairs, device)
    for a, b in itertools.product(STORED, STORED):
        name, kind = f"{a.name} {b.name}", dtype.concrete(dtype.promote(a, b))
        assert actual[name].dtype == kind.np, name
        assert np.array_equal(actual[name], numbers), name


def test_casts_truncate_wrap_and_compare_with_zero_as_numpys(device: AnyDevice) -> None:
    f = np.array([-2.7, -0.5, 0.0, 0.5, 2.7, 100.9], np.float32)
    i = np.array([-129, -1, 0, 1, 200, 70_000], np.int32)
    x, y = Tensor(f, device), Tensor(i, device)
    actual = results(
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
    expected = {
        "f to i32": f.astype(np.int32),
        "f to bool": f != 0,
        "f to f16": f.astype(np.float16),
        "i to i8": i.astype(np.int8),
        "i to u8": i.astype(np.uint8),
        "i to u32": i.astype(np.uint32),
        "i to bool": i != 0,
        "bool to f32": (i > 0) * 2.5,
    }
    for name, value in expected.items():
        assert np.array_equal(actual[name], value), name


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
def test_integer_arithmetic_of_every_width_equals_numpys(device: AnyDevice, name: str) -> None:
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
        "negative": (x - 1, lambda: a - np.ones(1, kind)),
    }
    actual = results({key: tensor for key, (tensor, _) in functions.items()}, device)
    with np.errstate(over="ignore"):
        for key, (_, array) in functions.items():
            assert np.array_equal(actual[key], array()), key


def test_division_of_the_least_integer_by_minus_one_wraps(device: AnyDevice) -> None:
    a = np.array([-(2**31), -(2**31), 7, -7, 0], np.int32)
    b = np.array([-1, 1, -1, -1, -1], np.int32)
    x, y = Tensor(a, device), Tensor(b, device)
    actual = results({"%": x % y, "//": x // y, "% -1": x % -1, "// -1": x // -1}, device)
    assert actual["%"].tolist() == actual["% -1"].tolist() == [0] * 5
    assert actual["//"].tolist() == [-(2**31), -(2**31), -7, 7, 0]
    assert actual["// -1"].tolist() == [-(2**31), -(2**31), -7, 7, 0]


def test_comparison_with_python_integers_beyond_the_dtype_is_exact(device: AnyDevice) -> None:
    a = {d: np.array([0, 1, 100], d.np) for d in STORED if d.is_int}
    limits = [-(2**40), -129, -1, 128, 256, 300, 2**31, 2**32, 2**40]
    actual = results(
        {
            f"{d.name} {n}": Tensor.concat([x < n, x > n, x <= n, x >= n, x == n, x != n])
            for d, array in a.items()
            for x in [Tensor(array, device)]
            for n in limits
        },
        device,
    )
    for d, array in a.items():
        wide = array.astype(np.int64)
        for n in limits:
            expected = [wide < n, wide > n, wide <= n, wide >= n, wide == n, wide != n]
            assert np.array_equal(actual[f"{d.name} {n}"], np.concatenate(expected)), (d.name, n)


@pytest.mark.parametrize("n", [np.int64(3 * 10**9), np.int64(-(2**40)), np.int8(-1)], ids=str)
def test_comparison_with_numpy_integers_beyond_the_dtype_is_exact(n: np.integer) -> None:
    for kind in (d for d in STORED if d.is_int):
        a = np.array([0, 1, 100], kind.np)
        x, wide = Tensor(a, open_device("numpy")), a.astype(np.int64)
        for act in (operator.lt, operator.gt, operator.le, operator.ge, operator.eq, operator.ne):
            assert np.array_equal(act(x, n).numpy(), act(wide, n)), (kind.name, act)
            assert np.array_equal(act(n, x).numpy(), act(n, wide)), (kind.name, act)


def test_shift_by_numpy_integers_uses_the_width_of_the_promoted_dtype() -> None:
    a = np.array([1, 200], np.uint8)
    x, flags = (Tensor(v, open_device("numpy")) for v in (a, a > 1))
    for actual, expected in (
        (x << np.int64(9), a.astype(np.int32) << 9),
        (x >> np.int32(9), a * 0),
    ):
        assert actual.dtype is dtype.i32
        assert np.array_equal(actual.numpy(), expected)
    for act in (lambda: x << np.int64(32), lambda: x << np.uint8(9), lambda: flags << np.uint8(9)):
        with pytest.raises(ValueError, match="bits to shift by"):
            act()


def test_minimum_with_a_number_beyond_the_dtype_is_identity_or_refused(device: AnyDevice) -> None:
    x = Tensor(np.array([0, 7, 255], np.uint8), device)
    actual = results({"max": x.maximum(-5), "min": x.minimum(300)}, device)
    assert actual["max"].tolist() == actual["min"].tolist() == [0, 7, 255]
    for act in (lambda: x.maximum(300), lambda: x.minimum(-1)):
        with pytest.raises(ValueError, match="u8 cannot hold"):
            act()
    far = x.minimum(np.int64(3 * 10**9))
    assert far.dtype is dtype.i32
    assert far.numpy().tolist() == [0, 7, 255]


def test_maximum_and_minimum_of_bools_and_integers_are_integers(device: AnyDevice) -> None:
    x = Tensor([True, False], device)
    for far in (2, 1 << 40):
        least, most = x.maximum(-far), x.minimum(far)
        assert least.dtype is most.dtype is dtype.i32
        assert least.numpy().tolist() == most.numpy().tolist() == [1, 0]


@pytest.mark.filterwarnings("error")
def test_python_numbers_beyond_the_float_range_are_infinite(device: AnyDevice) -> None:
    x, far = Tensor([1.0, -2.0], device), 10**400
    assert (x + far).numpy().tolist() == (x + 1e300).numpy().tolist() == [np.inf, np.inf]
    assert (x * -far).numpy().tolist() == [-np.inf, np.inf]
    assert (x < far).numpy().all()
    assert not (x < -far).numpy().any()
    assert (x // far).numpy().tolist() == [0, -1]
    assert Tensor(np.array([1e300, -1e300]), device).numpy().tolist() == [np.inf, -np.inf]


def test_logical_not_and_relu_of_integers_are_exact(device: AnyDevice) -> None:
    a = np.array([0, 1, 5, -3, 2**24 + 1, -(2**31)], np.int32)
    x = Tensor(a, device)
    actual = results({"not": x.logical_not(), "relu": x.relu()}, device)
    assert actual["not"].dtype == np.bool_
    assert np.array_equal(actual["not"], np.logical_not(a))
    assert actual["relu"].dtype == np.int32
    assert np.array_equal(actual["relu"], np.maximum(a, 0))


def test_operations_on_bools_store_zero_or_one(device: AnyDevice) -> None:
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    x, y = Tensor(a, device), Tensor(b, device)
    actual = results(
        {
            "&": x & y, "|": x | y, "^": x ^ y, "*": x * y, "not": x.logical_not(),
            "max": x.maximum(y), "min": x.minimum(y), "<": x < y, "eq": x.eq(y), "any": x.max(),
            "where": Tensor.where(x, y, x),
        },
        device,
    )  # fmt: skip
    expected = {
        "&": a & b, "|": a | b, "^": a ^ b, "*": a & b, "not": ~a, "max": a | b, "min": a & b,
        "<": ~a & b, "eq": a == b, "any": np.asarray(True), "where": np.where(a, b, a),
    }  # fmt: skip
    for name, value in expected.items():
        assert actual[name].dtype == np.bool_, name
        assert np.array_equal(actual[name].view(np.uint8), value.view(np.uint8)), name


def test_sum_and_mean_of_bools_count_true_values(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    a = draw(rng, 33, 700)
    x = Tensor(a, device)
    actual = results({"all": (x < 0).sum(), "rows": (x < 0).sum(1), "mean": (x < 0).mean()}, device)
    assert actual["all"] == (a < 0).sum()
    assert np.array_equal(actual["rows"], (a < 0).sum(1))
    assert close(actual["mean"], (a < 0).mean(), roundings=2)


@pytest.mark.parametrize(
    "act", [lambda x: x + x, lambda x: x - x, lambda x: -x, lambda x: x // x, lambda x: x << x]
)
def test_arithmetic_on_two_bools_is_refused(act: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="bool"):
        act(Tensor([True, False]))


HALF_EDGES = [
    0.1, 70_000, 65_504, 65_519.996, 65_520, 2**-14, 2**-15 * 1.0001, 2**-24, 2**-25,
    2**-25 * 1.0001, 3 * 2**-25, 1 + 2**-11, 1 + 3 * 2**-11, 1e-30, 0,
    -0.0, -0.1, -70_000, np.inf, -np.inf, np.nan,
]  # fmt: skip


def test_cast_to_float16_rounds_even_if_nothing_is_stored(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    """The cast rounds in registers as well as in memory."""
    bits = rng.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
    scales = 2.0 ** rng.uniform(-27, 17, 5000)
    a = np.concatenate(
        [np.float32(HALF_EDGES), bits, (draw(rng, 5000) * scales).astype(np.float32)]
    )
    x = Tensor(a, device)
    actual = results(
        {
            "cast": x.cast(dtype.f16).cast(dtype.f32),
            "kept": x.cast(dtype.f16).contiguous().cast(dtype.f32),
            "const": x * 0 + Tensor.full((1,), 0.1, dtype.f16).cast(dtype.f32),
        },
        device,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        expected = a.astype(np.float16).astype(np.float32)
        constant = a * 0 + np.float32(np.float16(0.1))
    for name in ("cast", "kept"):
        assert np.array_equal(actual[name], expected, equal_nan=True), name
        assert np.array_equal(np.signbit(actual[name]), np.signbit(expected)), name
    finite = np.isfinite(a)  # non-finite elements: the rewrite x * 0 = 0 ignores them
    assert np.array_equal(actual["const"][finite], constant[finite])


def test_fused_float16_operations_round_every_result(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    """Results equal NumPy's bit for bit, as float32 has more than twice the digits of float16.

    multiply_add is rounded once.
    """
    a, b, c = (draw(rng, 4000).astype(np.float16) for _ in range(3))
    x, y, z = (Tensor(v, device) for v in (a, b, c))
    actual = results(
        {
            "chain": ((x * y + z) * x - y) * 3.0 + 0.1 + 0.2,
            "wide": (x * y).cast(dtype.f32) - (x + z).cast(dtype.f32),
            "divided": x / (y * y + 1) / 3,
            "root": (x * x + y * y).sqrt() * z,
            "chosen": Tensor.where(x * y < z, x + y, y * z).maximum(x * z),
            "once": x.multiply_add(y, z) * 3,
        },
        device,
    )
    once = (a.astype(np.float32) * b.astype(np.float32) + c.astype(np.float32)).astype(np.float16)
    half = np.float16
    expected = {
        "chain": ((a * b + c) * a - b) * half(3) + half(0.1) + half(0.2),
        "wide": (a * b).astype(np.float32) - (a + c).astype(np.float32),
        "divided": a / (b * b + half(1)) / half(3),
        "root": np.sqrt(a * a + b * b) * c,
        "chosen": np.maximum(np.where(a * b < c, a + b, b * c), a * c),
        "once": once * half(3),
    }
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        if name in ("divided", "root"):  # OpenCL allows devices to round these differently
            assert close(actual[name], value, np.abs(value), roundings=3), name
        else:
            assert np.array_equal(actual[name], value), name


def test_float16_functions_are_accurate_to_a_few_roundings(device: AnyDevice) -> None:
    """float16 has 11 bits of significand: one rounding is at most 2**-11 of the result.

    Functions of several operations, such as exp, are computed in float32.
    """
    a = np.linspace(-3, 3, 37).astype(np.float16)
    b = np.linspace(0.5, 5, 37).astype(np.float16)
    x, y = Tensor(a, device), Tensor(b, device)
    matrix = y.reshape(37, 1) @ x.reshape(1, 37)
    loss = (x.cast(dtype.f32) * x.cast(dtype.f32)).sum()
    actual = results(
        {
            "+": x + y, "/": x / y, "exp": x.exp(), "sin": x.sin(), "max": x.max(),
            "dot": x @ y, "outer": matrix, "rows": x.pad((1, 2)).flip(0), "up": x.cast(dtype.f32),
            "gather": x.gather(Tensor([3, 36, 3], device)), "gradient": loss.gradient([x])[0],
        },
        device,
    )  # fmt: skip
    wa, wb = a.astype(np.float64), b.astype(np.float64)
    expected = {
        "+": wa + wb, "/": wa / wb, "exp": np.exp(wa), "sin": np.sin(wa), "max": wa.max(),
        "dot": wa @ wb, "outer": np.outer(wb, wa), "rows": np.pad(wa, (1, 2))[::-1], "up": wa,
        "gather": wa[[3, 36, 3]], "gradient": 2 * wa,
    }  # fmt: skip
    for name, value in expected.items():
        kind = np.float32 if name == "up" else np.float16
        assert actual[name].dtype == kind, name
        size = np.abs(wa) @ wb if name == "dot" else np.abs(value)
        assert close(actual[name], value, size, roundings=1 if name in ("+", "exp") else 4), name
