"""Long runs start in a shared program while one for the own bucket is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from conftest import stops_after
from latent_steps import PRETRAINED_4

from imgmlp import child
from imgmlp.codec import encoder
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent import plane
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import (
    buckets,
    cost_model,
    effort,
    forms,
    latent_trainer,
    rounding_search,
    run_plan,
)
from imgmlp.codec.latent.training.buckets import TrainingSetup, bucket_compiler
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted, OutOfMemoryError
from imgmlp.image import Picture

pytestmark = pytest.mark.usefixtures("trained")

SIZE = 5, 6


PIXELS = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8)


BUCKET = 8, 8


def test_opening_on_processors_is_about_the_same_work_for_all_sizes() -> None:
    info = SimpleNamespace(kind="cpu", compute_units=2)
    device: Any = SimpleNamespace(info=info, lanes="one")

    def steps(height: int, width: int, short: bool = False) -> int:
        return TrainingSetup((height, width, 3), device, short).opening_steps(25_000)

    assert 50 < steps(512, 768) < 200
    assert steps(512, 768) == steps(400, 700) == pytest.approx(steps(256, 256) / 6, abs=1)
    assert steps(512, 768, short=True) == 0  # such runs stay in the shared program
    assert steps(2000, 3000) == 0
    assert steps(2000, 1400) == steps(2048, 1535) > 0
    # in a shared bucket
    assert steps(128, 20) == steps(100, 64) == pytest.approx(4 * steps(256, 256), abs=4)
    assert steps(128, 100) == 0  # its own bucket is a shared one
    # in windows for thin pictures
    assert steps(600, 20) == steps(30, 700) == pytest.approx(2 * steps(256, 256), abs=2)
    assert steps(32, 192) == steps(250, 32) == pytest.approx(4 * steps(256, 256), abs=4)
    assert steps(20, 999) == steps(600, 20)
    assert steps(600, 20, short=True) == 0
    info.compute_units = 64  # files do not depend on the number of cores
    assert steps(512, 768) == steps(400, 700)
    info.kind = "numpy"
    assert steps(512, 768) == steps(600, 20) == 0


def test_long_runs_on_gpus_open_in_a_coarse_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coarse bucket must leave memory for the picture's own bucket as well."""
    card: Any = SimpleNamespace(info=SimpleNamespace(kind="gpu"), lanes="group")
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)

    def steps(height: int, width: int, short: bool = False, extra: int = 0) -> int:
        return TrainingSetup((height, width, 3), card, short, extra).opening_steps(25_000)

    assert 3000 < steps(512, 700) < 8000
    assert steps(512, 700) == steps(400, 600) == pytest.approx(steps(300, 200) / 4, abs=1)
    assert steps(512, 700, short=True) == 0
    assert steps(512, 768) == 0  # its own bucket is a coarse one
    assert steps(130, 3000) == 0  # it would fill too little of a coarse bucket
    assert steps(1400, 1900) > 0
    assert steps(1600, 2100) == steps(2000, 3000) > 0
    assert steps(2100, 3000) == 0
    assert steps(1400, 1900, extra=1) > 0
    assert steps(2000, 3000, extra=1) == 0
    thin = (1100, 3900, 3), card, False  # an extra grid does not fit into memory in its bucket
    assert not TrainingSetup(*thin).starts_in_windows
    assert not TrainingSetup(*thin, 1).starts_in_windows

    def switches(height: int, width: int, of: int) -> bool:
        opening = steps(height, width)
        return TrainingSetup((height, width, 3), card).switches_program(of, opening, 25_000)

    assert switches(400, 600, 30_000)
    assert not switches(
        400, 600, 10_000
    )  # the run must be at least four times as long as its opening
    assert not switches(500, 700, 30_000)  # the shared bucket has only a tenth more pixels
    assert not switches(512, 768, 30_000)


