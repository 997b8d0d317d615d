"""Untrusted files take limited resources, and opened images are read like their files."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import environment, save, small_pixels
from hostile import refusal
from PIL import Image, ImageFile, ImImagePlugin
from test_bit_depth import deep_png
from test_frames import frames, tiff_field
from test_png import png_of

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io import files

RGB, GRAY = small_pixels(), small_pixels(1)
MAX_MEBIBYTES = 64  # of memory in which all of them are refused
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


@pytest.mark.skipif(sys.platform != "linux", reason="others count memory in other units")
def test_decompression_bombs_are_refused_in_little_memory(tmp_path: Path) -> None:
    """Runs in a process of its own with limits of memory and time, to contain a failure."""
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
    assert int(done.stdout) < MAX_MEBIBYTES * 1024  # KiB
    assert done.stderr == ""


@pytest.mark.parametrize("start", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xc5\xd0\xd3\xc6"])
def test_eps_is_refused_before_pillow_reads_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    path = tmp_path / "a.eps"
    path.write_bytes(start + b"%%X: y\n" * 1000)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    assert "is a vector drawing (EPS)" in str(refusal(path))


@pytest.mark.filterwarnings("ignore:IM image format")  # Pillow deprecates the format
def test_long_text_is_not_read_as_an_im_header(
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


def test_bomb_inside_an_icon_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.ico"
    for name in ("ico-png.ico", "ico-claim.ico", "ico-bitmap.ico"):
        path.write_bytes(hostile.BOMBS[name]())
        assert "more pixels than its header says" in str(refusal(path))
    path.write_bytes(hostile.BOMBS["ico-mask.ico"]())
    assert "not enough image data" in str(refusal(path))


def test_offsets_of_pixels_beyond_the_file_are_reported(tmp_path: Path) -> None:
    """The 64-bit offsets of a BigTIFF exceed what the file system supports."""
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 2**63 - 1, 277: 1, 278: 1, 279: 1}
    entries = b"".join(struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in tags.items())
    head = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, len(tags))
    path = tmp_path / "a.tif"
    path.write_bytes((head + entries).ljust(1000, b"\0"))
    assert "pixels beyond the end of the file" in str(refusal(path))


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
def test_declared_size_is_refused_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(hostile.BOMBS[name]())
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("it was decoded"))
    assert words in str(refusal(path))


def test_large_colour_profile_is_accepted(tmp_path: Path) -> None:
    profile = np.random.default_rng(0).bytes(3 * 2**20)
    path = save(Image.fromarray(RGB), tmp_path / "a.png", icc_profile=profile)
    assert pictures.load(path).icc == profile
    path.write_bytes(hostile.BOMBS["png-text.png"]())
    assert "damaged" not in str(refusal(path))


def test_sound_icons_are_read(tmp_path: Path) -> None:
    image = Image.fromarray(small_pixels()).resize((256, 256))
    for name in ("a.ico", "a.icns"):
        path = save(image, tmp_path / name)
        assert pictures.load(path).channels == 3
    path.write_bytes(hostile.icns(hostile.png(256, 256, rows=256)))
    assert pictures.load(path).pixels.shape == (256, 256, 3)


def test_tiles_of_usual_sizes_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(hostile.tiled_tiff(512))
    assert pictures.load(path).pixels.shape == (7, 9, 1)


def test_pillows_own_pixel_limit_is_restored(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    pictures.load(save(Image.fromarray(RGB), tmp_path / "a.png"))
    (tmp_path / "a.ico").write_bytes(hostile.BOMBS["ico-png.ico"]())
    refusal(tmp_path / "a.ico")
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(("side", "counted"), [(16_000, 256_000_000), (16_385, 0)])
def test_pixel_count_ignores_pillows_own_limit(tmp_path: Path, side: int, counted: int) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(hostile.png(side, side, 1, 0))
    assert files.pixel_count(path) == counted


# Pillow images that have their file


def deep_files(folder: Path) -> list[Path]:
    """Files of which Pillow forgets some properties once they are loaded."""
    values = np.arange(63, dtype="<u2") * 1000
    tags = {256: 9, 257: 7, 259: 1, 273: 0, 277: 1, 278: 7}
    inverted = hostile.tiff(tags | {258: 16, 262: 0, 279: 126}, values.tobytes())
    twelve = hostile.tiff(tags | {258: 12, 262: 1, 279: 98}, bytes(range(98)))
    made = {"inverted.tif": inverted, "12.tif": twelve}
    made |= {f"{channels}.png": deep_png(channels)[0] for channels in (1, 2, 3, 4)}
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def test_from_image_equals_load_of_its_file_also_when_repeated(tmp_path: Path) -> None:
    for path in deep_files(tmp_path):
        whole = pictures.load(path, alpha=True)
        with Image.open(path) as image:
            for _ in range(2):
                picture = pictures.from_image(image, alpha=True)
                np.testing.assert_array_equal(picture.pixels, whole.pixels)
                assert (picture.notes, picture.metadata) == (whole.notes, whole.metadata)
            image.load()
            if path.suffix == ".tif":  # Pillow keeps the tag of its depth
                picture = pictures.from_image(image)
                np.testing.assert_array_equal(picture.pixels, whole.pixels)


def test_from_image_uses_the_images_frame_size_and_metadata(tmp_path: Path) -> None:
    path = frames(tmp_path / "a.tif", icc_profile=b"profile")
    with Image.open(path) as image:
        image.seek(1)
        del image.info["icc_profile"]
        picture = pictures.from_image(image)
        np.testing.assert_array_equal(picture.pixels, GRAY // 2)
        assert picture.icc is None
    large = save(Image.fromarray(RGB).resize((310, 240)), tmp_path / "a.jpg")
    with Image.open(large) as image:
        image.draft("RGB", (155, 120))
        assert pictures.from_image(image).pixels.shape == (120, 155, 3)


def test_from_image_of_a_sideways_tiff_keeps_its_resolution(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(RGB).save(path, dpi=(300, 150), tiffinfo={274: 6})
    whole = pictures.load(path)
    assert whole.metadata.dpi == (150, 300)
    with Image.open(path) as image:
        picture = pictures.from_image(image)
    assert picture.metadata == whole.metadata
    np.testing.assert_array_equal(picture.pixels, whole.pixels)


def test_from_image_refuses_an_image_of_a_damaged_file(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:-30])
    with Image.open(path) as image, pytest.raises(PictureError) as caught:
        pictures.from_image(image)
    assert str(caught.value) == str(refusal(path))


def test_from_image_checks_icons_and_webps_as_load_does(tmp_path: Path) -> None:
    """Pillow sets `tile` of these formats only when it loads them."""
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
def test_image_closed_before_it_was_read_is_reported(
    tmp_path: Path, suffix: str, ours: bool
) -> None:
    """Except for a WebP: Pillow reads its bytes when it opens it."""
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


def test_a_compression_that_libtiff_may_lack_is_named(tmp_path: Path) -> None:
    tags = {256: 9, 257: 7, 258: 8, 259: 50001, 262: 1, 273: 0, 277: 1, 278: 7, 279: 40}
    path = tmp_path / "a.tif"
    path.write_bytes(hostile.tiff(tags, bytes(40)))
    assert "compression webp is not supported" in str(refusal(path))


def test_a_tiff_without_some_of_its_strips_is_refused(tmp_path: Path) -> None:
    """Pillow would make them black, or read their pixels from the file's first bytes."""
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


def test_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(RGB).save(stream, "PNG")
    out, into = os.pipe()
    os.write(into, stream.getvalue())
    os.close(into)
    try:
        np.testing.assert_array_equal(pictures.load(f"/dev/fd/{out}").pixels, RGB)
    finally:
        os.close(out)


def test_extensions_of_pictures_never_include_compressed_files() -> None:
    import imgmlp.pil  # noqa: F401 - which has Pillow open them

    assert ".imlp" in Image.registered_extensions()
    assert not {".imlp", ".npz"} & files.endings()
    assert {".png", ".jpg", ".webp"} <= files.endings()
