"""The network of an .imlp file: its integers and their bytes (docs/format-imlp.md).

Sections N and W describe it completely. Its constructors check everything that decoding relies on:
sizes, and the bounds of 32-bit sums. This module writes and reads networks, but does not compute
with them; integer_inference.py does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import code_lengths, range_coder
from imgmlp.codec.bitstream.quantize import STEP_SIZES, step_size
from imgmlp.errors import check_format

MAX_FREQUENCIES = 64  # along an axis
MAX_HIDDEN_LAYERS = 16
MAX_WIDTH = 1024  # of a hidden layer
MAX_FINER = 10  # bits by which biases may be finer than the weights of their layer
MAX_WEIGHT = 2**20  # magnitudes of weights and biases are below it
MAX_PARAMETERS = 2**23  # twice as many as the largest network has that any encoder makes
MAX_PRODUCTS = 2**44  # multiplications for a whole picture

VALUE_BITS = 10  # fractional bits of features and activations
MAX_ACTIVATION = 2**15 - 1
MAX_LAST_LAYER_STEP = (
    67  # number of the coarsest step size of the last layer, whose outputs are finer
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """The integers of a layer.

    Weights are multiples of a step size, biases of that step size / 2**finer. Raises FormatError
    unless every sum that decoding computes of them fits in 32 bits.
    """

    weights: Array  # int32 [inputs, outputs]
    biases: Array  # int32 [outputs]
    step: int  # number of the weights' step size
    finer: int

    def __post_init__(self) -> None:
        check_format(0 <= self.step < STEP_SIZES, f"{self.step} is no step size")
        check_format(
            0 <= self.finer <= MAX_FINER, f"a bias is {self.finer} bits finer than a weight"
        )
        magnitudes = np.abs(self.weights.astype(np.int64))
        largest = max(int(magnitudes.max()), int(np.abs(self.biases.astype(np.int64)).max()))
        check_format(largest < MAX_WEIGHT, "a weight is too large")
        sums = magnitudes.sum(0)  # [outputs]
        largest_sum = int(sums.max())
        # Below this limit, sums with bytes of activations stay below 2**24 (integer_inference).
        check_format(largest_sum < 2**16 - 1, f"weights of one value add up to {largest_sum:,}")
        bounds = sums * (MAX_ACTIVATION + 1) + np.abs(self.bias_sums())
        check_format(int(bounds.max()) < 2**31 - 8, "sums of the network need more than 32 bits")

    def bias_sums(self) -> Array:
        """int64 [outputs]: biases in the unit of the sums, 2**-10 of the weights' step size."""
        return self.biases.astype(np.int64) << (VALUE_BITS - self.finer)

    def floats(self) -> tuple[Array, Array]:
        """float32 weights [inputs, outputs] and biases [outputs]."""
        size = step_size(self.step)
        weights = (self.weights * size).astype(np.float32)
        return weights, (self.biases * (size / 2**self.finer)).astype(np.float32)


@dataclass(frozen=True)
class Shape:
    """Sizes of a network: frequencies along an axis, hidden layers of one width, channels."""

    frequencies: int
    hidden: int
    width: int
    channels: int

    def __post_init__(self) -> None:
        is_allowed = 1 <= self.frequencies <= MAX_FREQUENCIES
        check_format(is_allowed, f"the network has {self.frequencies} frequencies")
        check_format(
            1 <= self.hidden <= MAX_HIDDEN_LAYERS, f"the network has {self.hidden} hidden layers"
        )
        check_format(1 <= self.width <= MAX_WIDTH, f"the network's layers are {self.width} wide")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of inputs of each layer, and of outputs of the last one."""
        return (4 * self.frequencies, *[self.width] * self.hidden, self.channels)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of W0, b0, W1, b1 ..., in the order in which they are coded."""
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return tuple(shape for a, b in pairs for shape in ((a, b), (b,)))

    @cached_property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes))

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))


@dataclass(frozen=True, eq=False)
class Network:
    """A picture as the integers of a network."""

    shape: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        last = self.layers[-1].step
        check_format(last <= MAX_LAST_LAYER_STEP, f"step {last} is too coarse for the last layer")

    @property
    def is_uniform(self) -> bool:
        """Whether all pixels have the same colour, since a layer has no weights but 0."""
        return any(not layer.weights.any() for layer in self.layers)

    def sections(self) -> tuple[bytes, bytes]:
        """The data of sections N and W."""
        shape, symbols = self.shape, [array.ravel() for array in self._arrays()]
        scales = [code_lengths.best_distribution(part)[0] for part in symbols]
        head = bytes([shape.frequencies, shape.hidden, *shape.width.to_bytes(2, "big")])
        for n, layer in enumerate(self.layers):
            head += bytes([layer.step, layer.finer, *scales[2 * n : 2 * n + 2]])
        scale_of_symbol = np.repeat(np.array(scales), [part.size for part in symbols])
        return head, range_coder.encode(np.concatenate(symbols), scale_of_symbol)

    def _arrays(self) -> list[Array]:
        return [array for layer in self.layers for array in (layer.weights, layer.biases)]


def are_equal(one: Network, other: Network) -> bool:
    """Whether two networks have the same integers."""
    pairs = zip(one.layers, other.layers, strict=False)
    return one.shape == other.shape and all(
        (a.step, a.finer) == (b.step, b.finer)
        and np.array_equal(a.weights, b.weights)
        and np.array_equal(a.biases, b.biases)
        for a, b in pairs
    )


def parse(head: bytes, coded: bytes, pixels: int, channels: int) -> Network:
    """The network in sections N and W of a picture. Raises FormatError."""
    check_format(len(head) >= 4, "the network section is too short")
    shape = Shape(head[0], head[1], int.from_bytes(head[2:4], "big"), channels)
    layer_count = shape.hidden + 1
    check_format(len(head) == 4 + 4 * layer_count, f"the network section has {len(head)} bytes")
    is_small = shape.parameters <= min(MAX_PARAMETERS, MAX_PRODUCTS // pixels)
    check_format(is_small, f"network {shape} is too large to decode")
    rows = [head[begin : begin + 4] for begin in range(4, len(head), 4)]
    scales = [scale for row in rows for scale in row[2:]]
    decoder = range_coder.Decoder(coded)
    arrays = [  # read one by one, so that a damaged one is refused before the rest takes memory
        decoder.read(math.prod(size), scale).astype(np.int32).reshape(size)
        for size, scale in zip(shape.shapes, scales, strict=True)
    ]
    decoder.finish()
    layers = zip(arrays[::2], arrays[1::2], rows, strict=True)
    return Network(shape, tuple(Layer(w, b, row[0], row[1]) for w, b, row in layers))
