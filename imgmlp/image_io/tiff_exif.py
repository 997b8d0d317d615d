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
        exif, kept = image.getexif(), Image.Exif()
        kept.endian = exif.endian
        for tag in filter(exif.__contains__, (*_TOLD, *_INNER)):  # and no others' megabytes
            kept[tag] = _inner(exif, tag) if tag in _INNER else exif[tag]
        if misplaced := {tag: exif[tag] for tag in exif if tag in _OF_EXIF}:
            kept[ExifTags.IFD.Exif] = misplaced | _inner(exif, ExifTags.IFD.Exif)
        return _bytes(kept)
    except _WRONG:  # of values that no tag may have
        return None


def _inner(exif: Image.Exif, tag: int) -> dict[int, object]:
    """A directory without the one in it, which Pillow has as a place in the file that it was in."""
    return {n: value for n, value in exif.get_ifd(tag).items() if n != ExifTags.IFD.Interop}


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


def _bytes(exif: Image.Exif) -> bytes | None:
    return exif.tobytes().removeprefix(b"Exif\0\0") if exif else None


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
    entries = b"".join(every[tag] for tag in sorted(every))
    directory = struct.pack(f"{order}H", len(every)) + entries + bytes(4)
    return body[:4] + struct.pack(f"{order}I", len(body)) + body[8:] + directory


def _directory(exif: bytes, order: str, place: int) -> bytes:
    """That of EXIF data and what it points to, to be put at this place of a file."""
    tags = Image.Exif()
    tags.load(exif)
    head = b"II*\0\x08\0\0\0" if order == "<" else b"MM\0*\0\0\0\x08"
    directory = TiffImagePlugin.ImageFileDirectory_v2(head)
    for tag, value in tags.items():
        directory[tag] = _inner(tags, tag) if tag in _INNER else value
    return directory.tobytes(place)


def _entries(data: bytes, at: int, order: str) -> dict[int, bytes]:
    """The entries of the directory there, by tag."""
    return {tag: data[place : place + ENTRY] for tag, place in entries(data, order, at)}
