"""What picture files claim, beside what their bytes can hold: looked at before anything is decoded.

Knows how a JPEG and a PNG are divided, and nothing of their pixels. Pillow tells none of this: it
fills what a JPEG lacks with gray, and walks through any number of scans and chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.text import quoted

SCANS = 64  # of a JPEG; an encoder writes some ten
CHUNKS = 4096  # of a PNG that may be of any length; of more each has SHORTEST bytes on average
SHORTEST = 128
JPEG_END = b"\xff\xd9"
PNG_START = b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")  # but for those inside of a scan
_SCAN, _END, _BARE, _ARITHMETIC = 0xDA, 0xD9, (0x01, 0xD8), range(0xC9, 0xCC)
_FILLERS = b"\x55" * 64, b"\xaa" * 64  # which no two JPEGs that lack pixels decode alike
_BAND = 2**20  # pixels that are compared at a time

Open = Callable[[bytes], Image.Image]


@dataclass(frozen=True)
class Jpeg:
    """A JPEG's bytes up to its end marker, if it has one."""

    body: bytes
    has_end: bool
    scans: int
    arithmetic: bool  # coded so, which needs next to nothing for a block

    def check(self, size: tuple[int, int], path: Path) -> None:
        """Refuse, as a PictureError, what is too short for its size, or takes far too long."""
        width, height = size
        blocks = -(-width // 8) * -(-height // 8)  # each takes a bit at least
        if not self.arithmetic and 8 * len(self.body) < blocks:
            problem = f"{path} is damaged or truncated: its {len(self.body):,} bytes cannot hold "
            raise PictureError(f"{problem}{width}×{height} pixels", hint="get the file again")
        if self.scans > SCANS:
            hint = f"write it anew, for example with `magick {quoted(path)} converted.png`"
            problem = f"{path} has {self.scans:,} scans, and {SCANS} are the limit"
            raise PictureError(problem, hint=hint)

    def complete(self, image: Image.Image, opened: Open) -> Image.Image:
        """The picture, loaded, if its pixels are the same whatever follows. Raises OSError."""
        body = self.body.rstrip(b"\xff")
        first, second = (opened(body + filler + JPEG_END) for filler in _FILLERS)
        if self.has_end:
            first = image
        first.load()
        if not _same(first, second):
            raise OSError("some of its pixels are missing")
        return first


def jpeg(data: bytes) -> Jpeg:
    """How a JPEG is divided (ITU T.81, annex B)."""
    at, scans, arithmetic = 0, 0, False
    while found := _MARKER.search(data, at):
        kind, at = found[1][0], found.end()
        if kind == _END:
            return Jpeg(data[: found.start()], True, scans, arithmetic)
        if kind not in _BARE:
            scans += kind == _SCAN
            arithmetic |= kind in _ARITHMETIC
            at += int.from_bytes(data[at : at + 2])
    return Jpeg(data, False, scans, arithmetic)


def _same(first: Image.Image, second: Image.Image) -> bool:
    """Whether two pictures have the same pixels: a few rows at a time, as they may be large."""
    step = max(1, _BAND // first.width)
    tops = range(0, first.height, step)
    boxes = ((0, top, first.width, min(top + step, first.height)) for top in tops)
    return all(first.crop(box).tobytes() == second.crop(box).tobytes() for box in boxes)


def check_png(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG of countless chunks, and an iPhone's."""
    stream.seek(0)
    if stream.read(len(PNG_START)) != PNG_START:
        return
    at, count, head = len(PNG_START), 0, stream.read(8)
    while len(head) == 8 and head[4:] != b"IEND":
        if head[4:] == b"CgBI":
            hint = f"convert it first, for example with `ffmpeg -i {quoted(path)} converted.png`"
            problem = f"{path} is a PNG for iPhones (CgBI), which Pillow cannot read"
            raise PictureError(problem, hint=hint)
        count, at = count + 1, at + 12 + int.from_bytes(head[:4])
        if count > CHUNKS and at < SHORTEST * count:
            hint = f"write it anew, for example with `magick {quoted(path)} converted.png`"
            raise PictureError(f"{path} has more than {count - 1:,} tiny chunks", hint=hint)
        stream.seek(at)
        head = stream.read(8)
