"""How a time limit is divided among training, rounding, passes and coding."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import stops_after
from latent_encoding import PIXELS, TWO_COLOURS, encode_pixels, rdoq_seconds

from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import (
    cost_model,
    effort,
    latent_trainer,
    rounding_search,
    run_plan,
)
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted
from imgmlp.image import Picture

pytestmark = pytest.mark.usefixtures("trained")


@pytest.mark.parametrize(
    ("fitting_steps", "is_fixed"), [(39, False), (40, True), (1000, True), (1001, False)]
)
def test_time_limit_decides_once_whether_lambda_is_fixed(
    fitting_steps: int, is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision depends on the steps that fit into a part of the limit; passes take the rest."""
    work, device = Workload(0, seconds=1e4), open_device("numpy")
    picture = Picture(np.tile(TWO_COLOURS, (7, 5, 1)))
    plan = run_plan.RunPlan(picture, Goal("psnr", 35), work, device, Run())
    requests = list[float]()

    def fits(seconds: float) -> int:
        requests.append(seconds)
        return round(fitting_steps * seconds / requests[0])

    monkeypatch.setattr(plan, "steps_within", fits)
    plan.costs.step_seconds = 1e4
    steps, plan.has_fixed_lmbda = plan.fitting_run(1e4)
    assert plan.has_fixed_lmbda is is_fixed
    assert steps == (
        fitting_steps if is_fixed else pytest.approx(fitting_steps * 0.8 / 0.65, abs=1)
    )
    plan.costs.step_seconds = 1.0
    announced = plan._announced_seconds(steps)
    assert announced == pytest.approx(1e4, abs=60) if is_fixed else announced < 5e3


def limited_plan(judging: float) -> tuple[run_plan.RunPlan, float]:
    """The plan of a picture of 512 × 512 pixels, and the seconds per step."""
    arguments = Goal("lambda", 1e-3), latent.workload(None, 1e6), open_device("numpy"), Run()
    plan = run_plan.RunPlan(Picture(np.zeros((512, 512, 3), np.uint8)), *arguments)
    plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, judging
    return plan, 0.01


