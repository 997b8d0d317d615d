"""From a picture to a file of the latent codec: targets, effort, and going on after a stop."""

from __future__ import annotations

import functools
import math
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import ClockOfSteps, small_pixels, stops_after

from imgmlp.codec import decoder, encoder
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.latent import decode, pretrained, sections
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.model import LatentModel, Quantized
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Steering
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import (
    bit_allocation,
    buckets,
    cost_model,
    effort,
    forms,
    latent_trainer,
    progressive_quantisation,
    rounding_search,
    run_plan,
    schedule,
)
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.lmbdas import MIN_LMBDA_FACTOR_IN_PASSES, Lambdas
from imgmlp.codec.latent.training.rdoq import Budget
from imgmlp.codec.latent.training.rounding_search import Refining, Trial, Written
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.codec.training import passes, search
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.run import Progress, Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import ImgmlpError, Interrupted, OutOfMemoryError, UsageError
from imgmlp.image import Picture, psnr
from imgmlp.metadata import NOTHING, Metadata

pytestmark = pytest.mark.usefixtures("trained")

SHORT = Workload(30)
PIXELS = small_pixels()[:10, :13]
BESIDE = Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", (300.0, 72.5))


def run(
    target: Goal,
    pixels: np.ndarray = PIXELS,
    workload: Workload = SHORT,
    run: Run | None = None,
    metadata: Metadata = NOTHING,
) -> Encoded:
    picture = Picture(pixels, metadata)
    return encoder.encode(picture, target, workload, open_device("numpy"), run, "latent")


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of passes and of lambdas, whichever is the best of them."""
    monkeypatch.setattr(passes, "MAX_PASSES", 2)
    monkeypatch.setattr(search, "MAX_TRIALS", 3)


@functools.cache
def whole(target: Goal) -> bytes:
    """The file of a run that is not stopped, of few trials."""
    return run(target).bytes


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_figures_are_those_of_the_bytes(channels: int) -> None:
    pixels = np.concatenate([PIXELS, PIXELS[::-1]], axis=2)[:, :, :channels]
    beside = BESIDE if channels == 3 else NOTHING
    found = run(Goal("lambda", 3e-3), pixels, Workload(10), metadata=beside)
    parsed = container.parse(found.bytes)
    decoded = decoder.decode(parsed, open_device("numpy"))
    assert parsed.header.codec == "latent"
    assert (decoded == found.pixels).all()
    assert metadata_sections.read(parsed) == beside
    assert found.metrics["bytes"] == len(found.bytes)
    assert found.metrics["psnr"] == psnr(pixels, decoded)
    assert found.metrics["steps"] == 10
    sections = {s.type: len(s.data) for s in parsed.sections}
    assert found.metrics["network_bytes"] == sections["N"] + sections["W"]
    assert found.metrics["latent_bytes"] == sections["L"]


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (1, 40), (40, 1), (2, 2), (3, 5), (17, 9)])
def test_pictures_of_any_size_have_files(size: tuple[int, int]) -> None:
    values = np.linspace(0, 255, math.prod(size)).astype(np.uint8)
    found = run(Goal("lambda", 1e-3), values.reshape(*size, 1), Workload(4))
    parsed = container.parse(found.bytes)
    assert parsed.header.codec == "latent"
    assert (decoder.decode(parsed, open_device("numpy")) == found.pixels).all()


@pytest.mark.parametrize("target", [Goal("psnr", 40), Goal("bytes", 5000), Goal("lambda", 1e-3)])
def test_a_picture_of_one_colour_is_a_small_lossless_file_without_training(target: Goal) -> None:
    pixels = np.broadcast_to(np.array([3, 128, 250, 77], np.uint8), (20, 33, 4))
    found = run(target, np.ascontiguousarray(pixels))
    assert found.metrics["psnr"] == math.inf
    assert found.missed is None
    assert len(found.bytes) < 64


def test_training_makes_the_picture_better_and_dearer_bits_the_file_smaller() -> None:
    few, many = (run(Goal("lambda", 1e-3), workload=Workload(n)) for n in (2, 60))
    dear = run(Goal("lambda", 3e-2), workload=Workload(60))
    assert many.metrics["psnr"] > few.metrics["psnr"] + 3
    assert len(dear.bytes) < len(many.bytes)


def test_bytes_are_kept_and_used() -> None:
    found = run(Goal("bytes", 300), workload=Workload(60))
    assert 0.97 * 300 <= len(found.bytes) <= 300
    assert found.missed is None


def test_a_quality_is_met_and_no_bytes_are_spent_on_more() -> None:
    """A smaller file with more dB is better than one that has just what was wanted."""
    found = {goal: run(Goal("psnr", goal), workload=Workload(60)) for goal in (17, 23)}
    for goal, one in found.items():
        assert goal - one.metrics["psnr"] <= 0.1
        assert one.missed is None
    assert len(found[23].bytes) <= 190  # by a single pass and rounding: 210
    assert len(found[17].bytes) <= 130  # 150


def test_cheap_bits_make_a_picture_that_only_fine_steps_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With steps of one size it has 30.5 dB in 555 bytes."""
    monkeypatch.setattr(schedule, "SHORT_RUN", 100)
    found = run(Goal("lambda", 1e-6), workload=Workload(100))
    assert found.metrics["psnr"] > 33


@pytest.mark.usefixtures("few_trials")
def test_what_bits_cost_says_which_start_networks_begin_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "MIN_PIXELS_FOR_LOW_LMBDA", 0)
    device = open_device("numpy")
    for goal, number in (
        (Goal("lambda", 1e-3), 4), (Goal("lambda", 1e-5), 9), (Goal("psnr", 60.0), 9),
    ):  # fmt: skip
        found = container.parse(run(goal, workload=Workload(2)).bytes)
        assert decode.read(found, device).pretrained == number


@pytest.mark.usefixtures("few_trials")
def test_a_target_out_of_reach_is_missed_with_the_best_file() -> None:
    found = run(Goal("bytes", 40), workload=Workload(4))
    assert found.missed == f"{len(found.bytes)} bytes instead of 40"
    found = run(Goal("psnr", 55), workload=Workload(4))
    assert found.missed is not None
    assert found.missed.endswith("instead of 55")


@pytest.mark.usefixtures("few_trials")
def test_the_same_choices_give_the_same_bytes() -> None:
    assert run(Goal("bytes", 420)).bytes == whole(Goal("bytes", 420))


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(
    ("target", "stops"), [(Goal("lambda", 1e-3), (1, 3, 11)), (Goal("bytes", 420), (5, 11, 250, 0))]
)
def test_a_stopped_run_gives_the_bytes_of_one_that_was_not(
    target: Goal, stops: tuple[int, ...], tmp_path: Path
) -> None:
    """However often it was stopped: while it trains, while networks are rounded, and in a pass of
    8 steps more."""
    checkpoint = Checkpoint(tmp_path / "c", "k")
    notes: list[str] = []
    for count in stops:
        stop = stops_after(count)
        with pytest.raises(Interrupted, match=r"stopped after \d+ of (30|38) steps"):
            run(target, run=Run(None, stop, notes.append, checkpoint))
    found = run(target, run=Run(note=notes.append, checkpoint=checkpoint))
    assert found.bytes == whole(target)
    assert found.resumed > 0
    told = [note for note in notes if note.startswith("continuing after")]
    assert len(told) == len(stops)


