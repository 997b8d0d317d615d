"""Pictures, architectures and steps that tests of latent training share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS
from imgmlp.codec.latent import latents
from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT, LatentModel
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.buckets import Bucket
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.engine import open_device

Array = np.ndarray[Any, Any]
HEIGHT, WIDTH = 21, 30  # of small_picture
NARROW = Architecture(8, 4)  # the smallest networks, for tests that do not depend on them
PRETRAINED_1 = Architecture(16, 12, pretrained=1)
PRETRAINED_4 = Architecture(16, 12, pretrained=4)
LMBDA = 1e-3


def draw(*shape: int, seed: int = 0) -> Array:
    """float32 values of a standard normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits_of_latents(model: LatentModel) -> float:
    """Bits that a file spends on a model's latents, without up to 3 bytes at its end."""
    parts = (
        part
        for grid in latents.grids_in_file_order(model)
        for part in latents.coded_intervals(model, *grid)
    )
    return float(sum(np.sum(TOTAL_BITS - np.log2(widths)) for _, widths in parts))


def grids_of(step: LatentStep) -> tuple[Array, ...]:
    """The values of all grids as int8, rounded as in training."""
    wholes = [np.floor(grid + np.float32(0.5)) for grid in step.grids()]
    return tuple(np.clip(whole, MIN_LATENT, MAX_LATENT).astype(np.int8) for whole in wholes)


def small_picture() -> np.ndarray:
    """An RGB picture of 21x30 pixels: two gradients and a pattern."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    shades = np.stack([x * 255 / WIDTH, y * 255 / HEIGHT, 127 + 100 * np.sin(x * y / 40)], -1)
    return shades.astype(np.uint8)


def tiny_picture() -> np.ndarray:
    """A 5x7 picture, for decisions of a trainer that do not depend on the picture."""
    return small_picture()[:5, :7]


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """The inner product in float64."""
    return float(np.sum(a.astype(np.float64) * b))


def whole_step(pixels: Array, bucket: Bucket = None, **sizes: Any) -> LatentStep:
    """A step for the whole picture with random latents and perturbed pretrained networks."""
    return fill_step(
        LatentStep(pixels, 0, open_device("numpy"), replace(PRETRAINED_4, **sizes), bucket)
    )


def windowed_step(pixels: Array, window: tuple[int, int], **sizes: Any) -> WindowedStep:
    """A step in windows with the latents and networks of `whole_step`."""
    step = WindowedStep(
        pixels, 0, open_device("numpy"), replace(PRETRAINED_4, **sizes), window=window
    )
    fill_step(step)
    return step


def fill_step(step: LatentStep) -> LatentStep:
    """Give a step random latents, and move its networks a little at random."""
    step.write_grids([2 * draw(*size, seed=n) for n, size in enumerate(step.shape.grid_sizes)])
    step.flat.write(step.flat.numpy() + np.float32(0.02) * draw(*step.flat.shape))
    return step


def costs_of_picture(step: LatentStep, flat: Array) -> tuple[Array, list[Array]]:
    """Errors and bits of all windows, put together to those of the picture."""
    errors = np.full((step.height, step.width), np.nan, np.float32)
    bits = [np.full(size, np.nan, np.float32) for size in step.shape.grid_sizes]
    for extent in step.windows:
        own, of_latents = step.costs(extent, flat)
        rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
        errors[rows, columns] = own
        for part, values in zip(extent.cut(bits), of_latents, strict=True):
            part[:] = values
    return errors, bits


def total_cost(step: LatentStep, flat: Array, lmbda: float = LMBDA) -> float:
    """D + lambda R of the judged networks, summed over pixels."""
    error, rate = step.judge(flat)
    return (error * step.visible_fraction + lmbda * rate) * step.pixels


def round_latents(step: LatentStep) -> LatentStep:
    """Round the latents of a step as its file would."""
    step.write_grids([grid.astype(np.float32) for grid in grids_of(step)])
    return step


def patterned_picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    """A picture of any size, its channels gradients and patterns."""
    y, x = np.mgrid[:height, :width]
    shades = [x * 255 / width, y * 255 / height, 127 + 100 * np.sin(x * y / 40), x % 256]
    return np.stack(shades[:channels], -1).astype(np.uint8)
