"""Searches for the number of weights that a target needs, by the results of short runs (pilots) and
of whole attempts.

It measures no time and knows no device: its state are plain numbers, which a checkpoint stores.

Two numbers describe what a network gets. Its network weights are how many weights it has. Its paid
weights are its bits / BITS_PER_WEIGHT: how many weights these bits would usually pay for.
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
# In a limited time the first pilot has few steps, and always these weights.
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

# The check early in a run in a limited time towards a PSNR, of pictures of up to
# MAX_EARLY_CHECK_PIXELS. Another network replaces the first one if that is expected to end more
# than MAX_SURPLUS_PSNR above the target, or more than MAX_MISSING_PSNR below it. The other one aims
# at REPLACEMENT_SURPLUS_PSNR above the target. Within these limits, other bits are better than
# another network and the steps that it loses.
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

    paid_weights: float
    psnr: float  # dB
    network_weights: float


@dataclass
class SizeSearch:
    """Chooses the network to train next, by the results so far."""

    wanted: Goal
    samples: int  # pixels of the picture
    channels: int
    max_weights: float  # limit of `weights`
    weights: float  # paid weights of the next network
    network_weights: float | None = None  # its network weights, if they are not those
    pilots: list[RunResult] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    rivals_tried: int = 0
    was_replaced: bool = False  # whether the early check has replaced the first network

    STATE_FIELDS: ClassVar = (
        "max_weights",
        "weights",
        "network_weights",
        "pilots",
        "attempts",
        "rivals_tried",
        "was_replaced",
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
        """The shape of the next network."""
        return self.shape_of(self.network_weights or self.weights)

    def shape_of(self, weights: float) -> Shape:
        return rate_model.network_shape(weights, self.channels)

    def add_attempt(self, paid_weights: float, psnr: float, network_weights: float) -> None:
        self.attempts.append(Attempt(paid_weights, min(psnr, MAX_PSNR), network_weights))

    def pilots_suffice(self) -> bool:
        """Whether the latest pilots had about as many weights as the target seems to need."""
        if len(self.pilots) < 2 or len(self.pilots) % 2:
            return False
        near = abs(math.log2(self.weights / self.pilots[-1].weights)) < RELIABLE_DOUBLINGS
        return near or len(self.pilots) == MAX_PILOTS

    def timed_pilots_suffice(self) -> bool:
        """The same in a limited time: one pilot is enough, unless the target seems to need far
        fewer weights. Pilots with more weights would take too long."""
        if not self.pilots:
            return False
        near = math.log2(self.pilots[0].weights / self.weights) < RELIABLE_DOUBLINGS
        return near or len(self.pilots) == MAX_TIMED_PILOTS

    def choose_for_time_limit(self, steps: Callable[[float], float]) -> None:
        """Choose the best weights for a limited time; `steps` says how long they are trained."""
        within, pilot = (self._min_weights(), self.max_weights), self.pilots[-1]
        self.weights = rate_model.best_weights(self.wanted, self.samples, within, steps, pilot)

    def _min_weights(self) -> float:
        """The weights of the smallest network."""
        return float(self.shape_of(1.0).parameters)

    @property
    def checks_early(self) -> bool:
        """Whether a run in a limited time is checked early and may be replaced."""
        is_small = self.wanted.kind == "psnr" and self.samples <= MAX_EARLY_CHECK_PIXELS
        return is_small and self.network_weights is None and not self.was_replaced

    def replacement(self, weights: float, expected: float) -> float | None:
        """The weights of a network that should replace one whose expected PSNR is far from the
        target; None if that one should be trained to the end."""
        surplus = expected - self.wanted.value
        is_far = surplus > MAX_SURPLUS_PSNR or surplus < -MAX_MISSING_PSNR
        if not is_far:  # or unknown (NaN)
            return None
        psnr_per_doubling = PSNR_PER_WEIGHT_HALVING if surplus > 0 else PSNR_PER_WEIGHT_DOUBLING
        better = weights * 2 ** ((REPLACEMENT_SURPLUS_PSNR - surplus) / psnr_per_doubling)
        better = min(max(better, self._min_weights()), self.max_weights)
        return better if self.shape_of(better) != self.shape() else None

    def resize(self, steps: Callable[[float], float]) -> None:
        """Choose the weights that the target needs, by all results.

        `steps` gives the steps of an attempt by its weights. The result is never less than
        the weights of the smallest network, whose bits would be misjudged.
        """
        results = self._size_results(steps)
        if self.wanted.kind == "psnr":
            needed = rate_model.weights_for_psnr(self.wanted.value + PSNR_MARGIN, results)
        else:
            needed = rate_model.weights_for_lmbda(self.wanted.value, self.samples, results)
        if not self.attempts:
            tried, reach = self.pilots[-1].weights, 2**MAX_DOUBLINGS
            needed = min(max(needed, tried / reach), tried * reach)
        self.weights = min(max(needed, self._min_weights()), self.max_weights)
        self.network_weights = self._smallest_sufficient()
        if self.network_weights is not None:
            same = [
                SizeResult(one.paid_weights, one.psnr)
                for one in self.attempts
                if one.network_weights == self.network_weights
            ]
            self.weights = min(
                rate_model.weights_for_psnr(self.wanted.value, same), self.max_weights
            )

    def resize_after_attempt(self, best: float, steps: Callable[[float], float]) -> bool:
        """Resize after an attempt. Returns whether the change is large enough for another one.

        `best` is the highest PSNR so far.
        """
        before = self.weights
        self.resize(steps)
        if self.wanted.value - best > PSNR_TOLERANCE:
            self.weights = min(max(self.weights, MIN_ENLARGEMENT * before), self.max_weights)
        return abs(math.log(self.weights / before)) > math.log(MIN_WEIGHTS_CHANGE)

    def choose_rival(self, most: int) -> bool:
        """Choose a rival, up to `most` of them. Returns whether there is one.

        Networks whose widths differ by 1 differ by up to 0.5 dB with the same bits, by chance. The
        outcome is the same for every kind of target, so that all of them find about the same best
        network.
        """
        if self.rivals_tried >= most:
            return False
        best: float | None = None
        if self.wanted.kind == "psnr":
            if not (needed := self._paid_weights_needed()):
                return False
            best = min(needed, key=lambda network_weights: needed[network_weights])
            self.weights = min(needed[best], self.max_weights)
        rival = self._first_untried()
        if rival is None and best is not None and self._try_fewer_bits(best):
            rival = best
        if rival is not None:
            self.rivals_tried += 1
            self.network_weights = rival
        return rival is not None

    def _first_untried(self) -> float | None:
        """The first network that was not tried with about these bits, of the one that the target
        asks for and its neighbours: its network weights, or None if all were tried."""
        tried = {one.network_weights for one in self.attempts if self._has_similar_bits(one)}
        shapes = neighbours_to_try(self.shape_of(self.weights), self.wanted.kind)
        candidates = (float(shape.parameters) for shape in shapes)
        most = MAX_WEIGHTS_EXCESS * self.max_weights
        return next((one for one in candidates if one <= most and one not in tried), None)

    def _try_fewer_bits(self, network_weights: float) -> bool:
        """Give a network slightly fewer bits than were enough. Returns whether that is new.

        Within one network, bits make less of a difference than between two.
        """
        least = self.wanted.value - PSNR_TOLERANCE
        own = [one for one in self.attempts if one.network_weights == network_weights]
        enough = min((one.paid_weights for one in own if one.psnr >= least), default=None)
        if enough is not None:
            self.weights = min(self.weights, FEWER_BITS_FACTOR * enough)
        too_few = max((one.paid_weights for one in own if one.psnr < least), default=0.0)
        return self.weights * math.sqrt(FEWER_BITS_FACTOR) > too_few

    def _paid_weights_needed(self) -> dict[float, float]:
        """By network weights: the paid weights with which networks reach the wanted PSNR.

        Only networks with an attempt near it count, and those that exceeded it with as few bits.
        """
        results, goal = dict[float, list[SizeResult]](), self.wanted.value
        for one in self.attempts:
            result = SizeResult(one.paid_weights, one.psnr)
            results.setdefault(one.network_weights, []).append(result)
        needed = {n: rate_model.weights_for_psnr(goal, own) for n, own in results.items()}
        near = [n for n, own in results.items() if any(abs(r.psnr - goal) < NEAR_PSNR for r in own)]
        most = EQUAL_BITS_FACTOR * min((needed[n] for n in near), default=0.0)
        return {
            n: needed[n]
            for n, own in results.items()
            if n in near or any(r.psnr >= goal and r.weights <= most for r in own)
        }

    def _has_similar_bits(self, attempt: Attempt) -> bool:
        """Whether an attempt had about as many bits as the next one will have."""
        if self.wanted.kind != "psnr":
            return True
        return abs(math.log2(attempt.paid_weights / self.weights)) < EQUAL_DOUBLINGS

    def use_pilot_network(self) -> None:
        """Choose the pilot's network, whose program is compiled, with the bits that are needed."""
        if self.pilots:
            self.network_weights = self.pilots[-1].weights
            self.weights = max(
                self.weights,
                self.network_weights * MIN_BITS_PER_WEIGHT / rate_model.BITS_PER_WEIGHT,
            )

    def _size_results(self, steps: Callable[[float], float]) -> list[SizeResult]:
        """The results of attempts, or before the first one those of pilots, extrapolated to the
        steps of an attempt."""
        if self.attempts:
            return [SizeResult(one.paid_weights, one.psnr) for one in self.attempts]
        results = list[SizeResult]()
        for before, after in zip(self.pilots[::2], self.pilots[1::2], strict=True):
            doublings = math.log2(max(1.0, steps(before.weights) / after.steps))
            gain = rate_model.gain_of_more_steps(after.psnr - before.psnr, doublings)
            results.append(SizeResult(before.weights, after.psnr + gain))
        return results

    def _smallest_sufficient(self) -> float | None:
        """The weights of the smallest network that has reached the target, if not far too large.

        It is better to train it again with fewer bits than to train another one: networks whose
        widths differ by 1 differ by 0.3 dB either way with the same bits.
        """
        goal, most = self.wanted.value, MAX_WEIGHTS_EXCESS * self.weights
        sufficient = (one.network_weights for one in self.attempts if one.psnr >= goal)
        return min((one for one in sufficient if one <= most), default=None)
