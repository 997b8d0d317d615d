"""Pictures as a page holds them: what a codec wrote, where browsers show that, else a copy.

A copy is a picture compressed once more, as well as there is room for. Figures never come from one.
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

# Qualities of copies, the best first, of which a page takes those for which it has room; that of
# originals stays the higher one, as everything is seen beside them.
LADDER = (97, 90, 82, 74, 66)
ORIGINAL = LADDER[:2]
MOST = 15_000_000  # bytes of a page that they should not exceed together, with everything else


@dataclass(frozen=True, eq=False)
class Shown:
    """What a page may hold of a picture: one file, or several copies, the best first."""

    media: str
    files: list[bytes] = field(repr=False)
    psnr: list[float] = field(default_factory=list)  # dB of each copy, against what it stands for

    @staticmethod
    def own(media: str, data: bytes) -> Shown:
        """The codec's own file."""
        return Shown(media, [data])

    def at(self, rung: int) -> bytes:
        return self.files[min(rung, len(self.files) - 1)]

    def url(self, rung: int) -> str:
        return f"data:{self.media};base64,{base64.b64encode(self.at(rung)).decode()}"

    def length(self, rung: int) -> int:
        """Characters of its URL."""
        return len(f"data:{self.media};base64,") + 4 * -(-len(self.at(rung)) // 3)


def kind() -> str:
    """Pillow's format of copies."""
    return "AVIF" if features.check("avif") else "WEBP"


def of(pixels: Array, qualities: Sequence[int]) -> Shown:
    """Copies of a picture, uint8 [height, width, 1 or 3]."""
    form = kind()
    options = {"subsampling": "4:4:4", "speed": 8} if form == "AVIF" else {"method": 4}
    copies = Shown(f"image/{form.lower()}", [])
    for quality in qualities:
        stream = io.BytesIO()
        image = to_image(pixels).convert("RGB")
        image.save(stream, form, quality=quality, **options)
        with Image.open(stream) as copy:
            again = np.asarray(copy.convert("RGB"))
        copies.files.append(stream.getvalue())
        copies.psnr.append(psnr(np.asarray(image), again))
    return copies


def rung(shown: Iterable[Shown], room: int) -> int:
    """The best copies that fit in so many bytes of a page; the smallest, where none do."""
    every = list(shown)
    for number in range(len(LADDER)):
        if sum(one.length(number) for one in every) <= room:
            return number
    return len(LADDER) - 1
