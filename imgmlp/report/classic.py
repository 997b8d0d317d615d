"""Other codecs, as Pillow writes them: at a setting of theirs, or with as many bytes as wanted.

Knows nothing of imgmlp's own codecs.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image, features

from imgmlp import image as pictures

Array = np.ndarray[Any, Any]

PLUGIN = "pillow_jxl"  # which teaches Pillow JPEG XL, if it is installed
NEAR = 3  # settings to either side of the best that are tried: sizes do not always rise with them


@dataclass(frozen=True)
class Classic:
    """A codec of Pillow's, and how it is asked."""

    name: str
    format: str  # Pillow's
    how: str  # for people
    options: Mapping[str, Any]
    sweep: tuple[int, ...]  # values of `quality` that make a curve
    qualities: tuple[int, int] = (0, 100)  # the least and the most there are
    media: str | None = None  # the type by which browsers know it, if they show it


_IQ, _PSNR = {"tune": "iq"}, {"tune": "psnr"}
CODECS = {
    "jpeg420": Classic(
        name="JPEG",
        format="JPEG",
        how="4:2:0, optimised Huffman tables",
        options={"subsampling": 2, "optimize": True},
        sweep=(5, 8, 12, 17, 25, 35, 50, 65, 75),
        qualities=(1, 100),
        media="image/jpeg",
    ),
    "webp": Classic(
        name="WebP",
        format="WEBP",
        how="lossy, method 6",
        options={"method": 6},
        sweep=(1, 5, 10, 20, 35, 50, 65, 75),
        media="image/webp",
    ),
    "avif": Classic(  # Pillow's own choices, but for the name of the tune
        name="AVIF iq",
        format="AVIF",
        how="4:2:0, tune=iq, speed 6",
        options={"speed": 6, "advanced": _IQ},
        sweep=(10, 20, 30, 40, 50, 60, 70),
        qualities=(0, 99),  # 100 is lossless, which it refuses with a tune for eyes
        media="image/avif",
    ),
    "avif444": Classic(
        name="AVIF psnr",
        format="AVIF",
        how="4:4:4, tune=psnr, speed 6",
        options={"speed": 6, "subsampling": "4:4:4", "advanced": _PSNR},
        sweep=(10, 20, 30, 40, 50, 60, 70),
        media="image/avif",
    ),
    "jxl": Classic(  # which Chrome and Firefox do not show
        name="JPEG XL",
        format="JXL",
        how="VarDCT, effort 7",
        options={"effort": 7},
        sweep=(5, 15, 25, 40, 55, 70, 80),
        qualities=(0, 99),  # 100 is lossless, which it refuses with an effort
    ),
}


@dataclass(frozen=True, eq=False)
class Coded:
    """A file of a picture, and what became of its pixels."""

    quality: int
    bytes: bytes = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    encode_seconds: float
    decode_seconds: float


@cache
def usable() -> dict[str, Classic]:
    """The codecs that Pillow has here, with these options."""
    return {key: codec for key, codec in CODECS.items() if _works(codec)}


def _works(codec: Classic) -> bool:
    if codec.format == "JXL":
        try:
            import_module(PLUGIN)  # which tells Pillow of itself
        except ImportError:
            return False
    elif not features.check({"JPEG": "jpg"}.get(codec.format, codec.format.lower())):
        return False
    try:
        for quality in codec.qualities:
            encode(codec, np.zeros((16, 16, 3), np.uint8), quality)
    except (OSError, ValueError, KeyError, RuntimeError):  # too old for an option, or too new
        return False
    return True


def encode(codec: Classic, pixels: Array, quality: int) -> Coded:
    """A picture, uint8 [height, width, 1 or 3], at one of the codec's settings."""
    image, stream = pictures.to_image(pixels), io.BytesIO()
    began = time.perf_counter()
    image.save(stream, codec.format, quality=quality, **codec.options)
    written = time.perf_counter()
    with Image.open(stream) as opened:
        opened.load()
        read = time.perf_counter()
        decoded = np.asarray(opened.convert(image.mode)).reshape(pixels.shape)
    return Coded(quality, stream.getvalue(), decoded, written - began, read - written)


class Sized:
    """One picture by one codec, with as many bytes as are wanted; what was tried is kept."""

    def __init__(self, codec: Classic, pixels: Array) -> None:
        self._codec, self._pixels = codec, pixels
        self._tried: dict[int, Coded] = {}

    def nearest(self, wanted: int) -> Coded:
        """The file whose size is the nearest to so many bytes, by ratio, of those that were tried.

        Of equal ones it is that of the highest PSNR.
        """
        for quality in self._looked_at(wanted):
            self._try(quality)
        while beside := self._beside(best := self._best(wanted)):
            for quality in beside:
                self._try(quality)
        return best

    def _try(self, quality: int) -> None:
        self._tried[quality] = encode(self._codec, self._pixels, quality)

    def _best(self, wanted: int) -> Coded:
        def off(made: Coded) -> float:
            return abs(math.log(len(made.bytes) / wanted))

        least = min(map(off, self._tried.values()))
        equal = [made for made in self._tried.values() if off(made) == least]
        return max(equal, key=lambda made: pictures.psnr(self._pixels, made.pixels))

    def _beside(self, coded: Coded) -> list[int]:
        """Settings next to that of a file which were not tried yet."""
        low, high = self._codec.qualities
        first, last = max(low, coded.quality - NEAR), min(high, coded.quality + NEAR)
        return [quality for quality in range(first, last + 1) if quality not in self._tried]

    def _looked_at(self, wanted: int) -> Iterator[int]:
        """Settings to try: into the middle between those known to be too small and too large."""
        low, high = self._codec.qualities
        while low <= high:
            known = self._tried.items()
            low = max([low, *(q + 1 for q, c in known if len(c.bytes) < wanted)])
            high = min([high, *(q - 1 for q, c in known if len(c.bytes) >= wanted)])
            if low <= high:
                yield (low + high) // 2
