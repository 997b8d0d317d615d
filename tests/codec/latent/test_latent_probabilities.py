"""Distributions of latents: exact, as documented, and close to Laplace distributions."""

from __future__ import annotations

import hashlib
import runpy

import latent_reference as reference
import numpy as np
import pytest
from conftest import ROOT

from imgmlp.codec.latent.probabilities import (
    DECAY,
    FIRST_NEAR_EDGE,
    MAX_DISTANCE,
    MIN_FREQUENCY,
    NEAR_EDGES,
    PHASES,
    SCALES,
    SLOTS,
    UNIT_SCALE_INDEX,
    CumulativeTables,
    cumulative_frequency,
)

NUMBERS = np.arange(SCALES * PHASES)


def edges(numbers: np.ndarray) -> np.ndarray:
    """All edges of each distribution, int64 [count, SLOTS + 1]."""
    return cumulative_frequency(*np.meshgrid(numbers, np.arange(SLOTS + 1), indexing="ij"))


def test_decay_constants_equal_those_of_the_tool() -> None:
    assert runpy.run_path(str(ROOT / "tools" / "entropy_tables.py"))["LATENT_DECAY"] == DECAY


def test_decay_constants_equal_those_of_the_document() -> None:
    assert tuple(reference.Q) == DECAY


def test_frequencies_equal_the_recorded_digest() -> None:
    digest = hashlib.sha256(edges(NUMBERS).astype("<i4").tobytes())
    assert digest.hexdigest() == "8dc75cb96fa88491530d9d1e2d4180e08939c47a0f2cff94aa6e86afcdd03fd2"


@pytest.mark.parametrize("scale", [0, 57, 112, 190, 255])
@pytest.mark.parametrize("phase", [0, 1, 32, 63])
def test_frequencies_follow_from_the_document(scale: int, phase: int) -> None:
    result = np.diff(edges(np.array([PHASES * scale + phase]))[0])
    assert result.tolist() == reference.frequencies(scale, phase)


def test_every_slot_has_a_frequency_and_their_sum_is_2_to_the_26() -> None:
    result = edges(NUMBERS)
    assert (result[:, 0] == 0).all()
    assert (result[:, -1] == 1 << 26).all()
    assert np.diff(result, axis=1).min() >= MIN_FREQUENCY - 1


def test_tables_hold_cumulative_frequencies_and_near_ones_surround_the_mean() -> None:
    near_tables, tables = CumulativeTables(FIRST_NEAR_EDGE, NEAR_EDGES), CumulativeTables()
    for number in (0, 63, 64, 7777, SCALES * PHASES - 1):
        expected = edges(np.array([number]))[0].tolist()
        assert tables[number] == expected
        assert near_tables[number] == expected[FIRST_NEAR_EDGE : FIRST_NEAR_EDGE + NEAR_EDGES]
    assert FIRST_NEAR_EDGE <= MAX_DISTANCE - 3
    assert MAX_DISTANCE + 4 <= FIRST_NEAR_EDGE + NEAR_EDGES


@pytest.mark.parametrize("scale", range(0, SCALES, 15))
def test_distributions_are_close_to_exact_laplace_distributions(scale: int) -> None:
    """Coding values of the exact distribution costs at most 1/10,000 bit more."""
    b = np.exp((scale - UNIT_SCALE_INDEX) / 32)
    for phase in (0, 13, 32, 63):
        boundaries = (
            np.arange(-MAX_DISTANCE, SLOTS - MAX_DISTANCE + 1) - 0.5 - (phase / PHASES - 0.5)
        )
        half = 0.5 * np.exp(-np.abs(boundaries) / b)
        below = np.where(boundaries < 0, half, 1 - half)
        below[0], below[-1] = 0.0, 1.0
        real = np.diff(below)
        frequencies = np.diff(edges(np.array([PHASES * scale + phase]))[0]) / 2**26
        more = np.sum(real * np.log2(np.maximum(real, 1e-300) / frequencies))
        assert -1e-9 < more < 1e-4
