"""Stores a picture's metadata in ancillary sections of a file (docs/format-imlp.md)."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any

from imgmlp.codec.bitstream.container import ICC, Container, Section
from imgmlp.errors import FormatError, check_format
from imgmlp.metadata import MAX_BYTES, MAX_DPI, Metadata

SECTION_TYPES = {"icc": "c", "exif": "e", "xmp": "x"}  # of deflated sections, by field of Metadata
RESOLUTION_TYPE = "d"
_RESOLUTION_UNITS_PER_DPI = 1000
_RAW_DEFLATE_WBITS = -15  # for zlib: the largest window, no header and no checksum


@lru_cache(maxsize=4)
def sections(metadata: Metadata) -> tuple[Section, ...]:
    """The sections for the metadata that a picture has."""
    result = []
    for field, section_type in SECTION_TYPES.items():
        if (data := getattr(metadata, field)) is not None:
            compressor = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE_WBITS)
            result.append(Section(section_type, compressor.compress(data) + compressor.flush()))
    if metadata.dpi is not None:
        across, down = (round(n * _RESOLUTION_UNITS_PER_DPI) for n in metadata.dpi)
        result.append(Section(RESOLUTION_TYPE, struct.pack(">II", across, down)))
    return tuple(result)


def size(metadata: Metadata) -> int:
    """Approximately the number of bytes that the metadata take in a file."""
    return sum(len(section.data) + 8 for section in sections(metadata))


def read(container: Container) -> Metadata:
    """The metadata in a file. Raises FormatError for damaged sections or two ICC profiles."""
    fields = {
        field: _inflated(container, section_type) for field, section_type in SECTION_TYPES.items()
    }
    uncompressed_icc = container.get(ICC)
    if uncompressed_icc is not None:
        check_format(fields["icc"] is None, "there are two colour profiles")
        fields["icc"] = uncompressed_icc
    return Metadata(**fields, dpi=_resolution(container.get(RESOLUTION_TYPE)))


def facts(metadata: Metadata) -> dict[str, Any]:
    """The properties of the metadata that `imgmlp info` prints."""
    sizes = {f"{field}_bytes": len(getattr(metadata, field) or b"") for field in SECTION_TYPES}
    return sizes | {"dpi": None if metadata.dpi is None else list(metadata.dpi)}


def _inflated(container: Container, section_type: str) -> bytes | None:
    data = container.get(section_type)
    if data is None:
        return None
    decompressor = zlib.decompressobj(_RAW_DEFLATE_WBITS)
    try:
        inflated = decompressor.decompress(data, MAX_BYTES)
    except zlib.error:
        raise _damaged(section_type) from None
    if not decompressor.eof or decompressor.unused_data:
        raise _damaged(section_type)
    return inflated


def _resolution(data: bytes | None) -> tuple[float, float] | None:
    if data is None:
        return None
    if len(data) != 8:
        raise _damaged(RESOLUTION_TYPE)
    across, down = (n / _RESOLUTION_UNITS_PER_DPI for n in struct.unpack(">II", data))
    if not (0 < across <= MAX_DPI and 0 < down <= MAX_DPI):
        raise _damaged(RESOLUTION_TYPE)
    return across, down


def _damaged(section_type: str) -> FormatError:
    return FormatError(f"what section {section_type!r} holds is damaged")
