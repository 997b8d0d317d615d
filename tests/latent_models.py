"""What tests of latent models share: reading, comparison and files."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from conftest import open_mapping
from networks import small_latent_model

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel, ModelShape, Quantized
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.engine import AnyDevice, open_device

SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5), (4, 4), (33, 31), (17, 64)]  # height, width


@functools.cache
def shared_device(mapping: str) -> AnyDevice:
    """A cached device, so that kernels that several tests run are compiled once."""
    return open_mapping(mapping)


def read_sections(
    parts: tuple[bytes, bytes, bytes], shape: ModelShape, mapping: str = "numpy"
) -> LatentModel:
    size = shape.width, shape.height
    # "group" is not cached: some tests forbid opening a processor beside it.
    device = open_mapping(mapping) if mapping == "group" else shared_device(mapping)
    return sections.read(parts, size, shape.channels, device)


def assert_models_equal(actual: LatentModel, expected: LatentModel) -> None:
    assert actual.shape == expected.shape
    for a, b in zip(actual.latents, expected.latents, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert list(actual.networks) == list(expected.networks)
    for name, tensor in actual.networks.items():
        other = expected.networks[name]
        np.testing.assert_array_equal(tensor.values, other.values, strict=True)
        assert tensor.exponent == other.exponent


def file_of_model(model: LatentModel) -> bytes:
    shape = model.shape
    pixels = synthesize(model, open_device("numpy"))
    header = Header(
        shape.width, shape.height, shape.channels, container.digest(pixels), codec="latent"
    )
    return container.write(header, map(Section, "NWL", sections.write(model)))


TINY = {"synthesis_width": 3, "entropy_width": 2, "neighbours": 4}


def extreme_model() -> LatentModel:
    """A model whose values and means are clamped everywhere."""
    model = small_latent_model(9, 14, spread=60.0, has_filter=True)
    networks = dict(model.networks)
    for name, factor in [
        ("entropy.1", 8),
        ("entropy.2", 16),
        ("synthesis.1", 8),
        ("residual.1", 9),
    ]:
        old = networks[f"{name}.weight"]
        networks[f"{name}.weight"] = Quantized(old.values * factor, old.exponent)
    taps = networks["upsampling"]
    networks["upsampling"] = Quantized(taps.values * np.array([[3], [-2], [2], [3]], np.int32), 7)
    networks["filter"] = Quantized(np.array([[9, -9, 9], [-9, 9, -9], [9, -9, 9]], np.int32), 0)
    return replace(model, networks=networks)
