"""Latent models become bytes and models again, and decode to the same picture on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping

from imgmlp.codec import compact, container
from imgmlp.codec.container import Header, Section
from imgmlp.codec.latent import decode, latents, sections
from imgmlp.codec.latent.model import (
    BICUBIC,
    LatentModel,
    ModelShape,
    Quantized,
    quantized,
    usual_levels,
)
from imgmlp.engine import open_device
from imgmlp.errors import FormatError, UsageError

SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5), (4, 4), (33, 31), (17, 64)]  # height, width


def small_model(
    height: int = 21, width: int = 26, channels: int = 3, spread: float = 1.5, **sizes: int
) -> LatentModel:
    """A model of random latents and weights; its picture has many grays."""
    chance = np.random.default_rng([height, width, channels])
    shape = ModelShape(height, width, channels, usual_levels(height, width), **sizes)
    networks = {}
    for name, size in shape.tensors.items():
        deviation = 0.1 if name.endswith("bias") else 1 / np.sqrt(max(1, np.prod(size[:-1])))
        networks[name] = quantized(chance.normal(0, deviation, size), 6)
    networks["upsampling"] = quantized(np.tile(BICUBIC, (shape.levels - 1, 1)), 7)
    networks["entropy.2.bias"] = quantized(np.array([0.1, 4.0]), 8)
    grids = tuple(
        np.clip(np.rint(chance.laplace(0, spread, size)), -64, 63).astype(np.int8)
        for size in shape.grids
    )
    return LatentModel(shape, grids, networks)


def read(
    parts: tuple[bytes, bytes, bytes], shape: ModelShape, mapping: str = "numpy"
) -> LatentModel:
    size = shape.width, shape.height
    return sections.read(parts, size, shape.channels, open_mapping(mapping))


def assert_same(found: LatentModel, wanted: LatentModel) -> None:
    assert found.shape == wanted.shape
    for a, b in zip(found.latents, wanted.latents, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert list(found.networks) == list(wanted.networks)
    for name, tensor in found.networks.items():
        other = wanted.networks[name]
        np.testing.assert_array_equal(tensor.values, other.values, strict=True)
        assert tensor.exponent == other.exponent


def file_of(model: LatentModel) -> bytes:
    shape = model.shape
    pixels = decode.decode(model, open_device("numpy"))
    header = Header(
        shape.width, shape.height, shape.channels, container.digest(pixels), codec="latent"
    )
    return container.write(header, map(Section, "NWL", sections.write(model)))


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_a_model_comes_back_from_its_sections(size: tuple[int, int], mapping: str) -> None:
    model = small_model(*size)
    assert_same(read(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize(
    "sizes", [{"neighbours": 1}, {"neighbours": 14, "entropy": 16}, {"synthesis": 7, "entropy": 1}]
)
def test_networks_may_have_other_widths(sizes: dict[str, int], mapping: str) -> None:
    model = small_model(**sizes)
    assert_same(read(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_latents_may_be_anything_from_64_below_0_to_63(mapping: str) -> None:
    model = small_model(spread=100.0)
    assert (model.latents[0].min(), model.latents[0].max()) == (-64, 63)
    assert_same(read(sections.write(model), model.shape, mapping), model)


def test_a_grid_of_zeros_costs_nothing() -> None:
    model = small_model()
    empty = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    assert sections.write(empty)[2] == bytes(2)
    assert_same(read(sections.write(empty), model.shape), empty)
    half = replace(model, latents=(np.zeros_like(model.latents[0]), *model.latents[1:]))
    assert_same(read(sections.write(half), model.shape), half)


def test_bits_are_those_that_are_written() -> None:
    model = small_model(64, 96)
    _, coded, stream = sections.write(model)
    assert 0 <= 8 * len(stream) - latents.bits(model) <= 24
    of_steps = 16 * len(model.networks)
    assert 0 <= 8 * len(coded) + of_steps - sections.network_bits(model.networks) <= 24


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_model_decodes_to_the_same_picture_everywhere(mapping: str) -> None:
    model = small_model()
    decoded = decode.decode(model, open_mapping(mapping))
    np.testing.assert_array_equal(decoded, decode.decode(model, open_device("numpy")), strict=True)
    assert decoded.shape == (21, 26, 3)
    assert len(np.unique(decoded)) > 100


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3)])
def test_a_file_decodes_to_its_picture(size: tuple[int, int], channels: int) -> None:
    found = container.parse(file_of(small_model(*size, channels)))
    decoded = compact.decode(found, open_device("numpy"))
    assert decoded.shape == (*size, channels)
    assert container.digest(decoded) == found.header.digest


def test_another_size_is_refused() -> None:
    found = container.parse(file_of(small_model()))
    device = open_device("numpy")
    assert compact.decode(found, device, (26, 21)).shape == (21, 26, 3)
    with pytest.raises(UsageError, match="only its own size, 26×21"):
        compact.decode(found, device, (52, 42))


def test_a_model_whose_sums_need_more_than_32_bits_is_refused() -> None:
    model = small_model()
    for name in ("entropy.1.weight", "synthesis.0.weight", "residual.1.weight", "upsampling"):
        old = model.networks[name]
        large = Quantized(np.full_like(old.values, 2**14), old.exponent)
        with pytest.raises(FormatError, match="more than 32 bits"):
            replace(model, networks={**model.networks, name: large})
