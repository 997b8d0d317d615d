"""The phases of training: soft rounding that hardens, then true rounding, which moves networks.

The loop itself is that of codec/training; here is what is decided at its looks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imgmlp.codec.latent.initial_latents import predict_latents
from imgmlp.codec.latent.model import Quantized, flat_of, networks_of
from imgmlp.codec.latent.pretrained import training_lmbda
from imgmlp.codec.latent.step.latent_step import BETAS, MOMENTUM, TILES, Control, LatentStep
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.training.replay import decibels
from imgmlp.codec.training.run import Progress
from imgmlp.codec.training.trainer import DIVERGED_LOSS, LmbdaUpdate, Trainer, TrainerState
from imgmlp.image import has_alpha

Array = np.ndarray[Any, Any]

ROUNDED = 0.97  # share of a run after which latents stand still, rounded
LEAST_LOOK, MOST_LOOK = 10, 200  # steps between looks, at least and at most
LOOKS = {"one": 500, "group": 250}  # in a run between these; a GPU has nothing to do meanwhile
CHANGES = 50  # of lambda in a run, about
# Times in a run, about, that its state is kept to go back to, and steps between, at least: of a
# large picture, which has few, that takes a fifth of a step.
REMEMBERED, APART = 10, 4
FREE = 0.15  # share of a run before lambdas change
EARLY = 0.5  # share of a run towards a target before which it may get longer
SEARCHED_AFTER = 0.3, 0.6, 0.85  # shares of a run after which networks' steps are looked for again
DEARER_AT_ONCE = 1.25  # times lambda, at most, at once
# What becomes of bits and dB until the end, each times the square of the share of a run that is
# left: so many bits a pixel fewer of latents, but at most such a share of them; dB more, at the
# lambda USUAL, with each time that lambda is halved, and with each above FINE_DB, but no fewer;
# and of networks' bits such a share, times its fourth power.
FEWER, AT_MOST, FEWER_WEIGHTS = 0.15, 0.33, 0.5
BETTER, USUAL, BY_HALVING, FINE_DB, FINER_BY, LEAST_BETTER = 1.1, 8e-4, 0.24, 39.0, 0.5, 0.3
REMAINS = 0.4  # of the dB that rounding networks costs, once single weights are moved
# If lambda should be less than the first or more than the second times another at the first look it
# is one to begin again with: what low lambdas have brought about does not go away, as latents leave
# a whole number only for a much better one; from high ones they come late, which costs less.
ASTRAY, AGAIN = (1 / 1.3, 1.1), 3  # times lambda, times that it is done
# A lambda that rose to so many times its lowest one until the end of a run was too low at first,
# which a pass does not undo either.
RISEN = 1.25
NEARBY = 1.3  # times lambda, at most, where a run goes on after the first look
# The power that takes a lambda to its target, and times that it becomes so, at most.
ALL_AT_ONCE, FURTHEST_LMBDA = 1.8, 16.0
# Where the time is limited: times lambda, or a part of it, up to which a run goes on.
HALFWAY = 2.0
# Steps that a limit leaves a run in any case.
FEWEST_LIMITED = 10
FOLLOWED = 25  # steps that latents need to follow half a change of lambda, early in a run
RETURN = 0.55  # share of a run that is not done again where it ends too far from its target
SHORTER = 0.25  # steps of going through the rest again, of those of the run
TEMPERATURES = 0.3, 0.1
HURRIED, SOFT = 2000, 1.0  # a run of fewer steps begins at a higher one, at most at this
FEW_STEPS = 300  # below which latents move faster and networks, which have a start, more slowly
FASTER, BY_FEWER = 2.0, 0.43  # at most; the power of how many times fewer steps there are
HASTY = 40  # steps, below which there is less noise, and networks hardly move
# How much less networks move with each of n windows: by powers of n, for runs of so many steps.
SHARED, OF = (1 / 3, 0.6), (100, FEW_STEPS)
# Steps by which guessed latents are nearer to zero for every doubling of lambda from the first
# on: of so many in a run, so much; of the finest grid, most of whose latents pay least, more.
UNSHRUNK, SHRUNK, BY_STEPS = 3e-4, (0.05, 0.125, 0.25), (20, 200, 30_000)
OF_FINEST = 3.0  # times as much
UNLIKE = 0.025  # squared error on [0, 1] of a guess that only hasty runs had better begin from
# Pictures of at most so many colours begin from nothing, and at a lambda so many times as high,
# which falls to the one that is wanted in so many steps, or in such a share of a shorter run: text
# and dots are found from few bits, and hardly any more among many that only pay one by one.
COLOURS, DEAR, FALLEN, FALLEN_BY = 4, 100.0, 150, 0.5
NOISE_SHARES = 0.63, 0.77  # as Control.share, first and last
LATENTS, NETWORKS = 0.2, 7e-3  # learning rates
LONGER, QUICKER = (FEW_STEPS, 12_000), (1.0, 1.5)  # steps, and times that rate of latents
# Steps of latents are those of a start at lambda that it was trained at. Where bits are cheaper
# they are finer by a power of it, but only where that is more than WORTH_FINER times, and more than
# that in fewer than SPARE pixels, as networks that differ from the start cost bits.
BY_LMBDA, MOST_FINER, WORTH_FINER, SPARE = 0.4, 16.0, 1.2, 4096
# How large latents may be that steps become finer for: beyond MAX_LATENT a file has none, and a
# range that the first of them fill leaves none to those that are still to be found.
ROOM = 30.0
SUITED = 1.2  # times finer or coarser that steps may be than they should
SUITING = 0.35  # share of a run after which they are made so once more
FINER = 2.0  # times that steps become so at once in a run; in a pass, where they should be that
# What is left of networks' squared gradients after a step of runs of so many: in short ones, what
# was so in the beginning soon is not any more.
MEMORIES, OF_MEMORY = (0.93, BETAS[1]), (FEW_STEPS, 900)
# The same of latents' gradients in several windows: of few steps, what is older is of less use.
MOMENTA, OF_MOMENTUM = (0.6, MOMENTUM), (60, FEW_STEPS)
LAST = 1e-3  # of networks, once latents are rounded; falls to a tenth


def control(done: int, steps: int, lmbda: float, windows: int = 1) -> Control:
    """What holds after so many steps of a run, in one window or several."""
    end, length = ROUNDED * steps, math.log(max(steps, 1))
    memory = float(np.interp(length, np.log(OF_MEMORY), MEMORIES))
    several = float(np.interp(length, np.log(OF_MOMENTUM), MOMENTA))
    momentum = several if windows > 1 else MOMENTUM
    found = Control(lmbda, tiles=TILES, memory=memory, momentum=momentum)
    if done >= end:
        left = (steps - done) / max(steps - end, 1)
        last = LAST * 0.1 ** (1 - left)
        return replace(found, latents=0.0, networks=last, rounding=True)
    way = done / end
    cosine = 0.5 * (1 + math.cos(math.pi * way))
    faster = min(max(FEW_STEPS / steps, 1.0) ** BY_FEWER, FASTER)
    first, last = TEMPERATURES
    first = min(SOFT, first * max(1.0, HURRIED / steps) ** 0.25)
    t, share = (a + (b - a) * way for a, b in ((first, last), NOISE_SHARES))
    calm = min(steps / HASTY, 1.0)
    quicker = float(np.interp(length, np.log(LONGER), QUICKER))
    latents, networks = LATENTS * faster * quicker * cosine, NETWORKS / faster * calm * cosine
    return replace(
        found,
        temperature=t * math.sqrt(calm),
        share=share,
        noise=calm,
        latents=latents,
        networks=networks,
    )


def begin(step: LatentStep, pixels: Array, lmbda: float, steps: int) -> None:
    """Spare a run the steps in which latents would only become something like the picture.

    Text and dots are not what guesses are made for: a few steps from one are better than from
    nothing, but more of them do not get away from it. What alpha cuts out has no start that would
    make something of one.
    """
    found = None
    if step.mostly_seen and not is_graphic(pixels, steps):
        found = predict_latents(pixels, step.shape, step.start.number)
    if found is None:
        return
    nothing = step.grids()
    if steps >= HASTY:
        step.write_grids(found)
        step.ask(step.flat.numpy(), "error")
        if not step.answer() < UNLIKE:
            step.write_grids(nothing)
            return
    step.write_grids(shrunk(found, lmbda, steps))


def is_graphic(pixels: Array, steps: int) -> bool:
    """Whether a run of so many steps has pixels [height, width, channels] without alpha in at most
    COLOURS colours; hasty ones go as all do."""
    if steps < HASTY or has_alpha(pixels):
        return False
    known = np.zeros(0, np.uint32)
    for row in pixels:  # the first is enough to see that a photo has more
        packed = sum(row[:, n].astype(np.uint32) << 8 * n for n in range(row.shape[1]))
        known = np.union1d(known, packed[~np.isin(packed, known)])
        if known.size > COLOURS:
            return False
    return True


def shrunk(grids: Sequence[Array], lmbda: float, steps: int) -> list[Array]:
    """Guessed latents as a run of so many steps had better begin with them.

    High lambdas leave few latents other than zero, and what does not pay hardly goes away again.
    """
    share = float(np.interp(math.log(max(steps, 1)), np.log(BY_STEPS), SHRUNK))
    nearer = share * math.log2(max(lmbda, UNSHRUNK) / UNSHRUNK)
    less = (np.float32(nearer * (1 if level else OF_FINEST)) for level in range(len(grids)))
    return [np.sign(g) * np.maximum(np.abs(g) - by, 0) for g, by in zip(grids, less, strict=True)]


def foreseen(
    rate: float, networks: float, quality: float, left: float, lmbda: float
) -> tuple[float, float, float]:
    """Bits a pixel of latents, bits of networks, and dB at the end of a run.

    By what they are where such a share of it is left, if it goes on at this lambda.
    """
    square = left**2
    better = BETTER + BY_HALVING * math.log2(USUAL / lmbda) + FINER_BY * max(quality - FINE_DB, 0.0)
    fewer, spared = min(FEWER, AT_MOST * rate) * square, FEWER_WEIGHTS * square**2
    return rate - fewer, networks * (1 - spared), quality + max(better, LEAST_BETTER) * square


def fineness(lmbda: float, pixels: int, steps: int, start: int) -> float:
    """How many times finer than a start's the steps of latents should be in a run of so many."""
    if steps < FEW_STEPS:
        return 1.0  # which are too few to make use of it, and to hit a target then
    found = min(math.pow(training_lmbda(start) / lmbda, BY_LMBDA), MOST_FINER)
    return found if found > WORTH_FINER * math.pow(max(SPARE / pixels, 1.0), BY_LMBDA) else 1.0


