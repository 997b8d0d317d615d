"""The passes after a run: which lambda the next one has, and when there are enough of them.

A pass goes through the last part of the training schedule once more, with a lambda that should
bring the file nearer to its target. Everything here is plain numbers that a checkpoint can hold;
this module knows no clock and no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple

from imgmlp.codec.training.search import MAX_PSNR, Trial
from imgmlp.codec.training.target import PSNR_TOLERANCE, Goal, Kind
from imgmlp.codec.training.trainer import MAX_LMBDA, MIN_LMBDA

AIMED_BYTES_FRACTION = 0.99  # of the bytes wanted
MAX_PASSES = 6  # after a run
# Further passes where dB are missing at the lowest lambda and longer passes are allowed.
MAX_LONGER_PASSES = 3
# dB that rounding towards a target may cost beyond what the bytes it saves are worth.
MAX_ROUNDING_LOSS = 0.05
# What doubling lambda typically changes: dB, or doublings of the bytes.
TYPICAL_SLOPE: dict[Kind, float] = {"psnr": -1.5, "bytes": -0.5}
MAX_SLOPE_RATIO = 3.0  # of a measured slope to the typical one, or the reverse
# Doublings of lambda between two passes whose difference is a slope. Between closer ones the search
# for rounded networks alone makes files differ by as much.
MIN_SLOPE_DISTANCE = 0.2
# How much the result falls in a pass at a constant lambda: doublings of the bytes, most of which
# are the networks', or dB.
PASS_SAVING: dict[Kind, float] = {"psnr": 0.0, "bytes": 0.007}
MAX_LMBDA_CHANGE = 1.5  # doublings of lambda from one pass to the next
MAX_LMBDA_CHANGE_OF_RESTART = 3.0  # the same for a run that starts over after a fixed lambda
LMBDA_TOLERANCE = 1e-6  # doublings within which a lambda counts as the lowest one
MAX_BOOST_DOUBLINGS = 2  # of a change of lambda, where earlier changes had too little effect


class PassResult(NamedTuple):
    """What a run or a pass led to, before its file was changed for the target."""

    log2_lmbda: float
    excess: float  # dB, or doublings of the bytes, above the target


@dataclass
class Passes:
    """Decides on the passes after a run, each with a lambda nearer to the target.

    Where dB are missing at the lowest lambda only more steps bring them: up to `max_step_factor`
    times as many as a pass usually has.
    """

    goal: Goal
    min_lmbda: float = MIN_LMBDA
    unconditional: int = 0  # passes that make a better file, even if the target is hit
    max_step_factor: float = 1.0
    results: list[PassResult] = field(default_factory=list)  # the run's first, then its passes'

    def restart(self) -> None:
        """Drop all results, since the whole run starts over."""
        self.results.clear()

    def add(self, lmbda: float, first: Trial) -> None:
        """Record what a run or a pass gave before it was changed for the target."""
        self.results.append(PassResult(math.log2(lmbda), self._excess(first)))

    def _excess(self, first: Trial) -> float:
        """dB, or doublings of the bytes, above the target; 0 where lambda is the target."""
        if self.goal.kind == "psnr":
            return min(first.psnr, MAX_PSNR) - self.goal.value
        if self.goal.kind == "bytes":
            return math.log2(first.size / (AIMED_BYTES_FRACTION * self.goal.value))
        return 0.0

    def suffice(self, size: int, quality: float, first: Trial) -> bool:
        """Whether another pass could bring no better file than the latest.

        That one has `size` bytes and `quality` dB now, and was `first` before it was changed for
        the target.
        """
        passes = len(self.results) - 1
        if passes < self._unconditional:
            return False
        longer = min(self._lacking_passes, MAX_LONGER_PASSES) if self.max_step_factor > 1 else 0
        if self.goal.kind == "lambda" or passes >= MAX_PASSES + longer:
            return True
        # What the bytes that rounding saved are worth in dB.
        worth = TYPICAL_SLOPE["psnr"] / TYPICAL_SLOPE["bytes"] * math.log2(first.size / size)
        is_hit = self.goal.hit_by(size, quality)
        return is_hit and first.psnr - quality <= worth + MAX_ROUNDING_LOSS

    def next_lmbda(self, restarts: bool = False) -> float:
        """The lambda of the next pass, or of the run if that `restarts`.

        It is where a line through the latest result meets the target, with what unconditional
        passes will still save. Results above and below the target are not interpolated: each pass
        trains on from where the one before ended, so that an earlier lambda would lead to something
        else by now.
        """
        if self.goal.kind == "lambda":
            return self.goal.value
        most = MAX_LMBDA_CHANGE_OF_RESTART if restarts else MAX_LMBDA_CHANGE
        change = -self._remaining_excess(len(self.results) - 1) / self._slope()
        lmbda = math.exp2(self.results[-1].log2_lmbda + min(max(change, -most), most))
        return min(max(lmbda, self.min_lmbda, MIN_LMBDA), MAX_LMBDA)

    def step_factor(self) -> float:
        """Times as many steps as usual that the next pass should have.

        They double with each pass that missed its dB at the lowest lambda.
        """
        if not self._lacks_steps(self.results[-1]):
            return 1.0
        return min(2.0**self._lacking_passes, self.max_step_factor)

    @property
    def _lacking_passes(self) -> int:
        """How many passes missed their dB at the lowest lambda."""
        return sum(map(self._lacks_steps, self.results[1:]))

    def _lacks_steps(self, result: PassResult) -> bool:
        """Whether dB were missing at the lowest lambda, so that only more steps can bring them."""
        misses = self.goal.kind == "psnr" and result.excess < -PSNR_TOLERANCE
        return misses and result.log2_lmbda <= math.log2(self.min_lmbda) + LMBDA_TOLERANCE

    def _remaining_excess(self, number: int) -> float:
        """The excess of a result once the unconditional passes after it have saved their part."""
        saved = PASS_SAVING[self.goal.kind] * max(self._unconditional - number, 0)
        return self.results[number].excess - saved

    @property
    def passes_left(self) -> int:
        """Unconditional passes that follow the file that is made next."""
        return max(self._unconditional - len(self.results), 0)

    @property
    def _unconditional(self) -> int:
        return min(self.unconditional, MAX_PASSES)

    def _slope(self) -> float:
        """What doubling lambda changes, by the latest two passes, within bounds, or as typical.

        The run itself says nothing of it, as its lambda was another one most of the time.
        """
        typical, latest = TYPICAL_SLOPE[self.goal.kind], self.results[1:][-2:]
        if len(latest) < 2 or abs(latest[1].log2_lmbda - latest[0].log2_lmbda) < MIN_SLOPE_DISTANCE:
            return typical / self._boost()
        before, now = latest
        measured = (now.excess - before.excess) / (now.log2_lmbda - before.log2_lmbda)
        return -min(max(-measured, -typical / MAX_SLOPE_RATIO), -typical * MAX_SLOPE_RATIO)

    def _boost(self) -> float:
        """Times as far as usual that lambda has to move, since passes stay on one side.

        Latents that have settled follow lambda less than usual. Two such passes may be chance.
        """
        excesses = [self._remaining_excess(n) for n in range(1, len(self.results))][::-1]
        stays = (
            abs(now) > abs(before) / 2 and now * before > 0 for now, before in pairwise(excesses)
        )
        stuck = sum(1 for _ in takewhile(bool, stays))
        return 2.0 ** min(max(stuck - 1, 0), MAX_BOOST_DOUBLINGS)
