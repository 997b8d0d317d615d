"""How many weights a picture needs for a target, by what short runs and attempts have shown.

Knows no clock and no device: plain numbers, which a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from imgmlp.codec.mlp import rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.rate_model import Known
from imgmlp.codec.training.target import TOLERANCE, Goal

PILOT_RATE = 0.3  # bits a pixel of the first short run's network
LEAST = 500.0  # weights of it
APART = 2  # doublings of weights between such networks
PILOTS = 4  # two of one network, to see what more steps bring, and two of another
FAR, FARTHEST = 1.5, 3.0  # doublings of weights about which a short run says little, and nothing
MARGIN = 0.1  # dB more than wanted that training aims at, as taking some away is easy
SPARE = 1.25  # times the weights that a network may have which was seen to have a quality
OTHER = 1.01  # times the weights, up or down, that make another attempt worth its time
LARGER = 1.03  # times the weights, at least, where too few missed a quality
COARSEST = 3.0  # bits of a weight, where a network that is too large must do


def pilot_weights(samples: int) -> float:
    """Those of the first short run, the same for many pictures: there it is compiled just once."""
    doublings = math.log2(max(1.0, PILOT_RATE * samples / rate_model.BITS / LEAST))
    return float(LEAST * 2 ** (APART * round(doublings / APART)))


@dataclass
class SizeSearch:
    """The network to train next. `most` are the weights that it may have."""

    wanted: Goal
    samples: int
    channels: int
    most: float
    weights: float  # that are paid for, BITS each
    size: float | None = None  # weights of the network, if it has more, of fewer bits each
    pilots: list[list[float]] = field(default_factory=list)  # weights, steps, dB of short runs
    attempts: list[list[float]] = field(default_factory=list)  # weights as paid for, dB, size

    KEPT: ClassVar = ("most", "weights", "size", "pilots", "attempts")

    def values(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name) for name in self.KEPT}

    def restore(self, values: Mapping[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, values[name])

    def shape(self) -> Shape:
        return self.shape_of(self.size or self.weights)

    def shape_of(self, weights: float) -> Shape:
        return rate_model.network_shape(weights, self.channels)

    def searched(self) -> bool:
        """Whether short runs were made of a network near to the one that is wanted."""
        if len(self.pilots) < 2 or len(self.pilots) % 2:
            return False
        near = abs(math.log2(self.weights / self.pilots[-1][0])) < FAR
        return near or len(self.pilots) == PILOTS

    def resize(self, steps: Callable[[float], float]) -> None:
        """Have the weights that the target needs; `steps` tells those of an attempt with so many.

        Never fewer than the smallest network has, as it would be priced and enlarged as if it had
        so few.
        """
        known = self._known(steps)
        if self.wanted.kind == "psnr":
            wished = rate_model.weights_for(self.wanted.value + MARGIN, known)
        else:
            wished = rate_model.weights_worth(self.wanted.value, self.samples, known)
        if not self.attempts:
            tried, reach = self.pilots[-1][0], 2**FARTHEST
            wished = min(max(wished, tried / reach), tried * reach)
        self.weights = min(max(wished, self.shape_of(1.0).parameters), self.most)
        self.size = self._proven()
        if self.size is not None:
            same = [Known(paid, psnr) for paid, psnr, size in self.attempts if size == self.size]
            self.weights = min(rate_model.weights_for(self.wanted.value, same), self.most)

    def again(self, best: float, steps: Callable[[float], float]) -> bool:
        """Resize after an attempt; whether another one may bring what `best`, in dB, lacks."""
        before = self.weights
        self.resize(steps)
        if self.wanted.value - best > TOLERANCE:
            self.weights = min(max(self.weights, LARGER * before), self.most)
        return abs(math.log(self.weights / before)) > math.log(OTHER)

    def make_do(self) -> None:
        """Take the network that is compiled, with as many bits as the wanted one would have."""
        if self.pilots:
            self.size = self.pilots[-1][0]
            self.weights = max(self.weights, self.size * COARSEST / rate_model.BITS)

    def _known(self, steps: Callable[[float], float]) -> list[Known]:
        """Of attempts, or else what short runs would have given if they were as long."""
        if self.attempts:
            return [Known(paid, psnr) for paid, psnr, _ in self.attempts]
        pairs, found = (self.pilots[::2], self.pilots[1::2]), []
        for (weights, _, before), (_, done, after) in zip(*pairs, strict=True):
            longer = math.log2(max(1.0, steps(weights) / done))
            found.append(Known(weights, after + rate_model.more_steps(after - before, longer)))
        return found

    def _proven(self) -> float | None:
        """Weights of the smallest network seen to have the quality, if it is hardly too large.

        It is better taken again with fewer bits than exchanged for another one: networks of a value
        more or less and as many bits differ by 0.3 dB either way.
        """
        goal, reach = self.wanted.value, SPARE * self.weights
        sizes = [size for _, psnr, size in self.attempts if psnr >= goal and size <= reach]
        return min(sizes, default=None)
