"""How many weights a picture needs for a target, by what short runs and attempts have shown.

Knows no clock and no device: plain numbers, which a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from imgmlp.codec.mlp import rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.rate_model import RunResult, SizeResult
from imgmlp.codec.training.search import MAX_PSNR
from imgmlp.codec.training.target import TOLERANCE, Goal, Kind

PILOT_RATE = 0.3  # bits a pixel of the first short run's network
MIN_PILOT_WEIGHTS = 500.0  # weights of it
PILOT_SPACING = 2  # doublings of weights between such networks
MAX_PILOTS = 4  # two of one network, to see what more steps bring, and two of another
# Weights of the first short run's where the time is limited, as its steps are short then; and runs.
TIMED_PILOT_WEIGHTS, MAX_TIMED_PILOTS = 4_000.0, 2
RELIABLE_DOUBLINGS, MAX_DOUBLINGS = (
    1.5,
    3.0,
)  # doublings of weights about which a short run says little, and nothing
PSNR_MARGIN = 0.1  # dB more than wanted that training aims at, as taking some away is easy
MAX_WEIGHTS_EXCESS = (
    1.25  # times the weights that a network may have which was seen to have a quality
)
MIN_WEIGHTS_CHANGE = 1.01  # times the weights, up or down, that make another attempt worth its time
MIN_ENLARGEMENT = 1.03  # times the weights, at least, where too few missed a quality
NEAR_PSNR = 0.7  # dB from the target, where a network may be brought to it with other bits
EQUAL_DOUBLINGS = (
    0.2  # doublings of the bits between attempts that say which of two networks is better
)
EQUAL_BITS_FACTOR = 1.03  # times the bits, up to which they are no more
# Networks that are tried above and below the one that a target seems to need, at most; above it,
# for a quality, just one.
MAX_NEIGHBOURS = 2
FEWER_BITS_FACTOR = 0.97  # times the bits, of a network tried with fewer
# Pixels of pictures, at most, of which another network may soon take the first one's place in a
# limited time for a quality.
MAX_EARLY_CHECK_PIXELS = 2**14
# dB beyond a quality, and missing, from which on other bits are worse than other weights and the
# steps that these lose; and that the other network should have beyond it.
MAX_SURPLUS_PSNR, MAX_MISSING_PSNR, REPLACEMENT_SURPLUS_PSNR = 1.4, 0.5, 0.5
PSNR_PER_WEIGHT_HALVING, PSNR_PER_WEIGHT_DOUBLING = (
    4.5,
    3.0,
)  # dB that half as many weights cost, and twice as many bring
MIN_BITS_PER_WEIGHT = 3.0  # bits of a weight, where a network that is too large must do


def pilot_weights(samples: int) -> float:
    """Those of the first short run, the same for many pictures: there it is compiled just once."""
    doublings = math.log2(
        max(1.0, PILOT_RATE * samples / rate_model.BITS_PER_WEIGHT / MIN_PILOT_WEIGHTS)
    )
    return float(MIN_PILOT_WEIGHTS * 2 ** (PILOT_SPACING * round(doublings / PILOT_SPACING)))


def neighbours_to_try(shape: Shape, kind: Kind) -> list[Shape]:
    """A network that a target asks for, and those that may be tried beside it, in their order."""
    return rate_model.neighbours(shape, 1 if kind == "psnr" else MAX_NEIGHBOURS, MAX_NEIGHBOURS)


class Attempt(NamedTuple):
    """A network that was trained, and made a file of."""

    paid: float  # weights of BITS each, that its bits would pay for
    psnr: float
    size: float  # weights that it has


@dataclass
class SizeSearch:
    """The network to train next. `most` are the weights that it may have."""

    wanted: Goal
    samples: int
    channels: int
    most: float
    weights: float  # that are paid for, BITS each
    size: float | None = None  # weights of the network, if it has more, of fewer bits each
    pilots: list[RunResult] = field(default_factory=list)  # short runs
    attempts: list[Attempt] = field(default_factory=list)
    rivals: int = 0  # attempts with networks beside the one that was found
    exchanged: bool = False  # whether another one took the place of the first

    KEPT: ClassVar = ("most", "weights", "size", "pilots", "attempts", "rivals", "exchanged")

    def values(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name) for name in self.KEPT}

    def restore(self, values: Mapping[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, values[name])
        self.pilots = [RunResult(*one) for one in values["pilots"]]
        self.attempts = [Attempt(*one) for one in values["attempts"]]

    def shape(self) -> Shape:
        return self.shape_of(self.size or self.weights)

    def shape_of(self, weights: float) -> Shape:
        return rate_model.network_shape(weights, self.channels)

    def add_attempt(self, weights: float, psnr: float, size: float) -> None:
        """An attempt was made with so many weights as paid for, of a network with `size`."""
        self.attempts.append(Attempt(weights, min(psnr, MAX_PSNR), size))

    def searched(self) -> bool:
        """Whether short runs were made of a network near to the one that is wanted."""
        if len(self.pilots) < 2 or len(self.pilots) % 2:
            return False
        near = abs(math.log2(self.weights / self.pilots[-1].weights)) < RELIABLE_DOUBLINGS
        return near or len(self.pilots) == MAX_PILOTS

    def foreseen(self) -> bool:
        """The same where the time is limited: one run is enough, unless far fewer are wanted.

        Those of more weights take too long.
        """
        if not self.pilots:
            return False
        near = math.log2(self.pilots[0].weights / self.weights) < RELIABLE_DOUBLINGS
        return near or len(self.pilots) == MAX_TIMED_PILOTS

    def choose_for_time_limit(self, steps: Callable[[float], float]) -> None:
        """Have the weights that are best in a limited time, of which `steps` tells the runs."""
        within = float(self.shape_of(1.0).parameters), self.most
        seen = self.pilots[-1]
        self.weights = rate_model.best_weights(self.wanted, self.samples, within, steps, seen)

    @property
    def checks_early(self) -> bool:
        """Whether it is seen early in a limited run that another network would do better."""
        small = self.wanted.kind == "psnr" and self.samples <= MAX_EARLY_CHECK_PIXELS
        return small and self.size is None and not self.exchanged

    def replacement(self, weights: float, expected: float) -> float | None:
        """The weights of another network that should be taken for a quality in the time that is
        left, if one of so many will end with dB that are far from it."""
        beyond = expected - self.wanted.value
        if not (beyond > MAX_SURPLUS_PSNR or beyond < -MAX_MISSING_PSNR):
            return None
        found = weights * 2 ** (
            (REPLACEMENT_SURPLUS_PSNR - beyond)
            / (PSNR_PER_WEIGHT_HALVING if beyond > 0 else PSNR_PER_WEIGHT_DOUBLING)
        )
        found = min(max(found, self.shape_of(1.0).parameters), self.most)
        return found if self.shape_of(found) != self.shape() else None

    def resize(self, steps: Callable[[float], float]) -> None:
        """Have the weights that the target needs; `steps` tells those of an attempt with so many.

        Never fewer than the smallest network has, as it would be priced and enlarged as if it had
        so few.
        """
        known = self._known(steps)
        if self.wanted.kind == "psnr":
            wished = rate_model.weights_for_psnr(self.wanted.value + PSNR_MARGIN, known)
        else:
            wished = rate_model.weights_for_lmbda(self.wanted.value, self.samples, known)
        if not self.attempts:
            tried, reach = self.pilots[-1].weights, 2**MAX_DOUBLINGS
            wished = min(max(wished, tried / reach), tried * reach)
        self.weights = min(max(wished, self.shape_of(1.0).parameters), self.most)
        self.size = self._smallest_sufficient()
        if self.size is not None:
            same = [
                SizeResult(one.paid, one.psnr) for one in self.attempts if one.size == self.size
            ]
            self.weights = min(rate_model.weights_for_psnr(self.wanted.value, same), self.most)

    def again(self, best: float, steps: Callable[[float], float]) -> bool:
        """Resize after an attempt; whether another one may bring what `best`, in dB, lacks."""
        before = self.weights
        self.resize(steps)
        if self.wanted.value - best > TOLERANCE:
            self.weights = min(max(self.weights, MIN_ENLARGEMENT * before), self.most)
        return abs(math.log(self.weights / before)) > math.log(MIN_WEIGHTS_CHANGE)

    def challenge(self, most: int) -> bool:
        """Take the network next to the best one, up to `most` times; whether there is another.

        Chance makes networks of a value more or less differ by up to 0.5 dB with as many bits. It
        is the same chance whichever way a file is asked for, so that the best of several is the
        best of nearly the same ones.
        """
        if self.rivals >= most:
            return False
        best: float | None = None
        if self.wanted.kind == "psnr":
            if not (needs := self._weights_needed()):
                return False
            best = min(needs, key=lambda size: needs[size])
            self.weights = min(needs[best], self.most)
        found = self._untried()
        if found is None and best is not None and self._try_fewer_bits(best):
            found = best
        if found is not None:
            self.rivals += 1
            self.size = found
        return found is not None

    def _untried(self) -> float | None:
        """The weights of the network that the target asks for, or of one beside it that is hardly
        larger than it may be."""
        tried = {one.size for one in self.attempts if self._alike(one.paid)}
        among = neighbours_to_try(self.shape_of(self.weights), self.wanted.kind)
        sizes = (float(shape.parameters) for shape in among)
        few = (size for size in sizes if size <= MAX_WEIGHTS_EXCESS * self.most)
        return next((size for size in few if size not in tried), None)

    def _try_fewer_bits(self, size: float) -> bool:
        """Have a network the bits that may be just enough, if it was tried with none near them.

        Some less than were enough: within one network bits count for less than between two.
        """
        least = self.wanted.value - TOLERANCE
        own = [one for one in self.attempts if one.size == size]
        enough = min((one.paid for one in own if one.psnr >= least), default=None)
        if enough is not None:
            self.weights = min(self.weights, FEWER_BITS_FACTOR * enough)
        few = max((one.paid for one in own if one.psnr < least), default=0.0)
        return self.weights * math.sqrt(FEWER_BITS_FACTOR) > few

    def _weights_needed(self) -> dict[float, float]:
        """The weights to pay for until networks of these sizes have the dB, by attempts near it,
        and by those that had more for no more than these need."""
        known, goal = dict[float, list[SizeResult]](), self.wanted.value
        for one in self.attempts:
            known.setdefault(one.size, []).append(SizeResult(one.paid, one.psnr))
        needs = {size: rate_model.weights_for_psnr(goal, of) for size, of in known.items()}
        near = [n for n, of in known.items() if any(abs(o.psnr - goal) < NEAR_PSNR for o in of)]
        most = EQUAL_BITS_FACTOR * min((needs[size] for size in near), default=0.0)
        return {
            size: needs[size]
            for size, of in known.items()
            if size in near or any(o.psnr >= goal and o.weights <= most for o in of)
        }

    def _alike(self, paid: float) -> bool:
        """Whether so many weights are about as many as are paid for now."""
        return self.wanted.kind != "psnr" or abs(math.log2(paid / self.weights)) < EQUAL_DOUBLINGS

    def use_compiled(self) -> None:
        """Take the network that is compiled, with as many bits as the wanted one would have."""
        if self.pilots:
            self.size = self.pilots[-1].weights
            self.weights = max(
                self.weights, self.size * MIN_BITS_PER_WEIGHT / rate_model.BITS_PER_WEIGHT
            )

    def _known(self, steps: Callable[[float], float]) -> list[SizeResult]:
        """Of attempts, or else what short runs would have given if they were as long."""
        if self.attempts:
            return [SizeResult(one.paid, one.psnr) for one in self.attempts]
        found = list[SizeResult]()
        for before, after in zip(self.pilots[::2], self.pilots[1::2], strict=True):
            longer = math.log2(max(1.0, steps(before.weights) / after.steps))
            more = rate_model.gain_of_more_steps(after.psnr - before.psnr, longer)
            found.append(SizeResult(before.weights, after.psnr + more))
        return found

    def _smallest_sufficient(self) -> float | None:
        """Weights of the smallest network seen to have the quality, if it is hardly too large.

        It is better taken again with fewer bits than exchanged for another one: networks of a value
        more or less and as many bits differ by 0.3 dB either way.
        """
        goal, reach = self.wanted.value, MAX_WEIGHTS_EXCESS * self.weights
        good = (one.size for one in self.attempts if one.psnr >= goal and one.size <= reach)
        return min(good, default=None)
