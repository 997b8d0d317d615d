"""A second implementation of the loss of a training step: float64, plain NumPy, value by value."""

from __future__ import annotations

import numpy as np

from imgmlp.codec.latent.model import BICUBIC_TAPS, HYPERLATENT_LEVELS, NEAREST_BELOW_LEVEL
from imgmlp.codec.latent.step import operations
from imgmlp.codec.latent.step.latent_step import LatentStep


def reference_loss(
    step: LatentStep, pixels: np.ndarray, grids: list[np.ndarray], flat: np.ndarray, lmbda: float
) -> float:
    """The loss of a step without noise, in float64."""
    ends = np.cumsum([int(np.prod(s)) for s in step.parameter_shapes.tensors])[:-1]
    arrays = [
        a.reshape(s)
        for a, s in zip(np.split(flat, ends), step.parameter_shapes.tensors, strict=True)
    ]
    synthesis, (w, b, w2, b2), entropy = arrays[:6], arrays[6:10], arrays[10:16]
    every = [soft_rounded(soft_rounded(g)) for g in grids]
    seen, own = every[: step.levels], every[step.levels :]
    hyper = own if step.shape.has_hyperlatents else []
    bits = sum(float(np.sum(latent_bits(g, entropy, hyperlatents_above(hyper, seen, n))))
               for n, g in enumerate(seen))  # fmt: skip
    bits += sum(float(np.sum(latent_bits(g, entropy, np.zeros((3, *g.shape))))) for g in own)
    maps = seen[-1][None]
    for level in range(step.levels - 2, -1, -1):
        for axis, expected in ((1, grids[level].shape[0]), (2, grids[level].shape[1])):
            maps = upsampled_axis(maps, arrays[16 + level], axis, expected)
        maps = np.concatenate([seen[level][None], maps])
    if step.shape.has_filter:
        of_finest = convolved(seen[0][..., None], arrays[-1].reshape(9, 1))
        maps = np.concatenate([maps, of_finest.transpose(2, 0, 1)])
    if step.shape.extra_grids:
        maps = np.concatenate([maps, np.stack(own)])
    y = network(maps.transpose(1, 2, 0), synthesis)
    y = y + activation(convolved(y, w) + b)
    y = y + convolved(y, w2) + b2
    error = np.sum((y - (pixels / 255 - 0.5)) ** 2) / 3
    return float(error) + lmbda * bits


def soft_rounded(x: np.ndarray, t: float = 0.3) -> np.ndarray:
    whole = np.floor(x)
    return whole + 0.5 + 0.5 / np.tanh(0.5 / t) * np.tanh((x - whole - 0.5) / t)


def activation(x: np.ndarray) -> np.ndarray:
    u = np.clip(x / 4 + 0.5, 0, 1)
    return x * u * u * (3 - 2 * u)


def network(x: np.ndarray, layers: list[np.ndarray]) -> np.ndarray:
    for n in range(0, len(layers), 2):
        x = (activation(x) if n else x) @ layers[n] + layers[n + 1]
    return x


def hyperlatents_above(own: list[np.ndarray], grids: list[np.ndarray], level: int) -> np.ndarray:
    """Hyperlatents at the positions of a grid's values, [hyperlatents, h, w]."""
    result = np.zeros((len(own), *grids[level].shape))
    for maps, values, first in zip(result, own, HYPERLATENT_LEVELS, strict=False):
        apart = 1 << max(level - first, 0)
        one = values[None, ::apart, ::apart]
        for n in range(first - 1, level - 1, -1):
            h, w = grids[n].shape
            if n < NEAREST_BELOW_LEVEL:
                one = one.repeat(2, 1).repeat(2, 2)[:, :h, :w]
            else:
                one = upsampled_axis(
                    upsampled_axis(one, np.array(BICUBIC_TAPS), 1, h), np.array(BICUBIC_TAPS), 2, w
                )
        maps[:] = one[0]
    return result


def latent_bits(grid: np.ndarray, layers: list[np.ndarray], above: np.ndarray) -> np.ndarray:
    h, w = grid.shape
    framed = np.pad(grid, ((3, 0), (3, 3)))
    shifted = [framed[k // 7 : k // 7 + h, k % 7 : k % 7 + w] for k in range(24)]
    shifted += list(above[: len(layers[0]) - 24])
    mean, s = np.moveaxis(network(np.stack(shifted, -1), layers), -1, 0)
    scale, away = (
        np.exp(np.clip(s - 4, operations.MIN_LOG_SCALE, operations.MAX_LOG_SCALE)),
        np.abs(grid - mean),
    )
    near, far = np.exp(-np.abs(away - 0.5) / scale) / 2, np.exp(-(away + 0.5) / scale) / 2
    return -np.log2(
        np.maximum(np.where(away < 0.5, 1 - near - far, near - far), operations.MIN_PROBABILITY)
    )


def upsampled_axis(x: np.ndarray, taps: np.ndarray, axis: int, size: int) -> np.ndarray:
    places, result = np.arange(size), 0.0
    for j in range(4):
        tap = np.where(places % 2, taps[3 - j], taps[j]).reshape((-1, 1) if axis == 1 else -1)
        at = np.clip(places // 2 + places % 2 + j - 2, 0, x.shape[axis] - 1)
        result = result + np.take(x, at, axis) * tap
    return np.asarray(result)


def convolved(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    framed = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    h, w, channels = x.shape
    near = [framed[y : y + h, z : z + w] for y in range(3) for z in range(3)]
    return np.stack(near, -1).reshape(h, w, channels * 9) @ weights
