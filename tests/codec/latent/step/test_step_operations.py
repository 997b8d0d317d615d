"""Operations of the training step and their gradients: convolutions, bits and contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from latent_steps import HEIGHT, WIDTH, dot, draw

from imgmlp.codec.latent.plane import Extent, Plane
from imgmlp.codec.latent.step import operations
from imgmlp.engine import Tensor, open_device


def test_gradient_of_convolution_is_its_transpose() -> None:
    device, plane = open_device("numpy"), Plane.of(HEIGHT, WIDTH, 3)
    x = Tensor(draw(3, plane.pixels), device)
    weights = Tensor(draw(27, 3, seed=1), device)
    y = operations.Convolution.apply(x, weights, plane, None)
    g = draw(*y.shape, seed=2)
    by_x, by_weights = (y * Tensor(g, device)).sum().gradient([x, weights])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_weights.numpy(), weights.numpy()), rel=1e-4)


def test_filter_equals_convolution_of_one_channel() -> None:
    device, plane = open_device("numpy"), Plane.of(HEIGHT, WIDTH, 3)
    values = draw(1, plane.pixels) * np.resize(np.arange(plane.pitch) < WIDTH, plane.pixels)
    x, weights = Tensor(values, device), Tensor(draw(9, seed=1), device)
    g, results = Tensor(draw(1, plane.pixels, seed=2), device), list[list[Tensor]]()
    for y in (
        operations.Filter.apply(x, weights, plane),
        operations.Convolution.apply(x, weights.reshape(9, 1), plane, None),
    ):
        results.append([y, *(y * g).sum().gradient([x, weights])])
    for one, other in zip(*results, strict=True):
        assert np.allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_of_bits_match_finite_differences() -> None:
    device = open_device("numpy")
    values = [draw(400, seed=s) * 3 for s in range(2)] + [draw(400, seed=2) * 2 + 4]
    tensors = [Tensor(v, device) for v in values]
    gradients = [g.numpy() for g in operations.Bits.apply(*tensors).sum().gradient(tensors)]

    def bits(changed: list[np.ndarray]) -> np.ndarray:
        value, mean, s = (c.astype(np.float64) for c in changed)
        scale = np.exp(np.clip(s - 4, operations.MIN_LOG_SCALE, operations.MAX_LOG_SCALE))

        def below(x: np.ndarray) -> np.ndarray:
            tail = 0.5 * np.exp(-np.abs(x - mean) / scale)
            return np.where(x < mean, tail, 1 - tail)

        return -np.log2(
            np.maximum(below(value + 0.5) - below(value - 0.5), operations.MIN_PROBABILITY)
        )

    likely = bits(values) < 12  # above, slopes vanish and `below` cancels
    for n, g in enumerate(gradients):
        step = 1e-4
        up, down = ([v + step * sign * (i == n) for i, v in enumerate(values)] for sign in (1, -1))
        differences = (bits(up) - bits(down)) / (2 * step)
        off = np.abs(g - differences)[likely] / (1e-2 + np.abs(differences[likely]))
        assert np.quantile(off, 0.97) < 0.02  # others are next to a kink


def test_context_gradients_reach_all_own_values_of_a_window() -> None:
    """Bits are computed only in rows that have such values."""
    device = open_device("numpy")
    plane = Plane.of(32, 48, 4, halo=4)
    own = Extent(plane, (32, 48), (0, 0), (32, 48), 4).value_mask().reshape(-1)
    coded = slice(plane.first_coded, plane.first_coded + plane.coded_positions)
    assert own[coded].sum() == own.sum()
    assert plane.coded_rows < plane.rows
    framed = Tensor(draw(plane.rows + 2 * operations.NEIGHBOUR_ROWS, plane.pitch), device)
    slopes = draw(operations.NEIGHBOURS, plane.coded_positions, seed=1) * own[coded]
    contexts = operations.Contexts.apply(framed, plane)
    (result,) = (contexts * Tensor(slopes, device)).sum().gradient([framed])
    expected, seen = np.zeros(framed.shape).reshape(-1), contexts.numpy()
    places = np.flatnonzero(own) + operations.NEIGHBOUR_ROWS * plane.pitch
    for k, (y, x) in enumerate((k // 7 - 3, k % 7 - 3) for k in range(operations.NEIGHBOURS)):
        users = places + y * plane.pitch + x
        of_own = slopes[k][own[coded] == 1]
        assert np.array_equal(framed.numpy().reshape(-1)[users], seen[k][own[coded] == 1])
        np.add.at(expected, users, of_own)
    assert np.allclose(result.numpy().reshape(-1)[places], expected[places], atol=1e-5)


def test_context_gradients_are_rounded_to_halves_where_products_are() -> None:
    """Each gradient is rounded before they are summed, and clamped to the largest half."""
    device = open_device("numpy")
    plane = Plane.of(9, 20, 3)
    around = plane.rows + 2 * operations.NEIGHBOUR_ROWS
    framed = Tensor(np.zeros((around, plane.pitch), np.float32), device)
    rng = np.random.default_rng(0)
    slopes = rng.uniform(-1, 1, (operations.NEIGHBOURS, plane.coded_positions)).astype(np.float32)
    slopes[:, 7] = 1e6

    def contexts_gradient(
        has_matrix_units: bool, values: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        device.has_matrix_units = has_matrix_units
        contexts = operations.Contexts.apply(framed, plane)
        (slope,) = (contexts * Tensor(values, device)).sum().gradient([framed])
        return slope.numpy()

    halves = slopes.clip(-65504, 65504).astype(np.float16).astype(np.float32)
    assert np.array_equal(contexts_gradient(True, slopes), contexts_gradient(False, halves))
    assert not np.array_equal(halves, slopes)
