"""The latent codec's differentiable operations on Tensors, with handwritten gradients.

They train in floats what docs/format-imlp.md defines in integers. A convolution over a plane reads
shifted slices of it, one for each tap, as the engine's own windows do. All gradients gather: that
of a value reads the outputs that used it, shifted back, so that nothing is added atomically.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from operator import add

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS
from imgmlp.codec.latent.model import NEIGHBOUR_RADIUS
from imgmlp.codec.latent.plane import NEIGHBOUR_ROWS, TILE_POSITIONS, Plane
from imgmlp.codec.latent.probabilities import MIN_FREQUENCY, SCALE_BITS, SCALES, UNIT_SCALE_INDEX
from imgmlp.codec.training.perceptron import RowSample
from imgmlp.engine import Context, Function, Tensor, dtype

# The causal neighbourhood of a latent: NEIGHBOUR_RADIUS rows above it, each of NEIGHBOURS_PER_ROW
# values, and the NEIGHBOUR_RADIUS values to its left.
NEIGHBOURS_PER_ROW = 2 * NEIGHBOUR_RADIUS + 1
NEIGHBOURS = NEIGHBOUR_RADIUS * NEIGHBOURS_PER_ROW + NEIGHBOUR_RADIUS
# Tiles whose terms a GPU's group sums up first, at most; with fewer there is more left to add.
MAX_TILES_PER_PARTIAL_SUM = 8
MAX_HALF = 65504.0  # the largest finite float16
# The range of the logarithm of a scale, and the smallest probability, that a file can express.
MIN_LOG_SCALE = -UNIT_SCALE_INDEX / 2**SCALE_BITS
MAX_LOG_SCALE = (SCALES - 1 - UNIT_SCALE_INDEX) / 2**SCALE_BITS
MIN_PROBABILITY = MIN_FREQUENCY / 2**TOTAL_BITS
LOG_SCALE_OFFSET = 4.0  # what the entropy network's second output has beyond the logarithm


class Contexts(Function):
    """The causal neighbours of every position whose bits are computed: [NEIGHBOURS, places].

    The rows above come first, then the values to the left. The plane is
    [rows + 2 NEIGHBOUR_ROWS, pitch]; its first and last NEIGHBOUR_ROWS rows are zeros.
    """

    @staticmethod
    def forward(ctx: Context, framed: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        k = Tensor.arange(NEIGHBOURS).reshape(NEIGHBOURS, 1)
        row, column = k // NEIGHBOURS_PER_ROW - NEIGHBOUR_RADIUS, k % NEIGHBOURS_PER_ROW
        offset = row * plane.pitch + column - NEIGHBOUR_RADIUS
        places = Tensor.arange(plane.coded_positions).reshape(1, plane.coded_positions)
        return framed.reshape(-1).gather(
            places + offset + (NEIGHBOUR_ROWS * plane.pitch + plane.first_coded)
        )

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        offsets = [
            (k // NEIGHBOURS_PER_ROW - NEIGHBOUR_RADIUS) * plane.pitch
            + k % NEIGHBOURS_PER_ROW
            - NEIGHBOUR_RADIUS
            for k in range(NEIGHBOURS)
        ]
        # The last NEIGHBOUR_ROWS coded rows hold no values.
        rows = plane.coded_rows - NEIGHBOUR_ROWS
        if g.device is not None and g.device.has_matrix_units:
            # In float16, as products are there: most of a step's memory traffic is these gradients.
            transposed = g.permute(1, 0).maximum(-MAX_HALF).minimum(MAX_HALF)
            g = transposed.cast(dtype.f16).permute(1, 0)
        size = rows * plane.pitch
        shifted = [g[k, -a : size - a].cast(dtype.f32) for k, a in enumerate(offsets)]
        by_values = reduce(add, shifted).reshape(rows, plane.pitch).contiguous()
        before = NEIGHBOUR_ROWS + plane.halo
        return by_values.pad(
            (before, plane.rows + 2 * NEIGHBOUR_ROWS - before - rows), (0, 0)
        ), None


class Bits(Function):
    """Bits of values under Laplace distributions: value, mean, s and result are [n].

    The scale is exp(s - LOG_SCALE_OFFSET), clipped to exp(MIN_LOG_SCALE) .. exp(MAX_LOG_SCALE). The
    probability of a value is the mass from half a quantisation step below it to half a step above.
    """

    @staticmethod
    def forward(ctx: Context, value: Tensor, mean: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(value, mean, s)
        _, _, _, _, p = _probability(value, mean, s)
        return -(p.maximum(MIN_PROBABILITY).log2())

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, mean, s = ctx.saved_tensors
        distance, rate, near, far, p = _probability(value, mean, s)
        is_above_floor = p > MIN_PROBABILITY
        by_p = Tensor.where(
            is_above_floor, g * (-1 / math.log(2)) / p.maximum(MIN_PROBABILITY), 0.0
        )
        by_distance = by_p * rate * (far - near) * 0.5
        by_value = Tensor.where(value < mean, -by_distance, by_distance)
        by_rate = by_p * 0.5 * ((distance + 0.5) * far - (distance - 0.5) * near)
        low, high = LOG_SCALE_OFFSET + MIN_LOG_SCALE, LOG_SCALE_OFFSET + MAX_LOG_SCALE
        is_unclipped = (s > low) & (s < high)
        return by_value, -by_value, Tensor.where(is_unclipped, -(by_rate * rate), 0.0)


def _probability(
    value: Tensor, mean: Tensor, s: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Distance from the mean, 1 / scale, twice the tails' masses beyond the nearer and the farther
    edge of the value's interval, and the mass within it."""
    distance = (value - mean).abs()
    log_rate = (LOG_SCALE_OFFSET - s).maximum(-MAX_LOG_SCALE).minimum(-MIN_LOG_SCALE)
    rate = (log_rate * (1 / math.log(2))).exp2()
    exponent = rate * (-1 / math.log(2))
    near = ((distance - 0.5).abs() * exponent).exp2()
    far = ((distance + 0.5) * exponent).exp2()
    p = Tensor.where(distance < 0.5, 1.0 - (near + far) * 0.5, (near - far) * 0.5)
    return distance, rate, near, far, p


