"""Index expressions: valid bounds, simplest forms, and unchanged values.

Properties are checked on random expressions over every value of their variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imgmlp.engine.ir.conditions import all_of, at_least, less, xor
from imgmlp.engine.ir.symbolic import (
    ONE,
    ZERO,
    Const,
    Expr,
    Var,
    linear,
    linear_parts,
    max_magnitude,
    row_major_strides,
    unravel,
)

a, b = Var("a", 0, 10), Var("b", 0, 10)
digit = Var("digit", 0, 9)
signed = Var("signed", -5, 7)
idx0 = Var("idx0", 0, 99)


def assert_is(expr: Expr, text: str, lo: int, hi: int) -> None:
    assert (expr.render(), expr.lo, expr.hi) == (text, lo, hi)


# --- bounds and simplest forms, one by one ---


def test_products_and_sums_have_exact_bounds() -> None:
    assert_is(a * 10, "(a*10)", 0, 100)
    assert_is(a + b, "(a+b)", 0, 20)
    assert_is(a - b, "(a-b)", -10, 10)
    assert_is(-a, "(-a)", -10, 0)
    assert_is(9 - digit, "(9-digit)", 0, 9)
    assert_is(signed * -2 + 1, "(1-(signed*2))", -13, 11)


def test_sums_are_flat_with_like_terms_merged() -> None:
    assert_is((a + 1) * 3 + (b + a) * 2 - 3, "((a*5)+(b*2))", 0, 70)
    assert a - a is ZERO
    assert a * 0 is ZERO
    assert a + 0 is a * 1 is a


def test_equal_expressions_are_one_object_whatever_their_order() -> None:
    assert a + b * 2 is b + a + b
    assert Var("a", 0, 10) is a
    assert Var("a", 0, 11) is not a
    assert all_of(less(a, 3), less(b, 4)) is all_of(less(b, 4), less(a, 3))


def test_multiples_of_the_divisor_are_split_off() -> None:
    assert_is((a + b * 10) % 10, "(a%10)", 0, 9)
    assert (digit + b * 10) % 10 is digit
    assert (digit + b * 10) // 10 is b
    assert_is((a * 40 + b) // 20, "(a*2)", 0, 20)
    assert (a * 25) % 20 is a * 5 % 20


def test_common_factor_is_cancelled_from_quotient_and_remainder() -> None:
    assert (a * 4 + 2) // 6 is (a * 2 + 1) // 3
    assert (a * 4 + 2) % 6 is (a * 2 + 1) % 3 * 2
    low = Var("low", 0, 3)
    assert (a * 4 + low) // 8 is a // 2
    assert (a * 4 + low) % 8 is a % 2 * 4 + low


def test_quotients_and_remainders_fold_by_bounds() -> None:
    assert a // 11 is ZERO
    assert a % 11 is a
    assert (a + 20) // 31 is ZERO
    assert Var("x", 13, 17) // 10 is ONE
    assert_is(Var("x", 13, 17) % 10, "(x-10)", 3, 7)


def test_nested_quotients_and_remainders_merge() -> None:
    assert_is(idx0 // 3 // 4, "(idx0//12)", 0, 8)
    assert (idx0 // 4 + a) // 3 is (idx0 + a * 4) // 12
    assert idx0 % 12 % 4 is idx0 % 4
    assert idx0 % 12 // 4 is idx0 // 4 % 3
    assert_is(idx0 // 4 % 3, "((idx0//4)%3)", 0, 2)


def test_quotient_and_its_remainder_are_joined() -> None:
    assert idx0 % 7 + idx0 // 7 * 7 is idx0
    assert idx0 // 7 * -21 - idx0 % 7 * 3 is idx0 * -3
    assert idx0 % 5 + idx0 // 5 % 4 * 5 is idx0 % 20


def test_quotient_and_remainder_of_different_divisors_are_not_joined() -> None:
    assert_is(idx0 % 7 + idx0 // 7 * 6, "(((idx0//7)*6)+(idx0%7))", 0, 90)
    assert_is(idx0 % 7 + idx0 // 6 * 7, "(((idx0//6)*7)+(idx0%7))", 0, 118)
    assert_is(idx0 % 5 + idx0 // 5 % 4 * 10, "((((idx0//5)%4)*10)+(idx0%5))", 0, 34)


def test_dividends_are_shifted_to_be_non_negative() -> None:
    assert_is((idx0 - 3) // 10, "(((idx0+7)//10)-1)", -1, 9)
    assert_is((signed - 1) % 4, "((signed+7)%4)", 0, 3)
    assert_is(-digit // 2, "(((10-digit)//2)-5)", -5, 0)


def test_comparisons_fold_by_bounds() -> None:
    assert less(a, 11) is at_least(a, 0) is ONE
    assert less(a, 0) is at_least(a, 11) is ZERO
    assert_is(less(a, 10), "(a<10)", 0, 1)
    assert_is(at_least(a, 1), "(a>=1)", 0, 1)


def test_comparisons_are_reduced_to_the_terms_that_matter() -> None:
    assert less(a * 4 + 3, 12) is less(a, 3)
    assert less(idx0 // 10, 7) is less(idx0, 70)
    assert at_least(idx0 // 10, 7) is at_least(idx0, 70)
    assert at_least(a - 2, 3) is at_least(a, 5)
    assert_is(less(a - b, 3), "((a-b)<3)", 0, 1)


def test_conjunction_keeps_the_tightest_conditions() -> None:
    assert all_of() is all_of(ONE, less(a, 11)) is ONE
    assert all_of(less(a, 3), ZERO) is ZERO
    assert all_of(less(a, 5), less(a, 3), at_least(a, 1)) is all_of(at_least(a, 1), less(a, 3))
    assert all_of(less(a, 3), at_least(a, 3)) is ZERO
    assert all_of(less(a, 4), at_least(a, 3)) is not ZERO
    assert_is(all_of(less(a, 3), at_least(b, 2)), "((a<3)&(b>=2))", 0, 1)


def test_conjunction_refuses_operands_that_are_no_conditions() -> None:
    with pytest.raises(ValueError, match=r"a in \[0, 10\] is no condition"):
        all_of(a)


def test_equal_operands_of_exclusive_or_cancel() -> None:
    assert xor(a, xor(a, b)) is b
    assert xor(xor(b, a), a) is b
    assert xor(a, a) is ZERO
    assert xor(a, 0) is a
    assert xor(a, b) is xor(b, a)
    one_value = Var("v", 2, 2)
    assert xor(one_value, 7) is Const(5)
    assert xor(xor(one_value, a), xor(a, -8)) is Const(2 ^ -8)


def test_exclusive_or_with_minus_one_is_the_bitwise_complement() -> None:
    for x in (a, signed, a + b, xor(a, b), Const(6)):
        assert (xor(x, -1).lo, xor(x, -1).hi) == (-x.hi - 1, -x.lo - 1)
        assert xor(xor(x, -1), -1) is x
        assert xor(xor(x, -1), x) is Const(-1)


def test_exclusive_or_is_bounded_by_the_bits_of_its_operands() -> None:
    assert_is(xor(a, b), "(a^b)", 0, 15)
    assert_is(xor(a, 17), "(a^17)", 0, 31)
    assert_is(xor(a, signed), "(a^signed)", -16, 15)


def test_bounds_are_python_integers() -> None:
    x = Var("x", np.int64(0), np.int64(9)) * np.int64(3) + np.int64(1)
    for expr in (x, x // np.int64(2), less(x, np.int64(7)), all_of(at_least(x, np.int64(4)))):
        assert type(expr.lo) is type(expr.hi) is int


# --- invalid operations ---


def test_only_a_constant_can_multiply() -> None:
    assert a * Const(3) is Const(3) * a is a * 3
    with pytest.raises(TypeError, match="cannot multiply a by b"):
        a * b


@pytest.mark.parametrize("divisor", [0, -3, b])
def test_only_a_positive_constant_can_divide(divisor: Any) -> None:
    with pytest.raises(ValueError, match="the divisor must be a positive constant"):
        a // divisor
    with pytest.raises(ValueError, match="the divisor must be a positive constant"):
        a % divisor


def test_variable_with_empty_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variable x: no integer lies in \[1, 0\]"):
        Var("x", 1, 0)


def test_fractions_are_refused_as_operands() -> None:
    with pytest.raises(TypeError):
        a + 0.5


def test_expressions_are_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        a.lo = 3


# --- variables, substitution, linear parts ---


def test_variables_are_listed_once_each() -> None:
    assert (a * 3 + b % 4 + a // 2).variables() == (a, b)
    assert Const(3).variables() == ()


def test_substitution_simplifies_again() -> None:
    assert (a * 10 + b).substitute({"b": digit}) // 10 is a
    assert (a // 2).substitute({"a": b * 2}) is b
    assert less(a, 5).substitute({"a": 3}) is ONE
    assert (a + b).substitute({}) is a + b


def test_evaluation_needs_every_variable() -> None:
    with pytest.raises(KeyError, match="b"):
        (a + b).evaluate({"a": 3})


def test_linear_parts_is_the_inverse_of_linear() -> None:
    x = a * 3 - b + 7
    assert linear_parts(x) == (7, ((a, 3), (b, -1)))
    assert linear(*linear_parts(x)) is x


# --- flat indices ---


def test_row_major_strides_let_the_last_index_vary_fastest() -> None:
    assert row_major_strides((2, 3, 4)) == (12, 4, 1)
    assert row_major_strides(()) == ()


def test_unravel_splits_a_flat_index() -> None:
    assert [str(x) for x in unravel(idx0, (5, 2, 10))] == [
        "(idx0//20)",
        "((idx0//10)%2)",
        "(idx0%10)",
    ]
    assert unravel(idx0, (1, 100, 1)) == [ZERO, idx0, ZERO]
    assert unravel(ZERO, ()) == []


def test_flat_index_of_a_transposed_array_is_simplified() -> None:
    indices = unravel(idx0, (5, 2, 5, 2))
    offset = linear(0, zip(indices, (2, 1, 20, 10), strict=True))
    assert_is(offset, "(((idx0%10)*10)+(idx0//10))", 0, 99)


shapes = st.lists(st.integers(1, 6), max_size=5)


def ravel(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The flat index, in row-major order, of one index for each dimension."""
    return linear(0, zip(indices, row_major_strides(shape), strict=True))


