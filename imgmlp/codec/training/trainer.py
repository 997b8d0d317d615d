"""The training loop: replays a step, checks its figures, saves its state, until all steps are done.

It knows no network and no schedule; subclasses add these. They decide only after fixed numbers of
steps, and only by what is on the device then. A run that was interrupted and resumed therefore
gives the same bits as one that was not. The exception is a run whose numbers explode before its
first good state: it returns to the point where it was resumed.
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
from imgmlp.codec.training.replay import MAX_RETRIES, are_finite, next_chunk
from imgmlp.codec.training.run import Progress, Run

Array = np.ndarray[Any, Any]
RunOutcome = Literal["done", "interrupted", "diverged"]
LmbdaUpdate = Callable[[float, float], float]  # (bits, dB) -> the factor that lambda is given

DIVERGED_LOSS = 10.0  # mean squared error on [0, 1] that only a diverged network reaches
MIN_LMBDA, MAX_LMBDA = 1e-7, 10.0  # for rates in bits per pixel

# How a run keeps to its time limit. Its speed counts as known once it has been measured for this
# fraction of the time that is left.
MIN_TIMED_FRACTION = 0.05
# The number of steps changes only if fewer than this fraction of the steps left fit in the time
# left, or if the steps left are fewer than this fraction of those that fit.
REPLANNING_RATIO = 0.9
# For so long after its beginning a run may exceed its limit, to do its first `min_limited_steps`.
GRACE_SECONDS = 0.5


@dataclass
class TrainerState:
    """What the host knows beyond the arrays of the device: plain values, saved in checkpoints."""

    steps: int  # of the whole run
    lmbda: float  # squared error on [0, 1] that is traded for one bit per pixel
    retries: int = field(default=0, kw_only=True)  # after numbers exploded
    seconds: float = field(default=0.0, kw_only=True)  # of training so far

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Read the state from a snapshot's values."""
        return cls(**{one.name: values[one.name] for one in fields(cls)})

    @property
    def learning_rate_factor(self) -> float:
        """Each retry halves the learning rates."""
        return 0.5**self.retries

    def multiply_lmbda(self, factor: float, max_factor: float) -> None:
        """Multiply lambda by `factor`, limited to 1 / max_factor ... max_factor."""
        factor = min(max(factor, 1 / max_factor), max_factor)
        self.lmbda = min(max(self.lmbda * factor, MIN_LMBDA), MAX_LMBDA)


S = TypeVar("S", bound=Resumable)
D = TypeVar("D", bound=TrainerState)


