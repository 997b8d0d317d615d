"""Files of strangers: what they may take, which of their frames counts, why they are refused."""

from __future__ import annotations

import io
import os
import re
import resource
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import hostile
import numpy as np
import pytest
from conftest import environment, small_pixels
from hostile import refusal
from PIL import Image, ImageFile, ImImagePlugin, TiffImagePlugin, features

from imgmlp import image as pictures
from imgmlp import image_claims, image_files, image_png
from imgmlp.errors import PictureError, UsageError
from imgmlp.image_depth import ROUNDED, UPPER_BITS, depth
from imgmlp.image_frames import MASK_LEFT_OUT, ONLY_FIRST
from imgmlp.image_parts import CODESTREAM, SCAN, chunks, segments
from imgmlp.image_png import END_MISSING, LAST
from imgmlp.library_messages import silent_libraries

RGB, GRAY = small_pixels(), small_pixels(1)
MOST = 64  # MiB that refusing all of them may take
CHILD = """
import resource, sys
from imgmlp import image
from imgmlp.errors import PictureError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak()
for path in sys.argv[1:]:
    try:
        image.load(path, alpha=True)
    except PictureError:
        pass
    else:
        sys.exit(f"{path} was taken for a picture")
print(peak() - before)
"""


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


# Bombs


@pytest.mark.skipif(sys.platform != "linux", reason="others count memory in other units")
def test_what_claims_much_is_refused_and_takes_little(tmp_path: Path) -> None:
    """In a process of its own, whose limits only see to it that nothing else is harmed."""
    for name, make in hostile.BOMBS.items():
        (tmp_path / name).write_bytes(make())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))

    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, sorted(tmp_path.iterdir()))],
        env=environment(),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST * 1024  # KiB
    assert done.stderr == ""


@pytest.mark.parametrize("wrap", [bytes, hostile.icns, hostile.ico])
def test_countless_tiny_chunks_are_refused_in_icons_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrap: Callable[[bytes], bytes]
) -> None:
    path, flood = tmp_path / "a", hostile.chunk(b"abCd", b"")
    path.write_bytes(wrap(hostile.with_chunks(hostile.png(16, 16, rows=16), flood, 5000)))
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    assert "more than 4,096 tiny chunks" in str(refusal(path))


def test_chunks_are_looked_at_no_further_than_they_may_be_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[object]()

    def counted(stream: BinaryIO, png: bool) -> Iterator[object]:
        for chunk in chunks(stream, png):
            looked.append(chunk)
            yield chunk

    monkeypatch.setattr(image_png, "chunks", counted)
    monkeypatch.setattr(image_png, "MOST_CHUNKS", 100)
    data = hostile.with_chunks(hostile.png(9, 7, rows=7), hostile.chunk(b"abCd", bytes(200)), 999)
    image_png.check_chunks(io.BytesIO(data), Path("a.png"))
    assert len(looked) == 100


def test_a_jpeg_of_countless_markers_is_refused(tmp_path: Path) -> None:
    """Of those without a size, in a scan, where an encoder has none of them."""
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg")
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\xff\x01" * 20_000 + data[-2:])
    assert "has more than 16,384 segments" in str(refusal(path))
    path.write_bytes(data[:-2] + b"\xff\x01" * 1000 + data[-2:])
    assert pictures.load(path).notes == ()


def test_restart_markers_that_a_jpeg_need_not_have_take_nothing(tmp_path: Path) -> None:
    data = noisy("RGB", restart_marker_blocks=2)
    found = image_claims.jpeg(data + b"\xff\xd0" * 500_000)
    (scan,) = found._scans()
    tracemalloc.start()
    try:
        assert not found._lacks_restarts(scan)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("start", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xc5\xd0\xd3\xc6"])
def test_a_drawing_is_refused_before_pillow_reads_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    path = tmp_path / "a.eps"
    path.write_bytes(start + b"%%X: y\n" * 1000)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    assert "is a drawing (EPS)" in str(refusal(path))


@pytest.mark.filterwarnings("ignore:IM image format")  # which Pillow is about to give up
def test_lines_of_text_are_no_header_of_an_im_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mail.txt"
    save(Image.fromarray(RGB), tmp_path / "a.im")
    np.testing.assert_array_equal(pictures.load(tmp_path / "a.im").pixels, RGB)
    large = save(Image.fromarray(RGB).resize((400, 300)), tmp_path / "a.im")
    assert pictures.load(large).pixels.shape == (300, 400, 3)
    monkeypatch.setattr(ImImagePlugin.ImImageFile, "_open", lambda _: pytest.fail("it was read"))
    for text in (b"A: b\n" * 20_000, b"A: b\0\x1a\n" * 20_000, b"\rA: b\n" * 20_000):
        path.write_bytes(text)
        assert "is not a picture that Pillow can read" in str(refusal(path))


def test_a_bomb_in_an_icon_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.ico"
    for name in ("ico-png.ico", "ico-claim.ico", "ico-bitmap.ico"):
        path.write_bytes(hostile.BOMBS[name]())
        assert "more pixels than it says" in str(refusal(path))
    path.write_bytes(hostile.BOMBS["ico-mask.ico"]())
    assert "not enough image data" in str(refusal(path))


def test_pixels_beyond_any_file_are_told(tmp_path: Path) -> None:
    """Those of a large TIFF, whose places have 64 bits, where a file system goes no further."""
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 2**63 - 1, 277: 1, 278: 1, 279: 1}
    entries = b"".join(struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in tags.items())
    head = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, len(tags))
    path = tmp_path / "a.tif"
    path.write_bytes((head + entries).ljust(1000, b"\0"))
    assert "pixels are where the file has none" in str(refusal(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jpeg-claim.jpg", "cannot hold 16384×16384 pixels"),
        ("jpeg-progressive.jpg", "cannot hold 16384×16384 pixels"),
        ("jpeg-scans.jpg", "1,010 scans"),
        ("png-chunks.png", "tiny chunks"),
        ("png-text.png", "texts or a colour profile of more than 8 MiB"),
    ],
)
def test_a_claim_is_refused_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(hostile.BOMBS[name]())
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    assert words in str(refusal(path))


@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_beside_the_pixels_of_a_jpeg_does_not_count_as_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progressive: bool
) -> None:
    data = hostile.jpeg(16_000, progressive=progressive)
    comment = b"\xff\xfe" + (60_002).to_bytes(2) + bytes(60_000)
    path = tmp_path / "a.jpg"
    path.write_bytes(data[:2] + 17 * comment + data[2 : data.index(b"\xff\xda") + 14])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    assert "its 0 coded bytes cannot hold 16000×16000" in str(refusal(path))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("side", [1, 8, 9, 1200])
def test_the_least_jpegs_of_a_size_are_read(mode: str, side: int) -> None:
    ways = [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 1}]
    for way in ways:
        stream = io.BytesIO()
        image = Image.new(mode, (side, side))
        image.save(stream, "JPEG", optimize=True, quality=1, **way)
        assert pictures.load("a.jpg", data=stream.getvalue()).width == side