@pytest.mark.usefixtures("few_trials")
def test_a_run_that_is_stopped_in_a_pass_keeps_the_best_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no pass makes a better one, which is judged here by the fewest steps."""
    monkeypatch.setattr(latent._Encoder, "_distance", lambda _, made: made.metrics["steps"])
    target, checkpoint, steps = Goal("bytes", 420), Checkpoint(tmp_path / "c", "k"), list[int]()
    best = run(target)
    assert best.metrics["steps"] == 30

    def stop() -> bool:
        return bool(steps) and steps[-1] > 30

    stopped = Run(lambda p: steps.append(p.step), stop, checkpoint=checkpoint)
    with pytest.raises(Interrupted, match=r"stopped after 3\d of 3\d steps"):
        run(target, run=stopped)
    assert run(target, run=Run(checkpoint=checkpoint)).bytes == best.bytes


@pytest.mark.usefixtures("few_trials")
def test_a_run_that_is_done_again_may_be_stopped_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LatentTrainer, "lmbda_was_too_low", lambda *_: True)
    target, again = Goal("psnr", 20), "30 steps once more, as bits were too cheap at first"
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    checkpoint, told = Checkpoint(tmp_path / "c", "k"), list[str | int]()
    wanted = run(target, run=Run(note=told.append))
    assert told.count(again) == 1
    told.clear()

    def stop() -> bool:
        return again in told and told[-1] != again

    stopped = Run(lambda p: told.append(p.step), stop, told.append, checkpoint)
    with pytest.raises(Interrupted, match=r"stopped after \d+ of 30 steps"):
        run(target, run=stopped)
    assert 0 < told[-1] < 30
    assert run(target, run=Run(checkpoint=checkpoint)).bytes == wanted.bytes


def test_runs_are_done_again_for_db_alone_where_they_are_short_and_no_limit_counts() -> None:
    def may(kind: Kind, steps: int, limit: float | None = None) -> bool:
        wanted, picture = Goal(kind, 30), Picture(PIXELS)
        of = Workload(30, limit)
        return run_plan.RunPlan(picture, wanted, of, open_device("numpy"), Run()).may_restart(steps)

    assert may("psnr", effort.MAX_PASS_STEPS)
    assert not may("psnr", effort.MAX_PASS_STEPS + 1)
    assert not may("psnr", 30, limit=1e9)
    assert not may("bytes", 30)


TWO_COLOURS = np.repeat(np.random.default_rng(0).integers(0, 2, (10, 13, 1), np.uint8) * 255, 3, 2)


class Enough(Exception):
    """Of a run, for what a test asks."""


@pytest.mark.parametrize("kind", ["psnr", "bytes"])
@pytest.mark.parametrize(
    ("limit", "most", "stays"), [(None, 0, True), (1e3, 40, True), (1e3, 39, False)]
)
def test_the_lambda_of_few_colours_stays_in_a_short_run_towards_db(
    kind: Kind, limit: float | None, most: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in one that may be done again; at a lower one where there may be no time for others."""
    monkeypatch.setattr(run_plan, "MAX_FIXED_LMBDA_STEPS", most)
    found = list[tuple[float, bool]]()

    def begun(trainer: LatentTrainer, *_: object) -> None:
        found.append((trainer.state.lmbda, trainer.state.lmbda_is_fixed))
        raise Enough

    monkeypatch.setattr(LatentTrainer, "run", begun)
    monkeypatch.setattr(run_plan.RunPlan, "steps_within", lambda *_: schedule.VERY_SHORT_RUN)
    wanted, error = Goal(kind, {"psnr": 45, "bytes": 400}[kind]), 10**-4.5
    for pixels in (TWO_COLOURS, PIXELS):
        with pytest.raises(Enough):
            run(wanted, pixels, Workload(schedule.VERY_SHORT_RUN, limit))
    few_first, many_first = (Lambdas(Picture(p), wanted).initial() for p in (TWO_COLOURS, PIXELS))
    if stays and kind == "psnr":
        assert few_first < 2 * error
        assert found[0] == pytest.approx((5 * error if limit is None else 0.6 * few_first, True))
    else:
        assert found[0] == (few_first, False)
    assert found[1] == (many_first, False)


