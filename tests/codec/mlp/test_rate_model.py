"""How many weights a network should have for a lambda or a PSNR."""

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
def test_network_shape_has_about_the_wanted_weights(weights: int) -> None:
    for channels in (1, 3, 4):
        shape = rate_model.network_shape(weights, channels)
        assert shape.parameters == pytest.approx(weights, rel=0.15)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_network_shapes_are_few_and_similar_to_their_neighbours(channels: int) -> None:
    shapes = [rate_model.network_shape(80 * 1.01**n, channels) for n in range(800)]
    assert len(set(shapes)) < 60
    sizes = [shape.parameters for shape in dict.fromkeys(shapes)]
    assert sizes[0] < 150
    assert all(1 < b / a < 1.5 for a, b in pairwise(sizes))
    assert all(b / a < 1.26 for a, b in pairwise(sizes) if a > 5_000)


def test_network_shape_of_the_weights_of_a_shape_is_that_shape() -> None:
    shapes = {rate_model.network_shape(80 * 1.05**n, 3) for n in range(160)}
    assert all(rate_model.network_shape(one.parameters, 3) == one for one in shapes)


def test_small_networks_have_fewer_layers() -> None:
    shapes = [rate_model.network_shape(n, 3) for n in (400, 900, 1_100, 22_000)]
    assert [shape.hidden for shape in shapes] == [3, 3, 5, 5]


def test_network_shapes_stay_within_the_format() -> None:
    assert rate_model.network_shape(0, 1).width == 4
    assert rate_model.network_shape(1e9, 4).width == 1024


def test_weights_for_a_psnr_are_interpolated_or_extrapolated_from_results() -> None:
    one = SizeResult(1000, 30.0)
    assert rate_model.weights_for_psnr(30.0, [one]) == 1000
    two = [one, SizeResult(2000, 33.0)]
    assert rate_model.weights_for_psnr(34.5, two) == pytest.approx(2000 * 2**0.5)
    assert rate_model.weights_for_psnr(27.0, two) == pytest.approx(500)
    assert rate_model.weights_for_psnr(31.5, two) == pytest.approx(1000 * 2**0.5)


def test_weights_for_a_psnr_follow_from_the_smallest_network_that_reaches_it() -> None:
    results = [SizeResult(8000, 44.5), SizeResult(1000, 40.0), SizeResult(4000, 44.6)]
    assert 1000 < rate_model.weights_for_psnr(44.0, results) < 4000


def test_larger_network_with_lower_psnr_does_not_reverse_the_extrapolation() -> None:
    results = [SizeResult(1000, 30.0), SizeResult(2000, 29.0)]
    assert 500 > rate_model.weights_for_psnr(25.0, results) > 10


def test_weights_for_a_lambda_minimise_error_plus_lambda_times_rate() -> None:
    """The expected value is found by trying many numbers of weights."""
    results, lmbda, pixels = [SizeResult(1000, 30.0), SizeResult(2000, 33.0)], 2e-3, 16_384

    def cost(weights: float) -> float:
        error = 10 ** (-(30 + 3 * math.log2(weights / 1000)) / 10)
        return error + lmbda * rate_model.BITS_PER_WEIGHT * weights / pixels

    best = min((100 * 1.01**n for n in range(800)), key=cost)
    weights = rate_model.weights_for_lmbda(lmbda, pixels, results)
    assert weights == pytest.approx(best, rel=0.02)
    psnr = 30 + 3 * math.log2(weights / 1000)
    assert rate_model.lmbda_of(weights, psnr, pixels, results) == pytest.approx(lmbda)


def test_gain_of_more_steps_has_diminishing_returns() -> None:
    gains = [rate_model.gain_of_more_steps(2.0, n) for n in range(20)]
    assert gains[0] == 0
    assert all(b > a for a, b in pairwise(gains))
    assert gains[1] < 2 < gains[-1] < 4
    assert rate_model.gain_of_more_steps(-1.0, 3) == 0


# --- in a limited time, by one pilot ---

PHOTO = 768 * 512
WITHIN = 500.0, 100_000.0


def steps(weights: float) -> float:
    """Steps that two cores take in about ten seconds."""
    return 1e8 / weights


def test_prediction_for_the_pilot_itself_is_its_psnr() -> None:
    pilot = RunResult(5_643, 2_284, 18.94)
    assert predicted_psnr(5_643, 2_284, PHOTO, pilot) == pytest.approx(18.94)


