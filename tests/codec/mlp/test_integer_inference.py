"""Decoding in integers: against plain Python, against floats, and on every mapping."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping
from networks import small_network

from imgmlp.codec.bitstream.quantize import step_parts
from imgmlp.codec.mlp import integer_inference
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.bit_allocation import network as rounded
from imgmlp.codec.mlp.integer_inference import BYTE_PARTS
from imgmlp.codec.mlp.network import MAX_ACTIVATION, Layer, Network, Shape
from imgmlp.engine import Tensor, compile, open_device

WIDTH, HEIGHT = 13, 9


def plain_rescale(total: int, step: int, finer: int) -> int:
    m, e = step_parts(step)
    return ((total + 4 >> 3) * m + (1 << e - 4 - finer)) >> e - 3 - finer


def plain_activate(x: int) -> int:
    x = max(-MAX_ACTIVATION, min(MAX_ACTIVATION, x))
    u = max(0, min(4096, x + 2048))
    gate = (u * u >> 12) * (12288 - 2 * u) >> 12
    return x * gate + 2048 >> 12


def plain_pixel(network: Network, column: int, row: int) -> list[int]:
    """The pixel by docs/format-imlp.md, in Python's integers."""
    count, values = network.shape.frequencies, []
    for position, samples in ((column, WIDTH), (row, HEIGHT)):
        phases = [
            (2 * position + 1) * f >> 1 for f in integer_inference.frequencies(count, samples)
        ]
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


def test_decoding_uses_no_matrix_units_as_they_round_factors() -> None:
    device = open_device("numpy:uops-group")
    device.has_matrix_units = True
    piece = integer_inference._Piece(small_network(), (512, 512), device, 512, 512)
    assert "mma.sync" not in piece.program.stages.source
    plain = compile(piece._step, device)
    assert "mma.sync" in plain.stages.source


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_every_mapping_gives_the_pixels_of_plain_python_integers(
    mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 40)  # pieces that reach past the edge
    network = small_network()
    pixels = integer_inference.decode(network, WIDTH, HEIGHT, open_mapping(mapping))
    expected = [[plain_pixel(network, x, y) for x in range(WIDTH)] for y in range(HEIGHT)]
    assert pixels.tolist() == expected
    assert pixels.std() > 10


@pytest.mark.parametrize("layer", range(3))
def test_network_with_a_layer_of_zeros_gives_one_colour(layer: int) -> None:
    """The position of a pixel then has no influence."""
    network, layers = small_network(), list(small_network().layers)
    none = np.zeros_like(layers[layer].weights)
    layers[layer] = replace(layers[layer], weights=none)
    network = Network(network.shape, tuple(layers))
    device = open_device("numpy")
    pixels = integer_inference.decode(network, WIDTH, HEIGHT, device)
    expected = integer_inference.Decoder(WIDTH, HEIGHT, device).decode(network)
    np.testing.assert_array_equal(pixels, expected)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) == 1


def larger_weights(network: Network, times: int, layer: int) -> Network:
    """The same network with step sizes that are finer by a power of two in one of its layers."""
    layers, old = list(network.layers), network.layers[layer]
    step = old.step - 4 * (times.bit_length() - 1)
    layers[layer] = Layer(old.weights * times, old.biases * times, step, old.finer)
    return Network(network.shape, tuple(layers))


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize(("times", "cut"), [(1, 8), (16, BYTE_PARTS)])
def test_large_weights_have_another_cut_and_exact_pixels(
    mapping: str, times: int, cut: int
) -> None:
    network = larger_weights(small_network(width=24), times, 1)
    assert integer_inference.choose_cut(network, network.shape) == cut
    pixels = integer_inference.decode(network, WIDTH, HEIGHT, open_mapping(mapping))
    expected = [[plain_pixel(network, x, y) for x in range(WIDTH)] for y in range(HEIGHT)]
    assert pixels.tolist() == expected


@pytest.mark.parametrize("width", [4, 32, 46, 65, 112])
def test_networks_of_a_shape_with_weights_of_six_bits_have_the_same_cut(
    width: int,
) -> None:
    shape, generator = Shape(16, 5, width, 3), np.random.default_rng(width)
    cuts = set()
    for deviation in (0.0, 2.0, 8.0, 16.0):
        arrays = [generator.normal(0.0, deviation * 2**-9, size) for size in shape.shapes]
        cuts.add(integer_inference.choose_cut(rounded(arrays, [Choice(52, 0)] * 6, shape), shape))
    (cut,) = cuts
    assert len(integer_inference._spans(width, cut)) == -(
        -width // integer_inference.INPUTS_PER_SPAN
    )


def test_decoder_compiles_again_only_if_its_cut_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    decoder = integer_inference.Decoder(WIDTH, HEIGHT, device)
    compiled_cuts: list[int] = []
    init = integer_inference._Piece.__init__

    def counted(piece: integer_inference._Piece, *args: Any) -> None:
        init(piece, *args)
        compiled_cuts.append(piece.cut)

    monkeypatch.setattr(integer_inference._Piece, "__init__", counted)
    small, large = small_network(width=24), larger_weights(small_network(width=24), 16, 1)
    for one in (small, small, large, small):  # byte parts serve the small one as well
        alone = integer_inference.decode(one, WIDTH, HEIGHT, device)
        compiled_cuts.pop()
        assert np.array_equal(decoder.decode(one), alone)
    assert compiled_cuts == [8, BYTE_PARTS]


