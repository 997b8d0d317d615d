"""Whether a PNG, or one inside of an icon, has sound chunks and all of its rows.

Pillow walks through any number of chunks, decodes what a wrong checksum belies, and takes for black
what is missing where the data of pixels end early. Knows nothing of pixels.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.image_io.excess import CHUNKS as MOST_CHUNKS
from imgmlp.image_io.structure import PNG_START, Chunk, chunks, is_png
from imgmlp.text import by_command

CHUNKS = 4096  # that may be of any length; of more each has SHORTEST bytes on average
SHORTEST = 128
LAST = 64  # bytes that the last chunk of pixels may lack before it is not decoded any more
END_MISSING = "the file's end is missing, but none of its pixels"
_PIECE, _BAND = 2**16, 2**20  # bytes that are read at a time, and that are inflated
_KIND, _NUMBERED = 9, b"\3"  # where the header tells the kind of colours; those of a list
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by the kind of colours
# First column and row, and steps, of interlaced passes (PNG, section 8.2).
_WHOLE = ((0, 0, 1, 1),)
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_ICONS = ("ICO", "ICNS")  # formats that hold PNGs
_ICON, _PNGS = 2**25, 64  # bytes of an icon in which PNGs are looked for, and how many of them


def check_chunks(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG of countless chunks, and an iPhone's."""
    stream.seek(0)
    if not is_png(stream.read(len(PNG_START))):
        return
    # Of no more than that beside which `excess` refuses any.
    for count, chunk in enumerate(islice(chunks(stream, png=True), MOST_CHUNKS), 1):
        if chunk.kind == b"CgBI":
            hint = by_command("convert it first", path, "ffmpeg -i {} converted.png")
            problem = f"{path} is a PNG for iPhones (CgBI), which Pillow cannot read"
            raise PictureError(problem, hint=hint)
        if count > CHUNKS and chunk.then < SHORTEST * count:
            hint = by_command("rewrite it", path, "magick {} converted.png")
            raise PictureError(f"{path} has more than {count - 1:,} tiny chunks", hint=hint)


def check_sums(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG that ends within its pixels, and one whose pixels do not
    have their checksum, of which Pillow decodes others. It is read as a whole for that."""
    stream.seek(0)
    if not is_png(stream.read(len(PNG_START))):
        return
    for chunk in chunks(stream, png=True):
        if chunk.kind in (b"IDAT", b"fdAT") and (fault := _fault(stream, chunk)):
            raise PictureError(f"{path} is {fault}", hint="get the file again")


def check_pixels(image: Image.Image, stream: BinaryIO, path: Path, notes: list[str]) -> None:
    """Refuse, as a PictureError, an image of Pillow's from a PNG, or from an icon with PNGs, whose
    data end before the last row, or whose list of colours is missing. What ends because the file
    does, Pillow refuses itself.

    Says in `notes` if only the end of a PNG is missing.
    """
    most = image.width * image.height
    if image.format == "PNG":
        if not _check_rows(stream, path, image.tell(), most):
            notes.append(END_MISSING)
    elif image.format in _ICONS:
        stream.seek(0)
        for inner in stream.read(_ICON).split(PNG_START, _PNGS)[1:]:
            _check_rows(io.BytesIO(PNG_START + inner), path, 0, most)


def missing(count: int) -> str:
    """Says how many bytes of pixels are."""
    return f"{count:,} bytes of its pixels are missing" if count > 1 else "its last byte is missing"


class _Inflated:
    """Counts the bytes that a frame's data inflate to, as far as they are needed."""

    def __init__(self, needed: int) -> None:
        self._left = needed
        self._inflater = zlib.decompressobj()

    def ends_early(self, data: bytes) -> bool:
        """Whether they do, with more of the data. What cannot be inflated is Pillow's to refuse."""
        while self._left and not self._inflater.eof:
            try:
                rows = self._inflater.decompress(data, min(self._left, _BAND))
            except zlib.error:
                self._left = 0
                break
            self._left -= len(rows)
            data = self._inflater.unconsumed_tail
            if not rows and not data:
                break
        return self._left > 0 and self._inflater.eof


def _check_rows(stream: BinaryIO, path: Path, last: int, most: int) -> bool:
    """Of a PNG's frames up to one, of so many pixels at most; returns whether it has its end."""
    number, header, coloured, inflated = 0, b"", False, None
    for chunk in chunks(stream, png=True):
        if chunk.kind == b"IEND":
            return True
        if chunk.kind == b"IHDR":
            header = stream.read(13)
        elif chunk.kind == b"PLTE":
            coloured = True
        elif chunk.kind == b"fcTL" and inflated:  # of a frame behind the first
            header, inflated = stream.read(12)[4:] + header[8:], None
            number += 1
        elif chunk.kind in (b"IDAT", b"fdAT") and number <= last:
            if header[_KIND:][:1] == _NUMBERED and not coloured:
                raise _damaged(path, "its colours")
            inflated = inflated or _Inflated(_needed(header, most))
            before = 4 if chunk.kind == b"fdAT" else 0  # its own number
            stream.seek(before, io.SEEK_CUR)
            for data in _pieces(stream, chunk.size - before):
                if inflated.ends_early(data):
                    raise _damaged(path, "its last rows")
    return False


def _damaged(path: Path, what: str) -> PictureError:
    problem = f"{path} is damaged or truncated: {what} are missing"
    return PictureError(problem, hint="get the file again")


def _needed(header: bytes, most: int) -> int:
    """Bytes of all rows and their filters (PNG, section 7.2); 0 if the header is nonsense, or says
    more than `most` pixels, which Pillow refuses."""
    if len(header) < 13:
        return 0
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if width * height > most:
        return 0
    needed = 0
    for left, top, across, down in _ADAM7 if interlaced else _WHOLE:
        columns, rows = -((left - width) // across), -((top - height) // down)
        if columns > 0 and rows > 0:
            needed += rows * (1 + -(-columns * depth * _SAMPLES.get(kind, 0) // 8))
    return needed


def _fault(stream: BinaryIO, chunk: Chunk) -> str:
    """What is wrong with a chunk of pixels, at whose bytes the stream is; nothing if it lacks its
    last bytes only, which may tell of no pixel, or is of a frame behind the first."""
    checksum, left = zlib.crc32(chunk.kind), chunk.size
    for data in _pieces(stream, chunk.size):
        checksum, left = zlib.crc32(data, checksum), left - len(data)
    told = stream.read(4)
    if chunk.kind == b"IDAT" and left > LAST:
        return f"truncated: {missing(left)}"
    if len(told) == 4 and int.from_bytes(told) != checksum:
        return "damaged: a checksum is wrong"
    return ""


def _pieces(stream: BinaryIO, count: int) -> Iterator[bytes]:
    """So many bytes, as far as they are there."""
    while count > 0 and (data := stream.read(min(count, _PIECE))):
        yield data
        count -= len(data)