def test_flat_jpegs_and_many_chunks_with_pixels_are_no_claims(tmp_path: Path) -> None:
    for options in ({}, {"progressive": True}, {"optimize": True, "subsampling": "4:2:0"}):
        path = save(Image.new("RGB", (2000, 2000), "gray"), tmp_path / "a.jpg", **options)
        assert pictures.load(path).pixels.shape == (2000, 2000, 3)
    data = hostile.png(9, 7, rows=7)
    path = tmp_path / "a.png"
    path.write_bytes(hostile.with_chunks(data, hostile.chunk(b"abCd", bytes(120)), 5000))
    assert pictures.load(path).notes == ()


def test_a_large_colour_profile_is_no_bomb(tmp_path: Path) -> None:
    profile = np.random.default_rng(0).bytes(3 * 2**20)
    path = save(Image.fromarray(RGB), tmp_path / "a.png", icc_profile=profile)
    assert pictures.load(path).icc == profile
    path.write_bytes(hostile.BOMBS["png-text.png"]())
    assert "damaged" not in str(refusal(path))


def test_sound_icons_are_pictures(tmp_path: Path) -> None:
    image = Image.fromarray(small_pixels()).resize((256, 256))
    for name in ("a.ico", "a.icns"):
        path = save(image, tmp_path / name)
        assert pictures.load(path).channels == 3
    path.write_bytes(hostile.icns(hostile.png(256, 256, rows=256)))
    assert pictures.load(path).pixels.shape == (256, 256, 3)


def test_tiles_of_usual_sizes_are_no_bombs(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(hostile.tiled_tiff(512))
    assert pictures.load(path).pixels.shape == (7, 9, 1)


def test_pillows_own_limit_is_as_it_was(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    pictures.load(save(Image.fromarray(RGB), tmp_path / "a.png"))
    (tmp_path / "a.ico").write_bytes(hostile.BOMBS["ico-png.ico"]())
    refusal(tmp_path / "a.ico")
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(("side", "counted"), [(16_000, 256_000_000), (16_385, 0)])
def test_pixels_are_counted_up_to_the_limit_and_not_to_pillows(
    tmp_path: Path, side: int, counted: int
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(hostile.png(side, side, 1, 0))
    assert image_files.pixels(path) == counted


def test_what_is_too_large_is_told_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(hostile.png(20_000, 20_000))
    assert "has 20000×20000 pixels; the limit is 268,435,456" in str(refusal(path))
    path.write_bytes(b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + hostile.bitmap(-5, 7))
    assert "is -5×7: it has no pixels" in str(refusal(path))
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 60000 60000\n%%EndComments\n")
    assert "is a drawing (EPS)" in str(refusal(path))


def test_what_pillow_says_in_bytes_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6 99999999999999999999 5 255\n" + bytes(99))
    assert str(refusal(path)).endswith("Token too long in file header: 99999999999")


# Frames


def frames(path: Path, **options: object) -> Path:
    images = [Image.fromarray(GRAY[:, :, 0] // k) for k in (1, 2, 3)]
    return save(images[0], path, save_all=True, append_images=images[1:], **options)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".tif"])
def test_of_several_frames_the_first_is_taken_or_the_one_asked_for(
    tmp_path: Path, suffix: str
) -> None:
    path = frames(tmp_path / f"a{suffix}", **({"lossless": True} if suffix == ".webp" else {}))
    first = pictures.load(path)
    np.testing.assert_array_equal(first.pixels[:, :, :1], GRAY)
    assert [note for note in first.notes if "--frame" in note]
    for number in (1, 2, 3):
        found = pictures.load(path, frame=number)
        np.testing.assert_array_equal(found.pixels[:, :, :1], GRAY // number)
        assert not [note for note in found.notes if "--frame" in note]


@pytest.mark.parametrize("frame", [0, 4, -1])
def test_a_frame_that_is_not_there_is_a_usage_error(tmp_path: Path, frame: int) -> None:
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


def test_reduced_copies_in_a_tiff_are_no_frames(tmp_path: Path) -> None:
    picture = pictures.load(tiff_pages(tmp_path / "a.tif", 0, 1, 5))
    np.testing.assert_array_equal(picture.pixels, RGB)
    assert picture.notes == ()
    assert pictures.load(tiff_pages(tmp_path / "b.tif", 0, 1, 0)).notes
    older = tiff_pages(tmp_path / "c.tif", 1, 2, tag=255)  # 1 is a picture of its own, 2 a copy
    assert pictures.load(older).notes == ()


def test_a_page_whose_mask_is_left_out_is_told(tmp_path: Path) -> None:
    path = tiff_pages(tmp_path / "a.tif", 0, 1, 4, 0, 0, 4)
    assert pictures.load(path).notes == (MASK_LEFT_OUT, ONLY_FIRST)
    for frame, masked in ((1, True), (2, False), (3, True)):
        assert pictures.load(path, frame=frame).notes == (MASK_LEFT_OUT,) * masked
    np.testing.assert_array_equal(pictures.load(path, frame=3).pixels, RGB[::5, ::5])
    only = pictures.load(tiff_pages(tmp_path / "b.tif", 4, 4))
    np.testing.assert_array_equal(only.pixels, RGB)
    assert only.notes == ()


def test_frames_count_a_tiffs_pages_and_not_their_reduced_copies(tmp_path: Path) -> None:
    path = tiff_pages(tmp_path / "a.tif", 1, 0, 1, 0)
    for frame, step in ((None, 2), (1, 2), (2, 4)):
        np.testing.assert_array_equal(pictures.load(path, frame=frame).pixels, RGB[::step, ::step])
    with pytest.raises(UsageError, match="no frame 3"):
        pictures.load(path, frame=3)
    only = tiff_pages(tmp_path / "b.tif", 1, 1)
    np.testing.assert_array_equal(pictures.load(only).pixels, RGB)


def test_pages_that_pillow_cannot_read_do_not_hinder_others(tmp_path: Path) -> None:
    """Among pages of which the second holds the filters of a camera's sensor, and a mask."""
    path = tiff_pages(tmp_path / "a.tif", 0, 0, 0, 4)
    data = bytearray(path.read_bytes())
    for page, photometric in ((1, 32803), (3, 4)):
        at = tiff_field(data, 262, page)[0] + 8
        data[at : at + 2] = struct.pack("<H", photometric)
    path.write_bytes(data)
    sound = tiff_pages(tmp_path / "b.tif", 0, 0, 0)
    for number in (1, 3):
        found, expected = (pictures.load(one, frame=number).pixels for one in (path, sound))
        np.testing.assert_array_equal(found, expected)
    assert pictures.load(path).notes == (ONLY_FIRST,)
    with pytest.raises(PictureError, match="unknown pixel mode"):
        pictures.load(path, frame=2)
    with pytest.raises(UsageError) as caught:
        pictures.load(path, frame=4)
    assert "there are 3" in caught.value.hint


def test_a_page_has_nothing_of_another_page(tmp_path: Path) -> None:
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
    ("kind", "told"), [(0x020002, True), (0, True), (0x010001, False), (0x010002, False)]
)
def test_a_second_picture_in_a_jpeg_that_is_no_copy_is_told(kind: int, told: bool) -> None:
    """One of a pair of eyes, or an unknown one, and copies of two sizes."""
    images = [Image.new("L", (8, 8), value) for value in (10, 200)]
    images[0].save(stream := io.BytesIO(), "MPO", save_all=True, append_images=images[1:])
    data = stream.getvalue()
    size = data.index(b"\xff\xd8", 2)
    at = data.index(struct.pack("<II", 0x030000, size)) + 16  # of the second picture
    data = data[:at] + struct.pack("<I", kind) + data[at + 4 :]
    found = pictures.load("a.jpg", data=data)
    assert found.pixels[0, 0] == 10
    assert found.notes == (ONLY_FIRST,) * told
    assert pictures.load("a.jpg", data=data, frame=2).pixels[0, 0] == 200


def test_a_later_picture_in_a_jpeg_has_all_of_its_pixels_too(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    first, *others = map(Image.fromarray, noise)
    path = save(first, tmp_path / "a.mpo", save_all=True, append_images=others, quality=90)
    data = path.read_bytes()
    whole = [pictures.load(path, frame=frame).pixels for frame in (1, 2, 3)]
    third = data.rindex(b"\xff\xd8\xff")
    path.write_bytes(data[: third - 900] + b"\xff\xd9" + data[third - 898 :])
    for frame in (1, 3):
        np.testing.assert_array_equal(pictures.load(path, frame=frame).pixels, whole[frame - 1])
    with pytest.raises(PictureError, match="some of its pixels are missing"):
        pictures.load(path, frame=2)
    path.write_bytes(data[:-2])
    assert pictures.load(path, frame=3).notes == (END_MISSING,)
    np.testing.assert_array_equal(pictures.load(path, frame=3).pixels, whole[2])


def test_a_jpeg_without_a_scan_has_no_coded_bytes(tmp_path: Path) -> None:
    data = save(Image.fromarray(RGB), tmp_path / "a.jpg").read_bytes()
    at = data.index(b"\xff\xda")
    for rest in (b"\xff\xd9", b"\xff\xd9" + data[at:]):
        (tmp_path / "a.jpg").write_bytes(data[:at] + rest)
        assert "its 0 coded bytes cannot hold" in str(refusal(tmp_path / "a.jpg"))
    lost = data[:at].replace(b"\xff\xc0", b"\xff\xd9", 1) + data[at:]
    (tmp_path / "a.jpg").write_bytes(lost)
    assert "list index" not in str(refusal(tmp_path / "a.jpg"))


def test_a_frame_far_away_is_not_looked_for(tmp_path: Path) -> None:
    path = frames(tmp_path / "a b.gif")
    with pytest.raises(UsageError, match="beyond the first 2,048") as caught:
        pictures.load(path, frame=2049)
    assert f"magick '{path}''[2048]' frame.png" in caught.value.hint


def layered_psd(layers: int) -> bytes:
    """A PSD of 9×7 pixels with so many empty layers; its merged picture is gray."""
    record = struct.pack(">4iH", 0, 0, 0, 0, 1) + struct.pack(">hI", 0, 2)
    record += b"8BIMnorm" + bytes(4) + struct.pack(">I", 0)
    inner = struct.pack(">h", layers) + record * layers + bytes(2 * layers)
    block = struct.pack(">I", len(inner)) + inner
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 1, 7, 9, 8, 1)
    return head + bytes(8) + struct.pack(">I", len(block)) + block + bytes(2) + bytes(range(63))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_merged_picture_of_a_layered_psd_is_taken(tmp_path: Path, layers: int) -> None:
    path = tmp_path / "a.psd"
    path.write_bytes(layered_psd(layers))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels.ravel(), range(63))
    assert bool(picture.notes) == (layers > 1)
    assert pictures.load(path, frame=1).notes == ()
    with pytest.raises(UsageError):
        pictures.load(path, frame=2)


# Depth


def test_a_bitmap_of_5_6_5_bits_is_no_deep_picture(tmp_path: Path) -> None:
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    header = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0) + masks
    data = struct.pack("<HH", 0xF800, 0x07E0)
    path = tmp_path / "a.bmp"
    path.write_bytes(b"BM" + struct.pack("<IHHI", 14 + len(header) + 4, 0, 0, 66) + header + data)
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, [[[255, 0, 0], [0, 255, 0]]])
    assert picture.notes == ()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_of_16_bits_the_upper_8_are_kept(tmp_path: Path, suffix: str) -> None:
    deep = GRAY[:, :, 0].astype(np.uint16) * 256 + 200
    picture = pictures.load(save(Image.fromarray(deep), tmp_path / f"a{suffix}"))
    np.testing.assert_array_equal(picture.pixels, GRAY)
    assert picture.notes == (UPPER_BITS.format(16),)


