"""Windows icons and cursors are read with the pixels and masks that are in them."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hostile import refusal
from PIL import Image
from test_pillow_faults import pixels

from imgmlp import image as pictures
from imgmlp.errors import PictureError

BLACK_WHITE, RED_GREEN = bytes([0] * 4 + [255] * 3 + [0]), bytes([0, 0, 255, 0, 0, 255, 0, 0])


def icon_picture(bits: int, row: bytes, colours: bytes = b"") -> bytes:
    """A bitmap of two pixels; its mask hides the second."""
    head = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, bits, 0, 0, 0, 0, len(colours) // 4, 0)
    return head + colours + row.ljust(4 * -(-bits // 16), b"\0") + b"\x40\0\0\0"


def icon(kind: int, *ones: tuple[int, bytes]) -> bytes:
    """An icon (kind 1) or a cursor, with these bits per pixel and images in its directory."""
    data, place = struct.pack("<HHH", 0, kind, len(ones)), 6 + 16 * len(ones)
    for listed_bits, body in ones:
        data += struct.pack("<4B2H2I", 2, 1, 0, 0, 1, listed_bits, len(body), place)
        place += len(body)
    return data + b"".join(body for _, body in ones)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("listed_bits", [0, 24, 32])
@pytest.mark.parametrize(
    ("bits", "row", "colours", "first", "second"),
    [
        (1, b"\x40", BLACK_WHITE, [0, 0, 0, 255], [255, 255, 255, 0]),
        (8, b"\0\1", BLACK_WHITE, [0, 0, 0, 255], [255, 255, 255, 0]),
        (8, b"\0\1", RED_GREEN, [255, 0, 0, 255], [0, 255, 0, 0]),
        (16, b"\0\x7c\x1f\0", b"", [255, 0, 0, 255], [0, 0, 255, 0]),
        (24, bytes(range(6)), b"", [2, 1, 0, 255], [5, 4, 3, 0]),
        (32, bytes([1, 2, 3, 9, 4, 5, 6, 8]), b"", [3, 2, 1, 9], [6, 5, 4, 8]),
        (32, bytes([1, 2, 3, 0, 4, 5, 6, 0]), b"", [3, 2, 1, 255], [6, 5, 4, 0]),
    ],
)
def test_masks_of_icons_and_cursors_become_alpha(
    kind: int,
    listed_bits: int,
    bits: int,
    row: bytes,
    colours: bytes,
    first: list[int],
    second: list[int],
) -> None:
    """Even if the directory has wrong bits per pixel or a wrong size."""
    picture = icon_picture(bits, row, colours)
    for body in (picture, picture + bytes(9)):
        assert pixels(icon(kind, (listed_bits, body))) == [[first, second]]


@pytest.mark.parametrize("kind", [1, 2])
def test_image_of_the_most_bits_in_an_icon_is_read(kind: int) -> None:
    deep, flat = (icon_picture(32, bytes(range(8))), icon_picture(8, b"\0\1", RED_GREEN))
    for ones in (((32, deep), (8, flat)), ((8, flat), (32, deep))):
        assert pixels(icon(kind, *ones)) == [[[2, 1, 0, 3], [6, 5, 4, 7]]]


@pytest.mark.parametrize("alpha", [0, 9])
def test_an_icon_of_32_bits_needs_no_mask(alpha: int) -> None:
    body = icon_picture(32, bytes([1, 2, 3, alpha, 4, 5, 6, 0]))[:-4]
    assert pixels(icon(1, (32, body))) == [[[3, 2, 1, alpha], [6, 5, 4, 0]]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(9, 7), (16, 16), (32, 32)])
def test_icon_without_png_written_by_pillow_is_read(mode: str, size: tuple[int, int]) -> None:
    """Pillow writes two images, and does not pad the rows of their masks as it should."""
    noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    image = Image.fromarray(noise).convert(mode)
    image.save(stream := io.BytesIO(), "ICO", bitmap_format="bmp", sizes=[size, (2, 2)])
    pixels = pictures.load("a.ico", data=stream.getvalue()).pixels
    np.testing.assert_array_equal(np.broadcast_to(pixels, noise.shape), image.convert("RGB"))


def test_incomplete_or_rare_icon_is_refused(tmp_path: Path) -> None:
    path, sound = tmp_path / "a.ico", icon_picture(24, bytes(range(6)))
    for body, words in (
        (sound[:-4], "not enough image data"),
        (b"", "its picture is missing"),
        (sound[:16] + b"\3" + sound[17:], "a rare kind of icon"),
        (b"\x6c" + sound[1:], "a rare kind of icon"),
    ):
        path.write_bytes(icon(1, (24, body)))
        assert words in str(refusal(path))


def test_an_image_of_a_cursor_is_refused() -> None:
    data = icon(2, (0, icon_picture(24, bytes(range(6)))))
    for loaded in (False, True):
        with Image.open(io.BytesIO(data)) as image:
            if loaded:
                image.load()
            with pytest.raises(PictureError, match="a cursor with a mask") as caught:
                pictures.from_image(image)
        assert "file's name" in caught.value.hint
