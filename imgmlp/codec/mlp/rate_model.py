"""How large a network should be for a lambda, a size or a quality.

Sizes follow from runs on photographs (docs/compression-mlp.md): a network does best with some five
bits for each of its weights, and lambda of a bit decides how many weights are worth having.
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

BITS = 5.3  # for a weight
HIDDEN = 5  # layers
FEW = 1000  # weights, too few for more than
HIDDEN_OF_FEW = 3
# Pictures of the middling kind: at a lambda of 3e-3 a pixel pays for so many weights.
_WEIGHTS, _LMBDA, _POWER = 0.061, 3e-3, 0.65
_FIRST = 0.3  # of lambda that pays for weights: at about so much they take BITS each
_USUAL_RATE, _USUAL_QUALITY = 0.35, 29.5  # bits a pixel and dB of them that go together
_GAIN = 2.2  # dB that twice the weights bring, where nothing is known
_GAINS = 1.2, 5.0  # the least and the most that is believed
_FADING = 0.57  # of what the last doubling of the steps brought, that the next one brings
_POWER_OF_ERROR = math.log2(10) / 10  # by which halvings of the error go with dB
# Of 110 runs of up to 9 seconds on five photographs, whole and 128x128 pixels out of their middle:
# dB by doublings of weights and of steps from these on, and of weights a pixel. With the picture's
# own share they are met within 0.8 dB (standard deviation); a run of 4,267 weights and 1,000 steps
# tells those of 960 to 37,000 weights within 1.1 dB.
_SOME_WEIGHTS, _SOME_STEPS = 4_000.0, 4_000.0
_BY_WEIGHTS, _BY_STEPS, _BY_DENSITY = 3.05, 1.91, 0.163
_STEPS_FADING, _STEPS_BY_DENSITY, _BOTH = -0.156, 0.198, 0.133
_SPARSE, _DENSE = -8.7, 1.2  # doublings of weights a pixel in these runs, beyond which none count
# Of 27 runs of 5,000 to 60,000 steps on six photographs, 128x128 pixels of each: what is told by a
# run of 1,000 was 0.5 dB too much for each doubling of steps from these on, of which half is taken
# off, as more bits make up for some of it.
_LONG, _TOO_MUCH = 8_000, 0.25
# dB that a network should have beyond a quality: fewer bits take these away, more cannot bring as
# much.
TO_SPARE = 1.0
# Of 18 runs of 10 seconds on six photographs, 128x128 pixels of each: how many dB more than after
# this share of its steps a run ends with, by doublings of weights and of steps; within 0.5 dB
# (standard deviation). Shorter runs and larger networks were not among them.
GLANCE, GLANCED_STEPS, GLANCED_WEIGHTS = 0.2, 5_000, 6_000.0
_STILL, _STILL_BY_WEIGHTS, _STILL_BY_STEPS = -7.0, 1.37, -0.43
FEW_STEPS = 2_000  # with fewer than these larger networks are no better
_FINENESS = 8  # sizes that are compared for each doubling


@dataclass(frozen=True)
class Known:
    """What a network of so many weights, of BITS each, gives of a picture, in dB."""

    weights: float
    psnr: float


def _gain(known: Sequence[Known]) -> float:
    """dB that twice the weights bring."""
    few, *_, many = sorted([*known, *known], key=lambda one: one.weights)
    doublings = math.log2(many.weights / few.weights)
    if doublings < 0.2:  # too near to each other
        return _GAIN
    return min(max((many.psnr - few.psnr) / doublings, _GAINS[0]), _GAINS[1])


def weights_for(quality: float, known: Sequence[Known]) -> float:
    """How many weights a picture needs for so many dB.

    Between the fewest that are enough and those that are not, or away from whichever there are.
    """
    enough = [one for one in known if one.psnr >= quality]
    least = min(enough, key=lambda one: one.weights, default=None)
    few = [one for one in known if least is None or one.weights < least.weights]
    most = max(few, key=lambda one: one.weights, default=None)
    if least is not None and most is not None:
        share = (quality - most.psnr) / (least.psnr - most.psnr)
        return float(most.weights * (least.weights / most.weights) ** share)
    near = least or most
    assert near is not None
    return float(near.weights * 2 ** ((quality - near.psnr) / _gain(known)))


def weights_worth(lmbda: float, pixels: int, known: Sequence[Known]) -> float:
    """How many weights have the least squared error + lambda * bits a pixel.

    There, what twice the weights save of the error is what they cost: the error falls as their
    number to a power.
    """
    near, power = known[-1], _POWER_OF_ERROR * _gain(known)
    worth = lmbda_of(near.weights, near.psnr, pixels, known)
    return float(near.weights * (worth / lmbda) ** (1 / (1 + power)))


def lmbda_of(weights: float, quality: float, pixels: int, known: Sequence[Known]) -> float:
    """Lambda at which so many weights are worth theirs where they give so many dB."""
    saved = _POWER_OF_ERROR * _gain(known) * 10 ** (-quality / 10)
    return float(saved / (BITS * weights / pixels))


def more_steps(gain: float, doublings: float) -> float:
    """dB that so many doublings of a run's steps bring where the last one brought a gain."""
    return float(max(gain, 0.0) * _FADING * (1 - _FADING**doublings) / (1 - _FADING))


