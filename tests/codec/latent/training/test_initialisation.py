"""Initial latents: predicted from the picture, or zero for graphics."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from latent_steps import patterned_picture

from imgmlp.codec import encoder
from imgmlp.codec.latent import initial_latents, pretrained
from imgmlp.codec.latent.initial_latents import predict_latents
from imgmlp.codec.latent.model import ModelShape, default_levels
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import forms, initialisation, latent_trainer, schedule
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.latent.training.forms import Forms
from imgmlp.codec.latent.training.initialisation import initialise, is_graphic, shrunk
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.training import passes
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import Picture


@pytest.mark.parametrize("start", sorted(initial_latents.PREDICTORS))
def test_predicted_latents_resemble_the_picture(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, x = np.mgrid[:90, :120]
    shade = 120 + 60 * np.sin(x / 15) * np.cos(y / 9)
    pixels = np.stack([shade, shade + 8, shade - 12], -1).astype(np.uint8)
    hidden, entropy = pretrained.hidden_widths(start)
    step = LatentStep(pixels, 0, open_device("numpy"), Architecture(hidden, entropy, start))
    error_of_zeros, _ = step.judge(step.flat.numpy())
    predicted = predict_latents(pixels, step.shape, start)
    assert predicted is not None
    step.write_grids(predicted)
    error, _ = step.judge(step.flat.numpy())
    assert error < min(error_of_zeros / 2, initialisation.MAX_ERROR)
    monkeypatch.setattr(initial_latents, "PIXELS_PER_BAND", 1)
    predicted_in_bands = predict_latents(pixels, step.shape, start)
    assert predicted_in_bands is not None
    for once, twice in zip(predicted, predicted_in_bands, strict=True):
        assert np.allclose(once, twice, atol=1e-4)


def test_initial_latents_shrink_towards_zero_at_high_lambda() -> None:
    grids = [np.float32([[-2.0, -0.3, 0.0, 0.3, 5.0]])] * 3
    cases = (3e-4, 300, 0), (6e-4, 200, 1 / 8), (1.2e-3, 30_000, 0.5), (0, 9, 0)
    for lmbda, steps, shrinkage in cases:
        finest, *others = shrunk(grids, lmbda, steps)
        for result, by in ((finest, 3 * shrinkage), *((other, shrinkage) for other in others)):
            assert result.dtype == np.float32
            expected = [by - 2, min(by - 0.3, 0), 0, max(0.3 - by, 0), 5 - by]
            assert np.allclose(result, [expected], atol=1e-6)
        assert len(others) == 2


@pytest.mark.parametrize(
    ("size", "steps", "error", "uses_prediction"),
    [
        ((20, 30), 3, 0.9, True),
        ((20, 30), 300, 0.9, False),  # as for a picture of text
        ((320, 320), 40_000, 0.01, True),
    ],
)
def test_runs_start_from_predicted_latents_that_resemble_the_picture(
    size: tuple[int, int], steps: int, error: float, uses_prediction: bool
) -> None:
    pixels = patterned_picture(*size)
    hidden = forms.widths(pixels.shape, np.inf)
    start = pretrained.newest_pretrained(hidden)
    shape = ModelShape(*pixels.shape, default_levels(*size), *hidden)
    grids = [np.zeros(size, np.float32) for size in shape.grid_sizes]
    judged: list[np.ndarray] = []

    def ask(_flat: np.ndarray, part: str) -> None:
        assert part == "error"
        judged[:] = step.grids()

    pretrained_stub = SimpleNamespace(number=start)
    step = SimpleNamespace(shape=shape, pretrained=pretrained_stub, ask=ask, is_mostly_visible=True)
    step.answer = lambda: error
    step.flat, step.grids = SimpleNamespace(numpy=lambda: np.zeros(1)), lambda: list(grids)
    step.write_grids = lambda predicted: grids.__setitem__(slice(None), predicted)
    initialise(step, pixels, 1e-3, steps)  # type: ignore[arg-type]
    predicted = predict_latents(pixels, shape, start)
    assert predicted is not None
    assert bool(judged) is (
        steps >= schedule.VERY_SHORT_RUN
    )  # in shorter runs the error does not decide
    assert all(map(np.array_equal, judged, predicted))
    expected = (
        shrunk(predicted, 1e-3, steps)
        if uses_prediction
        else [np.zeros_like(grid) for grid in predicted]
    )
    assert all(map(np.array_equal, grids, expected))


@pytest.mark.parametrize(("colours", "channels", "expected"), [
    (2, 1, True), (4, 3, True), (5, 3, False), (2, 2, False), (4, 4, False),
])  # fmt: skip
def test_pictures_of_few_colours_are_graphics(colours: int, channels: int, expected: bool) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (colours, channels), np.uint8)
    y, x = np.mgrid[:9, :20]
    assert is_graphic(levels[(x + 3 * y) % colours], schedule.VERY_SHORT_RUN) is expected
    assert not is_graphic(levels[(x + 3 * y) % colours], schedule.VERY_SHORT_RUN - 1)
    assert not is_graphic(patterned_picture(9, 20), 999)


def test_graphics_start_from_zero_latents_except_in_very_short_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds even if predicted latents would resemble the picture."""
    monkeypatch.setattr(initialisation, "MAX_ERROR", 1.0)
    pixels = np.repeat((patterned_picture(24, 31)[:, :, :1] > 99) * np.uint8(255), 3, 2)
    numpy = open_device("numpy")
    for steps, expects_zeros in (
        (schedule.VERY_SHORT_RUN, True),
        (schedule.VERY_SHORT_RUN - 1, False),
    ):
        step = Forms(pixels, TrainingSetup(pixels.shape, numpy, is_short=True), np.inf).first(None)
        initialise(step, pixels, 1e-3, steps)
        assert all(not grid.any() for grid in step.grids()) is expects_zeros


