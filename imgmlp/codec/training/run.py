"""A run among what is around it: who is told, who may stop it, and snapshots that are kept."""

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

Moment = tuple[int, float]  # steps done, and when


@dataclass(frozen=True)
class Progress:
    """Where a run is. `loss` is the smoothed mean squared error on [0, 1], `psnr` its dB.

    `bpp` and `cost`, the squared error plus lambda times bpp, are estimates of codecs that know
    them. `preview()` decodes the best parameters so far, of compact files the present ones, to
    uint8 [height, width, channels]; what is pickled has none, as it would need the device.
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
        """That of the last moment, at the pace since the first."""
        (before, begin), (step, end) = first, last
        pace = (step - before) / max(end - begin, 1e-9)
        return Progress.at(pace, step, steps, loss, preview)

    @staticmethod
    def at(pace: float, step: int, steps: int, loss: float, preview: Any) -> Progress:
        """That of a run which takes so many steps a second."""
        left = (steps - step) / max(pace, 1e-9)
        return Progress(step, steps, loss, decibels(loss), pace, left, preview)


@dataclass(eq=False)
class Run:
    """What a training needs beside its picture and settings; with nothing given, it runs alone.

    `saved` is what an interrupted run of the same key left, to go on from.
    """

    tell: Callable[[Progress], None] | None = None
    should_stop: Callable[[], bool] | None = None
    note: Callable[[str], None] | None = None
    checkpoint: Checkpoint | None = None
    values: dict[str, Any] = field(default_factory=dict)  # that are saved with each snapshot
    began: float = field(default_factory=time.perf_counter)  # what a time limit counts from

    def __post_init__(self) -> None:
        self.saved = None if self.checkpoint is None else self.checkpoint.load()
        self._kept, self._broken = time.monotonic(), False

    def say(self, text: str) -> None:
        if self.note is not None:
            self.note(text)

    def stopping(self) -> bool:
        return self.should_stop is not None and self.should_stop()

    def due(self, stopping: bool) -> bool:
        """Whether it is time to keep a state."""
        if self.checkpoint is None or self._broken:
            return False
        return stopping or time.monotonic() - self._kept > checkpoint.KEEP_SECONDS

    def keep(self, snapshot: Snapshot) -> None:
        """Save a snapshot; a run is not worth losing because its checkpoint cannot be written."""
        assert self.checkpoint is not None
        try:
            self.checkpoint.save(Snapshot(snapshot.arrays, snapshot.values | self.values))
        except OutputError as error:
            self._broken = True
            self.say(f"no checkpoints: {error}")
        self._kept = time.monotonic()

    def interrupted(self, at: str) -> Interrupted:
        """What to raise where the run stopped, once its state was kept."""
        if self.checkpoint is None or self._broken:
            return Interrupted(f"stopped after {at}", hint="start it again")
        hint = f"the same command continues from there; its state is in {self.checkpoint.path}"
        return Interrupted(f"stopped after {at}", hint=hint)
