"""Moves of single weights, and the prediction of what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from latent_steps import NARROW, PRETRAINED_1, grids_of, small_picture

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel, Quantized
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.training import weight_moves
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.weight_moves import (
    CURVATURE_GRADIENTS,
    MIN_TRIALS_FOR_CURVATURE,
    PREDICTION_WEIGHT,
    PROBE_TRIALS,
    ExcessCosts,
    Refinement,
)
from imgmlp.engine import open_device

Array = np.ndarray[Any, Any]
Networks = dict[str, Quantized]
LMBDA = 1e-3


def rounded(architecture: Architecture, steps: int = 60) -> tuple[LatentStep, Networks]:
    """A step after some training, with its latents rounded, and its networks."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), architecture)
    LatentTrainer(step, LatentTrainerState(steps, LMBDA)).run()
    step.write_grids(grids_of(step))
    return step, Search(step).run(LMBDA)


def cost(step: LatentStep, networks: Networks) -> float:
    """D + lambda R of the file with these networks."""
    model = LatentModel(step.shape, grids_of(step), networks, step.pretrained.number)
    error = np.mean((synthesize(model, step.device) - small_picture().astype(np.float64)) ** 2)
    bits = 8 * sum(map(len, sections.write(model)))
    return float(error / 255**2 + LMBDA * bits / step.pixels)


def refined(step: LatentStep, networks: Networks, trials: int) -> Networks:
    refinement = Refinement(step, networks, LMBDA)
    refinement.run(trials, lambda: False)
    return refinement.networks()


def moves_between(one: Networks, other: Networks) -> int:
    return sum(int(np.abs(t.values - other[name].values).sum()) for name, t in one.items())


