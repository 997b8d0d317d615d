"""The course of a run: soft rounding that hardens, then true rounding that moves networks only.

The host decides by the number of steps done alone, and only at fixed steps, so that a run which
was stopped and goes on gives the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from imgmlp.codec.latent.settle import Search
from imgmlp.codec.latent.train import Control, LatentStep
from imgmlp.codec.training.checkpoint import State
from imgmlp.codec.training.replay import RETRIES, decibels, finite, next_chunk
from imgmlp.codec.training.run import Progress, Run

Array = np.ndarray[Any, Any]
Ended = Literal["done", "interrupted", "diverged"]
Pricing = Callable[[float, float], float]  # (bits, dB) -> by what the price is multiplied

ROUNDED = 0.92  # share of a run after which latents stand still, rounded
LOOK, MOST = 10, 200  # steps between looks, at least and at most
FREE = 0.1  # share of a run before prices change
SEARCHED = 0.3, 0.6, 0.85  # shares of a run after which networks' steps are looked for
DEARER = 1.25  # times the price, at most, at once
SLIPPED = 0.9  # share of the steps left that fits in the time limit, below which they are fewer
HOPELESS = 10.0  # a loss that no answer near the picture has
TEMPERATURES = 0.3, 0.15
SHARES = 0.63, 0.87  # of noise
LATENTS, NETWORKS = 0.2, 1e-2  # learning rates
LAST = 1e-3  # of networks, once latents are rounded; falls to a tenth


def control(done: int, steps: int, price: float) -> Control:
    """What holds after so many steps of a run."""
    end = ROUNDED * steps
    if done >= end:
        left = (steps - done) / max(steps - end, 1)
        return Control(price, latents=0.0, networks=LAST * 0.1 ** (1 - left), rounding=True)
    way = done / end
    cosine = 0.5 * (1 + math.cos(math.pi * way))
    t, share = (a + (b - a) * way for a, b in (TEMPERATURES, SHARES))
    return Control(price, t, share, latents=LATENTS * cosine, networks=NETWORKS * cosine)


@dataclass
class Decided:
    """What the host knows beyond the arrays of the device; plain values for a checkpoint."""

    steps: int
    price: float
    retries: int = 0  # after numbers exploded
    exponents: dict[str, int] = field(default_factory=dict)  # of networks' steps, once looked for
    lost: float = 0.0  # dB by which networks with these are worse
    seconds: float = 0.0


class Course:
    """One run of a LatentStep. It ends about when the clock says `limit`, if that is given."""

    def __init__(
        self,
        step: LatentStep,
        decided: Decided,
        pricing: Pricing | None = None,
        limit: float | None = None,
    ) -> None:
        self.step, self.decided = step, decided
        self._pricing, self._limit = pricing, limit
        self.look = max(min(LOOK, -(-decided.steps // 20)), min(MOST, decided.steps // 500))
        self.control = self.look * max(1, decided.steps // (50 * self.look))  # steps to new prices
        self._chunk, self._shown = 1, (0, 0.0)
        self._began = time.perf_counter() - decided.seconds
        self._good: State | None = None

    def state(self) -> State:
        self.decided.seconds = time.perf_counter() - self._began
        return State(self.step.state(), asdict(self.decided))

    def run(
        self, run: Run | None = None, complete: Callable[[State], State] = lambda state: state
    ) -> Ended:
        """Go on to the end. `complete` adds to a state what others want to have kept with it."""
        run, done = run or Run(), int(self.step.count.item())
        self._good = self._good or self.state()
        self._shown = done, time.perf_counter()
        self._steer(done - done % self.look)
        while done < self.decided.steps:
            count = min(self._chunk, self.look - done % self.look, self.decided.steps - done)
            began = time.perf_counter()
            self.step.program.run(count)
            self.step.program.wait()
            self._chunk = next_chunk(self._chunk, time.perf_counter() - began)
            done += count
            if done % self.look == 0 or done == self.decided.steps:
                done = self._look(done, run.tell)
                if done < 0:
                    return "diverged"
            stop = run.stopping()
            if run.due(stop):
                run.keep(complete(self.state()))
            if stop and done < self.decided.steps:
                return "interrupted"
        self.decided.seconds = time.perf_counter() - self._began
        return "done"

    def _look(self, done: int, tell: Callable[[Progress], None] | None) -> int:
        """Judge and decide; returns the number of steps done, -1 if there is no way on."""
        error, bits = (float(self.step.program.read(name)) for name in ("error", "bits"))
        loss, rate = error / (self.step.pixels * self.step.channels), bits / self.step.pixels
        if not (loss < HOPELESS and math.isfinite(rate)):
            return self._recover()
        if done % self.control == 0:
            self._reprice(done)
            state = self.state()
            if finite(state.arrays.values()):
                self._good = state
        pace, left = self._time_left(done)
        self._shorten(done, pace)
        self._steer(done)
        if tell is not None:
            cost = loss + self.decided.price * rate
            steps = self.decided.steps
            tell(Progress(done, steps, loss, decibels(loss), pace, left, bpp=rate, cost=cost))
        return done

    def _recover(self) -> int:
        """Back to the last good state, at half the learning rates."""
        assert self._good is not None
        retries = self.decided.retries + 1
        self.step.restore(self._good.arrays)
        self.decided = Decided(**self._good.facts)
        if retries > RETRIES:
            return -1
        self.decided.retries = self._good.facts["retries"] = retries
        done = int(self.step.count.item())
        self._steer(done)
        return done

    def _reprice(self, done: int) -> None:
        """By what rounded latents would give, which changes as long as these move."""
        if self._pricing is None or not FREE <= done / self.decided.steps < ROUNDED:
            return
        decided, step = self.decided, self.step
        error, rate = step.judge(step.flat.numpy())
        search = Search(step, decided.exponents)
        if any(abs(done - share * decided.steps) <= self.control / 2 for share in SEARCHED):
            found = search.figures(search.run(decided.price, rounds=1))
            decided.exponents, decided.lost = search.exponents, decibels(error) - found.psnr
        bits = rate * step.pixels + search.bits()
        factor = self._pricing(bits, decibels(error) - decided.lost)
        factor = min(max(factor, 1 / DEARER), DEARER)
        decided.price = min(max(decided.price * factor, 1e-7), 10.0)

    def _time_left(self, done: int) -> tuple[float, float]:
        """Steps in a second since this process began them, and seconds to the end."""
        first, since = self._shown
        pace = (done - first) / max(time.perf_counter() - since, 1e-9)
        return pace, (self.decided.steps - done) / max(pace, 1e-9)

    def _shorten(self, done: int, pace: float) -> None:
        """Take fewer steps where they turn out to be slower than the time limit allows."""
        if self._limit is None:
            return
        fitting = max(0, int(pace * (self._limit - time.perf_counter())))
        if fitting < SLIPPED * (self.decided.steps - done):
            self.decided.steps = done + fitting

    def _steer(self, done: int) -> None:
        found = control(done, self.decided.steps, self.decided.price)
        slower = 0.5**self.decided.retries
        self.step.steer(
            replace(found, latents=found.latents * slower, networks=found.networks * slower)
        )
