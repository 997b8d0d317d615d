"""A run's phases, how it goes on after a stop, and what it does when numbers explode."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ClockOfSteps, small_pixels

from imgmlp.codec.bitstream.quantize import quantize
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import LearningStep, Steering
from imgmlp.codec.mlp.training_phases import (
    MAX_BUDGET_FACTOR,
    MAX_FINAL_BUDGET_FACTOR,
    MAX_NOISE_STEPS,
    MIN_BUDGET_FACTOR,
    NOISE_START_FRACTION,
    PSNR_MARGIN,
    ROUNDING_LR_FACTOR,
    ROUNDING_START_FRACTION,
    MlpTrainer,
    MlpTrainerState,
    budget_factor,
    remaining_psnr_gain,
)
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.codec.training.replay import MAX_RETRIES
from imgmlp.codec.training.run import Run
from imgmlp.engine import open_device

STEPS = 120
BUDGET = 8 * 100.0


def make(snapshot: Snapshot | None = None, goal: float | None = None) -> MlpTrainer:
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    state = MlpTrainerState(STEPS, 1e-3)
    if snapshot is not None:
        step.restore(snapshot.arrays)
        state = MlpTrainerState(**json.loads(json.dumps(snapshot.values)))
    return MlpTrainer(step, state, BUDGET, goal=goal)


def outcome(trainer: MlpTrainer) -> tuple[dict[str, Any], dict[str, list[float]]]:
    snapshot = trainer.snapshot()
    values = {name: value for name, value in snapshot.values.items() if name != "seconds"}
    return values, {name: array.tolist() for name, array in snapshot.arrays.items()}


@pytest.fixture(scope="module")
def whole() -> MlpTrainer:
    trainer = make()
    assert trainer.run(Run()) == "done"
    return trainer


def test_it_ends_rounded_and_near_its_budget(whole: MlpTrainer) -> None:
    assert whole.state.phase == 2
    assert int(whole.step.count.item()) == STEPS
    assert len(whole.choices()) == 3
    assert whole._bits() == pytest.approx(BUDGET, rel=0.1)


def test_rounding_raises_the_learning_rate(whole: MlpTrainer) -> None:
    before, after = (Steering(*t.step.control.numpy()).lr_factor for t in (make(), whole))
    assert after == pytest.approx(ROUNDING_LR_FACTOR * before)


def between_steps(trainer: MlpTrainer) -> float:
    """How far weights are from whole steps, mean: 0 to 1/2."""
    found = []
    for array, size in zip(trainer.arrays(), trainer._step_sizes(), strict=True):
        found.append(np.abs(array / size - quantize(array, size)).ravel())
    return float(np.concatenate(found).mean())


def test_rounding_draws_weights_to_whole_steps(
    whole: MlpTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.mlp.training_phases.MAX_PULL_FRACTION", 0.0)
    left = make()
    assert left.run(Run()) == "done"
    assert between_steps(whole) < 0.9 * between_steps(left)


def test_a_long_run_is_noisy_for_some_steps_only() -> None:
    trainer = make()
    for steps, begins in ((120, 54), (10_000, 4_600), (60_000, 47_600)):
        trainer.state = MlpTrainerState(steps, 1e-3)
        trainer._advance(begins - 1, 20.0)
        assert trainer.state.phase == 0
        trainer._advance(begins, 20.0)
        assert trainer.state.phase == 1


def paid_for(goal: float) -> float:
    """By how many times its bits a run with 18 dB after half of its free steps, and 20 after all,
    pays for more or fewer."""
    trainer = make(goal=goal)
    for done, reached in ((27, 18.0), (54, 20.0)):
        trainer._advance(done, reached)
    return trainer.state.budget / BUDGET


def test_bits_follow_from_the_quality_that_a_run_is_expected_to_end_with() -> None:
    weights = make().step.shape.parameters
    found = 20.0 + remaining_psnr_gain(2.0, 1 - 54 / STEPS, weights)
    assert paid_for(found - PSNR_MARGIN) == pytest.approx(1.0)
    for more in (-0.3, 0.3):
        assert paid_for(found - PSNR_MARGIN + more) == pytest.approx(budget_factor(more, STEPS))
        assert MIN_BUDGET_FACTOR < budget_factor(more, STEPS) < MAX_BUDGET_FACTOR
    assert paid_for(10.0) == pytest.approx(MIN_BUDGET_FACTOR)
    assert paid_for(50.0) == pytest.approx(MAX_BUDGET_FACTOR)


@pytest.mark.parametrize(
    ("weights", "steps", "half", "reached", "end"),
    [  # of runs of photographs
        (871, 30_535, 26.98, 27.72, 26.87),
        (2_091, 15_281, 28.54, 30.22, 30.82),
        (5_643, 16_665, 32.33, 34.87, 35.49),
        (12_675, 5_728, 30.84, 34.42, 38.38),
        (25_923, 10_520, 29.54, 31.65, 34.50),
        (2_563, 60_000, 33.65, 35.69, 34.75),
        (4_931, 36_000, 40.55, 42.42, 42.04),
        (4_931, 60_000, 33.43, 36.41, 35.29),
    ],
)
def test_what_is_still_to_come_was_seen_in_runs(
    weights: int, steps: int, half: float, reached: float, end: float
) -> None:
    free = max(NOISE_START_FRACTION, ROUNDING_START_FRACTION - MAX_NOISE_STEPS / steps)
    come = remaining_psnr_gain(reached - half, 1 - free, weights)
    assert reached + come == pytest.approx(end, abs=0.88)  # 2.2 standard deviations


@pytest.mark.parametrize(
    ("weights", "steps", "fewer", "lost"),
    [  # means of three and, the first, of six photographs
        (2_563, 6_000, 0.8 / 1.1, 1.30),
        (4_931, 12_000, 0.85, 0.89),
        (4_931, 30_000, 0.85, 1.15),
        (4_931, 60_000, 0.8, 1.87),
    ],
)
def test_bits_are_worth_what_networks_lost_that_had_fewer(
    weights: int, steps: int, fewer: float, lost: float
) -> None:
    assert budget_factor(-lost, steps) == pytest.approx(fewer, abs=0.02)


def test_the_longer_a_run_the_more_dB_are_lost_with_bits() -> None:
    factors = [budget_factor(-1.0, steps) for steps in (100, 6_000, 20_000, 60_000, 10**7)]
    assert factors == sorted(factors)
    assert 0.7 < factors[0] < factors[1] < factors[-2] < factors[-1] < 0.9
    assert budget_factor(0.0, 6_000) == 1.0 < budget_factor(0.5, 6_000) < budget_factor(1.0, 6_000)


def test_once_more_a_run_ends_rounded_with_other_bits() -> None:
    trainer = make(goal=20.0)
    assert trainer.run(Run()) == "done"
    before, bits = trainer.state.budget, trainer._bits()
    trainer.extend(20, -5.0, math.inf)
    assert trainer.run(Run()) == "done"
    assert int(trainer.step.count.item()) == STEPS + 20
    assert trainer.state.budget == pytest.approx(before / MAX_FINAL_BUDGET_FACTOR)
    assert trainer._bits() < bits


def extend(trainer: MlpTrainer) -> Any:
    """What comes of twenty steps more."""
    trainer.extend(20, -5.0, math.inf)
    assert trainer.run(Run()) == "done"
    return outcome(trainer)


def test_once_more_is_undone() -> None:
    trainer = make(goal=20.0)
    assert trainer.run(Run()) == "done"
    before, found = trainer.snapshot(), outcome(trainer)
    assert extend(trainer) != found
    trainer.restore(before)
    assert outcome(trainer) == found
    assert trainer.done == trainer.state.steps == STEPS
    fresh = make(goal=20.0)
    fresh.restore(before)
    assert extend(trainer) == extend(fresh)


@pytest.mark.parametrize("stop", [1, 10, 54, 60, 71, 103, 110])
def test_a_stopped_run_goes_on_with_the_same_bits(
    whole: MlpTrainer, stop: int, tmp_path: Path
) -> None:
    first = make()
    kept = Checkpoint(tmp_path / "c", "k")
    run = Run(should_stop=lambda: int(first.step.count.item()) >= stop, checkpoint=kept)
    assert first.run(run) == "interrupted"
    state = kept.load()
    assert state is not None
    assert stop <= int(state.arrays["count"]) < STEPS
    second = make(state)
    assert second.run(Run()) == "done"
    assert outcome(second) == outcome(whole)


def test_what_is_kept_is_sound_where_numbers_exploded_since_the_last_look(
    whole: MlpTrainer, tmp_path: Path
) -> None:
    first, kept = make(), Checkpoint(tmp_path / "c", "k")

    def stop() -> bool:
        if int(first.step.count.item()) < 50:
            return False
        flat = first.step.flat.numpy()
        flat[3] = np.nan
        first.step.flat.write(flat)
        return True

    assert first.run(Run(should_stop=stop, checkpoint=kept)) == "interrupted"
    state = kept.load()
    assert state is not None
    assert all(np.isfinite(array).all() for array in state.arrays.values())
    second = make(state)
    assert second.run(Run()) == "done"
    assert outcome(second) == outcome(whole)  # which had no such accident


def test_progress_is_told_in_order() -> None:
    told: list[int] = []
    make().run(Run(lambda progress: told.append(progress.step)))
    assert told == sorted(set(told))
    assert told[-1] == STEPS


def break_at(trainer: MlpTrainer, step: int, times: int) -> list[float]:
    """Put a NaN among the weights when a step is done, so often; returns the learning rates."""
    slower: list[float] = []

    def stop() -> bool:
        if len(slower) < times and int(trainer.step.count.item()) >= step:
            slower.append(trainer.state.learning_rate_factor)
            flat = trainer.step.flat.numpy()
            flat[3] = np.nan
            trainer.step.flat.write(flat)
        return False

    trainer.should_stop = stop  # type: ignore[attr-defined]
    return slower


def test_numbers_that_explode_lead_back_to_the_last_good_state() -> None:
    trainer = make()
    slower = break_at(trainer, 50, 1)
    assert trainer.run(Run(should_stop=trainer.should_stop)) == "done"  # type: ignore[attr-defined]
    assert slower == [1.0]
    assert trainer.state.learning_rate_factor == 0.5
    assert all(np.isfinite(array).all() for array in trainer.arrays())


def test_after_some_retries_the_best_state_is_kept() -> None:
    trainer = make()
    slower = break_at(trainer, 30, 99)
    assert trainer.run(Run(should_stop=trainer.should_stop)) == "diverged"  # type: ignore[attr-defined]
    assert slower[0] == 1.0
    assert min(slower) == 0.5**MAX_RETRIES
    assert all(np.isfinite(array).all() for array in trainer.arrays())


@pytest.mark.parametrize(("pace", "steps"), [(1.0, 240), (4.0, 60), (1.9, STEPS)])
def test_a_run_takes_the_steps_that_fit_in_its_time(
    pace: float, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """Of steps that had been thought to take two seconds each."""
    clock = clock_of_steps(lambda _: pace)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 2.0 * STEPS, max_steps=1000)
    assert trainer.run(Run()) == "done"
    assert trainer.done == pytest.approx(steps, rel=0.05)
    assert clock[0] <= 2.0 * STEPS * 1.05
    assert trainer.state.phase == 2


def test_a_run_does_not_grow_beyond_its_most_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 6.0)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    for most, steps in ((0, STEPS), (STEPS + 7, STEPS + 7)):
        trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 100.0, most)
        trainer.done = 10
        trainer._fit_steps_to_limit(most)
        assert trainer.state.steps == steps


@pytest.mark.parametrize(("most", "steps"), [(1000, 99), (0, 82)])
def test_steps_that_a_slow_moment_took_come_back_while_weights_are_free(
    most: int, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """Of a run that may grow: two seconds each, then three of twelve, then half a second."""
    clock_of_steps(lambda n: 2.0 if n < 30 else 12.0 if n < 33 else 0.5)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 2.0 * STEPS, max_steps=most)
    assert trainer.run(Run()) == "done"
    assert trainer.done == pytest.approx(steps, abs=3)


@pytest.mark.parametrize(("seconds", "steps"), [(4.0, 1200), (8.0, 125)])
def test_a_slow_moment_at_the_beginning_shortens_no_run(
    seconds: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ten steps take says something once it is a twentieth of the time that is left."""
    monkeypatch.setattr("time.perf_counter", lambda: seconds)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(1200, 1e-3), BUDGET, 100.0)
    trainer.done = 10
    trainer._fit_steps_to_limit()
    assert trainer.state.steps == steps
