"""Encoding by the latent codec from picture to file: targets, passes and metrics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from latent_encoding import (
    METADATA,
    PIXELS,
    TWO_COLOURS,
    StopRun,
    encode_pixels,
    uninterrupted_file,
)

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.latent import decode
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.training import (
    bit_allocation,
    effort,
    forms,
    latent_trainer,
    progressive_quantisation,
    run_plan,
    schedule,
)
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer
from imgmlp.codec.latent.training.rounding_search import Written
from imgmlp.codec.training import passes
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.run import Progress, Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import psnr
from imgmlp.metadata import NOTHING

pytestmark = pytest.mark.usefixtures("trained")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_metrics_describe_the_written_file(channels: int) -> None:
    pixels = np.concatenate([PIXELS, PIXELS[::-1]], axis=2)[:, :, :channels]
    beside = METADATA if channels == 3 else NOTHING
    encoded = encode_pixels(Goal("lambda", 3e-3), pixels, Workload(10), metadata=beside)
    parsed = container.parse(encoded.bytes)
    decoded = decoder.decode(parsed, open_device("numpy"))
    assert parsed.header.codec == "latent"
    assert (decoded == encoded.pixels).all()
    assert metadata_sections.read(parsed) == beside
    assert encoded.metrics["bytes"] == len(encoded.bytes)
    assert encoded.metrics["psnr"] == psnr(pixels, decoded)
    assert encoded.metrics["steps"] == 10
    sections = {s.type: len(s.data) for s in parsed.sections}
    assert encoded.metrics["network_bytes"] == sections["N"] + sections["W"]
    assert encoded.metrics["latent_bytes"] == sections["L"]


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (1, 40), (40, 1), (2, 2), (3, 5), (17, 9)])
def test_pictures_of_any_size_can_be_encoded(size: tuple[int, int]) -> None:
    values = np.linspace(0, 255, math.prod(size)).astype(np.uint8)
    encoded = encode_pixels(Goal("lambda", 1e-3), values.reshape(*size, 1), Workload(4))
    parsed = container.parse(encoded.bytes)
    assert parsed.header.codec == "latent"
    assert (decoder.decode(parsed, open_device("numpy")) == encoded.pixels).all()


@pytest.mark.parametrize("goal", [Goal("psnr", 40), Goal("bytes", 5000), Goal("lambda", 1e-3)])
def test_single_colour_picture_becomes_a_small_lossless_file(goal: Goal) -> None:
    pixels = np.broadcast_to(np.array([3, 128, 250, 77], np.uint8), (20, 33, 4))
    encoded = encode_pixels(goal, np.ascontiguousarray(pixels))
    assert encoded.metrics["psnr"] == math.inf
    assert encoded.missed is None
    assert len(encoded.bytes) < 64


def test_more_steps_raise_psnr_and_a_higher_lambda_shrinks_the_file() -> None:
    few, many = (encode_pixels(Goal("lambda", 1e-3), workload=Workload(n)) for n in (2, 60))
    small = encode_pixels(Goal("lambda", 3e-2), workload=Workload(60))
    assert many.metrics["psnr"] > few.metrics["psnr"] + 3
    assert len(small.bytes) < len(many.bytes)


def test_target_bytes_are_used_but_not_exceeded() -> None:
    encoded = encode_pixels(Goal("bytes", 300), workload=Workload(60))
    assert 0.97 * 300 <= len(encoded.bytes) <= 300
    assert encoded.missed is None


def test_target_psnr_is_met_in_few_bytes() -> None:
    """A smaller file of higher PSNR is preferred to one that just meets the target."""
    result = {goal: encode_pixels(Goal("psnr", goal), workload=Workload(60)) for goal in (17, 23)}
    for goal, one in result.items():
        assert goal - one.metrics["psnr"] <= 0.1
        assert one.missed is None
    assert len(result[23].bytes) <= 190  # a single pass and rounding gave 210
    assert len(result[17].bytes) <= 130  # 150


def test_low_lambda_reaches_the_psnr_that_needs_finer_latents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without scaled latents it has 30.5 dB in 555 bytes."""
    monkeypatch.setattr(schedule, "SHORT_RUN", 100)
    encoded = encode_pixels(Goal("lambda", 1e-6), workload=Workload(100))
    assert encoded.metrics["psnr"] > 33


@pytest.mark.usefixtures("few_trials")
def test_lambda_selects_the_pretrained_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "MIN_PIXELS_FOR_LOW_LMBDA", 0)
    device = open_device("numpy")
    for goal, number in (
        (Goal("lambda", 1e-3), 4), (Goal("lambda", 1e-5), 9), (Goal("psnr", 60.0), 9),
    ):  # fmt: skip
        parsed = container.parse(encode_pixels(goal, workload=Workload(2)).bytes)
        assert decode.read(parsed, device).pretrained == number


@pytest.mark.usefixtures("few_trials")
def test_unreachable_target_is_reported_as_missed() -> None:
    encoded = encode_pixels(Goal("bytes", 40), workload=Workload(4))
    assert encoded.missed == f"{len(encoded.bytes)} bytes instead of 40"
    encoded = encode_pixels(Goal("psnr", 55), workload=Workload(4))
    assert encoded.missed is not None
    assert encoded.missed.endswith("instead of 55")