def deep_png(channels: int) -> tuple[bytes, np.ndarray]:
    """A PNG of 16 bits a sample, 5 × 4, and its samples."""
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
def test_colours_and_alpha_of_16_bits_too(tmp_path: Path, channels: int) -> None:
    data, values = deep_png(channels)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    picture = pictures.load(path, alpha=True)
    np.testing.assert_array_equal(picture.pixels, values >> 8)
    assert picture.notes == (UPPER_BITS.format(16),)


def test_a_deep_tiff_in_colour_and_one_whose_white_is_0(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    values = np.arange(63 * 3, dtype="<u2") * 300
    tags = {256: 9, 257: 7, 259: 1, 262: 2, 273: 0, 277: 3, 278: 7, 279: values.nbytes}
    path.write_bytes(hostile.tiff(tags | {258: 16}, values.tobytes()))
    found = pictures.load(path)
    np.testing.assert_array_equal(found.pixels.ravel(), values >> 8)
    assert found.notes == (UPPER_BITS.format(16),)
    tags |= {262: 0, 277: 1, 258: 16, 279: 126}
    path.write_bytes(hostile.tiff(tags, values[:63].tobytes()))
    np.testing.assert_array_equal(
        pictures.load(path).pixels.ravel(), (65535 - values[:63].astype(int)) >> 8
    )


def test_a_ppm_of_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    values = np.random.default_rng(0).integers(0, 2**16, (9, 7, 3), np.uint16)
    path.write_bytes(b"P6 7 9 65535\n" + values.astype(">u2").tobytes())
    found = pictures.load(path)
    np.testing.assert_array_equal(found.pixels, values >> 8)
    assert found.notes == (UPPER_BITS.format(16),)
    path.write_bytes(b"P6 7 9 60000\n" + np.minimum(values, 60_000).astype(">u2").tobytes())
    found = pictures.load(path)
    np.testing.assert_allclose(found.pixels, np.minimum(values, 60_000) / 60_000 * 255, atol=0.51)
    assert found.notes == (ROUNDED.format(16),)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_colour_of_16_bits(channels: int) -> None:
    """Of a pixel, of one that differs in its last bit only, and of none."""
    data, values = deep_png(channels)
    at = data.index(b"IDAT") - 4
    for change in (0, 1):
        colour = values[2, 1] ^ np.array([0] * (channels - 1) + [change], np.uint16)
        key = hostile.chunk(b"tRNS", colour.astype(">u2").tobytes())
        keyed = data[:at] + key + data[at:]
        alpha = np.full((4, 5, 1), 255)
        alpha[2, 1] = 255 * change
        expected = np.concatenate([values >> 8, alpha], axis=2)[..., : channels + 1 - change]
        found = pictures.load("a.png", alpha=True, data=keyed)
        np.testing.assert_array_equal(found.pixels, expected)
        assert UPPER_BITS.format(16) in found.notes
        with Image.open(io.BytesIO(keyed)) as image:
            found = pictures.from_image(image, alpha=True)
        np.testing.assert_array_equal(found.pixels, expected)


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
    with pytest.raises(PictureError, match="16 bits a sample and a transparent colour") as caught:
        pictures.load(path, alpha=True, frame=2)
    assert "magick" in caught.value.hint


def planes(bits: int, photometric: int, *channels: np.ndarray) -> bytes:
    """A TIFF of 9×7 pixels, not compressed, whose channels stand one after the other."""
    data = b"".join(channel.tobytes() for channel in channels)
    places, size = 8 + 2 + 12 * 10 + 4, len(data) // len(channels)
    tags = {256: 9, 257: 7, 258: bits, 259: 1, 262: photometric, 277: len(channels), 278: 7, 284: 2}
    if len(channels) == 1:
        return hostile.tiff(tags | {273: 0, 279: size}, data)
    lists = places + len(data)
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    entries.insert(5, struct.pack("<HHII", 273, 4, 3, lists))
    entries.insert(8, struct.pack("<HHII", 279, 4, 3, lists + 12))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    starts = [places + k * size for k in range(3)]
    return head + data + struct.pack("<6I", *starts, size, size, size)


def test_separate_planes_that_are_not_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    deep = np.random.default_rng(0).integers(0, 2**16, (3, 7, 9), np.uint16)
    path.write_bytes(planes(16, 2, *deep))
    found = pictures.load(path)
    np.testing.assert_array_equal(found.pixels, deep.transpose(1, 2, 0) >> 8)
    assert found.notes == (UPPER_BITS.format(16),)
    with Image.open(path) as image:
        np.testing.assert_array_equal(pictures.from_image(image).pixels, found.pixels)
        image.load()  # into something else
        with pytest.raises(PictureError, match="separate"):
            pictures.from_image(image)
    gray = (deep[0] >> 8).astype(np.uint8)
    path.write_bytes(planes(8, 0, gray))  # whose white is 0
    np.testing.assert_array_equal(pictures.load(path).pixels[:, :, 0], 255 - gray)


def test_deep_colours_of_jpeg_2000_are_refused(tmp_path: Path) -> None:
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
    assert "16 bits a sample" in str(error)
    assert f"magick {path}" in error.hint


def test_how_many_bits_a_sample_has_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P5 2 1 1023\n" + struct.pack(">HH", 1023, 512))
    found = pictures.load(path)
    assert found.pixels.ravel().tolist() == [255, 128]
    assert found.notes == (UPPER_BITS.format(10),)
    deep = Image.fromarray(GRAY[:, :, 0].astype(np.uint16) * 256)
    assert pictures.load(save(deep, tmp_path / "a.jp2")).notes == (UPPER_BITS.format(16),)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize(("flags", "bits"), [(0, 8), (0x40, 10), (0x60, 12)])
def test_the_bits_of_an_avif(flags: int, bits: int) -> None:
    stream = io.BytesIO()
    Image.fromarray(RGB).save(stream, "AVIF")
    data = bytearray(stream.getvalue())
    data[data.index(b"av1C") + 6] |= flags
    with Image.open(stream) as image:
        assert depth(image, io.BytesIO(data)) == bits


def test_colours_of_cielab_are_converted_with_a_note(tmp_path: Path) -> None:
    """And do not keep a profile, which would be that of CIELab."""
    image = Image.new("LAB", (9, 7), (200, 128, 128))
    found = pictures.load(save(image, tmp_path / "a.tif", icc_profile=b"of CIELab"))
    assert found.icc is None
    assert found.notes == ("CIELab is converted to sRGB",)
    assert np.ptp(found.pixels.astype(int), axis=2).max() <= 3  # gray, but for rounding


# Pillow images that have their file


def deep_files(folder: Path) -> list[Path]:
    """Files of which Pillow does not tell all once they are loaded."""
    values = np.arange(63, dtype="<u2") * 1000
    tags = {256: 9, 257: 7, 259: 1, 273: 0, 277: 1, 278: 7}
    inverted = hostile.tiff(tags | {258: 16, 262: 0, 279: 126}, values.tobytes())
    twelve = hostile.tiff(tags | {258: 12, 262: 1, 279: 98}, bytes(range(98)))
    made = {"inverted.tif": inverted, "12.tif": twelve}
    made |= {f"{channels}.png": deep_png(channels)[0] for channels in (1, 2, 3, 4)}
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def test_an_image_is_read_as_its_file_is_also_again(tmp_path: Path) -> None:
    for path in deep_files(tmp_path):
        whole = pictures.load(path, alpha=True)
        with Image.open(path) as image:
            for _ in range(2):
                found = pictures.from_image(image, alpha=True)
                np.testing.assert_array_equal(found.pixels, whole.pixels)
                assert (found.notes, found.metadata) == (whole.notes, whole.metadata)
            image.load()
            if path.suffix == ".tif":  # which tells its depth for ever
                found = pictures.from_image(image)
                np.testing.assert_array_equal(found.pixels, whole.pixels)


def test_of_an_image_its_own_frame_size_and_metadata_count(tmp_path: Path) -> None:
    path = frames(tmp_path / "a.tif", icc_profile=b"profile")
    with Image.open(path) as image:
        image.seek(1)
        del image.info["icc_profile"]
        found = pictures.from_image(image)
        np.testing.assert_array_equal(found.pixels, GRAY // 2)
        assert found.icc is None
    large = save(Image.fromarray(RGB).resize((310, 240)), tmp_path / "a.jpg")
    with Image.open(large) as image:
        image.draft("RGB", (155, 120))
        assert pictures.from_image(image).pixels.shape == (120, 155, 3)


def test_an_image_of_a_tiff_on_its_side_keeps_its_resolution(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(RGB).save(path, dpi=(300, 150), tiffinfo={274: 6})
    whole = pictures.load(path)
    assert whole.metadata.dpi == (150, 300)
    with Image.open(path) as image:
        found = pictures.from_image(image)
    assert found.metadata == whole.metadata
    np.testing.assert_array_equal(found.pixels, whole.pixels)


def test_an_image_of_a_damaged_file_is_refused_as_the_file_is(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:-30])
    with Image.open(path) as image, pytest.raises(PictureError) as caught:
        pictures.from_image(image)
    assert str(caught.value) == str(refusal(path))


def test_an_image_of_an_icon_or_a_webp_is_looked_at_as_its_file_is(tmp_path: Path) -> None:
    """Pillow does not tell of these where the pixels are before it loads them."""
    pixels = np.random.default_rng(0).integers(1, 256, (256, 256, 3), dtype=np.uint8)
    Image.new("RGB", (9, 7)).save(stream := io.BytesIO(), "WEBP")
    large = bytearray(stream.getvalue())
    large[26:30] = struct.pack("<HH", 8000, 8000)
    path = tmp_path / "a"
    for data, words in (
        (hostile.icns(png_of(pixels, 99)), "last rows are missing"),
        (bytes(large), "cannot hold 8000×8000 pixels"),
    ):
        path.write_bytes(data)
        assert words in str(refusal(path))
        with Image.open(path) as image, pytest.raises(PictureError, match=words):
            pictures.from_image(image)
    images = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
    images[0].save(path, "WEBP", save_all=True, append_images=images[1:], lossless=True)
    with Image.open(path) as image:
        image.seek(1)
        for _ in range(2):
            np.testing.assert_array_equal(pictures.from_image(image).pixels, 255 - pixels)
            image.load()


@pytest.mark.parametrize("suffix", [".png", ".icns", ".tif", ".jpg", ".gif", ".webp"])
@pytest.mark.parametrize("ours", [False, True])
def test_an_image_that_was_closed_before_it_was_read_is_told(
    tmp_path: Path, suffix: str, ours: bool
) -> None:
    """But a WebP, whose bytes Pillow has by then."""
    path = save(Image.fromarray(RGB).resize((32, 32)), tmp_path / f"a{suffix}")
    with path.open("rb") as stream, Image.open(stream if ours else path) as image:
        pass
    if suffix == ".webp":
        assert pictures.from_image(image).pixels.shape == (32, 32, 3)
        return
    with pytest.raises(PictureError, match="was closed before it was read") as caught:
        pictures.from_image(image)
    assert "before" in caught.value.hint
    with Image.open(path) as image:
        image.load()
    assert pictures.from_image(image).pixels.shape == (*image.size, 3)


# Reasons


def test_a_drawing_has_no_pixels(tmp_path: Path) -> None:
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


def test_of_an_empty_file_it_is_said_that_it_is(tmp_path: Path) -> None:
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
def test_what_pillow_cannot_read_is_not_called_damaged(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    error = refusal(path)
    assert "Pillow cannot read" in str(error)
    assert "damaged" not in str(error)
    assert "get the file again" not in error.hint
    assert f"magick {path}" in error.hint


def test_a_picture_of_another_kind_is_not_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))
    error = refusal(path)
    assert "not a picture that Pillow can read" in str(error)
    assert f"magick {path}" in error.hint


def test_what_pillow_knows_but_cannot_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.psd"
    path.write_bytes(b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 7, 9, 16, 3) + bytes(99))
    error = refusal(path)
    assert "a damaged PSD file, or one of a kind that Pillow cannot read" in str(error)


