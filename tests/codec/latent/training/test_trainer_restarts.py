"""Restarts and repeated runs of the trainer, and how lambda changes in them."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from latent_steps import NARROW, tiny_picture

from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import latent_trainer, schedule
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.trainer import MIN_LMBDA
from imgmlp.engine import open_device


def factor_of_1000(_bits: float, _quality: float) -> float:
    return 1000.0  # the factor for lambda at every check


@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_run_restarts_when_lambda_is_far_off_but_at_most_max_restarts_times(factor: float) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, reached, lmbdas = step.state(), list[int](), list[float]()

    def restart(lmbda: float) -> None:
        step.restore(initial_state)
        lmbdas.append(lmbda)

    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: factor, restart=restart)  # at every check
    assert trainer.run(Run(lambda progress: reached.append(progress.step))) == "done"
    back = sum(later < before for before, later in pairwise(reached))
    assert back == len(lmbdas) == state.restarts == latent_trainer.MAX_RESTARTS
    assert abs(math.log(lmbdas[-1] / 1e-3)) > 2 * abs(math.log(latent_trainer.RESTART_OUTSIDE[0]))
    assert step.done == 40
    step.restore(initial_state)
    calm = LatentTrainer(step, LatentTrainerState(40, 1e-3), lambda *_: 1.0, restart=restart)
    assert calm.run() == "done"
    assert calm.state.restarts == 0


@pytest.mark.parametrize(("factor", "restarts"), [(1.2, 1), (1.05, 0), (1 / 1.2, 0), (1 / 1.4, 1)])
def test_run_restarts_sooner_for_a_too_low_lambda_than_for_a_too_high_one(
    factor: float, restarts: int
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, lmbdas = step.state(), list[float]()
    requests = iter([factor ** (1 / latent_trainer.FIRST_CHANGE_EXPONENT)])

    def restart(lmbda: float) -> None:
        step.restore(initial_state)
        lmbdas.append(lmbda)

    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: next(requests, 1.0), restart=restart)
    trainer.run()
    assert lmbdas == pytest.approx([1e-3 * factor] * restarts)
    assert trainer.state.lmbda == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(("factor", "restarts"), [(1.7, 0), (1 / 1.7, 0), (3.0, 1), (1 / 3.0, 1)])
def test_run_under_a_time_limit_restarts_at_most_once_within_its_steps(
    factor: float, restarts: int
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, lmbdas, steps_before_restart = step.state(), list[float](), list[int]()

    def restart(lmbda: float) -> None:
        steps_before_restart.append(step.done)
        step.restore(initial_state)
        lmbdas.append(lmbda)

    # At the first check of either run
    requests = iter([factor ** (1 / latent_trainer.FIRST_CHANGE_EXPONENT)] * (1 + restarts))
    state = LatentTrainerState(40, 1e-3)
    limit = time.perf_counter() + 1000
    trainer = LatentTrainer(step, state, lambda *_: next(requests, 1.0), limit, restart=restart)
    assert trainer.run() == "done"
    assert lmbdas == pytest.approx([1e-3 * factor] * restarts)
    assert state.steps == step.done == 40 - sum(steps_before_restart)
    assert (0 < sum(steps_before_restart) < 10) is bool(restarts)


def test_repeated_run_keeps_its_lambda_fixed() -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, requests = step.state(), list[float]()

    def double_after_first_call(*_: float) -> float:
        requests.append(trainer.state.lmbda)
        return 1.0 if len(requests) == 1 else 2.0

    trainer = LatentTrainer(
        step,
        LatentTrainerState(40, 1e-3),
        double_after_first_call,
        restart=lambda _: step.restore(initial_state),
    )
    assert trainer.run() == "done"
    risen = trainer.state.lmbda
    assert risen > 1e-3
    assert trainer.lmbda_was_too_low(1.26e-3)
    assert not trainer.lmbda_was_too_low(1.24e-3)
    requests.clear()
    assert not trainer.state.is_repetition
    trainer.repeat_run(2e-3)
    assert trainer.state.is_repetition
    assert (step.done, trainer.done, trainer.state.exponents) == (0, 0, {})
    assert trainer.run() == "done"
    assert not requests
    assert trainer.state.lmbda == 2e-3
    assert step.done == trainer.state.steps == 40


@pytest.mark.parametrize("is_fixed", [False, True])
def test_graphic_with_fixed_lambda_starts_from_a_higher_lambda(
    is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    steer, lmbdas, requests = step.steer, list[float](), list[float]()

    def record_control(control: Control) -> None:
        lmbdas.append(control.lmbda)
        steer(control)

    def pricing(bits: float, _: float) -> float:
        requests.append(bits)
        return 1.0

    monkeypatch.setattr(step, "steer", record_control)
    state = LatentTrainerState(20, 1e-3)
    if is_fixed:
        state.fix_lmbda(1e-4)
    assert (
        LatentTrainer(
            step, state, pricing, first_lmbda_factor=latent_trainer.GRAPHIC_LMBDA_FACTOR
        ).run()
        == "done"
    )
    if not is_fixed:
        assert set(lmbdas) == {1e-3}
        assert requests
        return
    assert lmbdas == sorted(lmbdas, reverse=True)
    assert lmbdas[0] == pytest.approx(1e-4 * latent_trainer.GRAPHIC_LMBDA_FACTOR)
    assert lmbdas[-1] == state.lmbda == 1e-4
    assert not requests


@pytest.mark.parametrize(
    ("fitting", "restarts"), [(schedule.SHORT_RUN - 1, 0), (schedule.SHORT_RUN, 1)]
)
def test_run_does_not_restart_if_the_limit_leaves_too_few_steps(
    fitting: int, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LatentTrainer, "_steps_until", lambda *_: fitting)
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, state = step.state(), LatentTrainerState(40, 1e-3)
    requests = iter([3.0])
    limit = time.perf_counter() + 1000
    trainer = LatentTrainer(
        step,
        state,
        lambda *_: next(requests, 1.0),
        limit,
        restart=lambda _: step.restore(initial_state),
    )
    assert trainer.run() == "done"
    assert state.restarts == restarts
    assert state.lmbda > 1e-3  # lambda changes for the rest of the run


def test_run_at_the_minimum_lambda_does_not_restart() -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    restarts: list[float] = []
    state = LatentTrainerState(40, MIN_LMBDA)
    LatentTrainer(step, state, lambda *_: 1e-3, restart=restarts.append).run()
    assert (restarts, state.lmbda) == ([], MIN_LMBDA)


@pytest.mark.parametrize("can_restart", [False, True])
def test_lambda_of_a_run_does_not_fall_below_its_minimum(can_restart: bool) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    initial_state, state = step.state(), LatentTrainerState(40, 1e-3)
    restart = (lambda _: step.restore(initial_state)) if can_restart else None
    LatentTrainer(step, state, lambda *_: 1e-3, restart=restart, min_lmbda=9e-4).run()
    assert state.lmbda == pytest.approx(9e-4)


def test_interrupted_run_resumes_bit_for_bit_after_a_restart() -> None:
    device = open_device("numpy")
    whole, parted, rest = (LatentStep(tiny_picture(), 1, device, NARROW) for _ in range(3))
    initial_state = whole.state()

    def trainer_of(step: LatentStep, state: LatentTrainerState) -> LatentTrainer:
        return LatentTrainer(
            step, state, factor_of_1000, restart=lambda _: step.restore(initial_state)
        )

    trainer_of(whole, LatentTrainerState(40, 1e-3)).run()
    trainer = trainer_of(parted, LatentTrainerState(40, 1e-3))

    def stop() -> bool:
        return trainer.state.restarts == 1 and trainer.done >= 4

    assert trainer.run(Run(should_stop=stop)) == "interrupted"
    saved = trainer.snapshot()
    rest.restore(saved.arrays)
    state = LatentTrainerState.of(saved.values)
    trainer_of(rest, state).run()
    for name, array in whole.state().items():
        assert np.array_equal(array, rest.state()[name]), name