def refine(step: LatentStep, times: float) -> None:
    """Have latents so many times larger, and about the same picture and bits of them.

    The entropy network keeps most of its weights, as each that differs from the start's costs bits:
    its activations are nearly as many times larger if what they are made of is.
    """
    networks = networks_of(step.flat.numpy().copy(), step.shapes)
    networks["synthesis.0.weight"] /= times
    for name in ("entropy.0.bias", "entropy.1.bias"):
        networks[name] *= times
    networks["entropy.2.weight"][:, 1] /= times  # which gives the logarithm of the scale
    networks["entropy.2.bias"] *= (times, 1)
    networks["entropy.2.bias"][1] += math.log(times)
    step.flat.write(flat_of(networks))
    step.write_grids([grid * np.float32(times) for grid in step.grids()])


def sharing(steps: int) -> float:
    """The power of how many windows there are by which networks move less with each."""
    return float(np.interp(math.log(max(steps, 1)), np.log(OF), SHARED))


@dataclass
class LatentTrainerState(TrainerState):
    exponents: dict[str, int] = field(default_factory=dict)  # of networks' steps, once looked for
    lost: float = 0.0  # dB by which networks with these are worse, in the end
    begun: int = 0  # steps that were done when this pass through the schedule began
    first: int = 0  # steps of the first of them
    finer: float = 1.0  # steps of latents, than the start's
    anew: int = 0  # times that it began again, with another one
    lowest: float = 0.0  # lambda since its first change; 0 before
    held: bool = False  # whether its lambda stays, whatever the target is
    over: bool = False  # whether it is the same run once more

    def hold(self, lmbda: float) -> None:
        """Have one that stays."""
        self.lmbda = self.lowest = lmbda
        self.held = True