def test_a_damaged_file_is_of_the_kind_that_its_name_says_if_it_begins_so(tmp_path: Path) -> None:
    """As an XBM may begin with any comment."""
    for name in ("XPM", "XBM"):
        path = tmp_path / f"a.{name.lower()}"
        path.write_bytes(b"/* XPM */\nstatic char *a[] = {\n")
        assert f"is a damaged {name} file" in str(refusal(path))


def test_libtiff_does_not_write_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), np.uint8)
    path = save(Image.fromarray(noise), tmp_path / "a.tif", compression="tiff_adobe_deflate")
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(2900)
    path.write_bytes(data)
    assert "damaged" in str(refusal(path))
    os.write(2, b"still there")
    assert capfd.readouterr() == ("", "still there")


def test_what_others_write_to_stderr_meanwhile_arrives(capfd: pytest.CaptureFixture[str]) -> None:
    """Threads, while a TIFF is decoded; but not what libtiff does."""
    with silent_libraries(True) as first:
        os.write(2, b"one\nFax4Decode: Bad code word.\ntempfile.tif: Too short.\nKeyError: 5\nlast")
        assert first() == "Fax4Decode: Bad code word."
    assert capfd.readouterr().err == "one\nKeyError: 5\nlast"


def test_an_iphones_png_and_a_tga_of_15_bits_are_named(tmp_path: Path) -> None:
    data = hostile.png(9, 7, rows=7)
    path = tmp_path / "a.png"
    path.write_bytes(data[:8] + hostile.chunk(b"CgBI", bytes(4)) + data[8:])
    error = refusal(path)
    assert "iPhone" in str(error)
    assert f"ffmpeg -i {path}" in error.hint
    path = tmp_path / "a.tga"
    path.write_bytes(struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 9, 7, 15, 0) + bytes(126))
    assert "damaged TGA file, or one of a kind" in str(refusal(path))