class Convolution(Function):
    """A 3 by 3 convolution of x [channels, pixels], zero outside of the picture, by weights
    [channels * 9, outputs].

    The weight for channel c and the neighbour in row y and column x of 3 by 3 is number
    9 c + 3 y + x. Gradients of weights are sums over all pixels or estimates from a `sample`.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weights: Tensor, plane: Plane, sample: RowSample | None
    ) -> Tensor:
        ctx.plane, ctx.sample = plane, sample  # type: ignore[attr-defined]
        ctx.save_for_backward(_padded(x, plane), weights)
        return _correlation(_with_margins(x, plane), weights, plane)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        sample: RowSample | None = ctx.sample  # type: ignore[attr-defined]
        padded, weights = ctx.saved_tensors
        count, outputs = weights.shape
        flipped = weights.reshape(count // 9, 9, outputs).flip(1).permute(2, 1, 0)
        # `_padded` stores g with its margins; otherwise every tap would compute it again.
        by_x = _correlation(_padded(g, plane), flipped.reshape(outputs * 9, -1), plane)
        k = Tensor.arange(count).reshape(count, 1)
        length = plane.pixels + 2 * plane.margin
        offset = k // 9 * length + (k % 9 // 3 - 1) * plane.pitch + k % 3 - 1
        pixels = Tensor.arange(plane.pixels).reshape(1, plane.pixels)
        patches = padded.reshape(-1).gather(pixels + offset + plane.margin)
        if sample is None:
            return by_x, patches @ g.permute(1, 0), None, None
        chosen, times = sample
        chosen_g = Tensor.where(chosen, g.permute(1, 0), 0.0)
        return by_x, (patches @ chosen_g) * times, None, None


class Filter(Function):
    """A 3 by 3 convolution from one channel to one: x [1, pixels], weights [9].

    The gradients of the nine weights are nine sums in kernels of their own: the factors of a matrix
    product would not fit into a tile beside what computes g.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, weights: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        ctx.save_for_backward(x, weights)
        return _correlation(_with_margins(x, plane), weights.reshape(9, 1), plane)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        x, weights = ctx.saved_tensors
        padded = _padded(g, plane)
        by_x = _correlation(padded, weights.flip(0).reshape(9, 1), plane)
        tiles = plane.pixels // TILE_POSITIONS
        most = MAX_TILES_PER_PARTIAL_SUM if has_gpu_lanes(x) else 1
        count = next(n for n in range(most, 0, -1) if tiles % n == 0)
        sums = []
        for k in range(9):
            terms = x.reshape(-1) * _neighbours(padded[0], 8 - k, plane)
            sums.append(terms.reshape(-1, count * TILE_POSITIONS).sum(1).sum().reshape(1))
        return by_x, Tensor.concat(sums, 0), None


