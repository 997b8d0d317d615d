"""From a picture to weights and back: the whole story of the codec in one page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.float_mlp import model
from imgmlp.codec.float_mlp.config import Settings, Weights
from imgmlp.codec.float_mlp.features import encoding, table
from imgmlp.codec.float_mlp.fit import Fitted, Stopped, TrainingStep, fit
from imgmlp.codec.training.chunked import assemble, at_once, fill, fitting
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.memory_limits import Way, explain, smaller_picture, within_memory
from imgmlp.codec.training.pixels import pixel_features
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.time_estimate import Work
from imgmlp.engine import AnyDevice, Precision, Program, Tensor, compile, dtype
from imgmlp.errors import OutOfMemoryError
from imgmlp.image import Picture, check_size, psnr

Array = np.ndarray[Any, Any]
# Of the time that time_estimate.py gives: steps of so many pixels keep cores busier. It was a
# third with PoCL on an AMD EPYC of family 26, and more with NumPy.
BUSIER = 0.5
PIXELS_AT_ONCE = 1 << 16  # of a decoding step: 64 values each of a few layers is some 50 MB


@dataclass(frozen=True)
class Trained:
    """Weights, the uint8 [height, width, channels] they decode to on this device, and how it went.

    `psnr` is in dB against the original; `stopped` is "interrupted" or "diverged" if it ended
    early.
    """

    weights: Weights
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    psnr: float  # dB against the original
    steps: int
    seconds: float
    stopped: Stopped
    notes: tuple[str, ...] = ()  # what of the picture was changed before, for people


def train(
    picture: Picture,
    settings: Settings,
    device: AnyDevice,
    run: Run | None = None,
) -> Trained:
    """Fit a network to a picture, from its beginning or from the state that an earlier run left.

    When the run is asked to stop or the loss explodes, it ends with the best weights so far.
    """
    height, width, channels = picture.pixels.shape
    architecture = settings.architecture(channels)
    frequencies = encoding(settings, width, height)
    compiled = CompileTimes(device)

    def weights(flat: Array) -> Weights:
        return Weights(architecture, frequencies, width, height, flat, picture.icc)

    def preview(flat: Array) -> Array:
        return decode(weights(flat), device)

    def work() -> Fitted:  # its memory is free again when the picture is decoded
        step = TrainingStep(picture.pixels, architecture, frequencies, settings, device)
        return fit(step, run, preview)

    fitted = within_memory(work, lambda error: _too_large(error, settings, device, picture))
    found = weights(fitted.parameters)
    pixels = decode(found, device)
    compiled.record(_program(settings, channels))
    quality = psnr(picture.pixels, pixels)
    return Trained(found, pixels, quality, fitted.steps, fitted.seconds, fitted.stopped)


def work(picture: Picture, settings: Settings, done: int = 0) -> Work:
    """What `train` will take, about, after so many steps."""
    height, width, channels = picture.pixels.shape
    parameters, steps = settings.architecture(channels).parameters, settings.steps - done
    operations = 6 * parameters * settings.batch * steps + 2 * parameters * height * width
    return Work(steps, BUSIER * operations, (_program(settings, channels),))


def _program(settings: Settings, channels: int) -> str:
    """What compile_times.py knows the step and the decoding of its network by."""
    return f"train: {settings.architecture(channels)} {settings.batch} {settings.precision}"


def training_step(
    settings: Settings,
    device: AnyDevice,
    width: int,
    height: int,
    channels: int,
    general: bool = False,
) -> Program:
    """The compiled training step for a black picture of this size, to be looked at.

    `general` leaves out what the engine does after its general scheduler.
    """
    check_size(width, height)
    pixels = np.zeros((height, width, channels), np.uint8)
    architecture, frequencies = settings.architecture(channels), encoding(settings, width, height)
    return TrainingStep(pixels, architecture, frequencies, settings, device, general).program


def _too_large(
    error: OutOfMemoryError, settings: Settings, device: AnyDevice, picture: Picture
) -> OutOfMemoryError:
    """What to say where the training step does not fit, and which one would."""
    width, height, channels = picture.width, picture.height, picture.channels

    def build(width: int, height: int, device: AnyDevice) -> Program:
        return training_step(settings, device, width, height, channels)

    def build_batch(batch: int, device: AnyDevice) -> Program:
        return training_step(replace(settings, batch=batch), device, width, height, channels)

    ways = (
        Way(settings.batch, build_batch, lambda n: f"use a --batch of at most {n:,}"),
        smaller_picture(width, height, build),
    )
    what = f"training on {width}×{height} pixels, {settings.batch:,} a step,"
    return explain(error, what, device, partial(build, width, height), ways)


def decode(weights: Weights, device: AnyDevice, size: tuple[int, int] | None = None) -> Array:
    """uint8 [height, width, channels]; `size` is (width, height), the original's if None.

    Raises UsageError for a size that is empty or too large.
    """
    width, height = size or (weights.width, weights.height)
    check_size(width, height)
    size, channels = (width, height), weights.channels

    def make(device: AnyDevice, rows: int, columns: int) -> Decoder:
        return Decoder(weights, device, width, height, (rows, columns))

    return assemble(make, device, size, channels, PIXELS_AT_ONCE)


class Decoder:
    """A step that decodes rows x columns pixels anywhere in a picture of width x height.

    Only the features of the piece's own rows and columns exist, so thin pictures of any
    length need no more memory than square ones.
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
        most = at_once(device, PIXELS_AT_ONCE)
        self.rows, self.columns = piece or fitting(width, height, most)
        half = weights.encoding.features // 2
        self.x = Tensor(np.zeros((self.columns, half), np.float32), device, name="x_table")
        self.y = Tensor(np.zeros((self.rows, half), np.float32), device, name="y_table")
        self.flat = Tensor(weights.flat, device, name="parameters")
        self.left = -1  # of the features that x holds
        self.program = compile(self._step, device, precision=precision)

    def _step(self) -> dict[str, Tensor]:
        pixel = Tensor.arange(self.rows * self.columns)  # of the piece, in row-major order
        features = pixel_features(self.x, self.y, pixel % self.columns, pixel // self.columns)
        answer = model.forward(self.flat, self.weights.architecture, features)
        level = (answer.maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        return {"pixels": level.reshape(self.rows, self.columns, -1)}

    def picture(self) -> Array:
        """All pieces: uint8 [height, width, channels]."""
        picture = np.empty((self.height, self.width, self.weights.channels), np.uint8)
        fill(picture, self)
        return picture

    def move_to(self, top: int, left: int) -> None:
        """Load the features of another piece; past the picture's edge, anything."""
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
