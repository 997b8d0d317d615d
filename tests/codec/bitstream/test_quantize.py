"""Steps, rounding to them, and what multiples of them cost."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.bitstream import quantize
from imgmlp.codec.bitstream.quantize import STEP_SIZES, nearest_step, step_parts, step_size


def test_steps_grow_by_less_than_a_third_and_are_exact_products() -> None:
    sizes = [step_size(n) for n in range(STEP_SIZES)]
    ratios = np.divide(sizes[1:], sizes[:-1])
    assert ratios.min() > 1.1
    assert ratios.max() <= 1.25
    for n in range(STEP_SIZES):
        m, e = step_parts(n)
        assert 4 <= m < 8
        assert m / 2**e == sizes[n]


def test_the_nearest_step_is_found_and_bounded() -> None:
    for n in range(STEP_SIZES):
        assert nearest_step(step_size(n) * 1.05) == n
    assert nearest_step(1e9) == STEP_SIZES - 1
    assert nearest_step(0.0) == 0
    assert nearest_step(1e9, largest=7) == 7


@pytest.mark.parametrize("number", [-1, STEP_SIZES])
def test_a_step_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="there is no step"):
        step_size(number)


def test_rounding_is_to_the_nearest_multiple() -> None:
    values = np.array([[-0.26, 0.24], [0.5, 100.1]])
    assert quantize.quantize(values, 0.25).tolist() == [[-1, 1], [2, 400]]


def test_rounding_towards_zero_saves_bits() -> None:
    values = np.array([0.6, -0.6, 0.8, -1.6, 0.3])
    assert quantize.quantize(values, 1.0, 0.2).tolist() == [0, 0, 1, -1, 0]
    many = np.random.default_rng(1).laplace(0, 3, 2000)
    bits = [quantize.coded_bits(quantize.quantize(many, 1.0, share)) for share in (0, 0.1, 0.3)]
    assert bits == sorted(bits, reverse=True)


def test_finer_steps_cost_a_bit_an_octave() -> None:
    values = np.random.default_rng(1).laplace(0, 1, 4000)
    coarse, fine = (quantize.coded_bits(quantize.quantize(values, s)) for s in (0.25, 0.125))
    assert fine - coarse == pytest.approx(values.size, rel=0.03)
    assert coarse / values.size == pytest.approx(np.log2(2 * np.e / 0.25), rel=0.03)
