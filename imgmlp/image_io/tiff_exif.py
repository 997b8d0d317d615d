"""EXIF data of TIFFs, which are part of the file's own tags: read from them and added to them.

Pillow cannot write EXIF data to a TIFF that libtiff compresses.
"""

from __future__ import annotations

import struct

from PIL import ExifTags, Image, TiffImagePlugin

from imgmlp.metadata import ENTRY_BYTES, entry_offsets

# ImageDescription, Make, Model, Software, DateTime, Artist, Copyright
_DESCRIPTIVE_TAGS = 270, 271, 272, 305, 306, 315, 33432
_DIRECTORY_TAGS = ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo
# Tags of the EXIF directory (EXIF 2.3, 4.6.5). Some cameras store them in the image's directory.
_EXIF_TAGS = {33434, 33437, *range(34850, 34870), *range(36864, 37523), *range(40960, 42241)}
_EXIF_TAGS -= {ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop}
# What Pillow raises for values that a tag cannot have.
_INVALID = SyntaxError, ValueError, TypeError, KeyError, OverflowError, RuntimeError, struct.error


def of_image(image: Image.Image) -> bytes | None:
    """The tags of an open TIFF that describe the picture, as EXIF data."""
    try:
        exif, retained = image.getexif(), Image.Exif()
        retained.endian = exif.endian
        for tag in filter(exif.__contains__, (*_DESCRIPTIVE_TAGS, *_DIRECTORY_TAGS)):
            retained[tag] = _sub_directory(exif, tag) if tag in _DIRECTORY_TAGS else exif[tag]
        if misplaced := {tag: exif[tag] for tag in exif if tag in _EXIF_TAGS}:
            retained[ExifTags.IFD.Exif] = misplaced | _sub_directory(exif, ExifTags.IFD.Exif)
        return _to_bytes(retained)
    except _INVALID:
        return None


def _sub_directory(exif: Image.Exif, tag: int) -> dict[int, object]:
    """The EXIF or GPS directory, without its interoperability directory: Pillow represents that by
    its offset in the original file."""
    return {n: value for n, value in exif.get_ifd(tag).items() if n != ExifTags.IFD.Interop}


def that_fits(exif: bytes) -> bytes | None:
    """The EXIF data without the tags that a TIFF uses itself, to locate and decode its pixels.

    None if nothing remains or the data are invalid.
    """
    try:
        retained = Image.Exif()
        retained.load(exif)
        for tag in list(retained):
            if tag not in (*_DESCRIPTIVE_TAGS, *_DIRECTORY_TAGS):
                del retained[tag]
        return _to_bytes(retained)
    except _INVALID:
        return None


def _to_bytes(exif: Image.Exif) -> bytes | None:
    return exif.tobytes().removeprefix(b"Exif\0\0") if exif else None


def inserted(tiff: bytes, exif: bytes) -> bytes:
    """A TIFF of one page with the EXIF data from `that_fits` added to its tags (TIFF 6.0, section
    2).

    The values of the EXIF data and a new directory are appended to the file.
    """
    order = "<" if tiff[:2] == b"II" else ">"
    (offset,) = struct.unpack_from(f"{order}I", tiff, 4)
    start = len(tiff) + len(tiff) % 2  # even, as offsets must be
    added = _directory(exif, order, start)
    entry_by_tag = _entries(tiff, offset, order) | _entries(added, 0, order)
    body = tiff.ljust(start, b"\0") + added
    body += bytes(len(body) % 2)
    entries = b"".join(entry_by_tag[tag] for tag in sorted(entry_by_tag))
    directory = struct.pack(f"{order}H", len(entry_by_tag)) + entries + bytes(4)
    return body[:4] + struct.pack(f"{order}I", len(body)) + body[8:] + directory


def _directory(exif: bytes, order: str, offset: int) -> bytes:
    """The directory of EXIF data and its values, for a place in a file at `offset`."""
    tags = Image.Exif()
    tags.load(exif)
    head = b"II*\0\x08\0\0\0" if order == "<" else b"MM\0*\0\0\0\x08"
    directory = TiffImagePlugin.ImageFileDirectory_v2(head)
    for tag, value in tags.items():
        directory[tag] = _sub_directory(tags, tag) if tag in _DIRECTORY_TAGS else value
    return directory.tobytes(offset)


def _entries(data: bytes, offset: int, order: str) -> dict[int, bytes]:
    """The entries of the directory at an offset, by tag."""
    return {tag: data[at : at + ENTRY_BYTES] for tag, at in entry_offsets(data, order, offset)}
