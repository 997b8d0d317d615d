"""The rate of a 3 by 3 convolution compared with that of a matrix product of the same size.

    python benchmarks/convolution.py --device gpu

The product has a row for each pixel, 9 terms for each input channel and a column for each output
channel. Both are timed alternately; a row shows the GFLOP/s of each at its median time.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor, compile, open_device

CHANNELS = [(3, 48), (16, 16), (48, 48)]
TURNS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=512, help="of the picture, both ways")
    options = parser.parse_args()
    device = open_device(options.device)
    print(f"{device.info.name}, {options.size}x{options.size} pixels")
    for inputs, outputs in CHANNELS:
        programs = programs_of(options.size, inputs, outputs, device)
        times: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for found, program in zip(times, programs, strict=True):
                found.append(seconds(program))
        work = 2 * options.size**2 * 9 * inputs * outputs
        conv, product = (work / median(found) / 1e9 for found in times)
        told = f"{conv:.0f} GFLOP/s, product {product:.0f}, {conv / product:.0%}"
        print(f"{inputs} to {outputs}: {told}")


def programs_of(size: int, inputs: int, outputs: int, device: AnyDevice) -> list[Program]:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Tensor:
        return Tensor(rng.standard_normal(shape).astype(np.float32), device)

    x, weight = drawn(1, inputs, size, size), drawn(outputs, inputs, 3, 3)
    rows, matrix = drawn(size * size, 9 * inputs), drawn(9 * inputs, outputs)
    return [
        compile(lambda: {"y": x.conv2d(weight, padding=1)}, device),
        compile(lambda: {"y": rows @ matrix}, device),
    ]


def seconds(program: Program, least: float = 0.1) -> float:
    """Of one run, by as many as take so long."""
    program.run()
    program.wait()
    count, taken = 1, 0.0
    while taken < least:
        began = time.perf_counter()
        program.run(count)
        program.wait()
        taken, count = time.perf_counter() - began, count * 2
    return taken / (count // 2)


if __name__ == "__main__":
    main()
