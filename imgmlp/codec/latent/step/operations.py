"""The latent codec's operations as Tensors, with gradients of their own.

What each of them computes stands in docs/format-imlp.md in whole numbers; here it is floats, for
training. What slides over a plane is as in the engine's own windows: taps, which are slices of it,
joined one after the other. All gradients are gathered: a value's gradient reads what used it,
shifted back.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from operator import add

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS
from imgmlp.codec.latent.model import REACH
from imgmlp.codec.latent.plane import AROUND, TILE, Plane
from imgmlp.codec.latent.probabilities import FLOOR, MIDDLE, SCALE_BITS, SCALES
from imgmlp.codec.training.perceptron import Some
from imgmlp.engine import Context, Function, Tensor, dtype

WIDTH = 2 * REACH + 1  # of a row of neighbours
NEIGHBOURS = REACH * WIDTH + REACH
TOGETHER = 8  # tiles whose terms one group adds up, at most: to begin with fewer takes longer
MOST_HALF = 65504.0  # the largest number of 16 bits
# What a file can say of a latent: logarithms of scales, and the least probability.
SHARPEST, WIDEST = -MIDDLE / 2**SCALE_BITS, (SCALES - 1 - MIDDLE) / 2**SCALE_BITS
LEAST_MASS = FLOOR / 2**TOTAL_BITS


class Contexts(Function):
    """Of every place whose bits are computed three rows above, then what is left of it:
    [NEIGHBOURS, places].

    The plane is [rows + 2 AROUND, pitch], of which those AROUND are zeros.
    """

    @staticmethod
    def forward(ctx: Context, framed: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        k = Tensor.arange(NEIGHBOURS).reshape(NEIGHBOURS, 1)
        away = (k // WIDTH - REACH) * plane.pitch + k % WIDTH - REACH
        places = Tensor.arange(plane.places).reshape(1, plane.places)
        return framed.reshape(-1).gather(places + away + (AROUND * plane.pitch + plane.first))

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        away = [(k // WIDTH - REACH) * plane.pitch + k % WIDTH - REACH for k in range(NEIGHBOURS)]
        rows = plane.coded - AROUND  # below them are no values
        if g.device is not None and g.device.has_matrix_units:
            # As products are there; these are most of what a step writes and reads.
            turned = g.permute(1, 0).maximum(-MOST_HALF).minimum(MOST_HALF)
            g = turned.cast(dtype.f16).permute(1, 0)
        used = [g[k, -a : rows * plane.pitch - a].cast(dtype.f32) for k, a in enumerate(away)]
        by_values = reduce(add, used).reshape(rows, plane.pitch).contiguous()
        before = AROUND + plane.halo
        return by_values.pad((before, plane.rows + 2 * AROUND - before - rows), (0, 0)), None


class Bits(Function):
    """Of values under Laplace distributions with a mean and a logarithm of the scale: all [n].

    The scale is exp(s - 4), from exp(SHARPEST) to exp(WIDEST); a value has the mass from half a
    step below it to half a step above.
    """

    @staticmethod
    def forward(ctx: Context, value: Tensor, mean: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(value, mean, s)
        _, _, _, _, p = _mass(value, mean, s)
        return -(p.maximum(LEAST_MASS).log2())

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, mean, s = ctx.saved_tensors
        away, rate, near, far, p = _mass(value, mean, s)
        by_mass = Tensor.where(p > LEAST_MASS, g * (-1 / math.log(2)) / p.maximum(LEAST_MASS), 0.0)
        by_away = by_mass * rate * (far - near) * 0.5
        by_value = Tensor.where(value < mean, -by_away, by_away)
        by_rate = by_mass * 0.5 * ((away + 0.5) * far - (away - 0.5) * near)
        inside = (s > 4.0 + SHARPEST) & (s < 4.0 + WIDEST)
        return by_value, -by_value, Tensor.where(inside, -(by_rate * rate), 0.0)


def _mass(value: Tensor, mean: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Distance, inverse scale, both tails, and the mass between them."""
    away = (value - mean).abs()
    rate = ((4.0 - s).maximum(-WIDEST).minimum(-SHARPEST) * (1 / math.log(2))).exp2()
    turn = rate * (-1 / math.log(2))
    near = ((away - 0.5).abs() * turn).exp2()
    far = ((away + 0.5) * turn).exp2()
    p = Tensor.where(away < 0.5, 1.0 - (near + far) * 0.5, (near - far) * 0.5)
    return away, rate, near, far, p