@pytest.mark.usefixtures("few_trials")
def test_encoding_is_deterministic() -> None:
    assert encode_pixels(Goal("bytes", 420)).bytes == uninterrupted_file(Goal("bytes", 420))


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(("pixels", "doublings"), [(TWO_COLOURS, 3.0), (PIXELS, 1.5)])
def test_repeated_run_of_a_graphic_may_raise_lambda_further(
    pixels: np.ndarray, doublings: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmbdas = list[float]()

    def record_lambdas(trainer: LatentTrainer, lmbda: float) -> None:
        lmbdas.extend((trainer.state.lmbda, lmbda))
        raise StopRun

    monkeypatch.setattr(LatentTrainer, "lmbda_was_too_low", lambda *_: True)
    monkeypatch.setattr(LatentTrainer, "repeat_run", record_lambdas)
    monkeypatch.setattr(latent.Passes, "_excess", lambda *_: 12.0)
    with pytest.raises(StopRun):
        encode_pixels(Goal("psnr", 40), pixels, Workload(schedule.VERY_SHORT_RUN))
    assert math.log2(lmbdas[1] / lmbdas[0]) == pytest.approx(doublings)


def test_progress_reports_the_minimised_cost() -> None:
    messages: list[Progress] = []
    encode_pixels(Goal("lambda", 2e-3), run=Run(messages.append))
    assert messages[-1].step == messages[-1].steps == 30
    for progress in messages:
        assert progress.bpp is not None
        assert progress.cost == pytest.approx(progress.loss + 2e-3 * progress.bpp)


@pytest.mark.usefixtures("few_trials")
def test_long_runs_quantise_networks_progressively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MIN_PIXELS_TO_QUANTISE", 0)
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(
        bit_allocation, "MIN_NETWORK_FRACTION", math.inf
    )  # otherwise they are quantised twice
    counts = list[int]()
    quantise = progressive_quantisation.quantise

    def record(*given: Any) -> dict[str, Quantized]:
        counts.append(given[3])
        return quantise(*given)

    monkeypatch.setattr(progressive_quantisation, "quantise", record)
    encode_pixels(Goal("lambda", 1e-3), PIXELS[:5, :6], Workload(400))
    steps = effort.steps_for_pixels(400, 30)
    assert counts[0] == round(effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION * steps)
    assert set(counts[1:]) == {
        round(effort.MAX_SHORT_QUANTISATION_FRACTION * latent_trainer.PASS_LENGTH * steps)
    }  # the steps of passes
    counts.clear()
    encode_pixels(Goal("lambda", 1e-3), PIXELS[:5, :6], Workload(effort.MIN_STEPS_TO_QUANTISE - 1))
    assert not counts


def test_small_pictures_have_unconditional_passes_and_keep_the_best_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are none in runs of few or many steps, in large pictures or under a short limit."""
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 20)
    results = [
        effort.unconditional_passes(steps, 128 * 128) for steps in (10, 600, 1882, 6000, 8000)
    ]
    assert results == [0, 6, 3, 1, 0]
    assert effort.unconditional_passes(600, 256 * 256) == 0
    drafts, rounded = list[Draft](), latent._Encoder._round

    def record(encoder: latent._Encoder, trainer: LatentTrainer) -> tuple[Draft, Written]:
        draft, first = rounded(encoder, trainer)
        drafts.append(draft)
        return draft, first

    monkeypatch.setattr(latent._Encoder, "_round", record)
    best = encode_pixels(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(20)).metrics
    costs = [10 ** (-d.metrics["psnr"] / 10) + 3e-3 * d.metrics["bpp"] for d in drafts]
    assert len(costs) == 1 + effort.MAX_UNCONDITIONAL_PASSES
    assert 10 ** (-best["psnr"] / 10) + 3e-3 * best["bpp"] == min(costs)
    drafts.clear()
    encode_pixels(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(0, seconds=0.01))
    assert len(drafts) == 1


@pytest.mark.usefixtures("few_trials")
def test_pass_starts_its_exponent_search_from_the_previous_exponents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 20)
    first_exponents, last_exponents = list[dict[str, int]](), list[dict[str, int]]()

    class Noted(latent.Rounding):
        def best(self, lmbda: float) -> tuple[Written, Written]:
            first_exponents.append(dict(self._search.exponents))
            result, first = super().best(lmbda)
            last_exponents.append(
                {name: one.exponent for name, one in first.model.networks.items()}
            )
            return result, first

    monkeypatch.setattr(latent, "Rounding", Noted)
    encode_pixels(Goal("lambda", 3e-3), PIXELS[:5, :6], Workload(20))
    assert len(first_exponents) == 3
    assert first_exponents[1:] == last_exponents[:-1]


def test_time_limit_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan.RunPlan, "_timed", lambda *_: 1e-6)  # real steps take longer
    encoded = encode_pixels(Goal("lambda", 1e-2), workload=Workload(0, seconds=1.5))
    assert 1 <= encoded.metrics["steps"] < 5000
