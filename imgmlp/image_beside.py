"""What picture files hold beside the picture, limited before Pillow reads it.

Pillow reads any amount, some of it in a time that grows with the square. Knows how JPEG, PNG, TIFF
and WebP are divided, and nothing of what the parts mean.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import BinaryIO, Literal

from imgmlp.errors import PictureError
from imgmlp.text import quoted

MOST = 2**25  # bytes beside a picture; a TIFF's may be twice its pixels, as layers are there
EXIF = 2**22  # bytes of a JPEG's EXIF data, which Pillow copies for each segment
SEGMENTS = 4096  # of a JPEG before its pixels
CHUNKS = 2**17  # of a PNG or a WebP
GAPS = 2**20  # bytes between these, which Pillow reads one by one
DIRECTORIES, ENTRIES = 2048, 2**16  # of a TIFF that are looked at
NUMBER = 16  # bytes, at least, that a number of a TIFF takes in memory
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")  # without what fills up before it
_SCAN, _END, _BARE, _APP1 = 0xDA, 0xD9, (0x01, 0xD8), 0xE1
_SIZES = {1: 1, 2: 1, 6: 1, 7: 1, **dict.fromkeys((5, 10), 2 * NUMBER)}  # of a TIFF's types
_WIDE = {3: 2, 4: 4, 13: 4}  # bytes of types that a size has
_WIDTH, _HEIGHT, _INNER = 256, 257, (34665, 34853)  # tags; those of EXIF's and GPS' directories


def check(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, what holds far more than any picture has beside it."""
    stream.seek(0)
    start = stream.read(16)
    if start.startswith(b"\xff\xd8"):
        stream.seek(2)
        _check_jpeg(stream.read(MOST), path)
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        _check_chunks(stream, (b"IDAT", b"fdAT"), True, path)
    elif start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        _check_chunks(stream, (b"VP8 ", b"VP8L", b"ALPH", b"ANMF"), False, path)
    elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_tiff(stream, start, path)


def _check(count: int, most: int, path: Path, what: str = "bytes beside its pixels") -> None:
    if count > most:
        hint = f"take them out first, for example with `magick {quoted(path)} -strip stripped.png`"
        raise PictureError(f"{path} has more than {most:,} {what}", hint=hint)


def _check_jpeg(data: bytes, path: Path) -> None:
    """Of what follows its start, up to the first scan (ITU T.81, annex B)."""
    at = segments = exif = gaps = 0
    while found := _MARKER.search(data, at):
        kind = found[1][0]
        gaps, at = gaps + found.end() - at - 2 * (kind not in _BARE), found.end()
        if kind in (_SCAN, _END):
            break
        if kind not in _BARE:
            size = int.from_bytes(data[at : at + 2])
            exif += size * (kind == _APP1 and data[at + 2 : at + 8] == b"Exif\0\0")
            segments, at = segments + 1, at + size
        _check(exif, EXIF, path, "bytes of EXIF data")
        _check(segments, SEGMENTS, path, "segments before its pixels")
        _check(gaps, GAPS, path, "bytes between the parts of its header")
    if found is None and len(data) == MOST:
        _check(MOST + 1, MOST, path)


def _check_chunks(stream: BinaryIO, pixels: tuple[bytes, ...], png: bool, path: Path) -> None:
    """Of the chunks that hold no pixels, of a PNG or a WebP; what follows its end is nobody's."""
    at, beside, number = (8, 0, 0) if png else (12, 0, 0)
    stream.seek(4)
    end = MOST**2 if png else 8 + int.from_bytes(stream.read(4), "little")
    stream.seek(at)
    while at < end and len(head := stream.read(8)) == 8:
        kind = head[4:] if png else head[:4]
        if png and kind == b"IEND":
            break
        count = int.from_bytes(head[:4], "big") if png else int.from_bytes(head[4:], "little")
        beside, number = beside + (0 if kind in pixels else count), number + 1
        _check(beside, MOST, path)
        _check(number, CHUNKS, path, "chunks")
        at += count + 12 if png else 8 + count + count % 2
        stream.seek(at)


def _check_tiff(stream: BinaryIO, start: bytes, path: Path) -> None:
    """Each directory that Pillow may read (TIFF 6.0, section 2, and BigTIFF)."""
    order, big = "<" if start[:1] == b"I" else ">", b"+" in start[2:4]
    at = int.from_bytes(start[8:16] if big else start[4:8], "little" if order == "<" else "big")
    left, seen, entries = [at], {0}, 0
    while left and entries < ENTRIES and len(seen) <= DIRECTORIES:
        at = left.pop()
        if at in seen:
            continue
        seen.add(at)
        found, then = _directory(stream, at, order, big)
        entries += len(found)
        values = {tag: value for tag, _, value in found}
        pixels = values.get(_WIDTH, 0) * values.get(_HEIGHT, 0)
        _check(sum(size for _, size, _ in found), max(MOST, 2 * pixels), path)
        left += [then, *(values[tag] for tag in _INNER if tag in values)]


def _directory(
    stream: BinaryIO, at: int, order: str, big: bool
) -> tuple[list[tuple[int, int, int]], int]:
    """(tag, bytes, value) of each entry of the directory there, and where the next one is."""
    one = struct.Struct(f"{order}{'HHQ8s' if big else 'HHI4s'}")
    wide, narrow = (8, 8) if big else (2, 4)
    endian: Literal["little", "big"] = "little" if order == "<" else "big"
    stream.seek(at)
    count = min(int.from_bytes(stream.read(wide), endian), ENTRIES)
    body = stream.read(count * one.size)
    then = int.from_bytes(stream.read(narrow), endian)
    found = []
    for tag, kind, number, field in one.iter_unpack(body[: len(body) // one.size * one.size]):
        value = int.from_bytes(field[: _WIDE.get(kind, narrow)], endian)
        found.append((tag, _SIZES.get(kind, NUMBER) * number, value))
    return found, then
