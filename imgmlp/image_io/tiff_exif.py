"""EXIF data of a TIFF, whose own tags they are: read from them, and put among them.

Pillow writes none beside pixels that libtiff compresses. Knows nothing of pixels.
"""

from __future__ import annotations

import struct

from PIL import ExifTags, Image, TiffImagePlugin

from imgmlp.metadata import ENTRY, entries

_TOLD = 270, 271, 272, 305, 306, 315, 33432  # what, maker, camera, program, date, who, rights
_INNER = ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo  # directories
# Tags of EXIF's directory (EXIF 2.3, 4.6.5), some of which cameras have among those of the picture.
_OF_EXIF = {33434, 33437, *range(34850, 34870), *range(36864, 37523), *range(40960, 42241)}
_OF_EXIF -= {ExifTags.IFD.GPSInfo, ExifTags.IFD.Interop}
_WRONG = SyntaxError, ValueError, TypeError, KeyError, OverflowError, RuntimeError, struct.error


def of_image(image: Image.Image) -> bytes | None:
    """What the tags of an open TIFF tell beside the pixels, as EXIF data."""
    try:
        found, kept = image.getexif(), Image.Exif()
        kept.endian = found.endian
        for tag in filter(found.__contains__, (*_TOLD, *_INNER)):  # and no others' megabytes
            kept[tag] = _inner(found, tag) if tag in _INNER else found[tag]
        if misplaced := {tag: found[tag] for tag in found if tag in _OF_EXIF}:
            kept[ExifTags.IFD.Exif] = misplaced | _inner(found, ExifTags.IFD.Exif)
        return _bytes(kept)
    except _WRONG:  # of values that no tag may have
        return None


def _inner(found: Image.Exif, tag: int) -> dict[int, object]:
    """A directory without the one in it, which Pillow has as a place in the file that it was in."""
    return {n: value for n, value in found.get_ifd(tag).items() if n != ExifTags.IFD.Interop}


def that_fits(exif: bytes) -> bytes | None:
    """What tags of a TIFF can tell of EXIF data, as such; None if that is nothing."""
    try:
        return _bytes(_told(exif))
    except _WRONG:
        return None


def _told(exif: bytes) -> Image.Exif:
    """What tells of the picture, and not where its pixels are, nor how they are coded."""
    kept = Image.Exif()
    kept.load(exif)
    for tag in list(kept):
        if tag not in (*_TOLD, *_INNER):
            del kept[tag]
    return kept


def _bytes(found: Image.Exif) -> bytes | None:
    return found.tobytes().removeprefix(b"Exif\0\0") if found else None


def inserted(tiff: bytes, exif: bytes) -> bytes:
    """A TIFF of one page, with EXIF data that fit among its tags (TIFF 6.0, section 2).

    They stand behind everything else, and so does its directory.
    """
    order = "<" if tiff[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", tiff, 4)
    start = len(tiff) + len(tiff) % 2
    added = _directory(exif, order, start)
    every = _entries(tiff, at, order) | _entries(added, 0, order)
    body = tiff.ljust(start, b"\0") + added
    body += bytes(len(body) % 2)
    found = b"".join(every[tag] for tag in sorted(every))
    directory = struct.pack(f"{order}H", len(every)) + found + bytes(4)
    return body[:4] + struct.pack(f"{order}I", len(body)) + body[8:] + directory


def _directory(exif: bytes, order: str, place: int) -> bytes:
    """That of EXIF data and what it points to, to be put at this place of a file."""
    found = Image.Exif()
    found.load(exif)
    head = b"II*\0\x08\0\0\0" if order == "<" else b"MM\0*\0\0\0\x08"
    directory = TiffImagePlugin.ImageFileDirectory_v2(head)
    for tag, value in found.items():
        directory[tag] = _inner(found, tag) if tag in _INNER else value
    return directory.tobytes(place)


def _entries(data: bytes, at: int, order: str) -> dict[int, bytes]:
    """The entries of the directory there, by tag."""
    return {tag: data[place : place + ENTRY] for tag, place in entries(data, order, at)}
