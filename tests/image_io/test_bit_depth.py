"""Samples of more than 8 bits are reduced to 8 bits with a note, or the file is refused."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import save, small_pixels
from hostile import refusal
from PIL import Image, features

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io.bit_depth import ROUNDED, UPPER_BITS, depth

RGB, GRAY = small_pixels(), small_pixels(1)


def test_rgb565_bitmap_counts_as_8_bits_per_sample(tmp_path: Path) -> None:
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    header = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0) + masks
    data = struct.pack("<HH", 0xF800, 0x07E0)
    path = tmp_path / "a.bmp"
    path.write_bytes(b"BM" + struct.pack("<IHHI", 14 + len(header) + 4, 0, 0, 66) + header + data)
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, [[[255, 0, 0], [0, 255, 0]]])
    assert picture.notes == ()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_gray_of_16_bits_keeps_its_upper_8_bits(tmp_path: Path, suffix: str) -> None:
    deep = GRAY[:, :, 0].astype(np.uint16) * 256 + 200
    picture = pictures.load(save(Image.fromarray(deep), tmp_path / f"a{suffix}"))
    np.testing.assert_array_equal(picture.pixels, GRAY)
    assert picture.notes == (UPPER_BITS.format(16),)


def deep_png(channels: int) -> tuple[bytes, np.ndarray]:
    """A PNG of 5×4 pixels with 16 bits per sample, and its samples."""
    values = np.random.default_rng(channels).integers(0, 2**16, (4, 5, channels), np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", 5, 4, 16, colour, 0, 0, 0)
    data = hostile.chunk(b"IDAT", hostile.zlib.compress(rows))
    return (
        hostile.MAGIC + hostile.chunk(b"IHDR", header) + data + hostile.chunk(b"IEND", b""),
        values,
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_colours_and_alpha_of_16_bits_keep_their_upper_8_bits(
    tmp_path: Path, channels: int
) -> None:
    data, values = deep_png(channels)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    picture = pictures.load(path, alpha=True)
    np.testing.assert_array_equal(picture.pixels, values >> 8)
    assert picture.notes == (UPPER_BITS.format(16),)


def test_16_bit_tiff_keeps_its_upper_8_bits_in_colour_and_with_white_as_0(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    values = np.arange(63 * 3, dtype="<u2") * 300
    tags = {256: 9, 257: 7, 259: 1, 262: 2, 273: 0, 277: 3, 278: 7, 279: values.nbytes}
    path.write_bytes(hostile.tiff(tags | {258: 16}, values.tobytes()))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels.ravel(), values >> 8)
    assert picture.notes == (UPPER_BITS.format(16),)
    tags |= {262: 0, 277: 1, 258: 16, 279: 126}
    path.write_bytes(hostile.tiff(tags, values[:63].tobytes()))
    np.testing.assert_array_equal(
        pictures.load(path).pixels.ravel(), (65535 - values[:63].astype(int)) >> 8
    )


def test_a_ppm_of_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    values = np.random.default_rng(0).integers(0, 2**16, (9, 7, 3), np.uint16)
    path.write_bytes(b"P6 7 9 65535\n" + values.astype(">u2").tobytes())
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, values >> 8)
    assert picture.notes == (UPPER_BITS.format(16),)
    path.write_bytes(b"P6 7 9 60000\n" + np.minimum(values, 60_000).astype(">u2").tobytes())
    picture = pictures.load(path)
    np.testing.assert_allclose(picture.pixels, np.minimum(values, 60_000) / 60_000 * 255, atol=0.51)
    assert picture.notes == (ROUNDED.format(16),)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_colour_of_16_bits(channels: int) -> None:
    """The colour is that of a pixel, differs from it in the last bit only, or occurs nowhere."""
    data, values = deep_png(channels)
    at = data.index(b"IDAT") - 4
    for change in (0, 1):
        colour = values[2, 1] ^ np.array([0] * (channels - 1) + [change], np.uint16)
        key = hostile.chunk(b"tRNS", colour.astype(">u2").tobytes())
        keyed = data[:at] + key + data[at:]
        alpha = np.full((4, 5, 1), 255)
        alpha[2, 1] = 255 * change
        expected = np.concatenate([values >> 8, alpha], axis=2)[..., : channels + 1 - change]
        picture = pictures.load("a.png", alpha=True, data=keyed)
        np.testing.assert_array_equal(picture.pixels, expected)
        assert UPPER_BITS.format(16) in picture.notes
        with Image.open(io.BytesIO(keyed)) as image:
            picture = pictures.from_image(image, alpha=True)
        np.testing.assert_array_equal(picture.pixels, expected)


def test_a_transparent_colour_of_16_bits_in_a_later_frame_is_refused(tmp_path: Path) -> None:
    data, values = deep_png(3)
    at, path = data.index(b"IDAT") - 4, tmp_path / "a.png"
    pixels, end = data[at:-12], data[-12:]
    key = hostile.chunk(b"tRNS", values[0, 0].astype(">u2").tobytes())
    controls = [struct.pack(">5I2H2B", n, 5, 4, 0, 0, 1, 10, 0, 0) for n in (0, 1)]
    again = hostile.chunk(b"fdAT", struct.pack(">I", 2) + pixels[8:-4])
    path.write_bytes(
        data[:at]
        + key
        + hostile.chunk(b"acTL", struct.pack(">II", 2, 0))
        + hostile.chunk(b"fcTL", controls[0])
        + pixels
        + hostile.chunk(b"fcTL", controls[1])
        + again
        + end
    )
    assert pictures.load(path, alpha=True, frame=1).pixels[0, 0, 3] == 0
    with pytest.raises(PictureError, match="16 bits per sample and a transparent colour") as caught:
        pictures.load(path, alpha=True, frame=2)
    assert "magick" in caught.value.hint


def test_jpeg_2000_colours_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    """Pillow rounds them up to 256, which becomes 0."""
    stream = io.BytesIO()
    Image.fromarray(RGB).save(stream, "JPEG2000")
    data = bytearray(stream.getvalue())
    at = data.index(b"\xff\x4f\xff\x51") + 42
    assert data[at : at + 9 : 3] == bytes([7, 7, 7])
    data[at + 3] = 15
    path = tmp_path / "a.jp2"
    path.write_bytes(data)
    error = refusal(path)
    assert "16 bits per sample" in str(error)
    assert f"magick {path}" in error.hint


def test_depth_of_more_than_8_bits_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P5 2 1 1023\n" + struct.pack(">HH", 1023, 512))
    picture = pictures.load(path)
    assert picture.pixels.ravel().tolist() == [255, 128]
    assert picture.notes == (UPPER_BITS.format(10),)
    deep = Image.fromarray(GRAY[:, :, 0].astype(np.uint16) * 256)
    assert pictures.load(save(deep, tmp_path / "a.jp2")).notes == (UPPER_BITS.format(16),)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize(("flags", "bits"), [(0, 8), (0x40, 10), (0x60, 12)])
def test_depth_of_an_avif_is_read_from_its_configuration_box(flags: int, bits: int) -> None:
    stream = io.BytesIO()
    Image.fromarray(RGB).save(stream, "AVIF")
    data = bytearray(stream.getvalue())
    data[data.index(b"av1C") + 6] |= flags
    with Image.open(stream) as image:
        assert depth(image, io.BytesIO(data)) == bits
