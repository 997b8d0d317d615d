"""The integer distributions are those of the document, exact, and close to the real ones."""

from __future__ import annotations

import hashlib
import runpy

import imlp_reference as reference
import numpy as np
import pytest
from conftest import ROOT

from imgmlp.codec.bitstream.probabilities import (
    DECAY,
    DISTRIBUTIONS,
    LAPLACES,
    TOTAL_BITS,
    Distribution,
    distribution,
)

TOOLS = ROOT / "tools"
ALL = [distribution(index) for index in range(DISTRIBUTIONS)]


def frequencies(known: Distribution) -> list[int]:
    return [b - a for a, b in zip(known.starts, known.starts[1:], strict=False)]


def exact(index: int, count: int) -> np.ndarray:
    """Probabilities of 0, 1 ... count - 1 under the real distribution."""
    k = np.arange(count)
    if index < LAPLACES:
        b = 2 ** ((index - 15) / 4)
        return np.where(k == 0, -np.expm1(-0.5 / b), np.sinh(0.5 / b) * np.exp(-k / b))
    s = 2 ** ((index - 55) / 4)
    density = np.exp(-(k**2) / (2 * s * s))
    return density / (2 * density.sum() - 1)


def test_the_constants_are_those_that_the_tool_prints() -> None:
    assert runpy.run_path(str(TOOLS / "entropy_tables.py"))["DECAY"] == DECAY


def test_the_constants_are_those_of_the_document() -> None:
    assert tuple(reference.D) == DECAY


def test_no_frequency_has_ever_changed() -> None:
    digest = hashlib.sha256(repr([(d.starts, d.reach, d.order) for d in ALL]).encode())
    assert digest.hexdigest() == "9e553ac41ce966ee0577499c9556c46b39207338b3eace08eb5ec6904d9d1527"


@pytest.mark.parametrize("index", [0, 7, 15, 33, 47, 48, 60, 87])
def test_frequencies_follow_from_the_document(index: int) -> None:
    known = distribution(index)
    assert (frequencies(known), known.reach, known.order) == reference.distribution(index)


@pytest.mark.parametrize("index", range(DISTRIBUTIONS))
def test_frequencies_are_symmetric_never_zero_and_add_up(index: int) -> None:
    found = frequencies(distribution(index))
    assert len(found) == 2 * distribution(index).reach + 3
    assert found == found[::-1]
    assert min(found) >= 1
    assert sum(found) == 2**TOTAL_BITS


@pytest.mark.parametrize("index", range(DISTRIBUTIONS))
def test_what_rounding_loses_is_below_a_ten_thousandth(index: int) -> None:
    known = distribution(index)
    p = exact(index, known.reach + 1)
    sides = np.where(np.arange(p.size) == 0, 1, 2)
    found = np.array(frequencies(known)[known.reach + 1 : -1]) / 2**TOTAL_BITS
    entropy, spent = -(sides * p) @ np.log2(p), -(sides * p) @ np.log2(found)
    assert spent <= 1.0001 * entropy
    assert 1 - sides @ p < 2**-16


@pytest.mark.parametrize("index", [-1, DISTRIBUTIONS])
def test_there_are_no_others(index: int) -> None:
    with pytest.raises(ValueError, match=f"no distribution {index}"):
        distribution(index)
