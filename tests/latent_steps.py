"""What tests of the latent codec's training fill steps with, and read from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LARGEST, LEAST
from imgmlp.codec.latent.training.latent_step import LatentStep

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    """float32 of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def grids_of(step: LatentStep) -> tuple[Array, ...]:
    """int8: every grid's values, rounded as in training."""
    wholes = [np.floor(grid + np.float32(0.5)) for grid in step.grids()]
    return tuple(np.clip(whole, LEAST, LARGEST).astype(np.int8) for whole in wholes)
