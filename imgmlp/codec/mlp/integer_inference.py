"""Decodes an .imlp network in integers: the same bits on every device.

Features come from integer recurrences, activations are cubic pieces made of products and shifts,
and all sums fit in 32 bits (`network.Layer` proves it). This module is part of the file format
(docs/format-imlp.md): a change here would make files decode to other pictures.

Layers are computed as float32 matrix products, the fastest products that every device has. Such a
product is exact, in whatever order its terms are added, if the magnitudes of the terms add up to at
most 2**24. So the inputs of a layer are cut into spans, whose products are added as integers. Where
weights are too large for that, every input is cut into a low and a high byte instead. Nearly
all networks of a shape have the same cut, so that a program compiled for one of them serves the
others, including those that are not trained yet. Narrower networks use it too, padded with zeros
(buckets.py).
"""

from __future__ import annotations

import math
from functools import cache, cached_property, partial, reduce
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.quantize import step_parts
from imgmlp.codec.mlp import buckets
from imgmlp.codec.mlp.network import MAX_ACTIVATION, VALUE_BITS, Layer, Network, Shape
from imgmlp.codec.training.chunked import assemble, sampled, sampled_fraction, timed
from imgmlp.engine import AnyDevice, Tensor, compile, dtype, open_device

Array = np.ndarray[Any, Any]

ONE = 1 << VALUE_BITS  # the number 1 as a feature or an activation
DECODED_PIXELS = 1 << 15  # of a decoding step
CORNER_PIXELS = 64  # along each side of the corner that is compared with NumPy

_SINES_PER_CYCLE = 1024  # entries of the table of sines
# The cosine and the sine of a 1024th of a cycle, as fractions of 2**62.
_TURN_COS, _TURN_SIN = 4611599204741358747, 28296773447188932
_PRODUCT_SHIFT = 2 * VALUE_BITS - 8  # after a product within `activate`
_OUTPUT_BITS = 4  # by which outputs of the last layer are finer than activations

# The range of activations is MIN_ACTIVATION to MAX_ACTIVATION. Spans subtract its middle, which
# halves their magnitudes.
MIN_ACTIVATION = -178
MIDDLE_ACTIVATION = (MAX_ACTIVATION + MIN_ACTIVATION) // 2
# The largest sum of the magnitudes of weights in a span whose product is exact.
MAX_EXACT_WEIGHT_SUM = (1 << 24) // (MAX_ACTIVATION - MIDDLE_ACTIVATION)

# A cut is a number of inputs per span, or BYTE_PARTS.
BYTE_PARTS = 0
INPUTS_PER_SPAN = 32  # for which weights of six bits are hardly ever too large
MAX_SPANS = 4  # of a layer; more take longer to compile than they save
_SPAN_ALIGNMENT = 8  # inputs; spans begin where vectors do