def test_lambda_of_a_graphic_falls_to_the_target_in_the_first_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It falls in the first half of a run with a fixed lambda, and in no pass after it."""
    steered: list[tuple[int, float]] = []
    steer = LatentStep.steer

    def record_control(self: LatentStep, control: Control) -> None:
        steered.append((self.done, control.lmbda))
        steer(self, control)

    monkeypatch.setattr(LatentStep, "steer", record_control)
    pixels = np.repeat((patterned_picture(12, 13)[:, :, :1] > 99) * np.uint8(255), 3, 2)
    encoder.encode(Picture(pixels), Goal("lambda", 1e-3), Workload(60), open_device("numpy"))
    first = next(n for n, (done, _) in enumerate(steered) if done and done < 10)
    run = steered[first:]
    assert 5e-3 < run[0][1] < latent_trainer.GRAPHIC_LMBDA_FACTOR * 1e-3
    before = [lmbda for done, lmbda in run if done < 30]
    assert all(a > b for a, b in pairwise(before[: before.index(min(before)) + 1]))
    assert {lmbda for done, lmbda in run if done >= 30} == {1e-3}
    steered.clear()
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    goal = Goal("bytes", 300)
    encoder.encode(Picture(pixels), goal, Workload(60), open_device("numpy"))
    earliest = next(lmbda for done, lmbda in steered if done)
    assert earliest == Lambdas(Picture(pixels), goal).initial()


def test_no_latents_are_predicted_for_networks_without_a_predictor() -> None:
    assert predict_latents(patterned_picture(9, 9), ModelShape(9, 9, 3, 4), 2) is None


@pytest.mark.parametrize("colours", [1, 3])
def test_prediction_treats_gray_as_equal_channels_and_ignores_alpha(colours: int) -> None:
    pixels = patterned_picture(9, 13, colours)
    alpha = np.arange(1, 9 * 13 + 1, dtype=np.uint8).reshape(9, 13, 1)
    expected = predict_latents(np.repeat(pixels, 3 // colours, 2), ModelShape(9, 13, 3, 5), 4)
    assert expected is not None
    for given in (pixels, np.concatenate([pixels, alpha], 2)):
        predicted = predict_latents(given, ModelShape(*given.shape, 5), 4)
        assert predicted is not None
        for one, other in zip(predicted, expected, strict=True):
            assert np.abs(other).max() > 0.1
            np.testing.assert_allclose(one, other, atol=1e-5)
