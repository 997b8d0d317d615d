"""Quantisation of real numbers: the available step sizes, rounding, and its cost in bits.

This module does not depend on what the numbers mean.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import code_lengths

# Step size n is (4 + n % 4) * 2**(n // 4 - 24). There are four per octave, so that multiplying by a
# step size is multiplying by an integer below 8 and shifting.
STEP_SIZES = 84
MIN_STEP_EXPONENT = -24  # the exponent of step size 0, as the expression above has it

Array = np.ndarray[Any, Any]


def step_parts(number: int) -> tuple[int, int]:
    """The integers (m, e) of a step size, which is m * 2**-e."""
    return 4 + number % 4, -MIN_STEP_EXPONENT - number // 4


def step_size(number: int) -> float:
    """The step size of this number, exactly. Raises ValueError if there is none."""
    if not 0 <= number < STEP_SIZES:
        raise ValueError(f"there is no step {number}; use 0 to {STEP_SIZES - 1}")
    m, e = step_parts(number)
    return math.ldexp(m, -e)


def nearest_step(size: float, largest: int = STEP_SIZES - 1) -> int:
    """The number of the step size that is nearest to `size` by ratio, at most `largest`."""
    ratios = [abs(math.log2(step_size(n) / max(size, 1e-30))) for n in range(largest + 1)]
    return int(np.argmin(ratios))


def quantize(values: Array, size: float, towards_zero: float = 0.0) -> Array:
    """Values as multiples of a step size, rounded half to even: int32 of the same shape.

    `towards_zero` is a fraction of a step: magnitudes are reduced by it before they are rounded,
    which saves bits.
    """
    steps = np.asarray(values, np.float64) / size
    inner = np.maximum(np.abs(steps) - towards_zero, 0.0)
    return np.copysign(np.rint(inner), steps).astype(np.int32)


def coded_bits(symbols: Array) -> float:
    """The bits that the range coder spends on integers with their best distribution."""
    return code_lengths.best_distribution(symbols.ravel())[1]
