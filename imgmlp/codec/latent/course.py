"""The course of a run: soft rounding that hardens, then true rounding that moves networks only.

The host decides by the number of steps done alone, and only at fixed steps, so that a run which
was stopped and goes on gives the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from imgmlp.codec import checkpoint
from imgmlp.codec.checkpoint import State
from imgmlp.codec.fit import Progress
from imgmlp.codec.latent.train import Control, LatentStep

Array = np.ndarray[Any, Any]
Ended = Literal["done", "interrupted", "diverged"]

ROUNDED = 0.92  # share of a run after which latents stand still, rounded
LOOK = 10  # steps between looks
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
    seconds: float = 0.0


class Course:
    """One run of a LatentStep."""

    def __init__(self, step: LatentStep, decided: Decided) -> None:
        self.step, self.decided = step, decided
        self._kept = time.monotonic()
        self._began = time.perf_counter() - decided.seconds

    def state(self) -> State:
        self.decided.seconds = time.perf_counter() - self._began
        return State(self.step.state(), asdict(self.decided))

    def run(
        self,
        tell: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        keep: Callable[[State], None] | None = None,
    ) -> Ended:
        """Go on to the end. `keep` is given a state from time to time, and when it stops early."""
        done, steps = int(self.step.count.item()), self.decided.steps
        while done < steps:
            self.step.steer(control(done, steps, self.decided.price))
            count = min(LOOK - done % LOOK, steps - done)
            self.step.program.run(count)
            self.step.program.wait()
            done += count
            progress = self._progress(done)
            if not math.isfinite(progress.loss):
                return "diverged"
            if tell is not None:
                tell(progress)
            stop = should_stop is not None and should_stop()
            late = time.monotonic() - self._kept > checkpoint.KEEP_SECONDS
            if keep is not None and (stop or late):
                keep(self.state())
                self._kept = time.monotonic()
            if stop and done < steps:
                return "interrupted"
        self.decided.seconds = time.perf_counter() - self._began
        return "done"

    def _progress(self, done: int) -> Progress:
        step = self.step
        pixels = step.height * step.width
        loss = float(step.program.read("error")) / (pixels * step.channels)
        pace = done / max(time.perf_counter() - self._began, 1e-9)
        psnr = -10 * math.log10(max(loss, 1e-12))
        return Progress(
            done, self.decided.steps, loss, psnr, pace, (self.decided.steps - done) / pace
        )
