"""Train the networks that the latent codec starts from, over pieces of many pictures at once.

    python benchmarks/latent_start.py PICTURE... --hidden 16 --entropy 12 --out start-2.bin

A mosaic of pieces, each 128 pixels wide and high, stands for the pictures: of every picture one
piece as it is, and one of the picture made three times smaller. Pieces begin where the coarsest
grids have a latent, so each has latents of its own, and all of them share the networks. The file
belongs beside codec/latent/model.py, which lists them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image

from imgmlp.codec.latent.model import stored_start
from imgmlp.codec.latent.training_phases import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training_step import LatentStep, networks_of
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import open_device

PIECE = 128
SMALLER = 3
ACROSS = 4  # pieces beside each other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--entropy", type=int, default=12)
    parser.add_argument("--price", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device, widths = open_device(options.device), (options.hidden, options.entropy)
    step = LatentStep(mosaic(options.pictures), 0, device, hidden=widths[0], entropy=widths[1])
    began, shown = time.perf_counter(), [0.0]

    def tell(progress: Progress) -> None:
        now = time.perf_counter() - began
        if now > shown[0] + 20:
            shown[0] = now
            print(
                f"{progress.step} of {progress.steps} steps, {now:.0f} s: {progress.psnr:.2f} dB, "
                f"{progress.bpp:.3f} bpp, D + lambda R {1e4 * progress.cost:.3f}e-4",
                flush=True,
            )

    state = LatentTrainerState(options.steps, options.price)
    print(LatentTrainer(step, state).run(Run(tell)))
    options.out.write_bytes(stored_start(networks_of(step.flat.numpy(), step.shapes)))


def mosaic(paths: list[Path]) -> np.ndarray:
    """uint8 [height, width, 3]: pieces of pictures, ACROSS of them in a row."""
    pieces = [piece for path in paths for piece in pieces_of(Image.open(path).convert("RGB"))]
    pieces = pieces[: len(pieces) // ACROSS * ACROSS]
    rows = [np.concatenate(pieces[at : at + ACROSS], 1) for at in range(0, len(pieces), ACROSS)]
    return np.concatenate(rows, 0)


def pieces_of(picture: Image.Image) -> list[np.ndarray]:
    size = picture.width // SMALLER, picture.height // SMALLER
    found = []
    for image in (picture, picture.resize(size, Image.Resampling.BOX)):
        top, left = (image.height - PIECE) // 2, (image.width - PIECE) // 2
        found.append(np.asarray(image)[top : top + PIECE, left : left + PIECE])
    return found


if __name__ == "__main__":
    main()
