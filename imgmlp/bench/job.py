"""The job that all contenders do: train a network on a picture, and decode the picture.

A 64-64-64-64-3 network learns random pixels of a 512×512 picture with AdamW on the squared error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from imgmlp.codec.float_mlp import model
from imgmlp.codec.float_mlp.config import PRESETS, Architecture, Encoding, Settings, Weights
from imgmlp.codec.float_mlp.features import encoding
from imgmlp.codec.float_mlp.fit import TrainingStep
from imgmlp.codec.float_mlp.pipeline import Decoder
from imgmlp.engine import AnyDevice

SIDE = 512  # pixels of the picture's width and height
BATCHES = (512, 4096, 16384, SIDE * SIDE)  # rows of a training step; the last is the whole picture

Array = np.ndarray[Any, Any]


class Contender(Protocol):
    """One way to do the job."""

    def steps(self, batch: int, count: int) -> None:
        """Train for `count` steps of `batch` rows each, and wait until they are done."""

    def decode(self) -> Array:
        """Compute all pixels from the weights, as a uint8 array of any shape on the host."""


@dataclass(frozen=True)
class Job:
    """A picture, and the settings of the network that is trained on it."""

    pixels: Array  # uint8 [height, width, 3]
    settings: Settings

    @property
    def architecture(self) -> Architecture:
        return self.settings.architecture(3)

    @property
    def encoding(self) -> Encoding:
        height, width, _ = self.pixels.shape
        return encoding(self.settings, width, height)

    def step(self, batch: int, device: AnyDevice) -> TrainingStep:
        """imgmlp's training step with `batch` rows."""
        settings = replace(self.settings, batch=batch)
        return TrainingStep(self.pixels, self.architecture, self.encoding, settings, device)

    def flops(self, batch: int) -> int:
        """The floating-point operations of the matrix products of a step.

        Each layer has a product for its outputs, one for the gradients of its weights and one for
        those of its inputs. The first layer needs no gradients of its inputs.
        """
        products = [math.prod(s) for s in self.architecture.shapes if len(s) == 2]
        return 2 * batch * (3 * sum(products) - products[0])


def standard_job(side: int = SIDE) -> Job:
    """A synthetic picture, smooth in some places and busy in others, and the default network."""
    y, x = np.mgrid[:side, :side] / side
    waves = [np.sin(40 * x * y), np.cos(25 * x + 9 * np.sin(14 * y)), np.sin(150 * (x**2 + y**3))]
    pixels = np.stack(waves, axis=-1) * 110 + 128
    return Job(pixels.astype(np.uint8), PRESETS["default"])


class Ours:
    """imgmlp on one of its devices."""

    def __init__(self, job: Job, device: AnyDevice) -> None:
        self.job, self.device = job, device
        self._steps: dict[int, TrainingStep] = {}
        height, width, _ = job.pixels.shape
        flat = model.initial(job.architecture, job.settings.seed, device).numpy()
        weights = Weights(job.architecture, job.encoding, width, height, flat)
        self.decoder = Decoder(weights, device, width, height)

    def steps(self, batch: int, count: int) -> None:
        if batch not in self._steps:
            self._steps[batch] = self.job.step(batch, self.device)
        program = self._steps[batch].program
        program.run(count)
        program.wait()

    def decode(self) -> Array:
        return self.decoder.picture()