@cache
def sines() -> Array:
    """int64 [1024]: the sines of a whole cycle, times 1024.

    A vector is turned by a 1024th of a cycle again and again, in integers.
    """
    quarter, cos, sin = [], 1 << 62, 0
    for _ in range(_SINES_PER_CYCLE // 4 + 1):
        quarter.append(sin + (1 << 51) >> 52)
        cos, sin = cos * _TURN_COS - sin * _TURN_SIN >> 62, cos * _TURN_SIN + sin * _TURN_COS >> 62
    half = quarter + quarter[-2:0:-1]
    return np.array(half + [-value for value in half], np.int64)


@cache
def frequencies(count: int, samples: int) -> tuple[int, ...]:
    """Frequencies from half a cycle per axis to half a cycle per sample, in a geometric series.

    The unit is 2**-32 cycles per sample. Frequency k is the root of degree count - 1 of
    2**(31 (count-1)) / samples**(count-1-k), rounded down.
    """
    degree = max(count - 1, 1)
    return tuple(_root((1 << 31 * degree) // samples ** (degree - k), degree) for k in range(count))


def _root(value: int, degree: int) -> int:
    """The largest integer whose power is at most `value`."""
    low, high = 0, 1 << 32
    while high - low > 1:
        middle = low + high >> 1
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low


def features(count: int, samples: int, begin: int, end: int) -> Array:
    """int64 [end - begin, 2 * count]: sines, then cosines, of the samples' phases, times 1024."""
    places = 2 * np.arange(begin, end, dtype=np.int64) + 1  # middles of samples, in half samples
    phases = np.outer(places, np.array(frequencies(count, samples), np.int64)) >> 1
    entries = (phases + (1 << 21) >> 22) % _SINES_PER_CYCLE
    table = sines()
    return np.concatenate(
        [table[entries], table[(entries + _SINES_PER_CYCLE // 4) % _SINES_PER_CYCLE]], axis=1
    )


def decode(network: Network, width: int, height: int, device: AnyDevice) -> Array:
    """The picture, uint8 [height, width, channels]: the same bits on every device."""
    if network.is_uniform:
        return np.tile(corner(network, width, height)[:1, :1], (height, width, 1))
    return Decoder(width, height, device).decode(network)


def corner(network: Network, width: int, height: int) -> Array:
    """uint8: the lower right corner of the picture, which NumPy computes for every device."""
    rows, columns = min(CORNER_PIXELS, height), min(CORNER_PIXELS, width)
    piece = _Piece(network, (width, height), open_device("numpy"), rows, columns)
    piece.move_to(height - rows, width - columns)
    piece.program.run()
    pixels: Array = piece.program.read("pixels")
    return pixels


class Decoder:
    """Decodes networks of one picture.

    The program of one network serves the next if they share a bucket and its cut is exact for both.
    """

    def __init__(self, width: int, height: int, device: AnyDevice) -> None:
        self._size, self._device = (width, height), device
        self._latest: _Piece | None = None

    @property
    def cut(self) -> int | None:
        """The cut of hidden layers in the latest program."""
        return None if self._latest is None else self._latest.cut

    def decode(self, network: Network) -> Array:
        """uint8 [height, width, channels]: the same bits on every device."""
        make = partial(self._piece, network)
        channels = network.shape.channels
        return assemble(make, self._device, self._size, channels, DECODED_PIXELS)

    def parts(self, network: Network) -> list[tuple[tuple[int, int], Array]]:
        """Parts of the picture that represent all of it: the top left corner of each, and uint8
        [rows, columns, channels]."""
        return sampled(partial(self._piece, network), self._device, self._size, DECODED_PIXELS)

    @cached_property
    def sampled_fraction(self) -> float:
        """The time that `parts` takes, as a fraction of that to decode the picture."""
        return sampled_fraction(self._device, self._size, DECODED_PIXELS)

    def seconds(self, network: Network, times: int, most: float) -> float:
        """Seconds to decode a network, without compiling its program, which is done first.

        Measured by decoding it `times` times, or as much of it as takes `most` seconds.
        """
        make = partial(self._piece, network)
        return timed(make, self._device, self._size, DECODED_PIXELS, times, most)

    def _piece(self, network: Network, device: AnyDevice, rows: int, columns: int) -> _Piece:
        latest, self._latest = self._latest, None
        if latest is None or not latest.can_load(network, device, rows, columns):
            del latest  # frees its memory
            latest = _Piece(network, self._size, device, rows, columns)
        latest.load(network)
        self._latest = latest
        return latest


class _Piece:
    """A step that decodes rows x columns pixels anywhere in a picture.

    The first layer is linear, and each of its features depends on one axis alone. So the host
    computes a small table of sums for each axis, and the sums of a pixel are a row of one table
    plus a row of the other.
    """

    def __init__(
        self,
        network: Network,
        size: tuple[int, int],
        device: AnyDevice,
        rows: int,
        columns: int,
    ) -> None:
        self.network, self.size = network, size
        self.rows, self.columns = rows, columns
        self.bucket = buckets.decoding_shape(network.shape, device, math.prod(size))
        self.cut = choose_cut(network, self.bucket)
        outputs = self.bucket.width
        self.x = Tensor(np.zeros((self.columns, outputs), np.int32), device, name="x_sums")
        self.y = Tensor(np.zeros((self.rows, outputs), np.int32), device, name="y_sums")
        self.left = -1  # the first column of the sums in x
        self.device = device
        # Not constants, so that the kernels of one network serve others of the same shape.
        self.scales = Tensor(_rescalings(network), device, name="scales")
        # The last layer has the largest weights, and so few outputs that byte parts cost little.
        *hidden, last = enumerate(self._padded(), 1)
        self.products = [Product(layer, self.cut, device, str(n)) for n, layer in hidden]
        self.products.append(Product(last[1], BYTE_PARTS, device, str(last[0])))
        self.program = compile(self._step, device, precision="exact")

    def can_load(self, network: Network, device: AnyDevice, rows: int, columns: int) -> bool:
        """Whether this piece can decode another network, once `load` is called."""
        own = self.bucket, self.device, self.rows, self.columns
        bucket = buckets.decoding_shape(network.shape, device, math.prod(self.size))
        return own == (bucket, device, rows, columns) and is_cut_exact(network, self.cut)

    def load(self, network: Network) -> None:
        """Replace the network by one that this piece `can_load`."""
        self.network, self.left = network, -1
        self.scales.write(_rescalings(network))
        for product, layer in zip(self.products, self._padded(), strict=True):
            product.load(layer)

    def _padded(self) -> list[Layer]:
        """All layers but the first, padded to the bucket."""
        pairs = zip(self.bucket.sizes[1:], self.bucket.sizes[2:], strict=False)
        layers = zip(self.network.layers[1:], pairs, strict=True)
        return [buckets.padded(layer, *sizes) for layer, sizes in layers]

    def move_to(self, top: int, left: int) -> None:
        """Load the first layer's sums for another piece; they are 0 past the picture's edge."""
        first, half = self.network.layers[0], 2 * self.network.shape.frequencies
        if left != self.left:
            biases = first.bias_sums()
            self._load(self.x, first.weights[:half], self.size[0], left, biases)
            self.left = left
        self._load(self.y, first.weights[half:], self.size[1], top, 0)

    def _load(
        self, target: Tensor, weights: Array, samples: int, begin: int, add: Array | int
    ) -> None:
        sums = np.zeros(target.shape, np.int32)
        end = min(begin + len(sums), samples)
        values = features(self.network.shape.frequencies, samples, begin, end)
        sums[: end - begin, : weights.shape[1]] = values @ weights.astype(np.int64) + add
        target.write(sums)

    def _step(self) -> dict[str, Tensor]:
        rows, columns, outputs = self.rows, self.columns, self.bucket.width
        sums = self.y.reshape(rows, 1, outputs).expand(rows, columns, outputs) + self.x.reshape(
            1, columns, outputs
        )
        sums = sums.reshape(rows * columns, outputs)
        for number, product in enumerate(self.products):
            sums = product(activate(rescale(sums, self.scales[number])))
        outputs_of_last = rescale(sums, self.scales[-1])
        return {"pixels": levels(outputs_of_last).reshape(rows, columns, -1)}


class Product:
    """The exact sums of a layer. Its inputs are cut into spans of `cut` inputs, or BYTE_PARTS.

    `name` is part of the names of its tensors in listings.
    """

    def __init__(self, layer: Layer, cut: int, device: AnyDevice, name: str) -> None:
        inputs, outputs = layer.weights.shape
        self._cut = cut
        self._weights = Tensor(
            np.zeros((inputs, outputs), np.float32), device, name=f"weights{name}"
        )
        self._biases = Tensor(np.zeros(outputs, np.int32), device, name=f"biases{name}")
        self.load(layer)

    def load(self, layer: Layer) -> None:
        """Replace the layer by another one of this size for which the cut is exact."""
        biases = layer.bias_sums()
        if self._cut:
            biases = biases + layer.weights.sum(0, np.int64) * MIDDLE_ACTIVATION
        self._weights.write(layer.weights.astype(np.float32))
        self._biases.write(biases.astype(np.int32))

    def __call__(self, values: Tensor) -> Tensor:
        """Activations, int32 [rows, inputs], -> sums, int32 [rows, outputs]."""
        weights = self._weights
        if self._cut:
            centred = (values - MIDDLE_ACTIVATION).cast(dtype.f32)
            spans = _spans(weights.shape[0], self._cut)
            sums = [(centred[:, span] @ weights[span]).cast(dtype.i32) for span in spans]
            return reduce(Tensor.__add__, sums) + self._biases
        low = (values & 255).cast(dtype.f32) @ weights
        high = (values >> 8).cast(dtype.f32) @ weights
        return low.cast(dtype.i32) + high.cast(dtype.i32) * 256 + self._biases


def choose_cut(network: Network, bucket: Shape) -> int:
    """The cut of all hidden layers but the first.

    The usual number of spans of the bucket is preferred, so that there are few different kernels.
    """
    usual_spans = min(-(-bucket.width // INPUTS_PER_SPAN), MAX_SPANS)
    cuts = [
        -(-bucket.width // (spans * _SPAN_ALIGNMENT)) * _SPAN_ALIGNMENT
        for spans in (usual_spans, MAX_SPANS)
    ]
    return next((cut for cut in cuts if is_cut_exact(network, cut)), BYTE_PARTS)


def is_cut_exact(network: Network, cut: int) -> bool:
    """Whether the sums of all hidden layers but the first are exact with this cut."""
    return all(is_exact(layer.weights, cut) for layer in network.layers[1:-1])


def is_exact(weights: Array, cut: int) -> bool:
    """Whether the float32 sums of a layer are exact with this cut."""
    if cut == BYTE_PARTS:
        return True
    magnitudes = np.abs(weights.astype(np.int64))
    spans = _spans(len(magnitudes), cut)
    return all(magnitudes[span].sum(0).max() <= MAX_EXACT_WEIGHT_SUM for span in spans)


def _spans(inputs: int, length: int) -> list[slice]:
    """Spans of `length` inputs; the last one may be shorter."""
    return [slice(begin, begin + length) for begin in range(0, inputs, length)]


def _rescalings(network: Network) -> Array:
    """int32 [layers, 3]: the `rescaling` of each layer."""
    *steps, last = (layer.step for layer in network.layers)
    return np.array([*map(rescaling, steps), rescaling(last, _OUTPUT_BITS)])


def rescaling(step: int, finer: int = 0) -> Array:
    """The argument of `rescale` for a step size: int32 [factor, rounding term, shift]."""
    m, e = step_parts(step)
    shift = e - 3 - finer
    return np.array([m, 1 << shift - 1, shift], np.int32)


def rescale(sums: Tensor, scale: Tensor) -> Tensor:
    """Sums in units of 2**-10 step sizes -> values in units of 2**-(10 + finer), rounded."""
    return (((sums + 4) >> 3) * scale[0] + scale[1]) >> scale[2]


def activate(values: Tensor) -> Tensor:
    """x times a gate that grows from 0 at x = -2 to 1 at x = 2, as 3 u**2 - 2 u**3 of
    u = x / 4 + 1 / 2."""
    x = values.minimum(MAX_ACTIVATION)  # there is no lower limit, as the gate is 0 below -2
    u = (x + 2 * ONE).maximum(0).minimum(4 * ONE)  # in units of 1 / 4096
    gate = ((u * u) >> _PRODUCT_SHIFT) * (3 * 4 * ONE - u * 2) >> _PRODUCT_SHIFT
    return (x * gate + 2 * ONE) >> _PRODUCT_SHIFT


def levels(outputs: Tensor) -> Tensor:
    """Outputs of the network, in units of 2**-14, -> uint8 samples; -1/2 is black, 1/2 white."""
    one = ONE << _OUTPUT_BITS
    value = (outputs.maximum(-one).minimum(one) + one // 2).maximum(0).minimum(one)
    return ((value * 255 + one // 2) >> VALUE_BITS + _OUTPUT_BITS).cast(dtype.u8)
