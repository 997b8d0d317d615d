"""Integers wrap, also where a compiler could take it that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from imgmlp.engine import AnyDevice, Tensor

TOP = 2**31 - 1
EDGES = [2**31 - 1, -(2**31), 2**30, -(2**30) - 1, 46_341, 5, -7, 0]
# Of Tensors, and of NumPy's arrays of int64 whose results `wrapped` takes modulo 2^32.
CASES: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "more than before": lambda x, wrapped: wrapped(x + 1) > x,
    "less than before": lambda x, wrapped: wrapped(x - 1) < x,
    "doubled and halved": lambda x, wrapped: wrapped(x * 2) // 2,
    "times three over three": lambda x, wrapped: wrapped(x * 3) // 3,
    "times three modulo three": lambda x, wrapped: wrapped(x * 3) % 3,
    "squares below zero": lambda x, wrapped: wrapped(x * x) < 0,
    "negative": lambda x, wrapped: wrapped(-x) < 0,
    "a product and a sum": lambda x, wrapped: wrapped(wrapped(x * 7) + x) > x,
    "a sum of rows": lambda x, wrapped: wrapped(x.sum(0)) < 0,
    "a sum of columns": lambda x, wrapped: wrapped(x.sum(1)) < 0,
    "two that are not negative": lambda x, wrapped: wrapped((x & TOP)[:, 0:3:2].sum(1)) < 0,
    "all of them": lambda x, wrapped: wrapped((x & TOP).sum(1)) < 0,
}


def wrapped(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)


@pytest.mark.parametrize("repeats", [1, 40])
@pytest.mark.parametrize("case", CASES)
def test_signed_integers_wrap(device: AnyDevice, case: str, repeats: int) -> None:
    values = np.array([EDGES, EDGES[::-1], np.roll(EDGES, 3)] * repeats, np.int32)
    found = CASES[case](Tensor(values, device), lambda x: x).numpy()
    np.testing.assert_array_equal(found, CASES[case](values.astype(np.int64), wrapped))


def test_ranges_wrap(device: AnyDevice) -> None:
    found = (Tensor.arange(10, device=device) + (2**31 - 5)) < 0
    assert found.numpy().tolist() == [False] * 5 + [True] * 5


def test_the_magnitude_of_the_least_integer_is_itself(device: AnyDevice) -> None:
    assert (Tensor(np.array(EDGES, np.int32), device).abs() < 0).numpy().sum() == 1
