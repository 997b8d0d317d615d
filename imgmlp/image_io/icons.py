"""Windows icons and cursors (ICO, CUR), rebuilt so that Pillow reads them correctly."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import BinaryIO

from imgmlp.errors import PictureError
from imgmlp.image_io.refusals import convert_hint
from imgmlp.image_io.structure import ICO_SIGNATURE, PNG_SIGNATURE

_CUR_SIGNATURE = b"\0\0\2\0"
_MAX_BYTES = 2**25  # of a file that are read
_ENTRY_BYTES = 16  # of an image in the directory, which follows a header of 6 bytes
# BITMAPINFOHEADER: biSize, biWidth, biHeight (colours and mask), biPlanes, biBitCount,
# biCompression, biClrUsed
_BITMAP_HEADER = struct.Struct("<IiiHHI12xI4x")


def is_icon(start: bytes) -> bool:
    """Whether a file begins as an icon or a cursor."""
    return start.startswith((ICO_SIGNATURE, _CUR_SIGNATURE))


def rebuilt(stream: BinaryIO, path: Path) -> BinaryIO:
    """A Windows icon or cursor as an icon of its best image alone, in a form that Pillow can read.

    Pillow trusts the directory, whose bits per pixel may be wrong, prefers images of the fewest
    bits, and ignores the masks of cursors. Raises PictureError and OSError.
    """
    stream.seek(0)
    data = stream.read(_MAX_BYTES)
    count = int.from_bytes(data[4:6], "little")
    offsets = range(6, min(6 + _ENTRY_BYTES * count, len(data) - 15), _ENTRY_BYTES)
    entries = [data[offset : offset + _ENTRY_BYTES] for offset in offsets]
    if not entries:
        return io.BytesIO(data)
    best = max(entries, key=lambda entry: _pixels_and_bits(data, entry))
    listed_size, offset = struct.unpack_from("<II", best, 8)
    length = None if data.startswith(PNG_SIGNATURE, offset) else listed_size
    bits, size, body = _image(data[offset:][:length], path)
    entry = best[:4] + struct.pack("<HHII", 1, bits, size, 6 + _ENTRY_BYTES)
    return io.BytesIO(ICO_SIGNATURE + b"\1\0" + entry + body)


def _pixels_and_bits(data: bytes, entry: bytes) -> tuple[int, int]:
    """The pixels of an image in an icon, and the bits of each."""
    offset = int.from_bytes(entry[12:], "little")
    is_png = data.startswith(PNG_SIGNATURE, offset)
    bits = 32 if is_png else int.from_bytes(data[offset + 14 : offset + 16], "little")
    return (entry[0] or 256) * (entry[1] or 256), bits


def _image(body: bytes, path: Path) -> tuple[int, int, bytes]:
    """(bits per pixel, bytes that a complete image has, the image) of an image in an icon.

    A bitmap gets a palette of the full size. One of 32 bits without any alpha is declared to have
    24, so that Pillow takes its transparency from the mask.
    """
    if body.startswith(PNG_SIGNATURE):
        return 32, len(body), body
    if len(body) < _BITMAP_HEADER.size:
        raise OSError("its picture is missing")
    header_size, width, height, _, bits, compression, colours = _BITMAP_HEADER.unpack_from(body)
    if header_size != _BITMAP_HEADER.size or compression:
        raise PictureError(f"Pillow misreads {path}, a rare kind of icon", hint=convert_hint(path))
    max_palette_bytes = 4 << bits if bits <= 8 else 0
    palette_bytes = (4 * colours or max_palette_bytes) if max_palette_bytes else 0
    start = header_size + palette_bytes
    # Rows of colours and mask are padded to 32 bits; biHeight counts both.
    colour_bytes, mask_bytes = (4 * -(-width * n // 32) * (height // 2) for n in (bits, 1))
    needed_bytes = min(max(0, colour_bytes + mask_bytes), 2**31)
    pixels = body[start : start + needed_bytes]
    has_unpadded_mask = len(pixels) == colour_bytes + -(-width // 8) * (height // 2)
    if has_unpadded_mask and not any(pixels[colour_bytes:]):
        pixels = pixels.ljust(needed_bytes, b"\0")  # Pillow does not pad the rows of masks
    if bits == 32 and len(pixels) == needed_bytes and not any(pixels[3:colour_bytes:4]):
        bits = 24
    palette = body[header_size:start][:max_palette_bytes].ljust(max_palette_bytes, b"\0")
    # The header without biClrUsed and biClrImportant: all colours are used.
    return (
        bits,
        header_size + max_palette_bytes + needed_bytes,
        body[:32] + bytes(8) + palette + pixels,
    )
