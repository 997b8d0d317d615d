"""From a picture to weights and back: the whole story of the codec in one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imgmlp.codec import model
from imgmlp.codec.config import Architecture, Settings, Weights, check_size
from imgmlp.codec.features import encoding, tables
from imgmlp.codec.fit import Progress, Stopped, TrainingStep, fit, pixel_features
from imgmlp.engine import AnyDevice, Program, Receiver, Tensor, compile, dtype
from imgmlp.image import Picture, psnr

__all__ = ["Progress", "Trained", "decode", "train", "training_step"]

Array = np.ndarray[Any, Any]
PIXELS_AT_ONCE = 1 << 16  # of a decoding step: 64 values each of a few layers is some 50 MB


@dataclass(frozen=True)
class Trained:
    """Weights, the picture they decode to on this device, and how it went."""

    weights: Weights
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    psnr: float  # dB against the original
    steps: int
    seconds: float
    stopped: Stopped


def train(
    picture: Picture,
    settings: Settings,
    device: AnyDevice,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Trained:
    """Fit a network to a picture.

    `on_progress` is told how it goes. When `should_stop()` is true or the loss is no longer
    finite, the run ends with the best weights so far.
    """
    height, width, channels = picture.pixels.shape
    architecture = settings.architecture(channels)
    frequencies = encoding(settings, width, height)

    def weights(flat: Array) -> Weights:
        return Weights(architecture, frequencies, width, height, flat, picture.icc)

    def preview(flat: Array) -> Array:
        return decode(weights(flat), device)

    step = TrainingStep(picture.pixels, architecture, frequencies, settings, device)
    fitted = fit(step, on_progress, should_stop, preview)
    found = weights(fitted.parameters)
    pixels = decode(found, device)
    quality = psnr(picture.pixels, pixels)
    return Trained(found, pixels, quality, fitted.steps, fitted.seconds, fitted.stopped)


def training_step(
    settings: Settings, device: AnyDevice, width: int, height: int, channels: int
) -> Program:
    """The compiled training step for a black picture of this size, to be looked at."""
    check_size(width, height)
    pixels = np.zeros((height, width, channels), np.uint8)
    architecture, frequencies = settings.architecture(channels), encoding(settings, width, height)
    return TrainingStep(pixels, architecture, frequencies, settings, device).program


def decode(weights: Weights, device: AnyDevice, size: tuple[int, int] | None = None) -> Array:
    """uint8 [height, width, channels]; `size` is (width, height), the original's if None.

    Raises UsageError for a size that is empty or too large.
    """
    width, height = size or (weights.width, weights.height)
    check_size(width, height)
    total, channels = width * height, weights.channels
    count = min(total, PIXELS_AT_ONCE)
    program = compile(_decoding_step(weights, device, width, height, count), device)
    picture = np.empty((total, channels), np.uint8)

    def place(begin: int, values: dict[str, Array]) -> None:
        end = min(begin + count, total)
        picture[begin:end] = values["pixels"][: end - begin]

    receiver = Receiver(program, ["pixels"], place)
    for begin in range(0, total, count):
        program.run()
        receiver.send(begin)
        program.marker().wait()  # one piece in flight keeps the memory bounded
        receiver.poll()
    receiver.wait()
    return picture.reshape(height, width, channels)


def _decoding_step(
    weights: Weights, device: AnyDevice, width: int, height: int, count: int
) -> Callable[[], dict[str, Tensor]]:
    """A step that decodes the next `count` pixels in row-major order."""
    x, y = (Tensor(t, device) for t in tables(weights.encoding, width, height))
    flat = Tensor(weights.flat, device)
    next_pixel = Tensor(np.int32(0), device)
    architecture: Architecture = weights.architecture

    def step() -> dict[str, Tensor]:
        pixel = (Tensor.arange(count) + next_pixel).minimum(width * height - 1)  # [count]
        features = pixel_features(x, y, pixel % width, pixel // width)
        answer = model.forward(flat, architecture, features)  # [count, channels]
        level = (answer.maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        next_pixel.assign(next_pixel + count)
        return {"pixels": level}

    return step
