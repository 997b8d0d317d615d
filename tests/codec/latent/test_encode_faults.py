"""Runs of the latent codec that diverge, and files that differ from their model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from latent_encoding import PIXELS, encode_pixels

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent import decode, sections
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Steering
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import bit_allocation, latent_trainer, rounding_search, schedule
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import ImgmlpError

pytestmark = pytest.mark.usefixtures("trained")


def test_diverged_run_returns_to_a_saved_state_with_a_lower_learning_rate(
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
    encoded = encode_pixels(Goal("lambda", 1e-3))
    assert not encoded.diverged
    assert rates == [pytest.approx(schedule.control(20, 30, 1e-3).network_lr / 4)]


def test_state_to_return_to_is_saved_ten_times_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(
        latent_trainer.LatentTrainer, "_remember", lambda self: saved.append(self.done)
    )
    encode_pixels(Goal("lambda", 1e-3), workload=Workload(120))
    assert saved == list(range(12, 121, 12))


def test_hopelessly_diverged_run_still_writes_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "LATENT_LR", math.nan)
    encoded = encode_pixels(Goal("lambda", 1e-3), workload=Workload(20))
    assert encoded.diverged
    assert container.parse(encoded.bytes).header.codec == "latent"


def test_divergence_after_the_last_check_is_not_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This can happen where a limit ends a step between windows."""
    train, usual = latent._Encoder._train, encode_pixels(Goal("lambda", 1e-3))

    def exploding(self: latent._Encoder, trainer: LatentTrainer) -> str:
        ended = train(self, trainer)
        trainer.step.flat.write(np.full(trainer.step.flat.shape, np.nan, np.float32))
        return ended

    monkeypatch.setattr(latent._Encoder, "_train", exploding)
    encoded = encode_pixels(Goal("lambda", 1e-3))
    assert encoded.metrics["psnr"] > usual.metrics["psnr"] - 2


def test_diverged_pass_returns_to_its_own_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not return to the run before it, which had another lambda and other networks."""
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


def test_nan_from_pricing_leaves_lambda_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), lambda *_: math.nan)
    assert trainer.run() == "done"
    assert trainer.state.lmbda == 1e-3


@pytest.mark.parametrize("chosen_file", [0, 1])
def test_divergence_is_reported_only_for_the_file_that_is_chosen(
    chosen_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, passes = latent._Encoder._train, list[str]()

    def diverging(self: latent._Encoder, trainer: LatentTrainer) -> str:
        passes.append(train(self, trainer))
        return passes[-1] if len(passes) == 1 else "diverged"

    monkeypatch.setattr(latent._Encoder, "_train", diverging)
    monkeypatch.setattr(
        latent._Encoder, "_distance", lambda _, draft: draft.diverged is not bool(chosen_file)
    )
    encoded = encode_pixels(Goal("bytes", 300), workload=Workload(60))
    assert passes == ["done", "done"]
    assert encoded.diverged is (chosen_file == 1)


def corrupt_files(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files hold a wrong latent or a wrong weight, or synthesis return wrong pixels."""
    if what == "synthesis":
        real = rounding_search.synthesize
        monkeypatch.setattr(rounding_search, "synthesize", lambda *made: real(*made) ^ 1)
        return
    write = sections.write

    def write_wrong(model: LatentModel, device: AnyDevice) -> tuple[bytes, bytes, bytes]:
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

    monkeypatch.setattr(sections, "write", write_wrong)


@pytest.mark.parametrize("what", ["latent", "weight", "synthesis"])
def test_file_that_differs_from_the_model_is_an_error(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupt_files(what, monkeypatch)
    with pytest.raises(ImgmlpError, match="what was written is no sound file: it"):
        encode_pixels(Goal("lambda", 3e-3), workload=Workload(3))


def test_encoding_synthesizes_the_pixels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = rounding_search.synthesize
    monkeypatch.setattr(rounding_search, "synthesize", lambda *a: calls.append(a) or real(*a))
    monkeypatch.setattr(decode, "synthesize", lambda *a: calls.append(a) or real(*a))
    encoded = encode_pixels(Goal("lambda", 3e-3), workload=Workload(3))
    assert len(calls) == 1
    assert (
        decoder.decode(container.parse(encoded.bytes), open_device("numpy")) == encoded.pixels
    ).all()
