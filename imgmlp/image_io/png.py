"""Checks of PNGs, also of those in icons: that their chunks are sound and all rows are present.

Pillow reads any number of chunks, decodes pixels whose checksum is wrong, and makes rows black that
are missing because the compressed data end early. Sections are those of the PNG specification (W3C,
second edition).
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
from imgmlp.image_io.parsing_limits import MAX_CHUNKS
from imgmlp.image_io.structure import PNG_SIGNATURE, Chunk, chunks, is_png
from imgmlp.text import by_command

MAX_TINY_CHUNKS = 4096  # chunks of any size
MIN_CHUNK_BYTES = 128  # on average, of a PNG with more chunks
MAX_MISSING_BYTES = 64  # at the end of the last IDAT chunk; if more are missing it is not decoded
END_MISSING = "the file's end is missing, but none of its pixels"
_READ_BYTES = 2**16  # at a time
_INFLATE_BYTES = 2**20  # at a time
_COLOUR_TYPE_OFFSET = 9  # in IHDR's data
_INDEXED_COLOUR = b"\3"  # the colour type that needs a palette (PLTE)
_SAMPLES_BY_COLOUR_TYPE = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # per pixel
# First column, first row, column step and row step of each pass (section 8.2).
_NOT_INTERLACED = ((0, 0, 1, 1),)
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_ICON_FORMATS = ("ICO", "ICNS")  # Pillow's names of formats that can hold PNGs
_MAX_ICON_BYTES = 2**25  # in which PNGs are searched
_MAX_ICON_PNGS = 64


def check_chunks(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG of very many tiny chunks, and Apple's CgBI variant."""
    stream.seek(0)
    if not is_png(stream.read(len(PNG_SIGNATURE))):
        return
    # parsing_limits refuses files with more chunks than MAX_CHUNKS.
    for count, chunk in enumerate(islice(chunks(stream, png=True), MAX_CHUNKS), 1):
        if chunk.type == b"CgBI":
            hint = by_command("convert it first", path, "ffmpeg -i {} converted.png")
            problem = f"{path} is a PNG for iPhones (CgBI), which Pillow cannot read"
            raise PictureError(problem, hint=hint)
        if count > MAX_TINY_CHUNKS and chunk.next_offset < MIN_CHUNK_BYTES * count:
            hint = by_command("rewrite it", path, "magick {} converted.png")
            raise PictureError(f"{path} has more than {count - 1:,} tiny chunks", hint=hint)


