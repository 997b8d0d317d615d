"""Encode several pictures with several lambdas on all graphics cards of a machine.

    python benchmarks/latent_sweep.py FOLDER --steps 4000 --lambda 1e-3 4e-3 --out points.csv

Each card has its own processes, among which the pictures are distributed evenly. Each point is
written immediately; `--files` keeps the files as well. benchmarks/latent_report.py makes tables
and curves of the points and those of other codecs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from imgmlp import image
from imgmlp.codec import encoder
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import list_devices, open_device

COLUMNS = "image,lambda,steps,bytes,bpp,psnr,seconds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument(
        "--lambda", dest="lmbda", type=float, nargs="+", default=[1e-3, 4e-3, 4e-4, 2e-2]
    )
    parser.add_argument("--out", type=Path, default=Path("points.csv"))
    parser.add_argument("--files", type=Path, help="a folder for the files as well")
    parser.add_argument("--processes", type=int, default=1, help="on each card; times need one")
    parser.add_argument("--share", help=argparse.SUPPRESS)  # device/number/of: one card's
    options = parser.parse_args()
    if options.share:
        spec, number, of = options.share.rsplit("/", 2)
        pictures = sorted(options.folder.glob("*.png"))[int(number) :: int(of)]
        sweep(spec, pictures, options.lmbda, options.steps, options.out, options.files)
        return
    cards = [d.spec for d in list_devices() if d.kind == "gpu"] or ["auto"]
    cards *= options.processes
    command = [sys.executable, __file__, *sys.argv[1:]]
    if not options.out.exists():
        options.out.write_text(COLUMNS + "\n")
    if options.files:
        options.files.mkdir(exist_ok=True)
    started = [
        subprocess.Popen([*command, "--share", f"{spec}/{number}/{len(cards)}"])
        for number, spec in enumerate(cards)
    ]
    codes = [process.wait() for process in started]
    raise SystemExit(any(codes))


def sweep(
    spec: str,
    pictures: list[Path],
    lmbdas: list[float],
    steps: int,
    out: Path,
    files: Path | None,
) -> None:
    device = open_device(spec)
    for lmbda in lmbdas:
        for path in pictures:
            began = time.perf_counter()
            goal, workload = Goal("lambda", lmbda), Workload(steps)
            found = encoder.encode(image.load(path), goal, workload, device, Run(), "latent")
            seconds, m = time.perf_counter() - began, found.metrics
            point = f"{path.stem},{lmbda},{steps},{m['bytes']},{m['bpp']:.5f},{m['psnr']:.4f}"
            with out.open("a") as file:  # one short line: the processes' lines do not mix
                file.write(f"{point},{seconds:.1f}\n")
            if files:
                (files / f"{path.stem}-{lmbda}-{steps}.imlp").write_bytes(found.bytes)


if __name__ == "__main__":
    main()
