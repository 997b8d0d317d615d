"""How large a network should be for a lambda, a number of bytes or a PSNR.

The sizes follow from runs on photographs (docs/compression-mlp.md): a network does best with about
five bits per weight, and lambda decides how many weights are worth their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from imgmlp.codec.mlp.buckets import usual_frequencies
from imgmlp.codec.mlp.network import MAX_WIDTH, Shape
from imgmlp.codec.training.target import Goal

BITS_PER_WEIGHT = 5.3  # at which networks compress best
HIDDEN_LAYERS = 5
# Networks of fewer weights have fewer layers.
MAX_SMALL_NETWORK_WEIGHTS = 1000
SMALL_NETWORK_HIDDEN_LAYERS = 3

# The weights of a typical picture: a number per pixel at the reference lambda, multiplied by
# (reference lambda / lambda) to this power.
_REFERENCE_LMBDA = 3e-3
_REFERENCE_WEIGHTS_PER_PIXEL = 0.061
_LMBDA_EXPONENT = 0.65
# Training begins with this fraction of the lambda at which the weights of a network are worth their
# bits. They then end with about BITS_PER_WEIGHT.
_INITIAL_LMBDA_FACTOR = 0.3
# How a typical picture's weights follow from its PSNR: a rate in bits per pixel and the dB that it
# gives, and the dB that twice the weights bring.
_REFERENCE_RATE = 0.35
_REFERENCE_PSNR = 29.5
_USUAL_PSNR_PER_DOUBLING = 2.2
# Limits of the dB that twice the weights bring, if measured on networks that differ by at least
# _MIN_DOUBLINGS.
_MIN_DOUBLINGS = 0.2
_MIN_PSNR_PER_DOUBLING, _MAX_PSNR_PER_DOUBLING = 1.2, 5.0
_GAIN_RATIO = 0.57  # of the gain of a doubling of the steps to that of the doubling before
_HALVINGS_PER_DB = math.log2(10) / 10  # of the squared error

# The model of `predicted_psnr`, in dB. Size, length and density are doublings of the weights, the
# steps and the weights per pixel, counted from these origins (from 1 for the density).
#
# It was fitted to 110 runs of up to 9 seconds on five photographs, whole and 128×128 pixels out of
# their middle. With an offset for each picture, its standard error is 0.8 dB. From a run of 4,267
# weights and 1,000 steps it predicts runs of 960 to 37,000 weights within 1.1 dB.
_ORIGIN_WEIGHTS = 4_000.0
_ORIGIN_STEPS = 4_000.0
_BY_SIZE = 3.05
_BY_LENGTH = 1.91
_BY_SQUARED_DENSITY = 0.163
_BY_SQUARED_LENGTH = -0.156
_BY_LENGTH_AND_DENSITY = 0.198
_BY_LENGTH_AND_SIZE = 0.133
_MIN_DENSITY, _MAX_DENSITY = -8.7, 1.2  # the range of these runs, beyond which nothing changes
# On 27 runs of 5,000 to 60,000 steps on 128×128 pixels of six photographs, the prediction by a run
# of 1,000 steps was too high by 0.5 dB for each doubling of the steps beyond _LONG_RUN_STEPS. Half
# of that is subtracted, as more bits make up for some of it.
_LONG_RUN_STEPS = 8_000
_LONG_RUN_LOSS = 0.25
# dB that a network should have beyond the wanted PSNR: fewer bits take them away, whereas more bits
# cannot bring as much.
PSNR_RESERVE = 1.0

# The model of `expected_final_psnr`: dB that a run gains after this fraction of its steps, by the
# doublings of its weights and of its steps. It was fitted to 18 runs of 10 seconds on six
# photographs of 128×128 pixels, with a standard error of 0.5 dB. Shorter runs and larger networks
# than these limits were not among them.
EARLY_CHECK_FRACTION = 0.2
MIN_EARLY_CHECK_STEPS = 5_000
MAX_EARLY_CHECK_WEIGHTS = 6_000.0
_LATE_GAIN = -7.0
_LATE_GAIN_BY_SIZE = 1.37
_LATE_GAIN_BY_LENGTH = -0.43

MIN_USEFUL_STEPS = 2_000  # with fewer steps, larger networks are no better
_SIZES_PER_DOUBLING = 8  # numbers of weights that `best_weights` compares
_MIN_INITIAL_LMBDA, _MAX_INITIAL_LMBDA = 1e-6, 1.0


@dataclass(frozen=True)
class SizeResult:
    """The PSNR in dB that a network reached whose weights took BITS_PER_WEIGHT each."""

    weights: float
    psnr: float


def _psnr_per_doubling(results: Sequence[SizeResult]) -> float:
    """dB that twice the weights bring."""
    smallest = min(results, key=lambda one: one.weights)
    largest = max(results[::-1], key=lambda one: one.weights)  # the last one of equal size
    doublings = math.log2(largest.weights / smallest.weights)
    if doublings < _MIN_DOUBLINGS:
        return _USUAL_PSNR_PER_DOUBLING
    slope = (largest.psnr - smallest.psnr) / doublings
    return min(max(slope, _MIN_PSNR_PER_DOUBLING), _MAX_PSNR_PER_DOUBLING)


def weights_for_psnr(quality: float, results: Sequence[SizeResult]) -> float:
    """How many weights a picture needs for a PSNR in dB.

    Interpolated between the smallest network that reaches it and the largest smaller one, which
    does not; extrapolated where there is only one of them.
    """
    enough = [one for one in results if one.psnr >= quality]
    least = min(enough, key=lambda one: one.weights, default=None)
    few = [one for one in results if least is None or one.weights < least.weights]
    most = max(few, key=lambda one: one.weights, default=None)
    if least is not None and most is not None:
        fraction = (quality - most.psnr) / (least.psnr - most.psnr)
        return float(most.weights * (least.weights / most.weights) ** fraction)
    near = least or most
    assert near is not None
    return float(near.weights * 2 ** ((quality - near.psnr) / _psnr_per_doubling(results)))


def weights_for_lmbda(lmbda: float, pixels: int, results: Sequence[SizeResult]) -> float:
    """How many weights have the least squared error + lambda * bits per pixel.

    The error falls with their number to a power, so that at the optimum its slope is what another
    weight costs.
    """
    near, power = results[-1], _HALVINGS_PER_DB * _psnr_per_doubling(results)
    worth = lmbda_of(near.weights, near.psnr, pixels, results)
    return float(near.weights * (worth / lmbda) ** (1 / (1 + power)))


def lmbda_of(weights: float, quality: float, pixels: int, results: Sequence[SizeResult]) -> float:
    """Lambda at which this many weights, which reach this PSNR, are the optimum."""
    saved = _HALVINGS_PER_DB * _psnr_per_doubling(results) * 10 ** (-quality / 10)
    return float(saved / (BITS_PER_WEIGHT * weights / pixels))


def gain_of_more_steps(gain: float, doublings: float) -> float:
    """dB that these doublings of a run's steps bring, if the last doubling brought `gain`."""
    return float(max(gain, 0.0) * _GAIN_RATIO * (1 - _GAIN_RATIO**doublings) / (1 - _GAIN_RATIO))


