"""The kinds of pictures that need different programs, to compile these in advance.

A program serves pictures of many sizes (latent/training/buckets.py) or networks of many widths
(mlp/buckets.py). The kinds cover the programs that short runs on RGB pictures need, and those that
decode their files.
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

# Height and width of one picture for each program of the latent codec on CPUs: up to 32, 64 and 128
# pixels, narrow ones, up to 512×768 in both orientations, others, and 1 and 3 megapixels.
CPU_SIZES = (
    (20, 20), (60, 40), (128, 100), (20, 200), (200, 20), (10, 500), (500, 10), (100, 150),
    (150, 100), (512, 768), (768, 512), (200, 200), (1024, 1024), (1776, 1776),
)  # fmt: skip
# The same on GPUs, up to 1024×1536 pixels in both orientations: up to 100,000 pixels, which have
# small networks, larger ones, and from a megapixel on, which have one more grid. Pictures that fill
# less than a fourth of their bucket are left out.
GPU_SIZES = (
    (20, 20), (60, 40), (128, 100), (128, 256), (256, 128), (256, 256), (256, 384), (384, 256),
    (225, 400), (512, 512), (512, 768), (768, 512), (768, 1024), (1024, 1024),
    (800, 1200), (1200, 800), (1024, 1536), (1536, 1024),
)  # fmt: skip
# For the MLP codec: the side of a square picture, and the width of the widest networks to compile
# for it. Small pictures are decoded in pieces of their own; wider networks are rare.
MAX_WIDTH_BY_SIDE = {32: 32, 256: 128}
LMBDA = 1e-3  # any value: programs do not depend on it


@dataclass(frozen=True)
class Kind:
    """A codec, size and target; encoding such a picture compiles the programs of this kind."""

    codec: Codec
    height: int
    width: int
    wanted: Goal

    def __str__(self) -> str:
        target_text = f", {self.wanted}" if self.codec == "mlp" else ""
        return f"{self.codec} {self.width}×{self.height}{target_text}"


def kinds(device: AnyDevice) -> list[Kind]:
    """All kinds for a device; none if its programs serve a single picture size only."""
    if not buckets.are_used_on(device):
        return []
    sizes = GPU_SIZES if device.lanes == "group" else CPU_SIZES
    result = [Kind("latent", *size, Goal("lambda", LMBDA)) for size in sizes]
    for side, max_width in MAX_WIDTH_BY_SIDE.items():
        counts = _network_bytes(_picture(side, side), max_width)
        result += [Kind("mlp", side, side, Goal("bytes", count)) for count in counts]
    return result


def _network_bytes(picture: Picture, max_width: int) -> Sequence[int]:
    """The estimated bytes of a file with the largest network of each bucket, up to a width."""
    file_sizes = []
    for width in (buckets.MIN_WIDTH, *(width for width in buckets.WIDTHS if width <= max_width)):
        shapes = (
            s for s in rate_model.shapes(picture.channels) if buckets.shared_shape(s).width == width
        )
        shape = max(shapes, key=lambda s: s.parameters)
        bits = rate_model.BITS_PER_WEIGHT * shape.parameters
        file_sizes.append(round(overhead(picture, shape) + bits / 8))
    return file_sizes


def compile_for(kind: Kind, device: AnyDevice) -> float:
    """Compile and cache all programs of a kind.

    Returns the seconds of processor time that this took, including the driver's.
    """
    before = device.compiling + device.lowering
    encoder.encode(
        _picture(kind.height, kind.width), kind.wanted, Workload(1), device, codec=kind.codec
    )
    return device.compiling + device.lowering - before


def _picture(height: int, width: int) -> Picture:
    """A smooth picture, which takes few bits."""
    y, x = np.mgrid[:height, :width]
    shades = (np.sin(y / 40 + n) + np.cos(x / 30) + 2 for n in range(3))
    return Picture(np.stack([shade * 60 for shade in shades], -1).astype(np.uint8))
