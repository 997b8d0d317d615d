"""The plan of a run and its cost model: steps, estimated seconds and the default effort."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import small_pixels
from latent_encoding import PIXELS, TWO_COLOURS, StopRun, encode_pixels, rdoq_seconds

from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import (
    buckets,
    cost_model,
    effort,
    forms,
    latent_trainer,
    run_plan,
    schedule,
)
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer
from imgmlp.codec.latent.training.lmbdas import MIN_LMBDA_FACTOR_IN_PASSES, Lambdas
from imgmlp.codec.latent.training.rdoq import Budget
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import open_device
from imgmlp.image import Picture

pytestmark = pytest.mark.usefixtures("trained")


def test_only_short_unlimited_runs_towards_psnr_may_be_repeated() -> None:
    def may(kind: Kind, steps: int, limit: float | None = None) -> bool:
        goal, picture = Goal(kind, 30), Picture(PIXELS)
        of = Workload(30, limit)
        return run_plan.RunPlan(picture, goal, of, open_device("numpy"), Run()).may_restart(steps)

    assert may("psnr", effort.MAX_PASS_STEPS)
    assert not may("psnr", effort.MAX_PASS_STEPS + 1)
    assert not may("psnr", 30, limit=1e9)
    assert not may("bytes", 30)


@pytest.mark.parametrize("kind", ["psnr", "bytes"])
@pytest.mark.parametrize(
    ("limit", "max_fixed_lmbda_steps", "is_fixed"),
    [(None, 0, True), (1e3, 40, True), (1e3, 39, False)],
)
def test_lambda_is_fixed_in_short_runs_of_graphics_towards_psnr(
    kind: Kind,
    limit: float | None,
    max_fixed_lmbda_steps: int,
    is_fixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a time limit the fixed lambda is lower, as there may be no time to repeat the run."""
    monkeypatch.setattr(run_plan, "MAX_FIXED_LMBDA_STEPS", max_fixed_lmbda_steps)
    results = list[tuple[float, bool]]()

    def record_start(trainer: LatentTrainer, *_: object) -> None:
        results.append((trainer.state.lmbda, trainer.state.lmbda_is_fixed))
        raise StopRun

    monkeypatch.setattr(LatentTrainer, "run", record_start)
    monkeypatch.setattr(run_plan.RunPlan, "steps_within", lambda *_: schedule.VERY_SHORT_RUN)
    goal, error = Goal(kind, {"psnr": 45, "bytes": 400}[kind]), 10**-4.5
    for pixels in (TWO_COLOURS, PIXELS):
        with pytest.raises(StopRun):
            encode_pixels(goal, pixels, Workload(schedule.VERY_SHORT_RUN, limit))
    few_first, many_first = (Lambdas(Picture(p), goal).initial() for p in (TWO_COLOURS, PIXELS))
    if is_fixed and kind == "psnr":
        assert few_first < 2 * error
        assert results[0] == pytest.approx((5 * error if limit is None else 0.6 * few_first, True))
    else:
        assert results[0] == (few_first, False)
    assert results[1] == (many_first, False)


