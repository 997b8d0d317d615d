"""The latent codec's operations as Tensors, with gradients of their own.

What each of them computes stands in docs/format-imlp.md in whole numbers; here it is floats, for
training. All gradients are gathered: a value's gradient reads what used it, shifted back.
"""

from __future__ import annotations

import math

from imgmlp.codec.latent.plane import REACH, ROWS, Plane
from imgmlp.engine import Context, Function, Tensor, dtype

WIDTH = 2 * REACH + 1  # of a row of neighbours
NEIGHBOURS = REACH * WIDTH + REACH
TAPS = 4  # of either phase of an upsampling filter
LEAST = 2.0**-16  # probability


class Activation(Function):
    """x times a share that grows from 0 at -2 to 1 at 2."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        u = _share(x)
        return x * u * u * (3.0 - u * 2.0)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        u = _share(x)
        return g * (u * u * (3.0 - u * 2.0) + x * u * (1.0 - u) * 1.5)


def _share(x: Tensor) -> Tensor:
    return (x * 0.25 + 0.5).maximum(0.0).minimum(1.0)


class Contexts(Function):
    """[size] -> [NEIGHBOURS, places]: of each place three rows above, then what is left of it."""

    @staticmethod
    def forward(ctx: Context, values: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        k = Tensor.arange(NEIGHBOURS).reshape(NEIGHBOURS, 1)
        away = (k // WIDTH - REACH) * plane.pitch + k % WIDTH - REACH
        places = Tensor.arange(plane.places).reshape(1, plane.places)
        return values.gather(places + away + plane.first)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        parts = []
        for k in range(NEIGHBOURS):
            begin = plane.first + (k // WIDTH - REACH) * plane.pitch + k % WIDTH - REACH
            parts.append(g[k].pad((begin, plane.size - plane.places - begin)))
        return sum(parts[1:], parts[0]), None


class Bits(Function):
    """Of values under Laplace distributions with a mean and a logarithm of the scale: all [n].

    The scale is exp(s - 4), from exp(-5) to exp(5); a value has the mass from half a step below it
    to half a step above.
    """

    @staticmethod
    def forward(ctx: Context, value: Tensor, mean: Tensor, s: Tensor) -> Tensor:
        ctx.save_for_backward(value, mean, s)
        _, _, _, _, p = _mass(value, mean, s)
        return -(p.maximum(LEAST).log2())

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, mean, s = ctx.saved_tensors
        away, rate, near, far, p = _mass(value, mean, s)
        by_mass = Tensor.where(p > LEAST, g * (-1 / math.log(2)) / p.maximum(LEAST), 0.0)
        by_away = by_mass * rate * (far - near) * 0.5
        by_value = Tensor.where(value < mean, -by_away, by_away)
        by_rate = by_mass * 0.5 * ((away + 0.5) * far - (away - 0.5) * near)
        inside = (s > -1.0) & (s < 9.0)
        return by_value, -by_value, Tensor.where(inside, -(by_rate * rate), 0.0)


def _mass(value: Tensor, mean: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Distance, inverse scale, both tails, and the mass between them."""
    away = (value - mean).abs()
    rate = ((4.0 - s).maximum(-5.0).minimum(5.0) * (1 / math.log(2))).exp2()
    turn = rate * (-1 / math.log(2))
    near = ((away - 0.5).abs() * turn).exp2()
    far = ((away + 0.5) * turn).exp2()
    p = Tensor.where(away < 0.5, 1.0 - (near + far) * 0.5, (near - far) * 0.5)
    return away, rate, near, far, p


