"""How alike two pictures are. Everything but PSNR is a library's, which is an extra: `report`.

SSIM and MS-SSIM are those of their inventors' programs, ssim.m and msssim.m, which see luma only;
the former makes pictures smaller first, to some 256 pixels along the shorter side.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image

from imgmlp.image import psnr, to_image

Array = np.ndarray[Any, Any]

LIBRARY, PACKAGE = "blazediff_ssim", "blazediff-ssim"
LEAST = 11  # pixels along the shorter side that SSIM needs: its window
LEAST_SCALES = 176  # that MS-SSIM needs: the window, on the smallest of five scales


@dataclass(frozen=True)
class Quality:
    """How alike two pictures are; None where they are too small to say."""

    psnr: float  # dB, over all samples; inf if they are equal
    ssim: float | None
    ms_ssim: float | None


def available() -> bool:
    """Whether the library is there, and can be loaded."""
    with suppress(ImportError):
        import_module(LIBRARY)
        return True
    return False


def compare(original: Array, other: Array) -> Quality:
    """Of two pictures, uint8 [height, width, 1 or 3]."""
    height, width, _ = original.shape
    short = min(height, width)
    ssim, ms_ssim = (
        _score(name, original, other) if short >= least else None
        for name, least in (("ssim", LEAST), ("ms-ssim", LEAST_SCALES))
    )
    return Quality(psnr(original, other), ssim, ms_ssim)


def _score(metric: str, original: Array, other: Array) -> float:
    library: Any = import_module(LIBRARY)
    height, width, _ = original.shape
    result = library.compare_rgba(_rgba(original), _rgba(other), width, height, metric=metric)
    return float(result.score)


def _rgba(pixels: Array) -> bytes:
    image: Image.Image = to_image(pixels)
    return image.convert("RGBA").tobytes()


def decibels(similarity: float) -> float:
    """A similarity up to 1 on a scale of decibels, where differences near 1 are seen."""
    return -10 * math.log10(max(1 - similarity, 1e-9))
