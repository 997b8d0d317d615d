"""Half precision beside float32, on a GPU with matrix units.

    python -m benchmarks.half_precision PICTURE [--device gpu]

Gradients of the default network beside NumPy's in float64, microseconds a step at three batch
sizes, and the PSNR after the default preset's steps. Fails if gradients are off by more than
1e-5 (float32) or 1e-2 (half) of the largest of their tensor, or PSNRs by more than 0.1 dB.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from imgmlp import image
from imgmlp.codec import model, pipeline
from imgmlp.codec.config import PRESETS, Architecture
from imgmlp.engine import AnyDevice, Tensor, compile, open_device

Array = np.ndarray[Any, Any]
Precision = Literal["float32", "half"]
LIMITS: dict[Precision, float] = {"float32": 1e-5, "half": 1e-2}
BATCHES = (512, 16_384, 262_144)
ROWS = 1000  # of the compared gradients: no whole number of tiles
MOST = 0.1  # dB between PSNRs
TURNS, SECONDS = 5, 0.1  # the best of so many turns of so long


def in_float64(architecture: Architecture, flat: Array, x: Array, wanted: Array) -> list[Array]:
    """Gradients of the sum of squared errors: [rows, features], [rows, channels] -> W0, b0, ..."""
    parameters = [flat[a:b].reshape(shape) for a, b, shape in architecture.spans()]
    kept, slope = [x], architecture.slope
    for weight, bias in zip(parameters[:-1:2], parameters[1:-1:2], strict=True):
        sums = kept[-1] @ weight + bias
        kept.append(np.where(sums > 0, sums, slope * sums))
    back = 2 * (kept[-1] @ parameters[-1] - wanted)
    found = [kept[-1].T @ back]
    back = back @ parameters[-1].T
    for layer in reversed(range(len(kept) - 1)):
        back = np.where(kept[layer + 1] > 0, back, slope * back)
        found = [kept[layer].T @ back, back.sum(0), *found]
        back = back @ parameters[2 * layer].T
    return found


def gradient_error(device: AnyDevice, precision: Precision) -> float:
    """The largest difference from float64, as a share of its tensor's largest gradient."""
    architecture = PRESETS["default"].architecture(3)
    random = np.random.default_rng(1)  # no sum so near to a bend that float32 takes the other side
    x = random.uniform(-1, 1, (ROWS, architecture.sizes[0])).astype(np.float32)
    wanted = random.uniform(0, 1, (ROWS, 3)).astype(np.float32)
    flat = model.initial(architecture, 0, device)
    rows, targets = Tensor(x, device), Tensor(wanted, device)

    def step() -> dict[str, Tensor]:
        error = (model.forward(flat, architecture, rows) - targets).square().sum()
        return {"slope": error.gradient([flat])[0]}

    program = compile(step, device, precision=precision)
    program.run()
    found = program.read("slope")
    exact = in_float64(architecture, flat.numpy().astype(np.float64), x, wanted)
    parts = [found[a:b].reshape(shape) for a, b, shape in architecture.spans()]
    pairs = zip(parts, exact, strict=True)
    return max(float(np.abs(f - e).max() / np.abs(e).max()) for f, e in pairs)


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


def trained_psnr(device: AnyDevice, precision: Precision, path: Path) -> float:
    """dB after all steps of the default preset."""
    settings = replace(PRESETS["default"], precision=precision)
    return pipeline.train(image.load(path), settings, device).psnr


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
        error = gradient_error(device, precision)
        times = [
            f"{batch:,} rows {microseconds(device, precision, batch):.1f}" for batch in BATCHES
        ]
        qualities.append(trained_psnr(device, precision, chosen.picture))
        print(f"{precision}: gradients off by {error:.1e}; us/step: {', '.join(times)}; ", end="")
        print(f"{qualities[-1]:.3f} dB")
        good = good and error <= limit
    return 0 if good and abs(qualities[0] - qualities[1]) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