class Convolution(Function):
    """x [channels, pixels], zero outside of the picture; weights [channels * 9, outputs].

    The weight of channel c, row y and column x of its 3 by 3 neighbours is number 9 c + 3 y + x.
    Gradients of weights are of all pixels, or of `some` of them.
    """

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weights: Tensor, plane: Plane, some: Some | None
    ) -> Tensor:
        ctx.plane, ctx.some = plane, some  # type: ignore[attr-defined]
        padded = _padded(x, plane)
        ctx.save_for_backward(padded, weights)
        return _correlation(_framed(x, plane), weights, plane)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        some: Some | None = ctx.some  # type: ignore[attr-defined]
        padded, weights = ctx.saved_tensors
        count, outputs = weights.shape
        turned = weights.reshape(count // 9, 9, outputs).flip(1).permute(2, 1, 0)
        # Stored with zeros around them, as each would be computed again for every tap.
        by_x = _correlation(_padded(g, plane), turned.reshape(outputs * 9, -1), plane)
        k = Tensor.arange(count).reshape(count, 1)
        length = plane.pixels + 2 * plane.margin
        away = k // 9 * length + (k % 9 // 3 - 1) * plane.pitch + k % 3 - 1
        places = Tensor.arange(plane.pixels).reshape(1, plane.pixels)
        patches = padded.reshape(-1).gather(places + away + plane.margin)
        if some is None:
            return by_x, patches @ g.permute(1, 0), None, None
        chosen, times = some
        kept = Tensor.where(chosen, g.permute(1, 0), 0.0)
        return by_x, (patches @ kept) * times, None, None


class Filter(Function):
    """A convolution from one channel to one: x [1, pixels], weights [9].

    Sums for its few weights are made apart from what makes g: a tile has no room for their factors.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, weights: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        ctx.save_for_backward(x, weights)
        return _correlation(_framed(x, plane), weights.reshape(9, 1), plane)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        x, weights = ctx.saved_tensors
        padded = _padded(g, plane)
        by_x = _correlation(padded, weights.flip(0).reshape(9, 1), plane)
        tiles = plane.pixels // TILE
        most = TOGETHER if for_lanes(x) else 1
        taken = next(n for n in range(most, 0, -1) if tiles % n == 0)
        sums = []
        for k in range(9):
            terms = x.reshape(-1) * _neighbours(padded[0], 8 - k, plane)
            sums.append(terms.reshape(-1, taken * TILE).sum(1).sum().reshape(1))
        return by_x, Tensor.concat(sums, 0), None


def _neighbours(padded: Tensor, k: int, plane: Plane) -> Tensor:
    """[pixels]: of each the neighbour number k, of 3 by 3, of one channel [length]."""
    begin = plane.margin + (k // 3 - 1) * plane.pitch + k % 3 - 1
    return padded[begin : begin + plane.pixels]


def _padded(x: Tensor, plane: Plane) -> Tensor:
    zeros = Tensor.zeros(x.shape[0], plane.margin)
    return Tensor.concat([zeros, x, zeros], 1)


def _framed(x: Tensor, plane: Plane) -> Tensor:
    """The same values; a GPU does not wait until they stand in memory with zeros around them."""
    if for_lanes(x):
        return x.pad((0, 0), (plane.margin, plane.margin))
    return _padded(x, plane)


def for_lanes(x: Tensor) -> bool:
    """Whether lanes of a GPU compute it, which take conditions and distant reads as they come."""
    return x.device is not None and x.device.lanes == "group"


def _correlation(padded: Tensor, weights: Tensor, plane: Plane) -> Tensor:
    """padded [channels, length], weights [channels * 9, outputs] -> [outputs, pixels]."""
    taps = []
    for c, k in product(range(padded.shape[0]), range(9)):
        seen = _neighbours(padded[c], k, plane)
        taps.append(seen.reshape(1, plane.pixels // TILE, TILE))
    return Tensor.weighted_sums(taps, weights.transpose()).reshape(-1, plane.pixels)


def soft_round(x: Tensor, inverse: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """x moved towards the nearest whole number, and the slope of that.

    `inverse` is 1 / T, `spread` 1 / (2 tanh(1 / (2 T))): at large T x stays where it is.
    """
    whole = _floor(x)
    turned = 1.0 - 2.0 / (((x - whole - 0.5) * inverse * (2 / math.log(2))).exp2() + 1.0)
    return whole + 0.5 + turned * spread, (1.0 - turned * turned) * spread * inverse


def _floor(x: Tensor) -> Tensor:
    whole = x.cast(dtype.i32).cast(dtype.f32)
    return Tensor.where(x < whole, whole - 1.0, whole)


def nearest(x: Tensor) -> Tensor:
    """The nearest whole number, of two the larger."""
    return _floor(x + 0.5)


def noise(bits: Tensor, share: Tensor) -> Tensor:
    """Noise around 0, within half a step, from random bits: two uniform numbers' weighted mean.

    With a `share` of 1 for the first it is uniform; with less the middle is more likely.
    """
    first = (bits >> 16).cast(dtype.i32).cast(dtype.f32) * 2.0**-16
    second = (bits & 0xFFFF).cast(dtype.i32).cast(dtype.f32) * 2.0**-16
    return second + (first - second) * share - (0.5 - 2.0**-17)