def test_own_step_seconds_on_gpus_include_the_cost_fixed_for_all_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An H200 took 0.41 ms in a bucket of 512x768, 0.30 in 384x576 and 0.345 in 448x640."""
    info = replace(open_device("numpy").info, kind="gpu")
    card: Any = SimpleNamespace(info=info, lanes="group", compiling=0.0, lowering=0.0)
    for module in (buckets, effort, run_plan):
        monkeypatch.setattr(module, "is_gpu", lambda _: True)

    def make_plan(height: int, width: int) -> run_plan.RunPlan:
        picture = Picture(np.zeros((height, width, 3), np.uint8))
        plan = run_plan.RunPlan(picture, Goal("lambda", 1e-3), Workload(100_000), card, Run())
        plan.costs.is_opening = True
        return plan

    for size, pace in ((350, 560), 3.0e-4), ((400, 620), 3.45e-4):
        plan = make_plan(*size)
        costs = plan.costs
        costs.step_seconds = 1e-4
        assert (
            costs.own_step_seconds() == 1e-4
        )  # launches without work take as long in every bucket
        costs.step_seconds = 4.1e-4
        assert costs.own_step_seconds() == pytest.approx(pace, rel=0.02)
        first = costs.opening_steps / 100_000
        mean = first * 4.1e-4 + (1 - first) * pace
        assert costs.mean_step_seconds(100_000) == pytest.approx(mean, rel=0.02)
        plan.run.began = time.perf_counter()  # a busy machine may have waited since
        fitting, _ = plan.fitting_run(20.0)
        assert fitting * costs.mean_step_seconds(fitting) == pytest.approx(19, rel=0.1)
    card.lanes = "one"
    costs = make_plan(350, 560).costs
    costs.step_seconds = 0.41
    assert costs.own_step_seconds() == pytest.approx(0.41 * 384 * 576 / (512 * 768))


def test_bucket_compiler_may_have_helpers_on_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, messages = WindowedStep(PIXELS, 0, open_device("numpy"), PRETRAINED_4, window=BUCKET), []
    monkeypatch.setattr(
        child, "Helper", lambda *_, may_have_helpers: messages.append(may_have_helpers)
    )
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)
    bucket_compiler(step, BUCKET)
    assert messages == [True]


def test_state_of_a_single_window_is_handed_over_to_the_whole_picture() -> None:
    device = open_device("numpy")
    step, padded = (
        LatentStep(PIXELS, 0, device, PRETRAINED_4, bucket=one) for one in (None, BUCKET)
    )
    window = WindowedStep(PIXELS, 0, device, PRETRAINED_4, window=BUCKET)
    for each in (step, window):
        each.steer(Control(1e-3, noise_scale=0.0))
        each.run(2)
    padded.steer(Control(1e-3, noise_scale=0.0))
    padded.restore(window.handed_to(padded))
    for each in (step, padded):
        each.run(2)
        assert each.done == 4
    assert padded.figures() == pytest.approx(step.figures(), rel=1e-5)
    assert np.allclose(padded.flat.numpy(), step.flat.numpy(), atol=1e-5)
    for result, expected in zip(padded.grids(), step.grids(), strict=True):
        assert np.allclose(result, expected, atol=1e-4)


def test_moments_of_networks_are_scaled_when_several_windows_are_handed_over() -> None:
    """A step of the whole picture sums the gradients of all windows."""
    device = open_device("numpy")
    tall = np.concatenate([PIXELS] * 3)
    several = WindowedStep(tall, 0, device, PRETRAINED_4, window=BUCKET)
    several.adam.first[0].write(np.full(several.flat.shape, 0.5, np.float32))
    several.adam.second[0].write(np.full(several.flat.shape, 0.25, np.float32))
    result, count = (
        several.handed_to(LatentStep(tall, 0, device, PRETRAINED_4)),
        len(several.windows),
    )
    assert count > 1
    assert (result["networks_0"] == 0.5 * count).all()
    assert (result["networks_1"] == 0.25 * count**2).all()


def test_state_of_a_bucket_is_handed_over_to_another_bucket() -> None:
    device = open_device("numpy")
    all_buckets: tuple[buckets.Bucket, ...] = None, (16, 16), (8, 6)
    step, shared, own = (
        LatentStep(PIXELS, 0, device, PRETRAINED_4, bucket=bucket) for bucket in all_buckets
    )
    for each in (step, shared):
        each.steer(Control(1e-3, noise_scale=0.0))
        each.run(2)
    own.steer(Control(1e-3, noise_scale=0.0))
    own.restore(shared.handed_to(own))
    for each in (step, own):
        each.run(2)
        assert each.done == 4
    assert own.figures() == pytest.approx(step.figures(), rel=1e-5)
    assert np.allclose(own.flat.numpy(), step.flat.numpy(), atol=1e-5)
    for actual, expected in zip(own.grids(), step.grids(), strict=True):
        assert np.allclose(actual, expected, atol=1e-4)


class FakeCompiler:
    """Stands for the compiler process and has ended as soon as it is waited for."""

    made = 0
    working = done = True  # as the encoder sees it

    def __init__(self, *_: object) -> None:
        FakeCompiler.made += 1

    def wait(self, enough: Callable[[], bool]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class Opening:
    """A picture whose run takes its first two steps in another form than the rest."""

    form: str
    picture: Picture


@pytest.fixture(params=[("in windows", 5), ("in a shared bucket", 3)], ids=lambda param: param[0])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Open in windows of 8x8 or a shared bucket of 8x8, then switch to a bucket of 8x8 or 4x8."""
    form, rows = request.param
    monkeypatch.setattr(buckets, "_compiles", lambda _: True)
    monkeypatch.setattr(buckets, "MAX_POWER_OF_TWO_SIDE", 4 if form == "in windows" else 128)
    monkeypatch.setattr(plane, "MIN_SIDE", 4)
    opening_operations = 2 * 8 * 8 * forms.operations_of(PIXELS.shape)
    limits = buckets.CPU._replace(
        window_size=BUCKET, opening_operations=opening_operations, min_saved_operations=0
    )
    monkeypatch.setattr(buckets, "CPU", limits)
    for module in (cost_model, run_plan):
        monkeypatch.setattr(module, "is_short", lambda *_: False)
    monkeypatch.setattr(buckets, "MIN_RUN_PER_OPENING", 2)
    monkeypatch.setattr(latent, "bucket_compiler", FakeCompiler)
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    monkeypatch.setattr(rounding_search, "MAX_FILES", 2)
    FakeCompiler.made = 0
    return Opening(form, Picture(PIXELS[:rows]))


