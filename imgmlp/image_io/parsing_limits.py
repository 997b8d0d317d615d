"""Limits on what a picture file holds beside its pixels, checked before Pillow reads the file.

Pillow reads any amount of metadata, comments, chunks and tags, mostly one by one, and some of it in
quadratic time. The checks here only walk through the parts of the formats.
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
    ICNS_SIGNATURE,
    JP2_SIGNATURE,
    JPEG_APP1,
    JPEG_SOS,
    boxes,
    chunks,
    icns_elements,
    is_png,
    is_webp,
    segments,
    skip_gif_colour_table,
)
from imgmlp.text import by_command

MAX_NON_PIXEL_BYTES = 2**25
MAX_GAP_BYTES = 2**20  # between JPEG segments or GIF blocks; Pillow reads them one by one

MAX_JPEG_EXIF_BYTES = 2**22  # Pillow copies the EXIF data for each segment of it
MAX_JPEG_SEGMENTS = 4096  # before the first scan

MAX_CHUNKS = 2**17  # of a PNG or a WebP

MAX_TIFF_BYTES_PER_PIXEL = 6  # beside the pixels; some programs store layers in a tag
MAX_TIFF_DIRECTORY_ENTRIES = 2**12  # of one directory
MAX_TIFF_ENTRIES = 2**18  # of all pages, and again of all their EXIF and GPS directories
MAX_TIFF_PAGES = 2048  # that are checked
MAX_TIFF_STRIPS = 2**17  # strips or tiles of a page, unless they are large:
MIN_PIXELS_PER_STRIP = 2**11  # on average, of a page with more strips

MAX_GIF_SUB_BLOCKS = 2**18  # of any length
MIN_GIF_SUB_BLOCK_BYTES = 16  # on average, of a GIF with more sub-blocks

MAX_PPM_HEADER_BYTES = 2**20  # Pillow reads them one by one
MAX_JPEG2000_BOXES = 2**14
MAX_ICNS_ELEMENTS = 2**10
MAX_PSD_RESOURCES = 2**16
MAX_IPTC_FIELDS = 2**16

# TIFF 6.0, section 2: field types and tags
_MIN_BYTES_IN_MEMORY = 16  # that a number of a tag takes in Python
_BYTES_IN_MEMORY_BY_TYPE = {
    **dict.fromkeys((1, 2, 6, 7), 1),  # BYTE, ASCII, SBYTE and UNDEFINED are kept as bytes
    **dict.fromkeys((5, 10), 2 * _MIN_BYTES_IN_MEMORY),  # RATIONAL and SRATIONAL are two numbers
}
_BYTES_BY_INTEGER_TYPE = {3: 2, 4: 4, 13: 4}  # SHORT, LONG and IFD
_TAG_WIDTH = 256
_TAG_HEIGHT = 257
_TAGS_OF_OFFSETS = (273, 324)  # StripOffsets, TileOffsets
_TAGS_OF_DIRECTORIES = (34665, 34853)  # EXIF and GPS

_PPM_SIGNATURE = re.compile(rb"P[0-6fy]")
_PPM_COMMENT = re.compile(rb"#[^\r\n]*")
_MIN_PPM_HEADER_WORDS = 3  # signature, width and height

# IPTC-IIM: a data set begins with a tag marker, record and data set numbers, and its size.
_IPTC_TAG_MARKER = b"\x1c"
_IPTC_OBJECT_DATA = b"\x08\x0a"  # record 8, data set 10: the pixels
_IPTC_MAX_SIZE_FIELD = b"\x84\xff"  # an extended size of up to 4 bytes


def check(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a file with far more beside its pixels than pictures have."""
    stream.seek(0)
    start = stream.read(16)
    if start.startswith(b"\xff\xd8"):
        stream.seek(2)
        _check_jpeg(stream.read(MAX_NON_PIXEL_BYTES), path)
    elif is_png(start):
        _check_chunks(stream, (b"IDAT", b"fdAT"), True, path)
    elif is_webp(start):
        _check_chunks(stream, (b"VP8 ", b"VP8L", b"ALPH", b"ANMF"), False, path)
    elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_tiff(stream, start, path)
    elif start.startswith(b"GIF8"):
        _check_gif(stream, path)
    elif start.startswith(ICNS_SIGNATURE):
        _check_count(icns_elements(stream), MAX_ICNS_ELEMENTS, path, "parts")
    elif start.startswith(JP2_SIGNATURE):
        _check_jpeg2000(stream, path)
    elif start.startswith(b"8BPS"):
        _check_psd(stream, path)
    elif start.startswith(_IPTC_TAG_MARKER):
        _check_iptc(stream, path)
    elif _PPM_SIGNATURE.match(start):
        _check_ppm(stream, path)


def _check_limit(count: int, limit: int, path: Path, what: str = "bytes beside its pixels") -> None:
    if count > limit:
        hint = by_command("remove them first", path, "magick {} -strip stripped.png")
        raise PictureError(f"{path} has more than {limit:,} {what}", hint=hint)


