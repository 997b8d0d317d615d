"""Which frame or page of a file is read by default, and which can be chosen."""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import save, small_pixels
from PIL import Image, TiffImagePlugin

from imgmlp import image as pictures
from imgmlp.errors import PictureError, UsageError
from imgmlp.image_io.frames import MASK_LEFT_OUT, ONLY_FIRST

RGB, GRAY = small_pixels(), small_pixels(1)


def frames(path: Path, **options: object) -> Path:
    images = [Image.fromarray(GRAY[:, :, 0] // k) for k in (1, 2, 3)]
    return save(images[0], path, save_all=True, append_images=images[1:], **options)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".tif"])
def test_first_frame_is_read_unless_another_is_chosen(tmp_path: Path, suffix: str) -> None:
    path = frames(tmp_path / f"a{suffix}", **({"lossless": True} if suffix == ".webp" else {}))
    first = pictures.load(path)
    np.testing.assert_array_equal(first.pixels[:, :, :1], GRAY)
    assert [note for note in first.notes if "--frame" in note]
    for number in (1, 2, 3):
        picture = pictures.load(path, frame=number)
        np.testing.assert_array_equal(picture.pixels[:, :, :1], GRAY // number)
        assert not [note for note in picture.notes if "--frame" in note]


@pytest.mark.parametrize("frame", [0, 4, -1])
def test_missing_frame_is_a_usage_error(tmp_path: Path, frame: int) -> None:
    for path in (frames(tmp_path / "a.gif"), frames(tmp_path / "a.tif")):
        with pytest.raises(UsageError, match=f"no frame {frame}"):
            pictures.load(path, frame=frame)


def test_a_plain_picture_has_one_frame(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png")
    np.testing.assert_array_equal(pictures.load(path, frame=1).pixels, RGB)
    with pytest.raises(UsageError):
        pictures.load(path, frame=2)


def tiff_pages(path: Path, *kinds: int, tag: int = 254) -> Path:
    """A TIFF with a page of each kind: 0 is a picture of its own, 1 a reduced copy, 4 a mask."""
    images = []
    for number, kind in enumerate(kinds):
        image = Image.fromarray(RGB[:: number + 1, :: number + 1].copy())
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[tag] = kind
        image.encoderinfo = {"tiffinfo": tags}
        images.append(image)
    return save(images[0], path, save_all=True, append_images=images[1:])


def test_reduced_copies_in_a_tiff_do_not_count_as_frames(tmp_path: Path) -> None:
    picture = pictures.load(tiff_pages(tmp_path / "a.tif", 0, 1, 5))
    np.testing.assert_array_equal(picture.pixels, RGB)
    assert picture.notes == ()
    assert pictures.load(tiff_pages(tmp_path / "b.tif", 0, 1, 0)).notes
    older = tiff_pages(tmp_path / "c.tif", 1, 2, tag=255)  # 1: full resolution, 2: reduced
    assert pictures.load(older).notes == ()


def test_ignored_mask_of_a_tiff_page_is_noted(tmp_path: Path) -> None:
    path = tiff_pages(tmp_path / "a.tif", 0, 1, 4, 0, 0, 4)
    assert pictures.load(path).notes == (MASK_LEFT_OUT, ONLY_FIRST)
    for frame, masked in ((1, True), (2, False), (3, True)):
        assert pictures.load(path, frame=frame).notes == (MASK_LEFT_OUT,) * masked
    np.testing.assert_array_equal(pictures.load(path, frame=3).pixels, RGB[::5, ::5])
    only = pictures.load(tiff_pages(tmp_path / "b.tif", 4, 4))
    np.testing.assert_array_equal(only.pixels, RGB)
    assert only.notes == ()


def test_frame_numbers_skip_reduced_copies_of_tiff_pages(tmp_path: Path) -> None:
    path = tiff_pages(tmp_path / "a.tif", 1, 0, 1, 0)
    for frame, step in ((None, 2), (1, 2), (2, 4)):
        np.testing.assert_array_equal(pictures.load(path, frame=frame).pixels, RGB[::step, ::step])
    with pytest.raises(UsageError, match="no frame 3"):
        pictures.load(path, frame=3)
    only = tiff_pages(tmp_path / "b.tif", 1, 1)
    np.testing.assert_array_equal(pictures.load(only).pixels, RGB)


def test_unreadable_tiff_pages_do_not_prevent_reading_others(tmp_path: Path) -> None:
    """The pages include one with a camera's colour filter array, and a mask."""
    path = tiff_pages(tmp_path / "a.tif", 0, 0, 0, 4)
    data = bytearray(path.read_bytes())
    for page, photometric in ((1, 32803), (3, 4)):
        at = tiff_field(data, 262, page)[0] + 8
        data[at : at + 2] = struct.pack("<H", photometric)
    path.write_bytes(data)
    sound = tiff_pages(tmp_path / "b.tif", 0, 0, 0)
    for number in (1, 3):
        pixels, expected = (pictures.load(one, frame=number).pixels for one in (path, sound))
        np.testing.assert_array_equal(pixels, expected)
    assert pictures.load(path).notes == (ONLY_FIRST,)
    with pytest.raises(PictureError, match="unknown pixel mode"):
        pictures.load(path, frame=2)
    with pytest.raises(UsageError) as caught:
        pictures.load(path, frame=4)
    assert "there are 3" in caught.value.hint


def test_tiff_page_does_not_inherit_the_profile_of_another_page(tmp_path: Path) -> None:
    profiles = (None, b"one", None, b"other")
    with TiffImagePlugin.AppendingTiffWriter(tmp_path / "a.tif", True) as writer:
        for profile in profiles:
            Image.fromarray(RGB).save(writer, "TIFF", icc_profile=profile)
            writer.newFrame()
    for number, profile in enumerate(profiles, 1):
        assert pictures.load(tmp_path / "a.tif", frame=number).icc == profile
    assert pictures.load(tmp_path / "a.tif").icc is None


@pytest.mark.parametrize("cut", [4, 14, 40])
def test_a_frame_before_a_damaged_one_is_read(tmp_path: Path, cut: int) -> None:
    path = frames(tmp_path / "a.gif", duration=50)
    data = path.read_bytes()
    begins = [found.start() for found in re.finditer(b"!\xf9\4", data)]
    for sound in (1, 2):
        path.write_bytes(data[: begins[sound] + cut])
        for number in range(1, sound + 1):
            found = pictures.load(path, frame=number).pixels
            np.testing.assert_array_equal(found[:, :, :1], GRAY // number)
        first = pictures.load(path)
        np.testing.assert_array_equal(first.pixels[:, :, :1], GRAY)
        assert first.notes == (ONLY_FIRST,)
        with pytest.raises(PictureError, match="damaged or truncated"):
            pictures.load(path, frame=sound + 1)


@pytest.mark.parametrize(
    ("kind", "is_noted"), [(0x020002, True), (0, True), (0x010001, False), (0x010002, False)]
)
def test_second_image_of_an_mpo_is_noted_unless_it_is_a_reduced_copy(
    kind: int, is_noted: bool
) -> None:
    """Types: a stereo image, an unknown one, and reduced copies of two sizes."""
    images = [Image.new("L", (8, 8), value) for value in (10, 200)]
    images[0].save(stream := io.BytesIO(), "MPO", save_all=True, append_images=images[1:])
    data = stream.getvalue()
    size = data.index(b"\xff\xd8", 2)
    at = data.index(struct.pack("<II", 0x030000, size)) + 16  # the entry of the second image
    data = data[:at] + struct.pack("<I", kind) + data[at + 4 :]
    picture = pictures.load("a.jpg", data=data)
    assert picture.pixels[0, 0] == 10
    assert picture.notes == (ONLY_FIRST,) * is_noted
    assert pictures.load("a.jpg", data=data, frame=2).pixels[0, 0] == 200


def test_frame_beyond_the_limit_is_not_searched(tmp_path: Path) -> None:
    path = frames(tmp_path / "a b.gif")
    with pytest.raises(UsageError, match="beyond the first 2,048") as caught:
        pictures.load(path, frame=2049)
    assert f"magick '{path}''[2048]' frame.png" in caught.value.hint


def layered_psd(layers: int) -> bytes:
    """A PSD of 9×7 pixels with empty layers; its merged image is gray."""
    record = struct.pack(">4iH", 0, 0, 0, 0, 1) + struct.pack(">hI", 0, 2)
    record += b"8BIMnorm" + bytes(4) + struct.pack(">I", 0)
    inner = struct.pack(">h", layers) + record * layers + bytes(2 * layers)
    block = struct.pack(">I", len(inner)) + inner
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 1, 7, 9, 8, 1)
    return head + bytes(8) + struct.pack(">I", len(block)) + block + bytes(2) + bytes(range(63))


@pytest.mark.parametrize("layers", [1, 3])
def test_merged_image_of_a_layered_psd_is_read(tmp_path: Path, layers: int) -> None:
    path = tmp_path / "a.psd"
    path.write_bytes(layered_psd(layers))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels.ravel(), range(63))
    assert bool(picture.notes) == (layers > 1)
    assert pictures.load(path, frame=1).notes == ()
    with pytest.raises(UsageError):
        pictures.load(path, frame=2)


def tiff_field(data: bytearray, tag: int, page: int = 0) -> tuple[int, int]:
    """The offset of an entry of a TIFF's page, and the fields that describe its value."""
    at = int.from_bytes(data[4:8], "little") + 2
    for _ in range(page):
        then = at + 12 * int.from_bytes(data[at - 2 : at], "little")
        at = int.from_bytes(data[then : then + 4], "little") + 2
    while int.from_bytes(data[at : at + 2], "little") != tag:
        at += 12
    return at, int.from_bytes(data[at + 8 : at + 12], "little")
