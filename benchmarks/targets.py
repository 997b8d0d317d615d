"""Whether the three kinds of target, quality, PSNR and bytes, give equally good files.

    python benchmarks/targets.py PICTURE... --effort 1 3 5 --quality 30 60 90 --crop 128

The centre of each picture is encoded at each quality, and then for the PSNR and for the bytes of
that file. Prints a line for each file: bytes, dB, and how many percent more bytes it has than the
best of the three at its PSNR. The comparison uses the slope of the curve through the qualities, so
at least two qualities are needed. `--time 10s` replaces the efforts by a time limit; a file is then
encoded first that does not count, so that no measured file spends its time on loading programs.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imgmlp import image
from imgmlp.batch.encode_options import parse_time
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.training import target
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, open_device
from imgmlp.image import Picture


@dataclass(frozen=True)
class Point:
    """A file, and how it was asked for."""

    asked: str
    size: int  # bytes
    psnr: float
    parameters: int
    seconds: float
    missed: str | None

    def size_at(self, psnr: float, slope: float) -> float:
        """Its bytes if it had another PSNR, `slope` being that of their logarithm over dB."""
        return self.size * math.exp(slope * (psnr - self.psnr))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--codec", default="mlp", choices=["mlp", "latent"])
    parser.add_argument("--effort", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--time", help="instead of an effort, such as 10s")
    parser.add_argument("--quality", type=float, nargs="+", default=[30.0, 60.0, 90.0])
    parser.add_argument("--crop", type=int, default=128, help="pixels along a side")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, worst = open_device(options.device), list[float]()
    workloads = [encoder.workload(options.codec, level, None) for level in options.effort]
    if options.time:
        workloads = [encoder.workload(options.codec, None, parse_time(options.time))]
    for path in options.pictures:
        picture = middle(image.load(path), options.crop)
        for workload in workloads:
            worst += compare(path.stem, picture, options.codec, workload, options.quality, device)
    print(f"more bytes than the best way: {max(worst):.1%} at worst, {np.mean(worst):.1%} mean")


def middle(picture: Picture, side: int) -> Picture:
    top, left = (max(0, (n - side) // 2) for n in (picture.height, picture.width))
    cut = picture.pixels[top : top + side, left : left + side]
    return Picture(np.ascontiguousarray(cut))


def compare(
    name: str,
    picture: Picture,
    codec: Codec,
    workload: Workload,
    qualities: list[float],
    device: AnyDevice,
) -> list[float]:
    """Print each file's figures; returns what each has more than the best of its quality."""

    def made(asked: str, wanted: Goal) -> Point:
        began = time.perf_counter()
        found = encoder.encode(picture, wanted, workload, device, Run(), codec)
        seconds = time.perf_counter() - began
        size, facts = len(found.bytes), found.metrics
        return Point(asked, size, facts["psnr"], facts["parameters"], seconds, found.missed)

    pixels, more = picture.width * picture.height, list[float]()
    if workload.seconds is not None:
        made("", target.choose(pixels, quality=qualities[0]))
    anchors = [made(f"quality {q:g}", target.choose(pixels, quality=q)) for q in qualities]
    slopes = np.gradient([math.log(a.size) for a in anchors], [a.psnr for a in anchors])
    for anchor, slope in zip(anchors, slopes, strict=True):
        same = [
            anchor,
            made(f"psnr {anchor.psnr:.2f}", Goal("psnr", round(anchor.psnr, 2))),
            made(f"bytes {anchor.size}", Goal("bytes", anchor.size)),
        ]
        least = min(point.size_at(anchor.psnr, slope) for point in same)
        for point in same:
            over = point.size_at(anchor.psnr, slope) / least - 1
            figures = f"{point.size:6,} bytes {point.psnr:6.2f} dB {over:+6.1%}"
            limit = "" if workload.seconds is None else f" {workload.seconds:g}s"
            where, weights = f"{name} {workload.steps}{limit}", f"{point.parameters:6,} parameters"
            line = f"{where:16} {point.asked:14} {figures} {weights} {point.seconds:6.1f} s"
            print(line, point.missed or "", flush=True)
            more.append(over)
    return more


if __name__ == "__main__":
    main()
