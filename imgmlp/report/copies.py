"""Pictures in a page: the codec's own file if browsers can show it, else a copy.

A copy is the decoded picture, compressed again for display with the best quality for which the page
has space. No figures are measured on copies.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, features

from imgmlp.image import psnr, to_image

Array = np.ndarray[Any, Any]

# Qualities of copies, the best first. A page uses the best one for which it has space. Originals
# keep a high quality, since everything is compared with them.
QUALITIES = (97, 90, 82, 74, 66)
ORIGINAL_QUALITIES = QUALITIES[:2]
MAX_PAGE_BYTES = 15_000_000  # should not be exceeded


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture in a page: the codec's file, or copies in several qualities, the best first."""

    media: str
    files: list[bytes] = field(repr=False)
    psnr: list[float] = field(default_factory=list)  # dB of each copy against the decoded picture

    @staticmethod
    def own(media: str, data: bytes) -> Shown:
        """The codec's own file."""
        return Shown(media, [data])

    def at(self, level: int) -> bytes:
        """The file or copy at an index of QUALITIES."""
        return self.files[min(level, len(self.files) - 1)]

    def url(self, level: int) -> str:
        return f"data:{self.media};base64,{base64.b64encode(self.at(level)).decode()}"

    def length(self, level: int) -> int:
        """Characters of the URL."""
        return len(f"data:{self.media};base64,") + 4 * -(-len(self.at(level)) // 3)


def copy_format() -> str:
    """The format of copies, by Pillow's name."""
    return "AVIF" if features.check("avif") else "WEBP"


def of(pixels: Array, qualities: Sequence[int]) -> Shown:
    """Copies of a picture, uint8 [height, width, 1 or 3]."""
    form = copy_format()
    options = {"subsampling": "4:4:4", "speed": 8} if form == "AVIF" else {"method": 4}
    copies = Shown(f"image/{form.lower()}", [])
    for quality in qualities:
        stream = io.BytesIO()
        image = to_image(pixels).convert("RGB")
        image.save(stream, form, quality=quality, **options)
        with Image.open(stream) as copy:
            decoded = np.asarray(copy.convert("RGB"))
        copies.files.append(stream.getvalue())
        copies.psnr.append(psnr(np.asarray(image), decoded))
    return copies


def best_level(shown: Iterable[Shown], max_bytes: int) -> int:
    """The index of the best of QUALITIES with which all pictures fit into `max_bytes`, or the last
    one."""
    every = list(shown)
    for number in range(len(QUALITIES)):
        if sum(one.length(number) for one in every) <= max_bytes:
            return number
    return len(QUALITIES) - 1