def _neighbours(padded: Tensor, k: int, plane: Plane) -> Tensor:
    """Neighbour number k, of 3 by 3, of every pixel: [pixels], from one channel [length]."""
    begin = plane.margin + (k // 3 - 1) * plane.pitch + k % 3 - 1
    return padded[begin : begin + plane.pixels]


def _padded(x: Tensor, plane: Plane) -> Tensor:
    """x [channels, pixels] with zeros as margins, in memory: [channels, length]."""
    zeros = Tensor.zeros(x.shape[0], plane.margin)
    return Tensor.concat([zeros, x, zeros], 1)


def _with_margins(x: Tensor, plane: Plane) -> Tensor:
    """The values of `_padded`; on a GPU as a view that reads x itself, so that nothing waits for a
    copy with margins."""
    if has_gpu_lanes(x):
        return x.pad((0, 0), (plane.margin, plane.margin))
    return _padded(x, plane)


def has_gpu_lanes(x: Tensor) -> bool:
    """Whether x is computed by lanes of a GPU, for which conditions and distant reads are cheap."""
    return x.device is not None and x.device.lanes == "group"


def _correlation(padded: Tensor, weights: Tensor, plane: Plane) -> Tensor:
    """padded [channels, length], weights [channels * 9, outputs] -> [outputs, pixels]."""
    taps = []
    for c, k in product(range(padded.shape[0]), range(9)):
        shifted = _neighbours(padded[c], k, plane)
        taps.append(shifted.reshape(1, plane.pixels // TILE_POSITIONS, TILE_POSITIONS))
    return Tensor.weighted_sums(taps, weights.transpose()).reshape(-1, plane.pixels)


def soft_round(x: Tensor, inverse_temperature: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Soft rounding at temperature T, and its derivative.

    `gain` is 1 / (2 tanh(1 / (2 T))), with which whole numbers stay where they are. At large T
    nothing moves; towards T = 0 it becomes true rounding.
    """
    whole = _floor(x)
    scaled = (x - whole - 0.5) * inverse_temperature
    tanh = 1.0 - 2.0 / ((scaled * (2 / math.log(2))).exp2() + 1.0)
    return whole + 0.5 + tanh * gain, (1.0 - tanh * tanh) * gain * inverse_temperature


def _floor(x: Tensor) -> Tensor:
    whole = x.cast(dtype.i32).cast(dtype.f32)
    return Tensor.where(x < whole, whole - 1.0, whole)


def nearest(x: Tensor) -> Tensor:
    """x rounded to the nearest whole number, halves upwards."""
    return _floor(x + 0.5)


def noise(bits: Tensor, shape: Tensor) -> Tensor:
    """Noise within half a quantisation step around 0, from random u32 bits: the mean of two uniform
    numbers, weighted by `shape` and 1 - shape.

    It is uniform for a shape of 1; the closer that is to 1/2, the likelier are values around 0.
    """
    first = (bits >> 16).cast(dtype.i32).cast(dtype.f32) * 2.0**-16
    second = (bits & 0xFFFF).cast(dtype.i32).cast(dtype.f32) * 2.0**-16
    return second + (first - second) * shape - (0.5 - 2.0**-17)
