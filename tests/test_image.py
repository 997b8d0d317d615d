"""Pictures that are accepted or refused, and how files are written."""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import save, small_pixels
from hostile import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from imgmlp import image as pictures
from imgmlp.errors import ImgmlpError, PictureError, UsageError
from imgmlp.image_io.conversion import ALPHA_DROPPED
from imgmlp.metadata import MAX_BYTES, Metadata

RGB = small_pixels()
GRAY = small_pixels(1)
ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def with_alpha(alpha: np.ndarray | int, pixels: np.ndarray = RGB) -> np.ndarray:
    plane = np.broadcast_to(np.uint8(alpha), pixels.shape[:2])[:, :, None]
    return np.concatenate([pixels, plane], axis=-1)


def png_header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG that declares a size and has a few bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(64)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


# Accepted kinds


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp", ".ppm", ".webp"])
@pytest.mark.parametrize("pixels", [RGB, GRAY], ids=["rgb", "gray"])
def test_a_lossless_file_gives_its_pixels_back(
    tmp_path: Path, pixels: np.ndarray, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    pictures.save_picture(pixels, path)
    channels = 3 if suffix in (".webp", ".ppm") else pixels.shape[2]  # formats of RGB only
    np.testing.assert_array_equal(
        pictures.load(path).pixels, np.broadcast_to(pixels, (*pixels.shape[:2], channels))
    )


def test_picture_has_height_width_and_channels(tmp_path: Path) -> None:
    picture = pictures.load(save(Image.fromarray(RGB), tmp_path / "a.png"))
    assert (picture.width, picture.height, picture.channels) == (31, 24, 3)
    assert picture.pixels.dtype == np.uint8
    assert picture.notes == ()


def test_one_bit_pictures_become_gray(tmp_path: Path) -> None:
    bits = GRAY[:, :, 0] > 100
    picture = pictures.load(save(Image.fromarray(bits), tmp_path / "a.png"))
    np.testing.assert_array_equal(picture.pixels[:, :, 0], np.where(bits, 255, 0))


def test_a_palette_is_expanded(tmp_path: Path) -> None:
    indexed = Image.fromarray(GRAY[:, :, 0] // 64).convert("P")
    indexed.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7])
    picture = pictures.load(save(indexed, tmp_path / "a.png"))
    expected = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]])
    np.testing.assert_array_equal(picture.pixels, expected[GRAY[:, :, 0] // 64])


@pytest.mark.parametrize(
    "pixels", [with_alpha(255), with_alpha(255, GRAY)], ids=["RGBA", "gray and alpha"]
)
def test_an_opaque_alpha_channel_is_dropped_with_a_note(tmp_path: Path, pixels: np.ndarray) -> None:
    picture = pictures.load(save(Image.fromarray(pixels), tmp_path / "a.png"))
    np.testing.assert_array_equal(picture.pixels, pixels[:, :, :-1])
    assert picture.notes == (ALPHA_DROPPED,)


def test_a_transparent_colour_that_no_pixel_has_is_opaque(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png", transparency=(1, 2, 3))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, RGB)
    assert picture.notes == (ALPHA_DROPPED,)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
@pytest.mark.parametrize("pixels", [RGB, GRAY], ids=["RGB", "gray"])
def test_alpha_is_kept_if_requested(tmp_path: Path, pixels: np.ndarray, suffix: str) -> None:
    pixels = with_alpha(GRAY[:, :, 0], pixels)
    path = tmp_path / f"a{suffix}"
    pictures.save_picture(pixels, path, Metadata(ICC))
    picture = pictures.load(path, alpha=True)
    if suffix == ".webp" and pixels.shape[2] == 2:  # it has no gray
        pixels = pixels[:, :, [0, 0, 0, 1]]
    np.testing.assert_array_equal(picture.pixels, pixels)
    assert (picture.notes, picture.icc) == ((), ICC)


def test_transparent_colour_becomes_alpha_if_requested(tmp_path: Path) -> None:
    key = tuple(int(n) for n in RGB[3, 3])
    path = save(Image.fromarray(RGB), tmp_path / "a.png", transparency=key)
    picture = pictures.load(path, alpha=True)
    hidden = (RGB[3, 3] == RGB).all(axis=2)
    np.testing.assert_array_equal(picture.pixels[:, :, 3], np.where(hidden, 0, 255))
    np.testing.assert_array_equal(picture.pixels[:, :, :3], RGB)


def test_opaque_alpha_channel_is_dropped_even_if_requested(tmp_path: Path) -> None:
    path = save(Image.fromarray(with_alpha(255)), tmp_path / "a.png")
    picture = pictures.load(path, alpha=True)
    np.testing.assert_array_equal(picture.pixels, RGB)
    assert picture.notes == (ALPHA_DROPPED,)


@pytest.mark.parametrize("suffix", [".jpg", ".bmp", ".ppm", ".pgm"])
def test_saving_never_drops_alpha(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UsageError, match="cannot hold transparency") as caught:
        pictures.save_picture(with_alpha(9), tmp_path / f"a{suffix}")
    assert ".png" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate clockwise by 90 degrees
    path = save(Image.fromarray(RGB), tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(pictures.load(path).pixels, np.rot90(RGB, -1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_resolution_is_rotated_with_its_picture(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(Image.new("RGB", (8, 6)), tmp_path / "a.jpg", exif=exif, dpi=(72, 144))
    picture, turned = pictures.load(path), orientation >= 5
    assert (picture.width, picture.height) == ((6, 8) if turned else (8, 6))
    assert picture.metadata.dpi == ((144.0, 72.0) if turned else (72.0, 144.0))


def odd_exif(tag: int, value: object) -> Image.Exif:
    exif = Image.Exif()
    exif[tag] = value
    return exif


@pytest.mark.parametrize(
    ("mode", "info"),
    [
        ("RGB", {"exif": odd_exif(274, "x")}),
        ("RGB", {"exif": odd_exif(256, 2**70)}),
        ("CMYK", {"icc_profile": "a name"}),
        ("RGB", {"xmp": "\udc80"}),
        ("RGB", {"transparency": (1, 2)}),
        ("P", {"transparency": 300}),
    ],
)
def test_invalid_info_of_an_image_is_refused(mode: str, info: dict[str, object]) -> None:
    image = Image.new(mode, (4, 3))
    image.info |= info
    with pytest.raises(PictureError, match="cannot be used") as caught:
        pictures.from_image(image, alpha=True)
    assert "correct or remove" in caught.value.hint


def test_unrepresentable_resolution_is_ignored() -> None:
    image = Image.new("L", (4, 3))
    image.info["dpi"] = (10**400, 1)
    assert pictures.from_image(image).metadata.dpi is None


def test_damaged_exif_data_does_not_hide_the_pixels(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(pictures.load(path).pixels, RGB)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp", ".jpg"])
def test_the_colour_profile_is_kept(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    pictures.save_picture(RGB, path, Metadata(ICC))
    assert pictures.load(path).icc == ICC


def test_a_huge_colour_profile_is_left_out_with_a_note() -> None:
    image = Image.fromarray(RGB)
    image.info["icc_profile"] = bytes(MAX_BYTES + 1)
    picture = pictures.from_image(image)
    assert picture.icc is None
    assert "colour profile" in picture.notes[0]


def test_first_image_of_an_mpo_is_read(tmp_path: Path) -> None:
    first, second = Image.fromarray(GRAY[:, :, 0]), Image.fromarray(255 - GRAY[:, :, 0])
    path = save(first, tmp_path / "a.mpo", save_all=True, append_images=[second], quality=95)
    difference = pictures.load(path).pixels.astype(int) - GRAY
    # JPEG of this quality changes a smooth gray picture by 1 or 2; the second one is 100 off.
    assert np.abs(difference).mean() < 5


# Refused kinds


def test_refusal_of_transparency_has_a_hint(tmp_path: Path) -> None:
    alpha = np.where(GRAY[:, :, 0] > 9, 255, 254).astype(np.uint8)
    error = refusal(save(Image.fromarray(with_alpha(alpha)), tmp_path / "a.png"))
    assert "transparent" in str(error)
    assert f"magick {tmp_path / 'a.png'} -background white" in error.hint


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_a_transparent_colour_in_use_is_refused(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(RGB).convert(mode)
    key = image.getpixel((3, 3))
    assert "transparent" in str(refusal(save(image, tmp_path / "a.png", transparency=key)))


def test_floating_point_is_refused(tmp_path: Path) -> None:
    refusal(save(Image.fromarray(GRAY[:, :, 0].astype(np.float32)), tmp_path / "a.tif"))


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0)])
def test_a_picture_without_pixels_is_refused(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png_header(width, height))
    refusal(path)


def test_a_huge_picture_is_refused_from_its_header(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png_header(2**14 + 1, 2**14))
    assert "268,435,456" in str(refusal(path))


def test_a_large_picture_raises_no_warning(tmp_path: Path) -> None:
    # Above Pillow's own limit and below ours: only its pixels are missing.
    path = tmp_path / "a.png"
    path.write_bytes(png_header(13_400, 13_400, 1, 0))
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "truncated" in str(refusal(path))
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    "size", [(0, 5), (5, 0), (-1, 5), (2**14, 2**14 + 1), (pictures.MAX_PIXELS + 1, 1)]
)
def test_sizes_outside_the_limits_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        pictures.check_size(*size)


def test_the_largest_sizes_are_accepted() -> None:
    pictures.check_size(pictures.MAX_PIXELS, 1)
    pictures.check_size(2**14, 2**14)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"P6 2", bytes(1000)])
def test_file_that_is_no_picture_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(data)
    refusal(path)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".tif", ".bmp"])
def test_a_truncated_picture_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    pictures.save_picture(np.random.default_rng(1).integers(0, 256, (40, 40, 3), np.uint8), whole)
    part = tmp_path / f"part{suffix}"
    part.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    refusal(part)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damaged_file_gives_pixels_or_a_picture_error(data: st.DataObject) -> None:
    """Any byte of a small file is replaced."""
    stream = io.BytesIO()
    kind = data.draw(st.sampled_from(["PNG", "GIF", "TIFF", "BMP", "WEBP", "JPEG"]))
    Image.fromarray(RGB[:7, :5]).save(stream, kind)
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = Path(f"/proc/self/fd/{os.memfd_create('damaged')}")
    try:
        path.write_bytes(content)
        picture = pictures.load(path)
    except ImgmlpError as error:
        exit_code = error.exit_code
    else:
        exit_code = 0
        assert picture.pixels.dtype == np.uint8
        assert picture.pixels.ndim == 3
    finally:
        os.close(int(path.name))
    assert exit_code in (0, 3, 7)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        pictures.load(tmp_path / "a.png")


def test_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        pictures.load(tmp_path)


# PSNR


def test_psnr_follows_its_definition() -> None:
    other = RGB.copy()
    other[0, 0, 0] += 51
    error = 51**2 / RGB.size
    # float64 on both sides: only the last digits may differ
    assert pictures.psnr(RGB, other) == pytest.approx(10 * math.log10(255**2 / error), rel=1e-12)


def test_psnr_of_equal_pictures_is_infinite() -> None:
    assert pictures.psnr(RGB, RGB.copy()) == math.inf


def test_psnr_of_black_and_white_is_zero() -> None:
    assert pictures.psnr(np.zeros_like(RGB), np.full_like(RGB, 255)) == 0


def test_psnr_refuses_different_shapes() -> None:
    with pytest.raises(ValueError, match="shapes"):
        pictures.psnr(RGB, GRAY)


# Writing


def test_png_can_be_written_to_a_stream() -> None:
    stream = io.BytesIO()
    pictures.save_png(GRAY, stream, Metadata(ICC))
    stream.seek(0)
    with Image.open(stream) as image:
        assert (image.mode, image.info["icc_profile"]) == ("L", ICC)


@pytest.mark.parametrize(("suffix", "side"), [(".jpg", 65_501), (".webp", 16_384)])
def test_picture_too_large_for_its_output_format_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], suffix: str, side: int
) -> None:
    for height, width in ((1, side), (side, 1)):
        with pytest.raises(UsageError, match="cannot hold") as caught:
            pictures.save_picture(np.zeros((height, width, 3), np.uint8), tmp_path / f"a{suffix}")
        assert ".png" in caught.value.hint
    pictures.save_picture(np.zeros((1, side - 1, 3), np.uint8), tmp_path / f"b{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"b{suffix}"]
    assert capfd.readouterr() == ("", "")  # libjpeg would print a message


def test_an_unknown_extension_is_a_usage_error() -> None:
    for name in ("a.xyz", "a", "a.npz"):
        with pytest.raises(UsageError) as caught:
            pictures.check_extension(Path(name))
        assert ".png" in caught.value.hint
