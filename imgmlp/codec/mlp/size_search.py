"""Searches for the number of weights that a target needs, by the results of short runs (pilots) and
of whole attempts.

It measures no time and knows no device: its state are plain numbers, which a checkpoint stores.
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
from imgmlp.codec.training.target import PSNR_TOLERANCE, Goal, Kind

# Pilots: short runs that show how hard a picture is. Without a time limit there are two of one
# network, to measure what more steps bring, and then two of another.
PILOT_RATE = 0.3  # bits per pixel of the first pilot
MIN_PILOT_WEIGHTS = 500.0
PILOT_SPACING = 2  # doublings between the numbers of weights that first pilots have
MAX_PILOTS = 4
# In a limited time, steps of the first pilot are few, so that its weights are always these.
TIMED_PILOT_WEIGHTS = 4_000.0
MAX_TIMED_PILOTS = 2
# Doublings of the weights for which a pilot is a good guide, and beyond which it is none.
RELIABLE_DOUBLINGS = 1.5
MAX_DOUBLINGS = 3.0

PSNR_MARGIN = 0.1  # dB that training aims at beyond the target; they are easily taken away
# A network that has reached the target may have this factor more weights than needed.
MAX_WEIGHTS_EXCESS = 1.25
# Factors of the weights: the least change that justifies another attempt, and the least growth
# after an attempt that missed its PSNR.
MIN_WEIGHTS_CHANGE = 1.01
MIN_ENLARGEMENT = 1.03

# Rivals: attempts with networks of slightly more or fewer weights.
MAX_NEIGHBOURS = 2  # larger and smaller ones that are tried; just one larger one towards a PSNR
NEAR_PSNR = 0.7  # dB from the target within which other bits bring a network to it
EQUAL_DOUBLINGS = 0.2  # of the bits, within which two attempts can be compared
EQUAL_BITS_FACTOR = 1.03  # up to which bits count as no more
FEWER_BITS_FACTOR = 0.97  # by which a network is tried again with fewer bits

# The check early in a run in a limited time towards a PSNR, of pictures of up to so many pixels.
# Another network replaces the first one if that is expected to end with too many dB beyond the
# target, or too few; the other one aims at REPLACEMENT_SURPLUS_PSNR beyond it. Within these limits,
# other bits are better than another network and the steps that it loses.
MAX_EARLY_CHECK_PIXELS = 2**14
MAX_SURPLUS_PSNR = 1.4
MAX_MISSING_PSNR = 0.5
REPLACEMENT_SURPLUS_PSNR = 0.5
PSNR_PER_WEIGHT_HALVING = 4.5  # dB that half the weights cost
PSNR_PER_WEIGHT_DOUBLING = 3.0  # dB that twice the weights bring

MIN_BITS_PER_WEIGHT = 3.0  # of a larger network that is taken because it is compiled


def pilot_weights(samples: int) -> float:
    """Weights of the first pilot, the same for many pictures, which share its program."""
    doublings = math.log2(
        max(1.0, PILOT_RATE * samples / rate_model.BITS_PER_WEIGHT / MIN_PILOT_WEIGHTS)
    )
    return float(MIN_PILOT_WEIGHTS * 2 ** (PILOT_SPACING * round(doublings / PILOT_SPACING)))


def neighbours_to_try(shape: Shape, kind: Kind) -> list[Shape]:
    """The network that a target asks for, and its rivals, in the order in which they are tried."""
    return rate_model.neighbours(shape, 1 if kind == "psnr" else MAX_NEIGHBOURS, MAX_NEIGHBOURS)


class Attempt(NamedTuple):
    """The result of training a network and writing a file of it."""

    paid: float  # its bits / BITS_PER_WEIGHT
    psnr: float  # dB
    size: float  # weights


@dataclass
class SizeSearch:
    """The network to train next."""

    wanted: Goal
    samples: int
    channels: int
    most: float  # weights that it may have
    weights: float  # its bits / BITS_PER_WEIGHT
    size: float | None = None  # its weights, if they differ
    pilots: list[RunResult] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    rivals: int = 0  # attempts with rivals so far
    exchanged: bool = False  # whether another network has replaced the first one

    STATE_FIELDS: ClassVar = (
        "most",
        "weights",
        "size",
        "pilots",
        "attempts",
        "rivals",
        "exchanged",
    )

    def values(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return {name: getattr(self, name) for name in self.STATE_FIELDS}

    def restore(self, values: Mapping[str, Any]) -> None:
        for name in self.STATE_FIELDS:
            setattr(self, name, values[name])
        self.pilots = [RunResult(*one) for one in values["pilots"]]
        self.attempts = [Attempt(*one) for one in values["attempts"]]

    def shape(self) -> Shape:
        return self.shape_of(self.size or self.weights)

    def shape_of(self, weights: float) -> Shape:
        return rate_model.network_shape(weights, self.channels)

    def add_attempt(self, weights: float, psnr: float, size: float) -> None:
        """Record an attempt: `weights` are its bits / BITS_PER_WEIGHT, `size` are its weights."""
        self.attempts.append(Attempt(weights, min(psnr, MAX_PSNR), size))

    def searched(self) -> bool:
        """Whether the latest pilots had about as many weights as the target seems to need."""
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
        """Choose the best weights for a limited time; `steps` says how long they are trained."""
        within = float(self.shape_of(1.0).parameters), self.most
        seen = self.pilots[-1]
        self.weights = rate_model.best_weights(self.wanted, self.samples, within, steps, seen)

    @property
    def checks_early(self) -> bool:
        """Whether a run in a limited time is checked early and may be replaced."""
        small = self.wanted.kind == "psnr" and self.samples <= MAX_EARLY_CHECK_PIXELS
        return small and self.size is None and not self.exchanged

    def replacement(self, weights: float, expected: float) -> float | None:
        """The weights of a network that should replace one whose expected PSNR is far from the
        target; None if it should go on."""
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
        """Choose the weights that the target needs, by all results.

        `steps` says how long an attempt trains so many.

        They are never fewer than those of the smallest network, whose bits would be misjudged.
        """
        known = self._known(steps)
        if self.wanted.kind == "psnr":
            needed = rate_model.weights_for_psnr(self.wanted.value + PSNR_MARGIN, known)
        else:
            needed = rate_model.weights_for_lmbda(self.wanted.value, self.samples, known)
        if not self.attempts:
            tried, reach = self.pilots[-1].weights, 2**MAX_DOUBLINGS
            needed = min(max(needed, tried / reach), tried * reach)
        self.weights = min(max(needed, self.shape_of(1.0).parameters), self.most)
        self.size = self._smallest_sufficient()
        if self.size is not None:
            same = [
                SizeResult(one.paid, one.psnr) for one in self.attempts if one.size == self.size
            ]
            self.weights = min(rate_model.weights_for_psnr(self.wanted.value, same), self.most)

    def again(self, best: float, steps: Callable[[float], float]) -> bool:
        """Resize after an attempt. Returns whether another may bring what the `best` PSNR lacks."""
        before = self.weights
        self.resize(steps)
        if self.wanted.value - best > PSNR_TOLERANCE:
            self.weights = min(max(self.weights, MIN_ENLARGEMENT * before), self.most)
        return abs(math.log(self.weights / before)) > math.log(MIN_WEIGHTS_CHANGE)

    def challenge(self, most: int) -> bool:
        """Choose a rival, up to `most` of them. Returns whether there is one.

        Networks whose widths differ by 1 differ by up to 0.5 dB with the same bits, by chance. The
        outcome is the same for every kind of target, so that all of them find about the same best
        network.
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
        """The size of the first network that was not tried with about these bits, of the one that
        the target asks for and its neighbours; None if all were."""
        tried = {one.size for one in self.attempts if self._alike(one.paid)}
        among = neighbours_to_try(self.shape_of(self.weights), self.wanted.kind)
        sizes = (float(shape.parameters) for shape in among)
        few = (size for size in sizes if size <= MAX_WEIGHTS_EXCESS * self.most)
        return next((size for size in few if size not in tried), None)

    def _try_fewer_bits(self, size: float) -> bool:
        """Give a network slightly fewer bits than were enough. Returns whether that is new.

        Within one network, bits make less of a difference than between two.
        """
        least = self.wanted.value - PSNR_TOLERANCE
        own = [one for one in self.attempts if one.size == size]
        enough = min((one.paid for one in own if one.psnr >= least), default=None)
        if enough is not None:
            self.weights = min(self.weights, FEWER_BITS_FACTOR * enough)
        few = max((one.paid for one in own if one.psnr < least), default=0.0)
        return self.weights * math.sqrt(FEWER_BITS_FACTOR) > few

    def _weights_needed(self) -> dict[float, float]:
        """By size: the weights (bits / BITS_PER_WEIGHT) with which networks reach the wanted PSNR.

        Only sizes with an attempt near it count, and those that exceeded it with as few bits.
        """
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
        """Whether an attempt had about as many bits as the next one will have."""
        return self.wanted.kind != "psnr" or abs(math.log2(paid / self.weights)) < EQUAL_DOUBLINGS

    def use_compiled(self) -> None:
        """Choose the pilot's network, which is compiled, with the bits that are needed."""
        if self.pilots:
            self.size = self.pilots[-1].weights
            self.weights = max(
                self.weights, self.size * MIN_BITS_PER_WEIGHT / rate_model.BITS_PER_WEIGHT
            )

    def _known(self, steps: Callable[[float], float]) -> list[SizeResult]:
        """The results of attempts, or else those of pilots, extrapolated to as many steps."""
        if self.attempts:
            return [SizeResult(one.paid, one.psnr) for one in self.attempts]
        found = list[SizeResult]()
        for before, after in zip(self.pilots[::2], self.pilots[1::2], strict=True):
            longer = math.log2(max(1.0, steps(before.weights) / after.steps))
            more = rate_model.gain_of_more_steps(after.psnr - before.psnr, longer)
            found.append(SizeResult(before.weights, after.psnr + more))
        return found

    def _smallest_sufficient(self) -> float | None:
        """The size of the smallest network that has reached the target, if not far too large.

        It is better to train it again with fewer bits than to train another one: networks whose
        widths differ by 1 differ by 0.3 dB either way with the same bits.
        """
        goal, reach = self.wanted.value, MAX_WEIGHTS_EXCESS * self.weights
        good = (one.size for one in self.attempts if one.psnr >= goal and one.size <= reach)
        return min(good, default=None)