MAX_SUM = integer_inference.MAX_EXACT_WEIGHT_SUM


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize(
    ("total", "cut"), [(MAX_SUM, 64), (MAX_SUM + 1, 32), (4 * MAX_SUM, 16), (2**16 - 2, BYTE_PARTS)]
)
def test_sums_are_exact_up_to_the_bounds_of_their_cut(mapping: str, total: int, cut: int) -> None:
    """Magnitudes of weights add up to `total`; activations are extreme or random."""
    generator = np.random.default_rng(total)
    sizes = np.diff(np.arange(65) * total // 64)  # even, so that all spans have the same sum
    weights = sizes[:, None] * generator.choice([-1, 1], (64, 16))
    weights[:, 0] = np.abs(weights[:, 0])
    extremes = generator.choice([integer_inference.MIN_ACTIVATION, MAX_ACTIVATION], (40, 64))
    extremes[0], extremes[1] = integer_inference.MIN_ACTIVATION, MAX_ACTIVATION
    values = np.concatenate(
        [
            extremes,
            generator.integers(integer_inference.MIN_ACTIVATION, MAX_ACTIVATION + 1, (40, 64)),
        ]
    )
    layer = Layer(weights.astype(np.int32), np.arange(16, dtype=np.int32), 40, 0)
    cuts = 64, 32, 24, 16
    exact = [one for one in cuts if integer_inference.is_exact(layer.weights, one)]
    assert exact == [one for one in cuts if one <= cut]
    device = open_mapping(mapping)
    product = integer_inference.Product(layer, cut, device, "")
    sums = product(Tensor(values.astype(np.int32), device)).numpy()
    assert sums.tolist() == (values @ weights + layer.bias_sums()).tolist()


@pytest.mark.parametrize("inputs", [1, 7, 64, 100])
def test_spans_of_an_exact_cut_hold_every_input_once_within_the_bounds(inputs: int) -> None:
    generator = np.random.default_rng(inputs)
    for size in (2, 10, 20, 50, 100, 400, 5000):
        weights = generator.integers(-size, size + 1, (inputs, 5))
        exact = (cut for cut in (104, 56, 40, 32) if integer_inference.is_exact(weights, cut))
        spans = integer_inference._spans(inputs, cut) if (cut := next(exact, 0)) else []
        held = [n for span in spans for n in range(inputs)[span]]
        assert held == list(range(inputs)) or not spans
        largest_sum = max((np.abs(weights[span]).sum(0).max() for span in spans), default=0)
        least, middle = integer_inference.MIN_ACTIVATION, integer_inference.MIDDLE_ACTIVATION
        assert largest_sum * max(MAX_ACTIVATION - middle, middle - least) <= 2**24


def test_picture_does_not_depend_on_the_size_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    network, device = small_network(1), open_device("numpy")
    whole = integer_inference.decode(network, 40, 3, device)
    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 16)
    assert (integer_inference.decode(network, 40, 3, device) == whole).all()


def test_table_holds_rounded_sines() -> None:
    exact = [round(1024 * math.sin(math.tau * n / 1024)) for n in range(1024)]
    assert integer_inference.sines().tolist() == exact


@pytest.mark.parametrize("samples", [1, 2, 7, 768, 2**28])
def test_frequencies_reach_from_half_a_cycle_per_axis_to_half_a_cycle_per_sample(
    samples: int,
) -> None:
    frequencies = np.array(integer_inference.frequencies(16, samples)) / 2**32 * samples
    expected = np.geomspace(0.5, samples / 2, 16)
    np.testing.assert_allclose(frequencies, expected, rtol=0, atol=samples / 2**32)


def test_single_frequency_is_the_lowest() -> None:
    assert integer_inference.frequencies(1, 100) == (2**31 // 100,)


def test_activation_is_its_argument_times_a_smooth_step() -> None:
    x = np.arange(-4000, 4000, dtype=np.int32)
    activations = integer_inference.activate(Tensor(x, open_device("numpy"))).numpy()
    u = np.clip(x / 4096 + 0.5, 0, 1)
    np.testing.assert_allclose(activations, x * u * u * (3 - 2 * u), atol=2.5)
    assert activations.tolist() == [plain_activate(int(v)) for v in x]


def test_activations_reach_from_their_minimum_to_their_maximum() -> None:
    x = np.arange(-MAX_ACTIVATION - 2, MAX_ACTIVATION + 3, dtype=np.int32)
    activations = integer_inference.activate(Tensor(x, open_device("numpy"))).numpy()
    assert (activations.min(), activations.max()) == (
        integer_inference.MIN_ACTIVATION,
        MAX_ACTIVATION,
    )


def test_rescaling_and_activation_do_not_overflow_at_the_bounds_of_sums() -> None:
    extreme = np.array([-(2**31) + 8, 2**31 - 9], np.int32)
    device = open_device("numpy")
    for step in (3, 67):
        scale = Tensor(integer_inference.rescaling(step, 4), device)
        rescaled = integer_inference.rescale(Tensor(extreme, device), scale).numpy().tolist()
        assert rescaled == [plain_rescale(int(v), step, 4) for v in extreme]
    assert integer_inference.levels(Tensor(extreme, device)).numpy().tolist() == [0, 255]
    activations = integer_inference.activate(Tensor(extreme, device)).numpy().tolist()
    assert activations == [0, MAX_ACTIVATION]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_decoder_gives_exact_pixels_for_one_network_after_another(mapping: str) -> None:
    device = open_mapping(mapping)
    decoder = integer_inference.Decoder(WIDTH, HEIGHT, device)
    first, other = small_network(), larger_weights(small_network(), 2, 1)
    another_first_layer = larger_weights(first, 2, 0)
    wider = larger_weights(small_network(width=24), 16, 1)
    for network in (first, another_first_layer, other, wider, first):
        alone = integer_inference.decode(network, WIDTH, HEIGHT, device)
        assert np.array_equal(decoder.decode(network), alone)
