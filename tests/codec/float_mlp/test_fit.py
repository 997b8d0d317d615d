"""The training step and the loop around it: schedule, sampling, state, and what ends a run."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping, small_pixels, stops_after

from imgmlp.codec.float_mlp import features
from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.codec.float_mlp.fit import CHECK_INTERVAL, LearningRate, TrainingStep, _Monitor, fit
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.pixels import random_places
from imgmlp.codec.training.replay import MAX_RETRIES, SMOOTHING
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import AnyDevice, Tensor, open_device
from imgmlp.text import duration

SMALL = {"steps": 200, "batch": 50, "hidden": 6, "layers": 2, "features": 8}


def settings(preset: str = "default", **changes: object) -> Settings:
    return dataclasses.replace(PRESETS[preset], **{**SMALL, **changes})  # type: ignore[arg-type]


def training_step(chosen: Settings, device: AnyDevice, pixels: np.ndarray) -> TrainingStep:
    height, width, channels = pixels.shape
    encoding = features.encoding(chosen, width, height)
    return TrainingStep(pixels, chosen.architecture(channels), encoding, chosen, device)


@pytest.fixture(scope="module", params=MAPPINGS)
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def rate(chosen: Settings, done: int) -> float:
    device = open_device("numpy")
    return float(LearningRate(chosen, device).after(Tensor(np.float32(done), device)).numpy())


def test_cosine_schedule_falls_from_the_peak_rate_to_zero() -> None:
    """The tolerance is that of float32 cosines, 1e-6 of the peak rate."""
    chosen = settings(lr=0.25, steps=1000)
    for done in (0, 1, 250, 500, 999):
        wanted = 0.25 * (1 + math.cos(math.pi * done / 1000)) / 2
        assert rate(chosen, done) == pytest.approx(wanted, abs=0.25e-6)


def test_exponential_schedule_multiplies_the_rate_by_a_constant_each_step() -> None:
    chosen = settings("seed")
    assert rate(chosen, 0) == pytest.approx(0.000533)
    assert rate(chosen, 10_000) == pytest.approx(0.000533 * 0.99999**10_000, rel=1e-5)


def places(step: TrainingStep) -> tuple[Tensor, Tensor]:
    """The rows and columns that the step draws."""
    return random_places(step.settings.batch, step.size, step.settings.seed, step.count)


def test_every_pixel_is_drawn_about_equally_often(device: AnyDevice) -> None:
    """30,000 draws of 3 × 5 pixels: 2,000 of each, within five standard deviations of 43."""
    chosen = settings(batch=30_000)
    step = training_step(chosen, device, np.zeros((5, 3, 1), np.uint8))
    row, column = places(step)
    pixel = (row * 3 + column).numpy()
    assert np.abs(np.bincount(pixel, minlength=15) - 2000).max() < 5 * 43
    assert len(np.bincount(pixel)) == 15


def test_steps_draw_different_pixels_and_axes_independently(device: AnyDevice) -> None:
    step = training_step(settings(), device, np.zeros((64, 64, 1), np.uint8))
    row, column = (place.numpy() for place in places(step))
    assert not np.array_equal(row, column)
    step.program.run()
    step.program.wait()
    assert not np.array_equal(places(step)[0].numpy(), row)
    assert int(step.count.numpy()) == 1


def test_source_does_not_depend_on_steps_or_learning_rate() -> None:
    """So the driver's cache of compiled kernels serves other runs too."""
    device = open_device("numpy:uops")
    changes: list[dict[str, object]] = [{}, {"steps": 150}, {"lr": 0.03}]
    for preset in PRESETS:
        steps = [training_step(settings(preset, **c), device, small_pixels()) for c in changes]
        assert len({step.program.stages.source for step in steps}) == 1


@pytest.mark.parametrize("sizes", [[(7, 5), (3, 20), (1, 11)], [(40, 300), (300, 41)]])
def test_source_does_not_depend_on_the_size_of_the_picture(sizes: list[tuple[int, int]]) -> None:
    """Neither for small pictures, whose tables of features enter products, nor for others."""
    device, chosen = open_device("numpy:uops"), settings(batch=320)
    steps = [training_step(chosen, device, np.zeros((*size, 3), np.uint8)) for size in sizes]
    assert len({step.program.stages.source for step in steps}) == 1


def float64_step(flat: np.ndarray, x: np.ndarray, y: np.ndarray, step: TrainingStep) -> np.ndarray:
    """Parameters after the very first AdamW step, which moves each by the learning rate."""
    spans = list(step.architecture.spans())
    arrays = [flat[a:b].reshape(s).astype(np.float64) for a, b, s in spans]
    layers, activations = list(zip(arrays[:-1:2], arrays[1:-1:2], strict=True)), [x]
    for w, b in layers:
        z = activations[-1] @ w + b
        activations.append(np.where(z < 0, z * step.architecture.slope, z))
    back = 2 * (activations[-1] @ arrays[-1] - y)
    gradients = [(activations[-1].T @ back).ravel()]
    back = back @ arrays[-1].T
    for (w, _), before, after in zip(
        layers[::-1], activations[-2::-1], activations[:0:-1], strict=True
    ):
        back = back * np.where(after < 0, step.architecture.slope, 1.0)
        gradients = [(before.T @ back).ravel(), back.sum(0), *gradients]
        back = back @ w.T
    gradient = np.concatenate(gradients)
    return flat - step.settings.lr * gradient / (np.abs(gradient) + 1e-8)


