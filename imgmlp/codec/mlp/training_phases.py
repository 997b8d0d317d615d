"""The course of a run: free weights, noise and learned steps, then rounding.

The host looks at fixed steps only and decides by what is on the device there, so that a run
which was stopped and goes on gives the same bits as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from imgmlp.codec.bitstream.quantize import coded_bits, quantize
from imgmlp.codec.mlp.bit_allocation import Choice, log_sizes, settle, total_bits
from imgmlp.codec.mlp.qat_step import Control, LearningStep
from imgmlp.codec.training.checkpoint import State
from imgmlp.codec.training.replay import RETRIES, decibels, finite, mean_loss, next_chunk
from imgmlp.codec.training.run import Progress, Run

Array = np.ndarray[Any, Any]
Ended = Literal["done", "interrupted", "diverged"]
Pricing = Callable[[float, float], float]  # (bits, dB) -> by what the price is multiplied

FREE, NOISY = 0.45, 0.86  # shares of a run after which noise begins, and rounding
NOISE = 4_000  # steps of noise in which long runs have learned the steps' sizes
DRAWN = 0.1  # of the way to a whole step that weights are moved at a look, at the end of rounding
ROUNDED = 3.0  # times the learning rate once weights are rounded: it is near its end, they begin
LOOK = 100  # steps, at most, between looks
CONTROL = 5  # looks between new prices
HOPELESS = 10.0  # a loss that no answer near the picture has
_START = 24.0, 64.0  # steps in the deviation of weights and of biases when noise begins


@dataclass
class Decided:
    """What the host knows beyond the arrays of the device; plain values for a checkpoint."""

    steps: int
    price: float
    wider: int = 1  # times the usual pixels in a step
    retries: int = 0  # after numbers exploded
    phase: int = 0  # 0 free, 1 noise, 2 rounding
    choices: list[list[int]] = field(default_factory=list)  # step, finer of each layer
    seconds: float = 0.0

    @property
    def slower(self) -> float:
        """Factor of the learning rate."""
        return 0.5**self.retries


class Course:
    """One run of a LearningStep. `budget` is in bits, if there is one."""

    def __init__(
        self, step: LearningStep, decided: Decided, pricing: Pricing, budget: float | None
    ) -> None:
        self.step, self.decided = step, decided
        self._pricing, self._budget = pricing, budget
        self.look = max(1, min(LOOK, decided.steps // 40))
        self._chunk, self._shown = 1, (0, 0.0)
        self._began = time.perf_counter() - decided.seconds
        self._good: State | None = None
        self._steer()

    # --- what others may ask ---

    def arrays(self) -> list[Array]:
        return self.step.split(self.step.flat.numpy())

    def choices(self) -> list[Choice]:
        return [Choice(*pair) for pair in self.decided.choices]

    def state(self) -> State:
        self.decided.seconds = time.perf_counter() - self._began
        return State(self.step.state(), asdict(self.decided))

    def run(self, run: Run, complete: Callable[[State], State] = lambda state: state) -> Ended:
        """Go on to the end. `complete` adds to a state what others want to have kept with it."""
        done = int(self.step.count.item())
        self._good = self._good or self.state()
        self._shown = first = done, time.perf_counter()
        while done < self.decided.steps:
            count = min(self._chunk, self.look - done % self.look, self.decided.steps - done)
            began = time.perf_counter()
            self.step.program.run(count)
            self.step.program.wait()
            seconds = time.perf_counter() - began
            self._chunk = next_chunk(self._chunk, seconds)
            done += count
            if self._shown is first:  # which may have compiled for long
                self._shown = done, time.perf_counter()
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

    # --- looks ---

    def _look(self, done: int, tell: Callable[[Progress], None] | None) -> int:
        """Judge and decide; returns the number of steps done, -1 if there is no way on."""
        loss = mean_loss(float(self.step.smooth.item()), done)
        if not loss < HOPELESS:
            return self._recover()
        self._advance(done)
        if done % (CONTROL * self.look) == 0:
            self._reprice(loss)
            state = self.state()
            if finite(state.arrays.values()):
                self._good = state
        if tell is not None:
            now = done, time.perf_counter()
            tell(Progress.between(self._shown, now, self.decided.steps, loss))
        return done

    def _recover(self) -> int:
        """Back to the last good state, at half the learning rate."""
        assert self._good is not None
        retries = self.decided.retries + 1
        self.step.restore(self._good.arrays)
        self.decided = Decided(**self._good.facts)
        if retries > RETRIES:
            return -1
        self.decided.retries = self._good.facts["retries"] = retries
        self._steer()
        return int(self.step.count.item())

    def _advance(self, done: int) -> None:
        decided, total = self.decided, self.decided.steps
        if decided.phase == 0 and done >= max(FREE * total, NOISY * total - NOISE):
            arrays = self.arrays()
            deviations = [float(np.sqrt(np.mean(a * a))) for a in arrays]
            widths = [_START[a.ndim == 1] for a in arrays]
            sizes = [d / w + 2.0**-20 for d, w in zip(deviations, widths, strict=True)]
            self.step.sizes.write(np.log2(sizes).astype(np.float32))
            self.step.weigh()
            decided.phase = 1
            self._steer()
        if decided.phase == 1 and done >= NOISY * total:
            self.fix_steps()
        if decided.phase == 2:
            self._draw((done / total - NOISY) / (1 - NOISY) * DRAWN)

    def fix_steps(self) -> None:
        """Give every layer a step that exists; from here on weights are rounded."""
        wished = self.step.sizes.numpy()
        choices = settle(self.arrays(), wished, self._budget)
        self.decided.choices = [[c.step, c.finer] for c in choices]
        self.step.sizes.write(log_sizes(choices))
        self.decided.phase = 2
        self._steer()

    def _draw(self, share: float) -> None:
        """Move weights a share of the way to the whole steps that they are rounded to.

        Without it a third of them ends near the middle between two steps, back and forth, and
        chance decides which it is.
        """
        moved = []
        for array, size in zip(self.arrays(), self._sizes(), strict=True):
            whole = quantize(array, size) * size
            moved.append((array + (whole - array) * share).astype(np.float32).ravel())
        self.step.flat.write(np.concatenate(moved))

    def _reprice(self, loss: float) -> None:
        decided = self.decided
        if decided.phase == 0:
            return
        self.step.weigh()
        factor = self._pricing(self._bits(), decibels(loss))
        limit = 2.0 if decided.phase == 1 else 1.25
        decided.price = min(max(decided.price * min(max(factor, 1 / limit), limit), 1e-7), 10.0)
        self._steer()

    def _bits(self) -> float:
        if self.decided.phase == 2:
            return total_bits(self.arrays(), self.choices())
        pairs = zip(self.arrays(), self._sizes(), strict=True)
        return sum(coded_bits(quantize(array, size)) for array, size in pairs)

    def _sizes(self) -> list[float]:
        """Of the steps of each tensor."""
        return [float(size) for size in np.exp2(self.step.sizes.numpy().astype(np.float64))]

    def _steer(self) -> None:
        decided = self.decided
        price = decided.price if decided.phase else 0.0
        noise, rounding = decided.phase == 1, decided.phase == 2
        rate = decided.slower * (ROUNDED if rounding else 1.0)
        self.step.steer(Control(decided.steps, noise, rounding, price, rate))
