"""The training loop of the latent codec: what is decided whenever training pauses to look.

Moves lambda towards a target of bytes or dB, begins anew where it was far off, and makes passes
that repeat the end of a run at another lambda. What holds at each step is in schedule.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import Quantized, flat_of, networks_of
from imgmlp.codec.latent.step.latent_step import LatentStep
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

# Steps between two looks, and how many there are in a run between these bounds, by the device's
# lanes; a GPU has nothing to do meanwhile.
MIN_LOOK_INTERVAL, MAX_LOOK_INTERVAL = 10, 200
LOOKS_PER_RUN = {"one": 500, "group": 250}
# How often, about, a run keeps its state to go back to, and the least number of steps between. In
# a large picture, which has few steps, keeping takes a fifth of a step.
SNAPSHOTS_PER_RUN, MIN_SNAPSHOT_INTERVAL = 10, 4
MIN_LIMITED_STEPS = 10  # that a time limit leaves a run in any case

# Lambda follows a target by so many changes in a run, from this fraction of it on.
LMBDA_CHANGES, LMBDA_FIXED_UNTIL = 50, 0.15
# The first change goes all the way: by this power of the factor that seems to be needed.
FIRST_CHANGE_EXPONENT = 1.8
MAX_LMBDA_CHANGE = 1.25  # factor of any later change
# Steps in which latents follow half a change of lambda early in a run: changes that are faster go
# many times too far.
LMBDA_RESPONSE_STEPS = 25
# Fractions of a run after which the networks' step sizes are searched for again.
STEP_SEARCHES_AT = 0.3, 0.6, 0.85
# The part of the dB lost by rounding networks that remains after single weights are refined.
REMAINING_ROUNDING_LOSS = 0.4
EXTENDED_UNTIL = 0.5  # fraction of a run towards a target before which it may get longer

# If the first change is outside of these factors, the run begins again at the new lambda, so many
# times at most. What a low lambda has brought about does not go away, as latents leave a whole
# number only for a much better one; after a high lambda they come late, which costs less.
RESTART_OUTSIDE, MAX_RESTARTS = (1 / 1.3, 1.1), 3
MAX_RESTART_CHANGE = 16.0  # factor of lambda at a restart
MAX_FIRST_CHANGE = 1.3  # the same where the run goes on instead
# A run that has a time limit, or cannot begin again, goes on up to this factor.
MAX_LIMITED_CHANGE = 2.0
# A lambda that ends so many times above its lowest value was too low at first, which passes do not
# undo either.
RISEN = 1.25

# A pass repeats the schedule from the first fraction of it on, in the second fraction of the run's
# steps.
PASS_FROM, PASS_LENGTH = 0.55, 0.25

# Pictures of few colours begin at a lambda so many times as high, which falls to the usual one in
# so many steps, or in a fraction of a shorter run: text and dots are found from few bits, and
# hardly any more among many latents that only pay one by one.
GRAPHIC_LMBDA_FACTOR, GRAPHIC_LMBDA_STEPS, GRAPHIC_LMBDA_FRACTION = 100.0, 150, 0.5

# Latents are rescaled for a changed lambda after this fraction of a run, by no more than the second
# number at once, and only if their scale is off by more than the third. A pass only scales them up,
# and only if they should be larger by the second number or more.
RESCALED_AT, MAX_RESCALING, SCALE_TOLERANCE = 0.35, 2.0, 1.2
# The largest latent that scaling up may lead to. A file's range ends at about twice that; latents
# that filled it would leave no room for those that training is still to find.
MAX_SCALED_LATENT = 30.0


def scale_latents(step: LatentStep, factor: float) -> None:
    """Multiply latents, and adapt networks, for about the same picture and the same bits.

    The entropy network keeps most of its weights, as each difference from pretrained ones costs
    bits: its activations are multiplied nearly as well if its inputs and biases are.
    """
    networks = networks_of(step.flat.numpy().copy(), step.shapes)
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
    """Of a run and the passes after it; `steps` are those of all of them so far."""

    exponents: dict[str, int] = field(default_factory=dict)  # of step sizes, once searched for
    rounding_loss: float = 0.0  # dB that rounding networks to these costs in the end
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
    """One run of a LatentStep."""

    least = MIN_LIMITED_STEPS

    def __init__(
        self,
        step: LatentStep,
        state: LatentTrainerState,
        pricing: LmbdaUpdate | None = None,
        limit: float | None = None,
        max_steps: int = 0,
        restart: Callable[[float], None] | None = None,
        min_lmbda: float = 0.0,
        first_lmbda_factor: float = 1.0,
    ) -> None:
        """A run may grow to `max_steps` where the time limit leaves room for more than planned.

        `restart` brings the step to its state before the first one, for a lambda, if the run may
        begin again. Before passes lambda is at least `min_lmbda`. Where it is fixed it begins at
        `first_lmbda_factor` times its value.
        """
        self._max_steps = max_steps
        state.run_steps = steps = state.run_steps or state.steps
        self._restart, self._min_lmbda = restart, min_lmbda
        self._first_lmbda_factor = first_lmbda_factor
        self._waits = False  # for the step that is to go on after the pause
        looks = LOOKS_PER_RUN[step.device.lanes]
        shortest = min(MIN_LOOK_INTERVAL, -(-steps // 20))
        look = max(shortest, min(MAX_LOOK_INTERVAL, steps // looks))
        super().__init__(step, state, look, limit)
        self._pricing = pricing
        self.lmbda_interval = look * max(1, steps // (LMBDA_CHANGES * look))  # steps
        fewest = -(-MIN_SNAPSHOT_INTERVAL // self.lmbda_interval)
        intervals = max(fewest, steps // (SNAPSHOTS_PER_RUN * self.lmbda_interval))
        self._snapshot_interval = self.lmbda_interval * intervals

    def preview(self) -> Array:
        return self.step.picture()

    def pause_after(self, steps: int, late: bool) -> None:
        """After so many steps; where more are done, at the next look, if the run may be late."""
        done = self.step.done
        if done <= steps:
            self.pause = steps
        elif late:
            self.pause = done - done % self.look + self.look
            self._waits = True

    def go_on(self) -> None:
        super().go_on()
        self._waits = True

    def stay(self) -> None:
        """After the pause: go on with the same step."""
        self.pause = None

    def go_over(self, step: LatentStep, restart: Callable[[float], None] | None) -> None:
        """After the pause: go on with another step, which is where this one is."""
        self.step, self._restart = step, restart
        self.pause = self._good = None
        self._waits = False

    def _look(self, tell: Callable[[Progress], None] | None) -> bool:
        loss, rate = self.step.figures()
        if not (loss < DIVERGED_LOSS and math.isfinite(rate)):
            return self._recover()
        if self.done % self.lmbda_interval == 0:
            self._change_lmbda()
            if self._is_at(RESCALED_AT):
                self._rescale_in_run()
            if self.done % self._snapshot_interval == 0:
                self._remember()
        # Towards a target lambda depends on how much of the run is left, so it grows early only.
        extended_until = ROUNDED_FROM if self._pricing is None else EXTENDED_UNTIL
        may_grow = not self.state.pass_began and self.done < extended_until * self.state.steps
        # Before the pause steps say nothing of how long those after it take.
        if self.pause is None or self._waits:
            self._shorten(self._max_steps if may_grow else 0)
        self._steer()
        if tell is not None:
            cost = loss * self.step.counted + self.state.lmbda * rate
            tell(replace(self._progress(loss), bpp=rate, cost=cost))
        return True

    def _is_at(self, fraction: float) -> bool:
        """Whether that part of the run is over now, to the nearest change of lambda."""
        return abs(self.done - fraction * self.state.steps) <= self.lmbda_interval / 2

    def _change_lmbda(self) -> None:
        """By what rounded latents would give, as long as latents move."""
        state, step = self.state, self.step
        progress = self.done / state.steps
        is_fixed = self._pricing is None or state.pass_began or state.lmbda_is_fixed
        if is_fixed or not LMBDA_FIXED_UNTIL <= progress < ROUNDED_FROM:
            return
        assert self._pricing is not None
        error, rate = step.judge(step.flat.numpy())
        search, is_first = Search(step, state.exponents), not state.exponents
        if is_first or any(map(self._is_at, STEP_SEARCHES_AT)):
            rounded = search.figures(search.run(state.lmbda, rounds=1))
            lost = max(decibels(error) - rounded.psnr, 0.0)
            state.exponents, state.rounding_loss = search.exponents, REMAINING_ROUNDING_LOSS * lost
        quality = decibels(error) - state.rounding_loss
        final = forecast(rate, search.bits(), quality, left=1 - progress, lmbda=state.lmbda)
        factor = self._pricing(final.rate * step.pixels + final.network_bits, final.psnr)
        if not math.isfinite(factor):
            return  # the next look goes back
        if is_first:
            lowest = self._min_lmbda / state.lmbda
            self._change_far(max(factor**FIRST_CHANGE_EXPONENT, lowest))
            state.lowest_lmbda = state.lmbda
            return
        factor **= min(1.0, self.lmbda_interval / LMBDA_RESPONSE_STEPS) * (1 - progress)
        state.multiply_lmbda(max(factor, self._min_lmbda / state.lmbda), MAX_LMBDA_CHANGE)
        state.lowest_lmbda = min(state.lowest_lmbda, state.lmbda)

    def _change_far(self, factor: float) -> None:
        """Multiply lambda; begin again, if what was trained so far is no way to it.

        A time limit allows for that once, in the steps that are left, unless these are few: a run
        of few steps is worse than one at another lambda.
        """
        state, limited = self.state, self._limit is not None
        too_few = self._limit is not None and self._fitting(self._limit) < SHORT_RUN
        nearby = (1 / MAX_LIMITED_CHANGE, MAX_LIMITED_CHANGE)
        low, high = nearby if limited else RESTART_OUTSIDE
        most = 1 if limited else MAX_RESTARTS
        if self._restart is None or too_few or state.restarts >= most or low <= factor <= high:
            must_go_on = limited or self._restart is None
            state.multiply_lmbda(factor, MAX_LIMITED_CHANGE if must_go_on else MAX_FIRST_CHANGE)
            return
        before = state.lmbda
        state.multiply_lmbda(factor, MAX_RESTART_CHANGE)
        if low <= state.lmbda / before <= high:
            return  # it is at an end of its range
        state.restarts += 1
        if limited:
            self._max_steps = state.steps = state.run_steps = state.steps - self.done
        self._begin_again()

    def _begin_again(self) -> None:
        assert self._restart is not None
        state = self.state
        state.exponents, state.rounding_loss, state.latent_scale = {}, 0.0, 1.0
        self._restart(state.lmbda)
        self.done = 0
        self._shown = 0, time.perf_counter()
        self.rescale()

    def lmbda_was_too_low(self, lmbda: float) -> bool:
        """Whether lambda was so far below this value early in the run that it had better be done
        again than go on."""
        return self._pricing is not None and 0 < RISEN * self.state.lowest_lmbda <= lmbda

    def start_over(self, lmbda: float) -> None:
        """Do the whole run once more, before any pass, at a fixed lambda."""
        self.state.fix_lmbda(lmbda)
        self.state.is_repetition = True
        self._good = None
        self._begin_again()

    def _rescale_in_run(self) -> None:
        if self._pricing is not None and not self.state.pass_began:
            self.rescale(MAX_RESCALING)

    def rescale(self, most: float = MAX_LATENT_SCALE) -> None:
        """Scale latents as suits lambda, by a factor from 1 / most to most."""
        factor = self._suitable_scale(self.state.lmbda) / self.state.latent_scale
        if abs(math.log(factor)) <= math.log(SCALE_TOLERANCE):
            return
        factor = min(max(factor, 1 / most), most)
        if factor > 1:
            largest = max(float(np.abs(grid).max()) for grid in self.step.grids())
            factor = min(factor, max(MAX_SCALED_LATENT / max(largest, 1.0), 1.0))
        if factor != 1:
            scale_latents(self.step, factor)
            self.state.latent_scale *= factor

    def repeat(
        self,
        lmbda: float,
        networks: Mapping[str, Quantized],
        steps: int = 0,
        limit: float | None = None,
    ) -> None:
        """Begin a pass: the last part of the run once more, at another lambda.

        It begins from networks as a file has them, so that what the search for these has found is
        not lost. `steps` is by default `pass_steps`, and `limit` the new time limit, if any.
        """
        state, self._limit = self.state, limit
        self.step.flat.write(flat_of({name: one.floats() for name, one in networks.items()}))
        state.pass_began, state.lmbda = state.steps, lmbda
        self._good = None  # what goes wrong from here does not go back to the run before
        state.steps += steps or self.pass_steps
        if self._suitable_scale(lmbda) >= MAX_RESCALING * state.latent_scale:
            self.rescale(MAX_RESCALING)

    def _suitable_scale(self, lmbda: float) -> float:
        pretrained = self.step.start.number
        return latent_scale(lmbda, self.step.pixels, self.state.run_steps, pretrained)

    @property
    def pass_steps(self) -> int:
        """Steps of a pass, usually."""
        return max(1, round(PASS_LENGTH * self.state.run_steps))

    def _lmbda_factor(self, done: int, steps: int) -> float:
        """The factor of lambda after so many of the steps, which falls to 1 where it is fixed."""
        fall = max(min(GRAPHIC_LMBDA_STEPS, GRAPHIC_LMBDA_FRACTION * steps), 1)
        is_fixed = self._pricing is None or self.state.lmbda_is_fixed
        if self.state.pass_began or not is_fixed:
            return 1.0
        return math.pow(self._first_lmbda_factor, max(1 - done / fall, 0.0))

    def _steer(self) -> None:
        state = self.state
        left = state.steps - (self.done - self.done % self.look)
        schedule = state.steps
        if state.pass_began:  # the end of a longer schedule, of which a pass is the rest
            schedule = round((state.steps - state.pass_began) / (1 - PASS_FROM))
        done = max(0, schedule - left)
        windows = len(self.step.windows)
        lmbda = state.lmbda * self._lmbda_factor(done, schedule)
        usual = control(done, schedule, lmbda, windows)
        per_window = windows ** window_exponent(state.run_steps)
        self.step.steer(
            replace(
                usual,
                latent_lr=usual.latent_lr * state.slower * state.latent_scale,
                network_lr=usual.network_lr * state.slower / per_window,
            )
        )
