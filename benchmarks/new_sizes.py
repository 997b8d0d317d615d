"""How long encoding waits for compilation if a picture has a new size, by number of helpers.

    python benchmarks/new_sizes.py PICTURE --device gpu --compilers 7 3 0 --runs 3
    python benchmarks/new_sizes.py PICTURE --device gpu --compilers 7 --steps 20000 --buckets

Each run is a process that encodes a crop of the picture with the given number of steps. Each crop
has 64 rows and columns less than the one before, so it needs programs of its own. Without
--buckets, the coarse buckets that runs on graphics cards share are not used. The caches are empty
before the first run, which is reported separately, because it compiles what all sizes share. The
numbers of helpers alternate, and each crop is encoded again with everything compiled.

The columns are seconds: lowering and compiling, in processor time of the encoding process; then
wall-clock time until its first progress figures and until its end, and both again with everything
compiled; finally D + lambda R of the file in 1e-4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from imgmlp.child import COMPILERS_VARIABLE

CODE = """
import sys, time
from imgmlp.codec import encoder
from imgmlp.codec.latent.training import buckets
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import load
name, spec, began, steps, shared = sys.argv[1:]
if not int(shared):
    buckets.COARSE_BUCKETS = ()
told = []
run = Run(lambda _: told or told.append(time.time() - float(began)))
device, picture, lmbda = open_device(spec), load(name), 1e-3
file = encoder.encode(picture, Goal("lambda", lmbda), Workload(int(steps)), device, run)
bpp = 8 * len(file.bytes) / (picture.width * picture.height)
cost = 10 ** (-file.metrics["psnr"] / 10) + lmbda * bpp
print(device.lowering, device.compiling, told[0], time.time() - float(began), 1e4 * cost)
"""
CACHES = "HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "POCL_CACHE_DIR"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--compilers", type=int, nargs="+", default=[7, 3, 0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--buckets", action="store_true", help="use coarse buckets as well")
    options = parser.parse_args()
    picture = Image.open(options.picture).convert("RGB")
    with tempfile.TemporaryDirectory() as place:
        fresh = os.environ | dict.fromkeys(CACHES, place)
        crop = Path(place) / "crop.png"
        picture.save(crop)
        how = options.device, str(options.steps), str(int(options.buckets))
        print("first of all: " + told(encoded(crop, how, fresh)))
        found: dict[int, list[list[float]]] = {count: [] for count in options.compilers}
        for run in range(options.runs * len(options.compilers)):
            count = options.compilers[run % len(options.compilers)]
            width, height = (side - 64 * (run + 1) for side in picture.size)
            if min(width, height) <= 128:
                raise SystemExit(f"{options.picture} is too small for so many runs")
            picture.crop((0, 0, width, height)).save(crop)
            variables = fresh | {COMPILERS_VARIABLE: str(count)}
            *new, cost = encoded(crop, how, variables)
            found[count].append([*new, *encoded(crop, how, variables)[2:4], cost])
            print(f"{width}x{height}, {count} helpers: {told(found[count][-1])}", flush=True)
    for count, rows in found.items():
        medians = list(map(statistics.median, zip(*rows, strict=True)))
        print(f"medians, {count} helpers: {told(medians)}")


def encoded(picture: Path, how: Sequence[str], variables: dict[str, str]) -> list[float]:
    """Seconds of lowering, of compiling, until the first figures and of the process; and D + lambda
    R in 1e-4."""
    device, *rest = how
    command = [sys.executable, "-c", CODE, str(picture), device, str(time.time()), *rest]
    out = subprocess.run(command, env=variables, capture_output=True, check=True, text=True).stdout
    return [*map(float, out.split())]


def told(found: Sequence[float]) -> str:
    *times, cost = found
    names = "lowering", "compiling", "first figures", "all", "first figures again", "all again"
    said = ", ".join(f"{name} {each:.1f} s" for name, each in zip(names, times, strict=False))
    return f"{said}; D + lambda R {cost:.3f}"


if __name__ == "__main__":
    main()
