"""What picture files hold beside the picture, limited before Pillow reads it.

Pillow reads any amount, some of it in a time that grows with the square. Knows which parts hold
pixels, and how a TIFF is divided.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Literal

from imgmlp.errors import PictureError
from imgmlp.image_parts import APP1, BARE, END, SCAN, chunks, is_png, is_webp, segments
from imgmlp.text import by_command

MOST = 2**25  # bytes beside a picture
LAYERS = 6  # the same of a TIFF, for each of its pixels, as programs put layers there
EXIF = 2**22  # bytes of a JPEG's EXIF data, which Pillow copies for each segment
SEGMENTS = 4096  # of a JPEG before its pixels
CHUNKS = 2**17  # of a PNG or a WebP
GAPS = 2**20  # bytes between these, which Pillow reads one by one
DIRECTORIES, ENTRIES = 2048, 2**16  # of a TIFF that are looked at
NUMBER = 16  # bytes, at least, that a number of a TIFF takes in memory
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
    elif is_png(start):
        _check_chunks(stream, (b"IDAT", b"fdAT"), True, path)
    elif is_webp(start):
        _check_chunks(stream, (b"VP8 ", b"VP8L", b"ALPH", b"ANMF"), False, path)
    elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_tiff(stream, start, path)


def _check(count: int, most: int, path: Path, what: str = "bytes beside its pixels") -> None:
    if count > most:
        hint = by_command("take them out first", path, "magick {} -strip stripped.png")
        raise PictureError(f"{path} has more than {most:,} {what}", hint=hint)


def _check_jpeg(data: bytes, path: Path) -> None:
    """Of what follows its start, up to the first scan."""
    count = exif = gaps = 0
    for one in segments(data):
        if one.kind in (SCAN, END):
            return
        bare, at = one.kind in BARE, one.begin + 2
        gaps, count = gaps + one.gap + 2 * bare, count + (not bare)
        exif += one.size * (one.kind == APP1 and data[at : at + 6] == b"Exif\0\0")
        _check(exif, EXIF, path, "bytes of EXIF data")
        _check(count, SEGMENTS, path, "segments before its pixels")
        _check(gaps, GAPS, path, "bytes between the parts of its header")
    if len(data) == MOST:
        _check(MOST + 1, MOST, path)


def _check_chunks(stream: BinaryIO, pixels: tuple[bytes, ...], png: bool, path: Path) -> None:
    """Of the chunks that hold no pixels, of a PNG or a WebP."""
    beside = 0
    for number, chunk in enumerate(chunks(stream, png), 1):
        beside += 0 if chunk.kind in pixels else chunk.size
        _check(beside, MOST, path)
        _check(number, CHUNKS, path, "chunks")


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
        _check(sum(size for _, size, _ in found), max(MOST, LAYERS * pixels), path)
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
