"""Caches the training step of a picture, so that runs of the same network share it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.opening import SEED
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep, too_large
from imgmlp.codec.training.memory_limits import within_memory
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]


class StepCache:
    """The training steps of one picture's networks, of which the latest is cached."""

    def __init__(self, picture: Picture, device: AnyDevice) -> None:
        self._pixels, self._device = picture.pixels, device
        self._latest: tuple[Shape, int, Shape, LearningStep, dict[str, Array]] | None = None

    def get(self, shape: Shape, batch_factor: int, bucket: Shape) -> LearningStep:
        """The step of a network in a bucket, in its initial state. Raises OutOfMemoryError."""
        if self._latest is None or self._latest[:3] != (shape, batch_factor, bucket):
            self._latest = None  # frees its memory, unless a trainer still uses it
            pixels, setup = self._pixels, (self._device, BATCH * batch_factor, bucket)
            step = within_memory(
                partial(LearningStep, pixels, shape, SEED, *setup),
                lambda error: too_large(error, pixels, shape, *setup),
            )
            self._latest = shape, batch_factor, bucket, step, step.state()
        *_, step, initial_state = self._latest
        step.restore(initial_state)
        return step
