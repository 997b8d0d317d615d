"""What comes with a picture's pixels: colour profile, EXIF data, XMP data and resolution.

They are kept as bytes and hardly understood. Knows neither pictures nor codecs.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace

MAX_BYTES = 2**24  # of each
MAX_DPI = 1e6
USUAL_DPI = (72.0, 1.0)  # what programs take for granted; 1 is Pillow's, of a TIFF without any
_ORIENTATION, _PREVIEW, _PREVIEW_BYTES = 0x0112, 0x0201, 0x0202  # EXIF's tags
_INNER, _WIDTH, _HEIGHT = 0x8769, 0xA002, 0xA003  # likewise: of a directory, and what is in it
_SIDEWAYS = (5, 6, 7, 8)  # orientations
ENTRY = 12  # bytes of a directory's entry
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}  # of bytes, by what EXIF data begin with
_XMP_ORIENTATION = re.compile(rb"""(tiff:Orientation(?:\s*=\s*["']|>))([0-9])""")
NAMES = {"icc": "colour profile", "exif": "EXIF data", "xmp": "XMP data", "dpi": "resolution"}


@dataclass(frozen=True)
class Metadata:
    """Each of them is None if it is not known."""

    icc: bytes | None = None  # colour profile
    exif: bytes | None = None  # from the byte order on, without the mark that JPEG puts before it
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None  # dots an inch along rows and columns

    def names(self) -> list[str]:
        """Of those that there are, for people."""
        return [what for field, what in NAMES.items() if getattr(self, field) is not None]


NOTHING = Metadata()


def checked(found: Metadata, notes: list[str]) -> Metadata:
    """Without what is too large, makes no sense, or says that the picture is to be turned.

    Says in `notes` what was left out.
    """
    for field in ("icc", "exif", "xmp"):
        value = getattr(found, field)
        if value is not None and len(value) > MAX_BYTES:
            notes.append(f"the {NAMES[field]} is too large and was left out")
            found = replace(found, **{field: None})
    if found.exif is not None:
        upright = upright_exif(found.exif)
        if upright is None:
            notes.append("damaged EXIF data was left out")
        found = replace(found, exif=upright)
    if found.xmp is not None:
        found = replace(found, xmp=upright_xmp(found.xmp))
    if found.dpi is not None:
        across, down = found.dpi
        sound = _makes_sense(found.dpi)
        found = replace(found, dpi=(round(across, 3), round(down, 3)) if sound else None)
    return found


def _makes_sense(dpi: tuple[float, float]) -> bool:
    """Also false for what every program assumes where nothing is said."""
    usual = any(all(math.isclose(n, one, abs_tol=0.05) for n in dpi) for one in USUAL_DPI)
    return all(0.001 <= n <= MAX_DPI for n in dpi) and not usual


def orientation_of(xmp: bytes) -> int:
    """What XMP data say, as EXIF data would; 1 if nothing."""
    found = _XMP_ORIENTATION.search(xmp)
    return int(found[2]) if found else 1


def upright_xmp(xmp: bytes) -> bytes:
    """XMP data of a picture that was turned."""
    return _XMP_ORIENTATION.sub(rb"\g<1>1", xmp)


def upright_exif(exif: bytes) -> bytes | None:
    """EXIF data of a picture that was turned: its orientation is 1, its small preview is gone, its
    width is what was its height.

    Everything else stays where it is, as camera makers' notes count from the beginning. None if
    the data is damaged. The structure is that of TIFF 6.0, section 2.
    """
    order = _ORDERS.get(exif[:4])
    if order is None:
        return None
    data = bytearray(exif)
    try:
        (at,) = struct.unpack_from(f"{order}I", data, 4)
        inner, sideways = 0, False
        for tag, entry in entries(data, order, at):
            if tag == _INNER:
                (inner,) = struct.unpack_from(f"{order}I", data, entry + 8)
            if tag == _ORIENTATION:
                sideways = struct.unpack_from(f"{order}H", data, entry + 8)[0] in _SIDEWAYS
                struct.pack_into(f"{order}HIHH", data, entry + 2, 3, 1, 1, 0)
        if sideways and inner:
            _swap_sizes(data, order, inner)
        end = at + 2 + ENTRY * len(entries(data, order, at))
        # Some programs leave out that there is no other directory, where the data end.
        second = struct.unpack_from(f"{order}I", data, end)[0] if end + 4 <= len(data) else 0
    except struct.error:
        return None
    if end > len(data):
        return None
    if second:
        struct.pack_into(f"{order}I", data, end, 0)
        _blank_preview(data, order, second)
    return bytes(data)


def begins_as_exif(exif: bytes) -> bool:
    """Whether there is a byte order and the place of a directory."""
    return exif[:4] in _ORDERS and len(exif) >= 8


def entries(data: bytes | bytearray, order: str, at: int) -> list[tuple[int, int]]:
    """(tag, place) of each entry of the directory there. Raises struct.error."""
    (count,) = struct.unpack_from(f"{order}H", data, at)
    places = range(at + 2, at + 2 + ENTRY * count, ENTRY)
    return [(struct.unpack_from(f"{order}H", data, place)[0], place) for place in places]


def _swap_sizes(data: bytearray, order: str, directory: int) -> None:
    """The picture's width and height, if a directory has both."""
    try:
        found = dict(entries(data, order, directory))
        one, other = (slice(found[tag] + 2, found[tag] + ENTRY) for tag in (_WIDTH, _HEIGHT))
    except (struct.error, KeyError):
        return
    if max(one.stop, other.stop) <= len(data):
        data[one], data[other] = data[other], data[one]


def _blank_preview(data: bytearray, order: str, directory: int) -> None:
    """Zeros for the preview that a directory names; they cost nothing once they are compressed."""
    try:
        found = dict(entries(data, order, directory))
        start, count = (
            struct.unpack_from(f"{order}I", data, found[tag] + 8)[0]
            for tag in (_PREVIEW, _PREVIEW_BYTES)
        )
    except (struct.error, KeyError):
        return
    end = min(start + count, len(data))
    if start > directory:  # nothing but what lies behind it
        data[start:end] = bytes(max(0, end - start))
