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
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part
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
from imgmlp.codec.latent.training.windows import WindowedStep
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
        assert abs(np.median(ratios)) < np.log(5)  # of a single probe
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


def test_probe_of_negative_curvature_leaves_predictions_to_trials() -> None:
    costs = excess_costs([1.0, 3.0, 1.0, 1.0], (-8.0, 1.0))
    assert np.allclose(costs.predicted()[0], [0.0, 0.0, 0.5, 0.5])
    costs.note(0, 2.0)
    assert np.allclose(costs.predicted()[0], [2.0, 6.0, 0.5, 0.5])


class Parabola:
    """A refinement whose cost has a given curvature along each weight, and nothing else.

    The variance of noisy gradients is the curvature, times another factor in each part.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
        self.refinement = Refinement(step, Search(step).run(LMBDA, rounds=1), LMBDA)
        self.first, self.calls = self.refinement._flat.astype(np.float64), 0
        random = np.random.default_rng(0)
        self.curvatures = np.exp(random.normal(0, 1, self.first.shape))
        self.minimum = self.first + random.normal(0, 0.01, self.first.shape)
        self.factors = np.ones_like(self.first)
        self.factors[self.places("bits")] = 7.0
        monkeypatch.setattr(self.refinement, "_cost", self.cost)

    def places(self, part: Part) -> Array:
        places: Array = self.refinement._places[self.refinement._weights_of_parts()[part]]
        return places

    def cost(self, part: Part) -> float:
        away = (self.refinement._flat - self.minimum)[self.places(part)]
        return float(0.5 * (self.curvatures[self.places(part)] * away**2).sum())

    def gradient_at(self, flat: Array, is_noisy: bool = False) -> Array:
        gradient: Array = self.curvatures * (flat - self.minimum)
        if is_noisy:
            self.calls += 1
            gradient += (-1) ** self.calls * np.sqrt(self.factors * self.curvatures)
        return gradient

    @property
    def excess(self) -> Array:
        """The true excess cost of moving each weight."""
        curvatures = self.curvatures[self.refinement._places]
        excess: Array = 0.5 * curvatures * self.refinement._sizes.astype(np.float64) ** 2
        return excess


def test_prediction_is_exact_where_only_single_weights_curve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parabola = Parabola(monkeypatch)
    costs = parabola.refinement._predictable_excess(parabola.gradient_at, lambda: False)
    assert np.allclose(costs.predicted()[0], parabola.excess, rtol=1e-3)


def test_trials_measure_the_excess_beyond_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    parabola = Parabola(monkeypatch)
    refinement = parabola.refinement
    best = {part: parabola.cost(part) for part in PARTS}
    moves = refinement._promising(parabola.gradient_at)
    assert refinement._try_in_turn(moves, 50, best, lambda: False)[1]
    tried = refinement._excess._is_tried
    assert tried.sum() >= 50
    assert np.allclose(refinement._excess._measured[tried], parabola.excess[tried], rtol=1e-2)


def test_moves_are_ordered_by_gain_less_excess(monkeypatch: pytest.MonkeyPatch) -> None:
    parabola = Parabola(monkeypatch)
    refinement = parabola.refinement
    refinement._excess = refinement._predictable_excess(parabola.gradient_at, lambda: False)
    moves = list(refinement._promising(parabola.gradient_at))
    gains = np.array([move.saved - move.slope for move in moves])
    nets = gains - refinement._excess.predicted()[0][[move.at for move in moves]]
    assert len(moves) > 50
    assert (np.diff(nets) <= 1e-15).all()
    assert (np.diff(gains) > 0).any()
    assert (gains > PREDICTION_WEIGHT * parabola.excess[[move.at for move in moves]] * 0.99).all()


def test_overflow_of_the_probe_excludes_no_other_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    parabola = Parabola(monkeypatch)
    refinement, odd = parabola.refinement, parabola.refinement._places[3]

    def gradient_at(flat: Array, is_noisy: bool = False) -> Array:
        gradient = parabola.gradient_at(flat, is_noisy)
        if not is_noisy:
            gradient[odd] = np.inf
        return gradient

    costs = refinement._predictable_excess(gradient_at, lambda: False)
    excess = costs.predicted()[0]
    assert np.isfinite(excess).all()
    assert np.allclose(excess, parabola.excess, rtol=0.5)


@pytest.mark.parametrize("in_windows", [False, True])
def test_overflowing_gradient_changes_neither_judgements_nor_later_gradients(
    in_windows: bool,
) -> None:
    pixels = np.resize(small_picture(), (40, 48, 3))
    step = LatentStep(pixels, 1, open_device("numpy"), PRETRAINED_1)
    if in_windows:
        step = WindowedStep(pixels, 1, open_device("numpy"), PRETRAINED_1, window=(32, 32))
    flat = step.flat.numpy()
    with step.gradients(LMBDA) as gradient_at:
        judged, gradient = step.judge(flat), gradient_at(flat)
        with np.errstate(all="ignore"):
            overflowing = gradient_at(flat * np.float32(1e20))
        assert not np.isfinite(overflowing).all()
        assert step.judge(flat) == judged
        assert np.array_equal(gradient_at(flat), gradient)
    slopes = step.latent_slopes(step.windows[0], flat, LMBDA)
    assert all(np.isfinite(grid).all() for grid in slopes)


def test_state_is_restored_when_refinement_is_interrupted() -> None:
    step, networks = rounded(NARROW, steps=5)
    state, calls = step.state(), iter(range(CURVATURE_GRADIENTS + 3))

    def interrupted() -> bool:
        next(calls)
        return False

    with pytest.raises(StopIteration):
        Refinement(step, networks, LMBDA).run(200, interrupted)
    for name, array in step.state().items():
        assert np.array_equal(array, state[name]), name