@pytest.mark.parametrize("judging", [0.002, 0.01, 0.04])
def test_steps_within_a_limit_fit_it_wherever_quantisation_or_search_begin(
    judging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits are tried around the steps at which quantisation begins and at which search begins."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    plan, pace = limited_plan(judging)
    for limit in (*np.linspace(0.3, 1.2, 60), *np.linspace(16, 20, 60)):
        steps = plan.steps_within(float(limit))
        taken = steps * pace + effort.quantisation_steps(plan.goal, steps, 512**2, 1) * pace
        search_seconds = min(
            plan.costs.search_seconds(steps), run_plan.MAX_ROUNDING_FRACTION * limit
        )
        assert 0.8 * limit < taken + search_seconds <= limit, (limit, steps)


@pytest.mark.parametrize("judging", [0.002, 0.004])
def test_steps_within_a_limit_leave_time_for_rdoq(judging: float) -> None:
    """Limits are tried around each number of steps at which the budget of RDOQ grows."""
    plan, pace = limited_plan(judging)
    ends = [n * pace * (1 + effort.QUANTISATION_FRACTION) for n in effort.RDOQ_BUDGETS["one"]]
    for limit in np.concatenate([np.linspace(0.9 * end, 1.5 * end, 40) for end in ends]):
        steps = plan.steps_within(float(limit))
        taken = (steps + effort.quantisation_steps(plan.goal, steps, 512**2, 1)) * pace
        rounding_seconds = plan.costs.search_seconds(steps) + rdoq_seconds(
            steps, pace, judging, 512**2
        )
        taken += min(rounding_seconds, run_plan.MAX_ROUNDING_FRACTION * limit)
        assert 0.7 * limit < taken <= limit, (limit, steps)


def test_time_limit_reserves_time_for_saving_bytes() -> None:
    device, state = open_device("numpy"), LatentTrainerState(1000, 1e-3)

    def limit(kind: Kind) -> float:
        run = Run()
        run.began = 0.0
        arguments = latent.workload(None, 1e6), device, run
        plan = run_plan.RunPlan(Picture(PIXELS), Goal(kind, 100.0), *arguments)
        plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, 1e-4
        return plan.set_deadline(state)[0] or 0.0

    shaving_seconds = (
        len(rounding_search.SHAVING_LMBDA_DOUBLINGS) * rounding_search.SHAVING_TRIALS * 1e-4 / 2
    )
    assert limit("psnr") - limit("bytes") == pytest.approx(shaving_seconds)


@pytest.mark.parametrize("steps", [49, 50, 1000, 4000])
def test_time_limit_reserves_time_for_rdoq(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit() -> float:
        arguments = latent.workload(None, 1e6), open_device("numpy"), Run(began=0.0)
        plan = run_plan.RunPlan(Picture(PIXELS), Goal("lambda", 1e-3), *arguments)
        plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, 1e-4
        return plan.set_deadline(LatentTrainerState(steps, 1e-3))[0] or 0.0

    before, taken = limit(), rdoq_seconds(steps, 0.01, 1e-4, PIXELS.shape[0] * PIXELS.shape[1])
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    assert limit() - before == pytest.approx(taken, abs=1e-6)


@pytest.mark.parametrize(("pace", "is_reported"), [(1.0, True), (1e-3, False)])
def test_too_short_a_time_limit_is_reported(
    pace: float, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    device, goal = open_device("numpy"), Goal("lambda", 1e-3)
    encoder = latent._Encoder(
        Picture(PIXELS), goal, Workload(0, seconds=20.0), device, Run(note=notes.append)
    )
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert any("too little time" in note for note in notes) is is_reported


@pytest.mark.parametrize("kind", ["lambda", "psnr", "bytes"])
@pytest.mark.parametrize("now", [0.0, 1.0, 2.9, 9.0])
def test_announced_seconds_do_not_exceed_the_remaining_limit(
    now: float, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minimum of training is announced even if less time is left."""

    def fake_timing(plan: run_plan.RunPlan, *_: Any) -> float:
        plan.costs.judging_seconds = 0.2  # as if other processes had the cores
        return 2.7e-3

    monkeypatch.setattr(run_plan.RunPlan, "_timed", fake_timing)
    monkeypatch.setattr(run_plan.RunPlan, "_note_speed", lambda *_: None)
    monkeypatch.setattr(run_plan.time, "perf_counter", lambda: now)
    notes: list[str] = []
    arguments = Workload(0, seconds=3.0), open_device("numpy"), Run(note=notes.append, began=0.0)
    plan = run_plan.RunPlan(Picture(PIXELS), Goal(kind, 30.0), *arguments)
    steps = plan.choose_steps(cast(LatentStep, None), 1e-3)
    (announced,) = re.findall(r" steps, about (\S+) s from here", notes[-1])
    min_training_seconds = (
        run_plan.MIN_TRAINING_FRACTION
        * 3.0
        / (1 - run_plan.MAX_ROUNDING_FRACTION - 2 * cost_model.MAX_WEIGHT_TRIAL_FRACTION)
    )
    assert steps * 2.7e-3 <= float(announced) <= max(3.0 - now, min_training_seconds) + 0.05


def test_time_limit_of_a_resumed_run_counts_earlier_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilation before training is one example."""
    checkpoint, device, work = Checkpoint(tmp_path / "c", "k"), open_device("numpy"), Workload(30)
    before, arguments = (
        time.perf_counter() - 500,
        (Picture(PIXELS), Goal("lambda", 1e-3), work, device),
    )
    with pytest.raises(Interrupted):
        latent.encode(*arguments, Run(None, stops_after(1), None, checkpoint, began=before))
    plan = latent._Encoder(*arguments, resumed_run := Run(checkpoint=checkpoint)).plan
    assert plan.earlier_seconds == pytest.approx(500, abs=60)
    plan.workload = Workload(0, seconds=900.0)
    plan.set_deadline(latent_trainer.LatentTrainerState(10, 1e-3))
    assert plan.deadline == pytest.approx(resumed_run.began + 400, abs=60)


@pytest.mark.parametrize(
    ("elapsed", "pace", "min_steps", "max_steps"),
    [(1.5, 0.067, 50, 100), (25.0, 0.067, 30, 40), (1.5, 2.0, 10, 10), (1.5, 1e-4, 50_000, 85_000)],
)
def test_steps_fill_the_time_limit_but_are_at_least_ten(
    elapsed: float, pace: float, min_steps: int, max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: a warm start, compilation longer than the limit, a slow device and a fast one."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    work, run = Workload(0, seconds=10.0), Run(began=100.0 - elapsed)
    arguments = Picture(PIXELS), Goal("lambda", 1e-3), work, open_device("numpy"), run
    plan = latent._Encoder(*arguments).plan
    plan.costs.judging_seconds = pace / 5  # judging is about a fifth of a step
    plan.costs.step_seconds = pace
    assert min_steps <= plan.fitting_run(10.0)[0] <= max_steps


@pytest.mark.parametrize(
    ("kind", "colours", "max_fixed_lmbda_steps", "fraction"),
    [("psnr", 3, 650, 0.65), ("psnr", 3, 640, 0.8), ("psnr", 9, 650, 0.8), ("bytes", 3, 650, 0.95)],
)
def test_time_limit_reserves_time_for_passes_towards_a_target(
    kind: Kind,
    colours: int,
    max_fixed_lmbda_steps: int,
    fraction: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short runs of graphics reserve more."""
    monkeypatch.setattr(run_plan, "MAX_FIXED_LMBDA_STEPS", max_fixed_lmbda_steps)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    pixels = np.arange(256 * 256, dtype=np.int64).reshape(256, 256, 1) % colours * 20
    goal, limit = Goal(kind, {"psnr": 35, "bytes": 400}[kind]), Workload(0, seconds=1000.0)
    arguments = Picture(pixels.astype(np.uint8)), goal, limit, open_device("numpy")
    plan = run_plan.RunPlan(*arguments, Run(began=100.0))
    monkeypatch.setattr(plan, "steps_within", lambda seconds: seconds)
    plan.costs.step_seconds = 1.0
    assert plan.fitting_run(1000.0)[0] == pytest.approx(1000 * fraction, rel=0.02)


@pytest.mark.parametrize(("has_kernel", "seconds"), [(True, 0.6), (False, 1.6)])
def test_time_limit_reserves_time_for_coding_by_numpy_without_a_kernel(
    has_kernel: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens beside a GPU if the processor has no driver."""
    monkeypatch.setattr(cost_model, "has_sequential_processor", lambda _: has_kernel)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    work, picture = Workload(0, seconds=10.0), Picture(np.zeros((500, 500, 3), np.uint8))
    arguments = picture, Goal("lambda", 1e-3), work, open_device("numpy"), Run(began=100.0)
    plan = run_plan.RunPlan(*arguments)
    state = latent_trainer.LatentTrainerState(10, 1e-3)
    plan.set_deadline(state)
    assert plan.deadline == pytest.approx(110 - seconds, abs=0.06)


@pytest.mark.parametrize(("judging", "search_seconds"), [(2e-3, 0.1), (0.1, 5.0)])
def test_time_limit_reserves_time_for_rounding_networks(
    judging: float, search_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time depends on how long one judgement takes, and is a limited fraction of the run."""
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(LatentStep, "pace", lambda *_: 1e-3)
    work, goal, run = Workload(0, seconds=10.0), Goal("lambda", 1e-3), Run(began=100.0)
    encoder = latent._Encoder(Picture(PIXELS), goal, work, open_device("numpy"), run)
    plan = encoder.plan
    steps = plan.choose_steps(encoder.forms.first(), 1e-3)
    plan.costs.judging_seconds = judging
    assert steps > 1000
    state = latent_trainer.LatentTrainerState(plan.fitting_run(10.0)[0], 1e-3)
    until, _ = plan.set_deadline(state)
    assert until is not None
    assert plan.deadline is not None
    quantisation_fraction = effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION
    quantisation_seconds = (
        min(round(quantisation_fraction * state.steps), effort.MAX_QUANTISATION_STEPS) * 1e-3
    )
    training_seconds = state.steps * 1e-3 + quantisation_seconds
    trials = cost_model.weight_trials(state.steps, PIXELS.shape[0] * PIXELS.shape[1])
    fraction = min(
        cost_model.weight_trial_steps(trials) / state.steps, cost_model.MAX_WEIGHT_TRIAL_FRACTION
    )
    assert fraction > 0
    rounding = (
        fraction / (1 - fraction) * training_seconds
        + quantisation_seconds
        + min(search_seconds, 0.2 * training_seconds)
    )
    assert plan.deadline - until == pytest.approx(rounding)
    assert 100 + state.steps * 1e-3 == pytest.approx(until, abs=0.1)


@pytest.mark.parametrize(
    ("seconds_left", "steps", "steps_of_longer_pass"),
    [(8.0, 40, 40), (4.0, 34, 34), (1.6, 10, 10), (1.3, 0, 7), (0.5, 0, 0), (-1.0, 0, 0)],
)
def test_pass_has_the_steps_that_fit_before_the_deadline(
    seconds_left: float, steps: int, steps_of_longer_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 50.0)
    arguments = Picture(PIXELS), Goal("psnr", 30), Workload(0, 20.0), open_device("numpy")
    plan = latent._Encoder(*arguments, Run(began=40.0)).plan
    plan.costs.step_seconds, plan.rounding_seconds = 0.1, 0.6 / run_plan.PASS_ROUNDING_FRACTION
    assert plan.pass_steps(40) == 40
    plan.deadline = 50.0 + seconds_left
    assert plan.pass_steps(40) == pytest.approx(steps, abs=1)
    assert plan.pass_steps(10, factor=4.0) == pytest.approx(steps_of_longer_pass, abs=1)


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_time_limit_decides_steps_deadline_and_shaving_of_a_pass(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit also decides how many bytes are aimed at.

    The seconds of rounding for the previous file are known when the pass is planned.
    """
    monkeypatch.setattr(run_plan.RunPlan, "fitting_run", lambda *_: (12, False))
    monkeypatch.setattr(
        latent_trainer, "MAX_LIMITED_CHANGE", 1e6
    )  # so that the run does not restart with fewer steps
    seen: dict[str, Any] = {}
    repeat, rounding = LatentTrainer.begin_pass, latent.Rounding
    pass_steps, pricing = run_plan.RunPlan.pass_steps, Lambdas.pricing

    def record_pass(trainer: LatentTrainer, *given: Any) -> None:
        before = trainer.state.steps
        repeat(trainer, *given)
        seen["pass"] = trainer.state.steps - before, trainer._limit

    def record_pass_steps(plan: run_plan.RunPlan, usual: int, *longer: float) -> int:
        seen.setdefault("until", plan.pass_deadline())
        seen["took"], seen["longer"] = plan.rounding_seconds, longer
        return min(pass_steps(plan, usual, *longer), 2)

    def record_pricing(lmbdas: Lambdas, *given: Any, limited: bool) -> Any:
        seen["limited"] = limited
        return pricing(lmbdas, *given, limited=limited)

    def record_rounding(*given: Any) -> rounding_search.Rounding:
        seen["shaving"] = given[-1].shaving
        return rounding(*given)

    monkeypatch.setattr(LatentTrainer, "begin_pass", record_pass)
    monkeypatch.setattr(run_plan.RunPlan, "pass_steps", record_pass_steps)
    monkeypatch.setattr(Lambdas, "pricing", record_pricing)
    monkeypatch.setattr(latent, "Rounding", record_rounding)
    enough = iter([False])
    monkeypatch.setattr(latent.Passes, "suffice", lambda *_: next(enough, True))
    monkeypatch.setattr(latent.Passes, "step_factor", lambda _: 1.5)
    encode_pixels(Goal("bytes", 150), workload=Workload(12, seconds))
    limited = seconds is not None
    assert seen["took"] > 0
    assert seen["longer"] == (1.5,)
    assert (seen["limited"], seen["shaving"]) == (limited, limited)
    assert seen["pass"][0] == 2 < round(latent_trainer.PASS_LENGTH * 12)
    assert seen["pass"][1] == seen["until"]
    assert (seen["until"] is not None) is limited
