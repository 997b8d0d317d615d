"""Iterators over the parts of container formats: JPEG segments, PNG and RIFF chunks, boxes of
JPEG 2000 (ISO BMFF), elements of Mac icons and colour tables of GIFs.

They read the lengths and types of the parts, but not what the parts contain.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

# Signatures: the first bytes of a file.
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ICO_SIGNATURE = b"\0\0\1\0"
ICNS_SIGNATURE = b"icns"
JP2_SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"

# JPEG markers, by their second byte (ITU T.81, table B.1).
JPEG_SOS = 0xDA  # start of scan
JPEG_EOI = 0xD9  # end of image
JPEG_APP1 = 0xE1  # EXIF and XMP data
_JPEG_WITHOUT_LENGTH = (0x01, 0xD8, JPEG_EOI)  # TEM, SOI
# A marker without the fill bytes (FF) before it. Inside entropy-coded data, FF is followed by 00 or
# by a restart marker (D0 to D7), so nothing there matches.
_JPEG_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")

CODESTREAM_START = b"\xff\x4f\xff\x51"  # JPEG 2000: the markers SOC and SIZ (ITU T.800, A.5.1)
_JPEG2000_SOT = b"\xff\x90"  # start of tile-part
MAX_TILE_PARTS = 2**18  # of a JPEG 2000 that are read
_UNLIMITED_BYTES = 2**63


@dataclass(frozen=True)
class Segment:
    """A marker segment of a JPEG (ITU T.81, B.1.1.4)."""

    marker: int  # its second byte
    gap: int  # bytes between the end of the previous segment and this marker
    start: int  # offset behind the marker, where the two bytes of the length are
    length: int  # bytes from `start` on, including those of the length; 0 without a length

    @property
    def marker_offset(self) -> int:
        return self.start - 2


def segments(data: bytes) -> Iterator[Segment]:
    """The marker segments of a JPEG. `data` may begin at or behind the SOI marker."""
    offset = 0
    while match := _JPEG_MARKER.search(data, offset):
        marker, start = match[1][0], match.end()
        has_length = marker not in _JPEG_WITHOUT_LENGTH
        length = int.from_bytes(data[start : start + 2]) if has_length else 0
        yield Segment(marker, match.start() - offset, start, length)
        offset = start + length


@dataclass(frozen=True)
class Chunk:
    """A chunk of a PNG or of a RIFF file (WebP)."""

    type: bytes  # four characters
    size: int  # bytes of its data
    next_offset: int  # of the following chunk


def is_png(start: bytes) -> bool:
    return start.startswith(PNG_SIGNATURE)


def is_webp(start: bytes) -> bool:
    return start.startswith(b"RIFF") and start[8:12] == b"WEBP"


def chunks(stream: BinaryIO, png: bool) -> Iterator[Chunk]:
    """The chunks of a PNG (`png`) or a WebP; each is yielded with the stream at its data.

    Data behind IEND or behind the RIFF chunk is ignored.
    """
    stream.seek(4)
    end = _UNLIMITED_BYTES if png else 8 + int.from_bytes(stream.read(4), "little")
    offset = len(PNG_SIGNATURE) if png else 12
    stream.seek(offset)
    while offset < end and len(head := stream.read(8)) == 8:
        chunk_type, size_field = (head[4:], head[:4]) if png else (head[:4], head[4:])
        size = int.from_bytes(size_field, "big" if png else "little")
        offset += 12 + size if png else 8 + size + size % 2
        yield Chunk(chunk_type, size, offset)
        if png and chunk_type == b"IEND":
            return
        stream.seek(offset)


def embedded_images(stream: BinaryIO) -> Iterator[BinaryIO]:
    """The PNGs and JPEG 2000 files in a Mac icon, or in a Windows icon that has one image only."""
    stream.seek(0)
    signature = stream.read(4)
    if signature == ICO_SIGNATURE:
        ranges = iter(((22, -1),))  # offset and bytes: all behind the header and one entry
    elif signature == ICNS_SIGNATURE:
        ranges = ((start, size) for _, start, size in icns_elements(stream))
    else:
        return
    for start, size in ranges:
        begins = _read_at(stream, start, 12)
        if begins.startswith((PNG_SIGNATURE, JP2_SIGNATURE, CODESTREAM_START)):
            yield io.BytesIO(_read_at(stream, start, size))


def icns_elements(stream: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """(type, offset of the data, bytes of the data) of each element of a Mac icon."""
    offset, end = 8, int.from_bytes(_read_at(stream, 4, 4))
    while (
        offset < end
        and len(head := _read_at(stream, offset, 8)) == 8
        and (size := int.from_bytes(head[4:]))
    ):
        yield head[:4], offset + 8, max(0, size - 8)
        offset += max(8, size)


def boxes(stream: BinaryIO, offset: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, offset of the contents, offset of the end) of each box between two offsets of a
    JPEG 2000 file (ITU T.800, I.4).

    A damaged box may end beyond `end`; a caller that reads its contents must check that.
    """
    while offset < end and len(head := _read_at(stream, offset, 16)) >= 8:
        size, start = int.from_bytes(head[:4]), offset + 8
        if size == 1:  # the size is in the 64-bit field XLBox
            size, start = int.from_bytes(head[8:]), offset + 16
        if size < start - offset:
            return
        yield head[4:8], start, offset + size
        offset += size


