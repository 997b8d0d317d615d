"""The choice of step sizes of the format for trained parameters."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.bitstream.quantize import STEP_SIZES, step_size
from imgmlp.codec.mlp import bit_allocation
from imgmlp.codec.mlp.bit_allocation import MIN_BUDGET_USE, Choice
from imgmlp.codec.mlp.integer_inference import MAX_EXACT_WEIGHT_SUM, is_exact
from imgmlp.codec.mlp.network import MAX_LAST_LAYER_STEP, Shape

SHAPE = Shape(4, 2, 16, 3)


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.laplace(0, 0.2, size).astype(np.float32) for size in SHAPE.shapes]


LEARNED = np.array([-6, -8, -5.9, -8, -6.2, -12], np.float32)


def test_step_sizes_without_a_budget_are_the_nearest_to_the_learned_ones() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), LEARNED)
    deviations = np.abs(np.log2([step_size(c.step) for c in choices]) - LEARNED[::2])
    assert deviations.max() < 0.17
    assert [c.finer for c in choices] == [2, 2, 6]


@pytest.mark.parametrize("fraction", [0.5, 0.8, 0.95, 1.2, 1.5])
def test_bit_budget_is_kept_and_used(fraction: float) -> None:
    free = bit_allocation.total_bits(arrays(), bit_allocation.choose_step_sizes(arrays(), LEARNED))
    choices = bit_allocation.choose_step_sizes(arrays(), LEARNED, fraction * free)
    assert (
        MIN_BUDGET_USE * 0.97
        <= bit_allocation.total_bits(arrays(), choices) / (fraction * free)
        <= 1
    )


def test_impossible_bit_budget_gives_the_coarsest_step_sizes() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), LEARNED + 8, 1.0)
    assert [c.step for c in choices] == [STEP_SIZES - 1, STEP_SIZES - 1, MAX_LAST_LAYER_STEP]


def test_network_has_the_rounded_arrays() -> None:
    choices = bit_allocation.choose_step_sizes(arrays(), LEARNED)
    network = bit_allocation.network(arrays(), choices, SHAPE)
    floats = [array for layer in network.layers for array in layer.floats()]
    sizes = np.exp2(bit_allocation.log_sizes(choices))
    for array, rounded, size in zip(arrays(), floats, sizes, strict=True):
        assert np.abs(array - rounded).max() <= size * 0.501


def test_step_sizes_of_hidden_layers_grow_until_the_cut_is_exact() -> None:
    choices = [Choice(45, 0)] * 3
    free = bit_allocation.network(arrays(), choices, SHAPE)
    assert not is_exact(free.layers[1].weights, SHAPE.width)
    network = bit_allocation.network(arrays(), choices, SHAPE, cut=SHAPE.width)
    assert is_exact(network.layers[1].weights, SHAPE.width)
    assert [layer.step for layer in network.layers] == [45, network.layers[1].step, 45]
    use = np.abs(network.layers[1].weights).sum(0).max() / MAX_EXACT_WEIGHT_SUM
    assert use > 0.8  # no coarser than necessary


def test_step_sizes_grow_until_sums_do_not_overflow() -> None:
    large = [array * 100 for array in arrays()]
    network = bit_allocation.network(large, [Choice(20, 0)] * 3, SHAPE)
    assert all(layer.step > 20 for layer in network.layers)
