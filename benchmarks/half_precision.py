"""Half precision compared with float32, on a GPU with matrix units.

    python -m benchmarks.half_precision PICTURE [--device gpu]

Compares the gradients of the default network with NumPy's in float64, microseconds per step for
some batch sizes, the PSNR after the default preset, and the device time to decode the picture.
Where a pre-activation is almost zero, rounding decides on which side of the leaky ReLU's bend it
falls, and float64 may take the other one. Gradients are therefore compared on all rows, and on the
rows without such values. Fails if the latter are off by more than 1e-5 (float32) or 1e-2 (half) of
the largest in their tensor, or if PSNRs differ by more than 0.1 dB.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import image
from imgmlp.codec.float_mlp import model, pipeline
from imgmlp.codec.float_mlp.config import PRESETS, Architecture, Weights
from imgmlp.engine import AnyDevice, Device, Precision, Tensor, compile, open_device

Array = np.ndarray[Any, Any]
LIMITS: dict[Precision, float] = {"float32": 1e-5, "half": 1e-2}
BATCHES = (512, 4_096, 16_384, 262_144)
DRAWS = 5  # of rows for gradients; the largest difference counts
ROWS = 1000  # of a draw: no whole number of tiles
CLEAR = 101  # of those: rows whose sums all keep away from the bend
NEAR = 5e-3  # how far
MOST = 0.1  # dB between PSNRs
TURNS, SECONDS = 5, 0.1  # the best of so many turns of so long


def sums(architecture: Architecture, flat: Array, x: Array) -> list[Array]:
    """What each hidden layer's leaky ReLU is given: [rows, features] -> [rows, width] each."""
    parameters = [flat[a:b].reshape(shape) for a, b, shape in architecture.spans()]
    found: list[Array] = []
    for weight, bias in zip(parameters[:-1:2], parameters[1:-1:2], strict=True):
        found.append(x @ weight + bias)
        x = np.where(found[-1] > 0, found[-1], architecture.slope * found[-1])
    return found


def in_float64(architecture: Architecture, flat: Array, x: Array, wanted: Array) -> list[Array]:
    """Gradients of the sum of squared errors: [rows, features], [rows, channels] -> W0, b0, ..."""
    parameters = [flat[a:b].reshape(shape) for a, b, shape in architecture.spans()]
    before, slope = sums(architecture, flat, x), architecture.slope
    kept = [x, *(np.where(s > 0, s, slope * s) for s in before)]
    back = 2 * (kept[-1] @ parameters[-1] - wanted)
    found = [kept[-1].T @ back]
    back = back @ parameters[-1].T
    for layer in reversed(range(len(before))):
        back = np.where(before[layer] > 0, back, slope * back)
        found = [kept[layer].T @ back, back.sum(0), *found]
        back = back @ parameters[2 * layer].T
    return found


def draw(architecture: Architecture, flat: Array, seed: int, clear: bool) -> tuple[Array, Array]:
    """Rows of features and of wanted channels; with `clear`, some that keep away from bends."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (ROWS, architecture.sizes[0])).astype(np.float32)
    wanted = random.uniform(0, 1, (ROWS, architecture.sizes[-1])).astype(np.float32)
    if clear:
        nearest = [np.abs(s).min(axis=1) for s in sums(architecture, flat, x.astype(np.float64))]
        chosen = np.flatnonzero(np.min(nearest, axis=0) > NEAR)[:CLEAR]
        x, wanted = x[chosen], wanted[chosen]
    return x, wanted


def gradient_error(device: AnyDevice, precision: Precision, clear: bool) -> float:
    """The largest difference from float64, as a share of its tensor's largest gradient."""
    architecture = PRESETS["default"].architecture(3)
    parameters = model.initial(architecture, 0, device)
    flat = parameters.numpy().astype(np.float64)
    draws = [draw(architecture, flat, seed, clear) for seed in range(DRAWS)]
    rows, targets = (Tensor(array, device) for array in draws[0])

    def step() -> dict[str, Tensor]:
        error = (model.forward(parameters, architecture, rows) - targets).square().sum()
        return {"slope": error.gradient([parameters])[0]}

    program, worst = compile(step, device, precision=precision), 0.0
    for x, wanted in draws:
        rows.write(x)
        targets.write(wanted)
        program.run()
        found = program.read("slope")
        exact = in_float64(architecture, flat, x.astype(np.float64), wanted.astype(np.float64))
        for (a, b, shape), e in zip(architecture.spans(), exact, strict=True):
            difference = np.abs(found[a:b].reshape(shape) - e).max()
            worst = max(worst, float(difference / np.abs(e).max()))
    return worst


def microseconds(device: AnyDevice, precision: Precision, batch: int) -> float:
    """Of a step of the default preset, back to back."""
    settings = replace(PRESETS["default"], batch=batch, precision=precision)
    program = pipeline.training_step(settings, device, 512, 512, 3)
    program.run(10)
    program.wait()
    count, best = 10, float("inf")
    for _ in range(TURNS + 1):  # the first finds how many steps fill a turn
        begin = time.perf_counter()
        program.run(count)
        program.wait()
        seconds = (time.perf_counter() - begin) / count
        best, count = min(best, seconds), max(1, round(SECONDS / seconds))
    return best * 1e6


def trained(device: AnyDevice, precision: Precision, path: Path) -> pipeline.Trained:
    """After all steps of the default preset."""
    settings = replace(PRESETS["default"], precision=precision)
    return pipeline.train(image.load(path), settings, device)


def decoding(device: Device, precision: Precision, weights: Weights) -> tuple[float, list[float]]:
    """The device's own microseconds of all launches that decode a picture, and of each."""
    size = weights.width, weights.height
    decoder = pipeline.Decoder(weights, device, *size, piece=size[::-1], precision=precision)
    decoder.picture()
    each = np.median([device.time_launches(decoder.program.launches) for _ in range(20)], axis=0)
    return float(each.sum()), each.tolist()


def main() -> int:
    parser = argparse.ArgumentParser(description="Half precision beside float32.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="gpu")
    chosen = parser.parse_args()
    device = open_device(chosen.device)
    print(device.info.describe())
    if not device.has_matrix_units:
        print("no matrix units: half precision falls back to float32")
    good, qualities = True, []
    for precision, limit in LIMITS.items():
        error, anywhere = (gradient_error(device, precision, clear) for clear in (True, False))
        times = [
            f"{batch:,} rows {microseconds(device, precision, batch):.1f}" for batch in BATCHES
        ]
        found = trained(device, precision, chosen.picture)
        qualities.append(found.psnr)
        print(f"{precision}: gradients off by {error:.1e}, near bends too by {anywhere:.1e}")
        print(f"us/step: {', '.join(times)}; {found.psnr:.3f} dB")
        if isinstance(device, Device):
            total, each = decoding(device, precision, found.weights)
            print(f"us to decode: {total:.1f} ({', '.join(f'{us:.1f}' for us in each)})")
        good = good and error <= limit
    return 0 if good and abs(qualities[0] - qualities[1]) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
