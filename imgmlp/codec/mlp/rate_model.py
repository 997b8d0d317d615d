"""How large a network should be for a price, a size or a quality.

Sizes follow from runs on photographs (docs/compression-mlp.md): a network does best with some five
bits for each of its weights, and the price of a bit decides how many weights are worth having.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from imgmlp.codec.mlp.network import MAX_WIDTH, Shape
from imgmlp.codec.mlp.rooms import usual_frequencies
from imgmlp.codec.training.target import Goal

BITS = 5.3  # for a weight
HIDDEN = 5  # layers
FEW = 1000  # weights, too few for more than
HIDDEN_OF_FEW = 3
# Pictures of the middling kind: at a price of 3e-3 a pixel pays for so many weights.
_WEIGHTS, _PRICE, _POWER = 0.061, 3e-3, 0.65
_FIRST = 0.3  # of the price that pays for weights: at about so much they take BITS each
_USUAL_RATE, _USUAL_QUALITY = 0.35, 29.5  # bits a pixel and dB of them that go together
_GAIN = 2.2  # dB that twice the weights bring, where nothing is known
_GAINS = 1.2, 5.0  # the least and the most that is believed
_FADING = 0.57  # of what the last doubling of the steps brought, that the next one brings
_POWER_OF_ERROR = math.log2(10) / 10  # by which halvings of the error go with dB


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


def weights_worth(price: float, pixels: int, known: Sequence[Known]) -> float:
    """How many weights have the least squared error + price * bits a pixel.

    There, what twice the weights save of the error is what they cost: the error falls as their
    number to a power.
    """
    near, power = known[-1], _POWER_OF_ERROR * _gain(known)
    worth = price_of(near.weights, near.psnr, pixels, known)
    return float(near.weights * (worth / price) ** (1 / (1 + power)))


def price_of(weights: float, quality: float, pixels: int, known: Sequence[Known]) -> float:
    """The price at which so many weights are worth theirs where they give so many dB."""
    saved = _POWER_OF_ERROR * _gain(known) * 10 ** (-quality / 10)
    return float(saved / (BITS * weights / pixels))


def more_steps(gain: float, doublings: float) -> float:
    """dB that so many doublings of a run's steps bring where the last one brought a gain."""
    return float(max(gain, 0.0) * _FADING * (1 - _FADING**doublings) / (1 - _FADING))


def usual_weights(wanted: Goal, pixels: int) -> float:
    """How many weights pictures of the middling kind need for a price or a quality."""
    if wanted.kind == "lambda":
        return float(pixels * _WEIGHTS * (_PRICE / wanted.value) ** _POWER)
    return float(pixels * _USUAL_RATE * 2 ** ((wanted.value - _USUAL_QUALITY) / _GAIN) / BITS)


def first_price(weights: float, pixels: int) -> float:
    """A price to begin with where so many weights are to take BITS each."""
    price = _FIRST * _PRICE * (pixels * _WEIGHTS / weights) ** (1 / _POWER)
    return float(min(max(price, 1e-6), 1.0))


def network_shape(weights: float, channels: int) -> Shape:
    """The network whose number of weights is nearest; the smallest that makes sense has some 100.

    There are few, so that most of what is compiled for one picture serves others as well: how many
    bits a weight takes makes up for the difference.
    """
    found = _shapes(channels)
    return min(found, key=lambda shape: abs(math.log(shape.parameters / max(weights, 1.0))))


def neighbours(shape: Shape) -> list[Shape]:
    """A network and those that are next to it by their number of weights, the larger one first."""
    found = sorted(_shapes(shape.channels), key=lambda other: other.parameters)
    at = found.index(shape)
    return [shape, *found[at + 1 : at + 2], *found[max(at - 1, 0) : at]]


@cache
def _shapes(channels: int) -> tuple[Shape, ...]:
    """Widths of four binary digits: one network has up to a quarter more weights than the next.

    Five layers reach more than three wider ones, but layers of a few values hold a network up.
    """
    widths = [first << n for n in range(7) for first in range(8, 16)]
    sizes = [(HIDDEN_OF_FEW, width) for width in range(4, 8)]
    sizes += [
        (hidden, width) for hidden in (HIDDEN_OF_FEW, HIDDEN) for width in (*widths, MAX_WIDTH)
    ]
    shapes = [Shape(usual_frequencies(w), hidden, w, channels) for hidden, w in sizes]
    return tuple(s for s in shapes if (s.parameters < FEW) is (s.hidden == HIDDEN_OF_FEW))
