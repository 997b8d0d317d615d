"""Compact files at any size, in floats."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import open_mapping
from networks import small_network

from imgmlp.codec.mlp import float_render, integer_inference
from imgmlp.engine import open_device


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_rendering_at_the_original_size_is_near_the_exact_picture(mapping: str) -> None:
    network, device = small_network(), open_mapping(mapping)
    exact = integer_inference.decode(network, 21, 17, open_device("numpy"))
    rendered = float_render.render(network, (21, 17), (21, 17), device)
    assert rendered.dtype == np.uint8
    assert np.abs(rendered.astype(int) - exact).max() <= 4
    assert np.abs(rendered.astype(int) - exact).mean() < 1


def test_every_third_pixel_of_three_times_the_size_is_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(float_render, "DECODED_PIXELS", 100)  # pieces that reach past the edge
    network, device = small_network(4), open_device("numpy")
    small = float_render.render(network, (11, 7), (11, 7), device)
    large = float_render.render(network, (11, 7), (33, 21), device)
    assert large.shape == (21, 33, 4)
    assert np.abs(large[1::3, 1::3].astype(int) - small).max() <= 1
