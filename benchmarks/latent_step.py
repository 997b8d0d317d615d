"""Time of a training step of the latent codec, as a whole and for each launch.

    python benchmarks/latent_step.py PICTURE... --device gpu --slowest 24

The step is that of a long run, in the bucket that such a run uses for the picture.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from imgmlp.codec.latent.pretrained import newest_pretrained
from imgmlp.codec.latent.step.architecture import (
    ENTROPY_WIDTH,
    SYNTHESIS_WIDTH,
    Architecture,
)
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.latent.training.schedule import control
from imgmlp.engine import open_device
from imgmlp.image import load

SECONDS = 2.0  # that steps are replayed for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--slowest", type=int, default=24, help="launches that are listed")
    options = parser.parse_args()
    device = open_device(options.device)
    for path in options.pictures:
        pixels = load(path).pixels
        began = time.perf_counter()
        step = LatentStep(
            pixels, 0, device,
            Architecture(pretrained=newest_pretrained((SYNTHESIS_WIDTH, ENTROPY_WIDTH))),
            bucket=TrainingSetup(pixels.shape, device).bucket,
        )  # fmt: skip
        step.steer(control(0, 36_000, 1e-3))
        step.run(1)
        print(f"{path.name}, {device.info.name}: ready in {time.perf_counter() - began:.1f} s")
        print(f"{1e3 * step.pace(SECONDS):.3f} ms a step")
        kernels = step.program.stages.procedure.kernels
        timed = sorted(zip(step.program.time(), kernels, strict=True), key=lambda one: -one[0])
        total = sum(microseconds for microseconds, _ in timed)
        print(f"{len(timed)} launches, {total / 1e3:.3f} ms one after the other")
        for microseconds, kernel in timed[: options.slowest]:
            print(f"{microseconds:9.1f} µs  {kernel.name} {kernel.shape}")


if __name__ == "__main__":
    main()
