"""A picture of every kind that devices compile for, so that it can be done while nobody waits.

Programs serve pictures of many sizes (latent/training/buckets.py), and networks of many widths
(mlp/buckets.py). These are the ones of short runs, in RGB, and of what decodes their files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.mlp import buckets, rate_model
from imgmlp.codec.mlp.rounding_search import overhead
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture

# Height and width of one of each that latents have a program for on processors: within 32, 64 and
# 128 pixels, thin ones, those of up to 512×768 either way round, others, and those of 1 and of 3
# megapixels.
SIZES = (
    (20, 20), (60, 40), (128, 100), (20, 200), (200, 20), (10, 500), (500, 10), (100, 150),
    (150, 100), (512, 768), (768, 512), (200, 200), (1024, 1024), (1776, 1776),
)  # fmt: skip
# The same on GPUs, within 1024×1536 pixels either way, but for what fills less than a fourth of the
# bucket that it has: of up to 100,000 pixels, whose networks are small, of more, and from a
# megapixel on, with a grid more.
ON_GPUS = (
    (20, 20), (60, 40), (128, 100), (128, 256), (256, 128), (256, 256), (256, 384), (384, 256),
    (225, 400), (512, 512), (512, 768), (768, 512), (768, 1024), (1024, 1024),
    (800, 1200), (1200, 800), (1024, 1536), (1536, 1024),
)  # fmt: skip
# Height and width of a picture that networks of `--codec mlp` are trained on, with the most values
# of their layers: small ones are decoded in pieces of their own, and wider networks are rare.
WIDEST = {32: 32, 256: 128}
LMBDA = 1e-3  # lambda; programs do not depend on it


@dataclass(frozen=True)
class Kind:
    """What is encoded to have it compiled."""

    codec: Codec
    height: int
    width: int
    wanted: Goal

    def __str__(self) -> str:
        beside = f", {self.wanted}" if self.codec == "mlp" else ""
        return f"{self.codec} {self.width}×{self.height}{beside}"


def kinds(device: AnyDevice) -> list[Kind]:
    """All of them, if pictures of other sizes share what is compiled on a device."""
    if not buckets.are_used_on(device):
        return []
    sizes = ON_GPUS if device.lanes == "group" else SIZES
    found = [Kind("latent", *size, Goal("lambda", LMBDA)) for size in sizes]
    for side, widest in WIDEST.items():
        counts = _network_bytes(_picture(side, side), widest)
        found += [Kind("mlp", side, side, Goal("bytes", count)) for count in counts]
    return found


def _network_bytes(picture: Picture, widest: int) -> Sequence[int]:
    """Bytes of a file with the largest network of each bucket."""
    found = []
    for width in (buckets.MIN_WIDTH, *(width for width in buckets.WIDTHS if width <= widest)):
        among = (
            s for s in rate_model.shapes(picture.channels) if buckets.shared_shape(s).width == width
        )
        shape = max(among, key=lambda s: s.parameters)
        bits = rate_model.BITS_PER_WEIGHT * shape.parameters
        found.append(round(overhead(picture, shape) + bits / 8))
    return found


def compile_for(kind: Kind, device: AnyDevice) -> float:
    """Have all that a kind needs compiled and kept; returns the seconds of processor time that
    it took, the driver's included."""
    before = device.compiling + device.lowering
    encoder.encode(
        _picture(kind.height, kind.width), kind.wanted, Workload(1), device, codec=kind.codec
    )
    return device.compiling + device.lowering - before


def _picture(height: int, width: int) -> Picture:
    """One that is cheap to code."""
    y, x = np.mgrid[:height, :width]
    shades = (np.sin(y / 40 + n) + np.cos(x / 30) + 2 for n in range(3))
    return Picture(np.stack([shade * 60 for shade in shades], -1).astype(np.uint8))