def usual_weights(wanted: Goal, pixels: int) -> float:
    """How many weights a typical picture needs for a lambda or a PSNR."""
    if wanted.kind == "lambda":
        return float(
            pixels
            * _REFERENCE_WEIGHTS_PER_PIXEL
            * (_REFERENCE_LMBDA / wanted.value) ** _LMBDA_EXPONENT
        )
    return float(
        pixels
        * _REFERENCE_RATE
        * 2 ** ((wanted.value - _REFERENCE_PSNR) / _USUAL_PSNR_PER_DOUBLING)
        / BITS_PER_WEIGHT
    )


class RunResult(NamedTuple):
    """The network, the length and the result of a run."""

    weights: float
    steps: float
    psnr: float  # dB


def _typical_psnr(weights: float, steps: float, samples: int) -> float:
    """The PSNR of a run in dB, up to an offset that depends on the picture."""
    size = math.log2(weights / _ORIGIN_WEIGHTS)
    density = min(max(math.log2(weights / samples), _MIN_DENSITY), _MAX_DENSITY)
    slope = _BY_LENGTH + _BY_LENGTH_AND_DENSITY * density + _BY_LENGTH_AND_SIZE * size
    long = math.log2(_LONG_RUN_STEPS / _ORIGIN_STEPS)
    ends = [-each / (2 * _BY_SQUARED_LENGTH) for each in (slope, slope - _LONG_RUN_LOSS)]
    enough = min(ends[0], max(ends[1], long))  # the length beyond which more steps do not help
    length = min(math.log2(steps / _ORIGIN_STEPS), enough)
    by_steps = length * (slope + _BY_SQUARED_LENGTH * length) - _LONG_RUN_LOSS * max(
        length - long, 0.0
    )
    return _BY_SIZE * size + _BY_SQUARED_DENSITY * density**2 + by_steps