def without_gradient(step: LatentStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gradient be zero everywhere, so that it predicts no cost for any move."""

    @contextmanager
    def gradients(_: float) -> Iterator[Callable[..., Array]]:
        yield lambda flat, is_noisy=False: np.zeros_like(flat)

    monkeypatch.setattr(step, "gradients", gradients)


# --- moves ---


def test_refinement_cost_equals_search_cost_with_invisible_pixels() -> None:
    pixels = np.concatenate([small_picture(), np.zeros_like(small_picture()[:, :, :1])], axis=2)
    pixels[:, ::2, 3] = 255  # the rest is invisible
    step = LatentStep(pixels, 1, open_device("numpy"), PRETRAINED_1)
    assert step.visible_fraction < 1
    search = Search(step)
    networks = search.run(LMBDA, rounds=1)
    result = search._cost(networks, LMBDA)
    bits = search._network_bits(networks)
    own = Refinement(step, networks, LMBDA)
    assert sum(map(own._cost, PARTS)) + LMBDA * bits / step.pixels == pytest.approx(result)


@pytest.mark.parametrize("trials", [MIN_TRIALS_FOR_CURVATURE - 1, MIN_TRIALS_FOR_CURVATURE + 100])
@pytest.mark.parametrize("architecture", [Architecture(8, 4), PRETRAINED_1])
def test_refined_networks_give_a_lower_rate_distortion_cost(
    architecture: Architecture, trials: int
) -> None:
    step, networks = rounded(architecture)
    assert Search(step).refined(networks, LMBDA) is not networks
    assert cost(step, refined(step, networks, trials)) < cost(step, networks)


def test_predicted_excess_saves_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of trials lowers the cost further than trials in the order of the gradient,
    and most of the moves pay that way."""
    step, networks = rounded(PRETRAINED_1)
    first, trials = cost(step, networks), MIN_TRIALS_FOR_CURVATURE
    predicted = refined(step, networks, trials)
    monkeypatch.setattr(weight_moves, "MIN_TRIALS_FOR_CURVATURE", trials + 1)
    by_gradient = refined(step, networks, trials)
    assert first - cost(step, predicted) > 1.2 * (first - cost(step, by_gradient)) > 0
    assert moves_between(networks, predicted) > moves_between(networks, by_gradient)


@pytest.mark.parametrize("first_calls", [0, 1, 5, CURVATURE_GRADIENTS + 5])
def test_refinement_stops_when_it_is_enough(first_calls: int) -> None:
    """While gradients are computed as well as between trials; the step is as it was."""
    step, networks = rounded(NARROW, steps=5)
    state, calls = step.state(), iter(range(1000))
    refinement = Refinement(step, networks, LMBDA)
    refinement.run(200, lambda: next(calls) >= first_calls)
    assert next(calls) <= first_calls + 4
    assert (moves_between(networks, refinement.networks()) > 0) == (first_calls > 20)
    for name, array in step.state().items():
        assert np.array_equal(array, state[name]), name


def test_refinement_moves_weights_only_where_saved_bits_outweigh_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every trial has the same error above that of the first networks; most save bits."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(LMBDA, rounds=1)
    without_gradient(step, monkeypatch)
    monkeypatch.setattr(step, "ask", lambda *_: None)
    for lost, expects_moves in ((1e-7, True), (1e3, False)):
        answers = iter([0.0, 0.0])
        monkeypatch.setattr(step, "answer", lambda a=answers, lost=lost: next(a, lost))
        assert (moves_between(networks, refined(step, networks, 20)) > 0) is expects_moves


@pytest.mark.parametrize("trials", [MIN_TRIALS_FOR_CURVATURE - 1, 10_000])
def test_refinement_does_not_retry_rejected_moves(
    trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients predict no cost for any move; all moves but the first turn out to cost much."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(LMBDA, rounds=1)
    without_gradient(step, monkeypatch)
    requests: list[bytes] = []
    monkeypatch.setattr(step, "ask", lambda flat, _: requests.append(flat.tobytes()))
    answers = iter([0.0, 0.0, -1.0])
    monkeypatch.setattr(step, "answer", lambda: next(answers, 1e3))
    result = refined(step, networks, trials)
    first = len(PARTS)
    assert len(requests) > first + 10
    assert len(set(requests[first:])) == len(requests[first:])
    assert moves_between(networks, result) == 1


def refinement_of_own_bits(
    code_lengths: Callable[[Array, Array], Array], trials: int, monkeypatch: pytest.MonkeyPatch
) -> Refinement:
    """A refinement in which only the weights' own bits count, after so many trials."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(LMBDA, rounds=1)
    without_gradient(step, monkeypatch)
    monkeypatch.setattr(step, "ask", lambda *_: None)
    monkeypatch.setattr(step, "answer", lambda: 0.0)
    monkeypatch.setattr(weight_moves.code_lengths, "code_lengths", code_lengths)
    refinement = Refinement(step, networks, LMBDA)
    refinement.run(trials, lambda: False)
    return refinement


@pytest.mark.parametrize("trials", [MIN_TRIALS_FOR_CURVATURE - 1, 100_000])
def test_weights_move_as_long_as_that_saves_bits(
    trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a length of |symbol| bits, every move towards 0 pays, and no other one."""
    result = refinement_of_own_bits(lambda symbols, _: np.abs(symbols) * 1.0, trials, monkeypatch)
    first = Refinement(result.step, result._first, LMBDA)
    distance = int(np.abs(first._symbols).sum())
    assert distance > MIN_TRIALS_FOR_CURVATURE
    moves = moves_between(result._first, result.networks())
    assert moves == min(trials, distance)
    assert np.abs(result._symbols).sum() == distance - moves


def test_weight_moves_at_most_once_for_each_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All moves up and down save a bit at first. Those of the other way are not tried as if they
    still did."""
    first = list[Array]()

    def code_lengths(symbols: Array, _: Array) -> Array:
        if not first:
            first.append(symbols.copy())
        return (symbols == first[0]) * 1.0

    monkeypatch.setattr(weight_moves, "MOVES_PER_GRADIENT", 100_000)
    result = refinement_of_own_bits(code_lengths, 100_000, monkeypatch)
    assert (np.abs(result._symbols - first[0]) == 1).all()
    assert moves_between(result._first, result.networks()) == len(first[0])


# --- predictions ---


def test_predicted_excess_is_near_what_moves_cost_beyond_their_slopes() -> None:
    """Costs of a small move up and down show the curvature along each weight."""
    step, networks = rounded(PRETRAINED_1)
    refinement = Refinement(step, networks, LMBDA)
    with step.gradients(LMBDA) as gradient_at:
        predicted, _ = refinement._predictable_excess(gradient_at, lambda: False).predicted()
    flat, factor = refinement._flat, 0.5
    first = {part: refinement._cost(part) for part in PARTS}
    actual = np.empty(len(predicted))
    for at, (place, size) in enumerate(zip(refinement._places, refinement._sizes, strict=True)):
        costs = []
        for way in (-1, 1):
            refinement._flat = flat.copy()
            refinement._flat[place] += way * factor * size
            costs.append(refinement._cost(refinement._parts[at]))
        actual[at] = (sum(costs) / 2 - first[refinement._parts[at]]) / factor**2
    for part in PARTS:
        which = (actual > 1e-9) & (predicted > 0) & refinement._weights_of_parts()[part]
        assert which.sum() > 100
        ratios = np.log(predicted[which] / actual[which])
        assert abs(np.median(ratios)) < np.log(3)
        assert np.corrcoef(np.log(predicted[which]), np.log(actual[which]))[0, 1] > 0.8


def excess_costs(variances: list[float], sums: tuple[float, float]) -> ExcessCosts:
    """The first two weights change the error, the others the bits."""
    are_of = np.arange(len(variances)) < 2
    parts = dict(zip(PARTS, (are_of, ~are_of), strict=True))
    return ExcessCosts(np.array(variances), parts, dict(zip(PARTS, sums, strict=True)))


def test_excess_is_proportional_to_variance_in_each_part() -> None:
    excess, sure = excess_costs([1.0, 3.0, 1.0, 1.0], (8.0, 1.0)).predicted()
    assert np.allclose(excess, [2.0, 6.0, 0.5, 0.5])
    assert np.allclose(sure, PREDICTION_WEIGHT * excess)


def test_excess_of_a_tried_weight_is_known_and_corrects_that_of_others() -> None:
    """One trial counts as much as one in PROBE_TRIALS that the probe counts for."""
    costs = excess_costs([1.0, 3.0, 1.0, 1.0], (8.0, 1.0))
    costs.note(0, 2.0 * 64)
    excess, sure = costs.predicted()
    assert excess[0] == sure[0] == 128
    assert excess[1] == pytest.approx(6 * 64 ** (1 / (PROBE_TRIALS + 1)))
    assert np.allclose(excess[2:], 0.5)


@pytest.mark.parametrize("measured", [-1.0, 0.0, np.inf, np.nan])
def test_odd_results_of_trials_do_not_change_other_predictions(measured: float) -> None:
    """A cost below the slope counts as no excess; infinite costs and NaN exclude only the weight
    itself."""
    costs = excess_costs([1.0, 3.0, 1.0, 1.0], (8.0, 1.0))
    costs.note(0, measured)
    excess, sure = costs.predicted()
    assert np.allclose(excess[1:], [6.0, 0.5, 0.5])
    gains = sure < 1e9
    assert gains.tolist() == [measured <= 0, True, True, True]


@pytest.mark.parametrize("odd", [0.0, np.inf, np.nan])
def test_no_excess_is_predicted_without_variance(odd: float) -> None:
    excess, _ = excess_costs([odd, 3.0, odd, odd], (6.0, 1.0)).predicted()
    assert np.allclose(excess, [0.0, 6.0, 0.0, 0.0])


def test_probe_of_negative_curvature_predicts_no_excess() -> None:
    excess, _ = excess_costs([1.0, 3.0, 1.0, 1.0], (-8.0, 1.0)).predicted()
    assert np.allclose(excess, [0.0, 0.0, 0.5, 0.5])