def test_first_step_is_adamw_on_the_drawn_pixels(device: AnyDevice) -> None:
    """Tolerance: a gradient near zero is rounding noise, whose step may go either way."""
    pixels = small_pixels()
    step = training_step(settings(), device, pixels)
    row, column = (place.numpy() for place in places(step))
    x = np.concatenate([step.x.numpy()[column], step.y.numpy()[row]], axis=1)
    before = step.flat.numpy()
    wanted = float64_step(before, x, pixels[row, column] / 255, step)
    step.program.run()
    step.program.wait()
    moved = np.abs(step.flat.numpy() - wanted)
    assert np.quantile(moved, 0.98) < 1e-3 * step.settings.lr
    assert np.abs(step.flat.numpy() - before).max() > 0.9 * step.settings.lr


@pytest.mark.parametrize("preset", PRESETS)
def test_run_does_not_depend_on_its_chunks(
    device: AnyDevice, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(preset, steps=250)
    whole = fit(training_step(chosen, device, small_pixels()))
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.next_chunk", lambda chunk, seconds: 7)
    cut = fit(training_step(chosen, device, small_pixels()))
    assert np.array_equal(whole.parameters, cut.parameters)
    assert whole.loss == cut.loss
    assert whole.steps == cut.steps == 250


def make_monitor(steps: int = 1000) -> _Monitor:
    return _Monitor(np.zeros(3, np.float32), steps, None, None)


def received(value: float, parameters: float) -> dict[str, np.ndarray]:
    return {"smooth": np.float32(value), "parameters": np.full(3, parameters, np.float32)}


def test_smoothed_loss_starts_unbiased() -> None:
    """A constant loss is reported as itself from the first step on."""
    monitor, smooth = make_monitor(), 0.0
    for step in range(1, 50):
        smooth = smooth * SMOOTHING + 0.25 * (1 - SMOOTHING)
        monitor.receive(step, {"smooth": np.float32(smooth)})
        assert monitor.loss == pytest.approx(0.25, rel=1e-5)


def test_monitor_keeps_the_parameters_with_the_lowest_loss() -> None:
    monitor = make_monitor()
    for step, loss in (
        (CHECK_INTERVAL * 10, 0.3),
        (CHECK_INTERVAL * 11, 0.1),
        (CHECK_INTERVAL * 12, 0.2),
    ):
        monitor.receive(step, received(loss, step))
    assert monitor.best.tolist() == [CHECK_INTERVAL * 11] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_monitor_never_keeps_parameters_with_a_loss_that_is_not_finite(bad: float) -> None:
    monitor = make_monitor()
    monitor.receive(CHECK_INTERVAL, received(0.3, 1))
    monitor.receive(2 * CHECK_INTERVAL, received(bad, 2))
    monitor.receive(3 * CHECK_INTERVAL, received(0.1, 3))
    assert monitor.diverged
    assert monitor.best.tolist() == [1, 1, 1]


def test_impossibly_large_loss_counts_as_divergence(device: AnyDevice) -> None:
    """It counts at fixed steps only, so that runs do not depend on the speed of a device."""
    monitor = make_monitor()
    monitor.receive(CHECK_INTERVAL - 1, {"smooth": np.float32(1e7)})
    assert not monitor.diverged
    monitor.receive(CHECK_INTERVAL, received(1e7, 1))
    assert monitor.diverged
    fitted = fit(training_step(settings(steps=1000, lr=1e3), device, small_pixels()))
    assert fitted.stopped == "diverged"


def test_divergence_is_noticed_within_a_few_check_intervals(device: AnyDevice) -> None:
    """The host may be MAX_CHUNKS_AHEAD chunks ahead when it receives the loss."""
    step = training_step(settings(steps=100_000), device, small_pixels())
    poisoned = np.full(step.flat.shape, np.nan, np.float32)
    step.flat.write(poisoned)
    fitted = fit(step)
    assert fitted.stopped == "diverged"
    assert fitted.steps <= 3 * CHECK_INTERVAL


def poison(step: TrainingStep, *times: int) -> Callable[[], bool]:
    """A should_stop that never stops but, at some calls, fills the parameters with NaN."""
    calls = itertools.count(1)

    def called() -> bool:
        if next(calls) in times:
            step.flat.write(np.full(step.flat.shape, np.nan, np.float32))
        return False

    return called


@pytest.mark.parametrize(("chunk", "call"), [(CHECK_INTERVAL // 5, 7), (CHECK_INTERVAL // 2, 4)])
def test_divergence_restores_the_last_good_state_with_half_the_learning_rate(
    device: AnyDevice, chunk: int, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.GOOD_STATE_INTERVAL", CHECK_INTERVAL)
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.next_chunk", lambda before, seconds: chunk)
    chosen = settings(steps=5 * CHECK_INTERVAL // 2)
    step, truth = (training_step(chosen, device, small_pixels()) for _ in range(2))
    fitted = fit(step, Run(should_stop=poison(step, call)))
    assert (fitted.stopped, fitted.steps) == (None, chosen.steps)
    truth.program.run(CHECK_INTERVAL)
    truth.rate.halve(1)
    truth.program.run(chosen.steps - CHECK_INTERVAL)
    assert np.array_equal(step.flat.numpy(), truth.flat.numpy())


def test_diverged_run_ends_with_finite_parameters_after_its_retries(
    device: AnyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.GOOD_STATE_INTERVAL", CHECK_INTERVAL)
    step = training_step(settings(steps=10_000), device, small_pixels())
    fitted = fit(step, Run(should_stop=poison(step, *range(20, 1000))))
    assert fitted.stopped == "diverged"
    assert np.isfinite(fitted.parameters).all()
    assert float(step.rate.first.item()) == np.float32(step.settings.lr / 2**MAX_RETRIES)


def test_run_interrupted_before_its_first_check_returns_the_current_parameters(
    device: AnyDevice,
) -> None:
    step = training_step(settings(steps=100_000), device, small_pixels())
    begin = step.flat.numpy()
    fitted = fit(step, Run(should_stop=lambda: True))
    assert fitted.stopped == "interrupted"
    assert fitted.steps < CHECK_INTERVAL
    assert np.isfinite(fitted.loss)
    assert not np.array_equal(fitted.parameters, begin)


@pytest.mark.parametrize("checks", [1, 5, 8])
def test_resumed_run_ends_with_the_same_bits(
    device: AnyDevice, checks: int, tmp_path: Path
) -> None:
    def step() -> TrainingStep:
        return training_step(settings(steps=7 * CHECK_INTERVAL // 2), device, small_pixels())

    whole, checkpoint = fit(step()), Checkpoint(tmp_path / "c", "k")
    left = iter(range(checks))
    run = Run(should_stop=lambda: next(left, None) is None, checkpoint=checkpoint)
    stopped = fit(step(), run)
    assert stopped.stopped == "interrupted"
    steps: list[int] = []
    resumed = fit(step(), Run(lambda p: steps.append(p.step), checkpoint=checkpoint))
    assert resumed.parameters.tolist() == whole.parameters.tolist()
    assert (resumed.loss, resumed.steps, resumed.stopped) == (
        whole.loss,
        7 * CHECK_INTERVAL // 2,
        None,
    )
    assert min(steps) > stopped.steps
    saved = checkpoint.load()
    assert saved is not None
    assert resumed.seconds > saved.values["seconds"] > 0


@pytest.mark.parametrize("checks", [1, 5, 7])
def test_run_resumed_during_divergence_recovers_like_an_uninterrupted_one(
    checks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues from the last good state, which the checkpoint contains as well."""
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.DIVERGED_LOSS", 10)
    device, checkpoint = open_device("numpy"), Checkpoint(tmp_path / "c", "k")

    def step() -> TrainingStep:
        return training_step(settings(steps=4 * CHECK_INTERVAL, lr=3.0), device, small_pixels())

    whole, own = fit(first := step()), step()
    assert float(first.rate.first.item()) < 3
    run = Run(should_stop=stops_after(checks), checkpoint=checkpoint)
    assert fit(own, run).stopped == "interrupted"
    resumed = fit(step(), Run(checkpoint=checkpoint))
    assert resumed.parameters.tolist() == whole.parameters.tolist()
    assert (resumed.loss, resumed.steps, resumed.stopped) == (
        whole.loss,
        whole.steps,
        whole.stopped,
    )


def test_time_left_excludes_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps compile. Until there are others, the time left is unknown."""
    step = training_step(settings(steps=500), open_device("numpy"), small_pixels())
    run, reports, clock, delay = step.program.run, list[Progress](), [0.0], [100.0]

    def compiling(count: int) -> None:
        clock[0] += 1e-3 * count + (delay.pop() if delay else 0.0)
        run(count)

    time = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.time", time)
    monkeypatch.setattr(step.program, "run", compiling)
    fit(step, Run(reports.append))
    first, *others = reports
    assert (first.steps_per_second, duration(first.seconds_left)) == (0, "unknown time")
    assert others[-1].step == 500
    assert [one.steps_per_second for one in others] == pytest.approx([1000] * len(others))


def test_time_left_follows_from_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 14.0])
    monkeypatch.setattr("imgmlp.codec.float_mlp.fit.time.perf_counter", lambda: next(clock))
    reports = []
    monitor = _Monitor(np.zeros(3, np.float32), 1000, reports.append, None)
    monitor.receive(100, {"smooth": np.float32(0.1)})
    monitor.receive(200, {"smooth": np.float32(0.1)})
    assert [p.steps_per_second for p in reports] == [50, 50]
    assert [p.seconds_left for p in reports] == [18, 16]
