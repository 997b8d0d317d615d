"""What a file is to reach, and how large a network that asks for.

Sizes follow from runs on photographs (docs/compression.md): a network does best with some six
bits for each of its weights, and the price of a bit decides how many weights are worth having.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from imgmlp.codec.mlp.network import MAX_WIDTH, Shape
from imgmlp.errors import UsageError

Kind = Literal["lambda", "bytes", "psnr"]

QUALITY = 60.0  # if nothing else is wanted
EFFORT = 5
LOWEST_SHARE = 0.97  # of the bytes wanted that a file has at least
TOLERANCE = 0.1  # dB
BITS = 6.0  # for a weight
OVERHEAD = 90.0  # bytes of a file that are no weights
HIDDEN = 5  # layers
FEW = 1000  # weights, too few for more than
HIDDEN_OF_FEW = 3
PANEL, PART = 64, 8  # wider layers are multiples of a part
STEPS = 60_000  # of a run with the default effort
WIDER = (1, 2, 3, 5, 8)  # times the pixels in a step, of it and of the levels above
# At a price of 3e-3 a pixel pays for so many weights; a cheaper bit pays for more.
_WEIGHTS, _PRICE, _POWER = 0.061, 3e-3, 0.65
_FIRST = 0.3  # of the price that pays for weights: at about so much they take BITS each
_GAIN = 1.9  # dB that twice the weights bring
_SUFFIXES = {"": 1, "k": 1000, "m": 1_000_000}


@dataclass(frozen=True)
class Target:
    """A price of bits (lambda: squared error on [0, 1] for a bit a pixel), bytes, or dB."""

    kind: Kind
    value: float

    def __str__(self) -> str:
        if self.kind == "bytes":
            return f"{self.value:,.0f} bytes"
        return f"{self.value:g} dB" if self.kind == "psnr" else f"lambda {self.value:.3g}"

    def misses(self, size: int, psnr: float) -> str | None:
        """How a file of this size and quality misses the target, or None.

        More dB than were asked for are no miss: some pictures have them with the smallest file.
        """
        fits = size <= self.value and (size >= LOWEST_SHARE * self.value or math.isinf(psnr))
        if self.kind == "bytes" and not fits:
            return f"{size:,} bytes instead of {self.value:,.0f}"
        if self.kind == "psnr" and self.value - psnr > TOLERANCE:
            return f"{psnr:.2f} dB instead of {self.value:g}"
        return None

    def hit_by(self, size: int, psnr: float) -> bool:
        """Whether no other file would be nearer to it."""
        if self.kind == "psnr":
            return abs(psnr - self.value) <= TOLERANCE
        return self.misses(size, psnr) is None

    def distance(self, size: int, psnr: float) -> tuple[bool, float]:
        """The smaller, the better a file is: what keeps the target, then what is near to it.

        Of files that have the dB asked for, the smallest is the best.
        """
        if self.kind == "bytes":
            return size > self.value, abs(size - self.value)
        if self.kind == "psnr":
            missing = self.value - psnr
            return (True, missing) if missing > TOLERANCE else (False, size)
        return False, 0.0


def choose(
    pixels: int,
    quality: float | None = None,
    bpp: float | None = None,
    size: str | None = None,
    psnr: float | None = None,
    price: float | None = None,
) -> Target:
    """The one target that was asked for, or the default quality. Raises UsageError."""
    given = {"--quality": quality, "--bpp": bpp, "--bytes": size, "--psnr": psnr, "--lambda": price}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} are several targets", hint="give one of them")
    if size is not None:
        return Target("bytes", parse_bytes(size))
    if bpp is not None:
        return Target("bytes", math.floor(_within("--bpp", bpp, 1e-4, 64) * pixels / 8))
    if psnr is not None:
        return Target("psnr", _within("--psnr", psnr, 5, 60))
    if price is not None:
        return Target("lambda", _within("--lambda", price, 1e-6, 1))
    wanted = _within("--quality", QUALITY if quality is None else quality, 0, 100)
    return Target("lambda", 2e-2 * 200 ** (-wanted / 100))


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}", hint=f"use a value from {low:g} to {high:g}")
    return value


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it: 20000, 20k, 1.5M. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([kKmM]?)[bB]?", text)
    count = round(float(match[1]) * _SUFFIXES[match[2].lower()]) if match else 0
    if not 1 <= count <= 2**27:
        raise UsageError(f"--bytes is {text!r}", hint="write it like 20000, 20k or 1.5M")
    return count


def work(effort: int) -> tuple[int, int]:
    """Training steps of an effort from 1 to 9, and by what it multiplies the pixels in each.

    Up to the default each level doubles the steps. Above it steps get wider: they bring as much
    as more of them, and GPUs take many pixels in little more time than few. Raises UsageError.
    """
    if not 1 <= effort <= 9:
        raise UsageError(f"--effort is {effort}", hint="use a whole number from 1 to 9")
    level = effort - EFFORT
    return int(STEPS * 2.0 ** min(level, 0)), WIDER[max(level, 0)]


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
