"""The bytes of a network, and the limits that its constructor checks."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from networks import small_network

from imgmlp.codec.bitstream.quantize import STEP_SIZES
from imgmlp.codec.mlp import network, rate_model
from imgmlp.codec.mlp.network import MAX_LAST_LAYER_STEP, Layer, Network
from imgmlp.errors import FormatError


def same(a: Network, b: Network) -> bool:
    pairs = zip(a.layers, b.layers, strict=True)
    return a.shape == b.shape and all(
        (x.weights == y.weights).all()
        and (x.biases == y.biases).all()
        and (x.step, x.finer) == (y.step, y.finer)
        for x, y in pairs
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_written_network_is_read_back(channels: int) -> None:
    written = small_network(channels)
    head, coded = written.sections()
    assert len(head) == 4 + 4 * 3
    assert same(written, network.parse(head, coded, 100, channels))
    assert written.sections() == (head, coded)


def test_floats_are_the_integers_times_their_step_sizes() -> None:
    layer = Layer(np.array([[3, -5]], np.int32), np.array([4, 8], np.int32), 16, 2)
    weights, biases = layer.floats()
    assert weights.tolist() == [[3 * 2**-18, -5 * 2**-18]]
    assert biases.tolist() == [2**-18, 2 * 2**-18]


def test_layers_whose_sums_could_overflow_are_refused() -> None:
    biases = np.zeros(2, np.int32)
    Layer(np.full((65, 2), 1000, np.int32), biases, 40, 0)
    with pytest.raises(FormatError, match="add up to 66,000"):
        Layer(np.full((66, 2), -1000, np.int32), biases, 40, 0)
    with pytest.raises(FormatError, match="32 bits"):
        Layer(np.full((65, 2), 1000, np.int32), np.array([0, 2**18], np.int32), 40, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({0: 0}, "0 frequencies"),
        ({0: 65}, "65 frequencies"),
        ({1: 17}, "hidden layers"),
        ({1: 1}, "section has"),
        ({2: 255}, "wide"),
        ({3: 0}, "0 wide"),
        ({4: STEP_SIZES}, "no step size"),
        ({5: 11}, "finer"),
        ({6: 88}, "a distribution that does not exist"),
        ({12: MAX_LAST_LAYER_STEP + 1}, "too coarse"),
        ({3: 9}, "damaged"),
    ],
)
def test_damaged_network_section_is_refused(change: dict[int, int], problem: str) -> None:
    head, coded = small_network().sections()
    damaged = bytearray(head)
    for at, value in change.items():
        damaged[at] = value
    with pytest.raises(FormatError, match=problem):
        network.parse(bytes(damaged), coded, 100, 3)


def test_too_slow_network_is_refused_before_its_weights_are_read() -> None:
    head = bytes([64, 16, 4, 0]) + bytes(4 * 17)
    with pytest.raises(FormatError, match="too large to decode"):
        network.parse(head, b"", 2**28, 3)


@pytest.mark.parametrize(("hidden", "good"), [(8, True), (9, False)])
def test_network_far_larger_than_those_of_encoders_is_refused(hidden: int, good: bool) -> None:
    """It is refused before its weights are read, as a small file may claim millions of them."""
    head = bytes([64, hidden, 4, 0]) + bytes(4 * (hidden + 1))
    with pytest.raises(FormatError, match="cannot be in" if good else "too large to decode"):
        network.parse(head, b"", 1, 3)
    for channels in (1, 2, 3, 4):
        largest = max(shape.parameters for shape in rate_model.shapes(channels))
        assert largest < 0.6 * network.MAX_PARAMETERS


@pytest.mark.parametrize(("hidden", "width"), [(16, 64), (8, 1024)])
def test_parsing_a_small_file_takes_little_memory(hidden: int, width: int) -> None:
    head = bytes([64, hidden, *width.to_bytes(2, "big")]) + bytes(4 * (hidden + 1))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            network.parse(head, bytes(40), 100, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 3, 15])
def test_short_network_section_is_refused(length: int) -> None:
    head, coded = small_network().sections()
    with pytest.raises(FormatError, match="network section"):
        network.parse(head[:length], coded, 100, 3)


def test_layer_with_a_weight_beyond_the_format_is_refused() -> None:
    weights, largest = np.ones((4, 3), np.int32), network.MAX_WEIGHT - 1
    for good, bias in ((True, largest), (True, -largest), (False, largest + 1)):
        biases = np.array([0, 0, bias], np.int32)
        with nullcontext() if good else pytest.raises(FormatError, match="a weight is too large"):
            network.Layer(weights, biases, 3, network.MAX_FINER)
