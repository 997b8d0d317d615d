"""Parameters of the training step: their layout and their initial values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from latent_steps import PRETRAINED_1, draw, small_picture

from imgmlp.codec.latent.model import BICUBIC_TAPS
from imgmlp.codec.latent.pretrained import pretrained_networks
from imgmlp.codec.latent.step.architecture import DEFAULT_ARCHITECTURE, Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import (
    flat_of,
    networks_of,
    parameter_shapes,
    random_parameters,
)
from imgmlp.engine import open_device


def test_flat_parameters_survive_the_round_trip_through_networks() -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"))
    flat = draw(step.flat.shape[0])
    assert np.array_equal(flat_of(networks_of(flat, step.parameter_shapes)), flat)


def test_random_layers_preserve_variance_and_other_tensors_start_neutral() -> None:
    """Layers before activations use He's initialisation, last layers half its variance.

    The weights of 100 seeds have these deviations within 3%.
    """
    model = DEFAULT_ARCHITECTURE.model_shape(64, 64, 3, 6)
    shapes = parameter_shapes(model)
    drawn = [networks_of(random_parameters(shapes, seed), shapes) for seed in range(100)]
    first = drawn[0]
    for name, shape in model.tensor_shapes.items():
        if name.startswith(("synthesis", "entropy")) and name.endswith("weight"):
            gain = 1 if name.split(".")[1] == "2" else 2
            deviation = np.std([networks[name] for networks in drawn])
            assert deviation == pytest.approx(math.sqrt(gain / shape[0]), rel=0.03), name
        elif name == "upsampling":
            assert np.array_equal(first[name], np.tile(np.float32(BICUBIC_TAPS), (5, 1)))
        elif name == "filter":
            assert np.allclose(first[name], 1 / 9)
        else:
            assert not first[name].any(), name


def test_networks_start_from_pretrained_values_except_for_alpha() -> None:
    """Weights of alpha are drawn at random, and cost least where they are 0."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    start = pretrained_networks(1, step.shape).floats()
    for name, values in networks_of(step.flat.numpy(), step.parameter_shapes).items():
        assert np.array_equal(values, start[name]), name
    wide = LatentStep(small_picture(), 1, open_device("numpy"), Architecture(pretrained=3))
    networks = networks_of(wide.flat.numpy(), wide.parameter_shapes)
    assert not networks["synthesis.0.weight"][-1].any()
    assert networks["filter"].any()  # otherwise neither would ever get a gradient
    gray = LatentStep(small_picture()[:, :, :1], 1, open_device("numpy"), PRETRAINED_1)
    networks = networks_of(gray.flat.numpy(), gray.parameter_shapes)
    gray_start = pretrained_networks(1, gray.shape).floats()
    assert all(np.array_equal(values, gray_start[name]) for name, values in networks.items())
    with_alpha = small_picture()[:, :, [0, 1, 2, 0]]
    both = LatentStep(with_alpha, 1, open_device("numpy"), PRETRAINED_1)
    networks = networks_of(both.flat.numpy(), both.parameter_shapes)
    assert np.array_equal(networks["synthesis.2.weight"][:, :3], start["synthesis.2.weight"])
    assert networks["synthesis.2.weight"][:, 3].any()
    assert not networks_of(both.rate_anchor.numpy(), both.parameter_shapes)["synthesis.2.weight"][
        :, 3
    ].any()
    hidden = np.concatenate([small_picture(), np.uint8(255) * (small_picture()[:, :, :1] > 200)], 2)
    cut_out = LatentStep(hidden, 1, open_device("numpy"), PRETRAINED_1)
    networks = networks_of(cut_out.flat.numpy(), cut_out.parameter_shapes)
    assert np.array_equal(networks["synthesis.1.weight"], start["synthesis.1.weight"])
    assert not np.array_equal(networks["synthesis.2.weight"][:, :3], start["synthesis.2.weight"])
    assert not networks_of(cut_out.rate_anchor.numpy(), cut_out.parameter_shapes)[
        "synthesis.2.weight"
    ].any()


@pytest.mark.parametrize(
    ("name", "has", "rows"),
    [
        ("entropy.0.weight", {"has_hyperlatents": True}, 3),
        ("synthesis.0.weight", {"extra_grids": 2}, 2),
    ],
)
def test_weights_without_pretrained_values_start_nonzero_but_are_coded_from_0(
    name: str, has: dict[str, Any], rows: int
) -> None:
    """With weights of 0, hyperlatents and extra grids would never move from 0."""
    step = LatentStep(
        small_picture().repeat(2, 1), 1, open_device("numpy"), replace(PRETRAINED_1, **has)
    )
    start = step.pretrained.tensors[name] / 2.0**11
    initial, cheapest = (
        networks_of(flat.numpy(), step.parameter_shapes)[name]
        for flat in (step.flat, step.rate_anchor)
    )
    assert np.array_equal(initial[:-rows], start[:-rows])
    assert initial[-rows:].all()
    assert np.array_equal(cheapest, start)
    assert not start[-rows:].any()
    step.steer(Control(1e-3))
    step.run(3)
    assert all(grid.all() for grid in step.grids()[step.levels :])
