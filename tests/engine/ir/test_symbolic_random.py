"""Random index expressions have equal values simplified or not, in Python and C.

Each is checked for all values of its variables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Self

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from imgmlp.engine.ir.conditions import all_of, at_least, less, xor
from imgmlp.engine.ir.symbolic import (
    INT_MAX,
    LONG_MAX,
    Const,
    Expr,
    Var,
    linear,
    max_magnitude,
)

BOUNDS = {"p": (0, 11), "q": (-7, 4), "r": (3, 6), "s": (2, 2)}
GRID = dict(
    zip(
        BOUNDS,
        np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in BOUNDS.values()), indexing="ij"),
        strict=True,
    )
)
DIVISORS = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 10, 12, 20])
SMALL = st.integers(-20, 20)

Pair = tuple[Expr, Any]  # an expression, and its values on GRID as NumPy computes them
LEAVES: st.SearchStrategy[Pair] = st.one_of(
    st.sampled_from([(Var(name, *bounds), GRID[name]) for name, bounds in BOUNDS.items()]),
    SMALL.map(lambda n: (Const(n), np.int64(n))),
)


def condition(x: Pair, n: int, upper: bool) -> Pair:
    return (less(x[0], n), (x[1] < n) * 1) if upper else (at_least(x[0], n), (x[1] >= n) * 1)


CONDITION = st.tuples(SMALL, st.booleans())


def larger(x: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    """Every operation on smaller expressions."""
    two = st.tuples(x, x)
    return st.one_of(
        two.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
        two.map(lambda p: (p[0][0] - p[1][0], p[0][1] - p[1][1])),
        two.map(lambda p: (xor(p[0][0], p[1][0]), p[0][1] ^ p[1][1])),
        st.tuples(x, SMALL).map(lambda p: (p[0][0] * p[1], p[0][1] * p[1])),
        st.tuples(x, DIVISORS).map(lambda p: (p[0][0] // p[1], p[0][1] // p[1])),
        st.tuples(x, DIVISORS).map(lambda p: (p[0][0] % p[1], p[0][1] % p[1])),
        st.tuples(x, DIVISORS, DIVISORS, DIVISORS).map(
            lambda p: (digits(p[0][0], *p[1:]), digits(p[0][1], *p[1:]))
        ),
        st.tuples(x, CONDITION).map(lambda p: condition(p[0], *p[1])),
        st.tuples(x, x, CONDITION, CONDITION).map(
            lambda p: both(condition(p[0], *p[2]), condition(p[1], *p[3]))
        ),
    )


def digits(x: Any, n: int, m: int, scale: int) -> Any:
    """A remainder and part of its quotient, which join where the scale is n."""
    return x % n + x // n % m * scale


def both(x: Pair, y: Pair) -> Pair:
    return all_of(x[0], y[0]), x[1] * y[1]


expressions = st.recursive(LEAVES, larger, max_leaves=12)
points = st.fixed_dictionaries({name: st.integers(*bounds) for name, bounds in BOUNDS.items()})


@settings(max_examples=3000)
@given(expressions)
def test_simplified_form_is_equal_everywhere_and_within_its_bounds(
    pair: Pair,
) -> None:
    expr, values = pair
    assert np.all(expr.evaluate(GRID) == values)
    assert expr.lo <= np.min(values)
    assert np.max(values) <= expr.hi


class CInt(int):
    """An int of C, which must not overflow; division and remainder truncate towards zero."""

    most = INT_MAX

    def __new__(cls, value: int) -> Self:
        assert abs(value) <= cls.most
        return super().__new__(cls, value)

    def __truediv__(self, n: int) -> CInt:
        return type(self)(math.trunc(Fraction(int(self), n)))

    def __mod__(self, n: int) -> CInt:
        return type(self)(int(self) - n * math.trunc(Fraction(int(self), n)))


class CLong(CInt):
    """A long of C."""

    most = LONG_MAX


def in_c(method: Callable[..., int]) -> Callable[..., CInt]:
    """An operation of C: its result is a long if an operand is, or a literal exceeds an int."""

    def operate(*operands: int) -> CInt:
        long = any(isinstance(o, CLong) or abs(o) > INT_MAX for o in operands)
        return (CLong if long else CInt)(method(*operands))

    return operate


for name in ("add", "sub", "mul", "neg", "and", "xor", "rshift", "radd", "rsub", "lt", "ge"):
    setattr(CInt, f"__{name}__", in_c(getattr(int, f"__{name}__")))


def test_powers_of_two_are_shifted_and_masked_in_c() -> None:
    x = Var("x", 0, 1000)
    quotients = [(x // 8).render("/"), (x // 6).render("/"), (x // 8).render()]
    assert quotients == ["(x>>3)", "(x/6)", "(x//8)"]
    assert [(x % n).render("/") for n in (8, 6)] == ["(x&7)", "(x%6)"]


@settings(max_examples=2000)
@given(expressions, points)
def test_rendered_text_has_the_same_value_in_python_and_c(
    pair: Pair, point: dict[str, int]
) -> None:
    expr = pair[0]
    value = expr.evaluate(point)
    assert eval(expr.render(), {}, point) == value  # noqa: S307
    c_point = {name: CInt(v) for name, v in point.items()}
    assert eval(expr.render(division="/"), {}, c_point) == value  # noqa: S307


WIDE = {"u": (0, 10**9), "v": (-(10**9), 10), "w": (7, 60_000)}
wide_leaves = st.sampled_from([(Var(name, *bounds), 0) for name, bounds in WIDE.items()])
wide_points = st.fixed_dictionaries({name: st.integers(*bounds) for name, bounds in WIDE.items()})


@settings(max_examples=2000)
@given(
    st.recursive(wide_leaves, larger, max_leaves=12),
    st.sampled_from([1, 59_999, 100_000_000]),
    st.sampled_from([60_000, 1 << 31, 100_000_000]),
    wide_points,
)
def test_rendered_c_expressions_do_not_overflow(
    pair: Pair, factor: int, divisor: int, point: dict[str, int]
) -> None:
    for expr in (pair[0] * factor // divisor, pair[0] * factor % divisor, less(pair[0], divisor)):
        if max_magnitude(expr) > LONG_MAX or max(expr.hi, -expr.lo) > INT_MAX:
            continue
        text = re.sub(r"(\d+)L", r"CLong(\1)", expr.render(division="/"))
        c_point = {name: CInt(v) for name, v in point.items()}
        assert eval(text, {"CLong": CLong}, c_point) == expr.evaluate(point)  # noqa: S307


@settings(max_examples=500)
@given(expressions, expressions, expressions)
def test_substitution_equals_evaluation_with_expressions(x: Pair, p: Pair, q: Pair) -> None:
    replaced = x[0].substitute({"p": p[0], "q": q[0]})
    assert np.all(replaced.evaluate(GRID) == x[0].evaluate(GRID | {"p": p[1], "q": q[1]}))


@settings(max_examples=500)
@given(expressions)
def test_rebuilding_a_simplified_expression_changes_nothing(pair: Pair) -> None:
    assert pair[0].substitute({}) is pair[0]


@settings(max_examples=500)
@given(expressions, SMALL)
def test_shortcuts_of_sums_give_the_simplified_form(pair: Pair, n: int) -> None:
    """Sums with a number, and products, are the same objects as `linear` gives."""
    x = pair[0]
    assert x + n is n + x is linear(n, [(x, 1)])
    assert x - n is linear(-n, [(x, 1)])
    assert n - x is linear(n, [(x, -1)])
    assert -x is linear(0, [(x, -1)])
    assert x * n is linear(0, [(x, n)])


@settings(max_examples=500)
@given(expressions, DIVISORS)
def test_expression_equals_its_quotient_and_remainder(pair: Pair, n: int) -> None:
    x, values = pair
    joined = x // n * n + x % n
    assert np.all(joined.evaluate(GRID) == values)


@settings(max_examples=500)
@given(expressions, expressions)
def test_exclusive_or_is_its_own_inverse(x: Pair, y: Pair) -> None:
    result, (least, most) = xor(y[0], xor(y[0], x[0])), (x[0].lo, x[0].hi)
    if least == most:  # an expression with one value may be a constant
        assert result.lo == result.hi == least
    else:
        assert result is x[0]
