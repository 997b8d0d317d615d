"""Operations on NaN, infinity, signed zeros, and at the ends of the range of floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from conftest import open_mapping
from reference import close
from small_programs import draw, results

from imgmlp.engine import AnyDevice, Tensor, compile


def test_tanh_and_expm1_are_accurate_near_0(device: AnyDevice) -> None:
    """The error is relative to each value, not to the largest one."""
    sizes = np.float32(10) ** np.linspace(-30, 1.9, 400, dtype=np.float32)
    a = np.concatenate([-sizes, sizes, np.float32([0, np.inf, -np.inf, np.nan])])
    x = Tensor(a, device)
    program = compile(lambda: {"tanh": x.tanh(), "expm1": x.expm1()}, device)
    program.run()
    wide = a.astype(np.float64)
    for name, expected in (("tanh", np.tanh(wide)), ("expm1", np.expm1(wide))):
        assert close(program.read(name), expected, np.abs(expected), roundings=80), name
        near = np.abs(a) < 1
        assert close(program.read(name)[near], expected[near], np.abs(expected)[near], 12), name


def test_extrema_and_sums_propagate_nan(device: AnyDevice) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0, -0.0], np.float32)
    x, y = Tensor(values, device), Tensor(values[::-1].copy(), device)
    program = compile(
        lambda: {"max": x.maximum(y), "min": x.minimum(y), "sum": x.sum(), "most": x.max()}, device
    )
    program.run()
    assert np.array_equal(program.read("max"), np.maximum(values, values[::-1]), equal_nan=True)
    assert np.array_equal(program.read("min"), np.minimum(values, values[::-1]), equal_nan=True)
    assert np.isnan(program.read("sum"))
    assert np.isnan(program.read("most"))


def test_functions_of_nan_infinity_and_large_numbers_equal_numpys(device: AnyDevice) -> None:
    a = np.array([np.nan, np.inf, -np.inf, 0, -2.5, 2.5, 3.5, 1e9, -1e30], np.float32)
    x, y = Tensor(a, device), Tensor(a[::-1].copy(), device)
    functions: dict[str, tuple[Tensor, Callable[[], np.ndarray]]] = {
        "isnan": (x.isnan(), lambda: np.isnan(a)),
        "isinf": (x.isinf(), lambda: np.isinf(a)),
        "isfinite": (x.isfinite(), lambda: np.isfinite(a)),
        "isclose": (x.isclose(y), lambda: np.isclose(a, a[::-1])),
        "same": (x.isclose(x), lambda: np.isclose(a, a)),
        "floor": (x.floor(), lambda: np.floor(a)),
        "ceil": (x.ceil(), lambda: np.ceil(a)),
        "trunc": (x.trunc(), lambda: np.trunc(a)),
        "round": (x.round(), lambda: np.round(a)),
        "atan": (x.atan().round(), lambda: np.round(np.arctan(a))),
        "erf": (x.erf().sign(), lambda: np.nan_to_num(np.sign(a))),
        "softplus": (x.minimum(1e4).softplus().isfinite(), lambda: np.isfinite(np.minimum(a, 1))
                     | np.isinf(a)),
        "argmax": (x.argmax(), lambda: np.asarray(a.argmax())),
        "sort": (x.sort(), lambda: np.sort(a)),
        "argsort": (y.argsort(), lambda: np.argsort(a[::-1], kind="stable")),
        "zero": (x[3:4] ** Tensor([-1.5, 0.0, 2.5], device), lambda: np.float32([np.inf, 1, 0])),
        "minus": (x[4] ** Tensor([3.0, 2.0, 0.5], device), lambda: a[4] ** np.float32([3, 2, 0.5])),
        "powers of one": (1**x, lambda: np.float32(1) ** a),
        "logsumexp": (x[2:6].logsumexp(), lambda: np.log(np.exp(a[2:6]).sum())),
        "logsumexp of no end": (x[1:5].logsumexp(), lambda: np.asarray(np.inf)),
        "logsumexp of zeros": (x[2:3].logsumexp(), lambda: np.asarray(-np.inf)),
    }  # fmt: skip
    program = compile(lambda: {name: t for name, (t, _) in functions.items()}, device)
    program.run()
    with np.errstate(all="ignore"):
        for name, (_, array) in functions.items():
            actual, expected = program.read(name), np.asarray(array())
            assert close(actual, expected, roundings=8), name


def test_powers_of_infinities_and_signed_zeros_equal_numpys(device: AnyDevice) -> None:
    bases = np.float32([-np.inf, -2, -1, -0.0, 0, 1, 2, np.inf, np.nan])
    a, b = np.meshgrid(bases, np.float32([-np.inf, -3, -2, -0.5, 0, 0.5, 1, 2, 3, np.inf, np.nan]))
    x, y = Tensor(a, device), Tensor(b, device)

    def step() -> dict[str, Tensor]:
        return {"power": x**y, "cube": x**-3, "slope": (x**y).sum().gradient([x])[0]}

    program = compile(step, device)
    program.run()
    with np.errstate(all="ignore"):
        slope = np.where(b == 0, 0, b * a ** (b - 1))
        for name, expected in {"power": a**b, "cube": a ** np.float32(-3), "slope": slope}.items():
            actual = program.read(name)
            assert close(actual, expected, roundings=8), name
            signs = np.isnan(expected) | (np.signbit(actual) == np.signbit(expected))
            assert signs.all(), (name, a[~signs], b[~signs])


def test_signs_of_zero_results_are_as_documented() -> None:
    x, one = Tensor([-0.0, -0.3], open_mapping("numpy")), np.float32(1)
    minus = Tensor([-1.0], open_mapping("numpy"))
    kept = (x[:1].abs(), x[:1].relu(), minus % 1)
    dropped = (x[:1].floor(), x.ceil(), x.trunc(), x.round(), x[:1] // one, x[:1].atan(),
               x[:1].asin(), -minus % -1)  # fmt: skip
    for actual, sign in (*((t, True) for t in kept), *((t, False) for t in dropped)):
        assert not actual.numpy().any()
        assert (np.signbit(actual.numpy()) == sign).all()


def test_exact_gelu_is_accurate_far_below_zero(device: AnyDevice) -> None:
    x = np.float32([-0.7, -1.4142135, -1.5, -3, -4.735, -5.615, -9, 0, 0.3, 4, 3e38])
    expected = [float(v) / 2 * math.erfc(-float(v) / math.sqrt(2)) for v in x]
    assert np.allclose(Tensor(x, device).gelu(exact=True).numpy(), expected, rtol=2e-5, atol=0)


def test_log1p_and_softplus_are_accurate_near_zero(device: AnyDevice) -> None:
    """log1p corrects the rounding of 1 + x; softplus is computed with log1p."""
    near = np.float32([f * 10.0**-n for n in range(1, 10) for f in (1, -1, 3, -3)])
    low = np.linspace(-16, 0, 99, dtype=np.float32)
    x, y = Tensor(near, device), Tensor(low, device)
    program = compile(lambda: {"log1p": x.log1p(), "softplus": y.softplus()}, device)
    program.run()
    wide, wider = near.astype(np.float64), low.astype(np.float64)
    np.testing.assert_allclose(program.read("log1p"), np.log1p(wide), rtol=5e-7)
    np.testing.assert_allclose(program.read("softplus"), np.log1p(np.exp(wider)), rtol=2e-6)


def test_comparisons_of_nan_infinity_and_signed_zeros_follow_ieee_754(device: AnyDevice) -> None:
    values = np.array([np.nan, 1, -0.0, 0.0, -2, np.inf, -np.inf], np.float32)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    x, y = Tensor(a, device), Tensor(b, device)
    actual = results(
        {
            "<": x < y,
            ">": x > y,
            "<=": x <= y,
            ">=": x >= y,
            "==": x == y,
            "!=": x != y,
            "0": x >= 0,
            "array": b != x,
        },
        device,
    )
    expected = {
        "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b,
        "0": a >= 0, "array": b != a,
    }  # fmt: skip
    for name, value in expected.items():
        assert np.array_equal(actual[name], value), name


def test_nan_and_infinity_pass_through_clipping_and_activations(device: AnyDevice) -> None:
    a = np.array([np.nan, np.inf, -np.inf, -3, 3], np.float32)
    x = Tensor(a, device)
    actual = results(
        {
            "clip": x.maximum(0.0).minimum(1.0),
            "relu": x.relu(),
            "leaky": x.leaky_relu(0.25),
            "abs": x.abs(),
            "sigmoid": x.sigmoid(),
            "tanh": x.tanh(),
            "where": Tensor.where(x > 0, x, 7.0),
        },
        device,
    )
    nan, inf = np.nan, np.inf
    expected = {  # intermediate sums are at least 1
        "clip": [nan, 1, 0, 0, 1],
        "relu": [nan, inf, 0, 0, 3],
        "leaky": [nan, inf, -inf, -0.75, 3],
        "abs": [nan, inf, inf, 3, 3],
        "sigmoid": [nan, 1, 0, 1 / (1 + np.exp(3)), 1 / (1 + np.exp(-3))],
        "tanh": [nan, 1, -1, -np.tanh(3), np.tanh(3)],
        "where": [7, inf, 7, 7, 3],
    }
    for name, value in expected.items():
        assert close(actual[name], value, np.maximum(1, np.abs(value)), roundings=16), name


def test_maximum_of_many_elements_is_nan_if_any_is_nan(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    """Partial maxima are combined in trees and in two stages; the NaN is at different places."""
    maxima, places = {}, (0, 1, 15, 16, 777, 16_384, 40_000)
    for place in places:
        a = draw(rng, 40_001)
        a[place] = np.nan
        maxima[str(place)] = Tensor(a, device).max()
    for name, value in results(maxima, device).items():
        assert np.isnan(value), name


def test_powers_with_infinite_base_or_exponent_equal_numpys(device: AnyDevice) -> None:
    y = np.float32([0, 1, -1, 2.5, -0.5, math.inf, -math.inf, math.nan])
    for base in (math.inf, -math.inf, 2, 0.5, 1, 0.0):
        with np.errstate(all="ignore"):
            expected = np.float32(base) ** y
        actual = (base ** Tensor(y, device)).numpy()
        assert np.allclose(actual, expected, rtol=1e-6, atol=0, equal_nan=True), base
    with np.errstate(all="ignore"):
        for exponent in (0.5, 2, 3, -1, -2, 1.5):
            x = np.float32([math.inf, -math.inf, math.nan])
            actual = (Tensor(x, device) ** exponent).numpy()
            assert np.allclose(actual, x**exponent, rtol=0, atol=0, equal_nan=True), exponent


def test_exp_log_reciprocal_and_sqrt_overflow_as_numpys(device: AnyDevice) -> None:
    a = np.array([-200, -87, -1e-4, 0, 1e-4, 87, 200], np.float32)
    x = Tensor(a, device)
    actual = results({"exp": x.exp(), "log": x.log(), "inverse": 1 / x, "sqrt": x.sqrt()}, device)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64)
        expected = {
            "exp": np.exp(wide),
            "log": np.log(wide),
            "inverse": 1 / wide,
            "sqrt": wide**0.5,
        }
        for name, value in expected.items():
            single = value.astype(np.float32)
            # exp(87) carries the rounding of 87 / ln 2 to a float32: 2**-18 of the value
            assert np.allclose(actual[name], single, rtol=1e-5, atol=1e-30, equal_nan=True), name


def test_sine_and_cosine_of_large_arguments_are_accurate(device: AnyDevice) -> None:
    """The argument is reduced exactly, without a prior addition that would round it."""
    a = np.array([-1e6, -30_000.5, -4, 0, 0.1, 1.5707964, 700, 30_000, 1e5], np.float32)
    x, wide = Tensor(a, device), a.astype(np.float64)
    sine, cosine = x.sin(), x.cos()
    actual = results(
        {
            "sin": sine,
            "cos": cosine,
            "slope of sin": sine.sum().gradient([x])[0],
            "slope of cos": cosine.sum().gradient([x])[0],
        },
        device,
    )
    expected = {
        "sin": np.sin(wide),
        "cos": np.cos(wide),
        "slope of sin": np.cos(wide),
        "slope of cos": -np.sin(wide),
    }
    for name, value in expected.items():
        assert close(actual[name], value, 1, roundings=16), name
