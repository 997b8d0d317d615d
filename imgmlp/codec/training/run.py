"""What connects a training run with its caller: progress, interruption and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.codec.training.replay import decibels
from imgmlp.errors import Interrupted, OutputError

Moment = tuple[int, float]  # steps done, and the time


@dataclass(frozen=True)
class Progress:
    """The progress of a run. `loss` is the smoothed mean squared error on [0, 1], `psnr` its dB.

    `bpp` and `cost`, which is D + lambda R, are estimates of the codecs that compute a rate.
    `preview()` decodes the best parameters so far, for compact files the present ones, to uint8
    [height, width, channels]. It needs the device and is therefore not pickled.
    """

    step: int
    steps: int
    loss: float
    psnr: float
    steps_per_second: float
    seconds_left: float
    preview: Callable[[], np.ndarray[Any, Any]] | None = field(default=None, repr=False)
    bpp: float | None = None
    cost: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "preview": None}

    @staticmethod
    def between(first: Moment, last: Moment, steps: int, loss: float, preview: Any) -> Progress:
        """The progress at the last moment, with the speed since the first."""
        (before, begin), (step, end) = first, last
        pace = (step - before) / max(end - begin, 1e-9)
        return Progress.at(pace, step, steps, loss, preview)

    @staticmethod
    def at(pace: float, step: int, steps: int, loss: float, preview: Any) -> Progress:
        """The progress of a run that takes `pace` steps per second."""
        left = (steps - step) / max(pace, 1e-9)
        return Progress(step, steps, loss, decibels(loss), pace, left, preview)


@dataclass(eq=False)
class Run:
    """The caller's side of a training: all fields are optional.

    `saved` is the snapshot of an interrupted run with the same key, from which to resume.
    """

    on_progress: Callable[[Progress], None] | None = None
    should_stop: Callable[[], bool] | None = None
    note: Callable[[str], None] | None = None
    checkpoint: Checkpoint | None = None
    values: dict[str, Any] = field(default_factory=dict)  # saved with each snapshot
    began: float = field(default_factory=time.perf_counter)  # the start of a time limit

    def __post_init__(self) -> None:
        self.saved = None if self.checkpoint is None else self.checkpoint.load()
        self._saved_at = time.monotonic()
        self._cannot_save = False

    def say(self, text: str) -> None:
        if self.note is not None:
            self.note(text)

    def stopping(self) -> bool:
        return self.should_stop is not None and self.should_stop()

    def should_save(self, stopping: bool) -> bool:
        """Whether to save a snapshot now: when the run stops, or after some time."""
        if self.checkpoint is None or self._cannot_save:
            return False
        return stopping or time.monotonic() - self._saved_at > checkpoint.SAVE_INTERVAL

    def save(self, snapshot: Snapshot) -> None:
        """Save a snapshot. If that fails, the run goes on without checkpoints."""
        assert self.checkpoint is not None
        try:
            self.checkpoint.save(Snapshot(snapshot.arrays, snapshot.values | self.values))
        except OutputError as error:
            self._cannot_save = True
            self.say(f"no checkpoints: {error}")
        self._saved_at = time.monotonic()

    def interrupted(self, progress: str) -> Interrupted:
        """The exception to raise for a stopped run whose snapshot was saved."""
        if self.checkpoint is None or self._cannot_save:
            return Interrupted(f"stopped after {progress}", hint="start it again")
        hint = f"the same command continues from there; its state is in {self.checkpoint.path}"
        return Interrupted(f"stopped after {progress}", hint=hint)
