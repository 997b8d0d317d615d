"""Other codecs through Pillow: encode at a quality setting, or to a number of bytes.

It knows nothing of imgmlp's own codecs.
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

JXL_PLUGIN = "pillow_jxl"  # adds JPEG XL to Pillow if it is installed
# Settings tried on either side of the best one, as sizes do not always increase with them.
NEIGHBOURING_SETTINGS = 3


@dataclass(frozen=True)
class Classic:
    """A codec of Pillow and its options."""

    name: str
    format: str  # Pillow's name
    how: str  # a description of the options
    options: Mapping[str, Any]
    sweep: tuple[int, ...]  # values of `quality` for a curve
    qualities: tuple[int, int] = (0, 100)  # lowest and highest
    media: str | None = None  # media type, if browsers show the format


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
    "avif": Classic(  # Pillow's defaults, with the tune named
        name="AVIF iq",
        format="AVIF",
        how="4:2:0, tune=iq, speed 6",
        options={"speed": 6, "advanced": _IQ},
        sweep=(10, 20, 30, 40, 50, 60, 70),
        qualities=(0, 99),  # 100 is lossless, which is refused with tune=iq
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
    "jxl": Classic(  # Chrome and Firefox do not show it
        name="JPEG XL",
        format="JXL",
        how="VarDCT, effort 7",
        options={"effort": 7},
        sweep=(5, 15, 25, 40, 55, 70, 80),
        qualities=(0, 99),  # 100 is lossless, which is refused with an effort
    ),
}


@dataclass(frozen=True, eq=False)
class Coded:
    """A file of a picture, and the pixels that it decodes to."""

    quality: int
    bytes: bytes = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    encode_seconds: float
    decode_seconds: float


@cache
def usable() -> dict[str, Classic]:
    """The codecs that Pillow supports here with these options."""
    return {key: codec for key, codec in CODECS.items() if _works(codec)}


def _works(codec: Classic) -> bool:
    if codec.format == "JXL":
        try:
            import_module(JXL_PLUGIN)  # registers itself with Pillow
        except ImportError:
            return False
    elif not features.check({"JPEG": "jpg"}.get(codec.format, codec.format.lower())):
        return False
    try:
        for quality in codec.qualities:
            encode(codec, np.zeros((16, 16, 3), np.uint8), quality)
    except (OSError, ValueError, KeyError, RuntimeError):  # the version lacks an option
        return False
    return True


def encode(codec: Classic, pixels: Array, quality: int) -> Coded:
    """Encode and decode a picture, uint8 [height, width, 1 or 3], at a quality setting."""
    image, stream = pictures.to_image(pixels), io.BytesIO()
    began = time.perf_counter()
    image.save(stream, codec.format, quality=quality, **codec.options)
    encoded_at = time.perf_counter()
    with Image.open(stream) as opened:
        opened.load()
        decoded_at = time.perf_counter()
        decoded = np.asarray(opened.convert(image.mode)).reshape(pixels.shape)
    return Coded(quality, stream.getvalue(), decoded, encoded_at - began, decoded_at - encoded_at)


class SizeSearch:
    """Searches for the setting of a codec that gives a number of bytes for one picture; files that
    were tried are kept."""

    def __init__(self, codec: Classic, pixels: Array) -> None:
        self._codec, self._pixels = codec, pixels
        self._tried: dict[int, Coded] = {}

    def nearest(self, wanted: int) -> Coded:
        """The file whose size has the ratio nearest to 1 to the wanted bytes.

        Of several such files it is the one with the highest PSNR.
        """
        for quality in self._bisection(wanted):
            self._try(quality)
        while untried := self._untried_near(best := self._best(wanted)):
            for quality in untried:
                self._try(quality)
        return best

    def _try(self, quality: int) -> None:
        self._tried[quality] = encode(self._codec, self._pixels, quality)

    def _best(self, wanted: int) -> Coded:
        def distance(made: Coded) -> float:
            return abs(math.log(len(made.bytes) / wanted))

        least = min(map(distance, self._tried.values()))
        equal = [made for made in self._tried.values() if distance(made) == least]
        return max(equal, key=lambda made: pictures.psnr(self._pixels, made.pixels))

    def _untried_near(self, coded: Coded) -> list[int]:
        """Settings next to that of a file that were not tried yet."""
        low, high = self._codec.qualities
        first, last = (
            max(low, coded.quality - NEIGHBOURING_SETTINGS),
            min(high, coded.quality + NEIGHBOURING_SETTINGS),
        )
        return [quality for quality in range(first, last + 1) if quality not in self._tried]

    def _bisection(self, wanted: int) -> Iterator[int]:
        """Settings to try, by bisection between those that give too few bytes and too many."""
        low, high = self._codec.qualities
        while low <= high:
            tried = self._tried.items()
            low = max([low, *(q + 1 for q, c in tried if len(c.bytes) < wanted)])
            high = min([high, *(q - 1 for q, c in tried if len(c.bytes) >= wanted)])
            if low <= high:
                yield (low + high) // 2
