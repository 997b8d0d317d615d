"""What an .imlp network computes, in whole numbers: the same bits on every device.

Features come from integer recurrences, activations are cubic pieces made of products and shifts,
and all sums fit in 32 bits (`network.Layer` proves it). Part of the file format
(docs/format-imlp.md): a change here would make files decode to other pictures.

Sums of products run as float32 products of matrices, the fastest that every device has. They are
exact, in whatever order they are added up, where the magnitudes of all terms add up to at most
2**24. So the inputs of a layer are cut into spans, or into parts of 8 bits where weights are too
large for that. Networks of one shape are nearly all cut in one way, so that what was compiled for
one of them serves the others, also those that are still to be trained; and so do narrower ones,
padded with zeros (buckets.py).
"""

from __future__ import annotations

import math
from functools import cache, cached_property, partial, reduce
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.quantize import step_parts
from imgmlp.codec.mlp import buckets
from imgmlp.codec.mlp.network import LIMIT, VALUE_BITS, Layer, Network, Shape
from imgmlp.codec.training.chunked import assemble, sampled, sampled_fraction, timed
from imgmlp.engine import AnyDevice, Tensor, compile, dtype, open_device

Array = np.ndarray[Any, Any]

ONE = 1 << VALUE_BITS
DECODED_PIXELS = 1 << 15  # of a decoding step
CORNER = 64  # pixels along the sides of what is compared between devices
_CYCLE = 1024  # entries of the table of sines
# cos and sin of a 1024th of a cycle, as fractions of 2**62
_COS, _SIN = 4611599204741358747, 28296773447188932
_SHIFT = 2 * VALUE_BITS - 8  # of a product of shares
_ANSWER_BITS = 4  # by which the last layer's answers are finer than activations
LEAST = -178  # activation; LIMIT is the largest
MIDDLE = (LIMIT + LEAST) // 2
LARGEST_SUM = (1 << 24) // (LIMIT - MIDDLE)  # of weights' magnitudes, so that sums stay exact
SPAN = 32  # inputs: weights of six bits are hardly ever too large for so many
MOST_SPANS = 4  # of a layer; more take longer to compile than they save
PARTS = 0  # a cut that is none into spans, whose inputs it gives otherwise
_ALIGN = 8  # inputs: a span begins where vectors do


