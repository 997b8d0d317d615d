"""Small files that claim much, or are not what they say: what nobody should be harmed by."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from imgmlp import image as pictures
from imgmlp.errors import PictureError

SIDE = 2**14  # of the largest square that is let in
MAGIC = b"\x89PNG\r\n\x1a\n"


def refusal(path: Path) -> PictureError:
    """What is said of a file that is not read: a line, and what to do."""
    with pytest.raises(PictureError) as caught:
        pictures.load(path)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def png(width: int, height: int, depth: int = 8, colour: int = 2, rows: int = 0) -> bytes:
    """A PNG that claims a size, and holds so many rows of zeros."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    line = bytes(1 + -(-width * channels * depth // 8))
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(line) for _ in range(rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return MAGIC + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def with_chunks(data: bytes, added: bytes, times: int = 1) -> bytes:
    """A PNG with something more before its pixels."""
    at = data.index(b"IDAT") - 4
    return data[:at] + added * times + data[at:]


def text_bomb() -> bytes:
    """A mebibyte of nothing, as a PNG's compressed text."""
    return chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(2**20), 9))


def chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def icns(inner: bytes) -> bytes:
    """A Mac's icon of 256×256, whose picture is another file."""
    return b"icns" + struct.pack(">I", 16 + len(inner)) + b"ic08" + _sized(inner)


def _sized(inner: bytes) -> bytes:
    return struct.pack(">I", 8 + len(inner)) + inner


def ico(inner: bytes, bits: int = 32) -> bytes:
    """A Windows icon of 16×16, whose picture is another file, or a bitmap without its first 14."""
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, bits, len(inner), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inner


def bitmap(width: int, height: int, bits: int = 32) -> bytes:
    """A bitmap's header, and hardly any pixels."""
    return struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0) + bytes(64)


def tiff(tags: dict[int, int], data: bytes = b"") -> bytes:
    """A little-endian TIFF with these tags; 273 or 324, the place of the data, is put in."""
    place = 8 + 2 + 12 * len(tags) + 4
    tags = {tag: place if tag in (273, 324) else value for tag, value in tags.items()}
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + b"".join(entries) + bytes(4) + data


def tiled_tiff(side: int) -> bytes:
    """9×7 pixels, in a tile that is much larger, and deflated to next to nothing."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(side)) for _ in range(side)) + packer.flush()
    tags = {256: 9, 257: 7, 258: 8, 259: 8, 262: 1, 277: 1}
    return tiff(tags | {322: side, 323: side, 324: 0, 325: len(data)}, data)


def jpeg(side: int, **options: object) -> bytes:
    """A JPEG of 9×7 pixels that claims to be a large square."""
    stream = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(stream, "JPEG", **options)
    return stream.getvalue().replace(struct.pack(">HH", 7, 9), struct.pack(">HH", side, side))


def many_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan is there so many times more."""
    stream = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + scan * scans + data[-2:]


BOMBS: dict[str, Callable[[], bytes]] = {
    "icns-png.icns": lambda: icns(png(SIDE, SIDE, 1, 0, SIDE)),
    "icns-jp2.icns": lambda: icns(_jpeg2000(2048)),
    "icns-claim.icns": lambda: icns(png(2 * SIDE, SIDE)),
    "ico-png.ico": lambda: ico(png(SIDE, SIDE, 1, 0, SIDE)),
    "ico-claim.ico": lambda: ico(png(70_000, 70_000)),
    "ico-bitmap.ico": lambda: ico(bitmap(30_000, 60_000)),
    "ico-mask.ico": lambda: ico(bitmap(200, 400, 24), 24),
    "png-claim.png": lambda: png(SIDE + 1, SIDE),
    "png-empty.png": lambda: png(SIDE, SIDE),
    "jpeg-claim.jpg": lambda: jpeg(SIDE),
    "jpeg-cut.jpg": lambda: jpeg(SIDE)[:-2],
    "jpeg-progressive.jpg": lambda: jpeg(SIDE, progressive=True)[:-2],
    "jpeg-scans.jpg": lambda: many_scans(1000),
    "png-chunks.png": lambda: with_chunks(png(9, 7, rows=7), chunk(b"abCd", b""), 100_000),
    "png-text.png": lambda: with_chunks(png(9, 7, rows=7), text_bomb(), 60),
    "tiff-tile.tif": lambda: tiled_tiff(2**14),
}


def _jpeg2000(side: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (side, side)).save(stream, "JPEG2000")
    return stream.getvalue()