def predicted_psnr(weights: float, steps: float, samples: int, seen: RunResult) -> float:
    """The PSNR in dB that another run would reach on the picture of which a run was seen."""
    more = _typical_psnr(weights, steps, samples) - _typical_psnr(seen.weights, seen.steps, samples)
    return seen.psnr + more


def expected_final_psnr(reached: float, weights: float, steps: float) -> float:
    """The PSNR in dB that a run ends with, by what it `reached` at EARLY_CHECK_FRACTION."""
    size, length = (
        math.log2(min(weights, MAX_EARLY_CHECK_WEIGHTS)),
        math.log2(max(steps, MIN_EARLY_CHECK_STEPS)),
    )
    return reached + max(
        _LATE_GAIN + _LATE_GAIN_BY_SIZE * size + _LATE_GAIN_BY_LENGTH * length, 0.0
    )


def best_weights(
    wanted: Goal,
    samples: int,
    within: tuple[float, float],
    steps: Callable[[float], float],
    seen: RunResult,
) -> float:
    """How many weights are best for a target, where `steps` says how long a network is trained.

    Towards a PSNR, the fewest that are predicted to reach it with PSNR_RESERVE, or else those of
    the highest PSNR. For a lambda, those of the least squared error + lambda * bits per pixel.
    Sizes with less than MIN_USEFUL_STEPS are left out, unless all have less.
    """
    least, most = within
    count = max(1, math.ceil(_SIZES_PER_DOUBLING * math.log2(most / least)))
    sizes: list[float] = [least * (most / least) ** (n / count) for n in range(count + 1)]
    sizes = [size for size in sizes if steps(size) >= MIN_USEFUL_STEPS] or sizes[:1]
    psnrs = {size: predicted_psnr(size, steps(size), samples, seen) for size in sizes}
    if wanted.kind == "psnr":
        enough = (size for size in sizes if psnrs[size] >= wanted.value + PSNR_RESERVE)
        return next(enough, max(sizes, key=lambda size: psnrs[size]))

    def cost(size: float) -> float:
        return 10 ** (-psnrs[size] / 10) + wanted.value * BITS_PER_WEIGHT * size / samples

    return min(sizes, key=cost)


def initial_lmbda(weights: float, pixels: int) -> float:
    """Lambda at the beginning of a run in which weights should end with BITS_PER_WEIGHT."""
    lmbda = (
        _INITIAL_LMBDA_FACTOR
        * _REFERENCE_LMBDA
        * (pixels * _REFERENCE_WEIGHTS_PER_PIXEL / weights) ** (1 / _LMBDA_EXPONENT)
    )
    return float(min(max(lmbda, _MIN_INITIAL_LMBDA), _MAX_INITIAL_LMBDA))


def network_shape(weights: float, channels: int) -> Shape:
    """The network whose number of weights is nearest, of about 100 or more.

    There are few shapes, so that most compiled programs serve other pictures as well. The number of
    bits per weight makes up for the difference.
    """
    return min(
        shapes(channels), key=lambda shape: abs(math.log(shape.parameters / max(weights, 1.0)))
    )


def neighbours(shape: Shape, larger: int, smaller: int) -> list[Shape]:
    """A network and those next to it by their number of weights.

    Nearer ones come first, and of two that are equally near the larger one.
    """
    by_size = sorted(shapes(shape.channels), key=lambda other: other.parameters)
    at = by_size.index(shape)
    within = range(max(at - smaller, 0), min(at + larger + 1, len(by_size)))
    return [by_size[n] for n in sorted(within, key=lambda n: (abs(n - at), n < at))]


@cache
def shapes(channels: int) -> tuple[Shape, ...]:
    """All shapes that encoders choose from; each has at most a third more weights than the last.

    Five layers compress better than three wider ones, except where they would be very narrow.
    Widths have at most four significant binary digits.
    """
    widths = [first << n for n in range(7) for first in range(8, 16)]
    sizes = [(SMALL_NETWORK_HIDDEN_LAYERS, width) for width in range(4, 8)]
    sizes += [
        (hidden, width)
        for hidden in (SMALL_NETWORK_HIDDEN_LAYERS, HIDDEN_LAYERS)
        for width in (*widths, MAX_WIDTH)
    ]
    candidates = [Shape(usual_frequencies(w), hidden, w, channels) for hidden, w in sizes]
    return tuple(
        s
        for s in candidates
        if (s.parameters < MAX_SMALL_NETWORK_WEIGHTS) is (s.hidden == SMALL_NETWORK_HIDDEN_LAYERS)
    )