def _check_count(parts: Iterable[object], limit: int, path: Path, what: str) -> None:
    for count, _ in enumerate(parts, 1):
        _check_limit(count, limit, path, what)


def _check_jpeg(data: bytes, path: Path) -> None:
    """Check the segments before the first scan; `data` begins behind the SOI marker."""
    count = exif_bytes = gap_bytes = 0
    for segment in segments(data):
        if segment.marker == JPEG_SOS:  # Pillow searches for it even behind an EOI marker
            return
        start, gap_bytes, count = segment.start + 2, gap_bytes + segment.gap, count + 1
        is_exif = segment.marker == JPEG_APP1 and data[start : start + 6] == b"Exif\0\0"
        exif_bytes += segment.length * is_exif
        _check_limit(exif_bytes, MAX_JPEG_EXIF_BYTES, path, "bytes of EXIF data")
        _check_limit(count, MAX_JPEG_SEGMENTS, path, "segments before its pixels")
        _check_limit(gap_bytes, MAX_GAP_BYTES, path, "bytes between the parts of its header")
    if len(data) == MAX_NON_PIXEL_BYTES:
        _check_limit(MAX_NON_PIXEL_BYTES + 1, MAX_NON_PIXEL_BYTES, path)


def _check_chunks(stream: BinaryIO, pixel_types: tuple[bytes, ...], png: bool, path: Path) -> None:
    """Check a PNG or a WebP: how many chunks it has, and the bytes of those without pixels, as far
    as the file contains them."""
    non_pixel_bytes, end = 0, stream.seek(0, io.SEEK_END)
    for count, chunk in enumerate(chunks(stream, png), 1):
        has_pixels = chunk.type in pixel_types
        non_pixel_bytes += 0 if has_pixels else min(chunk.size, end - stream.tell())
        _check_limit(non_pixel_bytes, MAX_NON_PIXEL_BYTES, path)
        _check_limit(count, MAX_CHUNKS, path, "chunks")


