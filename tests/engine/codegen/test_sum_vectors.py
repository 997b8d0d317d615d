"""Which sums are vectorised, and that their values differ by rounding only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import Device, Tensor, compile, dtype, open_device
from imgmlp.engine.codegen.sum_vectors import vectorise_outputs, vectorise_sums

ROWS = 3
COUNTS = [8, 9, 15, 16, 17, 31, 32, 33, 56, 63, 300]


@pytest.fixture(scope="module", params=[8, 16])
def device(request: pytest.FixtureRequest) -> Device:
    opened = open_mapping("one")
    assert isinstance(opened, Device)
    if request.param > opened.vector_width:
        pytest.skip(f"{opened.info.name} has no vectors of {request.param}")
    opened.vector_width = request.param
    return opened


# Terms of x and y [ROWS, 2 n + 3] that are summed over the last axis, and whether the sum is
# vectorised.
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
def test_sums_of_vectorisable_terms_are_vectorised_and_accurate(device: Device, name: str) -> None:
    """Lengths are whole vectors, half vectors, and a few terms more."""
    (terms, expected), numpy = TERMS[name], open_device("numpy")
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
    vectorised_count = sum(len(vectorise_sums(code, width)[0]) for code in codes)
    assert vectorised_count == (len(COUNTS) if expected else 0)
    lowered = open_device("numpy:uops")
    lowered.vector_width = width
    for n, values in given.items():  # each by itself
        own = [Tensor(v, lowered) for v in values]
        alone = compile(lambda own=own, n=n: {"sums": terms(*own, n).sum(1)}, lowered)  # type: ignore[misc]
        (code,) = alone.stages.codes
        assert bool(vectorise_sums(code, width)[0]) is expected, n


# Terms of x and y [33, 2 n + 3] that are summed over the first axis to n neighbouring outputs, and
# whether these are computed in vectors.
OUTPUTS: dict[str, tuple[Callable[[Tensor, Tensor, int], Tensor], bool]] = {
    "neighbours": (lambda x, y, n: x[:, 3 : n + 3], True),
    "two products": (lambda x, y, n: x[:, :n] * y[:, 1 : n + 1] + x[:, 2 : n + 2] * 0.5, True),
    "the same for all": (lambda x, y, n: x[:, :n] * y[:, :1], True),
    "an exponential": (lambda x, y, n: (x[:, :n] * 0.1).exp(), True),
    "under a condition": (lambda x, y, n: x[:, : n - 2].pad((0, 0), (1, 1)), False),
    "a sine": (lambda x, y, n: x[:, :n].sin(), False),
}


@pytest.mark.parametrize("columns", [16, 32, 96, 1088, 24, 81])
@pytest.mark.parametrize("name", OUTPUTS)
def test_sums_of_neighbouring_outputs_are_vectorised_and_accurate(
    device: Device, name: str, columns: int
) -> None:
    """Outputs are vectorised if columns fill whole pairs of vectors, up to 128 columns at once."""
    terms, expected = OUTPUTS[name]
    rng, numpy = np.random.default_rng(0), open_device("numpy")
    x, y = (rng.standard_normal((33, 2 * columns + 3)).astype(np.float32) for _ in range(2))
    there = Tensor(x, device), Tensor(y, device)

    def sums() -> dict[str, Tensor]:
        results = terms(*there, columns).sum(0)
        return {"sums": results, "again": results * 2 + 1}

    program = compile(sums, device)
    program.run()
    exact = terms(Tensor(x, numpy), Tensor(y, numpy), columns).numpy().astype(np.float64)
    most = 1e-6 * np.abs(exact).sum(0) + 1e-6
    assert (np.abs(program.read("sums") - exact.sum(0)) <= most).all()
    assert (np.abs(program.read("again") - (2 * exact.sum(0) + 1)) <= 2 * most).all()
    codes = program.stages.codes
    results = [vectorise_outputs(code, device.vector_width)[0] for code in codes]
    assert any(results) is (expected and columns % (2 * device.vector_width) == 0)
    assert not any(vectorise_sums(code, device.vector_width)[0] for code in codes)


def test_maximum_of_columns_is_not_vectorised_as_a_sum(device: Device) -> None:
    values = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    program = compile(lambda: {"most": Tensor(values, device).max(0)}, device)
    program.run()
    assert np.array_equal(program.read("most"), values.max(0))
    assert not any(vectorise_outputs(code, 8)[0] for code in program.stages.codes)


def test_short_sum_has_no_more_accumulators_than_terms(device: Device) -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    program = compile(lambda: {"sums": Tensor(values, device).sum(1)}, device)
    program.run()
    assert program.read("sums").tolist() == [10, 35, 60]
    assert "[5];" in program.stages.source.partition("__kernel")[2]
