"""The lengths of range-coded symbols in bits, and the distribution that gives the shortest code.

The encoder uses them to choose distributions and to weigh rate against distortion. No decoder
depends on them.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS, LAPLACES, TOTAL_BITS, distribution
from imgmlp.codec.bitstream.symbol_parts import (
    Array,
    check_symbols,
    distribution_edges,
    escape_parts,
    symbol_parts,
)

MAX_TABULATED_MAGNITUDE = 1024  # of the symbols whose code lengths are tabulated
MAX_HISTOGRAM_RANGE = 2**12  # up to this range, counting with a histogram is faster than sorting


def total_bits(symbols: Array, scales: Array | int) -> float:
    """The bits that `encode` needs for these symbols, without up to 3 bytes at the end."""
    return float(np.sum(code_lengths(symbols, scales)))


def code_lengths(symbols: Array, scales: Array | int) -> Array:
    """The length of the code of each symbol, in bits: float64 [count]."""
    symbols, scales = check_symbols(symbols, scales)
    clipped, _, frequencies = symbol_parts(symbols, scales)
    lengths: Array = TOTAL_BITS - np.log2(frequencies)
    for at in np.flatnonzero(clipped != symbols):
        lengths[at] += len(escape_parts(int(symbols[at]), int(scales[at])))
    return lengths


def best_distribution(symbols: Array) -> tuple[int, float]:
    """The best distribution for these integers [count]: its number, and the bits that they take.

    Only distributions around the scales that the mean magnitude and the variance suggest are tried.
    """
    symbols, _ = check_symbols(symbols, 0)
    if not symbols.size:
        return 0, 0.0
    values, counts = _histogram(symbols)
    mean = float(np.abs(values) @ counts) / symbols.size
    variance = float(np.square(values.astype(np.float64)) @ counts) / symbols.size
    largest = max(-int(values[0]), int(values[-1]))
    estimates = (_scale_number(mean, 15), _scale_number(math.sqrt(variance), LAPLACES + 7))
    nearby = {number + offset for number in estimates for offset in range(-4, 5)}
    candidates = sorted({min(max(number, 0), DISTRIBUTIONS - 1) for number in nearby})
    if largest <= MAX_TABULATED_MAGNITUDE:
        lengths = _tabulated_code_lengths()[
            np.array(candidates)[:, None], values + MAX_TABULATED_MAGNITUDE
        ]
    else:
        lengths = np.array([value_code_lengths(values, number) for number in candidates])
    sums = lengths @ counts
    best = int(sums.argmin())
    return candidates[best], float(sums[best])


def _histogram(symbols: Array) -> tuple[Array, Array]:
    """The distinct integers, ascending, and how often each occurs."""
    low, high = int(symbols.min()), int(symbols.max())
    if high - low > MAX_HISTOGRAM_RANGE:
        return np.unique(symbols, return_counts=True)
    counts = np.bincount(symbols - low)
    occurring = np.flatnonzero(counts)
    return occurring + low, counts[occurring]


def prepare_tables() -> None:
    """Compute the tables of `best_distribution` ahead of its first call."""
    _tabulated_code_lengths()


@cache
def _tabulated_code_lengths() -> Array:
    """The bits of every integer of at most MAX_TABULATED_MAGNITUDE, with every distribution.

    float64 [DISTRIBUTIONS, 2 * MAX_TABULATED_MAGNITUDE + 1].
    """
    values = np.arange(-MAX_TABULATED_MAGNITUDE, MAX_TABULATED_MAGNITUDE + 1)
    return np.array([value_code_lengths(values, number) for number in range(DISTRIBUTIONS)])


def value_code_lengths(values: Array, number: int) -> Array:
    """The bits of these integers with one distribution, escapes included: float64 [count]."""
    chosen = distribution(number)
    slots = np.clip(values + chosen.reach + 1, 0, 2 * chosen.reach + 2)
    lengths: Array = _slot_code_lengths(number)[slots]
    is_escaped = np.abs(values) > chosen.reach
    rest = np.abs(values[is_escaped]) - chosen.reach - 1 + (1 << chosen.order)
    lengths[is_escaped] += 2 * (np.frexp(rest)[1] - 1) - chosen.order + 1  # see `escape_parts`
    return lengths


@cache
def _slot_code_lengths(number: int) -> Array:
    """The bits of every slot of a distribution: float64 [slots]."""
    lengths: Array = TOTAL_BITS - np.log2(np.diff(distribution_edges(number)))
    return lengths


def _scale_number(scale: float, unit_number: int) -> int:
    """The number of the distribution nearest to a scale; number `unit_number` has a scale of 1."""
    return unit_number + round(4 * math.log2(max(scale, 2**-4)))
