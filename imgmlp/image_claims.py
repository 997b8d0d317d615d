"""What picture files claim, beside what their bytes can hold: looked at before anything is decoded.

Knows nothing of pixels. Pillow tells none of this: it fills what a JPEG lacks with gray, and walks
through any number of scans and chunks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.image_parts import END, PNG_START, SCAN, Chunk, chunks, is_png, segments, tile_parts
from imgmlp.text import quoted

SCANS = 64  # of a JPEG; an encoder writes some ten
CHUNKS = 4096  # of a PNG that may be of any length; of more each has SHORTEST bytes on average
SHORTEST = 128
LAST = 64  # bytes that a PNG's last chunk of pixels may lack before it is not decoded any more
JPEG_END = b"\xff\xd9"
# Bits of a JPEG's block, by the marker of how it is coded: two codes, or one in the first scan of a
# progressive one. An arithmetic coder needs next to nothing.
_LEAST = {0xC0: 2, 0xC1: 2, 0xC2: 1, 0xC9: 0, 0xCA: 0, 0xCB: 0}
# What no two JPEGs that lack pixels decode alike: no bit is the same at first, where but a few may
# be missing, and no pattern later, which codes that begin one bit later soon read alike.
_FILLERS = (
    b"\x55" * 64 + bytes(97 * i % 251 for i in range(4096)),
    b"\xaa" * 64 + bytes(59 * i % 241 for i in range(4096)),
)
LARGE = 2**24  # pixels of a JPEG without an end, which is compared as a draft first
_DRAFT = 8  # times smaller: a block's mean
_PROGRESSIVE_DRAFT = 2  # which shows what is refined last
_BAND = 2**20  # pixels that are compared at a time, or bytes that are read

Open = Callable[[bytes], Image.Image]


@dataclass(frozen=True)
class Jpeg:
    """A JPEG's bytes up to its end marker, if it has one."""

    body: bytes
    has_end: bool
    scans: int
    coded: int  # bytes of its scans
    least: int  # bits of a block

    def check(self, size: tuple[int, int], path: Path) -> None:
        """Refuse, as a PictureError, what is too short for its size, or takes far too long."""
        width, height = size
        if 8 * self.coded < self.least * -(-width // 8) * -(-height // 8):
            problem = f"{path} is damaged or truncated: its {self.coded:,} coded bytes cannot hold "
            problem += f"{width}×{height} pixels"
            raise PictureError(problem, hint="get the file again")
        if self.scans > SCANS:
            hint = f"write it anew, for example with `magick {quoted(path)} converted.png`"
            problem = f"{path} has {self.scans:,} scans, and {SCANS} are the limit"
            raise PictureError(problem, hint=hint)

    def complete(self, image: Image.Image, opened: Open) -> Image.Image:
        """The picture, loaded, if its pixels are the same whatever follows. Raises OSError."""
        if not self.has_end and image.width * image.height > LARGE:
            _compare(*(_draft(one) for one in self._filled(opened)))
        first, second = self._filled(opened)
        if self.has_end:
            first = image
        _compare(first, second)
        return first

    def _filled(self, opened: Open) -> tuple[Image.Image, Image.Image]:
        """The same with two things where the end is, not yet decoded."""
        body = self.body.rstrip(b"\xff")
        first, second = (opened(body + filler + JPEG_END) for filler in _FILLERS)
        return first, second


def jpeg(data: bytes) -> Jpeg:
    """What there is of a JPEG."""
    scans, coded, least, scan = 0, 0, 1, None
    for one in segments(data):
        coded += 0 if scan is None else one.gap
        if one.kind == END:
            return Jpeg(data[: one.marker], True, scans, coded, least)
        scan = one.begin + one.size if one.kind == SCAN else None
        scans += one.kind == SCAN
        least = _LEAST.get(one.kind, least)
    coded += 0 if scan is None else max(0, len(data) - scan)
    return Jpeg(data, False, scans, coded, least)


def _draft(image: Image.Image) -> Image.Image:
    """The same, to be decoded smaller: in a fourth or half of the time."""
    scale = _PROGRESSIVE_DRAFT if "progressive" in image.info else _DRAFT
    image.draft(image.mode, (image.width // scale, image.height // scale))
    return image


def _compare(first: Image.Image, second: Image.Image) -> None:
    """Raises OSError if they differ."""
    first.load()
    if not _same(first, second):
        raise OSError("some of its pixels are missing")


def _same(first: Image.Image, second: Image.Image) -> bool:
    """Whether two pictures have the same pixels: a few rows at a time, as they may be large."""
    step = max(1, _BAND // first.width)
    tops = range(0, first.height, step)
    boxes = ((0, top, first.width, min(top + step, first.height)) for top in tops)
    return all(first.crop(box).tobytes() == second.crop(box).tobytes() for box in boxes)


def check_png(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG of countless chunks, an iPhone's, one that ends within its
    pixels, and one whose pixels do not have their checksum, of which Pillow decodes others."""
    stream.seek(0)
    if not is_png(stream.read(len(PNG_START))):
        return
    for count, chunk in enumerate(chunks(stream, png=True), 1):
        if chunk.kind == b"CgBI":
            hint = f"convert it first, for example with `ffmpeg -i {quoted(path)} converted.png`"
            problem = f"{path} is a PNG for iPhones (CgBI), which Pillow cannot read"
            raise PictureError(problem, hint=hint)
        if count > CHUNKS and chunk.then < SHORTEST * count:
            hint = f"write it anew, for example with `magick {quoted(path)} converted.png`"
            raise PictureError(f"{path} has more than {count - 1:,} tiny chunks", hint=hint)
        if chunk.kind in (b"IDAT", b"fdAT") and (fault := _fault(stream, chunk)):
            raise PictureError(f"{path} is {fault}", hint="get the file again")


def check_jpeg2000(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a JPEG 2000 that ends within the part of a tile."""
    end = max(tile_parts(stream), default=0)
    missing = end - stream.seek(0, 2)
    if missing > 0:
        problem = f"{path} is truncated: {_missing(missing)}"
        raise PictureError(problem, hint="get the file again")


def _missing(count: int) -> str:
    return f"{count:,} bytes of its pixels are missing" if count > 1 else "its last byte is missing"


def _fault(stream: BinaryIO, chunk: Chunk) -> str:
    """What is wrong with a chunk of pixels, at whose bytes the stream is; nothing if it lacks its
    last bytes only, which may tell of no pixel, or is of a frame behind the first."""
    found, left = zlib.crc32(chunk.kind), chunk.size
    while left and (data := stream.read(min(left, _BAND))):
        found, left = zlib.crc32(data, found), left - len(data)
    told = stream.read(4)
    if chunk.kind == b"IDAT" and left > LAST:
        return f"truncated: {_missing(left)}"
    if len(told) == 4 and int.from_bytes(told) != found:
        return "damaged: a checksum is wrong"
    return ""
