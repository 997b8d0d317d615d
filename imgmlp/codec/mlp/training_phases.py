"""The phases of quantisation-aware training: free weights, then noise and learned step sizes, then
rounded weights.

The training loop is that of codec/training/trainer.py. This module decides what changes at its
checks: the phase, lambda, the bit budget and the length of the run.
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
from imgmlp.codec.mlp.bit_allocation import Choice, choose_step_sizes, log_sizes, total_bits
from imgmlp.codec.mlp.qat_step import Control, LearningStep
from imgmlp.codec.training.replay import decibels, mean_loss
from imgmlp.codec.training.run import Progress
from imgmlp.codec.training.trainer import DIVERGED_LOSS, Trainer, TrainerState

Array = np.ndarray[Any, Any]

# Fractions of a run after which noise begins, and after which weights are rounded.
NOISE_START_FRACTION = 0.45
ROUNDING_START_FRACTION = 0.86
# Long runs begin noise later, since the step sizes are learned within this many training steps.
MAX_NOISE_STEPS = 4_000
# While weights are rounded, each check moves them a fraction of the way to the nearest multiple of
# their step size. It grows from 0 to this value at the end of the run.
MAX_PULL_FRACTION = 0.1
# The learning rate is near its end when rounding begins, but weights still have to adapt to it.
ROUNDING_LR_FACTOR = 3.0
# The fraction of a run in which it may still become longer than planned. Later it may not, because
# the learning rate has already followed the planned length.
LENGTHENING_FRACTION = 0.25
MAX_CHECK_INTERVAL = 100  # training steps between checks of the loss
CHECKS_PER_LMBDA_UPDATE = 5
# The standard deviation of a tensor's weights or biases, in step sizes, when noise begins.
_INITIAL_STEPS_PER_DEVIATION = 24.0
_INITIAL_STEPS_PER_BIAS_DEVIATION = 64.0

# The model of `remaining_psnr_gain`, in dB. It was fitted to 101 runs of 5,700 to 60,000 steps and
# 871 to 26,000 weights of about 5.3 bits, on photographs, most of them of 128×128 pixels. The
# standard deviation of its error is 0.40 dB. The recent gain is the one of the second half of the
# steps before noise.
_BASE_GAIN = 0.95
_GAIN_PER_RECENT_GAIN = -1.63
_GAIN_PER_RECENT_GAIN_AND_FRACTION = 3.66  # also times the fraction of the run that is left
_GAIN_PER_WEIGHT_DOUBLING = 0.49  # from _REFERENCE_WEIGHTS on
_REFERENCE_WEIGHTS = 4_000.0
_MIN_FITTED_WEIGHTS, _MAX_FITTED_WEIGHTS = 871, 26_000
_MAX_RECENT_GAIN = 4.0
PSNR_MARGIN = 0.2  # dB by which that model may promise too much

# The model of `budget_factor`: dB that twice the bits bring, and that half of them cost. The latter
# is more for networks that were trained longer. It was measured on 96 of those runs, at 0.8 and 1
# or 1.1 times the bits, and on 48 others of 12,000 and 30,000 steps, at 0.85 to 1.25 times.
PSNR_PER_BIT_DOUBLING = 2.8
PSNR_PER_BIT_HALVING = 2.8  # after _REFERENCE_STEPS
_HALVING_PSNR_PER_STEP_DOUBLING = 0.87
_REFERENCE_STEPS = 6_000
_MIN_PSNR_PER_BIT_HALVING, _MAX_PSNR_PER_BIT_HALVING = 2.5, 6.0

# Limits of the factor by which a run changes its bits to meet a PSNR: before noise begins, and
# once it has ended, when the network hardly learns any more.
MIN_BUDGET_FACTOR, MAX_BUDGET_FACTOR = 0.85, 1.2
MAX_FINAL_BUDGET_FACTOR = 1.08
# Largest factors, either way, of one update of lambda.
_MAX_LMBDA_CHANGE_IN_NOISE = 2.0
_MAX_LMBDA_CHANGE_IN_ROUNDING = 1.25


def remaining_psnr_gain(recent_gain: float, fraction_left: float, weights: int) -> float:
    """dB that the rest of a run brings, once the phase of free weights is over.

    `recent_gain` are the dB that the second half of that phase brought. Learning continues at about
    that pace, but rounding first loses what was learned last. The loss is larger where more of the
    run had free weights.
    """
    gain = min(max(recent_gain, 0.0), _MAX_RECENT_GAIN)
    weights = min(max(weights, _MIN_FITTED_WEIGHTS), _MAX_FITTED_WEIGHTS)
    doublings = math.log2(weights / _REFERENCE_WEIGHTS)
    by_gain = _GAIN_PER_RECENT_GAIN + _GAIN_PER_RECENT_GAIN_AND_FRACTION * fraction_left
    return _BASE_GAIN + gain * by_gain + _GAIN_PER_WEIGHT_DOUBLING * doublings


def budget_factor(missing: float, steps: int) -> float:
    """The factor of a network's bits that brings the missing dB, after a run of `steps`.

    It is less than 1 where `missing` is negative: the network is then better than it has to be.
    """
    if missing > 0:
        return float(2 ** (missing / PSNR_PER_BIT_DOUBLING))
    doublings = math.log2(steps / _REFERENCE_STEPS)
    lost = PSNR_PER_BIT_HALVING + _HALVING_PSNR_PER_STEP_DOUBLING * doublings
    lost = min(max(lost, _MIN_PSNR_PER_BIT_HALVING), _MAX_PSNR_PER_BIT_HALVING)
    return float(2 ** (missing / lost))


class Phase(IntEnum):
    """The phases, in their order."""

    FREE = 0  # weights are floats
    NOISE = 1  # noise stands for rounding, and step sizes are learned
    ROUNDING = 2  # step sizes are fixed and weights are rounded


@dataclass
class MlpTrainerState(TrainerState):
    batch_factor: int = 1  # pixels of a training step, in multiples of BATCH
    phase: int = Phase.FREE
    budget: float = 0.0  # bits that all weights should have at the end
    halfway_psnr: float = 0.0  # dB after half of the phase of free weights
    choices: list[list[int]] = field(default_factory=list)  # each layer's Choice, as [step, finer]


class MlpTrainer(Trainer[LearningStep, MlpTrainerState]):
    """One run of a LearningStep that ends with about `budget` bits; it adjusts lambda to them.

    Where the time `limit` allows for more steps than planned, it takes up to `max_steps`. With a
    `goal`, in dB, it changes the budget so that the rounded network comes near to that PSNR.
    """

    def __init__(
        self,
        step: LearningStep,
        state: MlpTrainerState,
        budget: float,
        limit: float | None = None,
        max_steps: int = 0,
        goal: float | None = None,
    ) -> None:
        super().__init__(step, state, max(1, min(MAX_CHECK_INTERVAL, state.steps // 40)), limit)
        state.budget = state.budget or budget
        self._max_steps, self._goal, self._planned = max_steps, goal, state.steps
        self._steer()

    # --- for the encoder ---

    def arrays(self) -> list[Array]:
        return self.step.split(self.step.flat.numpy())

    def choices(self) -> list[Choice]:
        return [Choice(*pair) for pair in self.state.choices]

    @property
    def quality(self) -> float:
        """The PSNR in dB, by the smoothed loss of the latest batches."""
        return decibels(self._loss())

    def preview(self) -> Array:
        step, size = self.step, (self.step.width, self.step.height)
        return float_render.render_floats(self.arrays(), step.shape, size, size, step.device)

    def switch_step(self, step: LearningStep) -> None:
        """Continue after the pause with another step that has the same state."""
        self.step, self.pause_at = step, None

    def extend(self, steps: int, missing: float, limit: float) -> None:
        """Prolong a finished run, and change its bits to bring the missing dB."""
        self._remember()
        self._limit = limit
        self.state.steps = self.done + steps
        self._adjust_budget(missing, 1 / MAX_FINAL_BUDGET_FACTOR, MAX_FINAL_BUDGET_FACTOR)
        self.fix_step_sizes()

    # --- checks ---

    def _check(self, on_progress: Callable[[Progress], None] | None) -> bool:
        loss = self._loss()
        if not loss < DIVERGED_LOSS:
            return self._recover()
        self._advance(self.done, decibels(loss))
        if self.done % (CHECKS_PER_LMBDA_UPDATE * self.check_interval) == 0:
            self._change_lmbda()
            self._remember()
        self._fit_steps_to_limit(self._allowed_steps())
        if on_progress is not None:
            on_progress(self._progress(loss))
        return True

    def _allowed_steps(self) -> int:
        """Steps that the run may be prolonged to; 0 if it may not.

        Early on they are `max_steps`. Later they are the most that were ever planned, since the
        learning rate has followed that plan.
        """
        state = self.state
        self._planned = max(self._planned, state.steps)
        if self._max_steps == 0 or state.phase > Phase.FREE:
            return 0
        return self._max_steps if self.done < LENGTHENING_FRACTION * state.steps else self._planned

    def _loss(self) -> float:
        """The mean squared error on [0, 1] of the samples that are visible."""
        return (
            mean_loss(float(self.step.smooth.item()), self.step.done) / self.step.visible_fraction
        )

    def _advance(self, done: int, psnr: float) -> None:
        """Begin the next phase if its time has come."""
        state, total = self.state, self.state.steps
        noise_start = max(
            NOISE_START_FRACTION * total, ROUNDING_START_FRACTION * total - MAX_NOISE_STEPS
        )
        if state.phase == Phase.FREE and done <= noise_start / 2:
            state.halfway_psnr = psnr
        if state.phase == Phase.FREE and done >= noise_start:
            if self._goal is not None:
                recent_gain, weights = psnr - state.halfway_psnr, self.step.shape.parameters
                final = psnr + remaining_psnr_gain(recent_gain, 1 - done / total, weights)
                missing = self._goal + PSNR_MARGIN - final
                self._adjust_budget(missing, MIN_BUDGET_FACTOR, MAX_BUDGET_FACTOR)
            self._begin_noise()
        if state.phase == Phase.NOISE and done >= ROUNDING_START_FRACTION * total:
            self.fix_step_sizes()
        if state.phase == Phase.ROUNDING:
            progress = (done / total - ROUNDING_START_FRACTION) / (1 - ROUNDING_START_FRACTION)
            self._pull_to_steps(progress * MAX_PULL_FRACTION)

    def _begin_noise(self) -> None:
        """Start with small step sizes, in proportion to the weights of each tensor."""
        sizes = []
        for array in self.arrays():
            deviation = float(np.sqrt(np.mean(array * array)))
            is_bias = array.ndim == 1
            steps = _INITIAL_STEPS_PER_BIAS_DEVIATION if is_bias else _INITIAL_STEPS_PER_DEVIATION
            sizes.append(deviation / steps + 2.0**-20)
        self.step.log_step_sizes.write(np.log2(sizes).astype(np.float32))
        self.step.measure_magnitudes()
        self.state.phase = Phase.NOISE
        self._steer()

    def fix_step_sizes(self) -> None:
        """Give every layer a step size of the file format; from here on weights are rounded."""
        learned = self.step.log_step_sizes.numpy()
        choices = choose_step_sizes(self.arrays(), learned, self.state.budget)
        self.state.choices = [[c.step, c.finer] for c in choices]
        self.step.log_step_sizes.write(log_sizes(choices))
        self.state.phase = Phase.ROUNDING
        self._steer()

    def _adjust_budget(self, missing: float, least: float, most: float) -> None:
        """Change the bits to bring the missing dB, by a factor from `least` to `most`."""
        self.state.budget *= min(max(budget_factor(missing, self.state.steps), least), most)

    def _pull_to_steps(self, fraction: float) -> None:
        """Move weights this fraction of the way to the multiples that they are rounded to.

        Otherwise a third of them ends near the middle of two multiples, where they move back and
        forth, and chance decides between the two.
        """
        moved = []
        for array, size in zip(self.arrays(), self._step_sizes(), strict=True):
            rounded = quantize(array, size) * size
            moved.append((array + (rounded - array) * fraction).astype(np.float32))
        self.step.load(moved)

    def _change_lmbda(self) -> None:
        """Raise lambda where the weights take more bits than the budget, lower it otherwise."""
        state = self.state
        if state.phase == Phase.FREE:
            return
        self.step.measure_magnitudes()
        factor = (self._bits() / state.budget) ** 2
        is_noisy = state.phase == Phase.NOISE
        most = _MAX_LMBDA_CHANGE_IN_NOISE if is_noisy else _MAX_LMBDA_CHANGE_IN_ROUNDING
        state.multiply_lmbda(factor, most)
        self._steer()

    def _bits(self) -> float:
        """Bits of all weights, if they were rounded and coded now."""
        if self.state.phase == Phase.ROUNDING:
            return total_bits(self.arrays(), self.choices())
        pairs = zip(self.arrays(), self._step_sizes(), strict=True)
        return sum(coded_bits(quantize(array, size)) for array, size in pairs)

    def _step_sizes(self) -> list[float]:
        """The step size of each tensor."""
        return [
            float(size) for size in np.exp2(self.step.log_step_sizes.numpy().astype(np.float64))
        ]

    def _steer(self) -> None:
        state = self.state
        lmbda = 0.0 if state.phase == Phase.FREE else state.lmbda
        is_noisy, is_rounded = state.phase == Phase.NOISE, state.phase == Phase.ROUNDING
        rate = state.learning_rate_factor * (ROUNDING_LR_FACTOR if is_rounded else 1.0)
        self.step.steer(Control(state.steps, is_noisy, is_rounded, lmbda, rate))
