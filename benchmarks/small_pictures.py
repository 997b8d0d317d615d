"""Bytes of small pictures compared with AVIF at the same PSNR, including the headers of both.

    python benchmarks/small_pictures.py PICTURE... --effort 1 3 --quality 30 60 90 --crop 128

The centre of each picture is encoded at each quality, and by AVIF (4:4:4, tune=psnr, speed 4) at
all of its qualities. AVIF's bytes at imgmlp's PSNR are interpolated in the logarithm of the rate.
Prints a line for each file, then mean and worst of each effort.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from targets import middle

from imgmlp import image
from imgmlp.codec import encoder
from imgmlp.codec.training import target
from imgmlp.codec.training.run import Run
from imgmlp.engine import open_device
from imgmlp.image import Picture
from imgmlp.report import classic
from imgmlp.report.curves import rising

AVIF = replace(classic.CODECS["avif444"], options={**classic.CODECS["avif444"].options, "speed": 4})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--effort", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--quality", type=float, nargs="+", default=[30.0, 60.0, 90.0])
    parser.add_argument("--crop", type=int, default=128, help="pixels along a side")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = open_device(options.device)
    more: dict[int, list[float]] = {effort: [] for effort in options.effort}
    for path in options.pictures:
        picture = middle(image.load(path), options.crop)
        pixels = picture.width * picture.height
        sizes, found = avif(picture)
        for effort, shares in more.items():
            workload = encoder.workload("latent", effort, None)
            for quality in options.quality:
                wanted, began = target.choose(pixels, quality=quality), time.perf_counter()
                made = encoder.encode(picture, wanted, workload, device, Run(), "latent")
                seconds, psnr = time.perf_counter() - began, made.metrics["psnr"]
                if not found[0] <= psnr <= found[-1]:
                    print(f"{path.stem} quality {quality:g}: AVIF has nothing at {psnr:.2f} dB")
                    continue
                beside = math.exp(np.interp(psnr, found, np.log(sizes)))
                share = len(made.bytes) / beside - 1
                shares.append(share)
                figures = f"{len(made.bytes):6,} bytes {psnr:6.2f} dB, AVIF {beside:6,.0f}"
                told = f"effort {effort} quality {quality:g}"
                print(f"{path.stem} {told} {figures} {share:+6.1%} {seconds:6.1f} s", flush=True)
    for effort, shares in more.items():
        if not shares:
            continue
        larger = sum(share > 0 for share in shares)
        figures = f"mean {np.mean(shares):+.1%}, worst {max(shares):+.1%}"
        print(f"effort {effort}: {figures}, {larger} of {len(shares)} larger")


def avif(picture: Picture) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bytes and dB of AVIF's files that are better than all smaller ones."""
    points = list[tuple[float, float]]()
    for quality in range(101):
        made = classic.encode(AVIF, picture.pixels, quality)
        points.append((len(made.bytes), image.psnr(picture.pixels, made.pixels)))
    curve = rising(sorted(points))
    assert curve is not None
    return curve.bpp, curve.quality


if __name__ == "__main__":
    main()
