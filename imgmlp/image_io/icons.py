"""Icons and cursors of Windows, made such as Pillow reads rightly.

Knows how their pictures are stored, and nothing of what becomes of them.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import BinaryIO

from imgmlp.errors import PictureError
from imgmlp.image_io.refusals import convert_hint
from imgmlp.image_io.structure import ICO_SIGNATURE, PNG_SIGNATURE

_CURSOR = b"\0\0\2\0"  # how cursors begin
_BYTES = 2**25  # of one that are looked at
_BITMAP = struct.Struct("<IiiHHI12xI4x")  # the header of a picture in one


def is_icon(start: bytes) -> bool:
    """Whether a file begins as one, or as a cursor."""
    return start.startswith((ICO_SIGNATURE, _CURSOR))


def rebuilt(stream: BinaryIO, path: Path) -> BinaryIO:
    """An icon or a cursor of Windows as an icon of its best picture alone, as Pillow can read it.

    Pillow believes the list of pictures, which may be wrong in how many bits a pixel has, takes the
    one of the fewest bits, and leaves out the masks of cursors. Raises PictureError and OSError.
    """
    stream.seek(0)
    data = stream.read(_BYTES)
    count = int.from_bytes(data[4:6], "little")
    places = range(6, min(6 + 16 * count, len(data) - 15), 16)
    listed = [data[at : at + 16] for at in places]
    if not listed:
        return io.BytesIO(data)
    best = max(listed, key=lambda one: _rank(data, one))
    told, at = struct.unpack_from("<II", best, 8)
    length = None if data.startswith(PNG_SIGNATURE, at) else told
    bits, size, body = _picture(data[at:][:length], path)
    entry = best[:4] + struct.pack("<HHII", 1, bits, size, 22)
    return io.BytesIO(ICO_SIGNATURE + b"\1\0" + entry + body)


def _rank(data: bytes, entry: bytes) -> tuple[int, int]:
    """Pixels and their bits of a picture in an icon."""
    at = int.from_bytes(entry[12:], "little")
    is_png = data.startswith(PNG_SIGNATURE, at)
    bits = 32 if is_png else int.from_bytes(data[at + 14 : at + 16], "little")
    return (entry[0] or 256) * (entry[1] or 256), bits


def _picture(body: bytes, path: Path) -> tuple[int, int, bytes]:
    """Bits of a pixel, bytes that there should be, and a picture with all colours it may list.

    Of 32 bits without any alpha they are 24, of which the mask tells what is transparent.
    """
    if body.startswith(PNG_SIGNATURE):
        return 32, len(body), body
    if len(body) < _BITMAP.size:
        raise OSError("its picture is missing")
    size, width, height, _, bits, coded, listed = _BITMAP.unpack_from(body)
    if size != _BITMAP.size or coded:
        raise PictureError(f"Pillow misreads {path}, a rare kind of icon", hint=convert_hint(path))
    most = 4 << bits if bits <= 8 else 0  # bytes
    begin = size + (4 * listed or most if most else 0)
    rows, mask = (4 * -(-width * n // 32) * (height // 2) for n in (bits, 1))
    needed = min(max(0, rows + mask), 2**31)
    pixels = body[begin : begin + needed]
    if not any(pixels[rows:]) and len(pixels) == rows + -(-width // 8) * (height // 2):
        pixels = pixels.ljust(needed, b"\0")  # Pillow does not fill up the rows of masks
    if bits == 32 and len(pixels) == needed and not any(pixels[3:rows:4]):
        bits = 24
    colours = body[size:begin][:most].ljust(most, b"\0")
    return bits, size + most + needed, body[:32] + bytes(8) + colours + pixels