def usual_weights(wanted: Goal, pixels: int) -> float:
    """How many weights pictures of the middling kind need for a lambda or a quality."""
    if wanted.kind == "lambda":
        return float(pixels * _WEIGHTS * (_LMBDA / wanted.value) ** _POWER)
    return float(pixels * _USUAL_RATE * 2 ** ((wanted.value - _USUAL_QUALITY) / _GAIN) / BITS)


class Seen(NamedTuple):
    """What a run showed."""

    weights: float
    steps: float
    psnr: float


def _usual(weights: float, steps: float, samples: int) -> float:
    """dB of a picture, but for its own share."""
    size = math.log2(weights / _SOME_WEIGHTS)
    density = min(max(math.log2(weights / samples), _SPARSE), _DENSE)
    slope = _BY_STEPS + _STEPS_BY_DENSITY * density + _BOTH * size
    long = math.log2(_LONG / _SOME_STEPS)
    ends = [-each / (2 * _STEPS_FADING) for each in (slope, slope - _TOO_MUCH)]
    enough = min(ends[0], max(ends[1], long))  # doublings of steps, beyond which none help
    length = min(math.log2(steps / _SOME_STEPS), enough)
    by_steps = length * (slope + _STEPS_FADING * length) - _TOO_MUCH * max(length - long, 0.0)
    return _BY_WEIGHTS * size + _BY_DENSITY * density**2 + by_steps


def predicted(weights: float, steps: float, samples: int, seen: Seen) -> float:
    """dB that so many weights would give after so many steps."""
    more = _usual(weights, steps, samples) - _usual(seen.weights, seen.steps, samples)
    return seen.psnr + more


def expected(reached: float, weights: float, steps: float) -> float:
    """dB that a run of so many steps ends with which has `reached` some at its GLANCE."""
    size, length = math.log2(min(weights, GLANCED_WEIGHTS)), math.log2(max(steps, GLANCED_STEPS))
    return reached + max(_STILL + _STILL_BY_WEIGHTS * size + _STILL_BY_STEPS * length, 0.0)


def best_weights(
    wanted: Goal,
    samples: int,
    within: tuple[float, float],
    steps: Callable[[float], float],
    seen: Seen,
) -> float:
    """How many weights are best for a target, if `steps` tells for how long they can be trained.

    The fewest that have its dB and some to spare, or else those with the most; or those of the
    least squared error + lambda * bits a pixel. None that could only be trained for a few steps,
    unless all are.
    """
    least, most = within
    count = max(1, math.ceil(_FINENESS * math.log2(most / least)))
    sizes: list[float] = [least * (most / least) ** (n / count) for n in range(count + 1)]
    sizes = [size for size in sizes if steps(size) >= FEW_STEPS] or sizes[:1]
    gives = {size: predicted(size, steps(size), samples, seen) for size in sizes}
    if wanted.kind == "psnr":
        enough = (size for size in sizes if gives[size] >= wanted.value + TO_SPARE)
        return next(enough, max(sizes, key=lambda size: gives[size]))

    def cost(size: float) -> float:
        return 10 ** (-gives[size] / 10) + wanted.value * BITS * size / samples

    return min(sizes, key=cost)


def first_lmbda(weights: float, pixels: int) -> float:
    """A lambda to begin with where so many weights are to take BITS each."""
    lmbda = _FIRST * _LMBDA * (pixels * _WEIGHTS / weights) ** (1 / _POWER)
    return float(min(max(lmbda, 1e-6), 1.0))


def network_shape(weights: float, channels: int) -> Shape:
    """The network whose number of weights is nearest; the smallest that makes sense has some 100.

    There are few, so that most of what is compiled for one picture serves others as well: how many
    bits a weight takes makes up for the difference.
    """
    found = shapes(channels)
    return min(found, key=lambda shape: abs(math.log(shape.parameters / max(weights, 1.0))))


def neighbours(shape: Shape, larger: int, smaller: int) -> list[Shape]:
    """A network and so many next to it by their number of weights, nearer ones first, and of two
    that are as near the larger one."""
    found = sorted(shapes(shape.channels), key=lambda other: other.parameters)
    at = found.index(shape)
    within = range(max(at - smaller, 0), min(at + larger + 1, len(found)))
    return [found[n] for n in sorted(within, key=lambda n: (abs(n - at), n < at))]


@cache
def shapes(channels: int) -> tuple[Shape, ...]:
    """All that there are, of widths of four binary digits: one has up to a quarter more weights
    than the next.

    Five layers reach more than three wider ones, but layers of a few values hold a network up.
    """
    widths = [first << n for n in range(7) for first in range(8, 16)]
    sizes = [(HIDDEN_OF_FEW, width) for width in range(4, 8)]
    sizes += [
        (hidden, width) for hidden in (HIDDEN_OF_FEW, HIDDEN) for width in (*widths, MAX_WIDTH)
    ]
    found = [Shape(usual_frequencies(w), hidden, w, channels) for hidden, w in sizes]
    return tuple(s for s in found if (s.parameters < FEW) is (s.hidden == HIDDEN_OF_FEW))
