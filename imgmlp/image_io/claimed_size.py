"""Whether what an AVIF or a WebP has coded is anywhere near as large as the file says it is.

Decoders make a small picture as large as that, lay it on a canvas, or make room for what is not
there. Knows nothing of pixels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.image_io.structure import chunks

FREE = 2**20  # pixels of an AVIF of which nothing is asked
ENLARGED = 4  # times the pixels that are coded; sound files have as many
CANVAS = 2**24  # pixels of an animated WebP of which nothing is asked
COVERED = 16  # times the pixels of its largest frame
_PARTS = 8  # of a frame of a WebP, at most, in which its picture is looked for: the first or second
_HEAD = 2**24  # bytes in which an AVIF is looked at
_HEADERS = 2**12  # that are looked at in these bytes, and what looks like one
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
    elif image.format == "WEBP":
        pictures = list(_coded(stream))
        coded = max((one.width * one.height for one in pictures), default=said)
        _refuse_if(said > CANVAS and said > COVERED * coded, image, path)
        for one in pictures:
            one.check(path)


def _refuse_if(wrong: bool, image: Image.Image, path: Path) -> None:
    if wrong:
        size = f"{image.width}×{image.height}"
        problem = f"{path} claims to have {size} pixels but holds a far smaller picture"
        raise PictureError(problem, hint="get the file again")


def _sequences(head: bytes) -> list[int]:
    """Pixels of the largest frame that each sequence header of an AVIF allows; of none in doubt."""
    headers = islice(_SEQUENCE.finditer(head), _HEADERS)
    try:
        return [_most(_Bits(head[one.end() : one.end() + one[1][0]])) for one in headers]
    except ValueError:
        return []


def _parts(head: bytes) -> int:
    """Of how many pictures an AVIF's can be made, at most: more than one where any is a grid."""
    kinds = [item[1] for item in _ITEM.finditer(head)]
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


@dataclass(frozen=True)
class _Coded:
    """A picture in a WebP, alone or a frame of several."""

    width: int
    height: int
    size: int  # bytes
    lossy: bool

    def check(self, path: Path) -> None:
        """Refuse, as a PictureError, a lossy one of too few bytes.

        A block of 16×16 pixels names two ways to predict it, in more than 0.8 bits each: the
        probabilities of these are fixed (RFC 6386, 11.2). A lossless one may take no bits at all.
        """
        if self.lossy and 8 * self.size < -(-self.width // 16) * -(-self.height // 16):
            problem = f"{path} is damaged or truncated: its {self.size:,} coded bytes cannot hold "
            problem += f"{self.width}×{self.height} pixels"
            raise PictureError(problem, hint="get the file again")


def _coded(stream: BinaryIO) -> Iterator[_Coded]:
    """The pictures of a WebP, as large as each says itself (RFC 6386, 9.1; RFC 9649, 3.4)."""
    for kind, size, head in _inner(stream):
        if kind == b"VP8 " and head[3:6] == b"\x9d\x01\x2a":
            width, height = (int.from_bytes(head[i : i + 2], "little") & 0x3FFF for i in (6, 8))
            yield _Coded(width, height, size, lossy=True)
        elif kind == b"VP8L" and head[:1] == b"\x2f":
            bits = int.from_bytes(head[1:5], "little")
            yield _Coded((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, size, lossy=False)


def _inner(stream: BinaryIO) -> Iterator[tuple[bytes, int, bytes]]:
    """Kind, size and first bytes of the parts of a WebP, and of those in its frames."""
    for chunk in chunks(stream, png=False):
        if chunk.type != b"ANMF":
            yield chunk.type, chunk.size, stream.read(10)
            continue
        at = stream.tell() + 16
        for _ in range(_PARTS):
            if at >= chunk.next_offset or len(head := _read(stream, at)) < 8:
                break
            size = int.from_bytes(head[4:8], "little")
            yield head[:4], size, head[8:]
            at += 8 + size + size % 2


def _read(stream: BinaryIO, at: int) -> bytes:
    stream.seek(at)
    return stream.read(18)
