"""Metadata of a picture: colour profile, EXIF data, XMP data and resolution.

They are carried as opaque bytes, except for what depends on the orientation of the pixels.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace

MAX_BYTES = 2**24  # of each kind of metadata
MAX_DPI = 1e6
# Resolutions that programs assume where none is stored; Pillow reports 1 for a TIFF without any.
DEFAULT_DPI = (72.0, 1.0)
# Tags of EXIF data: of the first directory, of the thumbnail in the second, of the EXIF directory
_TAG_ORIENTATION = 0x0112
_TAG_EXIF_DIRECTORY = 0x8769
_TAG_THUMBNAIL_OFFSET = 0x0201  # JPEGInterchangeFormat
_TAG_THUMBNAIL_BYTES = 0x0202  # JPEGInterchangeFormatLength
_TAG_WIDTH = 0xA002  # PixelXDimension
_TAG_HEIGHT = 0xA003  # PixelYDimension
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap width and height
ENTRY_BYTES = 12  # of a directory (TIFF 6.0, section 2)
_VALUE_OFFSET = 8  # in an entry, behind tag, type and count
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}  # struct's, by the first bytes of EXIF data
_XMP_ORIENTATION = re.compile(rb"""(tiff:Orientation(?:\s*=\s*["']|>))([0-9])""")
NAMES = {"icc": "colour profile", "exif": "EXIF data", "xmp": "XMP data", "dpi": "resolution"}


@dataclass(frozen=True)
class Metadata:
    """The metadata of a picture; None for what it does not have."""

    icc: bytes | None = None  # colour profile
    exif: bytes | None = None  # from the byte order on, without the prefix that it has in a JPEG
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None  # dots per inch along rows and columns

    def names(self) -> list[str]:
        """The names of the metadata that are present, for messages."""
        return [name for field, name in NAMES.items() if getattr(self, field) is not None]


NOTHING = Metadata()


def checked(metadata: Metadata, notes: list[str]) -> Metadata:
    """The metadata without what is too large or invalid, for a picture whose pixels were rotated
    upright.

    Appends to `notes` what was left out.
    """
    for field in ("icc", "exif", "xmp"):
        value = getattr(metadata, field)
        if value is not None and len(value) > MAX_BYTES:
            notes.append(f"the {NAMES[field]} is too large and was left out")
            metadata = replace(metadata, **{field: None})
    if metadata.exif is not None:
        upright = upright_exif(metadata.exif)
        if upright is None:
            notes.append("damaged EXIF data was left out")
        metadata = replace(metadata, exif=upright)
    if metadata.xmp is not None:
        metadata = replace(metadata, xmp=upright_xmp(metadata.xmp))
    if metadata.dpi is not None:
        x, y = metadata.dpi
        is_useful = _is_useful_dpi(metadata.dpi)
        metadata = replace(metadata, dpi=(round(x, 3), round(y, 3)) if is_useful else None)
    return metadata


def _is_useful_dpi(dpi: tuple[float, float]) -> bool:
    """Whether a resolution is plausible and not what programs assume anyway."""
    is_default = any(all(math.isclose(n, one, abs_tol=0.05) for n in dpi) for one in DEFAULT_DPI)
    return all(0.001 <= n <= MAX_DPI for n in dpi) and not is_default


def orientation_of(xmp: bytes) -> int:
    """The orientation in XMP data, numbered as in EXIF data; 1 if there is none."""
    match = _XMP_ORIENTATION.search(xmp)
    return int(match[2]) if match else 1


def upright_xmp(xmp: bytes) -> bytes:
    """The XMP data with an orientation of 1, for a picture that was rotated upright."""
    return _XMP_ORIENTATION.sub(rb"\g<1>1", xmp)


def upright_exif(exif: bytes) -> bytes | None:
    """The EXIF data of a picture that was rotated upright: the orientation is 1, the thumbnail is
    blank, and width and height are swapped if the picture was on its side.

    Nothing is moved, as makers' notes may contain offsets from the beginning. None if the data are
    damaged. The structure is that of TIFF 6.0, section 2.
    """
    order = _BYTE_ORDERS.get(exif[:4])
    if order is None:
        return None
    data = bytearray(exif)
    try:
        (directory,) = struct.unpack_from(f"{order}I", data, 4)
        exif_directory, is_sideways = 0, False
        for tag, entry in entry_offsets(data, order, directory):
            if tag == _TAG_EXIF_DIRECTORY:
                (exif_directory,) = struct.unpack_from(f"{order}I", data, entry + _VALUE_OFFSET)
            if tag == _TAG_ORIENTATION:
                (orientation,) = struct.unpack_from(f"{order}H", data, entry + _VALUE_OFFSET)
                is_sideways = orientation in _SIDEWAYS
                # type SHORT, one value: 1
                struct.pack_into(f"{order}HIHH", data, entry + 2, 3, 1, 1, 0)
        if is_sideways and exif_directory:
            _swap_width_and_height(data, order, exif_directory)
        end = directory + 2 + ENTRY_BYTES * len(entry_offsets(data, order, directory))
        # Some programs omit the offset of the next directory where the data end.
        next_directory = (
            struct.unpack_from(f"{order}I", data, end)[0] if end + 4 <= len(data) else 0
        )
    except struct.error:
        return None
    if end > len(data):
        return None
    if next_directory:
        struct.pack_into(f"{order}I", data, end, 0)
        _blank_thumbnail(data, order, next_directory)
    return bytes(data)


def begins_as_exif(exif: bytes) -> bool:
    """Whether the data begin with a byte order and the offset of a directory."""
    return exif[:4] in _BYTE_ORDERS and len(exif) >= 8


def entry_offsets(data: bytes | bytearray, order: str, directory: int) -> list[tuple[int, int]]:
    """(tag, offset) of each entry of the directory at an offset. Raises struct.error."""
    (count,) = struct.unpack_from(f"{order}H", data, directory)
    offsets = range(directory + 2, directory + 2 + ENTRY_BYTES * count, ENTRY_BYTES)
    return [(struct.unpack_from(f"{order}H", data, offset)[0], offset) for offset in offsets]


def _swap_width_and_height(data: bytearray, order: str, directory: int) -> None:
    """Swap the picture's width and height in the EXIF directory if it has both."""
    try:
        offsets = dict(entry_offsets(data, order, directory))
        width, height = (
            slice(offsets[tag] + 2, offsets[tag] + ENTRY_BYTES) for tag in (_TAG_WIDTH, _TAG_HEIGHT)
        )
    except (struct.error, KeyError):
        return
    if max(width.stop, height.stop) <= len(data):
        data[width], data[height] = data[height], data[width]


def _blank_thumbnail(data: bytearray, order: str, directory: int) -> None:
    """Overwrite the thumbnail of a directory with zeros, which compress to almost nothing."""
    try:
        offsets = dict(entry_offsets(data, order, directory))
        start, count = (
            struct.unpack_from(f"{order}I", data, offsets[tag] + _VALUE_OFFSET)[0]
            for tag in (_TAG_THUMBNAIL_OFFSET, _TAG_THUMBNAIL_BYTES)
        )
    except (struct.error, KeyError):
        return
    end = min(start + count, len(data))
    if start > directory:  # never the directory itself or what precedes it
        data[start:end] = bytes(max(0, end - start))
