"""Similarity of two pictures. SSIM and MS-SSIM come from a library of the extra `report`.

They follow the programs of their inventors, ssim.m and msssim.m, which see luma only. The former
first downscales pictures to about 256 pixels along the shorter side.
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
# Pixels along the shorter side that a metric needs: its window, for MS-SSIM on the smallest of five
# scales.
MIN_SSIM_SIDE = 11
MIN_MS_SSIM_SIDE = 176


@dataclass(frozen=True)
class Quality:
    """The similarity of two pictures; None if they are too small for a metric."""

    psnr: float  # dB, over all samples; inf if they are equal
    ssim: float | None
    ms_ssim: float | None


def available() -> bool:
    """Whether the library can be imported."""
    with suppress(ImportError):
        import_module(LIBRARY)
        return True
    return False


def compare(original: Array, other: Array) -> Quality:
    """Compare two pictures, uint8 [height, width, 1 or 3]."""
    height, width, _ = original.shape
    short = min(height, width)
    ssim, ms_ssim = (
        _score(name, original, other) if short >= least else None
        for name, least in (("ssim", MIN_SSIM_SIDE), ("ms-ssim", MIN_MS_SSIM_SIDE))
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
    """A similarity up to 1 in dB, which spreads the values near 1."""
    return -10 * math.log10(max(1 - similarity, 1e-9))
