"""Fit a network to one picture: the training step, and the loop that replays it.

The step holds the choice of pixels, features, forward, loss, gradients and AdamW; all its
state is on the device. The host only enqueues replays and listens.
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
    RETRIES,
    SMOOTHING,
    finite,
    mean_loss,
    next_chunk,
)
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import AnyDevice, Program, Receiver, Tensor, compile, dtype, optim

Array = np.ndarray[Any, Any]
Stopped = Literal["interrupted", "diverged"] | None

# Steps between looks at loss and parameters: how late divergence is noticed. A look takes a GPU as
# long as some seven steps of 512 pixels.
LISTEN = 250
AHEAD = 2  # chunks that the host may be ahead of the device
DRAWN = 16  # times that a step draws each row of a table which stands for all shorter ones
GOOD = 4 * LISTEN  # steps between states to go back to
EXPLODED = 1e6  # a smoothed loss that no run comes back from
_GOOD = "good_"  # before the names of a kept state's arrays to go back to


@dataclass(frozen=True)
class Fitted:
    """The best parameters of a run, float32 [parameters], and why it ended early if it did."""

    parameters: Array
    loss: float  # smoothed, at the step where the parameters were the best
    steps: int  # done
    seconds: float
    stopped: Stopped


class LearningRate:
    """The schedule, with what users vary in memory of the device: as numbers in the source of
    kernels, every other --steps or --lr would have them all compiled anew.
    """

    def __init__(self, settings: Settings, device: AnyDevice) -> None:
        self.schedule, self.decay = settings.schedule, settings.decay
        self.lr = settings.lr
        self.first = Tensor(np.float32(settings.lr), device, name="first_rate")
        self.turn = Tensor(np.float32(math.pi / settings.steps), device, name="turn")

    def slow_down(self, retries: int) -> None:
        """Half the rate for each of so many retries."""
        self.first.write(np.array(self.lr / 2**retries, np.float32).reshape(self.first.shape))

    def after(self, done: Tensor) -> Tensor:
        """The rate of a step before which `done` (float32, one element) steps were done."""
        if self.schedule == "exponential":
            return (done * math.log(self.decay)).exp() * self.first
        return ((done * self.turn).cos() + 1.0) * (self.first * 0.5)


class TrainingStep(Resumable):
    """State on the device and the Program that moves it."""

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
            Tensor(self._common(table), device, name=f"{axis}_table")
            for table, axis in zip(tables(encoding, self.width, self.height), "xy", strict=True)
        )
        self.pixels = Tensor(pixels.reshape(-1, self.channels), device, name="pixels")
        self.size = size_of(self.height, self.width, device)
        self.flat = model.initial(architecture, settings.seed, device)
        self.rate = LearningRate(settings, device)
        self.count = Tensor(np.uint32(0), device, name="count")
        self.smooth = Tensor(np.float32(0), device, name="smooth")
        self.program: Program = compile(self._step, device, general, settings.precision)

    def _common(self, table: Array) -> Array:
        """float32 [samples, features], of short axes with more rows: small tables are multiplied
        instead of what is drawn from them, by kernels that are made for so many rows.
        """
        rows = self.settings.batch // DRAWN
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


class _Listener:
    """What the host knows of a run: the latest loss, the best parameters, the pace."""

    def __init__(
        self,
        start: Array,
        steps: int,
        tell: Callable[[Progress], None] | None,
        decode: Callable[[Array], Array] | None,
    ) -> None:
        self.best, self.best_loss = start, math.inf
        self.steps, self.tell, self.decode = steps, tell, decode
        self.loss, self.diverged, self.told = math.inf, False, 0
        self.times: deque[tuple[int, float]] = deque([(0, time.perf_counter())], maxlen=20)

    def resume(self, step: int, best: Array, best_loss: float) -> None:
        """Go on where another one stopped."""
        self.best, self.best_loss = best, best_loss
        self.go_on(step)

    def go_on(self, step: int) -> None:
        """From a step that may have been done before."""
        self.diverged, self.told = False, step
        self.count_from(step)

    def count_from(self, step: int) -> None:
        """Have the pace be that of what comes after this one."""
        self.times.clear()
        self.times.append((step, time.perf_counter()))

    def hear(self, step: int, values: dict[str, Array]) -> None:
        self.loss = mean_loss(float(values["smooth"]), step)
        fixed = step % LISTEN == 0 or step == self.steps  # so that this hangs on no device's speed
        exploded = not math.isfinite(self.loss) or (fixed and self.loss > EXPLODED)
        self.diverged = self.diverged or exploded
        better = "parameters" in values and self.loss < self.best_loss and not self.diverged
        if better and finite([values["parameters"]]):
            self.best, self.best_loss = values["parameters"], self.loss
        self.times.append((step, time.perf_counter()))
        if self.tell is not None and not self.diverged and step > self.told:
            self.told = step
            preview = None if self.decode is None else partial(self.decode, self.best)
            first, last = self.times[0], self.times[-1]
            self.tell(Progress.between(first, last, self.steps, self.loss, preview))


class _Retreat:
    """The last state that was good, to go back to at half the learning rate."""

    def __init__(self, step: TrainingStep, saved: Snapshot | None) -> None:
        self.step, self.retries, self.arrays = step, 0, step.state()
        if saved is not None:
            self.retries = saved.values["retries"]
            self.arrays = {name: saved.arrays[f"{_GOOD}{name}"] for name in self.arrays}
        step.rate.slow_down(self.retries)

    def kept(self) -> dict[str, Array]:
        """The arrays that a snapshot has of it."""
        return {f"{_GOOD}{name}": array for name, array in self.arrays.items()}

    def remember(self) -> None:
        """This state, if all of it is finite."""
        arrays = self.step.state()
        if finite(arrays.values()):
            self.arrays = arrays

    def back(self) -> int | None:
        """Return to it; the number of steps done there, or None if that was tried often enough."""
        if self.retries == RETRIES:
            return None
        self.retries += 1
        self.step.restore(self.arrays)
        self.step.rate.slow_down(self.retries)
        return int(self.arrays["count"].item())


class _Replay:
    """Chunks of steps in the device's queue, and what the listener hears of them."""

    def __init__(self, step: TrainingStep, listener: _Listener, done: int) -> None:
        self.program, self.steps, self.done = step.program, step.settings.steps, done
        self.listener, self.begun = listener, False
        self.receiver = Receiver(self.program, ["smooth", "parameters"], listener.hear)
        self.marks: deque[Any] = deque()
        self.chunk = 1

    def go_on(self) -> None:
        """Enqueue one more chunk, at most AHEAD of the device."""
        began = time.perf_counter()
        count = min(self.chunk, LISTEN - self.done % LISTEN, self.steps - self.done)
        self.program.run(count)
        self.done += count
        if not self.begun:  # these steps may have compiled for long
            self.program.wait()
            self.listener.count_from(self.done)
            self.begun = True
        look = self.done % LISTEN == 0 or self.done == self.steps
        self.receiver.send(self.done, None if look else ["smooth"])
        self.marks.append(self.program.marker())
        if len(self.marks) > AHEAD:
            self.marks.popleft().wait()
        self.receiver.poll()
        self.chunk = next_chunk(self.chunk, time.perf_counter() - began)