def test_a_compression_that_libtiff_may_lack_is_named(tmp_path: Path) -> None:
    tags = {256: 9, 257: 7, 258: 8, 259: 50001, 262: 1, 273: 0, 277: 1, 278: 7, 279: 40}
    path = tmp_path / "a.tif"
    path.write_bytes(hostile.tiff(tags, bytes(40)))
    assert "compression webp is not supported" in str(refusal(path))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_whose_end_stands_before_its_last_pixels_is_refused(
    tmp_path: Path, progressive: bool
) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg", progressive=progressive)
    data = path.read_bytes()
    for share in (0.7, 0.9):
        path.write_bytes(data[: int(share * len(data))] + data[-2:])
        assert "damaged or truncated" in str(refusal(path))
    path.write_bytes(data + bytes(99))  # behind its end there may be anything
    assert pictures.load(path).notes == ()


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_lacks_only_its_end_is_read(tmp_path: Path, progressive: bool) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg", progressive=progressive)
    data, whole = path.read_bytes(), pictures.load(path)
    for count in (1, 2):
        path.write_bytes(data[:-count])
        found = pictures.load(path)
        np.testing.assert_array_equal(found.pixels, whole.pixels)
        assert ["end is missing" in note for note in found.notes] == [True]
    path.write_bytes(data[:-2])
    for count in (5, 20, 200):
        path.write_bytes(data[:-count])
        assert "truncated" in str(refusal(path))


