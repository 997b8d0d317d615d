"""Maps symbols to the parts of their distributions that the range coder narrows its interval to.

Part of the file format (docs/format-imlp.md). A symbol within the reach of its distribution is
coded as one part; one beyond it as the part of an escape, followed by raw bits of probability 1/2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS, TOTAL_BITS, distribution

MAX_MAGNITUDE = 2**30  # of a symbol
RAW_BIT_FREQUENCY = 1 << TOTAL_BITS - 1  # of either value of a raw bit

Array = np.ndarray[Any, Any]
# (start, frequency) of a symbol: the part of [0, 2**TOTAL_BITS) that belongs to it.
Part = tuple[int, int]


def check_symbols(symbols: Array, scales: Array | int) -> tuple[Array, Array]:
    """Symbols and distribution numbers as int64 [count]. Raises ValueError."""
    symbols = np.asarray(symbols)
    if symbols.ndim != 1 or (symbols.size and symbols.dtype.kind not in "iu"):
        raise ValueError(f"symbols are {symbols.dtype}{list(symbols.shape)}, not integers [count]")
    if symbols.size:
        low, high = int(symbols.min()), int(symbols.max())
        if max(-low, high) > MAX_MAGNITUDE:
            raise ValueError(f"symbols from {low} to {high} are beyond ±2**30")
    return symbols.astype(np.int64), distribution_numbers(scales, symbols.size)


def distribution_numbers(scales: Array | int, count: int) -> Array:
    """Distribution numbers as int64 [count]. Raises ValueError."""
    scales = np.asarray(scales)
    if scales.shape not in ((), (count,)) or (scales.size and scales.dtype.kind not in "iu"):
        kind = f"{scales.dtype}{list(scales.shape)}"
        raise ValueError(f"scales are {kind}, not one integer or [{count}] of them")
    if scales.size and not (scales.min() >= 0 and scales.max() < DISTRIBUTIONS):
        given = f"{scales.min()} to {scales.max()}"
        raise ValueError(f"scales are {given}, not 0 to {DISTRIBUTIONS - 1}")
    return np.broadcast_to(scales.astype(np.int64), (count,))


def symbol_parts(symbols: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Symbols clipped to the reach of their distributions, and starts and frequencies of parts."""
    clipped, starts, frequencies = (np.empty_like(symbols) for _ in range(3))
    for number in distinct(scales):
        reach, edges = distribution(number).reach, distribution_edges(number)
        at = np.flatnonzero(scales == number)
        slots = np.clip(symbols[at] + reach + 1, 0, edges.size - 2)
        starts[at], frequencies[at] = edges[slots], edges[slots + 1] - edges[slots]
        clipped[at] = np.clip(symbols[at], -reach, reach)
    return clipped, starts, frequencies


def escape_parts(symbol: int, number: int) -> list[Part]:
    """What follows an escape: the distance of the symbol beyond the reach, as raw bits.

    The bits are an Exp-Golomb code of the distribution's order.
    """
    chosen = distribution(number)
    value = abs(symbol) - chosen.reach - 1 + (1 << chosen.order)
    length = value.bit_length() - 1
    code = "1" * (length - chosen.order) + "0" + format(value, "b")[1:]
    return [(RAW_BIT_FREQUENCY if bit == "1" else 0, RAW_BIT_FREQUENCY) for bit in code]


@cache
def distribution_edges(number: int) -> Array:
    """The starts of a distribution's parts, and the end of the last: int64 [slots + 1]."""
    return np.array(distribution(number).starts, np.int64)


def distinct(numbers: Array) -> list[int]:
    """The distinct numbers, ascending. The first call of `np.unique` would load more of NumPy."""
    distinct: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return distinct
