"""Latent models survive being written to sections and read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latent_models import SIZES, assert_models_equal, read_sections
from latent_steps import bits_of_latents
from networks import small_latent_model

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.pretrained import pretrained_networks
from imgmlp.errors import FormatError


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_model_survives_writing_and_reading(size: tuple[int, int], mapping: str) -> None:
    model = small_latent_model(*size)
    assert_models_equal(read_sections(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"neighbours": 1},
        {"neighbours": 14, "entropy_width": 16},
        {"synthesis_width": 7, "entropy_width": 1},
    ],
)
def test_networks_of_other_widths_survive_writing_and_reading(
    sizes: dict[str, int], mapping: str
) -> None:
    model = small_latent_model(**sizes)
    assert_models_equal(read_sections(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_latents_from_minus_64_to_63_survive_coding(mapping: str) -> None:
    model = small_latent_model(spread=100.0)
    assert (model.latents[0].min(), model.latents[0].max()) == (-64, 63)
    assert_models_equal(read_sections(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("value", [-65, 64])
def test_latents_outside_minus_64_to_63_are_refused(value: int, mapping: str) -> None:
    model = small_latent_model()
    model.latents[0][3, 5] = value
    with pytest.raises(FormatError, match=r"are not from -64 to 63|are damaged"):
        read_sections(sections.write(model), model.shape, mapping)


def test_grids_of_zeros_take_no_bits() -> None:
    model = small_latent_model()
    empty = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    assert sections.write(empty)[2] == bytes(2)
    assert_models_equal(read_sections(sections.write(empty), model.shape), empty)
    half = replace(model, latents=(np.zeros_like(model.latents[0]), *model.latents[1:]))
    assert_models_equal(read_sections(sections.write(half), model.shape), half)


def test_estimated_bits_match_the_written_sections() -> None:
    model = small_latent_model(64, 96)
    _, coded, stream = sections.write(model)
    assert 0 <= 8 * len(stream) - bits_of_latents(model) <= 24
    of_steps = 16 * len(model.networks)
    assert (
        0
        <= 8 * len(coded)
        + of_steps
        - sections.network_bits(model.networks, pretrained_networks(0, model.shape))
        <= 24
    )
