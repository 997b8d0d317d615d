"""The lambda of the next pass towards a target, and the end of the passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest

from imgmlp.codec.training.passes import (
    MAX_LONGER_PASSES,
    MAX_PASSES,
    PASS_SAVING,
    TYPICAL_SLOPE,
    Passes,
    PassResult,
)
from imgmlp.codec.training.target import Goal


@dataclass(frozen=True)
class File:
    size: int
    psnr: float


def test_lambda_of_a_pass_follows_from_the_latest_passes_alone() -> None:
    """The files have 359, 515 and 505 bytes where 396 are wanted. The search does not return to the
    first lambda, though it gave too few bytes, because by now it would give too many as well.
    """
    results = [PassResult(-9.33, -0.14), PassResult(-9.68, 0.38), PassResult(-9.43, 0.35)]
    passes = Passes(Goal("bytes", 400), results=results)
    assert math.log2(passes.next_lmbda()) > -9.33 + 0.2
    # A line through this result and the previous one meets the target.
    passes.results.append(PassResult(-8.4, -0.1))
    assert math.log2(passes.next_lmbda()) == pytest.approx(-8.4 - 0.1 * 1.03 / 0.45)


@pytest.mark.parametrize(("excess", "doublings"), [(3.0, 2.0), (60.0, 3.0), (-60.0, -3.0)])
def test_restarted_run_may_change_lambda_more_than_a_pass(excess: float, doublings: float) -> None:
    passes = Passes(Goal("psnr", 35))
    passes.add(1e-3, File(5000, 35 + excess))
    furthest = 1.5
    assert math.log2(passes.next_lmbda(restarts=True) / 1e-3) == pytest.approx(doublings)
    usual = min(max(doublings, -furthest), furthest)
    assert math.log2(passes.next_lmbda() / 1e-3) == pytest.approx(usual)


def test_lambda_rises_after_lossless_files() -> None:
    passes, lmbdas = Passes(Goal("psnr", 40)), [1e-4]
    for _ in range(3):
        passes.add(lmbdas[-1], File(999, math.inf))
        lmbdas.append(passes.next_lmbda())
    assert all(2 * now < later < math.inf for now, later in pairwise(lmbdas))


def test_expensive_rounding_is_followed_by_another_pass() -> None:
    """Even if the rounded file hits the target."""
    passes = Passes(Goal("bytes", 3568), results=[PassResult(-12.0, 0.2)])
    assert not passes.suffice(3536, 24.15, File(3924, 34.36))
    assert not passes.suffice(3440, 33.70, File(3440, 33.70))  # nothing lost, but too small
    assert passes.suffice(3520, 33.40, File(3600, 33.49))
    assert passes.suffice(3516, 33.81, File(3516, 33.81))
    for lost, enough in ((0.04, True), (0.06, False)):  # rounding always loses a little
        assert passes.suffice(3516, 33.81, File(3516, 33.81 + lost)) is enough


@pytest.mark.parametrize("wanted", [Goal("bytes", 400), Goal("psnr", 30), Goal("lambda", 1e-3)])
def test_unconditional_passes_are_taken_and_others_end_with_a_hit(
    wanted: Goal,
) -> None:
    passes, hit = Passes(wanted, unconditional=2), File(396, 30.0)
    for _ in range(2):
        passes.add(1e-3, hit)
        assert not passes.suffice(hit.size, hit.psnr, hit)
        assert passes.next_lmbda() == pytest.approx(1e-3, rel=0.02)
    passes.add(1e-3, hit)
    assert passes.suffice(hit.size, hit.psnr, hit)


def test_missed_target_ends_after_the_last_pass() -> None:
    passes, far = Passes(Goal("psnr", 50)), File(400, 30.0)
    for left in range(MAX_PASSES, -1, -1):
        passes.add(1e-3, far)
        assert passes.suffice(far.size, far.psnr, far) is (left == 0)


def test_passes_at_nearly_equal_lambdas_give_no_slope() -> None:
    """Files of 30.28 and 30.32 dB, the latter at the higher lambda, differ by chance."""
    results = [PassResult(-8.3, 0.0), PassResult(-8.4, 0.28), PassResult(-8.21, 0.32)]
    passes = Passes(Goal("psnr", 30), results=results)
    assert math.log2(passes.next_lmbda()) == pytest.approx(-8.21 - 0.32 / TYPICAL_SLOPE["psnr"])


def test_lambda_changes_faster_if_results_do_not_follow() -> None:
    """The files have 2% too many bytes at any lambda. After three of them lambda changes twice as
    much as usual, after four of them four times as much, until a file has too few bytes.
    """
    passes, usual = Passes(Goal("bytes", 400)), -0.03 / TYPICAL_SLOPE["bytes"]
    passes.results = [PassResult(-8.3, -0.1), PassResult(-8.4, 0.03), PassResult(-8.37, 0.03)]
    for times in (1, 2, 4, 4):
        lmbda = passes.results[-1].log2_lmbda
        assert math.log2(passes.next_lmbda()) - lmbda == pytest.approx(times * usual)
        passes.results += [PassResult(lmbda + 0.03, 0.03)]
    passes.results += [PassResult(lmbda + 0.1, -0.03)]
    assert math.log2(passes.next_lmbda()) - (lmbda + 0.1) == pytest.approx(-usual)


def test_results_that_halve_the_excess_count_as_following_lambda() -> None:
    passes = Passes(Goal("psnr", 30), results=[PassResult(-9.0, n) for n in (2.0, 1.0, 0.4, 0.15)])
    assert math.log2(passes.next_lmbda()) == pytest.approx(-9.0 - 0.15 / TYPICAL_SLOPE["psnr"])


def test_passes_left_are_the_remaining_unconditional_ones() -> None:
    passes, passes_left = Passes(Goal("psnr", 30), unconditional=2), list[int]()
    for _ in range(4):
        passes_left.append(passes.passes_left)
        passes.add(1e-3, File(400, 30.0))
    assert passes_left == [2, 1, 0, 0]


def test_bytes_that_unconditional_passes_will_save_are_spent_before() -> None:
    hit = Passes(Goal("bytes", 400), unconditional=4)
    hit.add(1e-3, File(396, 30.0))
    saved = 4 * PASS_SAVING["bytes"]
    assert math.log2(hit.next_lmbda() / 1e-3) == pytest.approx(saved / TYPICAL_SLOPE["bytes"])
    for _ in range(4):
        hit.add(1e-3, File(396, 30.0))
    assert hit.next_lmbda() == pytest.approx(1e-3)


def test_passes_at_the_lowest_lambda_become_longer_until_the_psnr_is_met() -> None:
    """Each pass that misses the PSNR doubles the steps of the next, and there are more passes."""
    passes, missing = (
        Passes(Goal("psnr", 50), min_lmbda=1e-6, max_step_factor=8.0),
        File(5000, 47.0),
    )
    passes.add(2e-6, missing)
    step_factors = list[float]()
    while not passes.suffice(5000, 47.0, missing):
        step_factors.append(passes.step_factor())
        assert passes.next_lmbda() == pytest.approx(1e-6)
        passes.add(passes.next_lmbda(), missing)
    assert step_factors == [1.0, 2.0, 4.0] + [8.0] * (MAX_PASSES + MAX_LONGER_PASSES - 3)
    passes.add(1e-6, File(5000, 50.5))
    assert passes.step_factor() == 1.0


def test_passes_at_other_lambdas_or_towards_bytes_do_not_become_longer() -> None:
    """There are no further passes either, nor if longer passes are not allowed."""
    missing, bytes_missing = File(5000, 47.0), File(4000, 47.0)
    for passes, file in (
        (Passes(Goal("psnr", 50), min_lmbda=1e-9, max_step_factor=8.0), missing),
        (Passes(Goal("psnr", 50), min_lmbda=1e-6), missing),
        (Passes(Goal("bytes", 5000), min_lmbda=1e-6, max_step_factor=8.0), bytes_missing),
    ):
        for _ in range(1 + MAX_PASSES):
            assert not passes.results or not passes.suffice(file.size, 47.0, file)
            passes.add(1e-6, file)
            assert passes.step_factor() == 1.0
        assert passes.suffice(file.size, 47.0, file)


def test_lambda_of_a_pass_is_never_below_the_minimum() -> None:
    passes = Passes(Goal("psnr", 50), min_lmbda=1e-6)
    for _ in range(3):
        passes.add(passes.next_lmbda() if passes.results else 2e-6, File(5000, 45.0))
    assert passes.next_lmbda() == pytest.approx(1e-6)
