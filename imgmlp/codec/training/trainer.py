"""The loop of a training: replay a step, look at it, keep its state, until all steps are done.

It knows no network and no schedule. Who derives from it decides at fixed steps only, by what is on
the device there, so that a run which was stopped and goes on gives the same bits as one that was
not; but where numbers explode, it goes back to where it went on, if nothing later was good.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np

from imgmlp.child import Helper
from imgmlp.codec.training.checkpoint import Resumable, Snapshot
from imgmlp.codec.training.replay import RETRIES, finite, next_chunk
from imgmlp.codec.training.run import Progress, Run

Array = np.ndarray[Any, Any]
Ended = Literal["done", "interrupted", "diverged"]
LmbdaUpdate = Callable[[float, float], float]  # (bits, dB) -> by what lambda is multiplied

DIVERGED_LOSS = 10.0  # a loss that no answer near the picture has
TELLING = 0.05  # of the time that is left, what steps must have taken to tell their pace
SLIPPED = 0.9  # share of the steps left that fits in the time limit, below which they are fewer
MIN_LMBDA, MAX_LMBDA = 1e-7, 10.0  # lambdas of a bit a pixel
GRACE = 0.5  # seconds from its beginning that a run has for its first steps, whatever its limit is


@dataclass
class TrainerState:
    """What the host knows beyond the arrays of the device; plain values for a checkpoint."""

    steps: int  # of the whole run
    lmbda: float  # squared error on [0, 1] that a bit a pixel is worth
    retries: int = field(default=0, kw_only=True)  # after numbers exploded
    seconds: float = field(default=0.0, kw_only=True)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """As it is among a snapshot's values."""
        return cls(**{one.name: values[one.name] for one in fields(cls)})

    @property
    def slower(self) -> float:
        """Factor of the learning rates."""
        return 0.5**self.retries

    def multiply_lmbda(self, factor: float, most: float) -> None:
        """By a factor from 1 / most to most."""
        factor = min(max(factor, 1 / most), most)
        self.lmbda = min(max(self.lmbda * factor, MIN_LMBDA), MAX_LMBDA)


S = TypeVar("S", bound=Resumable)
D = TypeVar("D", bound=TrainerState)


