"""Fit the linear predictor that gives the latent codec its initial latents.

    python benchmarks/latent_initial.py PICTURE... --start 3 --out initial-latents-3.bin

The latents of every picture are trained with fixed pretrained networks. The predictor's weights
minimise the squared difference between these latents and its predictions from the samples around
them. The file belongs next to codec/latent/initial_latents.py, which applies it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from imgmlp.codec.latent.initial_latents import PREDICTOR_RADIUS, halved
from imgmlp.codec.latent.model import DEFAULT_LEVELS
from imgmlp.codec.latent.pretrained import TRAINING_CHANNELS, hidden_widths
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.schedule import control
from imgmlp.engine import AnyDevice, open_device

AT_ONCE = 5  # steps
NARROW, FROM = 1, 5  # samples to every side that count from this grid on, which has few latents
RIDGE = 1e-6  # times the places, added to the squares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--start", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lambda", dest="lmbda", type=float, default=1.2e-3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device, count = (
        open_device(options.device),
        (2 * PREDICTOR_RADIUS + 1) ** 2 * TRAINING_CHANNELS + 1,
    )
    squares = np.zeros(
        (DEFAULT_LEVELS, count + 1, count + 1)
    )  # of all around a place and its latent
    for path in options.pictures:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        grids = trained(pixels, options.start, options.steps, options.lmbda, device)
        samples = pixels / np.float32(255) - np.float32(0.5)
        for level, grid in enumerate(grids):
            framed = np.pad(samples, (*[(PREDICTOR_RADIUS, PREDICTOR_RADIUS)] * 2, (0, 0)), "edge")
            both = np.concatenate([around(framed), grid.reshape(-1, 1)], 1).astype(np.float64)
            squares[level] += both.T @ both
            samples = halved(samples)
        print(path.name, flush=True)
    weights = np.array([solved(each, level) for level, each in enumerate(squares)])
    options.out.write_bytes(weights.astype(">f4").tobytes())


def around(framed: np.ndarray) -> np.ndarray:
    """The samples around every position of a padded picture [h, w, channels], and a constant 1.

    Returns float32 [positions, (2 * PREDICTOR_RADIUS + 1)**2 * channels + 1].
    """
    side = 2 * PREDICTOR_RADIUS + 1
    height, width, channels = (
        framed.shape[0] - side + 1,
        framed.shape[1] - side + 1,
        framed.shape[2],
    )
    found = np.ones((height, width, side * side * channels + 1), np.float32)
    count = side * channels  # of a row, which lie beside each other
    rows = sliding_window_view(framed.reshape(len(framed), -1), count, axis=1)[:, ::channels]
    for down in range(side):
        found[:, :, down * count : (down + 1) * count] = rows[down : down + height]
    return found.reshape(height * width, -1)


def trained(
    pixels: np.ndarray, start: int, steps: int, lmbda: float, device: AnyDevice
) -> list[np.ndarray]:
    """The grids after so many steps."""
    hidden, entropy = hidden_widths(start)
    step = LatentStep(pixels, 0, device, Architecture(hidden, entropy, start))
    for done in range(0, steps, AT_ONCE):
        step.steer(replace(control(done, steps, lmbda), network_lr=0.0))
        step.run(AT_ONCE)
    return step.grids()


def solved(squares: np.ndarray, level: int) -> np.ndarray:
    """float64 [all around a place]; tells how much of the latents' squares they explain."""
    used = np.array([is_used(n, level) for n in range(len(squares) - 1)])
    among, by_latent = squares[:-1, :-1][np.ix_(used, used)], squares[:-1, -1][used]
    ridge = RIDGE * squares[-2, -2] * np.eye(len(among))
    found = np.zeros(len(used))
    found[used] = np.linalg.solve(among + ridge, by_latent)
    left = squares[-1, -1] - 2 * found[used] @ by_latent + found[used] @ among @ found[used]
    print(f"grid {level}: {1 - left / squares[-1, -1]:.1%} of the squares", flush=True)
    return found


def is_used(number: int, level: int) -> bool:
    side = 2 * PREDICTOR_RADIUS + 1
    place = number // TRAINING_CHANNELS
    if level < FROM or place == side * side:
        return True
    return (
        max(abs(place // side - PREDICTOR_RADIUS), abs(place % side - PREDICTOR_RADIUS)) <= NARROW
    )


if __name__ == "__main__":
    main()
