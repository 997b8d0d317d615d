"""The phases of training: free weights, noise and learned steps, then rounding.

The loop itself is that of codec/training; here is what is decided at its looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.quantize import coded_bits, quantize
from imgmlp.codec.mlp import float_render
from imgmlp.codec.mlp.bit_allocation import Choice, log_sizes, settle, total_bits
from imgmlp.codec.mlp.qat_step import Control, LearningStep
from imgmlp.codec.training.replay import decibels, mean_loss
from imgmlp.codec.training.run import Progress
from imgmlp.codec.training.trainer import DIVERGED_LOSS, Trainer, TrainerState

Array = np.ndarray[Any, Any]

FREE, NOISY = 0.45, 0.86  # shares of a run after which noise begins, and rounding
NOISE = 4_000  # steps of noise in which long runs have learned the steps' sizes
DRAWN = 0.1  # of the way to a whole step that weights are moved at a look, at the end of rounding
ROUNDED = 3.0  # times the learning rate once weights are rounded: it is near its end, they begin
EARLY = 0.25  # share of a run in which its length may still grow: the learning rate follows it
LOOK = 100  # steps, at most, between looks
CONTROL = 5  # looks between new lambdas
# Of 101 runs of 5,700 to 60,000 steps and 871 to 26,000 weights of some 5.3 bits, on photographs,
# most of them 128x128 pixels: dB that come after the free steps, by those that the second half of
# these brought, also times the share of the run that is left, and by doublings of weights; within
# 0.40 dB (standard deviation).
_STILL, _BY_GAIN, _BY_GAIN_AND_REST, _MOST_GAINED = 0.95, -1.63, 3.66, 4.0
_BY_WEIGHTS, _SOME_WEIGHTS, _FEWEST, _MOST = 0.49, 4_000.0, 871, 26_000
SPARE = 0.2  # dB by which such a guess may be too high
# dB that twice the bits would bring, and that half of them would take from a network, which is more
# the longer it was trained: 96 of these runs, at 0.8 and 1 or 1.1 times the bits, and 48 others of
# 12,000 and 30,000 steps at 0.85 to 1.25 times. Within these bounds:
BY_MORE_BITS, BY_FEWER_BITS, _BY_STEPS, _SOME_STEPS = 2.8, 2.8, 0.87, 6_000
_LEAST_BY_BITS, _MOST_BY_BITS = 2.5, 6.0
# Times the bits that a network gets to meet a quality, before noise begins and at its end, where it
# hardly learns any more.
FEWER, MORE, LAST = 0.85, 1.2, 1.08
_START, _START_OF_BIASES = 24.0, 64.0  # steps in their deviation when noise begins


def still_to_come(gained: float, rest: float, weights: int) -> float:
    """dB that the `rest` of a run brings, a share of it, once its free steps are over.

    `gained` are the dB that the second half of these brought. What is left to learn goes on like
    that, but rounding takes what was learned last; where most steps were free, more than that.
    """
    gained = min(max(gained, 0.0), _MOST_GAINED)
    size = math.log2(min(max(weights, _FEWEST), _MOST) / _SOME_WEIGHTS)
    return _STILL + gained * (_BY_GAIN + _BY_GAIN_AND_REST * rest) + _BY_WEIGHTS * size


def bits_for(missing: float, steps: int) -> float:
    """Times the bits that bring a network what is missing, in dB, after so many steps; less than
    once if it has more than it should."""
    if missing > 0:
        return float(2 ** (missing / BY_MORE_BITS))
    taken = BY_FEWER_BITS + _BY_STEPS * math.log2(steps / _SOME_STEPS)
    return float(2 ** (missing / min(max(taken, _LEAST_BY_BITS), _MOST_BY_BITS)))


class Phase(IntEnum):
    """What weights are subject to, one after the other."""

    FREE = 0
    NOISE = 1
    ROUNDING = 2


@dataclass
class MlpTrainerState(TrainerState):
    wider: int = 1  # times the usual pixels in a step
    phase: int = Phase.FREE
    budget: float = 0.0  # bits that it is to end with, as first given or changed since
    halfway: float = 0.0  # dB after half of the free steps
    choices: list[list[int]] = field(default_factory=list)  # step, finer of each layer


class MlpTrainer(Trainer[LearningStep, MlpTrainerState]):
    """One run of a LearningStep that ends with about so many bits: lambda of one follows.

    It fills the time up to the limit with up to `most` steps, if there turns out to be more. With a
    `goal`, in dB, it changes the bits to come near to that.
    """

    def __init__(
        self,
        step: LearningStep,
        state: MlpTrainerState,
        budget: float,
        limit: float | None = None,
        most: int = 0,
        goal: float | None = None,
    ) -> None:
        super().__init__(step, state, max(1, min(LOOK, state.steps // 40)), limit)
        state.budget = state.budget or budget
        self._most, self._goal, self._planned = most, goal, state.steps
        self._steer()

    # --- what others may ask ---

    def arrays(self) -> list[Array]:
        return self.step.split(self.step.flat.numpy())

    def choices(self) -> list[Choice]:
        return [Choice(*pair) for pair in self.state.choices]

    @property
    def quality(self) -> float:
        """dB by now, about."""
        return decibels(self._loss())

    def preview(self) -> Array:
        step, size = self.step, (self.step.width, self.step.height)
        return float_render.render_floats(self.arrays(), step.shape, size, size, step.device)

    def go_over(self, step: LearningStep) -> None:
        """After the pause: have another step, which is where this one is, go on."""
        self.step, self.pause = step, None

    def once_more(self, steps: int, missing: float, limit: float) -> None:
        """After the end: have so many more steps, with bits for the dB that are missing."""
        self._remember()
        self._limit = limit
        self.state.steps = self.done + steps
        self._pay_for(missing, 1 / LAST, LAST)
        self.fix_steps()

    # --- looks ---

    def _look(self, tell: Callable[[Progress], None] | None) -> bool:
        loss = self._loss()
        if not loss < DIVERGED_LOSS:
            return self._recover()
        self._advance(self.done, decibels(loss))
        if self.done % (CONTROL * self.look) == 0:
            self._change_lmbda()
            self._remember()
        self._shorten(most=self._may_have())
        if tell is not None:
            tell(self._progress(loss))
        return True

    def _may_have(self) -> int:
        """Steps up to which the run may grow: far only early, and later up to as many as it once
        had, as the learning rate was theirs."""
        state = self.state
        self._planned = max(self._planned, state.steps)
        if self._most == 0 or state.phase > Phase.FREE:
            return 0
        return self._most if self.done < EARLY * state.steps else self._planned

    def _loss(self) -> float:
        """Mean squared error, of samples that count."""
        return mean_loss(float(self.step.smooth.item()), self.step.done) / self.step.counted

    def _advance(self, done: int, reached: float) -> None:
        state, total = self.state, self.state.steps
        free = max(FREE * total, NOISY * total - NOISE)
        if state.phase == Phase.FREE and done <= free / 2:
            state.halfway = reached
        if state.phase == Phase.FREE and done >= free:
            if self._goal is not None:
                gained, weights = reached - state.halfway, self.step.shape.parameters
                found = reached + still_to_come(gained, 1 - done / total, weights)
                self._pay_for(self._goal + SPARE - found, FEWER, MORE)
            arrays = self.arrays()
            deviations = [float(np.sqrt(np.mean(a * a))) for a in arrays]
            widths = [_START_OF_BIASES if a.ndim == 1 else _START for a in arrays]
            sizes = [d / w + 2.0**-20 for d, w in zip(deviations, widths, strict=True)]
            self.step.sizes.write(np.log2(sizes).astype(np.float32))
            self.step.weigh()
            state.phase = Phase.NOISE
            self._steer()
        if state.phase == Phase.NOISE and done >= NOISY * total:
            self.fix_steps()
        if state.phase == Phase.ROUNDING:
            self._draw((done / total - NOISY) / (1 - NOISY) * DRAWN)

    def fix_steps(self) -> None:
        """Give every layer a step that exists; from here on weights are rounded."""
        wished = self.step.sizes.numpy()
        choices = settle(self.arrays(), wished, self.state.budget)
        self.state.choices = [[c.step, c.finer] for c in choices]
        self.step.sizes.write(log_sizes(choices))
        self.state.phase = Phase.ROUNDING
        self._steer()

    def _pay_for(self, missing: float, least: float, most: float) -> None:
        """Change the bits by what brings so many dB."""
        self.state.budget *= min(max(bits_for(missing, self.state.steps), least), most)

    def _draw(self, share: float) -> None:
        """Move weights a share of the way to the whole steps that they are rounded to.

        Without it a third of them ends near the middle between two steps, back and forth, and
        chance decides which it is.
        """
        moved = []
        for array, size in zip(self.arrays(), self._sizes(), strict=True):
            whole = quantize(array, size) * size
            moved.append((array + (whole - array) * share).astype(np.float32))
        self.step.load(moved)

    def _change_lmbda(self) -> None:
        state = self.state
        if state.phase == Phase.FREE:
            return
        self.step.weigh()
        factor = (self._bits() / state.budget) ** 2
        state.multiply_lmbda(factor, most=2.0 if state.phase == Phase.NOISE else 1.25)
        self._steer()

    def _bits(self) -> float:
        if self.state.phase == Phase.ROUNDING:
            return total_bits(self.arrays(), self.choices())
        pairs = zip(self.arrays(), self._sizes(), strict=True)
        return sum(coded_bits(quantize(array, size)) for array, size in pairs)

    def _sizes(self) -> list[float]:
        """Of the steps of each tensor."""
        return [float(size) for size in np.exp2(self.step.sizes.numpy().astype(np.float64))]

    def _steer(self) -> None:
        state = self.state
        lmbda = 0.0 if state.phase == Phase.FREE else state.lmbda
        noise, rounding = (state.phase == one for one in (Phase.NOISE, Phase.ROUNDING))
        rate = state.slower * (ROUNDED if rounding else 1.0)
        self.step.steer(Control(state.steps, noise, rounding, lmbda, rate))
