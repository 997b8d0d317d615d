"""Trains a network on a picture, and decodes weights to pixels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.float_mlp import model
from imgmlp.codec.float_mlp.config import Settings, Weights
from imgmlp.codec.float_mlp.features import encoding, table
from imgmlp.codec.float_mlp.fit import Fitted, Stopped, TrainingStep, fit
from imgmlp.codec.training.chunked import assemble, fill, max_piece_pixels, widest_piece
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.memory_limits import Reduction, explain, smaller_picture, within_memory
from imgmlp.codec.training.pixels import pixel_features
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.time_estimate import Work
from imgmlp.engine import AnyDevice, Precision, Program, Tensor, compile, dtype
from imgmlp.errors import OutOfMemoryError
from imgmlp.image import Picture, check_size, psnr

Array = np.ndarray[Any, Any]
# The fraction of the time in time_estimate.py that a step takes, as large batches use the cores
# better. It was a third with PoCL on an AMD EPYC of family 26, and more with NumPy.
TIME_FRACTION = 0.5
DECODED_PIXELS = 1 << 16  # at once; 64 values in a few layers for each of them take about 50 MB


@dataclass(frozen=True)
class Trained:
    """The result of a training: weights, and the pixels that they decode to on this device.

    `stopped` is "interrupted" or "diverged" if the training ended early.
    """

    weights: Weights
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    psnr: float  # dB against the original
    steps: int
    seconds: float
    stopped: Stopped
    notes: tuple[str, ...] = ()  # for users, on conversions of the picture


def train(
    picture: Picture,
    settings: Settings,
    device: AnyDevice,
    run: Run | None = None,
) -> Trained:
    """Train a network on a picture, or resume an interrupted run.

    If the run is interrupted or the loss diverges, the result has the best weights so far.
    """
    height, width, channels = picture.pixels.shape
    architecture = settings.architecture(channels)
    frequencies = encoding(settings, width, height)
    compiled = CompileTimes(device)

    def weights(flat: Array) -> Weights:
        return Weights(architecture, frequencies, width, height, flat, picture.icc)

    def preview(flat: Array) -> Array:
        return decode(weights(flat), device)

    def work() -> Fitted:  # the memory of the step is free before the picture is decoded
        step = TrainingStep(picture.pixels, architecture, frequencies, settings, device)
        return fit(step, run, preview)

    fitted = within_memory(work, lambda error: _too_large(error, settings, device, picture))
    trained = weights(fitted.parameters)
    pixels = decode(trained, device)
    compiled.record(_program(settings, channels))
    quality = psnr(picture.pixels, pixels)
    return Trained(trained, pixels, quality, fitted.steps, fitted.seconds, fitted.stopped)


def work(picture: Picture, settings: Settings, done: int = 0) -> Work:
    """An estimate of the work that `train` has left after `done` steps."""
    height, width, channels = picture.pixels.shape
    parameters, steps = settings.architecture(channels).parameters, settings.steps - done
    operations = 6 * parameters * settings.batch * steps + 2 * parameters * height * width
    return Work(steps, TIME_FRACTION * operations, (_program(settings, channels),))


def _program(settings: Settings, channels: int) -> str:
    """The name in compile_times.py of the programs that train and decode a network."""
    return f"train: {settings.architecture(channels)} {settings.batch} {settings.precision}"


def training_step(
    settings: Settings,
    device: AnyDevice,
    width: int,
    height: int,
    channels: int,
    general: bool = False,
) -> Program:
    """The compiled training step for a black picture of a size, for inspection.

    `general` leaves out the block program, which the engine makes after its general scheduler.
    """
    check_size(width, height)
    pixels = np.zeros((height, width, channels), np.uint8)
    architecture, frequencies = settings.architecture(channels), encoding(settings, width, height)
    return TrainingStep(pixels, architecture, frequencies, settings, device, general).program


def _too_large(
    error: OutOfMemoryError, settings: Settings, device: AnyDevice, picture: Picture
) -> OutOfMemoryError:
    """The error for a training step that does not fit into memory, with advice on what would."""
    width, height, channels = picture.width, picture.height, picture.channels

    def build(width: int, height: int, device: AnyDevice) -> Program:
        return training_step(settings, device, width, height, channels)

    def build_batch(batch: int, device: AnyDevice) -> Program:
        return training_step(replace(settings, batch=batch), device, width, height, channels)

    reductions = (
        Reduction(settings.batch, build_batch, lambda n: f"use a --batch of at most {n:,}"),
        smaller_picture(width, height, build),
    )
    what = f"training on {width}×{height} pixels, {settings.batch:,} a step,"
    return explain(error, what, device, partial(build, width, height), reductions)


def decode(weights: Weights, device: AnyDevice, size: tuple[int, int] | None = None) -> Array:
    """The picture that weights decode to, uint8 [height, width, channels].

    `size` is (width, height), by default the original's. Raises UsageError for a size that is
    empty or too large.
    """
    width, height = size or (weights.width, weights.height)
    check_size(width, height)
    size, channels = (width, height), weights.channels

    def make(device: AnyDevice, rows: int, columns: int) -> Decoder:
        return Decoder(weights, device, width, height, (rows, columns))

    return assemble(make, device, size, channels, DECODED_PIXELS)


class Decoder:
    """A compiled program that decodes rows x columns pixels anywhere in a picture.

    It holds the features of the piece's rows and columns only, so that long pictures need no more
    memory than square ones.
    """

    def __init__(
        self,
        weights: Weights,
        device: AnyDevice,
        width: int,
        height: int,
        piece: tuple[int, int] | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.weights, self.width, self.height = weights, width, height
        most = max_piece_pixels(device, DECODED_PIXELS)
        self.rows, self.columns = piece or widest_piece(width, height, most)
        half = weights.encoding.features // 2
        self.x = Tensor(np.zeros((self.columns, half), np.float32), device, name="x_table")
        self.y = Tensor(np.zeros((self.rows, half), np.float32), device, name="y_table")
        self.flat = Tensor(weights.flat, device, name="parameters")
        self.left = -1  # column at which the features in x begin
        self.program = compile(self._step, device, precision=precision)

    def _step(self) -> dict[str, Tensor]:
        pixel = Tensor.arange(self.rows * self.columns)  # of the piece, in row-major order
        features = pixel_features(self.x, self.y, pixel % self.columns, pixel // self.columns)
        answer = model.forward(self.flat, self.weights.architecture, features)
        level = (answer.maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        return {"pixels": level.reshape(self.rows, self.columns, -1)}

    def picture(self) -> Array:
        """The whole picture, uint8 [height, width, channels]."""
        picture = np.empty((self.height, self.width, self.weights.channels), np.uint8)
        fill(picture, self)
        return picture

    def move_to(self, top: int, left: int) -> None:
        """Load the features of another piece; beyond the picture they are 0."""
        encoding = self.weights.encoding
        if left != self.left:
            self._load(self.x, encoding.x, self.width, left, self.columns)
            self.left = left
        self._load(self.y, encoding.y, self.height, top, self.rows)

    def _load(
        self, target: Tensor, frequencies: tuple[float, ...], samples: int, begin: int, count: int
    ) -> None:
        rows = np.zeros(target.shape, np.float32)
        end = min(begin + count, samples)
        rows[: end - begin] = table(frequencies, self.weights.encoding.origin, samples, begin, end)
        target.write(rows)