class Trainer(ABC, Generic[S, D]):
    """One run of a training step, which is checked after every `check_interval` steps.

    With a `limit`, a time of `time.perf_counter`, the run adapts its number of steps to end then.
    """

    min_limited_steps = 1  # done despite the limit, unless they take longer than GRACE_SECONDS

    def __init__(self, step: S, state: D, check_interval: int, limit: float | None = None) -> None:
        self.step, self.state = step, state
        self.check_interval, self._limit = check_interval, limit
        self.done = 0  # steps, as the host counts them
        self.pause_at: int | None = None  # steps after which another program is to go on
        self._chunk = 1  # steps to enqueue at once
        self._timed_from = 0, 0.0  # steps and time from which the speed is measured
        self._checked_at = 0.0  # time of the latest steps' end
        self._reported_speed = 0.0  # steps per second
        self._has_just_resumed = False
        self._grace_end = 0.0  # time
        self._began = time.perf_counter() - state.seconds
        self._last_good: Snapshot | None = None

    # --- running ---

    def run(
        self, run: Run | None = None, complete: Callable[[Snapshot], Snapshot] = lambda made: made
    ) -> RunOutcome:
        """Train to the end, or to the pause.

        `complete` adds to a snapshot what the caller wants to have saved with it.
        """
        run, self.done = run or Run(), self.step.done
        self._last_good = self._last_good or self.snapshot()
        self._timed_from = begun = self.done, time.perf_counter()
        self._grace_end, self._has_just_resumed = begun[1] + GRACE_SECONDS, self._reported_speed > 0
        self._steer()
        while self.done < self._end:
            is_whole = self._replay(run)
            is_check = self.done % self.check_interval == 0 or self.done == self.state.steps
            if self._timed_from is begun and not is_check:
                # The first steps may have included a long compilation: measure without them.
                self._timed_from, self._has_just_resumed = (self.done, time.perf_counter()), False
            if is_whole and is_check and not self._check(run.on_progress):
                return "diverged"
            self._checked_at = time.perf_counter()
            is_stopping = run.stopping()
            if not is_whole and self._is_out_of_time():
                self.state.steps = self.done
            if run.should_save(is_stopping):
                run.save(complete(self._finite_snapshot()))
            if is_stopping and self.done < self._end:
                return "interrupted"
        self.state.seconds = time.perf_counter() - self._began
        return "done"

    def run_while_compiling(
        self,
        compiler: Helper,
        run: Run,
        complete: Callable[[Snapshot], Snapshot],
        what: str,
        waits: bool = True,
    ) -> RunOutcome:
        """Train to the pause while another process compiles the program that goes on from there.

        At the pause, `waits` decides: either wait until that process has ended, whether it
        succeeded or not; or postpone the pause from check to check until it has succeeded. If it
        fails, the latter trains to the end. `what` names the objects of the compiled program in
        messages, such as "pictures".
        """
        with compiler:
            while True:
                outcome = self.run(run, complete)
                if outcome != "done" or not self.is_paused:
                    return outcome
                if compiler.working and waits:
                    run.say(f"still compiling for {what} of this size")
                    compiler.wait(run.stopping)
                if run.stopping():
                    if run.should_save(True):
                        run.save(complete(self._finite_snapshot()))
                    return "interrupted"
                if compiler.done or waits:
                    return "done"
                self.postpone_pause()

    def postpone_pause(self) -> None:
        """Train with this step up to the next check, as the other program is not ready."""
        assert self.pause_at is not None
        self.pause_at += self.check_interval

    @property
    def is_paused(self) -> bool:
        """Whether the run has reached its pause, but not its end."""
        return self.done == self.pause_at and self.done < self.state.steps

    @property
    def _end(self) -> int:
        """The number of steps after which to pause or end."""
        return min(self.state.steps, self.pause_at or self.state.steps)

    def _replay(self, run: Run) -> bool:
        """Do some steps, none of them beyond the next check.

        Returns False if the last one was broken off, by a stop request or the time limit.
        """
        most = self.step.steps_at_once or self._chunk
        until_check = self.check_interval - self.done % self.check_interval
        count = min(most, until_check, self._end - self.done)
        began = time.perf_counter()

        is_whole = self.step.run(count, lambda: self._is_out_of_time() or run.stopping())
        self._chunk = next_chunk(self._chunk, time.perf_counter() - began)
        if is_whole:
            self.done += count
        return is_whole

    # --- what a subclass decides ---

    @abstractmethod
    def _check(self, on_progress: Callable[[Progress], None] | None) -> bool:
        """Evaluate the latest steps, adapt the run and report progress; False if it diverged."""

    @abstractmethod
    def _steer(self) -> None:
        """Write to the device what the schedule says after `done` steps."""

    @abstractmethod
    def preview(self) -> Array:
        """The picture that the present parameters give, uint8 [height, width, channels]."""

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        self.state.seconds = time.perf_counter() - self._began
        return Snapshot(self.step.state(), asdict(self.state))

    def final_snapshot(self) -> Snapshot:
        """The state to make a file of, which is also the step's state from now on.

        If numbers exploded after the last check, as may happen where a limit ends the run between
        two checks, it is the last good state.
        """
        snapshot = self._finite_snapshot()
        if snapshot is self._last_good:
            self.step.restore(snapshot.arrays)
        return snapshot

    def _finite_snapshot(self) -> Snapshot:
        """The present state, or the last good one if numbers exploded since the last check.

        Resuming from either gives the same run.
        """
        now = self.snapshot()
        if are_finite(now.arrays.values()):
            return now
        assert self._last_good is not None
        return self._last_good

    def _remember(self) -> None:
        """Keep the present state as one to return to, if all of it is finite."""
        now = self.snapshot()
        if are_finite(now.arrays.values()):
            self._last_good = now

    def _recover(self) -> bool:
        """Return to the last good state at half the learning rates; False after too many times."""
        assert self._last_good is not None
        retries = self.state.retries + 1
        self._last_good.values["retries"] = min(retries, MAX_RETRIES)
        self.restore(self._last_good)
        return retries <= MAX_RETRIES

    def restore(self, snapshot: Snapshot) -> None:
        """Return to an earlier state."""
        self.step.restore(snapshot.arrays)
        self.state = self.state.of(snapshot.values)
        self.done, self._last_good = self.step.done, snapshot
        self._steer()

    # --- the time limit ---

    def _is_out_of_time(self) -> bool:
        """Whether the limit is over, so that even a step in progress is to be broken off."""
        if self._limit is None:
            return False
        now = time.perf_counter()
        return now > self._limit and not self._is_in_grace(now)

    def _is_in_grace(self, now: float) -> bool:
        """Whether the run is still entitled to steps whatever its limit is."""
        return self.done < self.min_limited_steps and now < self._grace_end

    def _fit_steps_to_limit(self, max_steps: int = 0) -> None:
        """Plan fewer steps if they turn out too slow for the time limit.

        If they turn out faster, plan more, up to `max_steps` in all.
        """
        now = time.perf_counter()
        if self._limit is None or self._is_in_grace(now):
            return
        first, since = self._timed_from
        # Of a long run, the first few steps do not yet tell how long steps take.
        if self.done == first or now - since < MIN_TIMED_FRACTION * (self._limit - now):
            return
        fitting, left = self._steps_until(self._limit), self.state.steps - self.done
        too_many = fitting < REPLANNING_RATIO * left
        may_grow = self.done + left < max_steps
        if too_many or (may_grow and REPLANNING_RATIO * fitting > left):
            steps = self.done + max(0, int(fitting))
            self.state.steps = min(steps, max(max_steps, self.state.steps))
            self._steer()

    def _steps_until(self, limit: float) -> float:
        """How many steps fit in the time until `limit`, at the measured speed."""
        first, since = self._timed_from
        now = time.perf_counter()
        return (self.done - first) / max(now - since, 1e-9) * (limit - now)

    # --- reports ---

    @property
    def seconds_per_step(self) -> float | None:
        """As measured since this run began; None before its second replay."""
        first, since = self._timed_from
        if self.done <= first:
            return None
        return (self._checked_at - since) / (self.done - first)

    def describe_steps(self) -> str:
        return f"{self.step.done:,} of {self.state.steps:,} steps"

    def _progress(self, loss: float) -> Progress:
        """Progress at the speed measured since this run began.

        Right after the run was resumed or restarted it is at the speed reported before: the first
        steps may have included a long compilation, and the measurement begins after them.
        """
        now, rest = (self.done, time.perf_counter()), (self.state.steps, loss, self.preview)
        if self._reported_speed and (self._has_just_resumed or self._timed_from[0] == self.done):
            self._timed_from, self._has_just_resumed = now, False
            return Progress.at(self._reported_speed, self.done, *rest)
        progress = Progress.between(self._timed_from, now, *rest)
        self._reported_speed = progress.steps_per_second
        return progress
