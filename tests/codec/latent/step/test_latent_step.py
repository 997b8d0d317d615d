"""The training step: its noise, and how well its estimates match what files hold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from latent_steps import NARROW, bits_of_latents, draw, grids_of, small_picture

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.engine import AnyDevice, open_device


def test_decoded_model_has_the_error_and_bits_that_training_measured() -> None:
    device = open_device("numpy")
    step = LatentStep(small_picture(), 1, device)
    lmbda = 1e-3
    assert LatentTrainer(step, LatentTrainerState(60, lmbda)).run() == "done"
    search = Search(step)
    networks = search._rounded(dict.fromkeys(search.floats, 8))
    model = LatentModel(step.shape, grids_of(step), networks)
    error, bits = step.judge(flat_of({n: q.floats() for n, q in networks.items()}))
    seen = synthesize(model, device).astype(np.float64)
    assert np.mean((seen - small_picture()) ** 2) / 255**2 == pytest.approx(error, rel=0.03)
    assert bits_of_latents(model) / step.pixels == pytest.approx(bits, rel=0.03)


@pytest.mark.parametrize("has", [{}, {"has_hyperlatents": True}, {"extra_grids": 2}])
def test_coded_latents_take_the_bits_that_training_estimated(has: dict[str, Any]) -> None:
    """They agree within half a percent of thousands of bits, and 24 bits for the stream's end."""
    noise = np.random.default_rng(2).normal(128, 40, (40, 56, 1)).clip(0, 255).astype(np.uint8)
    sizes = Architecture(16, 12, pretrained=4)
    step = LatentStep(noise, 1, open_device("numpy"), replace(sizes, **has))
    LatentTrainer(step, LatentTrainerState(25, 1e-4)).run()
    own = [np.rint(20 * draw(*grid.shape)) for grid in step.grids()[step.levels :]]
    step.write_grids([*step.grids()[: step.levels], *own])
    networks = Search(step)._rounded(dict.fromkeys(step.shape.tensor_shapes, 8))
    model = LatentModel(step.shape, grids_of(step), networks, step.pretrained.number)
    _, rate = step.judge(flat_of({name: tensor.floats() for name, tensor in networks.items()}))
    counted, written = rate * step.pixels, 8 * len(sections.write(model)[2])
    assert counted > 3000
    assert abs(written - counted) <= 0.005 * counted + 24


def test_every_second_step_negates_the_noise_of_the_step_before(device: AnyDevice) -> None:
    step = LatentStep(small_picture(), 1, device, NARROW)

    def at(count: int) -> np.ndarray:
        step.count.write(np.uint32(count))
        return step._soft_rounded()[0].numpy()

    for interval in (1, 3):
        control = Control(1e-3, latent_lr=0.0, network_lr=0.0)
        step.control.write(control.array(3, step.pixels, 0.0, interval))
        first, second, third = (at(turn * interval) for turn in range(3))
        assert np.abs(first).max() > 0.1
        assert np.allclose(second, -first, atol=1e-6)  # soft rounding of zero latents is odd
        alike = np.isclose(np.abs(third), np.abs(first), rtol=1e-3)[first != 0]
        assert alike.mean() < 0.05
        assert np.array_equal(at(interval - 1), first)


@pytest.mark.parametrize(("side", "start", "factor"), [
    (32, 4, 3.0), (128, 4, 3.0), (256, 4, 1.106), (512, 4, 0.407), (512, 0, 1.0),
])  # fmt: skip
def test_weight_rate_factor_falls_with_picture_size(side: int, start: int, factor: float) -> None:
    weights = cast(property, LatentStep.weight_rate_factor).fget
    assert weights is not None
    result = weights(SimpleNamespace(pretrained=SimpleNamespace(number=start), pixels=side * side))
    assert result == pytest.approx(factor, rel=2e-3)
