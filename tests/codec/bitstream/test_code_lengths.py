"""Code lengths match what the range coder writes, and the best distribution is near the entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_symbols import CODED_PAIRS, SMALL_SYMBOLS, laplace, normal, symbols_and_scales

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.bitstream.code_lengths import (
    MAX_TABULATED_MAGNITUDE,
    best_distribution,
    code_lengths,
    total_bits,
    value_code_lengths,
)
from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS


@pytest.mark.parametrize("deviation", [0.3, 1.0, 7.5, 60.0, 250.0])
def test_best_distribution_codes_normal_values_within_a_hundredth_of_entropy(
    deviation: float,
) -> None:
    symbols = normal(deviation, 20_000)
    _, counts = np.unique(symbols, return_counts=True)
    empirical = -float(counts @ np.log2(counts / counts.sum())) / 8
    ideal = 20_000 * math.log2(deviation * math.sqrt(2 * math.pi * math.e)) / 8
    bound = 1.01 * max(ideal, empirical) + 8
    assert len(range_coder.encode(symbols, best_distribution(symbols)[0])) <= bound


@given(CODED_PAIRS)
def test_total_bits_is_the_encoded_size_less_at_most_two_bytes(
    pairs: list[tuple[int, int]],
) -> None:
    symbols, scales = symbols_and_scales(pairs)
    written = 8 * len(range_coder.encode(symbols, scales))
    assert 0 <= written - total_bits(symbols, scales) <= 16.01


@pytest.mark.parametrize("scale", [0, 2, 15, 30, 47])
def test_best_distribution_finds_the_scale_of_laplace_values(scale: int) -> None:
    symbols = laplace(2 ** ((scale - 15) / 4), 50_000)
    assert best_distribution(symbols)[0] == scale


@pytest.mark.parametrize("scale", [60, 75, 87])
def test_best_distribution_finds_the_scale_of_normal_values(scale: int) -> None:
    symbols = normal(2 ** ((scale - 55) / 4), 50_000)
    assert best_distribution(symbols)[0] == scale


@pytest.mark.parametrize("scale", [0, 3, 20, 47, 48, 60, 87])
def test_value_code_lengths_equal_code_lengths_with_and_without_escapes(scale: int) -> None:
    for reach in (MAX_TABULATED_MAGNITUDE, 5000):
        values = np.arange(-reach, reach + 1)
        lengths = value_code_lengths(values, scale)
        np.testing.assert_allclose(lengths, code_lengths(values, scale), rtol=1e-12)


@given(st.lists(SMALL_SYMBOLS, max_size=100))
def test_no_other_distribution_is_much_better_than_the_best(integers: list[int]) -> None:
    symbols = np.array(integers, np.int64)
    best = min(total_bits(symbols, scale) for scale in range(DISTRIBUTIONS))
    number, bits = best_distribution(symbols)
    assert bits == pytest.approx(total_bits(symbols, number))
    assert bits <= 1.25 * best + 16
