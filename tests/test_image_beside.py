"""What is beside a picture has limits, which are looked at before Pillow reads the file."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import small_pixels
from hostile import refusal
from PIL import Image

from imgmlp import image as pictures
from imgmlp import image_beside as beside
from imgmlp import image_files

PIXELS = small_pixels()
MEBI = 2**20


def jpeg(*parts: bytes) -> bytes:
    """A JPEG with these before everything else."""
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG")
    data = stream.getvalue()
    return data[:2] + b"".join(parts) + data[2:]


def segment(kind: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 255, kind, 2 + len(data)) + data


def exif(count: int) -> list[bytes]:
    return [segment(0xE1, b"Exif\0\0" + bytes(65_000))] * count


def tiff(large: int, order: str = "<", big: bool = False, inner: bool = False) -> bytes:
    """A TIFF of 9×7 pixels with XMP data of so many bytes, or EXIF data with such a tag."""
    kind, head, place = ("HHQQ", 16, 8) if big else ("HHII", 8, 4)
    mark = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}H", 43 if big else 42)
    counted = "Q" if big else "H"

    def directory(entries: dict[int, tuple[int, int, int]]) -> bytes:
        found = [struct.pack(f"{order}{kind}", tag, *of) for tag, of in sorted(entries.items())]
        count = struct.pack(f"{order}{counted}", len(entries))
        return count + b"".join(found) + bytes(place)

    usual = {256: 9, 257: 7, 258: 8, 259: 1, 262: 1, 277: 1, 278: 7, 279: 63, 273: head}
    tags = {tag: (4, 1, value) for tag, value in usual.items()}
    at = head + 64
    tags[34665 if inner else 700] = (4, 1, at) if inner else (1, large, at)
    held = directory({37510: (7, large, at + 100)}) if inner else b""
    body = bytes(64) + held.ljust(100, b"\0") + bytes(large)
    first = struct.pack(f"{order}HH", 8, 0) if big else b""
    first += struct.pack(f"{order}{'Q' if big else 'I'}", head + len(body))
    return mark + first + body + directory(tags)


def png(size: int) -> bytes:
    return hostile.with_chunks(hostile.png(9, 7, rows=7), hostile.chunk(b"eXIf", bytes(size)))


def webp(size: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "WEBP", xmp=b"<" * size)
    return stream.getvalue()


def with_size(data: bytes) -> bytes:
    """A WebP that says to end where these bytes do."""
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


HELD: dict[str, Callable[[], bytes]] = {
    "exif.jpg": lambda: jpeg(*exif(70)),
    "comments.jpg": lambda: jpeg(segment(0xFE, b"") * 5000),
    "junk.jpg": lambda: jpeg(bytes(2 * MEBI)),
    "bare.jpg": lambda: jpeg(b"\xff\x01" * MEBI),
    "profiles.jpg": lambda: jpeg(segment(0xE2, bytes(65_000)) * 600),
    "xmp.tif": lambda: tiff(40 * MEBI),
    "big-endian.tif": lambda: tiff(40 * MEBI, ">"),
    "big.tif": lambda: tiff(40 * MEBI, big=True),
    "inner.tif": lambda: tiff(40 * MEBI, inner=True),
    "exif.png": lambda: png(40 * MEBI),
    "xmp.webp": lambda: webp(40 * MEBI),
    "chunks.webp": lambda: with_size(webp(5) + b"abcd\0\0\0\0" * 200_000),
}


@pytest.mark.parametrize("name", HELD)
def test_what_has_far_more_than_a_picture_is_refused_unread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(HELD[name]())
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("Pillow has read it"))
    found = refusal(path)
    assert "has more than" in str(found)
    assert "-strip stripped.png" in found.hint
    assert image_files.pixels(path) == 0


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
@pytest.mark.parametrize("inner", [False, True])
def test_what_pictures_have_is_read(tmp_path: Path, order: str, big: bool, inner: bool) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(3000, order, big, inner))
    assert pictures.load(path).pixels.shape == (7, 9, 1)


def test_much_is_read_where_it_is_usual(tmp_path: Path) -> None:
    parts = [*exif(3), *[segment(0xE2, bytes(65_000))] * 300, b"\0" * 99, b"\xff" * 99]
    (tmp_path / "a.jpg").write_bytes(jpeg(*parts))
    assert pictures.load(tmp_path / "a.jpg").pixels.shape == PIXELS.shape
    (tmp_path / "a.png").write_bytes(png(3 * MEBI))
    assert pictures.load(tmp_path / "a.png").pixels.shape == (7, 9, 3)
    (tmp_path / "a.webp").write_bytes(webp(3 * MEBI))
    assert pictures.load(tmp_path / "a.webp").pixels.shape == PIXELS.shape


@pytest.mark.parametrize("make", [lambda: png(5), lambda: webp(5), jpeg])
def test_what_follows_a_picture_counts_for_nothing(
    make: Callable[[], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(make() + b"\xf3abc" * 100)
    assert pictures.load(path).pixels.size > 0


@pytest.mark.parametrize("last", [b"\0", b"\xd3", b""])
def test_bytes_that_fill_up_are_passed_over_at_once(last: bytes) -> None:
    """By each of them once: a megabyte took an hour, as each began a search through the rest."""
    data = b"\xff\xd8" + b"\xff" * MEBI + last
    beside.check(io.BytesIO(data), Path("a.jpg"))


def test_a_tiff_may_have_layers_by_the_size_of_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MOST", 1000)
    stream = io.BytesIO()
    pixels = np.zeros((40, 50), np.uint8)
    for count in (beside.LAYERS * pixels.size - 1000, 6000 * beside.LAYERS):
        tags = {37724: bytes(count)}
        Image.fromarray(pixels).save(stream := io.BytesIO(), "TIFF", tiffinfo=tags)
        if count < beside.LAYERS * pixels.size:
            beside.check(stream, Path("a.tif"))
            continue
        with pytest.raises(pictures.PictureError, match="more than 12,000 bytes"):
            beside.check(stream, Path("a.tif"))


def test_directories_that_lead_to_each_other_end() -> None:
    data = bytearray(tiff(0))
    (at,) = struct.unpack_from("<I", data, 4)
    data[-4:] = struct.pack("<I", at)
    beside.check(io.BytesIO(bytes(data)), Path("a.tif"))
    for cut in range(len(data)):
        beside.check(io.BytesIO(bytes(data[:cut])), Path("a.tif"))
