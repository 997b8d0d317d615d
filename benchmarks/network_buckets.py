"""Time of a training step of networks, each in its bucket and in a program for its own shape.

    python benchmarks/network_buckets.py --device gpu --width 20 40 72 104 144 --wider 1 4

Prints a line for each network and batch: the layers' width, the pixels of a step, microseconds per
step, and seconds until the first step, which include compilation unless the program is cached.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from imgmlp.codec.mlp import buckets, rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.engine import AnyDevice, open_device

PIXELS = np.random.default_rng(0).integers(0, 256, (512, 768, 3), np.uint8)
SECONDS = 0.2  # for which steps are timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, nargs="+", default=[20, 40, 72, 104, 144])
    parser.add_argument("--wider", type=int, nargs="+", default=[1, 4], help="times the batch")
    options = parser.parse_args()
    device = open_device(options.device)
    for shape in rate_model.shapes(channels=3):
        for wider in options.wider if shape.width in options.width else ():
            own, bucket = (
                timed(shape, bucket, wider, device)
                for bucket in (shape, buckets.shared_shape(shape))
            )
            shared = buckets.shared_shape(shape).width
            print(
                f"{shape.width} x {BATCH * wider:,}: alone {own}; in {shared} {bucket}", flush=True
            )


def timed(shape: Shape, bucket: Shape, wider: int, device: AnyDevice) -> str:
    began = time.perf_counter()
    step = LearningStep(PIXELS, shape, 0, device, BATCH * wider, bucket)
    step.run(1)
    ready = time.perf_counter() - began
    return f"{1e6 * seconds_a_step(step.program, SECONDS):.0f} µs, {ready:.1f} s"


if __name__ == "__main__":
    main()
