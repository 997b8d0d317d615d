"""How large a network should be for a price, a size or a quality.

Sizes follow from runs on photographs (docs/compression.md): a network does best with some six
bits for each of its weights, and the price of a bit decides how many weights are worth having.
"""

from __future__ import annotations

import math

from imgmlp.codec.mlp.network import MAX_WIDTH, Shape

BITS = 6.0  # for a weight
OVERHEAD = 90.0  # bytes of a file that are no weights
HIDDEN = 5  # layers
FEW = 1000  # weights, too few for more than
HIDDEN_OF_FEW = 3
PANEL, PART = 64, 8  # wider layers are multiples of a part
# At a price of 3e-3 a pixel pays for so many weights; a cheaper bit pays for more.
_WEIGHTS, _PRICE, _POWER = 0.061, 3e-3, 0.65
_FIRST = 0.3  # of the price that pays for weights: at about so much they take BITS each
_GAIN = 1.9  # dB that twice the weights bring


def weights_worth(price: float, pixels: int) -> float:
    """How many weights a picture should have at this price of a bit."""
    return float(pixels * _WEIGHTS * (_PRICE / price) ** _POWER)


def first_price(weights: float, pixels: int) -> float:
    """A price to begin with where so many weights are to take BITS each."""
    price = _FIRST * _PRICE * (pixels * _WEIGHTS / weights) ** (1 / _POWER)
    return float(min(max(price, 1e-6), 1.0))


def network_shape(weights: float, channels: int) -> Shape:
    """A network of about so many weights; the smallest one that makes sense has some 100.

    Five layers reach more than three wider ones, but layers of a few values hold a network up.
    Devices compute layers above PANEL wide in panels, and a part of one takes as long as a whole.
    """
    frequencies = int(min(16, max(4, math.sqrt(weights) / 5)))
    hidden = HIDDEN if weights >= FEW else HIDDEN_OF_FEW
    # weights = (hidden - 1) width**2 + (4 frequencies + channels + hidden) width + channels
    square, linear = hidden - 1, 4 * frequencies + channels + hidden
    width = (math.sqrt(linear**2 + 4 * square * max(weights - channels, 0)) - linear) / (2 * square)
    whole = round(width) if width < PANEL else PART * round(width / PART)
    return Shape(frequencies, hidden, min(MAX_WIDTH, max(4, whole)), channels)


def more_weights(weights: float, missing: float) -> float:
    """How many weights bring so many dB more."""
    return float(weights * 2 ** (missing / _GAIN))
