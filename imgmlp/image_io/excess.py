"""What picture files hold beside the picture, limited before Pillow reads it.

Pillow reads any amount, some of it in a time that grows with the square, and most of it part by
part. Knows which parts hold pixels, and how those formats are divided that nobody else looks into.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from imgmlp.errors import PictureError
from imgmlp.image_io.structure import (
    APP1,
    JP2_START,
    MAC_ICON,
    SCAN,
    blocks,
    boxes,
    chunks,
    is_png,
    is_webp,
    segments,
    skip_colours,
)
from imgmlp.text import by_command

MOST = 2**25  # bytes beside a picture
LAYERS = 6  # the same of a TIFF, for each of its pixels, as programs put layers there
EXIF = 2**22  # bytes of a JPEG's EXIF data, which Pillow copies for each segment
SEGMENTS = 4096  # of a JPEG before its pixels
CHUNKS = 2**17  # of a PNG or a WebP
GAPS = 2**20  # bytes between these, which Pillow reads one by one
ENTRIES = 2**12  # of a directory of a TIFF
PAGES, ALL_ENTRIES = 2048, 2**18  # of a TIFF that are looked at, and entries of these in all
STRIPS, STRIP = 2**17, 2**11  # or tiles of a TIFF's page; pixels of each, on average, of more
BLOCKS, SHORTEST = 2**18, 16  # of a GIF that may be of any length; of more the bytes on average
COMMENTS = 2**20  # bytes of a PPM's header, which Pillow reads one by one
BOXES = 2**14  # of a JPEG 2000
PARTS = 2**10  # of a Mac's icon
RESOURCES = 2**16  # of a PSD
FIELDS = 2**16  # of an IPTC file
NUMBER = 16  # bytes, at least, that a number of a TIFF takes in memory
_SIZES = {1: 1, 2: 1, 6: 1, 7: 1, **dict.fromkeys((5, 10), 2 * NUMBER)}  # of a TIFF's types
_WIDE = {3: 2, 4: 4, 13: 4}  # bytes of types that a size has
_WIDTH, _HEIGHT, _INNER = 256, 257, (34665, 34853)  # tags; those of EXIF's and GPS' directories
_PLACES = (273, 324)  # tags: where a TIFF's strips or tiles are
_PPM, _PPM_COMMENT = re.compile(rb"P[0-6fy]"), re.compile(rb"#[^\r\n]*")
_PPM_WORDS = 3  # of its header at least: what it is, width and height
_FIELD, _PICTURE = b"\x1c", b"\x08\x0a"  # of IPTC: how each begins, and the one with the pixels
_LONGEST = b"\x84\xff"  # how the size of a field begins, at most: with how many bytes it has


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
    elif start.startswith(b"GIF8"):
        _check_gif(stream, path)
    elif start.startswith(MAC_ICON):
        _count(blocks(stream), PARTS, path, "parts")
    elif start.startswith(JP2_START):
        _check_jpeg2000(stream, path)
    elif start.startswith(b"8BPS"):
        _check_psd(stream, path)
    elif start.startswith(_FIELD):
        _check_iptc(stream, path)
    elif _PPM.match(start):
        _check_ppm(stream, path)


def _check(count: int, most: int, path: Path, what: str = "bytes beside its pixels") -> None:
    if count > most:
        hint = by_command("remove them first", path, "magick {} -strip stripped.png")
        raise PictureError(f"{path} has more than {most:,} {what}", hint=hint)


def _count(parts: Iterable[object], most: int, path: Path, what: str) -> None:
    for number, _ in enumerate(parts, 1):
        _check(number, most, path, what)


def _check_jpeg(data: bytes, path: Path) -> None:
    """Of what follows its start, up to the first scan."""
    count = exif = gaps = 0
    for one in segments(data):
        if one.kind == SCAN:  # for which Pillow looks behind an end as well
            return
        at, gaps, count = one.begin + 2, gaps + one.gap, count + 1
        exif += one.size * (one.kind == APP1 and data[at : at + 6] == b"Exif\0\0")
        _check(exif, EXIF, path, "bytes of EXIF data")
        _check(count, SEGMENTS, path, "segments before its pixels")
        _check(gaps, GAPS, path, "bytes between the parts of its header")
    if len(data) == MOST:
        _check(MOST + 1, MOST, path)


def _check_chunks(stream: BinaryIO, pixels: tuple[bytes, ...], png: bool, path: Path) -> None:
    """Of the chunks that hold no pixels, of a PNG or a WebP, as far as they are there."""
    beside, end = 0, stream.seek(0, io.SEEK_END)
    for number, chunk in enumerate(chunks(stream, png), 1):
        beside += 0 if chunk.kind in pixels else min(chunk.size, end - stream.tell())
        _check(beside, MOST, path)
        _check(number, CHUNKS, path, "chunks")


def _check_tiff(stream: BinaryIO, start: bytes, path: Path) -> None:
    """Each directory that Pillow may read (TIFF 6.0, section 2, and BigTIFF).

    Directories may lie over each other, so all of them may have far more than the file.
    """
    order, big = "<" if start[:1] == b"I" else ">", b"+" in start[2:4]
    at = int.from_bytes(start[8:16] if big else start[4:8], "little" if order == "<" else "big")
    there = NUMBER * stream.seek(0, io.SEEK_END)  # bytes in memory of all that one can have
    left, seen, pages, beside = [(at, True)], {0}, 0, 0
    entries = {True: 0, False: 0}  # of pages, and of what these have beside them
    while left and pages < PAGES:
        at, is_page = left.pop()
        if at in seen:
            continue
        seen.add(at)
        pages += is_page
        listed, then = _directory(stream, at, order, big)
        _check(len(listed), ENTRIES, path, "entries in a directory")
        entries[is_page] += len(listed)
        _check(entries[is_page], ALL_ENTRIES, path, "entries in its directories")
        values = {one.tag: one.value for one in listed}
        pixels = values.get(_WIDTH, 0) * values.get(_HEIGHT, 0)
        size = sum(one.size for one in listed)
        _check(size, max(MOST, LAYERS * pixels), path)
        _check(beside := beside + min(size, there), MOST + there, path, "bytes in its directories")
        _check_strips(listed, max(STRIPS, pixels // STRIP), path)
        left += [(then, True)] * is_page
        left += [(values[tag], False) for tag in _INNER if tag in values]


def _check_strips(entries: list[_Entry], most: int, path: Path) -> None:
    """For each of which Pillow, or libtiff, begins anew."""
    if any(one.tag in _PLACES and one.number > most for one in entries):
        hint = by_command("rewrite it", path, "magick {} converted.png")
        raise PictureError(f"{path} has more than {most:,} strips or tiles", hint=hint)


class _Entry(NamedTuple):
    """Of a TIFF's directory."""

    tag: int
    number: int  # of its values
    size: int  # bytes that they may take in memory
    value: int  # if there is only one, or where they are


