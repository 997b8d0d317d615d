"""The latent model: which weights and sizes it accepts."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from networks import small_latent_model

from imgmlp.codec.bitstream import container
from imgmlp.codec.latent.model import (
    MAX_CODABLE_WEIGHT,
    MAX_EXPONENT,
    MAX_EXTRA_GRIDS,
    MAX_HIDDEN_WIDTH,
    MAX_LEVELS,
    MAX_VALUE,
    VALUE_BITS,
    ModelShape,
    Quantized,
    quantized,
)
from imgmlp.codec.mlp.network import MAX_PRODUCTS
from imgmlp.errors import FormatError


def test_quantized_clamps_unreachable_values_and_maps_nan_to_0() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e30, 1.5, -0.125], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = quantized(values, 2).values.tolist()
    assert result == [0, MAX_CODABLE_WEIGHT, -MAX_CODABLE_WEIGHT, MAX_CODABLE_WEIGHT, 6, 0]


def test_weights_whose_sums_exceed_32_bits_are_refused() -> None:
    model = small_latent_model(has_filter=True)
    for name in ("entropy.1.weight", "synthesis.0.weight", "residual.1.weight", "upsampling",
                 "filter"):  # fmt: skip
        old = model.networks[name]
        large = Quantized(np.full_like(old.values, 2**14), old.exponent)
        with pytest.raises(FormatError, match="more than 32 bits"):
            replace(model, networks={**model.networks, name: large})


@pytest.mark.parametrize("excess", [0, 1])
def test_weight_sums_are_accepted_up_to_the_32_bit_limit(excess: int) -> None:
    model = small_latent_model()
    old, bias = (model.networks[f"entropy.1.{what}"] for what in ("weight", "bias"))
    most = (2**31 - 2 ** (MAX_EXPONENT + VALUE_BITS) - 1) // MAX_VALUE
    values = np.zeros_like(old.values)
    values[:, 0] = most // len(values)
    values[0, 0] += most % len(values) + excess
    values[1::2] *= -1
    changed = {
        "entropy.1.weight": Quantized(values, old.exponent),
        "entropy.1.bias": Quantized(np.zeros_like(bias.values), bias.exponent),
    }
    with pytest.raises(FormatError, match="32 bits") if excess else contextlib.nullcontext():
        replace(model, networks={**model.networks, **changed})


def test_largest_networks_on_the_largest_picture_stay_within_max_products() -> None:
    """No file has to be refused because its networks are too large."""
    sizes = {"synthesis_width": MAX_HIDDEN_WIDTH, "entropy_width": MAX_HIDDEN_WIDTH}
    shape = ModelShape(
        2**14, 2**14, 4, MAX_LEVELS, **sizes, has_filter=True, extra_grids=MAX_EXTRA_GRIDS
    )
    weights = sum(math.prod(size) for size in shape.tensor_shapes.values())
    assert shape.height * shape.width == container.MAX_PIXELS
    assert weights * container.MAX_PIXELS <= MAX_PRODUCTS
