"""How JPEG, JPEG 2000, PNG, WebP and GIF files and icons are divided, for those who measure parts.

Knows nothing of what the parts mean.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

SCAN, END, APP1, BARE = 0xDA, 0xD9, 0xE1, (0x01, 0xD8)  # markers of a JPEG; those without a size
PNG_START = b"\x89PNG\r\n\x1a\n"
# Without what fills up before a marker; none inside of a scan.
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
ICON, MAC_ICON = b"\0\0\1\0", b"icns"  # how icons begin
JP2_START = b"\0\0\0\x0cjP  \r\n\x87\n"
CODESTREAM = b"\xff\x4f\xff\x51"  # how a JPEG 2000's begins (ITU T.800, A.5.1)
_TILE_PART = b"\xff\x90"
MOST_PARTS = 2**18  # of a JPEG 2000 that are looked at
_ENDLESS = 2**63


@dataclass(frozen=True)
class Segment:
    """A part of a JPEG: its marker, and so many bytes from `begin` on, of which two are `size`."""

    kind: int
    gap: int  # bytes between the part before and the marker
    begin: int
    size: int

    @property
    def marker(self) -> int:
        """Where it is."""
        return self.begin - 2


def segments(data: bytes) -> Iterator[Segment]:
    """Of a JPEG, from its first marker or the one after (ITU T.81, annex B)."""
    at = 0
    while marker := _MARKER.search(data, at):
        kind, begin = marker[1][0], marker.end()
        has_size = kind not in (*BARE, END)
        size = int.from_bytes(data[begin : begin + 2]) if has_size else 0
        yield Segment(kind, marker.start() - at, begin, size)
        at = begin + size


@dataclass(frozen=True)
class Chunk:
    """A part of a PNG or a WebP: so many bytes, and where the next one is."""

    kind: bytes
    size: int
    then: int


def is_png(start: bytes) -> bool:
    return start.startswith(PNG_START)


def is_webp(start: bytes) -> bool:
    return start.startswith(b"RIFF") and start[8:12] == b"WEBP"


def chunks(stream: BinaryIO, png: bool) -> Iterator[Chunk]:
    """Of a PNG or a WebP, each where the stream is at its bytes; none of what follows the end."""
    stream.seek(4)
    end = _ENDLESS if png else 8 + int.from_bytes(stream.read(4), "little")
    at = len(PNG_START) if png else 12
    stream.seek(at)
    while at < end and len(head := stream.read(8)) == 8:
        kind, count = (head[4:], head[:4]) if png else (head[:4], head[4:])
        size = int.from_bytes(count, "big" if png else "little")
        at += 12 + size if png else 8 + size + size % 2
        yield Chunk(kind, size, at)
        if png and kind == b"IEND":
            return
        stream.seek(at)


def pictures_inside(stream: BinaryIO) -> Iterator[BinaryIO]:
    """The PNGs and JPEG 2000 in a Mac's icon, or in one of Windows' that has one picture only."""
    stream.seek(0)
    start = stream.read(4)
    if start == ICON:
        pictures = iter(((22, -1),))  # bytes
    elif start == MAC_ICON:
        pictures = ((begin, size) for _, begin, size in blocks(stream))
    else:
        return
    for begin, size in pictures:
        if _at(stream, begin, 12).startswith((PNG_START, JP2_START, CODESTREAM)):
            yield io.BytesIO(_at(stream, begin, size))


def blocks(stream: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Kind, place and size of the parts of a Mac's icon."""
    at, end = 8, int.from_bytes(_at(stream, 4, 4))
    while at < end and len(head := _at(stream, at, 8)) == 8 and (size := int.from_bytes(head[4:])):
        yield head[:4], at + 8, max(0, size - 8)
        at += max(8, size)


def boxes(stream: BinaryIO, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, place and end of the boxes between two places of a JPEG 2000 (ITU T.800, I.4); that
    of a damaged one may lie beyond `end`, which whoever looks inside must see to."""
    while at < end and len(head := _at(stream, at, 16)) >= 8:
        size, begin = int.from_bytes(head[:4]), at + 8
        if size == 1:
            size, begin = int.from_bytes(head[8:]), at + 16
        if size < begin - at:
            return
        yield head[4:8], begin, at + size
        at += size


def skip_colours(stream: BinaryIO, flags: bytes) -> None:
    """A GIF's list of them, if these say that there is one (GIF89a, 19 and 21)."""
    if flags and flags[0] & 128:
        stream.seek(3 << (flags[0] & 7) + 1, io.SEEK_CUR)


@dataclass(frozen=True)
class TilePart:
    """A part of a JPEG 2000: of which tile, and where it ends."""

    tile: int
    end: int


def tile_parts(stream: BinaryIO) -> Iterator[TilePart]:
    """Of a JPEG 2000, as far as they are there (ITU T.800, A.4.2).

    Where the last one ends need not be told: then it ends where it begins.
    """
    at = _codestream(stream)
    if _at(stream, at, 4) != CODESTREAM:
        return
    at += 2
    in_tile = False
    for _ in range(MOST_PARTS):
        head = _at(stream, at, 12)
        is_tile = head.startswith(_TILE_PART)
        size = int.from_bytes(head[6:10]) if is_tile else 2 + int.from_bytes(head[2:4])
        if len(head) < 12 or head[0] != 0xFF or (in_tile and not is_tile):
            return
        in_tile, at = is_tile, at + size
        if is_tile:
            yield TilePart(int.from_bytes(head[4:6]), at)
        if size < 4:
            return


def tiles(stream: BinaryIO) -> int:
    """How many a JPEG 2000 says that it has (ITU T.800, B.3); 0 if it does not."""
    head = _at(stream, _codestream(stream), 40)
    if len(head) < 40 or not head.startswith(CODESTREAM):
        return 0
    right, bottom, _, _, width, height, left, top = struct.unpack(">8I", head[8:])
    if not width or not height:
        return 0
    across: int = -((left - right) // width)
    down: int = -((top - bottom) // height)
    return across * down


def _codestream(stream: BinaryIO) -> int:
    """Where it begins in a JPEG 2000 (ITU T.800, I.4), if it has one."""
    at = 0 if _at(stream, 0, 12) != JP2_START else 12
    for _ in range(MOST_PARTS):
        head = _at(stream, at, 16)
        size, begin = int.from_bytes(head[:4]), at + 8
        if size == 1:
            size, begin = int.from_bytes(head[8:]), at + 16
        if head[4:8] == b"jp2c":
            return begin
        if head.startswith(CODESTREAM) or len(head) < 16 or not 8 <= size < _ENDLESS - at:
            break
        at += size
    return at


def _at(stream: BinaryIO, at: int, count: int) -> bytes:
    stream.seek(at)
    return stream.read(count)
