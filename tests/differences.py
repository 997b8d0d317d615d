"""What operations are compared with: NumPy in float64, and its central differences.

A case is a function of Tensors and the same function of NumPy arrays, written independently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from imgmlp.engine import Tensor

STEP = 1e-5  # of the central difference, in float64


@dataclass(frozen=True)
class Case:
    name: str
    tensors: Callable[..., Tensor]
    arrays: Callable[..., np.ndarray]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    between: float = 0.0  # how large what is added on the way is, if more than what goes in and out


def inputs_of(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(len(case.name))
    return [rng.uniform(case.low, case.high, s).astype(np.float32) for s in case.shapes]


@functools.cache
def expected(case: Case) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """In float64: values, gradients, and how large what rounding is part of was, by element.

    Each input is moved by itself, to either side. How far that moves an answer, or by curvature a
    gradient, times how large the input is, tells what its rounding does: of a sum it is the sum
    of absolute values.
    """
    wide = [a.astype(np.float64) for a in inputs_of(case)]
    value = np.asarray(case.arrays(*wide))
    weights = np.cos(np.arange(value.size)).reshape(value.shape)
    size = np.abs(value) + case.between
    found = {}
    for n, array in enumerate(wide):
        slopes, sizes = np.empty(array.shape), np.empty(array.shape)
        for place in np.ndindex(array.shape):
            held = array[place]
            array[place] = held + STEP
            up = case.arrays(*wide)
            array[place] = held - STEP
            down = case.arrays(*wide)
            array[place] = held
            slope, bend = (up - down) / (2 * STEP), (up - 2 * value + down) / STEP**2
            slopes[place] = (slope * weights).sum()
            sizes[place] = ((np.abs(slope) + np.abs(bend * held)) * np.abs(weights)).sum()
            size += np.abs(slope * held)
        found[f"{case.name}, gradient {n}"] = slopes, sizes + case.between
    return {case.name: (value, size)} | found
