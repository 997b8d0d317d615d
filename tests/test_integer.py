"""Decoding in whole numbers: against plain Python, against floats, and on every mapping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping
from test_network import small_network

from imgmlp.codec import integer
from imgmlp.codec.network import LIMIT, Network
from imgmlp.codec.quantize import step_parts
from imgmlp.engine import Tensor, open_device

WIDTH, HEIGHT = 13, 9


def plain_rescale(total: int, step: int, finer: int) -> int:
    m, e = step_parts(step)
    return ((total + 4 >> 3) * m + (1 << e - 4 - finer)) >> e - 3 - finer


def plain_activate(x: int) -> int:
    x = max(-LIMIT, min(LIMIT, x))
    u = max(0, min(4096, x + 2048))
    share = (u * u >> 12) * (12288 - 2 * u) >> 12
    return x * share + 2048 >> 12


def plain_pixel(network: Network, column: int, row: int) -> list[int]:
    """docs/format-imlp.md, with nothing but Python's integers."""
    count, values = network.shape.frequencies, []
    for place, samples in ((column, WIDTH), (row, HEIGHT)):
        phases = [(2 * place + 1) * f >> 1 for f in integer.frequencies(count, samples)]
        for quarter in (0, 256):
            entries = [(p + 2**21 >> 22) + quarter for p in phases]
            values += [round(1024 * math.sin(math.tau * n / 1024)) for n in entries]
    for number, layer in enumerate(network.layers):
        last = number == len(network.layers) - 1
        sums = [
            sum(int(w) * v for w, v in zip(column_weights, values, strict=True)) + int(b)
            for column_weights, b in zip(layer.weights.T, layer.bias_sums(), strict=True)
        ]
        assert all(abs(s) < 2**31 for s in sums)
        values = [plain_rescale(s, layer.step, 4 if last else 0) for s in sums]
        if not last:
            values = [plain_activate(v) for v in values]
    return [max(0, min(2**14, v + 2**13)) * 255 + 2**13 >> 14 for v in values]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_every_mapping_gives_the_bits_of_plain_integers(
    mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer, "PIXELS_AT_ONCE", 40)  # pieces that reach past the edge
    network = small_network()
    pixels = integer.decode(network, WIDTH, HEIGHT, open_mapping(mapping))
    expected = [[plain_pixel(network, x, y) for x in range(WIDTH)] for y in range(HEIGHT)]
    assert pixels.tolist() == expected
    assert pixels.std() > 10


def test_the_picture_does_not_depend_on_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    network, device = small_network(1), open_device("numpy")
    whole = integer.decode(network, 40, 3, device)
    monkeypatch.setattr(integer, "PIXELS_AT_ONCE", 16)
    assert (integer.decode(network, 40, 3, device) == whole).all()


def test_the_table_holds_sines_rounded_to_whole_numbers() -> None:
    exact = [round(1024 * math.sin(math.tau * n / 1024)) for n in range(1024)]
    assert integer.sines().tolist() == exact


@pytest.mark.parametrize("samples", [1, 2, 7, 768, 2**28])
def test_frequencies_reach_from_half_a_cycle_an_axis_to_half_a_cycle_a_sample(samples: int) -> None:
    found = np.array(integer.frequencies(16, samples)) / 2**32 * samples
    expected = np.geomspace(0.5, samples / 2, 16)
    np.testing.assert_allclose(found, expected, rtol=0, atol=samples / 2**32)


def test_one_frequency_is_the_lowest() -> None:
    assert integer.frequencies(1, 100) == (2**31 // 100,)


def test_the_activation_is_a_smooth_step_times_its_argument() -> None:
    x = np.arange(-4000, 4000, dtype=np.int32)
    found = integer.activate(Tensor(x, open_device("numpy"))).numpy()
    u = np.clip(x / 4096 + 0.5, 0, 1)
    np.testing.assert_allclose(found, x * u * u * (3 - 2 * u), atol=2.5)
    assert found.tolist() == [plain_activate(int(v)) for v in x]


def test_nothing_overflows_at_the_bounds() -> None:
    extreme = np.array([-(2**31) + 8, 2**31 - 9], np.int32)
    device = open_device("numpy")
    for step in (3, 67):
        found = integer.rescale(Tensor(extreme, device), step, 4).numpy().tolist()
        assert found == [plain_rescale(int(v), step, 4) for v in extreme]
    assert integer.levels(Tensor(extreme, device)).numpy().tolist() == [0, 255]
    found = integer.activate(Tensor(extreme, device)).numpy().tolist()
    assert found == [0, LIMIT]