def _check_tiff(stream: BinaryIO, start: bytes, path: Path) -> None:
    """Check each directory that Pillow may read (TIFF 6.0, section 2, and BigTIFF).

    Directories may overlap, so that all of them together can be far larger than the file.
    """
    order, big = "<" if start[:1] == b"I" else ">", b"+" in start[2:4]
    offset = int.from_bytes(start[8:16] if big else start[4:8], "little" if order == "<" else "big")
    # The most memory that the values of one directory can take.
    directory_limit = _MIN_BYTES_IN_MEMORY * stream.seek(0, io.SEEK_END)
    pending, visited, pages, total_bytes = [(offset, True)], {0}, 0, 0
    entry_counts = {True: 0, False: 0}  # of pages; of their EXIF and GPS directories
    while pending and pages < MAX_TIFF_PAGES:
        offset, is_page = pending.pop()
        if offset in visited:
            continue
        visited.add(offset)
        pages += is_page
        entries, next_offset = _tiff_directory(stream, offset, order, big)
        _check_limit(len(entries), MAX_TIFF_DIRECTORY_ENTRIES, path, "entries in a directory")
        entry_counts[is_page] += len(entries)
        _check_limit(entry_counts[is_page], MAX_TIFF_ENTRIES, path, "entries in its directories")
        values = {entry.tag: entry.value for entry in entries}
        pixels = values.get(_TAG_WIDTH, 0) * values.get(_TAG_HEIGHT, 0)
        size = sum(entry.size for entry in entries)
        _check_limit(size, max(MAX_NON_PIXEL_BYTES, MAX_TIFF_BYTES_PER_PIXEL * pixels), path)
        total_bytes += min(size, directory_limit)
        total_limit = MAX_NON_PIXEL_BYTES + directory_limit
        _check_limit(total_bytes, total_limit, path, "bytes in its directories")
        _check_strips(entries, max(MAX_TIFF_STRIPS, pixels // MIN_PIXELS_PER_STRIP), path)
        pending += [(next_offset, True)] * is_page
        pending += [(values[tag], False) for tag in _TAGS_OF_DIRECTORIES if tag in values]


def _check_strips(entries: list[_TiffEntry], limit: int, path: Path) -> None:
    """Limit the strips or tiles: Pillow and libtiff restart decoding at each of them."""
    if any(entry.tag in _TAGS_OF_OFFSETS and entry.value_count > limit for entry in entries):
        hint = by_command("rewrite it", path, "magick {} converted.png")
        raise PictureError(f"{path} has more than {limit:,} strips or tiles", hint=hint)


class _TiffEntry(NamedTuple):
    """An entry of a TIFF's directory (IFD)."""

    tag: int
    value_count: int
    size: int  # bytes that the values may take in memory
    value: int  # the value if there is one, else the offset of the values


def _tiff_directory(
    stream: BinaryIO, offset: int, order: str, big: bool
) -> tuple[list[_TiffEntry], int]:
    """The entries of the directory at an offset, and the offset of the next directory."""
    entry_layout = struct.Struct(f"{order}{'HHQ8s' if big else 'HHI4s'}")
    count_bytes, offset_bytes = (8, 8) if big else (2, 4)
    endian: Literal["little", "big"] = "little" if order == "<" else "big"
    stream.seek(offset)
    count = min(int.from_bytes(stream.read(count_bytes), endian), MAX_TIFF_DIRECTORY_ENTRIES + 1)
    body = stream.read(count * entry_layout.size)
    next_offset = int.from_bytes(stream.read(offset_bytes), endian)
    entries = []
    whole_entries = body[: len(body) // entry_layout.size * entry_layout.size]
    for tag, field_type, value_count, field in entry_layout.iter_unpack(whole_entries):
        value_bytes = _BYTES_BY_INTEGER_TYPE.get(field_type, offset_bytes)
        value = int.from_bytes(field[:value_bytes], endian)
        size = _BYTES_IN_MEMORY_BY_TYPE.get(field_type, _MIN_BYTES_IN_MEMORY) * value_count
        entries.append(_TiffEntry(tag, value_count, size, value))
    return entries, next_offset


def _check_gif(stream: BinaryIO, path: Path) -> None:
    """Check the blocks up to the second frame, as far as Pillow reads to see whether there is one,
    and the bytes between blocks (GIF89a, appendix A)."""
    frames = count = size = extension_bytes = gap_bytes = 0
    stream.seek(10)
    skip_gif_colour_table(stream, stream.read(3)[:1])
    while (introducer := stream.read(1)) not in (b"", b";"):
        if introducer == b"!":
            stream.read(1)  # the extension's label
        elif introducer == b"," and not frames:
            frames = 1
            skip_gif_colour_table(stream, stream.read(9)[8:])
            stream.read(1)  # LZW minimum code size
        elif introducer == b",":
            return
        else:
            gap_bytes += 1
            _check_limit(gap_bytes, MAX_GAP_BYTES, path, "bytes between its blocks")
            continue
        while length := stream.read(1)[:1]:
            if length == b"\0":
                break
            count, size = count + 1, size + len(stream.read(length[0]))
            extension_bytes += length[0] * (introducer == b"!")
            if count > MAX_GIF_SUB_BLOCKS and size < MIN_GIF_SUB_BLOCK_BYTES * count:
                _check_limit(count, MAX_GIF_SUB_BLOCKS, path, "tiny blocks")
        _check_limit(extension_bytes, MAX_NON_PIXEL_BYTES, path)


def _check_ppm(stream: BinaryIO, path: Path) -> None:
    stream.seek(0)
    head = stream.read(MAX_PPM_HEADER_BYTES)
    words = _PPM_COMMENT.sub(b"", head).split(None, _MIN_PPM_HEADER_WORDS)
    if len(head) == MAX_PPM_HEADER_BYTES and len(words) < _MIN_PPM_HEADER_WORDS:
        what = "bytes of comments in its header"
        _check_limit(MAX_PPM_HEADER_BYTES + 1, MAX_PPM_HEADER_BYTES, path, what)


def _check_jpeg2000(stream: BinaryIO, path: Path) -> None:
    """Check the boxes of the file, and those in its header box (jp2h)."""
    end = stream.seek(0, io.SEEK_END)
    for count, (box_type, start, box_end) in enumerate(boxes(stream, len(JP2_SIGNATURE), end), 1):
        _check_limit(count, MAX_JPEG2000_BOXES, path, "boxes")
        if box_type == b"jp2h":
            inner = boxes(stream, start, min(box_end, end))
            _check_count(inner, MAX_JPEG2000_BOXES, path, "boxes in its header")


def _check_psd(stream: BinaryIO, path: Path) -> None:
    """Check the image resources, which follow the colour mode data."""
    stream.seek(26)
    stream.seek(int.from_bytes(stream.read(4)), io.SEEK_CUR)
    size = int.from_bytes(stream.read(4))
    end, count = stream.tell() + size, 0
    while stream.tell() < end and len(head := stream.read(7)) == 7:
        count += 1
        _check_limit(count, MAX_PSD_RESOURCES, path, "resources")
        stream.seek(head[6] + (head[6] + 1) % 2, io.SEEK_CUR)  # the name, padded to an even size
        size = int.from_bytes(stream.read(4))
        stream.seek(size + size % 2, io.SEEK_CUR)


def _check_iptc(stream: BinaryIO, path: Path) -> None:
    """Check the data sets before the pixels."""
    offset, count = 0, 0
    while True:
        stream.seek(offset)
        head = stream.read(5).ljust(5, b"\xff")
        if (
            not head.startswith(_IPTC_TAG_MARKER)
            or head[1:3] == _IPTC_OBJECT_DATA
            or head[3:] > _IPTC_MAX_SIZE_FIELD
        ):
            return
        count += 1
        _check_limit(count, MAX_IPTC_FIELDS, path, "fields")
        # From 128 on, the first byte is 128 plus the number of bytes of an extended size.
        size_bytes = head[3] - 128
        size = (
            int.from_bytes(stream.read(size_bytes)) if size_bytes >= 0 else int.from_bytes(head[3:])
        )
        offset += 5 + max(0, size_bytes) + size
