"""Real numbers as multiples of a step: the steps there are, rounding, and what it costs.

Knows nothing of what the numbers stand for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder

# Step n is (4 + n % 4) * 2**(n // 4 - 24): four to an octave, so that a product with one is a
# product with a whole number below 8 and a shift.
STEPS = 84
FINEST = -24  # exponent of step 0

Array = np.ndarray[Any, Any]


def step_parts(number: int) -> tuple[int, int]:
    """(m, e) of step m * 2**-e."""
    return 4 + number % 4, -FINEST - number // 4


def step_size(number: int) -> float:
    """A step of this number, exactly. Raises ValueError if there is none."""
    if not 0 <= number < STEPS:
        raise ValueError(f"there is no step {number}; use 0 to {STEPS - 1}")
    m, e = step_parts(number)
    return math.ldexp(m, -e)


def nearest_step(size: float, largest: int = STEPS - 1) -> int:
    """The number of the step that is nearest to a size, by ratio."""
    ratios = [abs(math.log2(step_size(n) / max(size, 1e-30))) for n in range(largest + 1)]
    return int(np.argmin(ratios))


def quantize(values: Array, size: float, towards_zero: float = 0.0) -> Array:
    """int32 of the same shape: how many steps of a size each value is, halves to even.

    Numbers that are `towards_zero` of a step further out are still rounded inwards, which saves
    bits.
    """
    steps = np.asarray(values, np.float64) / size
    inner = np.maximum(np.abs(steps) - towards_zero, 0.0)
    return np.copysign(np.rint(inner), steps).astype(np.int32)


def coded_bits(symbols: Array) -> float:
    """What the entropy coder spends on whole numbers of one distribution, in bits."""
    return range_coder.cheapest(symbols.ravel())[1]
