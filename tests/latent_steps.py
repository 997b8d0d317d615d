"""What tests of the latent codec's training fill steps with, and read from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS
from imgmlp.codec.latent import latents
from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT, LatentModel
from imgmlp.codec.latent.step.latent_step import LatentStep

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    """float32 of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits_of_latents(model: LatentModel) -> float:
    """What a file spends on a model's latents, but for up to 3 bytes of its end."""
    parts = (
        part
        for grid in latents.grids_in_file_order(model)
        for part in latents.coded_intervals(model, *grid)
    )
    return float(sum(np.sum(TOTAL_BITS - np.log2(widths)) for _, widths in parts))


def grids_of(step: LatentStep) -> tuple[Array, ...]:
    """int8: every grid's values, rounded as in training."""
    wholes = [np.floor(grid + np.float32(0.5)) for grid in step.grids()]
    return tuple(np.clip(whole, MIN_LATENT, MAX_LATENT).astype(np.int8) for whole in wholes)
