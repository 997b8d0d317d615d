"""Whether what an AVIF or a WebP has coded is anywhere near as large as the file says it is.

Decoders make a small picture as large as that, or lay it on a canvas. Knows nothing of pixels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.image_parts import chunks

FREE = 2**20  # pixels of an AVIF of which nothing is asked
ENLARGED = 4  # times the pixels that are coded; sound files have as many
CANVAS = 2**24  # pixels of an animated WebP of which nothing is asked
COVERED = 16  # times the pixels of its largest frame
_HEAD = 2**24  # bytes in which an AVIF is looked at
_SEQUENCE = re.compile(rb"(?:mdat(?:.{8})?|\x12\0)\x0a([\x04-\x7f])", re.DOTALL)
_ITEM = re.compile(rb"infe(?:\x02.{7}|\x03.{9})(av01|grid)", re.DOTALL)


def check(image: Image.Image, stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, what can only be a claim."""
    said = image.width * image.height
    if image.format == "AVIF" and said > FREE:
        stream.seek(0)
        head = stream.read(_HEAD)
        coded = max(_sequences(head), default=said) * _parts(head)
        _refuse_if(said > ENLARGED * coded, image, path)
    elif image.format == "WEBP" and said > CANVAS:
        coded = max(_frames(stream), default=said)
        _refuse_if(said > COVERED * coded, image, path)


def _refuse_if(wrong: bool, image: Image.Image, path: Path) -> None:
    if wrong:
        size = f"{image.width}×{image.height}"
        problem = f"{path} says that it has {size} pixels, and holds a far smaller picture"
        raise PictureError(problem, hint="get the file again")


def _sequences(head: bytes) -> list[int]:
    """Pixels of the largest frame that each sequence header of an AVIF allows; of none in doubt."""
    found = _SEQUENCE.finditer(head)
    try:
        return [_most(_Bits(head[one.end() : one.end() + one[1][0]])) for one in found]
    except ValueError:
        return []


def _parts(head: bytes) -> int:
    """Of how many pictures an AVIF's can be made, at most: more than one where any is a grid."""
    kinds = [found[1] for found in _ITEM.finditer(head)]
    return max(1, kinds.count(b"av01")) if b"grid" in kinds else 1


class _Bits:
    """Those of some bytes, from the first on."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, count: int) -> int:
        """A number of so many bits. Raises ValueError at the end."""
        self._left -= count
        if self._left < 0:
            raise ValueError
        return self._bits >> self._left & (1 << count) - 1


def _most(bits: _Bits) -> int:
    """Pixels that a sequence header allows (AV1, 5.5.1). Raises ValueError if it is in doubt."""
    bits.take(4)  # profile, and whether it is a still picture
    if bits.take(1):  # reduced
        bits.take(5)
    else:
        if bits.take(1):  # times, which a picture has not
            raise ValueError
        delayed = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if delayed and bits.take(1):
                bits.take(4)
    across, down = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(across) + 1) * (bits.take(down) + 1)


def _frames(stream: BinaryIO) -> Iterator[int]:
    """Pixels of each frame of an animated WebP."""
    for chunk in chunks(stream, png=False):
        if chunk.kind == b"ANMF" and len(head := stream.read(12)) == 12:
            width, height = (int.from_bytes(head[i : i + 3], "little") + 1 for i in (6, 9))
            yield width * height
