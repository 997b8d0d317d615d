"""A small network of whole numbers that several tests decode."""

from __future__ import annotations

import numpy as np

from imgmlp.codec.bitstream.quantize import nearest_step
from imgmlp.codec.mlp.network import LAST_STEP, Layer, Network, Shape


def small_network(channels: int = 3, width: int = 8, frequencies: int = 3) -> Network:
    """A network of random weights whose pictures have some contrast."""
    generator = np.random.default_rng(7)
    shape = Shape(frequencies, 2, width, channels)
    layers = []
    for inputs, outputs in zip(shape.sizes, shape.sizes[1:], strict=False):
        deviation = np.sqrt(2 / inputs)
        weights = np.rint(generator.normal(0, 60, (inputs, outputs))).astype(np.int32)
        biases = np.rint(generator.normal(0, 40, outputs)).astype(np.int32)
        layers.append(Layer(weights, biases, nearest_step(deviation / 60, LAST_STEP), 2))
    return Network(shape, tuple(layers))
