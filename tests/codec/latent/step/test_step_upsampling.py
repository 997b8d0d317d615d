"""Upsampling in the training step: values, gradients and repeated edges."""

from __future__ import annotations

import numpy as np
import pytest
from latent_steps import dot, draw

from imgmlp.codec.latent.step import upsampling
from imgmlp.engine import Tensor, open_device


@pytest.mark.parametrize(
    ("axis", "size", "first"),
    [(1, 14, 0), (1, 13, 0), (2, 10, 0), (2, 9, 0), (2, 16, 0), (1, 6, 4), (1, 5, 4), (1, 10, 2),
     (2, 2, 4), (2, 1, 4), (2, 8, 2), (2, 3, 8)],
)  # fmt: skip
def test_gradient_of_axis_upsampling_is_its_transpose(axis: int, size: int, first: int) -> None:
    """Upsampling is linear in values and taps, so <g, y> = <dx, x> = <dtaps, taps>."""
    device = open_device("numpy")
    x, taps = Tensor(draw(2, 7, 5), device), Tensor(draw(4, seed=1), device)
    y = upsampling.AxisUpsampling.apply(x, taps, axis, size, first)
    every = upsampling.AxisUpsampling.apply(x, taps, axis, first + size, 0).numpy()
    assert np.array_equal(y.numpy(), every[(slice(None),) * axis + (slice(first, None),)])
    g = draw(*y.shape, seed=2)
    by_x, by_taps = (y * Tensor(g, device)).sum().gradient([x, taps])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_taps.numpy(), taps.numpy()), rel=1e-4)


@pytest.mark.parametrize("size", [(7, 5), (1, 2), (3, 1)])
@pytest.mark.parametrize("less", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("halo", [0, 2])
def test_upsampling_by_tables_equals_one_axis_after_the_other(
    size: tuple[int, int], less: tuple[int, int], halo: int
) -> None:
    device = open_device("numpy")
    size = size[0] + 2 * halo, size[1] + 2 * halo
    x, taps = Tensor(draw(2, *size), device), Tensor(draw(4, seed=1), device)
    height, width = (2 * (n - halo) - m for n, m in zip(size, less, strict=True))
    g, results = Tensor(draw(2, height, width, seed=2), device), list[list[Tensor]]()
    expected = height + 2 * halo, width + 2 * halo
    known = upsampling.upsampling_tables(2, [(0, n) for n in size], expected)
    tables = upsampling.Tables(*(Tensor(values, device) for values in known))
    for those in (None, tables):
        y = upsampling.upsample(x, taps, height, width, those, halo)
        results.append([y, *(y * g).sum().gradient([x, taps])])
    for one, both in zip(*results, strict=True):
        assert np.allclose(one.numpy(), both.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    ("first", "end"), [(None, 1), (None, 3), (None, 4), (None, 5), (0, 5), (1, 2), (3, 4), (4, 5)]
)
@pytest.mark.parametrize("form", ["numpy", "cpu"])
def test_edge_replication_repeats_first_and_last_values(
    form: str, axis: int, first: int | None, end: int
) -> None:
    device = open_device(form)
    values = draw(2, 5, 5)
    x, ends = Tensor(values, device), Tensor(np.array([end], np.int32), device)
    begin = None if first is None else Tensor(np.array([first], np.int32), device)
    y = upsampling.EdgeReplication.apply(x, begin, ends, axis)
    expected = np.take(values, np.clip(np.arange(5), first or 0, end - 1), axis)
    beyond = [n for n in range(5) if n >= end + 2 or n < (first or 0) - 2]
    expected[(slice(None),) * axis + (beyond,)] = 0
    assert np.array_equal(y.numpy(), expected)
    g = draw(*y.shape, seed=2)
    (by_x,) = (y * Tensor(g, device)).sum().gradient([x])
    assert dot(g, expected) == pytest.approx(dot(by_x.numpy(), values), rel=1e-4)