def skip_gif_colour_table(stream: BinaryIO, packed_fields: bytes) -> None:
    """Skip a GIF's colour table if the packed fields of a descriptor declare one (GIF89a, sections
    18 to 21)."""
    if packed_fields and packed_fields[0] & 128:
        stream.seek(3 << (packed_fields[0] & 7) + 1, io.SEEK_CUR)


@dataclass(frozen=True)
class TilePart:
    """A tile-part of a JPEG 2000 codestream."""

    tile: int  # index of its tile
    end: int  # offset behind it


def tile_parts(stream: BinaryIO) -> Iterator[TilePart]:
    """The tile-parts of a JPEG 2000, as far as they are present (ITU T.800, A.4.2).

    The last one may have a length of 0, that is, extend to the end of the codestream. Its `end` is
    then where it begins.
    """
    offset = _codestream_offset(stream)
    if _read_at(stream, offset, 4) != CODESTREAM_START:
        return
    offset += 2
    in_tile = False
    for _ in range(MAX_TILE_PARTS):
        head = _read_at(stream, offset, 12)
        is_tile = head.startswith(_JPEG2000_SOT)
        size = int.from_bytes(head[6:10]) if is_tile else 2 + int.from_bytes(head[2:4])
        if len(head) < 12 or head[0] != 0xFF or (in_tile and not is_tile):
            return
        in_tile, offset = is_tile, offset + size
        if is_tile:
            yield TilePart(int.from_bytes(head[4:6]), offset)
        if size < 4:
            return


def tile_count(stream: BinaryIO) -> int:
    """The number of tiles that a JPEG 2000 declares (ITU T.800, B.3); 0 if it is damaged."""
    head = _read_at(stream, _codestream_offset(stream), 40)
    if len(head) < 40 or not head.startswith(CODESTREAM_START):
        return 0
    # Xsiz, Ysiz, XOsiz, YOsiz, XTsiz, YTsiz, XTOsiz and YTOsiz of the SIZ segment
    right, bottom, _, _, width, height, left, top = struct.unpack(">8I", head[8:])
    if not width or not height:
        return 0
    columns: int = -((left - right) // width)
    rows: int = -((top - bottom) // height)
    return columns * rows


def _codestream_offset(stream: BinaryIO) -> int:
    """Offset of the codestream of a JPEG 2000 (ITU T.800, I.4), or where the search for it
    ended."""
    offset = 0 if _read_at(stream, 0, 12) != JP2_SIGNATURE else 12
    for _ in range(MAX_TILE_PARTS):
        head = _read_at(stream, offset, 16)
        size, start = int.from_bytes(head[:4]), offset + 8
        if size == 1:
            size, start = int.from_bytes(head[8:]), offset + 16
        if head[4:8] == b"jp2c":
            return start
        if (
            head.startswith(CODESTREAM_START)
            or len(head) < 16
            or not 8 <= size < _UNLIMITED_BYTES - offset
        ):
            break
        offset += size
    return offset


def _read_at(stream: BinaryIO, offset: int, count: int) -> bytes:
    stream.seek(offset)
    return stream.read(count)
