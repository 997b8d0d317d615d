"""Every Pillow mode becomes 8-bit gray or RGB, with alpha if something is transparent."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import save, small_pixels
from PIL import Image, ImageCms

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io import conversion
from imgmlp.image_io.structure import segments

RGB, GRAY = small_pixels(), small_pixels(1)[:, :, 0]


def converted(image: Image.Image, alpha: bool = True) -> tuple[np.ndarray, tuple[str, ...]]:
    picture = pictures.from_image(image, alpha=alpha)
    return picture.pixels, picture.notes


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("1", 1), ("L", 1), ("P", 3), ("RGB", 3), ("YCbCr", 3), ("HSV", 3), ("LAB", 3), ("RGBX", 3)],
)
def test_each_mode_is_converted_to_its_visible_channels(mode: str, channels: int) -> None:
    image = Image.fromarray(RGB).convert(mode)
    pixels, _ = converted(image)
    expected = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    np.testing.assert_array_equal(pixels, expected.reshape(24, 31, channels))


@pytest.mark.parametrize(("mode", "channels"), [("LA", 2), ("La", 2), ("RGBA", 4), ("RGBa", 4)])
def test_alpha_is_the_last_channel(mode: str, channels: int) -> None:
    pixels = np.dstack([RGB, np.where(GRAY > 90, 255, 200).astype(np.uint8)])
    image = Image.fromarray(pixels).convert("LA" if channels == 2 else "RGBA")
    samples, notes = converted(image.convert(mode))
    np.testing.assert_array_equal(samples[:, :, -1], pixels[:, :, 3])
    assert samples.shape[2] == channels
    assert notes == ()


def test_bilevel_image_with_transparency_becomes_gray_and_alpha(tmp_path: Path) -> None:
    bits = Image.fromarray(GRAY > 90)
    for key in (0, 255):
        path = tmp_path / "a.png"
        bits.save(path, transparency=key)
        pixels = pictures.load(path, alpha=True).pixels
        white = np.asarray(bits)
        np.testing.assert_array_equal(pixels[:, :, 0], np.where(white, 255, 0))
        np.testing.assert_array_equal(pixels[:, :, 1] == 0, white == (key == 255))


def test_conversion_in_bands_of_rows_equals_that_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Image.fromarray(np.dstack([RGB, GRAY]))
    whole, _ = converted(image)
    monkeypatch.setattr(conversion, "PIXELS_PER_BAND", 70)  # two rows and a bit
    np.testing.assert_array_equal(converted(image)[0], whole)
    np.testing.assert_array_equal(whole, np.dstack([RGB, GRAY]))


def test_conversion_does_not_change_the_callers_image() -> None:
    image = Image.fromarray(RGB)
    pixels, _ = converted(image)
    pixels[:] = 0
    np.testing.assert_array_equal(np.asarray(image), RGB)


# CMYK


def gray_inks() -> bytes:
    """An ICC profile of four inks that are all gray, as bytes (ICC.1:2001-04, lut8Type)."""
    corners = np.indices((2, 2, 2, 2)).reshape(4, 16)  # of the cube of inks
    light = (1 - corners[3]) * (1 - corners[:3].mean(axis=0))
    table = np.stack([255 * light, *2 * [np.full(16, 128)]], axis=1).astype(np.uint8)  # L, a, b
    matrix = struct.pack(">9i", *(np.eye(3, dtype=int).ravel() * 65536).tolist())
    straight = bytes(range(256))
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix
    lut += 4 * straight + table.tobytes() + 3 * straight
    text = b"text" + bytes(4) + b"made for a test\0"
    described = b"desc" + bytes(4) + struct.pack(">I", 5) + b"inks\0" + bytes(78)
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    tags = {b"desc": described, b"cprt": text, b"wtpt": white, b"A2B0": lut}
    place, table_of_tags, data = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        table_of_tags += name + struct.pack(">II", place + len(data), len(content))
        data += content
    size = struct.pack(">I", place + len(data))
    head = size + bytes(4) + b"\x02\x10\0\0" + b"prtrCMYKLab " + bytes(12) + b"acsp"
    return (
        head
        + bytes(28)
        + struct.pack(">3i", 63190, 65536, 54061)
        + bytes(48)
        + table_of_tags
        + data
    )


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_cmyk_is_converted_to_srgb_by_its_profile(tmp_path: Path, suffix: str) -> None:
    image = Image.fromarray(RGB).convert("CMYK")
    path = tmp_path / f"a{suffix}"
    image.save(path, icc_profile=gray_inks())
    picture = pictures.load(path)
    assert picture.notes == ("CMYK is converted to sRGB by its colour profile",)
    assert picture.icc is None  # the profile was that of the inks
    levels = picture.pixels.astype(int)
    assert np.ptp(levels, axis=2).max() <= 2  # gray, but for rounding
    assert np.ptp(levels) > 100


def test_cmyk_without_a_profile_is_converted_roughly_with_a_note(tmp_path: Path) -> None:
    image = Image.fromarray(RGB).convert("CMYK")
    path = tmp_path / "a.tif"
    image.save(path)
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, np.asarray(image.convert("RGB")))
    assert ["roughly" in note for note in picture.notes] == [True]
    image.info["icc_profile"] = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    loaded = pictures.from_image(image)  # a profile of another kind
    np.testing.assert_array_equal(loaded.pixels, picture.pixels)
    assert "cannot be used" in loaded.notes[0]
    assert loaded.icc is None


@pytest.mark.parametrize("mode", ["F", "I"])
def test_samples_of_an_unknown_range_are_refused(mode: str) -> None:
    with pytest.raises(PictureError, match="32 bits") as caught:
        pictures.from_image(Image.fromarray(GRAY).convert(mode))
    assert caught.value.hint


def test_cielab_is_converted_to_srgb_with_a_note(tmp_path: Path) -> None:
    """The profile is dropped: it would be that of CIELab."""
    image = Image.new("LAB", (9, 7), (200, 128, 128))
    picture = pictures.load(save(image, tmp_path / "a.tif", icc_profile=b"of CIELab"))
    assert picture.icc is None
    assert picture.notes == ("CIELab is converted to sRGB",)
    assert np.ptp(picture.pixels.astype(int), axis=2).max() <= 3  # gray, but for rounding


@pytest.mark.parametrize("adobe", [False, True])
def test_cmyk_jpeg_is_inverted_with_and_without_an_adobe_marker(adobe: bool) -> None:
    """Browsers and ImageMagick invert the inks as well, even without Adobe's marker."""
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(stream := io.BytesIO(), "JPEG", quality=100)
    data = stream.getvalue()
    segment = next(one for one in segments(data) if one.marker == 0xEE)
    if not adobe:
        data = data[: segment.marker_offset] + data[segment.start + segment.length :]
    assert (b"Adobe" in data) == adobe
    assert pictures.load("a.jpg", data=data).pixels[0, 0].tolist() == [0, 255, 255]
