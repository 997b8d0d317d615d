"""The phases of a run, resuming after an interruption, and recovery from divergence."""

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
def finished() -> MlpTrainer:
    trainer = make()
    assert trainer.run(Run()) == "done"
    return trainer


def test_run_ends_rounded_and_near_its_bit_budget(finished: MlpTrainer) -> None:
    assert finished.state.phase == 2
    assert int(finished.step.count.item()) == STEPS
    assert len(finished.choices()) == 3
    assert finished._bits() == pytest.approx(BUDGET, rel=0.1)


def test_rounding_raises_the_learning_rate(finished: MlpTrainer) -> None:
    before, after = (Steering(*t.step.control.numpy()).lr_factor for t in (make(), finished))
    assert after == pytest.approx(ROUNDING_LR_FACTOR * before)


def distance_to_steps(trainer: MlpTrainer) -> float:
    """The mean distance of weights from multiples of their step size, in step sizes: 0 to 1/2."""
    distances = []
    for array, size in zip(trainer.arrays(), trainer._step_sizes(), strict=True):
        distances.append(np.abs(array / size - quantize(array, size)).ravel())
    return float(np.concatenate(distances).mean())


def test_rounding_phase_pulls_weights_to_multiples_of_their_step_size(
    finished: MlpTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.mlp.training_phases.MAX_PULL_FRACTION", 0.0)
    without_pull = make()
    assert without_pull.run(Run()) == "done"
    assert distance_to_steps(finished) < 0.9 * distance_to_steps(without_pull)


def test_noise_phase_of_long_runs_has_a_limited_number_of_steps() -> None:
    trainer = make()
    for steps, begins in ((120, 54), (10_000, 4_600), (60_000, 47_600)):
        trainer.state = MlpTrainerState(steps, 1e-3)
        trainer._advance(begins - 1, 20.0)
        assert trainer.state.phase == 0
        trainer._advance(begins, 20.0)
        assert trainer.state.phase == 1


def goal_budget_factor(goal: float) -> float:
    """The factor of the bit budget of a run that has 18 dB after half of the phase of free weights
    and 20 dB at its end."""
    trainer = make(goal=goal)
    for done, psnr in ((27, 18.0), (54, 20.0)):
        trainer._advance(done, psnr)
    return trainer.state.budget / BUDGET


def test_bit_budget_follows_from_the_expected_final_psnr() -> None:
    weights = make().step.shape.parameters
    expected = 20.0 + remaining_psnr_gain(2.0, 1 - 54 / STEPS, weights)
    assert goal_budget_factor(expected - PSNR_MARGIN) == pytest.approx(1.0)
    for more in (-0.3, 0.3):
        assert goal_budget_factor(expected - PSNR_MARGIN + more) == pytest.approx(
            budget_factor(more, STEPS)
        )
        assert MIN_BUDGET_FACTOR < budget_factor(more, STEPS) < MAX_BUDGET_FACTOR
    assert goal_budget_factor(10.0) == pytest.approx(MIN_BUDGET_FACTOR)
    assert goal_budget_factor(50.0) == pytest.approx(MAX_BUDGET_FACTOR)


@pytest.mark.parametrize(
    ("weights", "steps", "half", "reached", "end"),
    [  # measured on photographs
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
def test_remaining_psnr_gain_is_near_that_of_measured_runs(
    weights: int, steps: int, half: float, reached: float, end: float
) -> None:
    free = max(NOISE_START_FRACTION, ROUNDING_START_FRACTION - MAX_NOISE_STEPS / steps)
    gain = remaining_psnr_gain(reached - half, 1 - free, weights)
    assert reached + gain == pytest.approx(end, abs=0.88)  # 2.2 standard deviations


@pytest.mark.parametrize(
    ("weights", "steps", "fewer", "lost"),
    [  # means of three and, the first, of six photographs
        (2_563, 6_000, 0.8 / 1.1, 1.30),
        (4_931, 12_000, 0.85, 0.89),
        (4_931, 30_000, 0.85, 1.15),
        (4_931, 60_000, 0.8, 1.87),
    ],
)
def test_budget_factor_is_near_measured_losses_with_fewer_bits(
    weights: int, steps: int, fewer: float, lost: float
) -> None:
    assert budget_factor(-lost, steps) == pytest.approx(fewer, abs=0.02)


def test_bits_are_worth_more_psnr_after_longer_runs() -> None:
    factors = [budget_factor(-1.0, steps) for steps in (100, 6_000, 20_000, 60_000, 10**7)]
    assert factors == sorted(factors)
    assert 0.7 < factors[0] < factors[1] < factors[-2] < factors[-1] < 0.9
    assert budget_factor(0.0, 6_000) == 1.0 < budget_factor(0.5, 6_000) < budget_factor(1.0, 6_000)


def test_extended_run_ends_rounded_with_another_bit_budget() -> None:
    trainer = make(goal=20.0)
    assert trainer.run(Run()) == "done"
    before, bits = trainer.state.budget, trainer._bits()
    trainer.extend(20, -5.0, math.inf)
    assert trainer.run(Run()) == "done"
    assert int(trainer.step.count.item()) == STEPS + 20
    assert trainer.state.budget == pytest.approx(before / MAX_FINAL_BUDGET_FACTOR)
    assert trainer._bits() < bits


def extend(trainer: MlpTrainer) -> Any:
    """The outcome of twenty further steps."""
    trainer.extend(20, -5.0, math.inf)
    assert trainer.run(Run()) == "done"
    return outcome(trainer)


def test_extension_is_undone_by_restoring_a_snapshot() -> None:
    trainer = make(goal=20.0)
    assert trainer.run(Run()) == "done"
    before, outcome_before = trainer.snapshot(), outcome(trainer)
    assert extend(trainer) != outcome_before
    trainer.restore(before)
    assert outcome(trainer) == outcome_before
    assert trainer.done == trainer.state.steps == STEPS
    fresh = make(goal=20.0)
    fresh.restore(before)
    assert extend(trainer) == extend(fresh)


@pytest.mark.parametrize("stop", [1, 10, 54, 60, 71, 103, 110])
def test_resumed_run_ends_with_the_same_state(
    finished: MlpTrainer, stop: int, tmp_path: Path
) -> None:
    first = make()
    checkpoint = Checkpoint(tmp_path / "c", "k")
    run = Run(should_stop=lambda: int(first.step.count.item()) >= stop, checkpoint=checkpoint)
    assert first.run(run) == "interrupted"
    state = checkpoint.load()
    assert state is not None
    assert stop <= int(state.arrays["count"]) < STEPS
    second = make(state)
    assert second.run(Run()) == "done"
    assert outcome(second) == outcome(finished)


def test_checkpoint_is_finite_if_weights_diverged_since_the_last_check(
    finished: MlpTrainer, tmp_path: Path
) -> None:
    first, checkpoint = make(), Checkpoint(tmp_path / "c", "k")

    def stop() -> bool:
        if int(first.step.count.item()) < 50:
            return False
        flat = first.step.flat.numpy()
        flat[3] = np.nan
        first.step.flat.write(flat)
        return True

    assert first.run(Run(should_stop=stop, checkpoint=checkpoint)) == "interrupted"
    state = checkpoint.load()
    assert state is not None
    assert all(np.isfinite(array).all() for array in state.arrays.values())
    second = make(state)
    assert second.run(Run()) == "done"
    assert outcome(second) == outcome(finished)  # a run that did not diverge


def test_progress_is_reported_in_order() -> None:
    steps: list[int] = []
    make().run(Run(lambda progress: steps.append(progress.step)))
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS


def diverge_at(trainer: MlpTrainer, step: int, times: int) -> list[float]:
    """Put a NaN among the weights whenever `step` is done, up to so many times.

    Returns the factors of the learning rate at these moments.
    """
    factors: list[float] = []

    def stop() -> bool:
        if len(factors) < times and int(trainer.step.count.item()) >= step:
            factors.append(trainer.state.learning_rate_factor)
            flat = trainer.step.flat.numpy()
            flat[3] = np.nan
            trainer.step.flat.write(flat)
        return False

    trainer.should_stop = stop  # type: ignore[attr-defined]
    return factors


def test_divergence_restores_the_last_good_state_with_half_the_learning_rate() -> None:
    trainer = make()
    factors = diverge_at(trainer, 50, 1)
    assert trainer.run(Run(should_stop=trainer.should_stop)) == "done"  # type: ignore[attr-defined]
    assert factors == [1.0]
    assert trainer.state.learning_rate_factor == 0.5
    assert all(np.isfinite(array).all() for array in trainer.arrays())


def test_diverged_run_ends_in_a_finite_state_after_its_retries() -> None:
    trainer = make()
    factors = diverge_at(trainer, 30, 99)
    assert trainer.run(Run(should_stop=trainer.should_stop)) == "diverged"  # type: ignore[attr-defined]
    assert factors[0] == 1.0
    assert min(factors) == 0.5**MAX_RETRIES
    assert all(np.isfinite(array).all() for array in trainer.arrays())


@pytest.mark.parametrize(("pace", "steps"), [(1.0, 240), (4.0, 60), (1.9, STEPS)])
def test_run_takes_the_steps_that_fit_in_its_time(
    pace: float, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """The run was planned for steps of two seconds."""
    clock = clock_of_steps(lambda _: pace)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 2.0 * STEPS, max_steps=1000)
    assert trainer.run(Run()) == "done"
    assert trainer.done == pytest.approx(steps, rel=0.05)
    assert clock[0] <= 2.0 * STEPS * 1.05
    assert trainer.state.phase == 2


def test_run_is_not_prolonged_beyond_its_max_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 6.0)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    for most, steps in ((0, STEPS), (STEPS + 7, STEPS + 7)):
        trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 100.0, most)
        trainer.done = 10
        trainer._fit_steps_to_limit(most)
        assert trainer.state.steps == steps


@pytest.mark.parametrize(("most", "steps"), [(1000, 99), (0, 82)])
def test_steps_lost_in_a_slow_moment_are_regained_while_weights_are_free(
    most: int, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """Steps take two seconds, then three of them twelve, then the others half a second."""
    clock_of_steps(lambda n: 2.0 if n < 30 else 12.0 if n < 33 else 0.5)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(STEPS, 1e-3), BUDGET, 2.0 * STEPS, max_steps=most)
    assert trainer.run(Run()) == "done"
    assert trainer.done == pytest.approx(steps, abs=3)


@pytest.mark.parametrize(("seconds", "steps"), [(4.0, 1200), (8.0, 125)])
def test_slow_first_steps_do_not_shorten_a_run(
    seconds: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace of ten steps counts only if they took a twentieth of the time that is left."""
    monkeypatch.setattr("time.perf_counter", lambda: seconds)
    step = LearningStep(small_pixels(), Shape(3, 2, 6, 3), 0, open_device("numpy"))
    trainer = MlpTrainer(step, MlpTrainerState(1200, 1e-3), BUDGET, 100.0)
    trainer.done = 10
    trainer._fit_steps_to_limit()
    assert trainer.state.steps == steps