WAYS = [  # of writing a JPEG
    {},
    {"progressive": True},
    {"progressive": True, "subsampling": 0},
    {"restart_marker_rows": 1},
    {"restart_marker_blocks": 1},
    {"restart_marker_rows": 1, "progressive": True},
]


def noisy(mode: str, **way: object) -> bytes:
    """A JPEG of noise without its end."""
    noise = np.random.default_rng(5).integers(0, 256, (90, 120, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, "JPEG", **way)
    return stream.getvalue()[:-2]


def begins(data: bytes) -> list[int]:
    """Where the scans of a JPEG do."""
    return [one.marker for one in segments(data) if one.kind == SCAN]


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("way", WAYS)
def test_a_jpeg_that_ends_within_its_pixels_is_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, way: dict[str, object]
) -> None:
    data = noisy(mode, **way)
    path, last = tmp_path / "a.jpg", begins(data)[-1]
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    for share in (0.2, 0.5, 0.9):
        path.write_bytes(data[: last + int(share * (len(data) - last))])
        assert "truncated: some of its pixels are missing" in str(refusal(path))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_follows_a_jpeg_without_an_end_none_of_its_pixels_are_missing(
    mode: str, way: dict[str, object]
) -> None:
    data = noisy(mode, **way)
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    comment = b"\xff\xfe\0\4ab"
    for tail in (b"", b"\xff", b"\xff\0a\xff", bytes(99), b"\xff\xd3", comment, comment[:-1]):
        found = pictures.load("a.jpg", data=data + tail)
        np.testing.assert_array_equal(found.pixels, whole.pixels)
        assert sum("end is missing" in note for note in found.notes) == 1


def test_a_jpeg_without_an_end_that_lacks_a_scan_is_refused(tmp_path: Path) -> None:
    """With an end, its encoder has left it out."""
    data = noisy("RGB", progressive=True)
    path, scans = tmp_path / "a.jpg", begins(data)
    assert len(scans) == 10
    for begin in scans[2:]:
        path.write_bytes(data[:begin])
        assert "truncated: some of its pixels are missing" in str(refusal(path))
        path.write_bytes(data[:begin] + b"\xff\xd9")
        assert pictures.load(path).notes == ()


def test_a_jpeg_with_a_scan_of_each_component_is_whole_with_the_last(tmp_path: Path) -> None:
    gray = noisy("L")
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    three = b"\0\x11\x08" + gray[frame + 5 : frame + 9] + b"\3\1\x11\0\2\x11\0\3\x11\0"
    head = gray[: frame + 2] + three + gray[frame + 13 : scan]
    data = head + b"".join(gray[scan : scan + 5] + bytes([n]) + gray[scan + 6 :] for n in (1, 2, 3))
    found = pictures.load("a.jpg", data=data)
    assert ["end is missing" in note for note in found.notes] == [True]
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    np.testing.assert_array_equal(found.pixels, whole.pixels)
    path = tmp_path / "a.jpg"
    for cut in (begins(data)[2], begins(data)[1], len(data) - 40):
        path.write_bytes(data[:cut])
        assert "truncated: some of its pixels are missing" in str(refusal(path))


def test_a_jpeg_that_ends_at_a_restart_marker_lacks_pixels(tmp_path: Path) -> None:
    data = noisy("RGB", restart_marker_rows=1)
    path, marks = tmp_path / "a.jpg", [data.index(bytes([0xFF, 0xD0 + n])) for n in range(5)]
    for at in marks:
        path.write_bytes(data[:at])
        assert "truncated: some of its pixels are missing" in str(refusal(path))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("mode", "subsampling"), [("L", 0), ("RGB", 0), ("RGB", 1), ("RGB", 2)])
@pytest.mark.parametrize("marks", [{"restart_marker_blocks": 7}, {"restart_marker_rows": 2}])
def test_a_jpeg_without_an_end_has_all_of_its_restart_markers(
    tmp_path: Path, progressive: bool, mode: str, subsampling: int, marks: dict[str, int]
) -> None:
    data = noisy(mode, progressive=progressive, subsampling=subsampling, **marks)
    path, last = tmp_path / "a.jpg", begins(data)[-1]
    places = [
        found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data) if found.start() > last
    ]
    assert len(places) > 1
    for at in places:
        for cut in (at - 1, at, at + 1):
            path.write_bytes(data[:cut])
            assert "truncated: some of its pixels are missing" in str(refusal(path))
    path.write_bytes(data)
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    np.testing.assert_array_equal(pictures.load(path).pixels, whole.pixels)


@pytest.mark.parametrize("adobe", [False, True])
def test_inks_of_a_jpeg_are_inverted_whoever_wrote_it(adobe: bool) -> None:
    """As browsers and ImageMagick have it, also where no marker of Adobe's says so."""
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(stream := io.BytesIO(), "JPEG", quality=100)
    data = stream.getvalue()
    marker = next(one for one in segments(data) if one.kind == 0xEE)
    if not adobe:
        data = data[: marker.marker] + data[marker.begin + marker.size :]
    assert (b"Adobe" in data) == adobe
    assert pictures.load("a.jpg", data=data).pixels[0, 0].tolist() == [0, 255, 255]


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_without_a_part_between_restart_markers_is_refused(
    tmp_path: Path, progressive: bool
) -> None:
    """Without one, without eight, after which the markers count on, and with two exchanged."""
    data = noisy("RGB", progressive=progressive, restart_marker_blocks=2) + b"\xff\xd9"
    path, first = tmp_path / "a.jpg", begins(data)[0]
    marks = [found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data[first:])]
    one, two, three, ten = (first + marks[at] for at in (1, 2, 3, 9))
    exchanged = data[:one] + data[two:three] + data[one:two] + data[three:]
    for spoiled in (data[:one] + data[two:], data[:one] + data[ten:], exchanged):
        path.write_bytes(spoiled)
        assert "some of its pixels are missing" in str(refusal(path))
    path.write_bytes(data)
    assert pictures.load(path).notes == ()


def test_without_pillows_decoders_the_pixels_tell_what_a_jpeg_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, path = noisy("RGB"), tmp_path / "a.jpg"
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    monkeypatch.setattr(image_claims, "Image", object())
    path.write_bytes(data)
    np.testing.assert_array_equal(pictures.load(path).pixels, whole.pixels)
    path.write_bytes(data[:-99])
    assert "truncated: some of its pixels are missing" in str(refusal(path))


def test_a_claim_is_that_of_the_first_of_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    arithmetic = b"\xff\xc9\0\x0b\x08\0\1\0\1\1\1\x11\0"  # its pixels may take no bytes
    path.write_bytes(hostile.jpeg(hostile.SIDE)[:-2] + arithmetic + b"\xff\xd9")
    assert "cannot hold 16384×16384 pixels" in str(refusal(path))


