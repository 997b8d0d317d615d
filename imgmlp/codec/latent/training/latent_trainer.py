"""The training loop of the latent codec: what is decided at its checks.

It moves lambda towards a target of bytes or dB, restarts where lambda was far off, and makes passes
that repeat the end of a run at another lambda. What holds at each step is in schedule.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of, networks_of
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.lmbdas import forecast
from imgmlp.codec.latent.training.schedule import (
    MAX_LATENT_SCALE,
    ROUNDED_FROM,
    SHORT_RUN,
    control,
    latent_scale,
    window_exponent,
)
from imgmlp.codec.training.replay import decibels
from imgmlp.codec.training.run import Progress
from imgmlp.codec.training.trainer import DIVERGED_LOSS, LmbdaUpdate, Trainer, TrainerState

Array = np.ndarray[Any, Any]

# Steps between two checks, and the number of checks in a run, where these bounds allow it, by the
# kind of the device's lanes. A GPU is idle during a check, so it makes fewer.
MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL = 10, 200
CHECKS_PER_RUN = {"one": 500, "group": 250}
# About how often a run keeps a state to return to, and the least number of steps in between. In a
# large picture, whose runs have few steps, keeping one takes a fifth of a step.
SNAPSHOTS_PER_RUN, MIN_SNAPSHOT_INTERVAL = 10, 4
MIN_LIMITED_STEPS = 10  # which a run does whatever its time limit is

# Lambda follows a target by about so many changes in a run, from this fraction of the run on.
LMBDA_CHANGES, LMBDA_FIXED_UNTIL = 50, 0.15
# The first change overshoots: the factor that seems to be needed is raised to this power.
FIRST_CHANGE_EXPONENT = 1.8
MAX_LMBDA_CHANGE = 1.25  # factor of any later change
# Steps that latents need, early in a run, to follow half a change of lambda. Changes that are
# faster than that overshoot many times over.
LMBDA_RESPONSE_STEPS = 25
# Fractions of a run after which the networks' step sizes are searched for again.
STEP_SEARCHES_AT = 0.3, 0.6, 0.85
# The part of the dB lost by rounding networks that remains after single weights are refined.
REMAINING_ROUNDING_LOSS = 0.4
EXTENDED_UNTIL = 0.5  # fraction of a run towards a target before which it may be made longer

# A run restarts at the new lambda if its first change is outside of these factors, at most
# MAX_RESTARTS times. A lambda that is too low does lasting harm, as latents leave a whole number
# only for a much better one. One that is too high costs less: latents only come late.
RESTART_OUTSIDE, MAX_RESTARTS = (1 / 1.3, 1.1), 3
MAX_RESTART_CHANGE = 16.0  # factor of lambda at a restart
MAX_FIRST_CHANGE = 1.3  # factor of lambda if the run goes on instead
MAX_LIMITED_CHANGE = 2.0  # the same in a run that has a time limit or cannot restart
# If the final lambda is so many times the lowest one of the run, lambda was too low at first, which
# passes cannot undo either.
MAX_LMBDA_RISE = 1.25

# A pass repeats the schedule from the fraction PASS_FROM on, in the fraction PASS_LENGTH of the
# run's steps.
PASS_FROM, PASS_LENGTH = 0.55, 0.25

# Pictures of few colours begin at lambda times this factor, which falls to 1 within so many steps,
# or within this fraction of a shorter run. The little that such a picture needs, text and dots, is
# found with few bits; it is hardly found among many latents that each seem to pay a little.
GRAPHIC_LMBDA_FACTOR, GRAPHIC_LMBDA_STEPS, GRAPHIC_LMBDA_FRACTION = 100.0, 150, 0.5

# Latents are rescaled for a changed lambda after the fraction RESCALED_AT of a run, by at most a
# factor of MAX_RESCALING at once, and only if their scale is off by more than SCALE_TOLERANCE. A
# pass only scales them up, and only if they should be larger by MAX_RESCALING or more.
RESCALED_AT, MAX_RESCALING, SCALE_TOLERANCE = 0.35, 2.0, 1.2
# The largest latent that scaling up may lead to. A file's range ends at about twice that: the other
# half is left to latents that training is still to find.
MAX_SCALED_LATENT = 30.0


def scale_latents(step: LatentStep, factor: float) -> None:
    """Multiply latents and adapt the networks, so that picture and bits stay about the same.

    Most weights of the entropy network stay as they are, as each difference from the pretrained
    ones costs bits: scaling only its inputs and biases scales its activations nearly as well.
    """
    networks = networks_of(step.flat.numpy().copy(), step.parameter_shapes)
    networks["synthesis.0.weight"] /= factor
    for name in ("entropy.0.bias", "entropy.1.bias"):
        networks[name] *= factor
    networks["entropy.2.weight"][:, 1] /= factor  # which gives the logarithm of the scale
    networks["entropy.2.bias"] *= (factor, 1)
    networks["entropy.2.bias"][1] += math.log(factor)
    step.flat.write(flat_of(networks))
    step.write_grids([grid * np.float32(factor) for grid in step.grids()])


@dataclass
class LatentTrainerState(TrainerState):
    """State of a run and of the passes after it; `steps` counts all of them so far."""

    exponents: dict[str, int] = field(default_factory=dict)  # of step sizes; empty before a search
    rounding_loss: float = 0.0  # dB that rounding networks to these step sizes costs in the end
    pass_began: int = 0  # steps done when the present pass began; 0 in the run itself
    run_steps: int = 0  # steps of the run without passes
    latent_scale: float = 1.0
    restarts: int = 0
    lowest_lmbda: float = 0.0  # since its first change; 0 before
    lmbda_is_fixed: bool = False  # although there is a target
    is_repetition: bool = False  # of a whole run, before any pass

    def fix_lmbda(self, lmbda: float) -> None:
        self.lmbda = self.lowest_lmbda = lmbda
        self.lmbda_is_fixed = True


class LatentTrainer(Trainer[LatentStep, LatentTrainerState]):
    """One run of a LatentStep, and its passes."""

    min_limited_steps = MIN_LIMITED_STEPS

    def __init__(
        self,
        step: LatentStep,
        state: LatentTrainerState,
        lmbda_update: LmbdaUpdate | None = None,
        limit: float | None = None,
        max_steps: int = 0,
        restart: Callable[[float], None] | None = None,
        min_lmbda: float = 0.0,
        first_lmbda_factor: float = 1.0,
    ) -> None:
        """Prepare a run, or continue the one that `state` describes.

        `lmbda_update` gives the factor of lambda that a target calls for. Without it lambda is
        fixed, and begins at `first_lmbda_factor` times its value. Before passes lambda is at least
        `min_lmbda`. A run may grow to `max_steps` if the time limit leaves room for more steps than
        planned. `restart`, given a lambda, brings the step back to its state before the first step;
        without it the run cannot restart.
        """
        self._max_steps = max_steps
        state.run_steps = steps = state.run_steps or state.steps
        self._restart, self._min_lmbda = restart, min_lmbda
        self._first_lmbda_factor = first_lmbda_factor
        self._is_pause_overdue = False  # the other program is late
        usual_interval = steps // CHECKS_PER_RUN[step.device.lanes]
        min_interval = min(MIN_CHECK_INTERVAL, -(-steps // 20))
        interval = max(min_interval, min(MAX_CHECK_INTERVAL, usual_interval))
        super().__init__(step, state, interval, limit)
        self._lmbda_update = lmbda_update
        # In steps; each interval is a multiple of the one before.
        self.lmbda_interval = interval * max(1, steps // (LMBDA_CHANGES * interval))
        fewest = -(-MIN_SNAPSHOT_INTERVAL // self.lmbda_interval)
        intervals = max(fewest, steps // (SNAPSHOTS_PER_RUN * self.lmbda_interval))
        self._snapshot_interval = self.lmbda_interval * intervals

    def preview(self) -> Array:
        return self.step.picture()

    def pause_after(self, steps: int, may_be_late: bool) -> None:
        """Pause after so many steps. If more are done already, pause at the next check, but only
        if the pause `may_be_late`."""
        done = self.step.done
        if done <= steps:
            self.pause_at = steps
        elif may_be_late:
            self.pause_at = done - done % self.check_interval + self.check_interval
            self._is_pause_overdue = True

    def postpone_pause(self) -> None:
        super().postpone_pause()
        self._is_pause_overdue = True

    def cancel_pause(self) -> None:
        """Go on with the same step after all."""
        self.pause_at = None

    def switch_step(self, step: LatentStep, restart: Callable[[float], None] | None) -> None:
        """After the pause, go on with another step that is in the state of this one."""
        self.step, self._restart = step, restart
        self.pause_at = self._last_good = None
        self._is_pause_overdue = False

    def _check(self, on_progress: Callable[[Progress], None] | None) -> bool:
        loss, rate = self.step.figures()
        if not (loss < DIVERGED_LOSS and math.isfinite(rate)):
            return self._recover()
        if self.done % self.lmbda_interval == 0:
            self._change_lmbda()
            if self._is_at(RESCALED_AT):
                self._rescale_in_run()
            if self.done % self._snapshot_interval == 0:
                self._remember()
        # Towards a target, lambda depends on how much of the run is left: it may grow only early.
        extended_until = ROUNDED_FROM if self._lmbda_update is None else EXTENDED_UNTIL
        may_grow = not self.state.pass_began and self.done < extended_until * self.state.steps
        # Steps before the pause do not tell how long those of the other program take.
        if self.pause_at is None or self._is_pause_overdue:
            self._fit_steps_to_limit(self._max_steps if may_grow else 0)
        self._steer()
        if on_progress is not None:
            cost = loss * self.step.visible_fraction + self.state.lmbda * rate
            on_progress(replace(self._progress(loss), bpp=rate, cost=cost))
        return True

    def _is_at(self, fraction: float) -> bool:
        """Whether the run has just passed this fraction, to the nearest change of lambda."""
        return abs(self.done - fraction * self.state.steps) <= self.lmbda_interval / 2

    def _change_lmbda(self) -> None:
        """Adapt lambda to the target, by what rounding now would give, as long as latents move."""
        state, step = self.state, self.step
        progress = self.done / state.steps
        is_fixed = self._lmbda_update is None or state.pass_began or state.lmbda_is_fixed
        if is_fixed or not LMBDA_FIXED_UNTIL <= progress < ROUNDED_FROM:
            return
        assert self._lmbda_update is not None
        error, rate = step.judge(step.flat.numpy())
        search, is_first = Search(step, state.exponents), not state.exponents
        if is_first or any(map(self._is_at, STEP_SEARCHES_AT)):
            rounded = search.figures(search.run(state.lmbda, rounds=1))
            lost = max(decibels(error) - rounded.psnr, 0.0)
            state.exponents, state.rounding_loss = search.exponents, REMAINING_ROUNDING_LOSS * lost
        quality = decibels(error) - state.rounding_loss
        final = forecast(rate, search.bits(), quality, left=1 - progress, lmbda=state.lmbda)
        factor = self._lmbda_update(final.rate * step.pixels + final.network_bits, final.psnr)
        if not math.isfinite(factor):
            return  # numbers exploded, which the next check notices
        if is_first:
            lowest = self._min_lmbda / state.lmbda
            self._change_far(max(factor**FIRST_CHANGE_EXPONENT, lowest))
            state.lowest_lmbda = state.lmbda
            return
        factor **= min(1.0, self.lmbda_interval / LMBDA_RESPONSE_STEPS) * (1 - progress)
        state.multiply_lmbda(max(factor, self._min_lmbda / state.lmbda), MAX_LMBDA_CHANGE)
        state.lowest_lmbda = min(state.lowest_lmbda, state.lmbda)

    def _change_far(self, factor: float) -> None:
        """Multiply lambda, and restart if what was trained so far is no good beginning for it.

        A time limit allows for one restart, within the steps that are left, unless these are few: a
        run of few steps is worse than one whose lambda is off.
        """
        state, limited = self.state, self._limit is not None
        too_few = self._limit is not None and self._steps_until(self._limit) < SHORT_RUN
        nearby = (1 / MAX_LIMITED_CHANGE, MAX_LIMITED_CHANGE)
        low, high = nearby if limited else RESTART_OUTSIDE
        max_restarts = 1 if limited else MAX_RESTARTS
        if (
            self._restart is None
            or too_few
            or state.restarts >= max_restarts
            or low <= factor <= high
        ):
            must_go_on = limited or self._restart is None
            state.multiply_lmbda(factor, MAX_LIMITED_CHANGE if must_go_on else MAX_FIRST_CHANGE)
            return
        before = state.lmbda
        state.multiply_lmbda(factor, MAX_RESTART_CHANGE)
        if low <= state.lmbda / before <= high:
            return  # lambda is at an end of its range
        state.restarts += 1
        if limited:
            self._max_steps = state.steps = state.run_steps = state.steps - self.done
        self._restart_run()

    def _restart_run(self) -> None:
        assert self._restart is not None
        state = self.state
        state.exponents, state.rounding_loss, state.latent_scale = {}, 0.0, 1.0
        self._restart(state.lmbda)
        self.done = 0
        self._timed_from = 0, time.perf_counter()
        self.rescale()

    def lmbda_was_too_low(self, lmbda: float) -> bool:
        """Whether lambda was so far below this value early in the run that a repetition of the
        whole run will do better than a pass."""
        return (
            self._lmbda_update is not None and 0 < MAX_LMBDA_RISE * self.state.lowest_lmbda <= lmbda
        )

    def repeat_run(self, lmbda: float) -> None:
        """Repeat the whole run at a fixed lambda, before any pass."""
        self.state.fix_lmbda(lmbda)
        self.state.is_repetition = True
        self._last_good = None
        self._restart_run()

    def _rescale_in_run(self) -> None:
        if self._lmbda_update is not None and not self.state.pass_began:
            self.rescale(MAX_RESCALING)

    def rescale(self, max_factor: float = MAX_LATENT_SCALE) -> None:
        """Scale latents as suits lambda, by a factor of 1 / max_factor to max_factor."""
        factor = self._suitable_scale(self.state.lmbda) / self.state.latent_scale
        if abs(math.log(factor)) <= math.log(SCALE_TOLERANCE):
            return
        factor = min(max(factor, 1 / max_factor), max_factor)
        if factor > 1:
            largest = max(float(np.abs(grid).max()) for grid in self.step.grids())
            factor = min(factor, max(MAX_SCALED_LATENT / max(largest, 1.0), 1.0))
        if factor != 1:
            scale_latents(self.step, factor)
            self.state.latent_scale *= factor

    def begin_pass(
        self,
        lmbda: float,
        networks: Mapping[str, Quantized],
        steps: int = 0,
        limit: float | None = None,
    ) -> None:
        """Begin a pass, which repeats the last part of the run at another lambda.

        It begins with the networks of a file, so that what the search for them has found is not
        lost. `steps` is by default `pass_steps`, and `limit` the new time limit, if any.
        """
        state, self._limit = self.state, limit
        self.step.flat.write(flat_of({name: one.floats() for name, one in networks.items()}))
        state.pass_began, state.lmbda = state.steps, lmbda
        self._last_good = None  # a pass that diverges does not return to the run before it
        state.steps += steps or self.pass_steps
        if self._suitable_scale(lmbda) >= MAX_RESCALING * state.latent_scale:
            self.rescale(MAX_RESCALING)

    def _suitable_scale(self, lmbda: float) -> float:
        pretrained = self.step.pretrained.number
        return latent_scale(lmbda, self.step.pixels, self.state.run_steps, pretrained)

    @property
    def pass_steps(self) -> int:
        """The usual number of steps of a pass."""
        return max(1, round(PASS_LENGTH * self.state.run_steps))

    def _lmbda_factor(self, done: int, steps: int) -> float:
        """The factor of a fixed lambda after `done` of the steps: it falls to 1."""
        fall = max(min(GRAPHIC_LMBDA_STEPS, GRAPHIC_LMBDA_FRACTION * steps), 1)
        is_fixed = self._lmbda_update is None or self.state.lmbda_is_fixed
        if self.state.pass_began or not is_fixed:
            return 1.0
        return math.pow(self._first_lmbda_factor, max(1 - done / fall, 0.0))

    def _steer(self) -> None:
        state = self.state
        left = state.steps - (self.done - self.done % self.check_interval)
        schedule = state.steps
        if state.pass_began:  # a pass is the end of a longer schedule
            schedule = round((state.steps - state.pass_began) / (1 - PASS_FROM))
        done = max(0, schedule - left)
        windows = len(self.step.windows)
        lmbda = state.lmbda * self._lmbda_factor(done, schedule)
        usual = control(done, schedule, lmbda, windows)
        per_window = windows ** window_exponent(state.run_steps)
        self.step.steer(
            replace(
                usual,
                latent_lr=usual.latent_lr * state.learning_rate_factor * state.latent_scale,
                network_lr=usual.network_lr * state.learning_rate_factor / per_window,
            )
        )
