"""The search for the number that leads to the file nearest to a target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from imgmlp.codec.training.search import (
    MAX_PSNR_SACRIFICE,
    MAX_TRIALS,
    approached,
    is_too_much,
    nearest,
)
from imgmlp.codec.training.target import Goal


@dataclass(frozen=True)
class File:
    size: int
    psnr: float = math.nan


def test_search_finds_bytes_within_the_interval() -> None:
    wanted = Goal("bytes", 700)
    tried = approached(wanted, File(1000), (0.0, 1000.0), lambda number: File(round(number)))
    assert [file.size for file in tried] == [500, 750, 698]  # at least 98% of the target
    assert nearest(wanted, [File(1000), *tried]) == File(698)


def test_search_finds_a_psnr_within_the_interval() -> None:
    wanted = Goal("psnr", 30.0)
    tried = approached(wanted, File(9, 20.0), (0.0, 64.0), lambda number: File(9, number))
    assert tried[-1].psnr == pytest.approx(30.0, abs=0.1)
    assert is_too_much(wanted, File(1, 30.01))
    assert not is_too_much(wanted, File(10**6, 29.99))
    assert not is_too_much(wanted, File(10**6, 30.0))


def test_search_has_no_trials_after_a_hit_and_a_limited_number_otherwise() -> None:
    wanted = Goal("bytes", 700)
    assert approached(wanted, File(699), (0.0, 1.0), lambda _: File(0)) == []
    assert len(approached(wanted, File(9), (0.0, 1.0), lambda _: File(9))) == MAX_TRIALS


def test_empty_interval_has_no_trials() -> None:
    """Such an interval occurs if weights already have all the bits that they can use."""
    assert approached(Goal("psnr", 30.0), File(9, 20.0), (8.0, 8.0), lambda _: File(9, 20.0)) == []


def test_search_ends_once_it_is_told_to() -> None:
    answers = iter([False, False, True])
    wanted = Goal("bytes", 700)
    tried = approached(wanted, File(9), (0.0, 1.0), lambda _: File(9), lambda: next(answers))
    assert len(tried) == 2


def test_nearest_file_saves_bytes_that_bring_little_if_the_psnr_is_missed() -> None:
    wanted = Goal("psnr", 30.0)
    assert nearest(wanted, [File(440, 29.88), File(350, 29.86)]) == File(350, 29.86)
    assert nearest(wanted, [File(380, 29.88), File(350, 29.5)]) == File(380, 29.88)
    assert nearest(wanted, [File(350, 29.7), File(20, 29.3)]) == File(350, 29.7)
    at_the_limit = [File(350, MAX_PSNR_SACRIFICE), File(20, 0.0)]
    assert nearest(wanted, at_the_limit) == File(20, 0.0)
    assert nearest(wanted, [File(440, 29.95), File(350, 29.86)]) == File(440, 29.95)
