"""How large a network is for a lambda, a size or a quality."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from imgmlp.codec.mlp import rate_model
from imgmlp.codec.mlp.rate_model import (
    MIN_USEFUL_STEPS,
    PSNR_RESERVE,
    RunResult,
    SizeResult,
    best_weights,
    expected_final_psnr,
    predicted_psnr,
)
from imgmlp.codec.training.target import Goal


@pytest.mark.parametrize("weights", [400, 3_000, 22_000, 300_000])
def test_a_network_has_about_the_weights_wanted(weights: int) -> None:
    for channels in (1, 3, 4):
        shape = rate_model.network_shape(weights, channels)
        assert shape.parameters == pytest.approx(weights, rel=0.15)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_there_are_few_networks_and_one_is_hardly_larger_than_the_next(channels: int) -> None:
    found = [rate_model.network_shape(80 * 1.01**n, channels) for n in range(800)]
    assert len(set(found)) < 60
    sizes = [shape.parameters for shape in dict.fromkeys(found)]
    assert sizes[0] < 150
    assert all(1 < b / a < 1.5 for a, b in pairwise(sizes))
    assert all(b / a < 1.26 for a, b in pairwise(sizes) if a > 5_000)


def test_a_network_of_as_many_weights_as_one_has_is_that_one() -> None:
    found = {rate_model.network_shape(80 * 1.05**n, 3) for n in range(160)}
    assert all(rate_model.network_shape(one.parameters, 3) == one for one in found)


def test_few_weights_make_fewer_layers() -> None:
    shapes = [rate_model.network_shape(n, 3) for n in (400, 900, 1_100, 22_000)]
    assert [shape.hidden for shape in shapes] == [3, 3, 5, 5]


def test_networks_stay_within_the_format() -> None:
    assert rate_model.network_shape(0, 1).width == 4
    assert rate_model.network_shape(1e9, 4).width == 1024


def test_a_quality_takes_the_weights_that_what_is_known_leads_to() -> None:
    one = SizeResult(1000, 30.0)
    assert rate_model.weights_for_psnr(30.0, [one]) == 1000
    two = [one, SizeResult(2000, 33.0)]
    assert rate_model.weights_for_psnr(34.5, two) == pytest.approx(2000 * 2**0.5)
    assert rate_model.weights_for_psnr(27.0, two) == pytest.approx(500)
    assert rate_model.weights_for_psnr(31.5, two) == pytest.approx(1000 * 2**0.5)


def test_chance_does_not_hide_the_fewest_weights_that_are_enough() -> None:
    known = [SizeResult(8000, 44.5), SizeResult(1000, 40.0), SizeResult(4000, 44.6)]
    assert 1000 < rate_model.weights_for_psnr(44.0, known) < 4000


def test_runs_that_say_nonsense_are_not_believed() -> None:
    same = [SizeResult(1000, 30.0), SizeResult(2000, 29.0)]
    assert 500 > rate_model.weights_for_psnr(25.0, same) > 10


def test_a_lambda_is_paid_as_long_as_more_weights_save_more_than_they_cost() -> None:
    """Against the least of squared error + lambda * bits a pixel, over all numbers of weights."""
    known, lmbda, pixels = [SizeResult(1000, 30.0), SizeResult(2000, 33.0)], 2e-3, 16_384

    def cost(weights: float) -> float:
        error = 10 ** (-(30 + 3 * math.log2(weights / 1000)) / 10)
        return error + lmbda * rate_model.BITS_PER_WEIGHT * weights / pixels

    best = min((100 * 1.01**n for n in range(800)), key=cost)
    found = rate_model.weights_for_lmbda(lmbda, pixels, known)
    assert found == pytest.approx(best, rel=0.02)
    quality = 30 + 3 * math.log2(found / 1000)
    assert rate_model.lmbda_of(found, quality, pixels, known) == pytest.approx(lmbda)


def test_more_steps_bring_less_and_less() -> None:
    gains = [rate_model.gain_of_more_steps(2.0, n) for n in range(20)]
    assert gains[0] == 0
    assert all(b > a for a, b in pairwise(gains))
    assert gains[1] < 2 < gains[-1] < 4
    assert rate_model.gain_of_more_steps(-1.0, 3) == 0


# --- in a limited time, by one short run ---

PHOTO = 768 * 512
WITHIN = 500.0, 100_000.0


def steps(weights: float) -> float:
    """That two cores take in some ten seconds."""
    return 1e8 / weights


def test_what_was_seen_is_what_is_predicted_for_the_same_run() -> None:
    seen = RunResult(5_643, 2_284, 18.94)
    assert predicted_psnr(5_643, 2_284, PHOTO, seen) == pytest.approx(18.94)


@pytest.mark.parametrize(
    ("samples", "short", "weights", "length", "reached"),
    [
        (PHOTO, RunResult(5_643, 2_284, 18.94), 14_563, 6_126, 21.31),  # kodim05
        (PHOTO, RunResult(5_643, 2_284, 26.34), 14_563, 6_126, 29.57),  # kodim23
        (128**2, RunResult(3_083, 2_284, 24.40), 3_083, 17_135, 26.52),  # a piece of kodim05
        (128**2, RunResult(3_083, 2_284, 29.34), 9_283, 6_126, 36.88),  # of kodim15
    ],
)
def test_photographs_came_near_to_what_is_predicted(
    samples: int, short: RunResult, weights: float, length: float, reached: float
) -> None:
    assert predicted_psnr(weights, length, samples, short) == pytest.approx(reached, abs=1.6)


@pytest.mark.parametrize(
    ("weights", "length", "end"), [(2_091, 40_419, 31.17), (5_643, 33_533, 36.35)]
)
def test_a_short_run_says_less_of_long_ones(weights: float, length: float, end: float) -> None:
    seen = RunResult(4_267, 1_000, 28.6)  # 128x128 pixels of kodim15
    assert predicted_psnr(weights, length, 128**2, seen) == pytest.approx(end, abs=0.55)


@pytest.mark.parametrize(
    ("reached", "weights", "length", "end"),
    [  # 128x128 pixels of kodim05, 15 and 19, after a fifth of the steps and in the end
        (20.82, 871, 38_138, 20.75),
        (28.01, 2_091, 15_281, 30.82),
        (31.52, 5_643, 16_665, 35.49),
    ],
)
def test_small_pictures_came_near_to_what_their_beginning_said(
    reached: float, weights: float, length: float, end: float
) -> None:
    assert expected_final_psnr(reached, weights, length) == pytest.approx(end, abs=1.0)
    assert expected_final_psnr(reached, 100, length) == reached  # which learn no more


def test_more_steps_and_no_change_of_the_weights_never_bring_less() -> None:
    seen = RunResult(5_643, 2_284, 18.94)
    found = [predicted_psnr(5_643, 2.0**n, PHOTO, seen) for n in range(10, 20)]
    assert found == sorted(found)


@pytest.mark.parametrize("samples", [64**2, 128**2, PHOTO, 2**21, 2**23, 24 * 10**6, 2**28])
def test_larger_networks_and_longer_runs_are_never_foreseen_to_be_worse(samples: int) -> None:
    """Of pictures far larger and smaller than those that were measured as well."""
    seen = RunResult(4_267, 1_000, 20.0)
    sizes = [500 * 2 ** (n / 2) for n in range(17)]
    by_size = [predicted_psnr(size, 10_000, samples, seen) for size in sizes]
    assert by_size == sorted(by_size)
    for size in sizes:
        by_steps = [predicted_psnr(size, 10.0 * 2**n, samples, seen) for n in range(15)]
        assert by_steps == sorted(by_steps), size
    found = best_weights(Goal("psnr", 24), samples, (500, 100_000), lambda w: 1e9 / w, seen)
    assert found > 1_500


def test_a_quality_has_the_fewest_weights_that_reach_it() -> None:
    seen = RunResult(5_643, 2_284, 18.94)
    few = best_weights(Goal("psnr", 19), PHOTO, WITHIN, steps, seen)
    more = best_weights(Goal("psnr", 20.5), PHOTO, WITHIN, steps, seen)
    assert few < more
    given = predicted_psnr(more, steps(more), PHOTO, seen)
    assert given == pytest.approx(20.5 + PSNR_RESERVE, abs=0.2)


def test_a_quality_out_of_reach_has_the_best_network_rather_than_the_largest() -> None:
    """The largest one would hardly be trained in the time that there is."""
    seen = RunResult(5_643, 2_284, 18.94)
    found = best_weights(Goal("psnr", 40), PHOTO, WITHIN, steps, seen)
    assert 5_643 < found < WITHIN[1] / 2
    assert steps(found) >= MIN_USEFUL_STEPS


def test_the_dearer_bits_are_the_fewer_weights_are_worth_them() -> None:
    seen = RunResult(5_643, 2_284, 18.94)
    found = [best_weights(Goal("lambda", p), PHOTO, WITHIN, steps, seen) for p in (1e-3, 1e-2)]
    assert found[0] > found[1]
