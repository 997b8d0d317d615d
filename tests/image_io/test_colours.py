"""Colour spaces without an ICC profile are kept, or reported as lost."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import small_pixels
from PIL import Image, ImageCms

from imgmlp import image as pictures
from imgmlp.image_io.colours import PROFILE_MADE, profile

SRGB = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
P3 = (0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)
PIXELS = small_pixels()


def chunks(gamma: float | None = None, ends: tuple[float, ...] = (), more: bytes = b"") -> bytes:
    gamma_chunk = (
        b"" if gamma is None else hostile.chunk(b"gAMA", struct.pack(">I", round(gamma * 1e5)))
    )
    packed = struct.pack(f">{len(ends)}I", *(round(one * 1e5) for one in ends))
    return gamma_chunk + (hostile.chunk(b"cHRM", packed) if ends else b"") + more


def png(path: Path, pixels: np.ndarray, added: bytes) -> Path:
    Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
    path.write_bytes(hostile.with_chunks(stream.getvalue(), added))
    return path


def as_srgb(picture: pictures.Picture) -> np.ndarray:
    """The samples of a picture converted to sRGB by its profile."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(picture.icc or b""))
    image, srgb = pictures.to_image(picture.pixels), ImageCms.createProfile("sRGB")
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    seen = ImageCms.profileToProfile(image, source, srgb, intent, "RGB")
    assert seen is not None
    return np.asarray(seen)


def linear(pixels: np.ndarray) -> np.ndarray:
    """Linear light of sRGB samples (IEC 61966-2-1)."""
    share = pixels / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("gamma", [1.0, 1 / 1.8, 0.3])
@pytest.mark.parametrize("channels", [1, 3])
def test_gamma_of_a_png_becomes_an_equivalent_profile(
    tmp_path: Path, gamma: float, channels: int
) -> None:
    pixels = PIXELS if channels == 3 else PIXELS[:, :, 0]
    picture = pictures.load(png(tmp_path / "a.png", pixels, chunks(gamma)))
    np.testing.assert_array_equal(picture.pixels.squeeze(), pixels)
    assert picture.notes == (PROFILE_MADE,)
    expected = (pixels / 255) ** (1 / gamma)
    seen = linear(as_srgb(picture))
    # Half a sample of 8 bits, and a 256th of the exponent that a profile does not say.
    np.testing.assert_allclose(seen if channels == 3 else seen[:, :, 0], expected, atol=0.006)


def test_primaries_of_a_png_become_those_of_a_profile(tmp_path: Path) -> None:
    """Samples of P3 are sRGB's after a matrix (SMPTE EG 432-1, IEC 61966-2-1)."""
    pixels = np.array([[[128, 128, 128], [255, 255, 255], [120, 160, 130], [90, 80, 70]]], np.uint8)
    picture = pictures.load(png(tmp_path / "a.png", pixels, chunks(0.45455, P3)))
    matrix = [[1.2249, -0.2247, 0], [-0.042, 1.0419, 0], [-0.0197, -0.0786, 1.0979]]
    expected = (pixels / 255) ** 2.2 @ np.transpose(matrix)
    np.testing.assert_allclose(linear(as_srgb(picture)), expected, atol=0.004)


@pytest.mark.parametrize(
    "added",
    [
        b"",
        chunks(0.45455, SRGB),
        chunks(0.47),
        chunks(None, (*SRGB[:7], 0.068)),
        chunks(1.0, P3, hostile.chunk(b"sRGB", b"\0")),
        chunks(0),
        chunks(20_000),
        chunks(1, (0.3,) * 8),
        chunks(1, (0.3, 0) * 4),
    ],
)
def test_srgb_or_implausible_gamma_and_primaries_make_no_profile(
    tmp_path: Path, added: bytes
) -> None:
    picture = pictures.load(png(tmp_path / "a.png", PIXELS, added))
    assert (picture.icc, picture.notes) == (None, ())


@pytest.mark.parametrize("value", [None, "x", float("nan"), float("inf"), (1, 2), -1])
def test_profile_of_arbitrary_info_is_bytes_or_none(value: object) -> None:
    assert profile({"gamma": value}, gray=False) is None
    assert profile({"gamma": 1, "chromaticity": value}, gray=False) is None


def test_gray_has_no_primaries(tmp_path: Path) -> None:
    path = png(tmp_path / "a.png", PIXELS[:, :, 0], chunks(0.45455, P3))
    assert pictures.load(path).icc is None


def test_embedded_profile_has_priority_over_gamma_and_strip_leaves_out_both(tmp_path: Path) -> None:
    path = png(tmp_path / "a.png", PIXELS, chunks(1.0))
    assert pictures.load(path, strip=True).icc is None
    assert pictures.load(path, strip=True).notes == ()
    with Image.open(path) as image:
        image.info["icc_profile"] = b"another"
        assert pictures.from_image(image).icc == b"another"


LINES = [(1, 13, False), (2, 2, False), (1, 6, False), (9, 16, True), (12, 13, True), (1, 8, True)]


@pytest.mark.parametrize(("primaries", "transfer", "is_lost"), LINES)
def test_colour_space_given_by_code_points_is_reported_as_lost(
    tmp_path: Path, primaries: int, transfer: int, is_lost: bool
) -> None:
    words = f"primaries {primaries} and transfer {transfer}"
    added = hostile.chunk(b"cICP", bytes([primaries, transfer, 0, 1]))
    notes = pictures.load(png(tmp_path / "a.png", PIXELS, added)).notes
    assert [words in note for note in notes] == [True] * is_lost
    for profiled in (False, True):
        options = {"icc_profile": profile({"gamma": 1}, False)}
        image = Image.fromarray(PIXELS)
        image.save(stream := io.BytesIO(), "AVIF", **(options if profiled else {}))
        head, mark, rest = stream.getvalue().partition(b"nclx")
        numbers = struct.pack(">HH", primaries, transfer)
        notes = pictures.load("a.avif", data=head + mark + numbers + rest[4:]).notes
        assert [words in note for note in notes] == [True] * (is_lost and not profiled)