@pytest.mark.parametrize(
    ("samples", "pilot", "weights", "length", "reached"),
    [
        (PHOTO, RunResult(5_643, 2_284, 18.94), 14_563, 6_126, 21.31),  # kodim05
        (PHOTO, RunResult(5_643, 2_284, 26.34), 14_563, 6_126, 29.57),  # kodim23
        (128**2, RunResult(3_083, 2_284, 24.40), 3_083, 17_135, 26.52),  # 128x128 pixels of kodim05
        (128**2, RunResult(3_083, 2_284, 29.34), 9_283, 6_126, 36.88),  # the same of kodim15
    ],
)
def test_predicted_psnr_is_near_that_of_runs_on_photographs(
    samples: int, pilot: RunResult, weights: float, length: float, reached: float
) -> None:
    assert predicted_psnr(weights, length, samples, pilot) == pytest.approx(reached, abs=1.6)


@pytest.mark.parametrize(
    ("weights", "length", "end"), [(2_091, 40_419, 31.17), (5_643, 33_533, 36.35)]
)
def test_predicted_psnr_is_near_that_of_runs_far_longer_than_the_pilot(
    weights: float, length: float, end: float
) -> None:
    pilot = RunResult(4_267, 1_000, 28.6)  # 128x128 pixels of kodim15
    assert predicted_psnr(weights, length, 128**2, pilot) == pytest.approx(end, abs=0.55)


@pytest.mark.parametrize(
    ("reached", "weights", "length", "end"),
    [  # 128x128 pixels of kodim05, 15 and 19, after a fifth of the steps and in the end
        (20.82, 871, 38_138, 20.75),
        (28.01, 2_091, 15_281, 30.82),
        (31.52, 5_643, 16_665, 35.49),
    ],
)
def test_expected_final_psnr_is_near_that_of_runs_on_small_pictures(
    reached: float, weights: float, length: float, end: float
) -> None:
    assert expected_final_psnr(reached, weights, length) == pytest.approx(end, abs=1.0)
    assert expected_final_psnr(reached, 100, length) == reached  # so small a network learns no more


def test_predicted_psnr_never_falls_with_the_steps() -> None:
    pilot = RunResult(5_643, 2_284, 18.94)
    psnrs = [predicted_psnr(5_643, 2.0**n, PHOTO, pilot) for n in range(10, 20)]
    assert psnrs == sorted(psnrs)


@pytest.mark.parametrize("samples", [64**2, 128**2, PHOTO, 2**21, 2**23, 24 * 10**6, 2**28])
def test_predicted_psnr_never_falls_with_size_or_steps_at_any_picture_size(samples: int) -> None:
    """Also for pictures far larger and smaller than those that the model was fitted to."""
    pilot = RunResult(4_267, 1_000, 20.0)
    sizes = [500 * 2 ** (n / 2) for n in range(17)]
    by_size = [predicted_psnr(size, 10_000, samples, pilot) for size in sizes]
    assert by_size == sorted(by_size)
    for size in sizes:
        by_steps = [predicted_psnr(size, 10.0 * 2**n, samples, pilot) for n in range(15)]
        assert by_steps == sorted(by_steps), size
    weights = best_weights(Goal("psnr", 24), samples, (500, 100_000), lambda w: 1e9 / w, pilot)
    assert weights > 1_500


def test_best_weights_for_a_psnr_are_the_fewest_that_reach_it() -> None:
    pilot = RunResult(5_643, 2_284, 18.94)
    few = best_weights(Goal("psnr", 19), PHOTO, WITHIN, steps, pilot)
    more = best_weights(Goal("psnr", 20.5), PHOTO, WITHIN, steps, pilot)
    assert few < more
    predicted = predicted_psnr(more, steps(more), PHOTO, pilot)
    assert predicted == pytest.approx(20.5 + PSNR_RESERVE, abs=0.2)


def test_best_weights_for_an_unreachable_psnr_leave_enough_steps() -> None:
    """The largest network would get too few steps in the limited time."""
    pilot = RunResult(5_643, 2_284, 18.94)
    weights = best_weights(Goal("psnr", 40), PHOTO, WITHIN, steps, pilot)
    assert 5_643 < weights < WITHIN[1] / 2
    assert steps(weights) >= MIN_USEFUL_STEPS


def test_best_weights_fall_with_lambda() -> None:
    pilot = RunResult(5_643, 2_284, 18.94)
    weights = [best_weights(Goal("lambda", p), PHOTO, WITHIN, steps, pilot) for p in (1e-3, 1e-2)]
    assert weights[0] > weights[1]
