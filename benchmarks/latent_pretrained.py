"""Train the pretrained networks of the latent codec on crops of many pictures at once.

    python benchmarks/latent_pretrained.py PICTURE... --hidden 32 --entropy 24 --piece 384x320 \
        --small 192 --start 3 --steps 60000 --lambda 1.2e-3 --out start-5.bin

The crops are arranged in a mosaic: some of every picture at its original size, and as many of the
downscaled picture, if it is large enough. Crops begin at positions of the coarsest grids' latents,
so each has its own latents, and all share the networks. The file belongs next to
codec/latent/pretrained.py, which lists these files.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image

from imgmlp.codec.latent.model import DEFAULT_LEVELS
from imgmlp.codec.latent.pretrained import stored_networks
from imgmlp.codec.latent.step import architecture, latent_step
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import networks_of
from imgmlp.codec.latent.training.initialisation import initialise
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import open_device

ACROSS = 3  # pieces of pictures as they are beside each other
SMALLER = 2.5  # times, that pictures are made smaller


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--entropy", type=int, default=12)
    parser.add_argument("--lambda", dest="lmbda", type=float, default=1e-3)
    parser.add_argument("--piece", type=size, default=(128, 128), help="multiples of 64")
    parser.add_argument("--small", type=int, default=128, help="width of a smaller one's")
    parser.add_argument("--each", type=int, default=1, help="pieces of a picture")
    parser.add_argument("--start", type=int, default=0, help="that it goes on from")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pixels = mosaic(options.pictures, options.piece, options.small, options.each)
    device, widths = open_device(options.device), (options.hidden, options.entropy)
    print(f"{pixels.shape[1]}x{pixels.shape[0]} pixels", flush=True)
    latent_step.DIFFERENCE_RATE_FACTOR = 0.0  # from the start that it goes on from
    architecture.default_levels = lambda height, width: DEFAULT_LEVELS
    step = LatentStep(pixels, 0, device, Architecture(*widths, options.start))
    initialise(step, pixels, options.lmbda, options.steps)
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

    trainer = LatentTrainer(step, LatentTrainerState(options.steps, options.lmbda))
    trainer.rescale()
    print(trainer.run(Run(tell)))
    options.out.write_bytes(stored_networks(networks_of(step.flat.numpy(), step.parameter_shapes)))


def size(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


def mosaic(paths: list[Path], piece: tuple[int, int], small: int, each: int) -> np.ndarray:
    """uint8 [height, width, 3]: rows of pieces as they are, then those of smaller pictures."""
    whole, smaller = [], []
    for path in paths:
        picture = Image.open(path).convert("RGB")
        reduced = round(picture.width / SMALLER), round(picture.height / SMALLER)
        whole += pieces_of(picture, piece, each)
        smaller += pieces_of(picture.resize(reduced, Image.Resampling.BOX), (small, small), each)
    return np.concatenate(
        [*rows(whole, ACROSS), *rows(smaller, ACROSS * piece[0] // small)], axis=0
    )


def rows(pieces: list[np.ndarray], across: int) -> list[np.ndarray]:
    """So many beside each other; what makes no whole row is left out."""
    whole = len(pieces) // across * across
    return [np.concatenate(pieces[at : at + across], 1) for at in range(0, whole, across)]


def pieces_of(image: Image.Image, size: tuple[int, int], each: int) -> list[np.ndarray]:
    """From places that are spread over the image's diagonal; of one the middle."""
    width, height = size
    found: list[np.ndarray] = []
    if image.width < width or image.height < height:
        return found
    for share in ((n + 0.5) / each for n in range(each)):
        left, top = round(share * (image.width - width)), round(share * (image.height - height))
        found.append(np.asarray(image)[top : top + height, left : left + width])
    return found


if __name__ == "__main__":
    main()
