"""Fit a network to one picture: the training step, and the loop that replays it.

The step holds the choice of pixels, features, forward, loss, gradients and AdamW; all its
state is on the device. The host only enqueues replays and receives their results.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from imgmlp.codec.float_mlp import model
from imgmlp.codec.float_mlp.config import Architecture, Encoding, Settings
from imgmlp.codec.float_mlp.features import tables
from imgmlp.codec.training.checkpoint import Resumable, Snapshot
from imgmlp.codec.training.pixels import check_tables, pixel_features, random_places, size_of
from imgmlp.codec.training.replay import (
    MAX_RETRIES,
    SMOOTHING,
    are_finite,
    mean_loss,
    next_chunk,
)
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import AnyDevice, Program, Receiver, Tensor, compile, dtype, optim

Array = np.ndarray[Any, Any]
Stopped = Literal["interrupted", "diverged"] | None

# Steps between two checks of loss and parameters, which is how late divergence is noticed. On a GPU
# a check takes as long as seven steps of 512 pixels.
CHECK_INTERVAL = 250
MAX_CHUNKS_AHEAD = 2  # by which the host may be ahead of the device
# Tables of features have at least batch / DRAWS_PER_ROW rows, so that short ones share a program.
DRAWS_PER_ROW = 16
GOOD_STATE_INTERVAL = 4 * CHECK_INTERVAL  # steps between two states to return to
DIVERGED_LOSS = 1e6  # a smoothed loss from which no run recovers
_GOOD_PREFIX = "good_"  # of the names that the arrays of the last good state have in a snapshot


@dataclass(frozen=True)
class Fitted:
    """The best parameters of a run, float32 [parameters], and why it ended early if it did."""

    parameters: Array
    loss: float  # smoothed, at the step where the parameters were the best
    steps: int  # done
    seconds: float
    stopped: Stopped


class LearningRate:
    """The learning rate schedule.

    What users vary is in the device's memory: as constants in kernels, every other value of --steps
    or --lr would have to be compiled.
    """

    def __init__(self, settings: Settings, device: AnyDevice) -> None:
        self.schedule, self.decay = settings.schedule, settings.decay
        self.lr = settings.lr
        self.first = Tensor(np.float32(settings.lr), device, name="first_rate")
        self.turn = Tensor(np.float32(math.pi / settings.steps), device, name="turn")

    def halve(self, retries: int) -> None:
        """Halve the initial rate once per retry."""
        self.first.write(np.array(self.lr / 2**retries, np.float32).reshape(self.first.shape))

    def after(self, done: Tensor) -> Tensor:
        """The learning rate after `done` steps; both are float32 with one element."""
        if self.schedule == "exponential":
            return (done * math.log(self.decay)).exp() * self.first
        return ((done * self.turn).cos() + 1.0) * (self.first * 0.5)


class TrainingStep(Resumable):
    """The state on the device, and the program of a training step."""

    def __init__(
        self,
        pixels: Array,
        architecture: Architecture,
        encoding: Encoding,
        settings: Settings,
        device: AnyDevice,
        general: bool = False,
    ) -> None:
        self.height, self.width, self.channels = pixels.shape
        self.architecture, self.settings = architecture, settings
        check_tables(self.width + self.height, encoding.features, device)
        self.x, self.y = (
            Tensor(self._padded(table), device, name=f"{axis}_table")
            for table, axis in zip(tables(encoding, self.width, self.height), "xy", strict=True)
        )
        self.pixels = Tensor(pixels.reshape(-1, self.channels), device, name="pixels")
        self.size = size_of(self.height, self.width, device)
        self.flat = model.initial(architecture, settings.seed, device)
        self.rate = LearningRate(settings, device)
        self.count = Tensor(np.uint32(0), device, name="count")
        self.smooth = Tensor(np.float32(0), device, name="smooth")
        self.program: Program = compile(self._step, device, general, settings.precision)

    def _padded(self, table: Array) -> Array:
        """A table, float32 [positions, features], with rows added to short ones.

        The first layer is applied to small tables instead of the rows that are drawn from them. Its
        kernels are compiled for a number of rows, which short axes thus share.
        """
        rows = self.settings.batch // DRAWS_PER_ROW
        return np.pad(table, ((0, max(0, rows - len(table))), (0, 0)))

    def _step(self) -> dict[str, Tensor]:
        settings, batch = self.settings, self.settings.batch
        row, column = random_places(batch, self.size, settings.seed, self.count)
        features = pixel_features(self.x, self.y, column, row)  # [batch, features]
        target = self.pixels.gather(row * self.size[1] + column).cast(dtype.f32) * (1 / 255)
        answer = model.forward(self.flat, self.architecture, features)  # [batch, channels]
        error = (answer - target).square().sum()  # its gradient is that of the plain sum
        done = self.count + 1
        self.optimizer = optim.AdamW(
            [self.flat],
            lr=self.rate.after(done.cast(dtype.f32) - 1.0),
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            form=settings.optimizer,
        )
        self.optimizer.step(error)
        mean = error * (1 / (batch * self.channels))
        smooth = self.smooth * SMOOTHING + mean * (1 - SMOOTHING)
        self.smooth.assign(smooth)
        self.count.assign(done)
        return {"smooth": smooth, "parameters": self.flat}

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "count": self.count, "smooth": self.smooth}
        return named | {f"adam_{n}": tensor for n, tensor in enumerate(self.optimizer.state())}


class _Monitor:
    """Monitors a run: the latest loss, the best parameters and the speed."""

    def __init__(
        self,
        start: Array,
        steps: int,
        on_progress: Callable[[Progress], None] | None,
        decode: Callable[[Array], Array] | None,
    ) -> None:
        self.best, self.best_loss = start, math.inf
        self.steps, self.on_progress, self.decode = steps, on_progress, decode
        self.loss, self.diverged, self.reported = math.inf, False, 0
        self.times: deque[tuple[int, float]] = deque([(0, time.perf_counter())], maxlen=20)

    def resume(self, step: int, best: Array, best_loss: float) -> None:
        """Continue the monitoring of an interrupted run."""
        self.best, self.best_loss = best, best_loss
        self.return_to(step)

    def return_to(self, step: int) -> None:
        """Continue from a step, which may have been done before."""
        self.diverged, self.reported = False, step
        self.time_from(step)

    def time_from(self, step: int) -> None:
        """Measure the speed from this step on."""
        self.times.clear()
        self.times.append((step, time.perf_counter()))

    def receive(self, step: int, values: dict[str, Array]) -> None:
        """Evaluate the outputs of a step: the smoothed loss and, at checks, the parameters."""
        self.loss = mean_loss(float(values["smooth"]), step)
        # Other steps depend on the device's speed, so they must not decide.
        is_check = step % CHECK_INTERVAL == 0 or step == self.steps
        has_diverged = not math.isfinite(self.loss) or (is_check and self.loss > DIVERGED_LOSS)
        self.diverged = self.diverged or has_diverged
        is_better = "parameters" in values and self.loss < self.best_loss and not self.diverged
        if is_better and are_finite([values["parameters"]]):
            self.best, self.best_loss = values["parameters"], self.loss
        self.times.append((step, time.perf_counter()))
        if self.on_progress is not None and not self.diverged and step > self.reported:
            self.reported = step
            preview = None if self.decode is None else partial(self.decode, self.best)
            first, last = self.times[0], self.times[-1]
            self.on_progress(Progress.between(first, last, self.steps, self.loss, preview))


class _LastGoodState:
    """The state to which a diverged run returns, with half the learning rate."""

    def __init__(self, step: TrainingStep, saved: Snapshot | None) -> None:
        self.step, self.retries, self.arrays = step, 0, step.state()
        if saved is not None:
            self.retries = saved.values["retries"]
            self.arrays = {name: saved.arrays[f"{_GOOD_PREFIX}{name}"] for name in self.arrays}
        step.rate.halve(self.retries)

    def named_arrays(self) -> dict[str, Array]:
        """Its arrays by their names in a snapshot."""
        return {f"{_GOOD_PREFIX}{name}": array for name, array in self.arrays.items()}

    def update(self) -> None:
        """Take the present state, if all of it is finite."""
        arrays = self.step.state()
        if are_finite(arrays.values()):
            self.arrays = arrays

    def restore(self) -> int | None:
        """Return to the state.

        Returns the number of steps done there, or None after MAX_RETRIES.
        """
        if self.retries == MAX_RETRIES:
            return None
        self.retries += 1
        self.step.restore(self.arrays)
        self.step.rate.halve(self.retries)
        return int(self.arrays["count"].item())


class _Replay:
    """Enqueues chunks of steps, and passes their outputs to the monitor."""

    def __init__(self, step: TrainingStep, monitor: _Monitor, done: int) -> None:
        self.program, self.steps, self.done = step.program, step.settings.steps, done
        self.monitor, self.has_begun = monitor, False
        self.receiver = Receiver(self.program, ["smooth", "parameters"], monitor.receive)
        self.markers: deque[Any] = deque()
        self.chunk = 1

    def enqueue_chunk(self) -> None:
        """Enqueue another chunk, and wait if the device is MAX_CHUNKS_AHEAD behind."""
        began = time.perf_counter()
        count = min(self.chunk, CHECK_INTERVAL - self.done % CHECK_INTERVAL, self.steps - self.done)
        self.program.run(count)
        self.done += count
        if not self.has_begun:  # these steps may have compiled for long
            self.program.wait()
            self.monitor.time_from(self.done)
            self.has_begun = True
        is_check = self.done % CHECK_INTERVAL == 0 or self.done == self.steps
        self.receiver.send(self.done, None if is_check else ["smooth"])
        self.markers.append(self.program.marker())
        if len(self.markers) > MAX_CHUNKS_AHEAD:
            self.markers.popleft().wait()
        self.receiver.poll()
        self.chunk = next_chunk(self.chunk, time.perf_counter() - began)


def fit(
    step: TrainingStep, run: Run | None = None, decode: Callable[[Array], Array] | None = None
) -> Fitted:
    """Replay the step settings.steps times, or until asked to stop.

    If the loss diverges, training returns to the last good state and continues with half the
    learning rate, at most MAX_RETRIES times. `decode` turns parameters into pixels, for previews.
    The best parameters are chosen by the smoothed loss at fixed steps. Therefore the same seed
    gives the same bits on one device, however fast it is, and a resumed run gives the bits of one
    that was never interrupted.
    """
    run = run or Run()
    steps, begin, done = step.settings.steps, time.perf_counter(), 0
    monitor = _Monitor(step.flat.numpy(), steps, run.on_progress, decode)
    if run.saved is not None:
        step.restore(run.saved.arrays)
        done = step.done
        begin -= run.saved.values["seconds"]
        monitor.resume(done, run.saved.arrays["best"], run.saved.values["best_loss"])
    replay, good_state = _Replay(step, monitor, done), _LastGoodState(step, run.saved)
    interrupted = False
    while replay.done < steps and not interrupted:
        replay.enqueue_chunk()
        interrupted = run.stopping()
        # Also at the end, as writing the outputs may fail.
        saves = run.should_save(interrupted or replay.done == steps)
        is_good_state_due = replay.done % GOOD_STATE_INTERVAL == 0
        if saves or monitor.diverged or is_good_state_due or replay.done == steps:
            replay.receiver.wait()
        if monitor.diverged:
            if (restored := good_state.restore()) is None:
                break
            replay.done = restored
            monitor.return_to(restored)
        elif is_good_state_due:
            good_state.update()
        if saves:
            values = {"best_loss": monitor.best_loss, "retries": good_state.retries}
            values["seconds"] = time.perf_counter() - begin
            arrays = {**step.state(), **good_state.named_arrays(), "best": monitor.best}
            run.save(Snapshot(arrays, values))
    if interrupted and replay.done % CHECK_INTERVAL:
        replay.receiver.send(replay.done)
    replay.receiver.wait()
    early: Stopped = "interrupted" if replay.done < steps else None
    stopped: Stopped = "diverged" if monitor.diverged else early
    seconds = time.perf_counter() - begin
    return Fitted(monitor.best, monitor.best_loss, replay.done, seconds, stopped)