class Trainer(ABC, Generic[S, D]):
    """One run of a step, which is looked at each time that `look` more of them are done.

    It ends about when the clock says `limit`, if that is given.
    """

    least = 1  # steps that a limit leaves it, if they take no longer than GRACE

    def __init__(self, step: S, state: D, look: int, limit: float | None = None) -> None:
        self.step, self.state, self.look, self._limit = step, state, look, limit
        self.done = 0  # steps, known to the host while it runs
        self.pause: int | None = None  # of them, after which another step is to go on
        self._chunk, self._shown, self._graced = 1, (0, 0.0), 0.0
        self._told, self._resumed = 0.0, False  # steps a second; whether it has just gone on
        self._looked = 0.0  # when the latest steps were done and looked at
        self._began = time.perf_counter() - state.seconds
        self._good: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        self.state.seconds = time.perf_counter() - self._began
        return Snapshot(self.step.state(), asdict(self.state))

    def _sound(self) -> Snapshot:
        """What to keep: the latest good state if numbers exploded and no look has noticed it, as
        from there a run goes on as from here."""
        now = self.snapshot()
        if finite(now.arrays.values()):
            return now
        assert self._good is not None
        return self._good

    def settled(self) -> Snapshot:
        """What to make a file of. Where numbers exploded after the last look, as where a limit ends
        a run midway, the step goes back to the latest good state."""
        found = self._sound()
        if found is self._good:
            self.step.restore(found.arrays)
        return found

    def reached(self) -> str:
        return f"{self.step.done:,} of {self.state.steps:,} steps"

    def run(
        self, run: Run | None = None, complete: Callable[[Snapshot], Snapshot] = lambda made: made
    ) -> Ended:
        """Go on to the end, or to the pause. `complete` adds to a snapshot what others want to have
        kept with it."""
        run, self.done = run or Run(), self.step.done
        self._good = self._good or self.snapshot()
        self._shown = begun = self.done, time.perf_counter()
        self._graced, self._resumed = begun[1] + GRACE, self._told > 0
        self._steer()
        while self.done < self._end:
            whole = self._replay(run)
            looks = self.done % self.look == 0 or self.done == self.state.steps
            if self._shown is begun and not looks:  # the first steps may have compiled for long
                self._shown, self._resumed = (self.done, time.perf_counter()), False
            if whole and looks and not self._look(run.tell):
                return "diverged"
            self._looked = time.perf_counter()
            stop = run.stopping()
            if not whole and self._late():
                self.state.steps = self.done
            if run.due(stop):
                run.keep(complete(self._sound()))
            if stop and self.done < self._end:
                return "interrupted"
        self.state.seconds = time.perf_counter() - self._began
        return "done"

    def run_beside(
        self,
        compiler: Helper,
        run: Run,
        complete: Callable[[Snapshot], Snapshot],
        what: str,
        waits: bool = True,
    ) -> Ended:
        """Go on to the pause, beside a process that compiles for `what` is trained, such as
        "pictures", the program that goes on from there.

        It `waits` at the pause until that process has ended, however; or it takes more steps, look
        by look, until that is done, which one that has failed never is.
        """
        with compiler:
            while True:
                ended = self.run(run, complete)
                if ended != "done" or not self.paused:
                    return ended
                if compiler.working and waits:
                    run.say(f"still compiling for {what} of this size")
                    compiler.wait(run.stopping)
                if run.stopping():
                    if run.due(True):
                        run.keep(complete(self._sound()))
                    return "interrupted"
                if compiler.done or waits:
                    return "done"
                self.go_on()

    def go_on(self) -> None:
        """After the pause: with this step up to the next look, as the other is not ready."""
        assert self.pause is not None
        self.pause += self.look

    def _replay(self, run: Run) -> bool:
        """Some more steps, but none beyond the next look; False if the last of them is not whole,
        as the run is to stop or its time is over."""
        most = self.step.together or self._chunk
        count = min(most, self.look - self.done % self.look, self._end - self.done)
        began = time.perf_counter()

        whole = self.step.run(count, lambda: self._late() or run.stopping())
        self._chunk = next_chunk(self._chunk, time.perf_counter() - began)
        if whole:
            self.done += count
        return whole

    @property
    def _end(self) -> int:
        return min(self.state.steps, self.pause or self.state.steps)

    @property
    def pace(self) -> float | None:
        """Seconds that a step takes, of those since this run began; None before the second."""
        first, since = self._shown
        if self.done <= first:
            return None
        return (self._looked - since) / (self.done - first)

    @property
    def paused(self) -> bool:
        """Whether the run is there, and not yet at its end."""
        return self.done == self.pause and self.done < self.state.steps

    def _late(self) -> bool:
        """Whether no time is left, not even for the rest of a step."""
        if self._limit is None:
            return False
        now = time.perf_counter()
        return now > self._limit and not self._few(now)

    def _few(self, now: float) -> bool:
        """Whether it has no more steps yet than a limit leaves it in any case."""
        return self.done < self.least and now < self._graced

    @abstractmethod
    def _look(self, tell: Callable[[Progress], None] | None) -> bool:
        """Judge and decide; whether there is a way on."""

    @abstractmethod
    def _steer(self) -> None:
        """Tell the device what holds after `done` steps."""

    def _shorten(self, most: int = 0) -> None:
        """Take fewer steps where they turn out to be slower than the time limit allows.

        More, up to `most` in all, where they are faster.
        """
        now = time.perf_counter()
        if self._limit is None or self._few(now):
            return
        first, since = self._shown
        # The first of them say nothing of how long steps take, where there are far more.
        if self.done == first or now - since < TELLING * (self._limit - now):
            return
        fitting, left = self._fitting(self._limit), self.state.steps - self.done
        if fitting < SLIPPED * left or (self.done + left < most and SLIPPED * fitting > left):
            steps = self.done + max(0, int(fitting))
            self.state.steps = min(steps, max(most, self.state.steps))
            self._steer()

    def _fitting(self, limit: float) -> float:
        """Steps that there is time for, at the pace of those since this run began."""
        first, since = self._shown
        now = time.perf_counter()
        return (self.done - first) / max(now - since, 1e-9) * (limit - now)

    def _remember(self) -> None:
        """This state, as one to go back to, if all of it is finite."""
        now = self.snapshot()
        if finite(now.arrays.values()):
            self._good = now

    def _recover(self) -> bool:
        """Back to the last good state, at half the learning rates; not after too many times."""
        assert self._good is not None
        retries = self.state.retries + 1
        self._good.values["retries"] = min(retries, RETRIES)
        self.go_back(self._good)
        return retries <= RETRIES

    def go_back(self, snapshot: Snapshot) -> None:
        """To an earlier state, from which it would go on."""
        self.step.restore(snapshot.arrays)
        self.state = self.state.of(snapshot.values)
        self.done, self._good = self.step.done, snapshot
        self._steer()

    @abstractmethod
    def preview(self) -> Array:
        """The picture that the present parameters give, uint8 [height, width, channels]."""

    def _progress(self, loss: float) -> Progress:
        """At the pace since this run began; where it has just gone on or begun anew, at the one
        before, as the first steps may have compiled for long, which then count for nothing."""
        now, ends = (self.done, time.perf_counter()), (self.state.steps, loss, self.preview)
        if self._told and (self._resumed or self._shown[0] == self.done):
            self._shown, self._resumed = now, False
            return Progress.at(self._told, self.done, *ends)
        found = Progress.between(self._shown, now, *ends)
        self._told = found.steps_per_second
        return found
