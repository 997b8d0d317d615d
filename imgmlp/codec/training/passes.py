"""The passes of a run towards a target: which lambda the next one has, and when there are enough.

Plain numbers, which a checkpoint keeps; knows no clock and no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple

from imgmlp.codec.training.search import MOST_TOLD, Trial
from imgmlp.codec.training.target import TOLERANCE, Goal
from imgmlp.codec.training.trainer import CHEAPEST, DEAREST

AIM = 0.99  # of the bytes wanted
MOST = 6  # after a run, at most
STARVED = 3  # more of them, at most, where dB are missing at the lowest lambda and more steps help
LOST = 0.05  # dB that rounding towards a target may cost, beside what its bytes are worth
SLOPES = {"psnr": -1.5, "bytes": -0.5}  # dB or doublings of the bytes, of a lambda twice as high
STEEP = 3.0  # times these that is believed, or the reciprocal
# Doublings of lambda between two passes, at least, that tell a slope: of those nearer to each
# other the search for rounded networks alone makes files that differ by as much.
APART = 0.2
# How much less a pass that there is in any case leads to at a lambda that stays: doublings of the
# bytes, most of which are networks'; dB stay.
SAVED = {"psnr": 0.0, "bytes": 0.007}
FURTHEST = 1.5  # doublings of lambda, at most, at once
ANEW = 3.0  # the same where a run begins anew whose lambda stayed
EXACTLY = 1e-6  # doublings between a lambda and the lowest, which it is then
HARDENED = 2  # doublings of a change of lambda, at most, for passes that it did not turn round


class Tried(NamedTuple):
    """A run or a pass, before its file was changed for the target."""

    lmbda: float  # log2 of it
    excess: float  # how much less would do


@dataclass
class Passes:
    """Of the last part of a run, each with lambda nearer to the target, but not below `cheapest`;
    `least` of them even if the target is hit, as each makes a better file.

    Where dB are missing at that lambda only more steps bring them: up to `longest` times as many as
    a pass has usually.
    """

    wanted: Goal
    cheapest: float = CHEAPEST
    least: int = 0
    longest: float = 1.0
    tried: list[Tried] = field(default_factory=list)

    def forget(self) -> None:
        """What was tried, as the whole run is done anew."""
        self.tried.clear()

    def add(self, lmbda: float, first: Trial) -> None:
        """What a run or a pass at a lambda gave before it was changed for the target."""
        self.tried.append(Tried(math.log2(lmbda), self._excess(first)))

    def _excess(self, first: Trial) -> float:
        """How much less would do, in dB or in doublings of the bytes; of a lambda, nothing."""
        if self.wanted.kind == "psnr":
            return min(first.psnr, MOST_TOLD) - self.wanted.value
        if self.wanted.kind == "bytes":
            return math.log2(first.size / (AIM * self.wanted.value))
        return 0.0

    def suffice(self, size: int, quality: float, first: Trial) -> bool:
        """Whether another pass could bring no better file than the latest, which was `first`."""
        passed = len(self.tried) - 1
        if passed < self._least:
            return False
        most = MOST + (min(self._starved, STARVED) if self.longest > 1 else 0)
        if self.wanted.kind == "lambda" or passed >= most:
            return True
        worth = SLOPES["psnr"] / SLOPES["bytes"] * math.log2(first.size / size)
        return self.wanted.hit_by(size, quality) and first.psnr - quality <= worth + LOST

    def lmbda(self, anew: bool = False) -> float:
        """Where a line through the latest pass meets the target, after those that are to come; for
        a pass, or for a run like the one before that begins `anew`.

        Not between passes with too much and too little: each goes on training where the one
        before ended, so that an earlier one's lambda would give something else by now.
        """
        if self.wanted.kind == "lambda":
            return self.wanted.value
        lmbda, excess = self.tried[-1].lmbda, self._left(len(self.tried) - 1)
        furthest = ANEW if anew else FURTHEST
        lmbda += min(max(-excess / self._slope(), -furthest), furthest)
        return min(max(math.exp2(lmbda), self.cheapest, CHEAPEST), DEAREST)

    def longer(self) -> float:
        """How many times as many steps as usual the next pass should have: twice as many with each
        that missed its dB at the lowest lambda."""
        starved = self._misses_cheaply(self.tried[-1])
        return min(2.0**self._starved, self.longest) if starved else 1.0

    @property
    def _starved(self) -> int:
        """Passes that had the lowest lambda and missed their dB."""
        return sum(map(self._misses_cheaply, self.tried[1:]))

    def _misses_cheaply(self, one: Tried) -> bool:
        missing = self.wanted.kind == "psnr" and one.excess < -TOLERANCE
        return missing and one.lmbda <= math.log2(self.cheapest) + EXACTLY

    def _left(self, number: int) -> float:
        """How much is still too much at the end, after one of those that were tried."""
        saved = SAVED[self.wanted.kind] * max(self._least - number, 0)
        return self.tried[number].excess - saved

    @property
    def to_come(self) -> int:
        """Passes that there are in any case after what is rounded next."""
        return max(self._least - len(self.tried), 0)

    @property
    def _least(self) -> int:
        return min(self.least, MOST)

    def _slope(self) -> float:
        """What a lambda twice as high saves, by the latest two or, within bounds, as usual.

        The first pass says nothing of it: its lambda was another one most of the time.
        """
        usual, latest = SLOPES[self.wanted.kind], self.tried[1:][-2:]
        if len(latest) < 2 or abs(latest[1].lmbda - latest[0].lmbda) < APART:
            return usual / self._stubborn()
        before, now = latest
        measured = (now.excess - before.excess) / (now.lmbda - before.lmbda)
        return -min(max(-measured, -usual / STEEP), -usual * STEEP)

    def _stubborn(self) -> float:
        """How many times as much lambda has to change, as passes have ended on one side.

        Latents that have hardened follow less than usual; two such passes may be chance.
        """
        left = [self._left(number) for number in range(1, len(self.tried))][::-1]
        one_side = (
            abs(now) > abs(before) / 2 and now * before > 0 for now, before in pairwise(left)
        )
        stuck = sum(1 for _ in takewhile(bool, one_side))
        return 2.0 ** min(max(stuck - 1, 0), HARDENED)
