"""What a picture waits for of a size that nothing was compiled for, by how many processes help.

    python benchmarks/new_sizes.py PICTURE --device gpu --compilers 7 3 0 --runs 3

Each run is a process that encodes a crop of the picture by 300 steps, of 64 rows and columns less
than the one before, so that each has a program of its own; rooms of few kinds, which short runs on
graphics cards share, are left out. Caches are empty before the first, which is told by itself, as
it compiles what pictures of all sizes share. Numbers of helpers take turns, and each crop is
encoded again, with everything compiled. Told are seconds: lowering and compiling, of processor
time, the whole process by the clock, and the same with everything compiled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from imgmlp.child import COMPILERS

CODE = """
import sys
from imgmlp.codec import encoder
from imgmlp.codec.latent.training import rooms
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import load
rooms.COARSE = ()
device = open_device(sys.argv[2])
encoder.encode(load(sys.argv[1]), Goal("lambda", 1e-3), Workload(300), device)
print(device.lowering, device.compiling)
"""
CACHES = "HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "POCL_CACHE_DIR"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--compilers", type=int, nargs="+", default=[7, 3, 0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    picture = Image.open(options.picture).convert("RGB")
    with tempfile.TemporaryDirectory() as place:
        fresh = os.environ | dict.fromkeys(CACHES, place)
        crop = Path(place) / "crop.png"
        picture.save(crop)
        print("first of all: " + told(encoded(crop, options.device, fresh)))
        found: dict[int, list[list[float]]] = {count: [] for count in options.compilers}
        for run in range(options.runs * len(options.compilers)):
            count = options.compilers[run % len(options.compilers)]
            width, height = (side - 64 * (run + 1) for side in picture.size)
            if min(width, height) <= 128:
                raise SystemExit(f"{options.picture} is too small for so many runs")
            picture.crop((0, 0, width, height)).save(crop)
            variables = fresh | {COMPILERS: str(count)}
            new, again = (encoded(crop, options.device, variables) for _ in range(2))
            found[count].append([*new, again[2]])
            print(f"{width}x{height}, {count} helpers: {told(found[count][-1])}", flush=True)
    for count, rows in found.items():
        medians = list(map(statistics.median, zip(*rows, strict=True)))
        print(f"medians, {count} helpers: {told(medians)}")


def encoded(picture: Path, device: str, variables: dict[str, str]) -> list[float]:
    """Seconds of lowering, of compiling, and of the process."""
    began = time.perf_counter()
    command = [sys.executable, "-c", CODE, str(picture), device]
    out = subprocess.run(command, env=variables, capture_output=True, check=True, text=True).stdout
    return [*map(float, out.split()), time.perf_counter() - began]


def told(seconds: list[float]) -> str:
    names = "lowering", "compiling", "the process", "the process again"
    return ", ".join(f"{name} {each:.1f} s" for name, each in zip(names, seconds, strict=False))


if __name__ == "__main__":
    main()
