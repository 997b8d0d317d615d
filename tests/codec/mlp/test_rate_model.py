"""How large a network is for a price, a size or a quality."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from imgmlp.codec.mlp import rate_model
from imgmlp.codec.mlp.rate_model import Known


@pytest.mark.parametrize("weights", [400, 3_000, 22_000, 300_000])
def test_a_network_has_about_the_weights_wanted(weights: int) -> None:
    for channels in (1, 3, 4):
        shape = rate_model.network_shape(weights, channels)
        assert shape.parameters == pytest.approx(weights, rel=0.15)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_there_are_few_networks_and_one_is_hardly_larger_than_the_next(channels: int) -> None:
    found = [rate_model.network_shape(80 * 1.01**n, channels) for n in range(800)]
    assert len(set(found)) < 60
    sizes = [shape.parameters for shape in dict.fromkeys(found)]
    assert sizes[0] < 150
    assert all(1 < b / a < 1.5 for a, b in pairwise(sizes))
    assert all(b / a < 1.26 for a, b in pairwise(sizes) if a > 5_000)


def test_a_network_of_as_many_weights_as_one_has_is_that_one() -> None:
    found = {rate_model.network_shape(80 * 1.05**n, 3) for n in range(160)}
    assert all(rate_model.network_shape(one.parameters, 3) == one for one in found)


def test_few_weights_make_fewer_layers() -> None:
    shapes = [rate_model.network_shape(n, 3) for n in (400, 900, 1_100, 22_000)]
    assert [shape.hidden for shape in shapes] == [3, 3, 5, 5]


def test_networks_stay_within_the_format() -> None:
    assert rate_model.network_shape(0, 1).width == 4
    assert rate_model.network_shape(1e9, 4).width == 1024


def test_a_quality_takes_the_weights_that_what_is_known_leads_to() -> None:
    one = Known(1000, 30.0)
    assert rate_model.weights_for(30.0, [one]) == 1000
    two = [one, Known(2000, 33.0)]
    assert rate_model.weights_for(34.5, two) == pytest.approx(2000 * 2**0.5)
    assert rate_model.weights_for(27.0, two) == pytest.approx(500)
    assert rate_model.weights_for(31.5, two) == pytest.approx(1000 * 2**0.5)


def test_chance_does_not_hide_the_fewest_weights_that_are_enough() -> None:
    known = [Known(8000, 44.5), Known(1000, 40.0), Known(4000, 44.6)]
    assert 1000 < rate_model.weights_for(44.0, known) < 4000


def test_runs_that_say_nonsense_are_not_believed() -> None:
    same = [Known(1000, 30.0), Known(2000, 29.0)]
    assert 500 > rate_model.weights_for(25.0, same) > 10


def test_a_price_is_paid_as_long_as_more_weights_save_more_than_they_cost() -> None:
    """Against the least of squared error + price * bits a pixel, over all numbers of weights."""
    known, price, pixels = [Known(1000, 30.0), Known(2000, 33.0)], 2e-3, 16_384

    def cost(weights: float) -> float:
        error = 10 ** (-(30 + 3 * math.log2(weights / 1000)) / 10)
        return error + price * rate_model.BITS * weights / pixels

    best = min((100 * 1.01**n for n in range(800)), key=cost)
    found = rate_model.weights_worth(price, pixels, known)
    assert found == pytest.approx(best, rel=0.02)
    quality = 30 + 3 * math.log2(found / 1000)
    assert rate_model.price_of(found, quality, pixels, known) == pytest.approx(price)


def test_more_steps_bring_less_and_less() -> None:
    gains = [rate_model.more_steps(2.0, n) for n in range(20)]
    assert gains[0] == 0
    assert all(b > a for a, b in pairwise(gains))
    assert gains[1] < 2 < gains[-1] < 4
    assert rate_model.more_steps(-1.0, 3) == 0