def fit(
    step: TrainingStep, run: Run | None = None, decode: Callable[[Array], Array] | None = None
) -> Fitted:
    """Replay the step settings.steps times, or until asked to stop.

    Where the loss explodes, it goes back to the last good state and on at half the learning rate,
    at most RETRIES times. `decode` turns parameters into pixels, for previews. The best
    parameters are chosen by the smoothed loss at fixed steps, so that the same seed gives the
    same bits on one device, however fast it runs; from a saved state a run goes on to the bits of
    one that never stopped.
    """
    run = run or Run()
    steps, begin, done = step.settings.steps, time.perf_counter(), 0
    listener = _Listener(step.flat.numpy(), steps, run.tell, decode)
    if run.saved is not None:
        step.restore(run.saved.arrays)
        done = step.done
        begin -= run.saved.values["seconds"]
        listener.resume(done, run.saved.arrays["best"], run.saved.values["best_loss"])
    replay, retreat = _Replay(step, listener, done), _Retreat(step, run.saved)
    interrupted = False
    while replay.done < steps and not interrupted:
        replay.go_on()
        interrupted = run.stopping()
        due = run.due(interrupted or replay.done == steps)  # files may have no room at the end
        if due or listener.diverged or replay.done % GOOD == 0 or replay.done == steps:
            replay.receiver.wait()
        if listener.diverged:
            if (back := retreat.back()) is None:
                break
            replay.done = back
            listener.go_on(back)
        elif replay.done % GOOD == 0:
            retreat.remember()
        if due:
            values = {"best_loss": listener.best_loss, "retries": retreat.retries}
            values["seconds"] = time.perf_counter() - begin
            arrays = {**step.state(), **retreat.kept(), "best": listener.best}
            run.keep(Snapshot(arrays, values))
    if interrupted and replay.done % LISTEN:
        replay.receiver.send(replay.done)
    replay.receiver.wait()
    early: Stopped = "interrupted" if replay.done < steps else None
    stopped: Stopped = "diverged" if listener.diverged else early
    seconds = time.perf_counter() - begin
    return Fitted(listener.best, listener.best_loss, replay.done, seconds, stopped)