def test_no_lambda_that_stays_is_below_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    lmbdas = Lambdas(Picture(TWO_COLOURS), Goal("psnr", 45))
    monkeypatch.setattr(lmbdas, "initial", lmbdas.min_lmbda)
    assert lmbdas.fixed_lmbda(limited=True) == lmbdas.min_lmbda() == pytest.approx(0.2 * 10**-4.5)


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(("pixels", "doublings"), [(TWO_COLOURS, 3.0), (PIXELS, 1.5)])
def test_a_run_of_few_colours_is_done_again_at_a_lambda_that_may_be_far_higher(
    pixels: np.ndarray, doublings: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmbdas = list[float]()

    def over(trainer: LatentTrainer, lmbda: float) -> None:
        lmbdas.extend((trainer.state.lmbda, lmbda))
        raise Enough

    monkeypatch.setattr(LatentTrainer, "lmbda_was_too_low", lambda *_: True)
    monkeypatch.setattr(LatentTrainer, "repeat_run", over)
    monkeypatch.setattr(latent.Passes, "_excess", lambda *_: 12.0)
    with pytest.raises(Enough):
        run(Goal("psnr", 40), pixels, Workload(schedule.VERY_SHORT_RUN))
    assert math.log2(lmbdas[1] / lmbdas[0]) == pytest.approx(doublings)


@pytest.mark.parametrize(
    ("fitting", "steady"), [(39, False), (40, True), (1000, True), (1001, False)]
)
def test_a_limit_decides_once_whether_a_lambda_stays(
    fitting: int, steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the steps that a part of it leaves time for; passes take the rest then."""
    work, device = Workload(0, seconds=1e4), open_device("numpy")
    picture = Picture(np.tile(TWO_COLOURS, (7, 5, 1)))
    found = run_plan.RunPlan(picture, Goal("psnr", 35), work, device, Run())
    asked = list[float]()

    def fits(room: float) -> int:
        asked.append(room)
        return round(fitting * room / asked[0])

    monkeypatch.setattr(found, "steps_within", fits)
    found.costs.step_seconds = 1e4
    steps, found.has_fixed_lmbda = found.fitting_run(1e4)
    assert found.has_fixed_lmbda is steady
    assert steps == (fitting if steady else pytest.approx(fitting * 0.8 / 0.65, abs=1))
    found.costs.step_seconds = 1.0
    told = found._announced_seconds(steps)
    assert told == pytest.approx(1e4, abs=60) if steady else told < 5e3


@pytest.mark.parametrize(("kind", "runs"), [("psnr", 2), ("lambda", 1)])
def test_the_run_of_few_colours_that_is_done_again_is_told(
    kind: Kind, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is known of the device's pace, and once it is."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})  # which is done after both
    workload, device, few = Workload(400), open_device("numpy"), PIXELS // 128 * 128
    few, many = (Picture(pixels) for pixels in (np.repeat(few[:, :, :1], 3, 2), PIXELS))
    steps = effort.steps_for_pixels(400, PIXELS.shape[0] * PIXELS.shape[1])
    told = [latent.estimate_work(p, Goal(kind, 30), workload, device).steps for p in (few, many)]
    assert told[0] - told[1] == (runs - 1) * steps
    pace = 10.0
    plans = [run_plan.RunPlan(p, Goal(kind, 30), workload, device, Run()) for p in (few, many)]
    for plan in plans:
        plan.costs.step_seconds = pace
    told = [plan.run_seconds(steps) for plan in plans]
    assert told[0] - told[1] == pytest.approx((runs - 1) * steps * pace)


@pytest.mark.usefixtures("few_trials")
def test_a_search_for_rounded_networks_may_be_stopped_as_well(tmp_path: Path) -> None:
    checkpoint, steps = Checkpoint(tmp_path / "c", "k"), list[int]()

    def stop() -> bool:
        return steps[-1:] == [30]

    with pytest.raises(Interrupted, match="stopped after 30 of 30 steps"):
        run(
            Goal("lambda", 1e-3),
            run=Run(lambda p: steps.append(p.step), stop, checkpoint=checkpoint),
        )
    found = run(Goal("lambda", 1e-3), run=Run(checkpoint=checkpoint))
    assert found.resumed == 30
    assert found.bytes == whole(Goal("lambda", 1e-3))


def test_progress_tells_what_is_minimised() -> None:
    told: list[Progress] = []
    run(Goal("lambda", 2e-3), run=Run(told.append))
    assert told[-1].step == told[-1].steps == 30
    for progress in told:
        assert progress.bpp is not None
        assert progress.cost == pytest.approx(progress.loss + 2e-3 * progress.bpp)


# --- effort and time ---


def test_efforts_go_from_hundreds_to_a_hundred_thousand_steps() -> None:
    steps = [effort.steps_of_effort(level) for level in range(1, 10)]
    assert steps[0] == 300
    assert steps[-1] == 100_000
    factors = [b / a for a, b in pairwise(steps)]
    assert max(factors) / min(factors) < 1.01
    for level in (0, 10):
        with pytest.raises(UsageError, match=f"effort is {level}"):
            latent.workload(level, None)


@pytest.mark.parametrize(("pace", "level"), [(1.0, 1), (7e-3, 2), (2.5e-3, 5), (1e-4, 9)])
def test_without_an_effort_the_device_decides(
    pace: float, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    device, wanted = open_device("numpy"), Goal("lambda", 1e-3)
    encoder = latent._Encoder(
        Picture(PIXELS), wanted, latent.workload(None, None), device, Run(note=notes.append)
    )
    steps, pixels = (
        encoder.plan.choose_steps(encoder.forms.first(), 1e-3),
        PIXELS.shape[0] * PIXELS.shape[1],
    )
    assert steps == effort.steps_for_pixels(effort.steps_of_effort(level), pixels)
    assert notes[0].startswith(f"effort {level} of 9")
    passes, again = (
        effort.unconditional_passes(steps, pixels),
        round(latent_trainer.PASS_LENGTH * steps),
    )
    assert (passes > 0) is (level < 9)
    times = {0: "", 1: f" and once {again:,} again"}
    more = times.get(passes, f" and {passes} times {again:,} again")
    assert notes[1].startswith(f"{steps:,} steps{more}, about ")


def test_single_weights_are_foreseen_in_the_passes_that_move_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them after the last passes, a few before."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    device, pixels = open_device("numpy"), np.resize(small_pixels(), (128, 128, 3))

    def foreseen(wanted: Goal) -> float:
        made = Picture(pixels), wanted, latent.workload(1, None), device, Run()
        found = run_plan.RunPlan(*made)
        found.costs.step_seconds, found.costs.judging_seconds = 0.01, 0.002
        return found.run_seconds(600)

    taken = foreseen(Goal("lambda", 1e-3))
    trained = (
        600 * 0.01 * (1 + 6 * latent_trainer.PASS_LENGTH) + 7 * cost_model.SEARCH_JUDGEMENTS * 0.002
    )
    moved = 2 * cost_model.weight_trials(600, 128**2) + 5 * cost_model.MAX_EARLY_WEIGHT_TRIALS
    assert taken == pytest.approx(trained + moved * cost_model.WEIGHT_TRIAL_STEPS * 0.01)
    assert foreseen(Goal("psnr", 30)) == taken


def test_networks_harden_in_a_share_of_the_steps_that_a_limit_leaves_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Goal("lambda", 1e-3), latent.workload(1, None), open_device("numpy"), Run()
    assert (
        run_plan.RunPlan(Picture(PIXELS), *made).quantisation_steps(100_000) == 0
    )  # which is too small
    large = Picture(np.zeros((256, 256, 3), np.uint8))
    found = run_plan.RunPlan(large, *made)
    most = effort.MAX_QUANTISATION_STEPS
    steps = [
        effort.MIN_STEPS_TO_QUANTISE - 1,
        effort.MIN_STEPS_TO_QUANTISE,
        100,
        160,
        300,
        1000,
        100_000,
    ]
    assert [found.quantisation_steps(n) for n in steps] == [0, 6, 15, 24, 45, 120, most]
    towards = run_plan.RunPlan(large, Goal("psnr", 30.0), *made[1:])
    steps = [
        effort.MIN_STEPS_TO_QUANTISE_AND_SEARCH - 1,
        effort.MIN_STEPS_TO_QUANTISE_AND_SEARCH,
        1000,
    ]
    assert [towards.quantisation_steps(n) for n in steps] == [0, 48, 120]
    assert all(towards.costs.searches(n) for n in steps)
    larger = Picture(np.zeros((1024, 1024, 3), np.uint8))  # of which a part is judged
    judged = run_plan.RunPlan(larger, *made)
    assert [judged.quantisation_steps(n) for n in steps] == [0, 48, 120]
    # in sixteen windows, with each of which networks move
    monkeypatch.setattr(buckets.TrainingSetup, "uses_windows", True)
    in_parts = run_plan.RunPlan(larger, *made)
    assert [in_parts.quantisation_steps(n) for n in (*steps, 100_000)] == [0, 24, 60, most]
    assert all(judged.costs.searches(n) for n in steps)
    assert [found.costs.searches(n) for n in (39, 40, 1600, 1700)] == [True, False, False, True]
    found.costs.step_seconds, found.costs.judging_seconds = 0.01, 0.02  # the search takes a second
    monkeypatch.setattr(run_plan.time, "perf_counter", lambda: 100.0)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 1)})
    found.deadline = 100.0 + 2.001 + rdoq_takes(100_000, 0.01, 0.02, 256**2)
    assert found.quantisation_steps(100_000) == 90
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    for left, count in ((0.5, 0), (2.0, 90), (1000.0, most)):
        found.deadline = 100.0 + left
        assert found.quantisation_steps(100_000) == count, left
    found.deadline = 100.2  # there is no search after so few
    assert found.quantisation_steps(100) == 15
    towards.costs.step_seconds, towards.costs.judging_seconds, towards.deadline = 0.01, 0.02, 102.0
    assert towards.quantisation_steps(100_000) == 40


def limited_plan(judging: float) -> tuple[run_plan.RunPlan, float]:
    """The plan of a picture of 512 × 512 pixels, and the seconds that a step of it takes."""
    made = Goal("lambda", 1e-3), latent.workload(None, 1e6), open_device("numpy"), Run()
    plan = run_plan.RunPlan(Picture(np.zeros((512, 512, 3), np.uint8)), *made)
    plan.costs.step_seconds, plan.costs.judging_seconds = 0.01, judging
    return plan, 0.01


@pytest.mark.parametrize("judging", [0.002, 0.01, 0.04])
def test_what_a_limit_leaves_time_for_is_in_it_wherever_runs_change(
    judging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing that hardens to what does, and from there to what is searched for as well."""
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    plan, pace = limited_plan(judging)
    for room in (*np.linspace(0.3, 1.2, 60), *np.linspace(16, 20, 60)):
        steps = plan.steps_within(float(room))
        taken = steps * pace + effort.quantisation_steps(plan.goal, steps, 512**2, 1) * pace
        searched = min(plan.costs.search_seconds(steps), run_plan.MAX_ROUNDING_FRACTION * room)
        assert 0.8 * room < taken + searched <= room, (room, steps)


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_latents_are_moved_for_longer_after_longer_runs(lanes: str) -> None:
    """Not at all after a few steps."""
    ends = sorted(effort.RDOQ_BUDGETS[lanes])
    found = [effort.rdoq_budget(n, lanes) for n in (0, *ends, 100_000)]
    assert [each.judged for each in found[:2]] == [0, effort.RDOQ_BUDGETS[lanes][ends[0]].judged]
    assert all(one.judged < other.judged for one, other in pairwise(found[:-1]))
    assert found[-1] == found[-2]
    assert [effort.rdoq_budget(n - 1, lanes) for n in ends] == found[: len(ends)]


def rdoq_takes(steps: int, pace: float, judging: float, pixels: int) -> float:
    """Seconds: both times sweeps, with a step for the gradient of each, and all that is judged."""
    budget = effort.rdoq_budget(steps, "one")
    looked = budget.judged * (
        judging + cost_model.RDOQ_HOST_SECONDS + cost_model.RDOQ_HOST_SECONDS_PER_PIXEL * pixels
    )
    return 2 * (looked + budget.sweeps * pace)


@pytest.mark.parametrize(("side", "parts"), [(128, 1), (128, 4), (1024, 1), (1024, 16)])
@pytest.mark.parametrize("steps", [49, 50, 600, 6000])
def test_moving_latents_is_foreseen_after_a_run_and_after_all_of_its_passes(
    steps: int, side: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows of a large picture, some of which stand for all when networks are judged."""
    made = Goal("lambda", 1e-3), latent.workload(1, None), open_device("numpy"), Run()
    found = run_plan.RunPlan(Picture(np.zeros((side, side, 3), np.uint8)), *made)
    found.costs.step_seconds, found.costs.judging_seconds = 0.01, 0.002
    monkeypatch.setattr(found.costs, "windows", lambda _: parts)
    judging = 0.002 * (2 if (side, parts) == (1024, 16) else 1)
    taken, each = found.run_seconds(steps), rdoq_takes(steps, 0.01, judging, side**2)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    times = 1 + found.unconditional_passes(steps)
    assert taken - found.run_seconds(steps) == pytest.approx(times * each)
    assert (each > 0) is (steps >= 50)


def test_work_has_what_moving_latents_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, device, wanted = (128, 128, 3), open_device("numpy"), Goal("lambda", 1e-3)
    made = Picture(np.zeros(shape, np.uint8)), wanted, latent.workload(1, None), device
    steps = effort.steps_for_pixels(300, 128**2)
    times = 1 + effort.unconditional_passes(steps, 128**2)
    computed = cost_model.estimate_work(*made).operations
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    looks = (computed - cost_model.estimate_work(*made).operations) / (
        128**2 * forms.operations_of(shape)
    )
    monkeypatch.undo()
    judged = 2 * times * effort.rdoq_budget(steps, "one").judged
    assert looks == pytest.approx(judged * cost_model.JUDGEMENT_STEPS * cost_model.NUMPY_SLOWDOWN)


@pytest.mark.parametrize("judging", [0.002, 0.004])
def test_what_a_limit_leaves_time_for_has_the_moving_of_latents_in_it(judging: float) -> None:
    """Wherever that takes longer than after a step less."""
    plan, pace = limited_plan(judging)
    ends = [n * pace * (1 + effort.QUANTISATION_FRACTION) for n in effort.RDOQ_BUDGETS["one"]]
    for room in np.concatenate([np.linspace(0.9 * end, 1.5 * end, 40) for end in ends]):
        steps = plan.steps_within(float(room))
        taken = (steps + effort.quantisation_steps(plan.goal, steps, 512**2, 1)) * pace
        looking = plan.costs.search_seconds(steps) + rdoq_takes(steps, pace, judging, 512**2)
        taken += min(looking, run_plan.MAX_ROUNDING_FRACTION * room)
        assert 0.7 * room < taken <= room, (room, steps)


def test_large_pictures_have_fewer_trials_of_single_weights() -> None:
    assert bit_allocation.weight_trials(600, 2**16 - 1) == 300
    assert bit_allocation.weight_trials(600, 2**16) == 60
    assert bit_allocation.weight_trials(100_000, 2**20) == 3000


@pytest.mark.usefixtures("few_trials")
def test_long_runs_harden_their_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(bit_allocation, "MIN_NETWORK_FRACTION", math.inf)  # or they harden twice
    counts = list[int]()
    hardened = progressive_quantisation.quantise

    def noted(*given: Any) -> dict[str, Quantized]:
        counts.append(given[3])
        return hardened(*given)

    monkeypatch.setattr(progressive_quantisation, "quantise", noted)
    run(Goal("lambda", 1e-3), PIXELS[:5, :6], Workload(400))
    steps = effort.steps_for_pixels(400, 30)
    assert counts[0] == round(effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION * steps)
    assert set(counts[1:]) == {
        round(effort.MAX_SHORT_QUANTISATION_FRACTION * latent_trainer.PASS_LENGTH * steps)
    }  # of passes
    counts.clear()
    run(Goal("lambda", 1e-3), PIXELS[:5, :6], Workload(effort.MIN_STEPS_TO_QUANTISE - 1))
    assert not counts


@pytest.mark.parametrize(("seconds", "level"), [(24.0, 4), (26.0, 3)])
@pytest.mark.parametrize(("kind", "passes"), [("lambda", 2), ("psnr", 3)])
def test_what_an_effort_takes_decides_with_all_passes(
    kind: Kind, passes: int, seconds: float, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fourth level that takes 24 seconds is about the usual time, 26 are too long."""
    steps = effort.steps_for_pixels(effort.steps_of_effort(4), PIXELS.shape[0] * PIXELS.shape[1])
    all_trials = cost_model.weight_trials(steps, PIXELS.shape[0] * PIXELS.shape[1])
    moved = (
        passes * all_trials + cost_model.MAX_EARLY_WEIGHT_TRIALS
    )  # the first of them moves few weights
    rounding = cost_model.WEIGHT_TRIAL_STEPS * moved
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    shorter = round(latent_trainer.PASS_LENGTH * steps)
    share = effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION
    hardened = round(share * steps) + passes * round(share * shorter)
    assert effort.MIN_STEPS_TO_QUANTISE < shorter < steps < effort.MAX_QUANTISATION_STEPS / share
    steps += passes * latent_trainer.PASS_LENGTH * steps + hardened
    pace = seconds / (steps + rounding)
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    made = Picture(PIXELS), Goal(kind, 30.0), latent.workload(None, None), open_device("numpy")
    encoder = latent._Encoder(*made, Run(note=notes.append))
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert notes[0].startswith(f"effort {level} of 9")


def test_small_pictures_have_passes_whatever_the_target_and_a_quality_keeps_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as a target may take, of AGAIN steps in all at most; none where time is short."""
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 20)
    found = [effort.unconditional_passes(steps, 128 * 128) for steps in (10, 600, 1882, 6000, 8000)]
    assert found == [0, 6, 3, 1, 0]
    assert effort.unconditional_passes(600, 256 * 256) == 0
    drafts, rounded = list[Draft](), latent._Encoder._round

    def noted(encoder: latent._Encoder, trainer: LatentTrainer) -> tuple[Draft, Written]:
        made, first = rounded(encoder, trainer)
        drafts.append(made)
        return made, first

    monkeypatch.setattr(latent._Encoder, "_round", noted)
    best = run(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(20)).metrics
    costs = [10 ** (-d.metrics["psnr"] / 10) + 3e-3 * d.metrics["bpp"] for d in drafts]
    assert len(costs) == 1 + effort.MAX_UNCONDITIONAL_PASSES
    assert 10 ** (-best["psnr"] / 10) + 3e-3 * best["bpp"] == min(costs)
    drafts.clear()
    run(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(0, seconds=0.01))
    assert len(drafts) == 1


@pytest.mark.usefixtures("few_trials")
def test_a_pass_looks_for_the_steps_of_networks_near_to_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 20)
    begun, ended = list[dict[str, int]](), list[dict[str, int]]()

    class Noted(latent.Rounding):
        def best(self, lmbda: float) -> tuple[Written, Written]:
            begun.append(dict(self._search.exponents))
            found, first = super().best(lmbda)
            ended.append({name: one.exponent for name, one in first.model.networks.items()})
            return found, first

    monkeypatch.setattr(latent, "Rounding", Noted)
    run(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(20))
    assert len(begun) == 3
    assert begun[1:] == ended[:-1]


@pytest.mark.parametrize("wanted", [Goal("lambda", 3e-3), Goal("bytes", 200)])
def test_single_weights_leave_time_to_come_near_a_target(wanted: Goal) -> None:
    picture, device = Picture(PIXELS[:5, :6]), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    LatentTrainer(step, LatentTrainerState(4, 3e-3)).run()
    asked = list[float]()

    def enough(share: float) -> bool:
        asked.append(share)
        return True

    rounding_search.Rounding(picture, wanted, step, device, {}, enough).best(3e-3)
    assert (rounding_search.MAX_REFINEMENT_TIME in asked) == (wanted.kind == "bytes")


@pytest.mark.parametrize(("spent", "times"), [(0.29, 2), (0.31, 1)])
def test_networks_harden_once_more_only_where_there_is_time(
    spent: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def hardened(
        search: bit_allocation.Search, networks: dict[str, Quantized], lmbda: float, count: int
    ) -> dict[str, Quantized]:
        counts.append(count)
        search._cost(networks, lmbda)
        return dict(networks)

    monkeypatch.setattr(bit_allocation.Search, "quantised", hardened)
    monkeypatch.setattr(bit_allocation, "MIN_NETWORK_FRACTION", 0.0)
    picture, device = Picture(PIXELS[:5, :6]), open_device("numpy")
    made = picture, Goal("lambda", 3e-3), LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    refining = Refining(5, quantisation_steps=3, searching=False)
    found = rounding_search.Rounding(*made, device, {}, lambda share: share <= spent, refining)
    found.best(3e-3)
    assert counts == [3] * times


def test_training_under_a_limit_aims_at_fewer_bytes_and_more_decibels() -> None:
    """As there may be no time to make up for what was missed."""
    for wanted, dearer in ((Goal("bytes", 100), True), (Goal("psnr", 30), False)):
        found = Lambdas(Picture(PIXELS), wanted)
        limited, usual = found.pricing(limited=True), found.pricing()
        assert limited is not None
        assert usual is not None
        assert (limited(800.0, 31.0) > usual(800.0, 31.0)) is dearer
        assert limited(800.0, 31.0) != usual(800.0, 31.0)


def test_a_limit_leaves_bytes_time_for_saving_some() -> None:
    device, state = open_device("numpy"), LatentTrainerState(1000, 1e-3)

    def until(kind: Kind) -> float:
        run = Run()
        run.began = 0.0
        made = latent.workload(None, 1e6), device, run
        found = run_plan.RunPlan(Picture(PIXELS), Goal(kind, 100.0), *made)
        found.costs.step_seconds, found.costs.judging_seconds = 0.01, 1e-4
        return found.set_deadline(state)[0] or 0.0

    saving = (
        len(rounding_search.SHAVING_LMBDA_DOUBLINGS) * rounding_search.SHAVING_TRIALS * 1e-4 / 2
    )
    assert until("psnr") - until("bytes") == pytest.approx(saving)


@pytest.mark.parametrize("steps", [49, 50, 1000, 4000])
def test_a_limit_leaves_time_for_moving_latents(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until() -> float:
        made = latent.workload(None, 1e6), open_device("numpy"), Run(began=0.0)
        found = run_plan.RunPlan(Picture(PIXELS), Goal("lambda", 1e-3), *made)
        found.costs.step_seconds, found.costs.judging_seconds = 0.01, 1e-4
        return found.set_deadline(LatentTrainerState(steps, 1e-3))[0] or 0.0

    before, taken = until(), rdoq_takes(steps, 0.01, 1e-4, PIXELS.shape[0] * PIXELS.shape[1])
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    assert until() - before == pytest.approx(taken, abs=1e-6)


@pytest.mark.parametrize(("share", "lmbdas"), [(0.99, 1), (0.5, 3)])
def test_single_weights_save_bytes_at_ever_higher_lambdas(share: float, lmbdas: int) -> None:
    """Until they are few enough; one after the other, as what one saved is kept."""
    step = LatentStep(small_pixels(), 0, open_device("numpy"), Architecture(8, 8))
    LatentTrainer(step, LatentTrainerState(30, 1e-4)).run()
    made = step, open_device("numpy"), {}
    first = rounding_search.Rounding(Picture(small_pixels()), Goal("bytes", 10**6), *made)
    networks = first._search.refined(first._search.run(1e-4), 1e-4, most=50)
    before = first._trial(networks, 0.0)
    wanted = Goal("bytes", share * before.size)
    found = rounding_search.Rounding(Picture(small_pixels()), wanted, *made)
    tried = found._shaved(networks, 1e-4, lambda: False)
    assert [trial.shaved for trial in tried] == list(
        rounding_search.SHAVING_LMBDA_DOUBLINGS[:lmbdas]
    )
    assert all(later.size < earlier.size for earlier, later in pairwise([before, *tried]))
    assert len(found._shaved(networks, 1e-4, lambda: True)) == 1  # as time is over


@pytest.mark.parametrize(
    ("shaving", "size", "saved"), [(False, 60, False), (True, 60, True), (True, 10**6, False)]
)
def test_single_weights_save_bytes_only_of_too_many_where_no_pass_may_follow(
    shaving: bool, size: int, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        rounding_search.Rounding, "_shaved", lambda *_: asked.append(True) or list[Trial]()
    )
    picture, device = Picture(PIXELS), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    LatentTrainer(step, LatentTrainerState(4, 3e-3)).run()
    made = picture, Goal("bytes", size), step, device, {}
    rounding_search.Rounding(*made, refining=Refining(5, shaving=shaving)).best(3e-3)
    assert bool(asked) is saved


@pytest.mark.parametrize(("shaved", "files"), [(0, 1), (1, 2)])
def test_what_moving_single_weights_saved_is_another_file(
    shaved: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has the same steps of networks and latents."""
    picture, device = Picture(PIXELS), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    made = picture, Goal("bytes", 60), step, device, {}
    found = rounding_search.Rounding(*made, refining=Refining(5))
    written: list[int] = []
    write = found._written

    def counted(trial: Trial) -> rounding_search.Written:
        written.append(trial.shaved)
        return write(trial)

    monkeypatch.setattr(rounding_search, "MAX_FILES", 2)
    monkeypatch.setattr(found, "_written", counted)
    monkeypatch.setattr(
        found, "_nearest", lambda networks, _: replace(found._trial(networks, 0.0), shaved=shaved)
    )
    found.best(3e-3)
    assert written == [0, shaved][:files]


def test_a_file_that_gives_all_back_says_nothing_of_how_estimates_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    step = LatentStep(PIXELS, 0, device, Architecture(4, 4))
    made = Picture(PIXELS), Goal("psnr", 10.0), step, device, {}
    found = rounding_search.Rounding(*made, refining=Refining(5))
    write, files = found._written, list[Written]()

    def written(trial: Trial) -> Written:
        files.append(write(trial))
        return files[-1] if len(files) > 1 else replace(files[-1], psnr=math.inf)

    monkeypatch.setattr(found, "_written", written)
    _, first = found.best(3e-3)
    assert first.psnr == math.inf
    assert math.isfinite(found._psnr_offset)


@pytest.mark.parametrize(("pace", "told"), [(1.0, True), (1e-3, False)])
def test_too_little_time_is_told(pace: float, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: pace)
    notes: list[str] = []
    device, wanted = open_device("numpy"), Goal("lambda", 1e-3)
    encoder = latent._Encoder(
        Picture(PIXELS), wanted, Workload(0, seconds=20.0), device, Run(note=notes.append)
    )
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert any("too little time" in note for note in notes) is told


@pytest.mark.parametrize("kind", ["lambda", "psnr", "bytes"])
@pytest.mark.parametrize("now", [0.0, 1.0, 2.9, 9.0])
def test_what_is_left_of_a_limit_is_the_longest_time_that_is_told(
    now: float, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a training that is done even where less is left, however long judging took once."""

    def tried(found: run_plan.RunPlan, *_: Any) -> float:
        found.costs.judging_seconds = 0.2  # as where others have the cores
        return 2.7e-3

    monkeypatch.setattr(run_plan.RunPlan, "_timed", tried)
    monkeypatch.setattr(run_plan.RunPlan, "_note_speed", lambda *_: None)
    monkeypatch.setattr(run_plan.time, "perf_counter", lambda: now)
    notes: list[str] = []
    made = Workload(0, seconds=3.0), open_device("numpy"), Run(note=notes.append, began=0.0)
    found = run_plan.RunPlan(Picture(PIXELS), Goal(kind, 30.0), *made)
    steps = found.choose_steps(cast(LatentStep, None), 1e-3)
    (told,) = re.findall(r" steps, about (\S+) s from here", notes[-1])
    done_anyway = (
        run_plan.MIN_TRAINING_FRACTION
        * 3.0
        / (1 - run_plan.MAX_ROUNDING_FRACTION - 2 * cost_model.MAX_WEIGHT_TRIAL_FRACTION)
    )
    assert steps * 2.7e-3 <= float(told) <= max(3.0 - now, done_anyway) + 0.05


def test_a_time_limit_decides_how_long_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: 1e-6)  # which it does not keep
    found = run(Goal("lambda", 1e-2), workload=Workload(0, seconds=1.5))
    assert 1 <= found.metrics["steps"] < 5000


def test_a_time_limit_counts_what_was_before_the_training_of_a_stopped_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as compiling."""
    checkpoint, device, work = Checkpoint(tmp_path / "c", "k"), open_device("numpy"), Workload(30)
    before, made = time.perf_counter() - 500, (Picture(PIXELS), Goal("lambda", 1e-3), work, device)
    with pytest.raises(Interrupted):
        latent.encode(*made, Run(None, stops_after(1), None, checkpoint, began=before))
    found = latent._Encoder(*made, again := Run(checkpoint=checkpoint)).plan
    assert found.earlier_seconds == pytest.approx(500, abs=60)
    found.workload = Workload(0, seconds=900.0)
    found.set_deadline(latent_trainer.LatentTrainerState(10, 1e-3))
    assert found.deadline == pytest.approx(again.began + 400, abs=60)


@pytest.mark.parametrize(
    ("gone", "pace", "least", "most"),
    [(1.5, 0.067, 50, 100), (25.0, 0.067, 30, 40), (1.5, 2.0, 10, 10), (1.5, 1e-4, 50_000, 85_000)],
)
def test_a_time_limit_has_as_many_steps_as_fit_and_never_next_to_none(
    gone: float, pace: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm, after compiling for longer than the limit, on a slow device, and on a fast one."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    work, there = Workload(0, seconds=10.0), Run(began=100.0 - gone)
    made = Picture(PIXELS), Goal("lambda", 1e-3), work, open_device("numpy"), there
    found = latent._Encoder(*made).plan
    found.costs.judging_seconds = pace / 5  # of all that a step computes, about
    found.costs.step_seconds = pace
    assert least <= found.fitting_run(10.0)[0] <= most


@pytest.mark.parametrize(
    ("kind", "colours", "most", "share"),
    [("psnr", 3, 650, 0.65), ("psnr", 3, 640, 0.8), ("psnr", 9, 650, 0.8), ("bytes", 3, 650, 0.95)],
)
def test_a_time_limit_leaves_time_for_passes_towards_a_target(
    kind: Kind, colours: int, most: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More for a short run of few colours."""
    monkeypatch.setattr(run_plan, "MAX_FIXED_LMBDA_STEPS", most)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    pixels = np.arange(256 * 256, dtype=np.int64).reshape(256, 256, 1) % colours * 20
    wanted, limit = Goal(kind, {"psnr": 35, "bytes": 400}[kind]), Workload(0, seconds=1000.0)
    made = Picture(pixels.astype(np.uint8)), wanted, limit, open_device("numpy")
    found = run_plan.RunPlan(*made, Run(began=100.0))
    monkeypatch.setattr(found, "steps_within", lambda room: room)
    found.costs.step_seconds = 1.0
    assert found.fitting_run(1000.0)[0] == pytest.approx(1000 * share, rel=0.02)


@pytest.mark.parametrize(("kernel", "seconds"), [(True, 0.6), (False, 1.6)])
def test_a_time_limit_leaves_time_for_coding_by_numpy_where_there_is_no_kernel(
    kernel: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a GPU whose processor has no driver."""
    monkeypatch.setattr(cost_model, "has_sequential_processor", lambda _: kernel)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    work, picture = Workload(0, seconds=10.0), Picture(np.zeros((500, 500, 3), np.uint8))
    made = picture, Goal("lambda", 1e-3), work, open_device("numpy"), Run(began=100.0)
    found = run_plan.RunPlan(*made)
    state = latent_trainer.LatentTrainerState(10, 1e-3)
    found.set_deadline(state)
    assert found.deadline == pytest.approx(110 - seconds, abs=0.06)


@pytest.mark.parametrize(("judging", "search"), [(2e-3, 0.1), (0.1, 5.0)])
def test_a_time_limit_leaves_time_for_rounding_networks(
    judging: float, search: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how long judging one takes, but never most of it."""
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {})
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(LatentStep, "pace", lambda *_: 1e-3)
    work, wanted, there = Workload(0, seconds=10.0), Goal("lambda", 1e-3), Run(began=100.0)
    encoder = latent._Encoder(Picture(PIXELS), wanted, work, open_device("numpy"), there)
    found = encoder.plan
    steps = found.choose_steps(encoder.forms.first(), 1e-3)
    found.costs.judging_seconds = judging
    assert steps > 1000
    state = latent_trainer.LatentTrainerState(found.fitting_run(10.0)[0], 1e-3)
    until, _ = found.set_deadline(state)
    assert until is not None
    assert found.deadline is not None
    share = effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION
    hardened = min(round(share * state.steps), effort.MAX_QUANTISATION_STEPS) * 1e-3
    both = state.steps * 1e-3 + hardened
    rounding = (
        cost_model.MAX_WEIGHT_TRIAL_FRACTION / (1 - cost_model.MAX_WEIGHT_TRIAL_FRACTION) * both
        + hardened
        + min(search, 0.2 * both)
    )
    assert found.deadline - until == pytest.approx(rounding)
    assert 100 + state.steps * 1e-3 == pytest.approx(until, abs=0.1)


def test_how_long_judging_takes_is_found_beside_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = iter((0.0, 3.0))  # the first of which may compile
    clock = [50.0]

    def judge(*_: object) -> tuple[float, float]:
        clock[0] += next(judged)
        return 0.1, 1.0

    monkeypatch.setattr(LatentStep, "judge", judge)
    monkeypatch.setattr(LatentStep, "pace", lambda *_: 1e-3)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    made = Picture(PIXELS), Goal("lambda", 1e-3), Workload(0, 20.0), open_device("numpy")
    encoder = latent._Encoder(*made, Run(began=50.0))
    encoder.plan.choose_steps(encoder.forms.first(), 1e-3)
    assert encoder.plan.costs.judging_seconds == 3.0


def test_what_a_limit_leaves_is_trained_in(clock_of_steps: ClockOfSteps) -> None:
    """Of 40 steps that were thought to take 2 seconds each."""
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
def test_a_run_towards_a_target_grows_early_only(
    from_step: int, steps: int, clock_of_steps: ClockOfSteps
) -> None:
    """As fast as thought, then more than twice as fast."""
    clock = clock_of_steps(lambda n: 2.0 if n < from_step else 0.5)
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: 1.0, 80.0, 1000)
    assert trainer.run() == "done"
    assert trainer.done == pytest.approx(steps, rel=0.25)
    assert clock[0] <= 80 * 1.05


def test_a_moment_without_a_step_says_nothing_of_how_long_steps_take() -> None:
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), None, 1e12)
    trainer._timed_from = 0, 0.0
    trainer._fit_steps_to_limit()
    assert trainer.state.steps == 40


@pytest.mark.parametrize(
    ("left", "steps", "longer"),
    [(8.0, 40, 40), (4.0, 34, 34), (1.6, 10, 10), (1.3, 0, 7), (0.5, 0, 0), (-1.0, 0, 0)],
)
def test_another_pass_has_the_steps_that_a_limit_leaves_beside_its_file(
    left: float, steps: int, longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 50.0)
    made = Picture(PIXELS), Goal("psnr", 30), Workload(0, 20.0), open_device("numpy")
    found = latent._Encoder(*made, Run(began=40.0)).plan
    found.costs.step_seconds, found.rounding_seconds = 0.1, 0.6 / run_plan.PASS_ROUNDING_FRACTION
    assert found.pass_steps(40) == 40
    found.deadline = 50.0 + left
    assert found.pass_steps(40) == pytest.approx(steps, abs=1)
    assert found.pass_steps(10, factor=4.0) == pytest.approx(longer, abs=1)


def test_passes_towards_decibels_have_a_lowest_lambda_and_may_be_longer() -> None:
    made = Picture(np.zeros((16, 16, 3), np.uint8)), Goal("psnr", 50), Workload(300, None)
    encoder = latent._Encoder(*made, open_device("numpy"), Run())
    encoder._prepare_trainer()
    assert encoder.passes.min_lmbda == pytest.approx(
        MIN_LMBDA_FACTOR_IN_PASSES * encoder.lmbdas.min_lmbda()
    )
    usual = effort.PASS_LENGTH * effort.steps_for_pixels(300, 16 * 16)
    assert encoder.passes.max_step_factor == pytest.approx(effort.MAX_PASS_STEPS / usual)


def test_only_small_pictures_have_longer_passes() -> None:
    made = Goal("psnr", 50), Workload(300, None), open_device("numpy"), Run()
    for side, times in ((16, 32.0), (64, 32.0), (128, 8.14), (512, 1.0)):
        of = Picture(np.zeros((side, side, 3), np.uint8))
        assert run_plan.RunPlan(of, *made).max_pass_factor(150) == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_a_limit_decides_what_another_pass_has_and_how_targets_are_met(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many steps and until when; whether single weights save bytes, and how many are aimed
    at. What the file before took is known then."""
    monkeypatch.setattr(run_plan.RunPlan, "fitting_run", lambda *_: (12, False))
    monkeypatch.setattr(
        latent_trainer, "MAX_LIMITED_CHANGE", 1e6
    )  # so that it does not begin anew in fewer
    seen: dict[str, Any] = {}
    repeat, rounding = LatentTrainer.begin_pass, latent.Rounding
    again, pricing = run_plan.RunPlan.pass_steps, Lambdas.pricing

    def repeated(trainer: LatentTrainer, *given: Any) -> None:
        before = trainer.state.steps
        repeat(trainer, *given)
        seen["pass"] = trainer.state.steps - before, trainer._limit

    def asked(found: run_plan.RunPlan, usual: int, *longer: float) -> int:
        seen.setdefault("until", found.pass_deadline())
        seen["took"], seen["longer"] = found.rounding_seconds, longer
        return min(again(found, usual, *longer), 2)

    def priced(lmbdas: Lambdas, *given: Any, limited: bool) -> Any:
        seen["limited"] = limited
        return pricing(lmbdas, *given, limited=limited)

    def rounded(*given: Any) -> rounding_search.Rounding:
        seen["shaving"] = given[-1].shaving
        return rounding(*given)

    monkeypatch.setattr(LatentTrainer, "begin_pass", repeated)
    monkeypatch.setattr(run_plan.RunPlan, "pass_steps", asked)
    monkeypatch.setattr(Lambdas, "pricing", priced)
    monkeypatch.setattr(latent, "Rounding", rounded)
    enough = iter([False])
    monkeypatch.setattr(latent.Passes, "suffice", lambda *_: next(enough, True))
    monkeypatch.setattr(latent.Passes, "step_factor", lambda _: 1.5)
    run(Goal("bytes", 150), workload=Workload(12, seconds))
    limited = seconds is not None
    assert seen["took"] > 0
    assert seen["longer"] == (1.5,)
    assert (seen["limited"], seen["shaving"]) == (limited, limited)
    assert seen["pass"][0] == 2 < round(latent_trainer.PASS_LENGTH * 12)
    assert seen["pass"][1] == seen["until"]
    assert (seen["until"] is not None) is limited


def test_shorter_runs_move_latents_faster_and_so_do_longer_ones() -> None:
    few, usual, many = (schedule.control(0, n, 1e-3) for n in (50, 300, 3000))
    assert few.latent_lr == pytest.approx(2 * usual.latent_lr)
    assert few.network_lr == pytest.approx(usual.network_lr / 2)
    hasty, half = schedule.control(0, 20, 1e-3), 20 / schedule.VERY_SHORT_RUN
    assert hasty.network_lr == pytest.approx(few.network_lr * half)
    assert (hasty.noise_scale, few.noise_scale) == (half, 1.0)
    assert few.temperature > usual.temperature
    assert usual.latent_lr < many.latent_lr
    assert usual.network_lr == many.network_lr


def test_where_the_program_of_many_sizes_has_no_memory_the_pictures_own_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets: list[object] = []

    def made(*told: object) -> str:
        bucket = told[-1]
        buckets.append(bucket)
        if bucket is not None:
            raise OutOfMemoryError("too little", hint="")
        return "a step"

    monkeypatch.setattr(forms, "LatentStep", made)
    monkeypatch.setattr(forms.TrainingSetup, "bucket", (32, 32))
    asked = Picture(PIXELS), Goal("lambda", 1e-3), SHORT, open_device("numpy"), Run()
    found: object = latent._Encoder(*asked).forms.first()
    assert found == "a step"
    assert buckets == [(32, 32), None]


# --- what may go wrong ---


def test_numbers_that_explode_are_taken_back_and_steps_get_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    check = latent_trainer.LatentTrainer._check

    def exploding(self: latent_trainer.LatentTrainer, tell: object) -> bool:
        if self.done == 20 and self.state.retries < 2:
            self.step.flat.write(np.full(self.step.flat.shape, np.nan, np.float32))
            self.step.program.run(1)
        way_on = check(self, None)
        if self.done == 20:
            rates.append(float(Steering(*self.step.control.numpy()).network_lr))
        return way_on

    monkeypatch.setattr(latent_trainer.LatentTrainer, "_check", exploding)
    found = run(Goal("lambda", 1e-3))
    assert not found.diverged
    assert rates == [pytest.approx(schedule.control(20, 30, 1e-3).network_lr / 4)]


def test_a_state_to_go_back_to_is_kept_some_ten_times_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(
        latent_trainer.LatentTrainer, "_remember", lambda self: kept.append(self.done)
    )
    run(Goal("lambda", 1e-3), workload=Workload(120))
    assert kept == list(range(12, 121, 12))


def test_where_nothing_helps_the_last_good_state_is_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "LATENT_LR", math.nan)
    found = run(Goal("lambda", 1e-3), workload=Workload(20))
    assert found.diverged
    assert container.parse(found.bytes).header.codec == "latent"


def test_what_explodes_after_the_last_look_is_not_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a limit ends a step of windows midway."""
    train, usual = latent._Encoder._train, run(Goal("lambda", 1e-3))

    def exploding(self: latent._Encoder, trainer: LatentTrainer) -> str:
        ended = train(self, trainer)
        trainer.step.flat.write(np.full(trainer.step.flat.shape, np.nan, np.float32))
        return ended

    monkeypatch.setattr(latent._Encoder, "_train", exploding)
    found = run(Goal("lambda", 1e-3))
    assert found.metrics["psnr"] > usual.metrics["psnr"] - 2


def test_a_pass_that_explodes_at_once_is_taken_back_to_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not to the run before it, whose lambda and networks are others."""
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3))
    assert trainer.run() == "done"
    check = LatentTrainer._check

    def exploding(self: LatentTrainer, tell: object) -> bool:
        if not self.state.retries:
            self.step.flat.write(np.full(self.step.flat.shape, np.nan, np.float32))
            self.step.program.run(1)
        return check(self, None)

    monkeypatch.setattr(LatentTrainer, "_check", exploding)
    trainer.begin_pass(5e-3, bit_allocation.Search(step, {}).run(1e-3, rounds=1))
    assert trainer.run() == "done"
    assert step.done == 40 + trainer.pass_steps
    assert (trainer.state.pass_began, trainer.state.lmbda, trainer.state.retries) == (40, 5e-3, 1)


def test_a_lambda_that_is_no_number_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), lambda *_: math.nan)
    assert trainer.run() == "done"
    assert trainer.state.lmbda == 1e-3


@pytest.mark.parametrize("best", [0, 1])
def test_a_file_of_before_a_pass_that_diverged_is_whole(
    best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, passes = latent._Encoder._train, list[str]()

    def diverging(self: latent._Encoder, trainer: LatentTrainer) -> str:
        passes.append(train(self, trainer))
        return passes[-1] if len(passes) == 1 else "diverged"

    monkeypatch.setattr(latent._Encoder, "_train", diverging)
    monkeypatch.setattr(
        latent._Encoder, "_distance", lambda _, draft: draft.diverged is not bool(best)
    )
    found = run(Goal("bytes", 300), workload=Workload(60))
    assert passes == ["done", "done"]
    assert found.diverged is (best == 1)


def test_small_pictures_and_few_bytes_have_small_networks_with_a_start() -> None:
    large, small = (512, 768, 3), (128, 128, 3)
    assert forms.widths(small, math.inf) < forms.widths(large, math.inf)
    assert forms.widths(large, 1000) == forms.widths(small, math.inf)
    assert pretrained.newest_pretrained(forms.widths(small, math.inf)) > 0


def test_short_runs_have_small_networks_where_compiling_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And start 6, of which the same program serves small pictures."""
    cpu = open_device("numpy")
    cpu.info = replace(cpu.info, kind="cpu")
    pixels = np.zeros((400, 300, 3), np.uint8)

    def taken(device: Any, short: bool) -> tuple[int, int]:
        setup = buckets.TrainingSetup(pixels.shape, device, short)
        architecture = forms.Forms(pixels, setup, math.inf).architecture
        return architecture.synthesis_width, architecture.entropy_width

    assert taken(cpu, short=True) == forms.SMALL_WIDTHS == pretrained.HIDDEN_WIDTHS[6]
    assert taken(cpu, short=False) == forms.LARGE_WIDTHS
    assert not forms.is_quick(open_device("numpy"), is_short=True)
    assert (
        forms.widths((200, 300, 3), math.inf) == forms.widths((65, 9, 3), 1) == forms.SMALL_WIDTHS
    )
    assert forms.widths((64, 64, 3), math.inf) == forms.ICON_WIDTHS == pretrained.HIDDEN_WIDTHS[4]
    picture, wanted, work = Picture(pixels), Goal("lambda", 1e-3), latent.workload(1, None)
    found, noted = run_plan.RunPlan(picture, wanted, work, cpu, Run()), list[str]()
    found._compile_times = SimpleNamespace(record=noted.append)  # type: ignore[assignment]
    flat = SimpleNamespace(numpy=lambda: None)
    nothing = lambda _: None  # noqa: E731
    step: Any = SimpleNamespace(flat=flat, judge=nothing, steer=nothing, pace=lambda _: 1.0)
    found._timed(step, 1e-3)
    assert noted == list(cost_model.estimate_work(picture, wanted, work, cpu).programs)
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)
    assert taken(cpu, short=True) == forms.LARGE_WIDTHS


def test_long_runs_of_large_pictures_have_hyperlatents() -> None:
    """By their steps, which pictures of more than a megapixel have fewer of for the same effort."""
    device = open_device("numpy")

    def have(height: int, width: int, level: int, seconds: float | None = None) -> bool:
        return effort.expects_hyperlatents(
            (height, width, 3), latent.workload(level, seconds), device
        )

    assert have(512, 768, 8)
    assert have(1000, 1100, 8)
    assert have(1000, 1800, 9)
    assert not have(512, 768, 7)
    assert not have(1000, 1300, 8)
    assert not have(1000, 2000, 9)
    assert not have(256, 256, 9)  # whose networks are small
    assert not have(512, 768, 9, 60.0)
    assert have(512, 768, 1, 1e9)
    assert not have(4096, 4097, 1, 1e9)
    assert effort.expects_hyperlatents((512, 768, 3), Workload(0), device) is False


@pytest.mark.parametrize(
    ("flag", "described"), [(64, "7-16-16-3, 27-12-12-2"), (32, "9-16-16-3, 24-12-12-2")]
)
def test_a_run_with_more_grids_comes_to_a_file_and_goes_on_with_them(
    flag: int, described: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hyperlatents, or two extra grids, which a new run would not have by then."""

    def have(many: bool) -> None:
        monkeypatch.setattr(effort, "has_hyperlatents", lambda *_: many and flag == 64)
        monkeypatch.setattr(effort, "extra_grids", lambda *_: 2 * (many and flag == 32))

    pixels, target, work = small_pixels()[:6, :34].repeat(2, 1), Goal("lambda", 1e-3), Workload(8)
    have(True)
    found = run(target, pixels, work)
    parts = {section.type: section.data for section in container.parse(found.bytes).sections}
    assert parts["N"][2] & (64 + 32 + 16) == flag
    assert found.metrics["network"] == described
    decoded = decoder.decode(container.parse(found.bytes), open_device("numpy"))
    assert (decoded == found.pixels).all()
    checkpoint = Checkpoint(tmp_path / "c", "k")
    stop = stops_after(2)
    with pytest.raises(Interrupted):
        run(target, pixels, work, Run(None, stop, checkpoint=checkpoint))
    have(False)
    rest = run(target, pixels, work, Run(checkpoint=checkpoint))
    assert rest.resumed > 0
    assert rest.bytes == found.bytes


@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_a_saved_run_goes_on_in_its_form(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever memory there is by now; a new one takes the next form where one is too large."""

    def too_large(*_: object) -> LatentStep:
        raise OutOfMemoryError("too large", hint="take less")

    monkeypatch.setattr(forms.Forms, "_whole", too_large)
    monkeypatch.setattr(forms.Forms, "_in_windows", lambda _: WindowedStep)
    picture, asked = Picture(np.zeros((256, 256, 3), np.uint8)), Run()
    found = latent._Encoder(picture, Goal("lambda", 1e-3), SHORT, open_device("numpy"), asked)
    assert found.forms.first() is WindowedStep
    assert found.forms.name == "in windows"
    if form == "whole":
        with pytest.raises(OutOfMemoryError):
            found.forms.first(form)
    else:
        assert found.forms.first(form) is WindowedStep


def faulty(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files hold another latent than was meant, another weight, or pixels of another model."""
    if what == "synthesis":
        real = rounding_search.synthesize
        monkeypatch.setattr(rounding_search, "synthesize", lambda *made: real(*made) ^ 1)
        return
    write = sections.write

    def wrong(model: LatentModel, device: AnyDevice) -> tuple[bytes, bytes, bytes]:
        if what == "latent":
            grids = [grid.copy() for grid in model.latents]
            grids[0][0, 0] = grids[0][0, 0] != 1
            return write(replace(model, latents=tuple(grids)), device)
        name, tensor = next(iter(model.networks.items()))
        values = tensor.values.copy()
        values[0] += 1
        return write(
            replace(model, networks=model.networks | {name: replace(tensor, values=values)}), device
        )

    monkeypatch.setattr(sections, "write", wrong)


@pytest.mark.parametrize("what", ["latent", "weight", "synthesis"])
def test_what_is_no_file_of_the_model_is_a_fault(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(what, monkeypatch)
    with pytest.raises(ImgmlpError, match="what was written is no sound file: it"):
        run(Goal("lambda", 3e-3), workload=Workload(3))


def test_a_file_is_decoded_but_its_pixels_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = rounding_search.synthesize
    monkeypatch.setattr(rounding_search, "synthesize", lambda *a: made.append(a) or real(*a))
    monkeypatch.setattr(decode, "synthesize", lambda *a: made.append(a) or real(*a))
    found = run(Goal("lambda", 3e-3), workload=Workload(3))
    assert len(made) == 1
    assert (
        decoder.decode(container.parse(found.bytes), open_device("numpy")) == found.pixels
    ).all()


def test_what_small_pictures_take_is_not_foreseen_by_what_is_computed_alone() -> None:
    """Launches of a step and the search for rounded networks take longer."""
    device, wanted = open_device("numpy"), Goal("lambda", 1e-3)
    picture = Picture(np.zeros((40, 48, 3), np.uint8))
    foreseen = cost_model.estimate_work(picture, wanted, latent.workload(1, None), device)
    steps = 600 + 6 * 150
    assert foreseen.steps == steps
    found = foreseen.seconds(device)
    assert (
        found
        > steps * cost_model.STEP_OVERHEAD_SECONDS["one"] + 7 * cost_model.ROUNDING_OVERHEAD_SECONDS
    )
