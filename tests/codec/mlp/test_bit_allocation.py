"""Steps of the format for what training found."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.bitstream.quantize import STEPS, step_size
from imgmlp.codec.mlp import bit_allocation
from imgmlp.codec.mlp.bit_allocation import MIN_BUDGET_USE, Choice
from imgmlp.codec.mlp.integer_inference import LARGEST_SUM, is_exact
from imgmlp.codec.mlp.network import LAST_STEP, Shape

SHAPE = Shape(4, 2, 16, 3)


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.laplace(0, 0.2, size).astype(np.float32) for size in SHAPE.shapes]


WISHED = np.array([-6, -8, -5.9, -8, -6.2, -12], np.float32)


def test_without_a_budget_steps_are_the_nearest() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), WISHED)
    off = np.abs(np.log2([step_size(c.step) for c in choices]) - WISHED[::2])
    assert off.max() < 0.17
    assert [c.finer for c in choices] == [2, 2, 6]


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 1.2, 1.5])
def test_a_budget_is_kept_and_used(share: float) -> None:
    free = bit_allocation.total_bits(arrays(), bit_allocation.choose_step_sizes(arrays(), WISHED))
    choices = bit_allocation.choose_step_sizes(arrays(), WISHED, share * free)
    assert (
        MIN_BUDGET_USE * 0.97 <= bit_allocation.total_bits(arrays(), choices) / (share * free) <= 1
    )


def test_a_budget_that_cannot_be_kept_gives_the_coarsest_steps() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), WISHED + 8, 1.0)
    assert [c.step for c in choices] == [STEPS - 1, STEPS - 1, LAST_STEP]


def test_a_network_is_made_of_the_rounded_arrays() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), WISHED)
    found = bit_allocation.network(arrays(), choices, SHAPE)
    floats = [array for layer in found.layers for array in layer.floats()]
    sizes = np.exp2(bit_allocation.log_sizes(choices))
    for array, made, size in zip(arrays(), floats, sizes, strict=True):
        assert np.abs(array - made).max() <= size * 0.501


def test_steps_of_hidden_layers_grow_where_a_cut_would_not_be_exact() -> None:
    choices = [Choice(45, 0)] * 3
    free = bit_allocation.network(arrays(), choices, SHAPE)
    assert not is_exact(free.layers[1].weights, SHAPE.width)
    found = bit_allocation.network(arrays(), choices, SHAPE, cut=SHAPE.width)
    assert is_exact(found.layers[1].weights, SHAPE.width)
    assert [layer.step for layer in found.layers] == [45, found.layers[1].step, 45]
    share = np.abs(found.layers[1].weights).sum(0).max() / LARGEST_SUM
    assert share > 0.8  # no coarser than it must be


def test_steps_grow_where_sums_would_overflow() -> None:
    large = [array * 100 for array in arrays()]
    found = bit_allocation.network(large, [Choice(20, 0)] * 3, SHAPE)
    assert all(layer.step > 20 for layer in found.layers)