def encode_small(picture: Picture, run: Run | None = None) -> encoder.Encoded:
    arguments = picture, Goal("lambda", 3e-3), Workload(4), open_device("numpy"), run
    return encoder.encode(*arguments, "latent")


def test_run_interrupted_around_the_switch_resumes_to_the_same_bytes(
    opening: Opening, tmp_path: Path
) -> None:
    seen = []
    for stop in (0, 0, 1):
        saved = Checkpoint(tmp_path / "state", "key")
        with pytest.raises(Interrupted):
            encode_small(opening.picture, Run(None, stops_after(stop), checkpoint=saved))
        state = saved.load()
        assert state is not None
        done = state.arrays["steps" if "steps" in state.arrays else "count"]
        seen.append((state.values["form"], int(done)))
    # the second stop is where the run waits for the program
    assert seen == [(opening.form, 1), (opening.form, 2), ("in a bucket", 3)]
    rest = encode_small(opening.picture, Run(checkpoint=Checkpoint(tmp_path / "state", "key")))
    assert rest.resumed == 3
    assert rest.bytes == encode_small(opening.picture).bytes


@pytest.mark.parametrize(
    ("done", "may_be_late", "pause"),
    [(0, False, 111), (111, True, 111), (112, False, None), (112, True, 120), (120, True, 130)],
)
def test_run_pauses_at_the_switch_or_if_late_at_its_next_check(
    done: int, may_be_late: bool, pause: int | None
) -> None:
    step: Any = SimpleNamespace(done=done, device=SimpleNamespace(lanes="one"))
    trainer = LatentTrainer(step, LatentTrainerState(2000, 1e-3))
    trainer.pause_after(111, may_be_late)
    assert trainer.pause_at == pause


@pytest.mark.parametrize(
    ("lanes", "steps", "interval"),
    [("one", 36_000, 72), ("group", 36_000, 144), ("group", 100_000, 200), ("group", 300, 10)],
)
def test_long_runs_on_gpus_are_checked_less_often(lanes: str, steps: int, interval: int) -> None:
    step: Any = SimpleNamespace(done=0, device=SimpleNamespace(lanes=lanes))
    assert LatentTrainer(step, LatentTrainerState(steps, 1e-3)).check_interval == interval


@pytest.mark.parametrize(("steps", "switches"), [(7, False), (8, True)])
def test_run_switches_program_only_if_long_enough(steps: int, switches: bool) -> None:
    arguments = Picture(PIXELS), Goal("lambda", 3e-3), Workload(steps), open_device("numpy"), Run()
    plan = run_plan.RunPlan(*arguments)
    plan.costs.opening_steps, plan.costs.is_opening = 2, True
    assert plan.costs.switches_program(steps) is switches
    plan.costs.is_opening = False
    assert not plan.costs.switches_program(steps)