class LatentTrainer(Trainer[LatentStep, LatentTrainerState]):
    """One run of a LatentStep."""

    least = FEWEST_LIMITED

    def __init__(
        self,
        step: LatentStep,
        state: LatentTrainerState,
        pricing: LmbdaUpdate | None = None,
        limit: float | None = None,
        most: int = 0,
        anew: Callable[[float], None] | None = None,
        cheapest: float = 0.0,
        dear: float = 1.0,
    ) -> None:
        """Of at most so many steps where the limit leaves time for more than the state says.

        `anew` brings the step to its state before the first one, for a lambda, if the run may
        begin again. Before passes no lambda is below `cheapest`. One that stays is `dear` times
        as high in the beginning.
        """
        self._most = most
        state.first = steps = state.first or state.steps
        self._anew, self._cheapest, self._dear = anew, cheapest, dear
        self._waits = False  # for the step that is to go on after the pause
        looks = LOOKS[step.device.lanes]
        look = max(min(LEAST_LOOK, -(-steps // 20)), min(MOST_LOOK, steps // looks))
        super().__init__(step, state, look, limit)
        self._pricing = pricing
        self.control = look * max(1, steps // (CHANGES * look))  # steps to new lambdas
        between = max(-(-APART // self.control), steps // (REMEMBERED * self.control))
        self._keeping = self.control * between

    def preview(self) -> Array:
        return self.step.picture()

    def pause_after(self, steps: int, late: bool) -> None:
        """So many; where more are done, at the next look, if the run may be late."""
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

    def go_over(self, step: LatentStep, anew: Callable[[float], None] | None) -> None:
        """After the pause: have another step, which is where this one is, go on."""
        self.step, self._anew = step, anew
        self.pause = self._good = None
        self._waits = False

    def _look(self, tell: Callable[[Progress], None] | None) -> bool:
        loss, rate = self.step.figures()
        if not (loss < DIVERGED_LOSS and math.isfinite(rate)):
            return self._recover()
        if self.done % self.control == 0:
            self._change_lmbda()
            if abs(self.done - SUITING * self.state.steps) <= self.control / 2:
                self._suit_again()
            if self.done % self._keeping == 0:
                self._remember()
        # Lambdas towards a target go by how much of the run is left, so that it grows early only.
        grows = ROUNDED if self._pricing is None else EARLY
        moving = not self.state.begun and self.done < grows * self.state.steps
        # Before the pause steps say nothing of how long those after it take.
        if self.pause is None or self._waits:
            self._shorten(self._most if moving else 0)
        self._steer()
        if tell is not None:
            cost = loss * self.step.counted + self.state.lmbda * rate
            tell(replace(self._progress(loss), bpp=rate, cost=cost))
        return True

    def _change_lmbda(self) -> None:
        """By what rounded latents would give, which changes as long as these move."""
        state, step = self.state, self.step
        share = self.done / state.steps
        if self._pricing is None or state.begun or state.held or not FREE <= share < ROUNDED:
            return
        error, rate = step.judge(step.flat.numpy())
        search, first = Search(step, state.exponents), not state.exponents
        if first or any(abs(share - at) * state.steps <= self.control / 2 for at in SEARCHED_AFTER):
            found = search.figures(search.run(state.lmbda, rounds=1))
            lost = max(decibels(error) - found.psnr, 0.0)
            state.exponents, state.lost = search.exponents, REMAINS * lost
        now = rate, search.bits(), decibels(error) - state.lost
        rate, networks, quality = foreseen(*now, left=1 - share, lmbda=state.lmbda)
        factor = self._pricing(rate * step.pixels + networks, quality)
        if not math.isfinite(factor):
            return  # the next look goes back
        if first:
            self._far(max(factor**ALL_AT_ONCE, self._cheapest / state.lmbda))
            state.lowest = state.lmbda
            return
        # Lambdas that change faster than latents follow go many times too far.
        factor **= min(1.0, self.control / FOLLOWED) * (1 - share)
        state.multiply_lmbda(max(factor, self._cheapest / state.lmbda), DEARER_AT_ONCE)
        state.lowest = min(state.lowest, state.lmbda)

    def _far(self, factor: float) -> None:
        """Have so many times lambda; from the beginning, if what was trained is no way to it.

        A limit leaves time for that once, in the steps that are left, if these are not few: a run
        of few steps is worse than one at another lambda.
        """
        state, limited = self.state, self._limit is not None
        few = self._limit is not None and self._fitting(self._limit) < FEW_STEPS
        low, high = (1 / HALFWAY, HALFWAY) if limited else ASTRAY
        most = 1 if limited else AGAIN
        if self._anew is None or few or state.anew >= most or low <= factor <= high:
            goes_on = limited or self._anew is None
            state.multiply_lmbda(factor, HALFWAY if goes_on else NEARBY)
            return
        before = state.lmbda
        state.multiply_lmbda(factor, FURTHEST_LMBDA)
        if low <= state.lmbda / before <= high:
            return  # there is none beyond it
        state.anew += 1
        if limited:
            self._most = state.steps = state.first = state.steps - self.done
        self._begin_again()

    def _begin_again(self) -> None:
        assert self._anew is not None
        state = self.state
        state.exponents, state.lost, state.finer = {}, 0.0, 1.0
        self._anew(state.lmbda)
        self.done = 0
        self._shown = 0, time.perf_counter()
        self.suit()

    def was_astray(self, lmbda: float) -> bool:
        """Whether the run had better be done again than go on at this lambda, as bits were much
        cheaper at first."""
        return self._pricing is not None and 0 < RISEN * self.state.lowest <= lmbda

    def start_over(self, lmbda: float) -> None:
        """Have the whole run, before any pass, once more at a lambda that stays."""
        self.state.hold(lmbda)
        self.state.over = True
        self._good = None
        self._begin_again()

    def _suit_again(self) -> None:
        if self._pricing is not None and not self.state.begun:
            self.suit(FINER)

    def suit(self, most: float = MOST_FINER) -> None:
        """Have steps of latents that suit lambda, at most so many times finer or coarser."""
        times = self._fineness(self.state.lmbda) / self.state.finer
        if abs(math.log(times)) <= math.log(SUITED):
            return
        times = min(max(times, 1 / most), most)
        if times > 1:
            largest = max(float(np.abs(grid).max()) for grid in self.step.grids())
            times = min(times, max(ROOM / max(largest, 1.0), 1.0))
        if times != 1:
            refine(self.step, times)
            self.state.finer *= times

    def repeat(
        self,
        lmbda: float,
        networks: Mapping[str, Quantized],
        steps: int = 0,
        limit: float | None = None,
    ) -> None:
        """Have the last part of the run once more, in so many steps or as usual, at another lambda.

        From networks as a file has them: what the search for these found is not lost then, which
        would be found only in part again. `limit` is the new one of the clock, if there is any.
        """
        state, self._limit = self.state, limit
        self.step.flat.write(flat_of({name: one.floats() for name, one in networks.items()}))
        state.begun, state.lmbda = state.steps, lmbda
        self._good = None  # what goes wrong from here does not go back to the run before
        state.steps += steps or self.again
        if self._fineness(lmbda) >= FINER * state.finer:
            self.suit(FINER)

    def _fineness(self, lmbda: float) -> float:
        return fineness(lmbda, self.step.pixels, self.state.first, self.step.start.number)

    @property
    def again(self) -> int:
        """Steps of another pass, usually."""
        return max(1, round(SHORTER * self.state.first))

    def _falling(self, done: int, steps: int) -> float:
        """Times lambda, after so many steps of a run."""
        fallen = max(min(FALLEN, FALLEN_BY * steps), 1)
        stays = self._pricing is None or self.state.held
        if self.state.begun or not stays:
            return 1.0
        return math.pow(self._dear, max(1 - done / fallen, 0.0))

    def _steer(self) -> None:
        state, slower = self.state, self.state.slower
        left = state.steps - (self.done - self.done % self.look)
        whole = state.steps
        if state.begun:  # what is left of a schedule that ends now
            whole = round((state.steps - state.begun) / (1 - RETURN))
        done = max(0, whole - left)
        windows = len(self.step.windows)  # with each of which networks move
        found = control(done, whole, state.lmbda * self._falling(done, whole), windows)
        self.step.steer(
            replace(
                found,
                latents=found.latents * slower * state.finer,
                networks=found.networks * slower / windows ** sharing(state.first),
            )
        )