class Convolution(Function):
    """x [channels, pixels], zero outside of the picture; weights [channels * 9, outputs].

    The weight of channel c, row y and column x of its 3 by 3 neighbours is number 9 c + 3 y + x.
    """

    @staticmethod
    def forward(ctx: Context, x: Tensor, weights: Tensor, plane: Plane) -> Tensor:
        ctx.plane = plane  # type: ignore[attr-defined]
        padded = _padded(x, plane)
        ctx.save_for_backward(padded, weights)
        count, outputs = weights.shape
        return _correlation(padded, weights.reshape(count // 9, 9, outputs), plane)

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor, None]:
        plane: Plane = ctx.plane  # type: ignore[attr-defined]
        padded, weights = ctx.saved_tensors
        count, outputs = weights.shape
        turned = weights.reshape(count // 9, 9, outputs).flip(1).permute(2, 1, 0)
        by_x = _correlation(_padded(g, plane), turned, plane)
        k = Tensor.arange(count).reshape(count, 1)
        length = plane.pixels + 2 * plane.margin
        away = k // 9 * length + (k % 9 // 3 - 1) * plane.pitch + k % 3 - 1
        places = Tensor.arange(plane.pixels).reshape(1, plane.pixels)
        patches = padded.reshape(-1).gather(places + away + plane.margin)
        return by_x, patches @ g.permute(1, 0), None


def _padded(x: Tensor, plane: Plane) -> Tensor:
    zeros = Tensor.zeros(x.shape[0], plane.margin)
    return Tensor.concat([zeros, x, zeros], 1)


def _correlation(padded: Tensor, weights: Tensor, plane: Plane) -> Tensor:
    """padded [channels, length], weights [channels, 9, outputs] -> [outputs, pixels]."""
    channels, _, outputs = weights.shape
    shape = (outputs, plane.pixels // ROWS, ROWS)
    total = None
    for c in range(channels):
        for k in range(9):
            begin = plane.margin + (k // 3 - 1) * plane.pitch + k % 3 - 1
            seen = padded[c, begin : begin + plane.pixels].reshape(1, *shape[1:])
            term = weights[c, k].reshape(outputs, 1, 1) * seen
            total = term if total is None else total + term
    assert total is not None
    return total.reshape(outputs, plane.pixels)


def upsampled(x: Tensor, taps: Tensor, height: int, width: int) -> Tensor:
    """[c, h, w] -> [c, height, width], which is twice as large, or a little less or more."""
    down = _doubled(x.permute(0, 2, 1), taps, height).permute(0, 2, 1)
    return _doubled(down, taps, width)


def _doubled(x: Tensor, taps: Tensor, wanted: int) -> Tensor:
    """The last axis, twice as long: 4 taps for even places, the same from the end for odd ones."""
    n = x.shape[-1]
    half = -(-wanted // 2)
    first, last = x[:, :, :1], x[:, :, n - 1 :]
    padded = Tensor.concat([first, first, x, *([last] * (half - n + 2))], 2)
    parts = []
    for phase in (0, 1):
        terms = []
        for j in range(TAPS):
            tap = taps[TAPS - 1 - j if phase else j].reshape(1, 1, 1)
            terms.append(padded[:, :, j + phase : j + phase + half] * tap)
        parts.append((terms[0] + terms[1] + terms[2] + terms[3]).reshape(*x.shape[:2], half, 1))
    both = Tensor.concat(parts, 3).reshape(*x.shape[:2], 2 * half)
    return both[:, :, :wanted]


def bicubic() -> list[float]:
    """The taps to begin with: Keys' cubic with a = -0.75, a quarter of a step to the left."""
    found = []
    for d in (1.75, 0.75, 0.25, 1.25):
        a = -0.75
        if d <= 1:
            found.append((a + 2) * d**3 - (a + 3) * d**2 + 1)
        else:
            found.append(a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a)
    return found


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


def kumaraswamy(uniform: Tensor, inverse_a: Tensor, inverse_b: Tensor) -> Tensor:
    """Noise around 0, within half a step, from numbers in [0, 1)."""
    inner = ((1.0 - uniform).log2() * inverse_b).exp2().minimum(1 - 2.0**-24)
    return ((1.0 - inner).log2() * inverse_a).exp2() - 0.5
