"""Hyperlatents and extra grids: coding, limits and effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from latent_models import assert_models_equal, read_sections, shared_device
from latent_steps import bits_of_latents
from networks import small_latent_model, started_latent_model

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.hyperlatents import HyperlatentMaps
from imgmlp.codec.latent.model import ModelShape
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.engine import open_device
from imgmlp.errors import FormatError


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("size", [(1, 40), (70, 33), (130, 90)])
def test_hyperlatents_survive_coding_and_change_the_bits_of_latents(
    size: tuple[int, int], mapping: str
) -> None:
    for model in (
        small_latent_model(*size, has_hyperlatents=True),
        started_latent_model(*size, has_hyperlatents=True),
    ):
        own = [np.where(grid, grid, np.int8(1)) for grid in model.latents[-3:]]
        model = replace(model, latents=(*model.pyramid, *own))
        parts = sections.write(model)
        result = read_sections(parts, model.shape, mapping)
        assert_models_equal(result, model)
        first = model.networks["entropy.0.weight"]
        for row in (-3, -2, -1):  # rows of weights that multiply hyperlatents
            values = first.values.copy()
            values[row] = 0
            changed = {"entropy.0.weight": replace(first, values=values)}
            without = replace(model, networks={**model.networks, **changed})
            assert bits_of_latents(without) != bits_of_latents(model), row


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("extra", [1, 2, 3])
def test_extra_grids_survive_coding_and_change_the_picture(extra: int, mapping: str) -> None:
    for make in (small_latent_model, started_latent_model):
        # a kernel is compiled for each case; these cover all pairs of values
        model = make(
            21, 26, has_filter=(make is small_latent_model) == (extra == 2), extra_grids=extra
        )
        result = read_sections(sections.write(model), model.shape, mapping)
        assert_models_equal(result, model)
        picture = synthesize(result, shared_device(mapping))
        np.testing.assert_array_equal(picture, synthesize(model, open_device("numpy")))
        for number in range(extra):
            grids = [*model.latents]
            grids[len(model.pyramid) + number] = np.zeros_like(grids[0])
            other = replace(model, latents=tuple(grids))
            assert (synthesize(other, open_device("numpy")) != picture).any(), number
            assert_models_equal(read_sections(sections.write(other), model.shape, mapping), other)


def test_invalid_numbers_of_extra_grids_are_refused() -> None:
    for extra in (-1, 4):
        with pytest.raises(FormatError, match="extra grids"):
            ModelShape(40, 40, 3, 7, extra_grids=extra)
    with pytest.raises(FormatError, match="extra grids and hyperlatents"):
        ModelShape(90, 70, 3, 7, has_hyperlatents=True, extra_grids=1)


def test_hyperlatents_of_zeros_are_coded() -> None:
    """Their presence is how a decoder knows that the model has them."""
    model = small_latent_model(40, 40, has_hyperlatents=True)
    empty = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    assert len(sections.write(empty)[2]) > 2
    assert_models_equal(read_sections(sections.write(empty), model.shape), empty)


def test_hyperlatents_are_refused_for_too_large_or_too_small_pictures() -> None:
    for size in ((4096, 4097, 3, 9), (32, 32, 3, 6)):
        with pytest.raises(FormatError, match="no hyperlatents"):
            ModelShape(*size, has_hyperlatents=True)
    ModelShape(4096, 4096, 3, 9, has_hyperlatents=True)
    head, *others = sections.write(started_latent_model(32, 32))
    flagged_head = head[:2] + bytes([head[2] | 1 << 6]) + head[3:]
    with pytest.raises(FormatError, match="6 grids have no hyperlatents"):
        read_sections((flagged_head, *others), ModelShape(32, 32, 3, 6, 16, 12))


def test_hyperlatent_maps_do_not_depend_on_levels_requested_before() -> None:
    """The maps of a level derive from the next coarser level's, requested or not."""
    shape = ModelShape(90, 70, 3, 7, has_hyperlatents=True)
    chance = np.random.default_rng(0)
    grids = [chance.integers(-9, 9, size).astype(np.int8) for size in shape.grid_sizes[7:]]
    at_once, one_by_one = HyperlatentMaps(shape, grids), HyperlatentMaps(shape, grids)
    all_levels = [one_by_one.at(level) for level in range(6, -1, -1)]
    assert np.array_equal(at_once.at(0), all_levels[-1])