def _directory(stream: BinaryIO, at: int, order: str, big: bool) -> tuple[list[_Entry], int]:
    """The entries of the directory there, and where the next one is."""
    one = struct.Struct(f"{order}{'HHQ8s' if big else 'HHI4s'}")
    wide, narrow = (8, 8) if big else (2, 4)
    endian: Literal["little", "big"] = "little" if order == "<" else "big"
    stream.seek(at)
    count = min(int.from_bytes(stream.read(wide), endian), ENTRIES + 1)
    body = stream.read(count * one.size)
    then = int.from_bytes(stream.read(narrow), endian)
    entries = []
    for tag, kind, number, field in one.iter_unpack(body[: len(body) // one.size * one.size]):
        value = int.from_bytes(field[: _WIDE.get(kind, narrow)], endian)
        entries.append(_Entry(tag, number, _SIZES.get(kind, NUMBER) * number, value))
    return entries, then


def _check_gif(stream: BinaryIO, path: Path) -> None:
    """Of its blocks up to its second frame, for which Pillow looks, and of what is between them."""
    frames = count = size = beside = gaps = 0
    stream.seek(10)
    skip_colours(stream, stream.read(3)[:1])
    while (kind := stream.read(1)) not in (b"", b";"):
        if kind == b"!":
            stream.read(1)
        elif kind == b"," and not frames:
            frames = 1
            skip_colours(stream, stream.read(9)[8:])
            stream.read(1)
        elif kind == b",":
            return
        else:
            _check(gaps := gaps + 1, GAPS, path, "bytes between its blocks")
            continue
        while length := stream.read(1)[:1]:
            if length == b"\0":
                break
            count, size = count + 1, size + len(stream.read(length[0]))
            beside += length[0] * (kind == b"!")
            if count > BLOCKS and size < SHORTEST * count:
                _check(count, BLOCKS, path, "tiny blocks")
        _check(beside, MOST, path)


def _check_ppm(stream: BinaryIO, path: Path) -> None:
    stream.seek(0)
    head = stream.read(COMMENTS)
    words = _PPM_COMMENT.sub(b"", head).split(None, _PPM_WORDS)
    if len(head) == COMMENTS and len(words) < _PPM_WORDS:
        _check(COMMENTS + 1, COMMENTS, path, "bytes of comments in its header")


def _check_jpeg2000(stream: BinaryIO, path: Path) -> None:
    """Of its boxes, and of those inside of the one for the header."""
    end, number = stream.seek(0, io.SEEK_END), 0
    for number, (kind, begin, then) in enumerate(boxes(stream, len(JP2_START), end), 1):
        _check(number, BOXES, path, "boxes")
        if kind == b"jp2h":
            _count(boxes(stream, begin, min(then, end)), BOXES, path, "boxes in its header")


def _check_psd(stream: BinaryIO, path: Path) -> None:
    """Of its resources, which stand behind its list of colours."""
    stream.seek(26)
    stream.seek(int.from_bytes(stream.read(4)), io.SEEK_CUR)
    size = int.from_bytes(stream.read(4))
    end, number = stream.tell() + size, 0
    while stream.tell() < end and len(head := stream.read(7)) == 7:
        _check(number := number + 1, RESOURCES, path, "resources")
        stream.seek(head[6] + (head[6] + 1) % 2, io.SEEK_CUR)  # its name, filled up
        size = int.from_bytes(stream.read(4))
        stream.seek(size + size % 2, io.SEEK_CUR)


def _check_iptc(stream: BinaryIO, path: Path) -> None:
    """Of its fields before the pixels."""
    at, number = 0, 0
    while True:
        stream.seek(at)
        head = stream.read(5).ljust(5, b"\xff")
        if not head.startswith(_FIELD) or head[1:3] == _PICTURE or head[3:] > _LONGEST:
            return
        _check(number := number + 1, FIELDS, path, "fields")
        long = head[3] - 128
        size = int.from_bytes(stream.read(long)) if long >= 0 else int.from_bytes(head[3:])
        at += 5 + max(0, long) + size