@pytest.mark.parametrize(("kind", "runs"), [("psnr", 2), ("lambda", 1)])
def test_estimates_include_the_repeated_run_of_a_graphic(
    kind: Kind, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds before the speed of the device is known and afterwards."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})  # RDOQ comes after both runs
    workload, device, few = Workload(400), open_device("numpy"), PIXELS // 128 * 128
    few, many = (Picture(pixels) for pixels in (np.repeat(few[:, :, :1], 3, 2), PIXELS))
    steps = effort.steps_for_pixels(400, PIXELS.shape[0] * PIXELS.shape[1])
    estimates = [
        latent.estimate_work(p, Goal(kind, 30), workload, device).steps for p in (few, many)
    ]
    assert estimates[0] - estimates[1] == (runs - 1) * steps
    pace = 10.0
    plans = [run_plan.RunPlan(p, Goal(kind, 30), workload, device, Run()) for p in (few, many)]
    for plan in plans:
        plan.costs.step_seconds = pace
    estimates = [plan.run_seconds(steps) for plan in plans]
    assert estimates[0] - estimates[1] == pytest.approx((runs - 1) * steps * pace)


@pytest.mark.parametrize(("pace", "level"), [(1.0, 1), (7e-3, 2), (2.5e-3, 5), (1e-4, 9)])
def test_default_effort_follows_the_speed_of_the_device(
    pace: float, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    device, goal = open_device("numpy"), Goal("lambda", 1e-3)
    encoder = latent._Encoder(
        Picture(PIXELS), goal, latent.workload(None, None), device, Run(note=notes.append)
    )
    steps, pixels = (
        encoder.plan.choose_steps(encoder.forms.first(), 1e-3),
        PIXELS.shape[0] * PIXELS.shape[1],
    )
    assert steps == effort.steps_for_pixels(effort.steps_of_effort(level), pixels)
    assert notes[0].startswith(f"effort {level} of 9")
    passes, pass_steps = (
        effort.unconditional_passes(steps, pixels),
        round(latent_trainer.PASS_LENGTH * steps),
    )
    assert (passes > 0) is (level < 9)
    times = {0: "", 1: f" and once {pass_steps:,} again"}
    more = times.get(passes, f" and {passes} times {pass_steps:,} again")
    assert notes[1].startswith(f"{steps:,} steps{more}, about ")


def test_run_seconds_include_weight_trials_of_all_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All weights are tried after the last two rounds, a few after the others."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    device, pixels = open_device("numpy"), np.resize(small_pixels(), (128, 128, 3))

    def run_seconds(wanted: Goal) -> float:
        arguments = Picture(pixels), wanted, latent.workload(1, None), device, Run()
        plan = run_plan.RunPlan(*arguments)
        plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, 0.002
        return plan.run_seconds(600)

    taken = run_seconds(Goal("lambda", 1e-3))
    trained = (
        600 * 0.01 * (1 + 6 * latent_trainer.PASS_LENGTH) + 7 * cost_model.SEARCH_JUDGEMENTS * 0.002
    )
    moving = 2 * cost_model.weight_trial_steps(cost_model.weight_trials(600, 128**2))
    moving += 5 * cost_model.weight_trial_steps(cost_model.MAX_EARLY_WEIGHT_TRIALS)
    assert taken == pytest.approx(trained + moving * 0.01)
    assert run_seconds(Goal("psnr", 30)) == taken


LARGE = Picture(np.zeros((256, 256, 3), np.uint8))  # large enough for progressive quantisation
MEGAPIXEL = Picture(np.zeros((1024, 1024, 3), np.uint8))  # networks are judged by a part of it
STEPS_AROUND_SEARCH = (
    effort.MIN_STEPS_TO_QUANTISE_AND_SEARCH - 1,
    effort.MIN_STEPS_TO_QUANTISE_AND_SEARCH,
    1000,
)


def plan_of_effort_1(picture: Picture, goal: Goal) -> run_plan.RunPlan:
    return run_plan.RunPlan(picture, goal, latent.workload(1, None), open_device("numpy"), Run())


def test_quantisation_steps_are_a_fraction_of_the_steps_of_a_run() -> None:
    small = plan_of_effort_1(Picture(PIXELS), Goal("lambda", 1e-3))
    assert small.quantisation_steps(100_000) == 0
    plan = plan_of_effort_1(LARGE, Goal("lambda", 1e-3))
    shortest = effort.MIN_STEPS_TO_QUANTISE
    steps = [shortest - 1, shortest, 100, 160, 300, 1000, 100_000]
    most = effort.MAX_QUANTISATION_STEPS
    assert [plan.quantisation_steps(n) for n in steps] == [0, 6, 15, 24, 45, 120, most]
    assert [plan.costs.searches(n) for n in (39, 40, 1600, 1700)] == [True, False, False, True]


def test_quantisation_towards_psnr_starts_where_a_search_fits_too() -> None:
    towards = plan_of_effort_1(LARGE, Goal("psnr", 30.0))
    assert [towards.quantisation_steps(n) for n in STEPS_AROUND_SEARCH] == [0, 48, 120]
    assert all(towards.costs.searches(n) for n in STEPS_AROUND_SEARCH)


def test_quantisation_of_partly_judged_pictures_starts_where_a_search_fits_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = plan_of_effort_1(MEGAPIXEL, Goal("lambda", 1e-3))
    assert [judged.quantisation_steps(n) for n in STEPS_AROUND_SEARCH] == [0, 48, 120]
    # in sixteen windows, with each of which networks are updated
    monkeypatch.setattr(buckets.TrainingSetup, "uses_windows", True)
    in_windows = plan_of_effort_1(MEGAPIXEL, Goal("lambda", 1e-3))
    steps, most = (*STEPS_AROUND_SEARCH, 100_000), effort.MAX_QUANTISATION_STEPS
    assert [in_windows.quantisation_steps(n) for n in steps] == [0, 24, 60, most]
    assert all(judged.costs.searches(n) for n in STEPS_AROUND_SEARCH)


def test_quantisation_steps_fit_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes a second here."""
    monkeypatch.setattr(run_plan.time, "perf_counter", lambda: 100.0)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 1)})
    plan, towards = (
        plan_of_effort_1(LARGE, goal) for goal in (Goal("lambda", 1e-3), Goal("psnr", 30.0))
    )
    for each in (plan, towards):
        each.costs.step_seconds, each.costs.judging_seconds = 0.01, 0.02
    plan.deadline = 100.0 + 2.001 + rdoq_seconds(100_000, 0.01, 0.02, 256**2)
    assert plan.quantisation_steps(100_000) == 90
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    for left, count in ((0.5, 0), (2.0, 90), (1000.0, effort.MAX_QUANTISATION_STEPS)):
        plan.deadline = 100.0 + left
        assert plan.quantisation_steps(100_000) == count, left
    plan.deadline = 100.2  # there is no search after so few steps
    assert plan.quantisation_steps(100) == 15
    towards.deadline = 102.0
    assert towards.quantisation_steps(100_000) == 40


@pytest.mark.parametrize(("side", "window_count"), [(128, 1), (128, 4), (1024, 1), (1024, 16)])
@pytest.mark.parametrize("steps", [49, 50, 600, 6000])
def test_run_seconds_include_rdoq_after_the_run_and_each_pass(
    steps: int, side: int, window_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows of a large picture, some windows stand for all when networks are judged."""
    arguments = Goal("lambda", 1e-3), latent.workload(1, None), open_device("numpy"), Run()
    plan = run_plan.RunPlan(Picture(np.zeros((side, side, 3), np.uint8)), *arguments)
    plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, 0.002
    monkeypatch.setattr(plan.costs, "windows", lambda _: window_count)
    judging = 0.002 * (2 if (side, window_count) == (1024, 16) else 1)
    taken, each = plan.run_seconds(steps), rdoq_seconds(steps, 0.01, judging, side**2)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    times = 1 + plan.unconditional_passes(steps)
    assert taken - plan.run_seconds(steps) == pytest.approx(times * each)
    assert (each > 0) is (steps >= 50)


def test_estimated_work_includes_rdoq(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, device, goal = (128, 128, 3), open_device("numpy"), Goal("lambda", 1e-3)
    arguments = Picture(np.zeros(shape, np.uint8)), goal, latent.workload(1, None), device
    steps = effort.steps_for_pixels(300, 128**2)
    times = 1 + effort.unconditional_passes(steps, 128**2)
    computed = cost_model.estimate_work(*arguments).operations
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    judgements = (computed - cost_model.estimate_work(*arguments).operations) / (
        128**2 * forms.operations_of(shape)
    )
    monkeypatch.undo()
    judged = 2 * times * effort.rdoq_budget(steps, "one").judged
    assert judgements == pytest.approx(
        judged * cost_model.JUDGEMENT_STEPS * cost_model.NUMPY_SLOWDOWN
    )


@pytest.mark.parametrize(("seconds", "level"), [(24.0, 4), (26.0, 3)])
@pytest.mark.parametrize(("kind", "passes"), [("lambda", 2), ("psnr", 3)])
def test_default_effort_counts_the_time_of_all_passes(
    kind: Kind, passes: int, seconds: float, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Effort 4 fits if it takes 24 seconds, but not if it takes 26."""
    steps = effort.steps_for_pixels(effort.steps_of_effort(4), PIXELS.shape[0] * PIXELS.shape[1])
    all_trials = cost_model.weight_trials(steps, PIXELS.shape[0] * PIXELS.shape[1])
    rounding = passes * cost_model.weight_trial_steps(all_trials)
    # The first round tries few weights.
    rounding += cost_model.weight_trial_steps(cost_model.MAX_EARLY_WEIGHT_TRIALS)
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    shorter = round(latent_trainer.PASS_LENGTH * steps)
    quantisation_fraction = effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION
    quantised_steps = round(quantisation_fraction * steps) + passes * round(
        quantisation_fraction * shorter
    )
    assert (
        effort.MIN_STEPS_TO_QUANTISE
        < shorter
        < steps
        < effort.MAX_QUANTISATION_STEPS / quantisation_fraction
    )
    steps += passes * latent_trainer.PASS_LENGTH * steps + quantised_steps
    pace = seconds / (steps + rounding)
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    arguments = Picture(PIXELS), Goal(kind, 30.0), latent.workload(None, None), open_device("numpy")
    encoder = latent._Encoder(*arguments, Run(note=notes.append))
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert notes[0].startswith(f"effort {level} of 9")


def test_judging_seconds_are_measured_without_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = iter((0.0, 3.0))  # the first call may compile
    clock = [50.0]

    def judge(*_: object) -> tuple[float, float]:
        clock[0] += next(judged)
        return 0.1, 1.0

    monkeypatch.setattr(LatentStep, "judge", judge)
    monkeypatch.setattr(LatentStep, "pace", lambda *_: 1e-3)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    arguments = Picture(PIXELS), Goal("lambda", 1e-3), Workload(0, 20.0), open_device("numpy")
    encoder = latent._Encoder(*arguments, Run(began=50.0))
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert encoder.plan.costs.judging_seconds == 3.0


def test_passes_towards_psnr_have_a_minimum_lambda_and_may_be_longer() -> None:
    arguments = Picture(np.zeros((16, 16, 3), np.uint8)), Goal("psnr", 50), Workload(300, None)
    encoder = latent._Encoder(*arguments, open_device("numpy"), Run())
    encoder._prepare_trainer()
    assert encoder.passes.min_lmbda == pytest.approx(
        MIN_LMBDA_FACTOR_IN_PASSES * encoder.lmbdas.min_lmbda()
    )
    usual = effort.PASS_LENGTH * effort.steps_for_pixels(300, 16 * 16)
    assert encoder.passes.max_step_factor == pytest.approx(effort.MAX_PASS_STEPS / usual)


def test_maximum_pass_factor_falls_with_picture_size() -> None:
    arguments = Goal("psnr", 50), Workload(300, None), open_device("numpy"), Run()
    for side, times in ((16, 32.0), (64, 32.0), (128, 8.14), (512, 1.0)):
        of = Picture(np.zeros((side, side, 3), np.uint8))
        assert run_plan.RunPlan(of, *arguments).max_pass_factor(150) == pytest.approx(
            times, rel=0.01
        )


def test_estimate_for_small_pictures_includes_launch_and_search_overhead() -> None:
    """Launches and the search for rounded networks take longer than the operations."""
    device, goal = open_device("numpy"), Goal("lambda", 1e-3)
    picture = Picture(np.zeros((40, 48, 3), np.uint8))
    estimate = cost_model.estimate_work(picture, goal, latent.workload(1, None), device)
    steps = 600 + 6 * 150
    assert estimate.steps == steps
    seconds = estimate.seconds(device)
    assert (
        seconds
        > steps * cost_model.STEP_OVERHEAD_SECONDS["one"] + 7 * cost_model.ROUNDING_OVERHEAD_SECONDS
    )


def test_quantisation_steps_depend_on_whether_the_run_stays_in_windows() -> None:
    description = dict.fromkeys(("platform", "name", "driver", "version", "compiled_for"), "")
    info = SimpleNamespace(kind="cpu", compute_units=2, **description)
    device: Any = SimpleNamespace(info=info, lanes="one", compiling=0.0, lowering=0.0)
    picture = Picture(np.zeros((300, 300, 3), np.uint8))
    plan = run_plan.RunPlan(picture, Goal("lambda", 1e-3), latent.workload(2, None), device, Run())
    assert not plan.setup.is_short
    plan.costs.is_opening = True
    few, many = 600, 6000
    assert not plan.costs.switches_program(few)
    assert plan.costs.switches_program(many)
    assert plan.costs.quantisation_steps(few) == round(effort.QUANTISATION_FRACTION * few)
    assert plan.costs.quantisation_steps(many) == effort.MAX_QUANTISATION_STEPS
    plan.costs.is_opening = False  # after the switch
    assert plan.costs.quantisation_steps(few) == round(
        effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION * few
    )


@pytest.mark.parametrize(
    ("size", "bucket", "recorded_pixels"),
    [((480, 700), (512, 768), 512 * 768), ((512, 512), None, 512 * 512), ((20, 20), (32, 32), 0)],
)
def test_gpu_speed_is_recorded_only_for_large_enough_pictures(
    size: tuple[int, int],
    bucket: buckets.Bucket,
    recorded_pixels: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The speed counts the pixels that a step computes; windows have a speed of their own."""
    results, device = list[tuple[str, float]](), open_device("numpy")
    picture = Picture(np.zeros((*size, 3), np.uint8))
    plan = run_plan.RunPlan(picture, Goal("lambda", 1e-3), Workload(300), device, Run())
    times: Any = SimpleNamespace(record_speed=lambda *arguments: results.append(arguments))
    monkeypatch.setattr(plan, "_compile_times", times)
    step: Any = SimpleNamespace(bucket=bucket, windows=[0])
    plan.costs.step_seconds = 1e-3
    plan._note_speed(step)
    assert results == []  # processors record no speed
    monkeypatch.setattr(run_plan, "is_gpu", lambda _: True)
    each = effort.operations_of((*size, 3))
    plan._note_speed(step)
    assert results == [("latent step", recorded_pixels * each / 1e-3)] * bool(recorded_pixels)
    step.windows, step.bucket = [0] * 6, (512, 512)
    plan._note_speed(step)
    assert results[-1] == ("latent step, in windows", 6 * 512 * 512 * each / 1e-3)


@pytest.mark.parametrize("steps", [60, 300, 600, 1000, 5000])
@pytest.mark.parametrize("side", [128, 512])
def test_trials_of_weights_fit_into_a_limited_time(side: int, steps: int) -> None:
    """Even where there is no time for the gradients that order them, some are tried."""
    picture = Picture(np.zeros((side, side, 3), np.uint8))
    work = latent.workload(None, 60.0)
    plan = run_plan.RunPlan(picture, Goal("lambda", 1e-3), work, open_device("numpy"), Run())
    trials = plan.costs.affordable_weight_trials(steps)
    reserved = plan.costs.weight_trial_fraction(steps) * steps
    assert trials > 0
    assert reserved - 1 <= cost_model.weight_trial_steps(trials) <= reserved or trials == 99
    plan.costs.step_seconds = plan.costs.judging_seconds = 1e-3
    plan.deadline = time.perf_counter() + 1000
    assert plan.refining(steps, steps, 0).trials == min(trials, run_plan.MAX_WEIGHT_TRIALS)
    plan.deadline = None
    assert plan.refining(steps, steps, 0).trials == run_plan.MAX_WEIGHT_TRIALS
