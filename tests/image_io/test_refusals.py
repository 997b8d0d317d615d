"""Messages about unreadable files say what is wrong and what to do."""

from __future__ import annotations

import struct
from pathlib import Path

import hostile
import pytest
from conftest import small_pixels
from hostile import refusal
from PIL import Image

RGB = small_pixels()


def test_refusal_of_a_large_picture_names_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(hostile.png(20_000, 20_000))
    assert "has 20000×20000 pixels; the limit is 268,435,456" in str(refusal(path))
    path.write_bytes(b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + hostile.bitmap(-5, 7))
    assert "is -5×7: it has no pixels" in str(refusal(path))
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 60000 60000\n%%EndComments\n")
    assert "is a vector drawing (EPS)" in str(refusal(path))


def test_pillows_message_in_bytes_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6 99999999999999999999 5 255\n" + bytes(99))
    assert str(refusal(path)).endswith("Token too long in file header: 99999999999")


def test_vector_drawing_is_refused_as_having_no_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a b.eps"
    Image.fromarray(RGB).save(path)
    error = refusal(path)
    assert "drawing" in str(error)
    assert f"'{path}'" in error.hint
    path.write_bytes(b"\xd7\xcd\xc6\x9a\0\0" + struct.pack("<4hH", 0, 0, 9, 9, 72) + bytes(6)
                     + b"\x01\x00\x09\x00" + bytes(80))  # fmt: skip
    assert "drawing" in str(refusal(path))


def bitmap_file(header: bytes) -> bytes:
    return b"BM" + struct.pack("<IHHI", 14 + len(header), 0, 0, 14 + len(header)) + header


def test_empty_file_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.touch()
    assert str(refusal(path)) == f"{path} is empty"


def dds(four: bytes) -> bytes:
    kind = struct.pack("<II4s5I", 32, 4, four, 0, 0, 0, 0, 0)
    return b"DDS " + struct.pack("<7I44x", 124, 0x1007, 7, 9, 0, 0, 1) + kind + bytes(20)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.bmp", bitmap_file(struct.pack("<IiiHHIIiiII", 40, 9, 7, 1, 24, 4, 0, 0, 0, 0, 0))),
        ("b.bmp", bitmap_file(struct.pack("<I", 20) + bytes(16))),
        ("c.bmp", bitmap_file(struct.pack("<IiiHHIIiiII", 40, 9, 7, 1, 2, 0, 0, 0, 0, 0, 0))),
        ("a.dds", dds(b"YUY2")),
        ("a.grib", b"GRIB\0\0\0\1" + bytes(200)),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(200)),
    ],
)
def test_file_of_an_unsupported_kind_is_not_called_damaged(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    error = refusal(path)
    assert "Pillow cannot read" in str(error)
    assert "damaged" not in str(error)
    assert "get the file again" not in error.hint
    assert f"magick {path}" in error.hint


def test_heic_is_called_unreadable_by_pillow_with_a_hint_to_convert_it(tmp_path: Path) -> None:
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))
    error = refusal(path)
    assert "not a picture that Pillow can read" in str(error)
    assert f"magick {path}" in error.hint


def test_unreadable_file_of_a_known_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.psd"
    path.write_bytes(b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 7, 9, 16, 3) + bytes(99))
    error = refusal(path)
    assert "a damaged PSD file, or one of a kind that Pillow cannot read" in str(error)


def test_format_of_a_damaged_file_is_that_of_its_extension_if_it_begins_so(tmp_path: Path) -> None:
    """An XBM may begin with any comment."""
    for name in ("XPM", "XBM"):
        path = tmp_path / f"a.{name.lower()}"
        path.write_bytes(b"/* XPM */\nstatic char *a[] = {\n")
        assert f"is a damaged {name} file" in str(refusal(path))


def test_refusals_of_cgbi_png_and_15_bit_tga_name_their_kind(tmp_path: Path) -> None:
    data = hostile.png(9, 7, rows=7)
    path = tmp_path / "a.png"
    path.write_bytes(data[:8] + hostile.chunk(b"CgBI", bytes(4)) + data[8:])
    error = refusal(path)
    assert "iPhone" in str(error)
    assert f"ffmpeg -i {path}" in error.hint
    path = tmp_path / "a.tga"
    path.write_bytes(struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 9, 7, 15, 0) + bytes(126))
    assert "damaged TGA file, or one of a kind" in str(refusal(path))
