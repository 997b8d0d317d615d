"""Encode several pictures with several lambdas on two cores within a time limit.

    python benchmarks/latent_limited.py FOLDER --time 60s --lambda 4e-4 1e-3 4e-3 --out points.csv

Each file is encoded by a process of its own, as a user would start it, on the requested number of
cores. If the machine has more, several such processes run concurrently on separate cores; they
share memory and caches, so each is slower than it would be alone. Each point is written
immediately. benchmarks/latent_report.py makes tables and curves of the points.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imgmlp import image

COLUMNS = "image,lambda,steps,bytes,bpp,psnr,training_seconds,seconds"
# What PoCL 3 and later ones have for the number of their threads.
THREADS = "POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"
LEAST = "1s"  # a limit in which programs are compiled, before anything is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time", default="60s")
    parser.add_argument("--lambda", dest="lmbda", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--cores", type=int, default=2, help="of each process")
    parser.add_argument("--most", type=int, default=64, help="processes at once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("points.csv"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    count = min(max(len(cores) // options.cores, 1), options.most)
    free: queue.Queue[Sequence[int]] = queue.Queue()
    for number in range(count):
        free.put(cores[number * options.cores : (number + 1) * options.cores])
    pictures = sorted(options.folder.glob("*.png"))
    for picture in {image.load(picture).pixels.shape: picture for picture in pictures}.values():
        made(picture, options.lmbda[0], LEAST, options.device, cores[: options.cores])
    print(f"{count} at once, {options.cores} cores each", flush=True)
    if not options.out.exists():
        options.out.write_text(COLUMNS + "\n")

    def work(picture: Path, lmbda: float) -> None:
        own = free.get()
        began = time.perf_counter()
        try:
            m = made(picture, lmbda, options.time, options.device, own)
        finally:
            free.put(own)
        figures = f"{m['steps']},{m['bytes']},{m['bpp']:.5f},{m['psnr']:.4f},{m['seconds']:.1f}"
        point = f"{picture.stem},{lmbda},{figures},{time.perf_counter() - began:.1f}"
        print(point, flush=True)
        with options.out.open("a") as file:  # one short line: threads' lines do not mix
            file.write(point + "\n")

    with ThreadPoolExecutor(count) as pool:
        tasks = [pool.submit(work, p, lmbda) for lmbda in options.lmbda for p in pictures]
        for task in tasks:
            task.result()


def made(
    picture: Path, lmbda: float, limit: str, device: str, cores: Sequence[int]
) -> Mapping[str, float]:
    """The figures of one file, which is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "imgmlp", "encode", str(picture), "--json", "-q"]
        command += ["--lambda", str(lmbda), "--time", limit, "--device", device]
        command += ["-o", str(Path(folder) / "file.imlp")]
        threads = dict.fromkeys(THREADS, str(len(cores)))
        found = subprocess.run(
            command,
            env=os.environ | threads,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            stdout=subprocess.PIPE,
            check=True,
        )
    (figures,) = json.loads(found.stdout)
    return figures  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
