"""Random symbols and numbers of distributions for the tests of the range coder."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS
from imgmlp.codec.bitstream.symbol_parts import MAX_MAGNITUDE

DISTRIBUTION_NUMBERS = st.integers(0, DISTRIBUTIONS - 1)
SMALL_SYMBOLS = st.integers(-300, 300)
LARGE_SYMBOLS = st.integers(-MAX_MAGNITUDE, MAX_MAGNITUDE)  # most of them beyond every reach
CODED_PAIRS = st.lists(st.tuples(SMALL_SYMBOLS | LARGE_SYMBOLS, DISTRIBUTION_NUMBERS), max_size=60)


def laplace(scale: float, count: int, seed: int = 0) -> np.ndarray:
    return np.rint(np.random.default_rng(seed).laplace(0, scale, count)).astype(np.int64)


def normal(deviation: float, count: int, seed: int = 0) -> np.ndarray:
    return np.rint(np.random.default_rng(seed).normal(0, deviation, count)).astype(np.int64)


def symbols_and_scales(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    symbols, scales = np.array(pairs, np.int64).reshape(-1, 2).T
    return symbols, scales
