"""How large a network is for a price, a size or a quality."""

from __future__ import annotations

import pytest

from imgmlp.codec.mlp import rate_model


@pytest.mark.parametrize("weights", [400, 3_000, 22_000, 300_000])
def test_a_network_has_about_the_weights_wanted(weights: int) -> None:
    for channels in (1, 3, 4):
        shape = rate_model.network_shape(weights, channels)
        assert shape.parameters == pytest.approx(weights, rel=0.1)


def test_wide_layers_are_whole_parts_of_panels() -> None:
    widths = [rate_model.network_shape(n, 3).width for n in (9_000, 22_000, 33_000, 52_500)]
    assert widths == [39, 64, 80, 104]


def test_few_weights_make_fewer_layers() -> None:
    shapes = [rate_model.network_shape(n, 3) for n in (400, 999, 1_000, 22_000)]
    assert [shape.hidden for shape in shapes] == [3, 3, 5, 5]


def test_networks_stay_within_the_format() -> None:
    assert rate_model.network_shape(0, 1).width == 4
    assert rate_model.network_shape(1e9, 4).width == 1024


def test_a_price_and_the_weights_that_it_pays_for_belong_together() -> None:
    weights = rate_model.weights_worth(1e-3, 393_216)
    assert 40_000 < weights < 60_000
    assert rate_model.first_price(weights, 393_216) == pytest.approx(0.3e-3)
