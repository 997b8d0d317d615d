"""What a step of a network takes in a room that it shares with others, and in a program of its own.

    python benchmarks/network_rooms.py --device gpu --width 20 40 72 104 144 --wider 1 4

A line for each: values of a layer, pixels of a step, microseconds a step and seconds until the
first one, which are those of compiling if no cache has it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from imgmlp.codec.mlp import rate_model, rooms
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.engine import AnyDevice, open_device

PIXELS = np.random.default_rng(0).integers(0, 256, (512, 768, 3), np.uint8)
SECONDS = 0.2  # that steps are replayed for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, nargs="+", default=[20, 40, 72, 104, 144])
    parser.add_argument("--wider", type=int, nargs="+", default=[1, 4], help="times the batch")
    options = parser.parse_args()
    device = open_device(options.device)
    for shape in rate_model.shapes(channels=3):
        for wider in options.wider if shape.width in options.width else ():
            own, room = (timed(shape, room, wider, device) for room in (shape, rooms.shared(shape)))
            shared = rooms.shared(shape).width
            print(f"{shape.width} x {BATCH * wider:,}: alone {own}; in {shared} {room}", flush=True)


def timed(shape: Shape, room: Shape, wider: int, device: AnyDevice) -> str:
    began = time.perf_counter()
    step = LearningStep(PIXELS, shape, 0, device, BATCH * wider, room)
    step.run(1)
    ready = time.perf_counter() - began
    return f"{1e6 * seconds_a_step(step.program, SECONDS):.0f} µs, {ready:.1f} s"


if __name__ == "__main__":
    main()
