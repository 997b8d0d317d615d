"""The latent codec's training: time of each launch, then whole encodes of pictures.

    python benchmarks/latent.py PICTURE... --device gpu --steps 2000 --price 1e-3

Prints the milliseconds of an iteration as it is replayed and, launch by launch, of the slowest
ones. Then for each picture and price: PSNR and bits per pixel of the file that was written, read
back and decoded, and the seconds that it took.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.training.bit_allocation import model_of
from imgmlp.codec.latent.training.latent_step import LatentStep
from imgmlp.codec.latent.training.phases import LatentTrainer, LatentTrainerState, control
from imgmlp.engine import AnyDevice, open_device
from imgmlp.image import load

SHOWN = 24  # launches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--price", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--times", action="store_true", help="launch by launch, and no encode")
    options = parser.parse_args()
    device = open_device(options.device)
    for path in options.pictures:
        pixels = load(path).pixels
        began = time.perf_counter()
        step = LatentStep(pixels, 1, device)
        print(f"{path.name} {device.info.name}: compiled in {time.perf_counter() - began:.1f} s")
        if options.times:
            show_times(step)
            continue
        start = step.state()
        for price in options.price:
            step.restore(start)
            encode(step, path.name, pixels, price, options.steps, device)


def show_times(step: LatentStep) -> None:
    step.steer(control(0, 1000, 1e-3))
    program = step.program
    program.run(20)
    program.wait()
    began = time.perf_counter()
    program.run(50)
    program.wait()
    print(f"{(time.perf_counter() - began) * 20:.3f} ms an iteration")
    times, kernels = program.time(), program.stages.procedure.kernels
    print(program.stages.procedure.note)
    print(f"{len(kernels)} launches, {sum(times) / 1000:.3f} ms one after the other")
    for i in sorted(range(len(times)), key=lambda i: -times[i])[:SHOWN]:
        members = [(m.name, m.shape) for m in getattr(kernels[i], "members", ())]
        print(
            f"{times[i] / 1000:9.3f} ms  {i:3d} {kernels[i].name} {kernels[i].shape} {members[:5]}"
        )


def encode(
    step: LatentStep, name: str, pixels: np.ndarray, price: float, steps: int, device: AnyDevice
) -> None:
    began = time.perf_counter()
    ended = LatentTrainer(step, LatentTrainerState(steps, price)).run()
    trained = time.perf_counter() - began
    model = model_of(step, price)
    settled = time.perf_counter() - began - trained
    parts = sections.write(model)
    size = pixels.shape[1], pixels.shape[0]
    back = sections.read(parts, size, pixels.shape[2], device)
    error = np.mean((synthesize(back, device) - pixels.astype(np.float64)) ** 2)
    bpp = 8 * sum(map(len, parts)) / (size[0] * size[1])
    psnr = 10 * np.log10(255**2 / error)
    shares = " + ".join(f"{8 * len(p) / (size[0] * size[1]):.4f}" for p in parts)
    print(
        f"{name} price {price:g}: {ended} {steps} steps in {trained:.1f} s "
        f"({trained / steps * 1000:.2f} ms each), settled in {settled:.1f} s: "
        f"{psnr:.3f} dB at {bpp:.4f} bpp ({shares})",
        flush=True,
    )


if __name__ == "__main__":
    main()