def test_a_jpeg_2000_that_ends_within_its_pixels_is_refused_before_they_are_decoded(
    tmp_path: Path,
) -> None:
    image = Image.fromarray(RGB)
    for name, options in (("a.jp2", {}), ("a.j2k", {}), ("b.jp2", {"tile_size": (16, 16)})):
        path = save(image, tmp_path / name, **options)
        data = path.read_bytes()
        np.testing.assert_array_equal(pictures.load(path).pixels, RGB)
        path.write_bytes(data[: len(data) // 2])
        assert "bytes of its pixels are missing" in str(refusal(path))
        path.write_bytes(data[:-3])
        assert "truncated: its last byte is missing" in str(refusal(path))
        behind = b"\0\x02\xff\x90\0\x0a\0\0" + (1 << 30).to_bytes(4) + bytes(20)
        path.write_bytes(data + behind)  # what is behind its end is nobody's
        np.testing.assert_array_equal(pictures.load(path).pixels, RGB)
    head = b"\0\0\0\1free" + (20).to_bytes(8) + b"1234"  # a box that tells its size in 8 bytes
    path.write_bytes(data[:12] + head + data[12:-9])
    assert "7 bytes of its pixels are missing" in str(refusal(path))


def test_a_jpeg_2000_without_some_of_its_tiles_is_refused(tmp_path: Path) -> None:
    """Pillow takes anything for them, and a long time."""
    data = save(Image.fromarray(RGB), tmp_path / "a.jp2").read_bytes()
    codestream, header = data.index(CODESTREAM), data.index(b"ihdr") + 4
    for width, height, count in ((2 * RGB.shape[1], 3 * RGB.shape[0], 5), (16_000, 16_000, 0)):
        larger = bytearray(data)
        larger[header : header + 8] = struct.pack(">II", height, width)
        larger[codestream + 8 : codestream + 16] = struct.pack(">II", width, height)
        (tmp_path / "b.jp2").write_bytes(larger)
        said = f"{count} of its tiles are missing" if count else "of its tiles are missing"
        assert said in str(refusal(tmp_path / "b.jp2"))
    tiled = {"tile_size": (5, 4), "offset": (3, 2), "tile_offset": (1, 2)}
    path = save(Image.fromarray(RGB), tmp_path / "c.jp2", **tiled)
    np.testing.assert_array_equal(pictures.load(path).pixels, RGB)


def tiff_field(data: bytearray, tag: int, page: int = 0) -> tuple[int, int]:
    """Where an entry of a TIFF's page is, and what it tells of its value."""
    at = int.from_bytes(data[4:8], "little") + 2
    for _ in range(page):
        then = at + 12 * int.from_bytes(data[at - 2 : at], "little")
        at = int.from_bytes(data[then : then + 4], "little") + 2
    while int.from_bytes(data[at : at + 2], "little") != tag:
        at += 12
    return at, int.from_bytes(data[at + 8 : at + 12], "little")


def test_a_tiff_without_some_of_its_strips_is_refused(tmp_path: Path) -> None:
    """Pillow takes them for black, or the file's first bytes for their pixels."""
    pixels = np.random.default_rng(0).integers(1, 256, (32, 9, 3), dtype=np.uint8)
    path = save(Image.fromarray(pixels), tmp_path / "a.tif", tiffinfo={278: 8})
    np.testing.assert_array_equal(pictures.load(path).pixels, pixels)
    sound = path.read_bytes()
    offsets, height = (tiff_field(bytearray(sound), tag) for tag in (273, 257))
    assert (sound[offsets[0] + 2], sound[height[0] + 2]) == (4, 4)  # 32 bits, as below
    fewer, taller, sparse = (bytearray(sound) for _ in range(3))
    fewer[offsets[0] + 4 : offsets[0] + 8] = (3).to_bytes(4, "little")
    taller[height[0] + 8 : height[0] + 12] = (33).to_bytes(4, "little")
    sparse[offsets[1] + 4 : offsets[1] + 8] = bytes(4)
    for damaged in (fewer, taller, sparse):
        path.write_bytes(damaged)
        assert "some pixels are missing" in str(refusal(path))


def test_a_png_that_ends_within_its_pixels_is_refused_before_they_are_decoded(
    tmp_path: Path,
) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (300, 200, 3), np.uint8)
    path = save(Image.fromarray(noise), tmp_path / "a.png")
    data = path.read_bytes()
    for count in (12, 16):  # its end, and the checksum of its pixels
        path.write_bytes(data[:-count])
        np.testing.assert_array_equal(pictures.load(path).pixels, noise)
    for count in (16 + LAST + 1, len(data) // 2):
        path.write_bytes(data[:-count])
        assert "bytes of its pixels are missing" in str(refusal(path))
    path.write_bytes(data[: -16 - LAST])  # which only decoding tells
    assert "truncated" in str(refusal(path))


def test_of_a_png_that_ends_in_a_later_frame_the_first_is_read(tmp_path: Path) -> None:
    frames = np.random.default_rng(3).integers(0, 256, (2, 60, 50, 3), np.uint8)
    first, second = map(Image.fromarray, frames)
    path = save(first, tmp_path / "a.png", save_all=True, append_images=[second])
    path.write_bytes(path.read_bytes()[: -16 - LAST - 100])
    np.testing.assert_array_equal(pictures.load(path).pixels, frames[0])


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(RGB).save(stream, "PNG")
    out, into = os.pipe()
    os.write(into, stream.getvalue())
    os.close(into)
    try:
        np.testing.assert_array_equal(pictures.load(f"/dev/fd/{out}").pixels, RGB)
    finally:
        os.close(out)


def test_a_png_whose_checksum_is_wrong_is_refused(tmp_path: Path) -> None:
    """Pillow decodes other pixels from it."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
    sound, path = stream.getvalue(), tmp_path / "a.png"
    begin, end = sound.index(b"IDAT") + 4, sound.index(b"IEND") - 4
    for at in (begin, (begin + end) // 2, end - 5, end - 1):
        damaged = bytearray(sound)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(PictureError, match="checksum is wrong"):
            pictures.load(path)
    path.write_bytes(sound)
    assert np.array_equal(pictures.load(path).pixels, pixels)


def png_of(
    pixels: np.ndarray, rows: int, kind: int = 2, before: bytes = b"", more: int = 0
) -> bytes:
    """A PNG of 8 bits a sample that ends its data after so many rows, soundly."""
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    data = b"".join(b"\0" + row.tobytes() for row in pixels[:rows]) + bytes(more)
    parts = ((b"IHDR", header), (b"", before), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return hostile.MAGIC + b"".join(hostile.chunk(*part) if part[0] else part[1] for part in parts)


@pytest.mark.parametrize("wrap", [bytes, hostile.icns, hostile.ico])
def test_a_png_whose_data_end_before_its_last_row_is_refused(
    tmp_path: Path, wrap: Callable[[bytes], bytes]
) -> None:
    """Pillow takes the rows that are missing for black, checksums and all."""
    side = {bytes: 33, hostile.icns: 256, hostile.ico: 16}[wrap]
    pixels = np.random.default_rng(0).integers(1, 256, (side, side, 3), dtype=np.uint8)
    path = tmp_path / "a"
    for rows in (1, side // 2, side - 1):
        path.write_bytes(wrap(png_of(pixels, rows)))
        assert "its last rows are missing" in str(refusal(path))
    for more in (0, 5):  # bytes behind the last row
        path.write_bytes(wrap(png_of(pixels, side, more=more)))
        np.testing.assert_array_equal(pictures.load(path).pixels, pixels)


def test_what_else_is_in_an_icon_takes_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts of PNGs without end, and one that claims more pixels than the icon has."""
    pixels = np.random.default_rng(0).integers(1, 256, (16, 16, 3), dtype=np.uint8)
    icon, path = hostile.ico(png_of(pixels, 16)), tmp_path / "a.ico"
    path.write_bytes(icon + hostile.png(20_000, 20_000, rows=3))
    np.testing.assert_array_equal(pictures.load(path).pixels, pixels)
    looked, check = list[object](), image_png._check_rows

    def counted(stream: BinaryIO, *others: Any) -> bool:
        looked.append(stream)
        return check(stream, *others)

    monkeypatch.setattr(image_png, "_check_rows", counted)
    path.write_bytes(icon + hostile.MAGIC * 10_000)
    np.testing.assert_array_equal(pictures.load(path).pixels, pixels)
    assert len(looked) == image_png._PNGS


def adam7(pixels: np.ndarray) -> list[bytes]:
    """The rows of gray pixels, with their filters, in the order of interlaced passes."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)]
    passes += [(0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    parts = [pixels[top::down, left::across] for left, top, across, down in passes]
    return [b"\0" + row.tobytes() for part in parts for row in part if row.size]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 5), (5, 4), (16, 17)])
def test_an_interlaced_png_has_all_of_its_passes(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)
    header = struct.pack(">IIBBBBB", shape[1], shape[0], 8, 0, 0, 0, 1)
    rows, path = adam7(pixels), tmp_path / "a.png"
    for count in range(len(rows) + 1):
        data = zlib.compress(b"".join(rows[:count]))
        parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
        path.write_bytes(hostile.MAGIC + b"".join(hostile.chunk(*part) for part in parts))
        if count < len(rows):
            assert "its last rows are missing" in str(refusal(path))
    np.testing.assert_array_equal(pictures.load(path).pixels[..., 0], pixels)


def test_frames_of_a_png_up_to_the_one_that_is_taken_have_all_their_rows(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(1, 256, (3, 12, 10, 3), dtype=np.uint8)
    frames[1, :5], frames[2, :, :3] = frames[0, :5], frames[1, :, :3]  # so that each is a part
    first, *others = map(Image.fromarray, frames)
    first.save(stream := io.BytesIO(), "PNG", save_all=True, append_images=others)
    sound, path = stream.getvalue(), tmp_path / "a.png"
    path.write_bytes(sound)
    for number, frame in enumerate(frames, 1):
        np.testing.assert_array_equal(pictures.load(path, frame=number).pixels, frame)
    second = sound.index(b"fdAT") - 4
    count = int.from_bytes(sound[second : second + 4])
    body = sound[second + 8 : second + 8 + count]
    rows = zlib.decompress(body[4:])
    fewer = body[:4] + zlib.compress(rows[: len(rows) // 7])
    path.write_bytes(sound[:second] + hostile.chunk(b"fdAT", fewer) + sound[second + 12 + count :])
    np.testing.assert_array_equal(pictures.load(path, frame=1).pixels, frames[0])
    for number in (2, 3):
        with pytest.raises(PictureError, match="its last rows are missing"):
            pictures.load(path, frame=number)


def test_a_png_of_listed_colours_without_the_list_is_refused(tmp_path: Path) -> None:
    """Pillow takes all of them for black."""
    numbers, path = np.arange(64, dtype=np.uint8).reshape(8, 8), tmp_path / "a.png"
    path.write_bytes(png_of(numbers, 8, kind=3))
    assert "its colours are missing" in str(refusal(path))
    colours = np.random.default_rng(0).integers(0, 256, (64, 3), dtype=np.uint8)
    path.write_bytes(png_of(numbers, 8, 3, hostile.chunk(b"PLTE", colours.tobytes())))
    np.testing.assert_array_equal(pictures.load(path).pixels, colours[numbers])


def test_a_png_without_its_end_is_taken_and_that_is_said(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png")
    sound = path.read_bytes()
    assert pictures.load(path).notes == ()
    for cut in (5, 8, 12, 16):
        path.write_bytes(sound[:-cut])
        found = pictures.load(path)
        np.testing.assert_array_equal(found.pixels, RGB)
        assert found.notes == (END_MISSING,)


def test_a_pcx_of_listed_colours_without_the_list_is_refused(tmp_path: Path) -> None:
    """Pillow takes their numbers for gray."""
    path = save(Image.fromarray(RGB).resize((64, 64)).quantize(20), tmp_path / "a.pcx")
    sound = path.read_bytes()
    assert len(np.unique(pictures.load(path).pixels.reshape(-1, 3), axis=0)) > 1
    for cut in (1, 300, 769):
        path.write_bytes(sound[:-cut])
        assert "its colours, which should be its end, are missing" in str(refusal(path))
    gray = bytearray(save(Image.fromarray(GRAY[..., 0]), tmp_path / "b.pcx").read_bytes()[:-769])
    gray[68] = 2  # says so
    path.write_bytes(gray)
    np.testing.assert_array_equal(pictures.load(path).pixels, GRAY)
    tiny = save(Image.new("L", (1, 1), 9), tmp_path / "c.pcx").read_bytes()[:-769]
    path.write_bytes(tiny[:68] + b"\2" + tiny[69:])
    assert pictures.load(path).pixels.tolist() == [[[9]]]


def test_what_libtiff_says_of_damage_that_pillow_takes_for_sound_is_a_note(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image, path = Image.new("1", (300, 200), 1), tmp_path / "a.tif"
    for row in range(0, 200, 7):
        image.paste(0, (row, row, row + 40, row + 3))
    image.save(path, "TIFF", compression="group4")
    assert pictures.load(path).notes == ()
    with Image.open(path) as again:
        (begin,), (count,) = again.tag_v2[273], again.tag_v2[279]
    data = bytearray(path.read_bytes())
    data[begin + 20 : begin + count] = bytes(count - 20)  # which is no code
    path.write_bytes(data)
    (note,) = pictures.load(path).notes
    assert "damaged" in note
    assert "Fax4Decode" in note
    assert capfd.readouterr().err == ""


def test_compressed_files_are_no_pictures_of_a_folder_whatever_pillow_opens() -> None:
    import imgmlp.pil  # noqa: F401 - which has Pillow open them

    assert ".imlp" in Image.registered_extensions()
    assert not {".imlp", ".npz"} & image_files.endings()
    assert {".png", ".jpg", ".webp"} <= image_files.endings()
