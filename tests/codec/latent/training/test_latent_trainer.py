"""The trainer and its schedule: learning rates, scale of latents, resuming and time limits."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from conftest import ClockOfSteps
from latent_encoding import PIXELS
from latent_steps import (
    NARROW,
    PRETRAINED_1,
    PRETRAINED_4,
    draw,
    patterned_picture,
    small_picture,
    tiny_picture,
)

from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control, Steering
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of
from imgmlp.codec.latent.training import latent_trainer, schedule
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.codec.training.run import Run
from imgmlp.engine import Tensor, open_device


def test_scaling_latents_keeps_the_picture_and_adds_a_bit_per_doubling() -> None:
    """Errors stay the same; each latent takes about one bit more at twice the scale."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    step.write_grids([np.rint(4 * draw(*grid.shape)) for grid in step.grids()])
    before, grids = step.judge(step.flat.numpy()), step.grids()
    latent_trainer.scale_latents(step, 2.0)
    error, rate = step.judge(step.flat.numpy())
    assert error == pytest.approx(before[0], rel=1e-4)
    count = sum(grid.size for grid in grids) / step.pixels  # about one bit for each latent
    assert before[1] + 0.5 * count < rate < before[1] + 1.5 * count
    for grid, finer in zip(grids, step.grids(), strict=True):
        assert np.array_equal(finer, 2 * grid)
    latent_trainer.scale_latents(step, 0.5)
    assert step.judge(step.flat.numpy()) == pytest.approx(before, rel=1e-4)


def test_latent_scale_rises_as_lambda_falls_in_large_pictures_and_long_runs() -> None:
    lmbdas = [1e-7, 1e-5, 1e-4, 4e-4, 8e-4, 10.0]
    results = [schedule.latent_scale(lmbda, 100_000, 300, 6) for lmbda in lmbdas]
    assert results == sorted(results, reverse=True)
    assert results[0] == schedule.MAX_LATENT_SCALE
    assert results[4:] == [1.0, 1.0]
    small = [schedule.latent_scale(lmbda, 256, 300, 6) for lmbda in lmbdas]
    assert small == [*results[:2], 1.0, 1.0, 1.0, 1.0]
    assert all(schedule.latent_scale(lmbda, 100_000, 299, 6) == 1.0 for lmbda in lmbdas)
    low = [schedule.latent_scale(lmbda, 100_000, 300, 7) for lmbda in lmbdas]
    assert low[0] == pytest.approx(100**schedule.LATENT_SCALE_EXPONENT)
    assert low[1:] == [1.0] * 5  # networks 7 were trained for these lambdas or higher ones


@pytest.mark.parametrize(("largest", "scale"), [(2.0, 4.0), (20.0, 1.5), (50.0, 1.0)])
def test_latent_scale_leaves_headroom_for_the_largest_latents(largest: float, scale: float) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    grids = step.grids()
    grids[-1][0, 0] = -largest
    step.write_grids(grids)
    trainer = LatentTrainer(step, LatentTrainerState(400, 1e-5))
    trainer.rescale(4.0)
    assert trainer.state.latent_scale == pytest.approx(scale)
    assert step.grids()[-1][0, 0] == pytest.approx(-largest * scale)


def test_learning_rate_follows_latent_scale_and_passes_limit_rescaling() -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    trainer = LatentTrainer(step, LatentTrainerState(400, 1e-5))
    trainer.rescale()
    trainer.run(Run(should_stop=lambda: True))
    finer = schedule.latent_scale(1e-5, step.pixels, 400, step.pretrained.number)
    first = schedule.control(0, 400, 1e-5).latent_lr
    assert Steering(*step.control.numpy()).latent_lr == pytest.approx(first * finer, rel=0.2)
    assert trainer.state.latent_scale == finer > 4
    networks = Search(step).run(1e-3)
    trainer.begin_pass(1e-3, networks)
    assert trainer.state.latent_scale == finer
    assert np.array_equal(step.flat.numpy(), flat_of({n: q.floats() for n, q in networks.items()}))
    trainer.begin_pass(1e-7, networks)
    assert trainer.state.latent_scale == finer * latent_trainer.MAX_RESCALING


def test_latents_have_a_smaller_beta1_than_networks() -> None:
    """Their noise changes its sign in every second step, and its shape during the run."""
    device = open_device("numpy")
    step = LatentStep(small_picture(), 1, device, NARROW)
    step.steer(schedule.control(0, 60, 1e-3))
    assert cast(Tensor, step.adam_latents.betas[0]).numpy() == np.float32(0.8)
    assert (step.adam_latents.betas[1], step.adam.betas[0]) == (0.98, 0.9)
    several = WindowedStep(small_picture(), 1, device, NARROW, window=(32, 32))
    several.steer(schedule.control(0, 60, 1e-3, windows=2))
    several.run(1)
    assert cast(Tensor, several.adam_latents.betas[0]).numpy() == np.float32(0.6)
    betas = [schedule.control(0, n, 1e-3, 2).latent_beta1 for n in (10, 60, 134, 300, 36_000)]
    assert betas == pytest.approx([0.6, 0.6, 0.7, 0.8, 0.8], abs=1e-3)
    first, last = (schedule.control(done, 1000, 1e-3).noise_shape for done in (0, 969))
    assert (first, last) == pytest.approx((0.63, 0.77), abs=1e-3)


