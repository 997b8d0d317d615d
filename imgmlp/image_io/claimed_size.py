"""Checks that the coded images of an AVIF or a WebP are not far smaller than the size the file
declares.

Decoders enlarge a small image to the declared size, place it on a canvas, or allocate memory for
pixels that are not in the file. Nothing is decoded here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.image_io.structure import chunks

UNCHECKED_AVIF_PIXELS = 2**20  # an AVIF that declares no more is accepted
MAX_ENLARGEMENT = 4  # declared pixels per coded pixel of an AVIF; sound files have 1
UNCHECKED_WEBP_PIXELS = 2**24  # a WebP that declares no more is accepted
MAX_CANVAS_RATIO = 16  # canvas pixels per pixel of the largest frame of a WebP
_MAX_FRAME_CHUNKS = 8  # of a WebP's frame that are searched; its image is the first or second
_AVIF_HEAD_BYTES = 2**24  # in which an AVIF is searched
_MAX_SEQUENCE_HEADERS = 2**12  # that are read, including bytes that only look like one
# An OBU of a sequence header (type 1, with a size field: byte 0A) and its size, behind the start of
# a media data box or a temporal delimiter (AV1, 5.3).
_SEQUENCE_HEADER = re.compile(rb"(?:mdat(?:.{8})?|\x12\0)\x0a([\x04-\x7f])", re.DOTALL)
_ITEM_INFO = re.compile(rb"infe(?:\x02.{7}|\x03.{9})(av01|grid)", re.DOTALL)  # ISO/IEC 14496-12


def check(image: Image.Image, stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, an AVIF or a WebP that declares far more pixels than it codes."""
    declared_pixels = image.width * image.height
    if image.format == "AVIF" and declared_pixels > UNCHECKED_AVIF_PIXELS:
        stream.seek(0)
        head = stream.read(_AVIF_HEAD_BYTES)
        coded_pixels = max(_max_frame_pixels(head), default=declared_pixels) * _max_tiles(head)
        _refuse_if(declared_pixels > MAX_ENLARGEMENT * coded_pixels, image, path)
    elif image.format == "WEBP":
        frames = list(_coded_frames(stream))
        coded_pixels = max((one.width * one.height for one in frames), default=declared_pixels)
        is_large = declared_pixels > UNCHECKED_WEBP_PIXELS
        _refuse_if(is_large and declared_pixels > MAX_CANVAS_RATIO * coded_pixels, image, path)
        for frame in frames:
            frame.check(path)


def _refuse_if(is_too_small: bool, image: Image.Image, path: Path) -> None:
    if is_too_small:
        size = f"{image.width}×{image.height}"
        problem = f"{path} claims to have {size} pixels but holds a far smaller picture"
        raise PictureError(problem, hint="get the file again")


def _max_frame_pixels(head: bytes) -> list[int]:
    """The largest frame in pixels that each sequence header of an AVIF allows; empty if any of them
    cannot be read."""
    headers = islice(_SEQUENCE_HEADER.finditer(head), _MAX_SEQUENCE_HEADERS)
    try:
        return [_sequence_pixels(_BitReader(head[m.end() : m.end() + m[1][0]])) for m in headers]
    except ValueError:
        return []


def _max_tiles(head: bytes) -> int:
    """The most coded images that an AVIF can be composed of: more than one only with a grid."""
    item_types = [match[1] for match in _ITEM_INFO.finditer(head)]
    return max(1, item_types.count(b"av01")) if b"grid" in item_types else 1


class _BitReader:
    """Reads bits of some bytes, the most significant first."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._remaining = int.from_bytes(data), 8 * len(data)

    def read(self, count: int) -> int:
        """An unsigned integer of `count` bits. Raises ValueError at the end."""
        self._remaining -= count
        if self._remaining < 0:
            raise ValueError
        return self._bits >> self._remaining & (1 << count) - 1


def _sequence_pixels(bits: _BitReader) -> int:
    """The pixels of the largest frame by a sequence header (AV1, 5.5.1).

    Raises ValueError if the header has timing information, which images do not need.
    """
    bits.read(4)  # seq_profile, still_picture
    if bits.read(1):  # reduced_still_picture_header
        bits.read(5)  # seq_level_idx
    else:
        if bits.read(1):  # timing_info_present_flag
            raise ValueError
        has_display_delay = bits.read(1)  # initial_display_delay_present_flag
        for _ in range(bits.read(5) + 1):  # operating points
            bits.read(12)  # operating_point_idc
            if bits.read(5) > 7:  # seq_level_idx
                bits.read(1)  # seq_tier
            if has_display_delay and bits.read(1):
                bits.read(4)  # initial_display_delay_minus_1
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    return (bits.read(width_bits) + 1) * (bits.read(height_bits) + 1)


@dataclass(frozen=True)
class _CodedFrame:
    """A coded image of a WebP: the only one, or a frame of an animation."""

    width: int
    height: int
    size: int  # bytes
    lossy: bool

    def check(self, path: Path) -> None:
        """Refuse, as a PictureError, a lossy image of too few bytes.

        A macroblock of 16×16 pixels has two prediction modes, which take more than 0.8 bits each:
        their probabilities in key frames are fixed (RFC 6386, 11.2). Lossless images may take no
        bits at all per pixel.
        """
        if self.lossy and 8 * self.size < -(-self.width // 16) * -(-self.height // 16):
            problem = f"{path} is damaged or truncated: its {self.size:,} coded bytes cannot hold "
            problem += f"{self.width}×{self.height} pixels"
            raise PictureError(problem, hint="get the file again")


def _coded_frames(stream: BinaryIO) -> Iterator[_CodedFrame]:
    """The coded images of a WebP, with the sizes in their own headers (RFC 6386, 9.1; RFC 9649,
    3.4)."""
    for chunk_type, size, head in _chunks_and_frame_chunks(stream):
        if chunk_type == b"VP8 " and head[3:6] == b"\x9d\x01\x2a":
            width, height = (int.from_bytes(head[i : i + 2], "little") & 0x3FFF for i in (6, 8))
            yield _CodedFrame(width, height, size, lossy=True)
        elif chunk_type == b"VP8L" and head[:1] == b"\x2f":
            bits = int.from_bytes(head[1:5], "little")
            yield _CodedFrame((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, size, lossy=False)


def _chunks_and_frame_chunks(stream: BinaryIO) -> Iterator[tuple[bytes, int, bytes]]:
    """(type, size, first ten bytes) of the chunks of a WebP, and of those in its frames (ANMF)."""
    for chunk in chunks(stream, png=False):
        if chunk.type != b"ANMF":
            yield chunk.type, chunk.size, stream.read(10)
            continue
        offset = stream.tell() + 16  # behind the frame's position, size and duration
        for _ in range(_MAX_FRAME_CHUNKS):
            if offset >= chunk.next_offset or len(head := _read_head(stream, offset)) < 8:
                break
            size = int.from_bytes(head[4:8], "little")
            yield head[:4], size, head[8:]
            offset += 8 + size + size % 2


def _read_head(stream: BinaryIO, offset: int) -> bytes:
    """The type and size of a chunk, and ten bytes of its data."""
    stream.seek(offset)
    return stream.read(18)
