"""Sound files of which Pillow would read other pixels: they are read rightly, or refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import pytest
from hostile import MAGIC, chunk, refusal
from PIL import Image

from imgmlp import image as pictures
from imgmlp.errors import PictureError


def pixels(data: bytes, frame: int | None = None) -> list[object]:
    """Of a file, row by row."""
    found: list[object] = pictures.load("a", alpha=True, data=data, frame=frame).pixels.tolist()
    return found


# PNG


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("key", [0, 1])
def test_the_transparent_gray_of_few_bits(bits: int, key: int) -> None:
    """A PNG of two pixels, 0 and 1."""
    header = struct.pack(">IIBBBBB", 2, 1, bits, 0, 0, 0, 0)
    row = zlib.compress(b"\0" + (1 << 16 - 2 * bits).to_bytes(2))
    parts = ((b"IHDR", header), (b"tRNS", bytes([0, key])), (b"IDAT", row), (b"IEND", b""))
    step = 255 // (2**bits - 1)
    data = MAGIC + b"".join(chunk(*part) for part in parts)
    assert pixels(data) == [[[0, 255 * key], [step, 255 * (1 - key)]]]
    for times in range(2):
        with Image.open(io.BytesIO(data)) as image:
            found = [pictures.from_image(image, alpha=True) for _ in range(times + 1)][-1]
            assert found.pixels.tolist() == [[[0, 255 * key], [step, 255 * (1 - key)]]]


# TIFF


def tiff(
    size: tuple[int, int], photometric: int, *blocks: bytes, samples: int = 1, **tags: list[int]
) -> bytes:
    """A TIFF of 8 bits a sample, not compressed, with these strips; tags are named _284."""
    width, height = size
    data, places = bytearray(8), []
    for block in blocks:
        places.append(len(data))
        data += block
    fields = {256: [width], 257: [height], 258: [8] * samples, 259: [1], 262: [photometric]}
    fields |= {273: places, 277: [samples], 278: [height], 279: [len(one) for one in blocks]}
    fields |= {int(name[1:]): value for name, value in tags.items()}
    entries = b""
    for tag, values in sorted(fields.items()):
        field = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            field, begin = struct.pack("<I", len(data)), field
            data += begin
        entries += struct.pack("<HHI", tag, 4, len(values)) + field
    data[:8] = b"II*\0" + struct.pack("<I", len(data))
    return bytes(data) + struct.pack("<H", len(fields)) + entries + bytes(4)


COLOURS = [value * 257 for value in range(256)] * 3


@pytest.mark.parametrize(
    ("photometric", "planes", "tags"),
    [
        (1, (b"\x0a\x14", b"\xff\x80"), {"_338": [2]}),
        (3, (b"\x0a\x14", b"\xff\x80"), {"_338": [2], "_320": COLOURS}),
        (8, (b"\x80\x80", b"\0\0", b"\0\0"), {}),
    ],
)
def test_separate_planes_that_pillow_mixes_up_are_refused(
    tmp_path: Path, photometric: int, planes: tuple[bytes, ...], tags: dict[str, list[int]]
) -> None:
    """Alpha beside gray or listed colours, and CIELab."""
    path = tmp_path / "a.tif"
    count = len(planes)
    path.write_bytes(tiff((2, 1), photometric, *planes, samples=count, _284=[2], **tags))
    assert "planes are separate" in str(refusal(path))
    mixed = bytes(value for pixel in zip(*planes, strict=True) for value in pixel)
    path.write_bytes(tiff((2, 1), photometric, mixed, samples=count, **tags))
    assert pictures.load(path, alpha=True).pixels.shape[:2] == (1, 2)


def test_nor_is_an_image_of_such_planes_taken_that_was_loaded_before(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff((2, 1), 8, b"\x80\x80", b"\0\0", b"\0\0", samples=3, _284=[2]))
    with Image.open(path) as image:
        image.load()
        with pytest.raises(PictureError, match="planes are separate"):
            pictures.from_image(image)
