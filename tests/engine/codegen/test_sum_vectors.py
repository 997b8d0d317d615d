"""Which sums' terms are added several at a time, and that nothing but rounding tells."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import Device, Tensor, compile, dtype, open_device
from imgmlp.engine.codegen.sum_vectors import sums_in_vectors

ROWS = 3
COUNTS = [8, 9, 15, 16, 17, 31, 32, 33, 56, 63, 300]


@pytest.fixture(scope="module", params=[8, 16])
def device(request: pytest.FixtureRequest) -> Device:
    found = open_mapping("one")
    assert isinstance(found, Device)
    if request.param > found.vector_width:
        pytest.skip(f"{found.info.name} has no vectors of {request.param}")
    found.vector_width = request.param
    return found


# Of x [ROWS, 2 n + 3] and y of the same shape: what is summed over the last axis, and whether that
# goes in vectors.
TERMS: dict[str, tuple[Callable[[Tensor, Tensor, int], Tensor], bool]] = {
    "neighbours": (lambda x, y, n: x[:, 3 : n + 3], True),
    "two products": (lambda x, y, n: x[:, :n] * y[:, 1 : n + 1] + x[:, 2 : n + 2] * 0.5, True),
    "every other one": (lambda x, y, n: x[:, 3 : 2 * n + 3 : 2], True),
    "every other one, and neighbours": (
        lambda x, y, n: x[:, : 2 * n : 2] * y[:, :n] - x[:, 1 : 2 * n + 1 : 2],
        True,
    ),
    "rows by an index": (lambda x, y, n: x.gather(Tensor.arange(ROWS) // 2)[:, :n] * 2, True),
    "whole numbers": (lambda x, y, n: (x[:, :n] * 3).cast(dtype.i32).cast(dtype.f32), True),
    "an exponential": (lambda x, y, n: (x[:, :n] * 0.1).exp(), True),
    "the larger of two, or none": (
        lambda x, y, n: Tensor.where(x[:, :n] < 0.5, y[:, :n].maximum(0.1), 0.0),
        True,
    ),
    "from the last to the first": (lambda x, y, n: x[:, :n].flip(1), False),
    "every third one": (lambda x, y, n: x.reshape(-1)[: 3 * n : 3].reshape(1, n), False),
    "under a condition": (lambda x, y, n: x[:, :n].pad((0, 0), (1, 1)), False),
    "a sine": (lambda x, y, n: x[:, :n].sin(), False),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms(device: Device, name: str) -> None:
    """All lengths: of whole vectors, halves of one, and a few terms more."""
    (terms, wanted), numpy = TERMS[name], open_device("numpy")
    rng = np.random.default_rng(0)
    given = {
        n: [rng.standard_normal((ROWS, 2 * n + 3)).astype(np.float32) for _ in range(2)]
        for n in COUNTS
    }
    there = {n: [Tensor(v, device) for v in values] for n, values in given.items()}
    program = compile(lambda: {str(n): terms(*there[n], n).sum(1) for n in COUNTS}, device)
    program.run()
    for n, values in given.items():
        exact = terms(*(Tensor(v, numpy) for v in values), n).numpy().astype(np.float64)
        most = 1e-6 * np.abs(exact).sum(1) + 1e-6
        assert (np.abs(program.read(str(n)) - exact.sum(1)) <= most).all(), n
    codes, width = program.stages.codes, device.vector_width
    found = sum(len(sums_in_vectors(code, width)[0]) for code in codes)
    assert found == (len(COUNTS) if wanted else 0)
    lowered = open_device("numpy:uops")
    lowered.vector_width = width
    for n, values in given.items():  # each by itself
        own = [Tensor(v, lowered) for v in values]
        alone = compile(lambda own=own, n=n: {"sums": terms(*own, n).sum(1)}, lowered)  # type: ignore[misc]
        (code,) = alone.stages.codes
        assert bool(sums_in_vectors(code, width)[0]) is wanted, n


def test_fewer_than_a_vector_have_no_more_accumulators_than_terms(device: Device) -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    program = compile(lambda: {"sums": Tensor(values, device).sum(1)}, device)
    program.run()
    assert program.read("sums").tolist() == [10, 35, 60]
    assert "[5];" in program.stages.source.partition("__kernel")[2]