@cache
def sines() -> Array:
    """int64 [1024]: sines of a whole cycle, times 1024, by turning a vector step by step."""
    quarter, cos, sin = [], 1 << 62, 0
    for _ in range(_CYCLE // 4 + 1):
        quarter.append(sin + (1 << 51) >> 52)
        cos, sin = cos * _COS - sin * _SIN >> 62, cos * _SIN + sin * _COS >> 62
    half = quarter + quarter[-2:0:-1]
    return np.array(half + [-value for value in half], np.int64)


@cache
def frequencies(count: int, samples: int) -> tuple[int, ...]:
    """From half a cycle an axis to half a cycle a sample, one ratio apart; in 2**-32 cycles a
    sample, rounded down: number k is the root of 2**(31 (count-1)) / samples**(count-1-k).
    """
    degree = max(count - 1, 1)
    return tuple(_root((1 << 31 * degree) // samples ** (degree - k), degree) for k in range(count))


def _root(value: int, degree: int) -> int:
    """The largest whole number whose power is at most a value."""
    low, high = 0, 1 << 32
    while high - low > 1:
        middle = low + high >> 1
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low


def features(count: int, samples: int, begin: int, end: int) -> Array:
    """int64 [end - begin, 2 * count]: sines, then cosines, of the samples' phases, times 1024."""
    places = 2 * np.arange(begin, end, dtype=np.int64) + 1  # middles of samples, halves
    phases = np.outer(places, np.array(frequencies(count, samples), np.int64)) >> 1
    entries = (phases + (1 << 21) >> 22) % _CYCLE
    table = sines()
    return np.concatenate([table[entries], table[(entries + _CYCLE // 4) % _CYCLE]], axis=1)


def decode(network: Network, width: int, height: int, device: AnyDevice) -> Array:
    """The picture, uint8 [height, width, channels]: the same bits on every device."""
    if network.is_uniform:
        return np.tile(corner(network, width, height)[:1, :1], (height, width, 1))
    return Decoder(width, height, device).decode(network)


def corner(network: Network, width: int, height: int) -> Array:
    """uint8: some last rows and columns of the picture as NumPy makes them, on every device."""
    rows, columns = min(CORNER, height), min(CORNER, width)
    piece = _Piece(network, (width, height), open_device("numpy"), rows, columns)
    piece.move_to(height - rows, width - columns)
    piece.program.run()
    found: Array = piece.program.read("pixels")
    return found


class Decoder:
    """Decodes networks of one picture.

    What was made for one serves the next if it has the same bucket and the cut is exact for it.
    """

    def __init__(self, width: int, height: int, device: AnyDevice) -> None:
        self._size, self._device = (width, height), device
        self._latest: _Piece | None = None

    @property
    def cut(self) -> int | None:
        """How hidden layers are cut in what was made latest."""
        return None if self._latest is None else self._latest.cut

    def decode(self, network: Network) -> Array:
        """uint8 [height, width, channels]: the same bits on every device."""
        make = partial(self._piece, network)
        channels = network.shape.channels
        return assemble(make, self._device, self._size, channels, DECODED_PIXELS)

    def parts(self, network: Network) -> list[tuple[tuple[int, int], Array]]:
        """Some of the picture's, which stand for all: corners, and uint8 [rows, columns,
        channels]."""
        return sampled(partial(self._piece, network), self._device, self._size, DECODED_PIXELS)

    @cached_property
    def sampled_fraction(self) -> float:
        """Of a picture's decoding, what `parts` take."""
        return sampled_fraction(self._device, self._size, DECODED_PIXELS)

    def seconds(self, network: Network, times: int, most: float) -> float:
        """That it takes to decode a network once that is compiled, which is done now: by doing it
        so many times, or as much of it as takes `most` seconds."""
        make = partial(self._piece, network)
        return timed(make, self._device, self._size, DECODED_PIXELS, times, most)

    def _piece(self, network: Network, device: AnyDevice, rows: int, columns: int) -> _Piece:
        latest, self._latest = self._latest, None
        if latest is None or not latest.takes(network, device, rows, columns):
            del latest  # its memory may be needed
            latest = _Piece(network, self._size, device, rows, columns)
        latest.load(network)
        self._latest = latest
        return latest


class _Piece:
    """A step that decodes rows x columns pixels anywhere in a picture.

    The first layer is linear in features of either axis alone, so each axis has a small table of
    its sums, computed here, and a pixel's sum is that of a row of each.
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
        self.cut = cut_of(network, self.bucket)
        outputs = self.bucket.width
        self.x = Tensor(np.zeros((self.columns, outputs), np.int32), device, name="x_sums")
        self.y = Tensor(np.zeros((self.rows, outputs), np.int32), device, name="y_sums")
        self.left = -1  # of the sums that x holds
        self.device = device
        # not constants, so that the kernels of one network serve others of its sizes
        self.scales = Tensor(_scales(network), device, name="scales")
        # Weights of the last layer are the largest, and its outputs so few that parts cost little.
        *hidden, last = enumerate(self._padded(), 1)
        self.products = [Product(layer, self.cut, device, str(n)) for n, layer in hidden]
        self.products.append(Product(last[1], PARTS, device, str(last[0])))
        self.program = compile(self._step, device, precision="exact")

    def takes(self, network: Network, device: AnyDevice, rows: int, columns: int) -> bool:
        """Whether `load` would make it that piece of another network."""
        mine = self.bucket, self.device, self.rows, self.columns
        bucket = buckets.decoding_shape(network.shape, device, math.prod(self.size))
        alike = mine == (bucket, device, rows, columns)
        return alike and is_decoded_with(network, self.cut)

    def load(self, network: Network) -> None:
        """Go on with another network."""
        self.network, self.left = network, -1
        self.scales.write(_scales(network))
        for product, layer in zip(self.products, self._padded(), strict=True):
            product.load(layer)

    def _padded(self) -> list[Layer]:
        """All layers but the first, padded to the bucket."""
        pairs = zip(self.bucket.sizes[1:], self.bucket.sizes[2:], strict=False)
        layers = zip(self.network.layers[1:], pairs, strict=True)
        return [buckets.padded(layer, *sizes) for layer, sizes in layers]

    def move_to(self, top: int, left: int) -> None:
        """Load the sums of another piece; past the picture's edge, anything."""
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
        answers = rescale(sums, self.scales[-1])
        return {"pixels": levels(answers).reshape(rows, columns, -1)}


class Product:
    """What a layer makes of values, exactly; its inputs are cut into spans of so many, or parts.

    `name` is for listings.
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
        """Go on with another layer of this size, for which such spans are exact."""
        biases = layer.bias_sums()
        if self._cut:
            biases = biases + layer.weights.sum(0, np.int64) * MIDDLE
        self._weights.write(layer.weights.astype(np.float32))
        self._biases.write(biases.astype(np.int32))

    def __call__(self, values: Tensor) -> Tensor:
        """int32 [rows, inputs], from LEAST to LIMIT -> int32 [rows, outputs]."""
        weights = self._weights
        if self._cut:
            centred = (values - MIDDLE).cast(dtype.f32)
            found = _spans(weights.shape[0], self._cut)
            parts = [(centred[:, span] @ weights[span]).cast(dtype.i32) for span in found]
            return reduce(Tensor.__add__, parts) + self._biases
        low = (values & 255).cast(dtype.f32) @ weights
        high = (values >> 8).cast(dtype.f32) @ weights
        return low.cast(dtype.i32) + high.cast(dtype.i32) * 256 + self._biases


def cut_of(network: Network, bucket: Shape) -> int:
    """Of how many inputs the spans of each hidden layer but the first are, or PARTS.

    Of as many as usual in a bucket if that is exact, so that there are few kinds of kernels.
    """
    usual = min(-(-bucket.width // SPAN), MOST_SPANS)
    known = [-(-bucket.width // (count * _ALIGN)) * _ALIGN for count in (usual, MOST_SPANS)]
    return next((cut for cut in known if is_decoded_with(network, cut)), PARTS)


def is_decoded_with(network: Network, cut: int) -> bool:
    """Whether sums of all hidden layers but the first are exact where they are cut so."""
    return all(is_exact(layer.weights, cut) for layer in network.layers[1:-1])


def is_exact(weights: Array, cut: int) -> bool:
    """Whether sums of float32 are exact with spans of so many inputs, or with PARTS."""
    if cut == PARTS:
        return True
    magnitudes = np.abs(weights.astype(np.int64))
    found = _spans(len(magnitudes), cut)
    return all(magnitudes[span].sum(0).max() <= LARGEST_SUM for span in found)


def _spans(inputs: int, length: int) -> list[slice]:
    """Runs of so many inputs; of fewer at the end."""
    return [slice(begin, begin + length) for begin in range(0, inputs, length)]


def _scales(network: Network) -> Array:
    """int32 [layers, 3], as `rescale` takes them."""
    *steps, last = (layer.step for layer in network.layers)
    return np.array([*map(scale_of, steps), scale_of(last, _ANSWER_BITS)])


def scale_of(step: int, finer: int = 0) -> Array:
    """What `rescale` takes for a step: int32 [factor, half of a unit, shift]."""
    m, e = step_parts(step)
    shift = e - 3 - finer
    return np.array([m, 1 << shift - 1, shift], np.int32)


def rescale(sums: Tensor, scale: Tensor) -> Tensor:
    """Sums in 2**-10 steps to 2**-(10 + finer), rounded."""
    return (((sums + 4) >> 3) * scale[0] + scale[1]) >> scale[2]


def activate(values: Tensor) -> Tensor:
    """x times a share that grows from 0 at x = -2 to 1 at x = 2 as 3 u**2 - 2 u**3 does."""
    x = values.minimum(LIMIT)  # no least one is needed: below -2 the share is 0
    u = (x + 2 * ONE).maximum(0).minimum(4 * ONE)  # of 4096
    share = ((u * u) >> _SHIFT) * (3 * 4 * ONE - u * 2) >> _SHIFT
    return (x * share + 2 * ONE) >> _SHIFT


def levels(answers: Tensor) -> Tensor:
    """Answers around 0, in 2**-14, to samples: -1/2 is black, 1/2 white."""
    one = ONE << _ANSWER_BITS
    value = (answers.maximum(-one).minimum(one) + one // 2).maximum(0).minimum(one)
    return ((value * 255 + one // 2) >> VALUE_BITS + _ANSWER_BITS).cast(dtype.u8)
