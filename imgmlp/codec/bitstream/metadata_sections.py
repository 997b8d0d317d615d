"""Stores a picture's metadata in ancillary sections of a file (docs/format-imlp.md)."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any

from imgmlp.codec.bitstream.container import ICC, Container, Section
from imgmlp.errors import FormatError, check_format
from imgmlp.metadata import MAX_BYTES, MAX_DPI, Metadata

DEFLATED = {"icc": "c", "exif": "e", "xmp": "x"}  # section types by field of Metadata
RESOLUTION = "d"
_RESOLUTION_UNITS_PER_DPI = 1000
_RAW_DEFLATE = -15  # wbits of zlib: the largest window, without header and checksum


@lru_cache(maxsize=4)
def sections(found: Metadata) -> tuple[Section, ...]:
    """The sections for the metadata that a picture has."""
    made = []
    for field, kind in DEFLATED.items():
        if (data := getattr(found, field)) is not None:
            packer = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE)
            made.append(Section(kind, packer.compress(data) + packer.flush()))
    if found.dpi is not None:
        across, down = (round(n * _RESOLUTION_UNITS_PER_DPI) for n in found.dpi)
        made.append(Section(RESOLUTION, struct.pack(">II", across, down)))
    return tuple(made)


def size(found: Metadata) -> int:
    """Approximately the number of bytes that the metadata take in a file."""
    return sum(len(section.data) + 8 for section in sections(found))


def read(container: Container) -> Metadata:
    """The metadata in a file. Raises FormatError."""
    fields = {field: _inflated(container, kind) for field, kind in DEFLATED.items()}
    plain = container.get(ICC)
    if plain is not None:
        check_format(fields["icc"] is None, "there are two colour profiles")
        fields["icc"] = plain
    return Metadata(**fields, dpi=_resolution(container.get(RESOLUTION)))


def facts(found: Metadata) -> dict[str, Any]:
    """The properties of the metadata that `imgmlp info` prints."""
    sizes = {f"{field}_bytes": len(getattr(found, field) or b"") for field in DEFLATED}
    return sizes | {"dpi": None if found.dpi is None else list(found.dpi)}


def _inflated(container: Container, kind: str) -> bytes | None:
    data = container.get(kind)
    if data is None:
        return None
    unpacker = zlib.decompressobj(_RAW_DEFLATE)
    try:
        found = unpacker.decompress(data, MAX_BYTES)
    except zlib.error:
        raise _damaged(kind) from None
    if not unpacker.eof or unpacker.unused_data:
        raise _damaged(kind)
    return found


def _resolution(data: bytes | None) -> tuple[float, float] | None:
    if data is None:
        return None
    if len(data) != 8:
        raise _damaged(RESOLUTION)
    across, down = (n / _RESOLUTION_UNITS_PER_DPI for n in struct.unpack(">II", data))
    if not (0 < across <= MAX_DPI and 0 < down <= MAX_DPI):
        raise _damaged(RESOLUTION)
    return across, down


def _damaged(kind: str) -> FormatError:
    return FormatError(f"what section {kind!r} holds is damaged")