def check_pixel_checksums(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PNG that ends within its pixels or has a wrong checksum of them.

    Reads the whole file.
    """
    stream.seek(0)
    if not is_png(stream.read(len(PNG_SIGNATURE))):
        return
    for chunk in chunks(stream, png=True):
        if chunk.type in (b"IDAT", b"fdAT") and (damage := _damage_of(stream, chunk)):
            raise PictureError(f"{path} is {damage}", hint="get the file again")


def check_pixels(image: Image.Image, stream: BinaryIO, path: Path, notes: list[str]) -> None:
    """Refuse, as a PictureError, a PNG, or an icon with PNGs, whose compressed data end before the
    last row or whose palette is missing. `image` is the opened file.

    Appends to `notes` if only the end of a PNG is missing. Pillow itself refuses data that are
    incomplete because the file ends.
    """
    max_pixels = image.width * image.height
    if image.format == "PNG":
        if not _check_rows(stream, path, image.tell(), max_pixels):
            notes.append(END_MISSING)
    elif image.format in _ICON_FORMATS:
        stream.seek(0)
        for inner in stream.read(_MAX_ICON_BYTES).split(PNG_SIGNATURE, _MAX_ICON_PNGS)[1:]:
            _check_rows(io.BytesIO(PNG_SIGNATURE + inner), path, 0, max_pixels)


def missing_bytes(count: int) -> str:
    """A message that the last `count` bytes of pixels are missing."""
    return f"{count:,} bytes of its pixels are missing" if count > 1 else "its last byte is missing"


class _RowCounter:
    """Inflates a frame's data and counts the bytes, until there are enough for all rows."""

    def __init__(self, needed_bytes: int) -> None:
        self._remaining_bytes = needed_bytes
        self._inflater = zlib.decompressobj()

    def ends_early(self, data: bytes) -> bool:
        """Whether the zlib stream, continued by `data`, ends before the last row.

        False for data that cannot be inflated: Pillow refuses them.
        """
        while self._remaining_bytes and not self._inflater.eof:
            try:
                size = min(self._remaining_bytes, _INFLATE_BYTES)
                rows = self._inflater.decompress(data, size)
            except zlib.error:
                self._remaining_bytes = 0
                break
            self._remaining_bytes -= len(rows)
            data = self._inflater.unconsumed_tail
            if not rows and not data:
                break
        return self._remaining_bytes > 0 and self._inflater.eof


def _check_rows(stream: BinaryIO, path: Path, last_frame: int, max_pixels: int) -> bool:
    """Check the frames of a PNG up to `last_frame`, counted from 0. Returns whether the file has
    its IEND chunk."""
    frame, header, has_palette, counter = 0, b"", False, None
    for chunk in chunks(stream, png=True):
        if chunk.type == b"IEND":
            return True
        if chunk.type == b"IHDR":
            header = stream.read(13)
        elif chunk.type == b"PLTE":
            has_palette = True
        elif chunk.type == b"fcTL" and counter:  # begins a frame after the first
            header, counter = stream.read(12)[4:] + header[8:], None  # its own width and height
            frame += 1
        elif chunk.type in (b"IDAT", b"fdAT") and frame <= last_frame:
            if header[_COLOUR_TYPE_OFFSET:][:1] == _INDEXED_COLOUR and not has_palette:
                raise _missing(path, "its colours")
            counter = counter or _RowCounter(_bytes_of_rows(header, max_pixels))
            prefix = 4 if chunk.type == b"fdAT" else 0  # bytes of the sequence number
            stream.seek(prefix, io.SEEK_CUR)
            for data in _pieces(stream, chunk.size - prefix):
                if counter.ends_early(data):
                    raise _missing(path, "its last rows")
    return False


def _missing(path: Path, what: str) -> PictureError:
    problem = f"{path} is damaged or truncated: {what} are missing"
    return PictureError(problem, hint="get the file again")


def _bytes_of_rows(header: bytes, max_pixels: int) -> int:
    """Bytes of all rows and their filter types (section 7.2), by the data of IHDR.

    0 if the header is damaged or declares more than `max_pixels`, which Pillow refuses.
    """
    if len(header) < 13:
        return 0
    width, height, depth, colour_type, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if width * height > max_pixels:
        return 0
    samples = _SAMPLES_BY_COLOUR_TYPE.get(colour_type, 0)
    needed_bytes = 0
    for left, top, column_step, row_step in _ADAM7 if interlaced else _NOT_INTERLACED:
        columns, rows = -((left - width) // column_step), -((top - height) // row_step)
        if columns > 0 and rows > 0:
            needed_bytes += rows * (1 + -(-columns * depth * samples // 8))
    return needed_bytes


def _damage_of(stream: BinaryIO, chunk: Chunk) -> str:
    """What is wrong with a chunk of pixels, at whose data the stream is; "" if nothing.

    A truncated chunk is accepted if only its last bytes are missing, which may hold no pixel, or if
    it belongs to a frame after the first.
    """
    checksum, remaining_bytes = zlib.crc32(chunk.type), chunk.size
    for data in _pieces(stream, chunk.size):
        checksum, remaining_bytes = zlib.crc32(data, checksum), remaining_bytes - len(data)
    stored_checksum = stream.read(4)
    if chunk.type == b"IDAT" and remaining_bytes > MAX_MISSING_BYTES:
        return f"truncated: {missing_bytes(remaining_bytes)}"
    if len(stored_checksum) == 4 and int.from_bytes(stored_checksum) != checksum:
        return "damaged: a checksum is wrong"
    return ""


def _pieces(stream: BinaryIO, count: int) -> Iterator[bytes]:
    """The next `count` bytes of a stream, as far as they are present, piece by piece."""
    while count > 0 and (data := stream.read(min(count, _READ_BYTES))):
        yield data
        count -= len(data)
