"""The network of an .imlp file: whole numbers only, and their bytes (docs/format-imlp.md).

Sections N and W describe it completely. Everything that later arithmetic relies on, sizes and
the bounds of 32-bit sums, is proved here when a network is made, whoever made it. Knows how to
write and read a network, but not what it computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.bitstream.quantize import STEPS, step_size
from imgmlp.errors import check_format

MAX_FREQUENCIES = 64  # along an axis
MAX_HIDDEN = 16  # layers
MAX_WIDTH = 1024
MAX_FINER = 10  # bits by which biases may be finer than their layer's weights
MAX_WEIGHT = 2**20  # below which magnitudes of weights and biases are
MAX_PARAMETERS = 2**23  # twice what the largest network has that any encoder makes
MAX_PRODUCTS = 2**44  # multiplications of a whole picture

VALUE_BITS = 10  # of the fraction of a feature or an activation
LIMIT = 2**15 - 1  # of an activation's magnitude
LAST_STEP = 67  # the coarsest step of the last layer, whose answers are finer


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights are multiples of a step, biases of a step that is `finer` halvings smaller.

    Raises FormatError unless every sum that decoding makes of them fits in 32 bits.
    """

    weights: Array  # int32 [inputs, outputs]
    biases: Array  # int32 [outputs]
    step: int  # number of the weights' step
    finer: int

    def __post_init__(self) -> None:
        check_format(0 <= self.step < STEPS, f"{self.step} is no step size")
        check_format(
            0 <= self.finer <= MAX_FINER, f"a bias is {self.finer} bits finer than a weight"
        )
        magnitudes = np.abs(self.weights.astype(np.int64))
        largest = max(int(magnitudes.max()), int(np.abs(self.biases.astype(np.int64)).max()))
        check_format(largest < MAX_WEIGHT, "a weight is too large")
        sums = magnitudes.sum(0)  # [outputs]
        largest = int(sums.max())
        # Below it, sums with 8-bit parts of activations stay under 2**24 (integer_inference).
        check_format(largest < 2**16 - 1, f"weights of one value add up to {largest:,}")
        whole = sums * (LIMIT + 1) + np.abs(self.bias_sums())
        check_format(int(whole.max()) < 2**31 - 8, "sums of the network need more than 32 bits")

    def bias_sums(self) -> Array:
        """int64 [outputs]: biases in the unit of the sums, 2**-10 of the weights' step."""
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
        good = 1 <= self.frequencies <= MAX_FREQUENCIES
        check_format(good, f"the network has {self.frequencies} frequencies")
        check_format(1 <= self.hidden <= MAX_HIDDEN, f"the network has {self.hidden} hidden layers")
        check_format(1 <= self.width <= MAX_WIDTH, f"the network's layers are {self.width} wide")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values that enter each layer, and those that leave the last."""
        return (4 * self.frequencies, *[self.width] * self.hidden, self.channels)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of W0, b0, W1, b1 ... in the order in which they are coded."""
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return tuple(shape for a, b in pairs for shape in ((a, b), (b,)))

    @cached_property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes))

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))


@dataclass(frozen=True, eq=False)
class Network:
    """A picture as whole numbers."""

    shape: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        last = self.layers[-1].step
        check_format(last <= LAST_STEP, f"step {last} is too coarse for the last layer")

    @property
    def is_uniform(self) -> bool:
        """Whether nothing of where a pixel is reaches its colour."""
        return any(not layer.weights.any() for layer in self.layers)

    def sections(self) -> tuple[bytes, bytes]:
        """The data of sections N and W."""
        shape, numbers = self.shape, [array.ravel() for array in self._arrays()]
        chosen = [range_coder.cheapest(symbols)[0] for symbols in numbers]
        head = bytes([shape.frequencies, shape.hidden, *shape.width.to_bytes(2, "big")])
        for n, layer in enumerate(self.layers):
            head += bytes([layer.step, layer.finer, *chosen[2 * n : 2 * n + 2]])
        counts = [symbols.size for symbols in numbers]
        scales = np.repeat(np.array(chosen), counts)
        return head, range_coder.encode(np.concatenate(numbers), scales)

    def _arrays(self) -> list[Array]:
        return [array for layer in self.layers for array in (layer.weights, layer.biases)]


def alike(one: Network, other: Network) -> bool:
    """Whether two networks are the same numbers."""
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
    layers = shape.hidden + 1
    check_format(len(head) == 4 + 4 * layers, f"the network section has {len(head)} bytes")
    good = shape.parameters <= min(MAX_PARAMETERS, MAX_PRODUCTS // pixels)
    check_format(good, f"network {shape} is too large to decode")
    rows = [head[begin : begin + 4] for begin in range(4, len(head), 4)]
    chosen = [number for row in rows for number in row[2:]]
    decoder = range_coder.Decoder(coded)  # in parts: each is refused before it takes memory
    arrays = [
        decoder.read(math.prod(size), number).astype(np.int32).reshape(size)
        for size, number in zip(shape.shapes, chosen, strict=True)
    ]
    decoder.finish()
    found = zip(arrays[::2], arrays[1::2], rows, strict=True)
    return Network(shape, tuple(Layer(w, b, row[0], row[1]) for w, b, row in found))