@settings(max_examples=1000)
@given(shapes, st.randoms(use_true_random=False))
def test_flat_indices_and_indices_are_inverse(shape: list[int], random: Any) -> None:
    flat = Var("flat", 0, math.prod(shape) - 1)
    assert ravel(unravel(flat, shape), shape) is (flat if flat.hi else ZERO)
    indices = [Var(f"i{k}", 0, n - 1) if n > 1 else ZERO for k, n in enumerate(shape)]
    joined = ravel(indices, shape)
    assert unravel(joined, shape) == indices
    # the same elements in another shape, and back
    other = shape[:]
    random.shuffle(other)
    assert ravel(unravel(joined, other), other) is joined


def test_rendered_terms_have_a_deterministic_order() -> None:
    """Rendered text names cached kernels, so it must not depend on addresses or on history."""
    terms: Sequence[Expr] = [idx0 // 7, b, a, idx0 % 3, xor(a, b) // 2]
    for order in (terms, terms[::-1], terms[2:] + terms[:2]):
        assert str(linear(0, [(t, 1) for t in order])) == "(a+b+(idx0//7)+((a^b)//2)+(idx0%3))"


@pytest.mark.parametrize("bounds", [(0, 10**9), (-(10**9), 0)])
def test_sums_with_intermediate_results_beyond_an_int_are_long(bounds: tuple[int, int]) -> None:
    x = Var("x", *bounds)
    assert max_magnitude(x * 3) == max_magnitude(x * 3 // 4) == 3 * 10**9
    assert "(x*3L)" in (x * 3 // 4).render("/")
    assert "L" not in (x * 2 // 4).render("/")
