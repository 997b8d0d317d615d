"""The step that trains a network of one picture: made anew only where another one is needed."""

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


class Steps:
    """Those of a picture's networks, of which the latest one is kept."""

    def __init__(self, picture: Picture, device: AnyDevice) -> None:
        self._pixels, self._device = picture.pixels, device
        self._latest: tuple[Shape, int, Shape, LearningStep, dict[str, Array]] | None = None

    def of(self, shape: Shape, wider: int, room: Shape) -> LearningStep:
        """Of a network of a shape, at its beginning; the latest one is taken again if it fits."""
        if self._latest is None or self._latest[:3] != (shape, wider, room):
            self._latest = None  # whose memory is free, unless a trainer goes on from it
            pixels, where = self._pixels, (self._device, BATCH * wider, room)
            step = within_memory(
                partial(LearningStep, pixels, shape, SEED, *where),
                lambda error: too_large(error, pixels, shape, *where),
            )
            self._latest = shape, wider, room, step, step.state()
        *_, step, start = self._latest
        step.restore(start)
        return step