def test_short_runs_have_a_smaller_beta2_for_networks() -> None:
    betas = [schedule.control(3, steps, 1e-3).network_beta2 for steps in (20, 300, 900, 36_000)]
    assert betas == pytest.approx([0.93, 0.93, 0.98, 0.98])
    assert (
        0.95 < schedule.control(540, 550, 1e-3).network_beta2 < 0.96
    )  # also at the end, with rounded latents
    results = []
    for beta2 in (0.5, 0.9):
        step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
        step.steer(Control(1e-3, noise_scale=0.0, network_beta2=beta2))
        step.run(1)
        results.append(step.adam.second[0].numpy() / (1 - np.float32(beta2)))
    assert np.allclose(*results, rtol=1e-5)
    assert results[0].any()


def test_interrupted_run_resumes_bit_for_bit() -> None:
    device = open_device("numpy")
    whole, parted, rest = (LatentStep(tiny_picture(), 1, device, NARROW) for _ in range(3))
    LatentTrainer(whole, LatentTrainerState(40, 1e-3)).run()
    trainer = LatentTrainer(parted, LatentTrainerState(40, 1e-3))
    assert trainer.run(Run(should_stop=lambda: int(parted.count.item()) >= 20)) == "interrupted"
    rest.restore(trainer.snapshot().arrays)
    LatentTrainer(rest, LatentTrainerState(40, 1e-3)).run()
    for name, array in whole.state().items():
        assert np.array_equal(array, rest.state()[name]), name


@pytest.mark.parametrize("make", [LatentStep, partial(WindowedStep, window=(32, 32))])
@pytest.mark.parametrize(
    ("seconds_per_step", "min_steps", "max_steps"), [(0.04, 10, 12), (0.2, 3, 4)]
)
def test_exceeded_limit_still_allows_ten_steps_or_half_a_second(
    make: Any,
    seconds_per_step: float,
    min_steps: int,
    max_steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock advances with every step."""
    step = make(small_picture(), 1, open_device("numpy"), NARROW)
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), None, 99.0)
    monkeypatch.setattr("time.perf_counter", lambda: 100 + seconds_per_step * step.done)
    assert trainer.run() == "done"
    assert min_steps <= step.done <= max_steps


@pytest.mark.parametrize(
    ("steps", "rate"), [(300, 0.2), (1897, 0.25), (12_000, 0.3), (36_000, 0.3)]
)
def test_latent_learning_rate_is_higher_in_long_runs(steps: int, rate: float) -> None:
    assert schedule.control(0, steps, 1e-3).latent_lr == pytest.approx(rate, rel=1e-4)


def test_training_uses_the_time_that_a_limit_leaves(clock_of_steps: ClockOfSteps) -> None:
    """The run was planned as 40 steps of 2 seconds each, which then take 1 second."""
    clock = clock_of_steps(lambda _: 1.0)
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    for most, steps in ((0, 40), (1000, 80)):
        step.count.write(np.uint32(0))
        clock[0] = 0.0
        trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), None, 80.0, most)
        assert trainer.run() == "done"
        assert trainer.done == pytest.approx(steps, rel=0.1)
        assert clock[0] <= 80 * 1.05


@pytest.mark.parametrize(("from_step", "steps"), [(10, 80), (25, 40)])
def test_run_towards_a_target_gains_steps_only_early_on(
    from_step: int, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """Steps take as long as planned until `from_step`, then a quarter of that."""
    clock = clock_of_steps(lambda n: 2.0 if n < from_step else 0.5)
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: 1.0, 80.0, 1000)
    assert trainer.run() == "done"
    assert trainer.done == pytest.approx(steps, rel=0.25)
    assert clock[0] <= 80 * 1.05


def test_step_count_is_unchanged_when_no_step_was_timed() -> None:
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), None, 1e12)
    trainer._timed_from = 0, 0.0
    trainer._fit_steps_to_limit()
    assert trainer.state.steps == 40


def test_learning_rates_depend_on_run_length() -> None:
    few, usual, many = (schedule.control(0, n, 1e-3) for n in (50, 300, 3000))
    assert few.latent_lr == pytest.approx(2 * usual.latent_lr)
    assert few.network_lr == pytest.approx(usual.network_lr / 2)
    hasty, half = schedule.control(0, 20, 1e-3), 20 / schedule.VERY_SHORT_RUN
    assert hasty.network_lr == pytest.approx(few.network_lr * half)
    assert (hasty.noise_scale, few.noise_scale) == (half, 1.0)
    assert few.temperature > usual.temperature
    assert usual.latent_lr < many.latent_lr
    assert usual.network_lr == many.network_lr


def test_snapshot_interval_is_several_steps_even_in_short_runs() -> None:
    step = LatentStep(patterned_picture(16, 16), 0, open_device("numpy"), PRETRAINED_4)
    intervals = {
        n: LatentTrainer(step, LatentTrainerState(n, 1e-3))._snapshot_interval for n in (3, 9, 300)
    }
    assert intervals == {3: 4, 9: 4, 300: 30}
