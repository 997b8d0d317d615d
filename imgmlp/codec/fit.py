"""Fit a network to one picture: the training step, and the loop that replays it.

The step holds the choice of pixels, features, forward, loss, gradients and AdamW; all its
state is on the device. The host only enqueues replays and listens.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from imgmlp.codec import model
from imgmlp.codec.checkpoint import Resumable, State
from imgmlp.codec.config import Architecture, Encoding, Settings
from imgmlp.codec.features import tables
from imgmlp.engine import AnyDevice, Program, Receiver, Tensor, compile, dtype, optim
from imgmlp.errors import OutOfMemoryError

Array = np.ndarray[Any, Any]
Stopped = Literal["interrupted", "diverged"] | None

SMOOTHING = 0.99  # share of the past in the smoothed loss
LISTEN = 100  # steps between looks at loss and parameters: how late divergence is noticed
AHEAD = 2  # chunks that the host may be ahead of the device
KEEP_SECONDS = 15.0  # between two checkpoints
LONG = 0.3  # seconds that a chunk should not exceed, so that an interruption is soon noticed


@dataclass(frozen=True)
class Progress:
    """Where a run is. `loss` is the smoothed mean squared error on [0, 1], `psnr` its dB.

    `preview()` decodes the best parameters so far to uint8 [height, width, channels].
    """

    step: int
    steps: int
    loss: float
    psnr: float
    steps_per_second: float
    seconds_left: float
    preview: Callable[[], Array] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Fitted:
    """The best parameters of a run, float32 [parameters], and why it ended early if it did."""

    parameters: Array
    loss: float  # smoothed, at the step where the parameters were the best
    steps: int  # done
    seconds: float
    stopped: Stopped


def pixel_features(x: Tensor, y: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Rows of both axes' tables side by side: int [n], int [n] -> [n, features]."""
    return Tensor.concat([x.gather(column), y.gather(row)], axis=1)


def check_tables(samples: int, features: int, device: AnyDevice) -> None:
    """Refuse a picture so thin that its axes' tables would not fit."""
    nbytes = samples * features // 2 * 4
    if nbytes > device.info.memory // 4:
        problem = f"the features of {samples:,} rows and columns take {nbytes:,} bytes"
        raise OutOfMemoryError(problem, hint="cut the picture into parts that are less thin")


class LearningRate:
    """The schedule, with what users vary in memory of the device: as numbers in the source of
    kernels, every other --steps or --lr would have them all compiled anew.
    """

    def __init__(self, settings: Settings, device: AnyDevice) -> None:
        self.schedule, self.decay = settings.schedule, settings.decay
        self.first = Tensor(np.float32(settings.lr), device, name="first_rate")
        self.turn = Tensor(np.float32(math.pi / settings.steps), device, name="turn")

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
        x, y = tables(encoding, self.width, self.height)
        self.x, self.y = Tensor(x, device, name="x_table"), Tensor(y, device, name="y_table")
        self.pixels = Tensor(pixels.reshape(-1, self.channels), device, name="pixels")
        self.flat = model.initial(architecture, settings.seed, device)
        self.rate = LearningRate(settings, device)
        self.count = Tensor(np.uint32(0), device, name="count")
        self.smooth = Tensor(np.float32(0), device, name="smooth")
        self.program: Program = compile(self._step, device, general, settings.precision)

    def _step(self) -> dict[str, Tensor]:
        settings, batch = self.settings, self.settings.batch
        row, column = self._places()
        features = pixel_features(self.x, self.y, column, row)  # [batch, features]
        target = self.pixels.gather(row * self.width + column).cast(dtype.f32) * (1 / 255)
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

    def _places(self) -> tuple[Tensor, Tensor]:
        """A random pixel for each row of the batch: its row and its column, int32 [batch]."""
        batch, seed = (self.settings.batch,), self.settings.seed
        row = Tensor.random_bits(batch, (seed, self.count, 0)) % self.height
        column = Tensor.random_bits(batch, (seed, self.count, 1)) % self.width
        return row.cast(dtype.i32), column.cast(dtype.i32)


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
        self.best, self.best_loss, self.told = best, best_loss, step
        self.times[0] = step, time.perf_counter()

    def hear(self, step: int, values: dict[str, Array]) -> None:
        self.loss = float(values["smooth"]) / (1 - SMOOTHING**step)  # started at zero
        self.diverged = self.diverged or not math.isfinite(self.loss)
        if "parameters" in values and self.loss < self.best_loss and not self.diverged:
            finite = bool(np.isfinite(values["parameters"]).all())
            if finite:
                self.best, self.best_loss = values["parameters"], self.loss
        self.times.append((step, time.perf_counter()))
        if self.tell is not None and not self.diverged and step > self.told:
            self.told = step
            self.tell(self._progress(step))

    def _progress(self, step: int) -> Progress:
        (first, begin), (last, end) = self.times[0], self.times[-1]
        pace = (last - first) / max(end - begin, 1e-9)
        left = (self.steps - step) / max(pace, 1e-9)
        psnr = -10 * math.log10(max(self.loss, 1e-12))
        preview = None if self.decode is None else partial(self.decode, self.best)
        return Progress(step, self.steps, self.loss, psnr, pace, left, preview)


def fit(
    step: TrainingStep,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    decode: Callable[[Array], Array] | None = None,
    saved: State | None = None,
    keep: Callable[[State], None] | None = None,
) -> Fitted:
    """Replay the step settings.steps times, or until asked to stop or the loss is not finite.

    `decode` turns parameters into pixels, for previews. The best parameters are chosen by the
    smoothed loss at fixed steps, so that the same seed gives the same bits on one device,
    however fast it runs. `keep` is given a state from time to time, and when it stops early; from
    a `saved` one a run goes on to the bits of one that never stopped.
    """
    steps, program = step.settings.steps, step.program
    listener = _Listener(step.flat.numpy(), steps, on_progress, decode)
    receiver = Receiver(program, ["smooth", "parameters"], listener.hear)
    marks: deque[Any] = deque()
    begin, done, chunk, interrupted = time.perf_counter(), 0, 1, False
    if saved is not None:
        step.restore(saved.arrays)
        done, begin = int(step.count.item()), begin - saved.facts["seconds"]
        listener.resume(done, saved.arrays["best"], saved.facts["best_loss"])
    kept = time.monotonic()
    while done < steps and not listener.diverged and not interrupted:
        chunk_began = time.perf_counter()
        count = min(chunk, LISTEN - done % LISTEN, steps - done)
        program.run(count)
        done += count
        look = done % LISTEN == 0 or done == steps
        receiver.send(done, None if look else ["smooth"])
        marks.append(program.marker())
        if len(marks) > AHEAD:
            marks.popleft().wait()
        receiver.poll()
        chunk = _next_chunk(chunk, time.perf_counter() - chunk_began)
        interrupted = should_stop is not None and should_stop()
        if keep is not None and (interrupted or time.monotonic() - kept > KEEP_SECONDS):
            receiver.wait()
            if not listener.diverged:
                facts = {"best_loss": listener.best_loss, "seconds": time.perf_counter() - begin}
                keep(State({**step.state(), "best": listener.best}, facts))
            kept = time.monotonic()
    if interrupted and done % LISTEN:
        receiver.send(done)
    receiver.wait()
    stopped: Stopped = "diverged" if listener.diverged else "interrupted" if done < steps else None
    return Fitted(listener.best, listener.best_loss, done, time.perf_counter() - begin, stopped)


def _next_chunk(chunk: int, seconds: float) -> int:
    if seconds > LONG:
        return max(1, chunk // 2)
    return min(LISTEN, chunk * 2)