def test_run_under_a_time_limit_does_not_wait_for_the_compiler(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run keeps its form until the program is there, if it ever is."""
    arguments, seen = (
        (opening.picture, Goal("bytes", 150)),
        [],
    )  # passes towards bytes have no more steps
    monkeypatch.setattr(run_plan.RunPlan, "fitting_run", lambda *_: (6, False))
    monkeypatch.setattr(
        latent_trainer, "MAX_LIMITED_CHANGE", 1e6
    )  # so that the run does not restart with fewer steps
    switch = latent._Encoder._switch_program

    def record(self: latent._Encoder, trainer: LatentTrainer) -> None:
        seen.append(trainer.done)
        switch(self, trainer)

    monkeypatch.setattr(latent._Encoder, "_switch_program", record)
    monkeypatch.setattr(FakeCompiler, "wait", lambda *_: pytest.fail("it waits"))
    for ready in (True, False):
        monkeypatch.setattr(FakeCompiler, "done", ready)
        work = Workload(0, 60.0)
        encoded = encoder.encode(*arguments, work, open_device("numpy"), None, "latent")
        assert encoded.metrics["steps"] == 6
    assert seen == [2]


def test_run_keeps_its_opening_form_if_its_bucket_is_out_of_memory(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = forms.Forms._whole

    def too_large(self: forms.Forms, bucket: buckets.Bucket) -> LatentStep:
        if FakeCompiler.made == 0:
            return whole(self, bucket)
        raise OutOfMemoryError("too large", hint="take less")

    monkeypatch.setattr(forms.Forms, "_whole", too_large)
    encoded = encode_small(opening.picture)
    assert (FakeCompiler.made, encoded.metrics["steps"]) == (1, 4)


@pytest.mark.parametrize("opening", [("in a shared bucket", 3)], indirect=True)
def test_run_starts_in_its_own_bucket_if_the_shared_one_is_out_of_memory(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = forms.Forms._whole

    def too_large(self: forms.Forms, bucket: buckets.Bucket) -> LatentStep:
        if bucket != BUCKET:
            return whole(self, bucket)
        raise OutOfMemoryError("too large", hint="take less")

    monkeypatch.setattr(forms.Forms, "_whole", too_large)
    encoded = encode_small(opening.picture)
    assert (FakeCompiler.made, encoded.metrics["steps"]) == (0, 4)


def test_compiler_process_reports_its_state_and_ends_with_the_run() -> None:
    step = WindowedStep(PIXELS, 0, open_device("numpy"), PRETRAINED_4, window=BUCKET)
    with bucket_compiler(step, BUCKET) as compiler:
        process = compiler._process
        assert process is not None
        compiler.wait(lambda: True)
        assert (compiler.working, compiler.done) == (True, False)
        compiler.wait(lambda: False)
        assert (compiler.working, compiler.done) == (False, True)
    with bucket_compiler(step, None) as compiler:
        process = compiler._process
        assert process is not None
        assert process.poll() is None
    assert process.returncode not in (0, None)


@pytest.mark.parametrize("additional_grids", [{}, {"has_hyperlatents": True}, {"extra_grids": 2}])
def test_compiler_process_builds_the_step_that_the_run_switches_to(
    additional_grids: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, built_steps = np.zeros((6, 40, 3), np.uint8), []
    step = WindowedStep(
        pixels, 0, open_device("numpy"), replace(PRETRAINED_4, **additional_grids), window=(64, 64)
    )
    kind = buckets.LatentStep

    def record(*given: Any, **named: Any) -> LatentStep:
        built_steps.append(kind(*given, **named))
        return built_steps[-1]

    def helper(_: str, *arguments: str, may_have_helpers: bool) -> None:
        assert not may_have_helpers  # the cores are busy with training
        buckets.compile_bucket(*arguments)

    monkeypatch.setattr(child, "Helper", helper)
    monkeypatch.setattr(buckets, "LatentStep", record)
    bucket_compiler(step, (8, 64))
    assert [one.shape for one in built_steps] == [step.shape]
    assert built_steps[0].bucket == (8, 64)
    assert built_steps[0].pretrained.number == step.pretrained.number


def test_compiler_process_ends_when_its_parent_does() -> None:
    """Its standard input is closed then, however the parent ends."""
    step = WindowedStep(PIXELS, 0, open_device("numpy"), PRETRAINED_4, window=BUCKET)
    with bucket_compiler(step, BUCKET) as compiler:
        process = compiler._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1


def test_nothing_waits_if_no_compiler_process_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/there is no such program")
    with child.Helper("calendar") as compiler:
        compiler.wait(lambda: False)
        assert (compiler.working, compiler.done) == (False, False)
