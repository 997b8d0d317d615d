"""Limits on what files hold beside the pixels are checked before Pillow reads them."""

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
from imgmlp.image_io import files, parsing_limits

PIXELS = small_pixels()
MEBI = 2**20


def jpeg(*parts: bytes) -> bytes:
    """A JPEG with these bytes behind its SOI marker."""
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG")
    data = stream.getvalue()
    return data[:2] + b"".join(parts) + data[2:]


def segment(kind: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 255, kind, 2 + len(data)) + data


def exif(count: int) -> list[bytes]:
    return [segment(0xE1, b"Exif\0\0" + bytes(65_000))] * count


def tiff(large: int, order: str = "<", big: bool = False, inner: bool = False) -> bytes:
    """A TIFF of 9×7 pixels with `large` bytes of XMP data, or of a tag in its EXIF data."""
    kind, head, place = ("HHQQ", 16, 8) if big else ("HHII", 8, 4)
    mark = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}H", 43 if big else 42)
    counted = "Q" if big else "H"

    def directory(entries: dict[int, tuple[int, int, int]]) -> bytes:
        packed = [struct.pack(f"{order}{kind}", tag, *of) for tag, of in sorted(entries.items())]
        count = struct.pack(f"{order}{counted}", len(entries))
        return count + b"".join(packed) + bytes(place)

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
    """A WebP with its RIFF size set to that of the data."""
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def overlapping(pages: int, entries: int) -> bytes:
    """A TIFF of overlapping directories: each begins one entry behind the previous one."""
    held = bytearray()
    for number in range(entries + pages):
        held += struct.pack("<HHIHH", 1000 + number % 50, 3, 1, 0, entries)
    for page in range(pages - 1):
        struct.pack_into("<I", held, 12 * (page + entries), 8 + 12 * (page + 1))
    held[-12 : -12 + 4] = bytes(4)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", entries) + bytes(held)


def shared(pages: int, size: int) -> bytes:
    """A TIFF whose pages share the bytes of their XMP data."""
    data = b""
    for page in range(pages):
        then = (8 + 18 * (page + 1)) * (page + 1 < pages)
        data += struct.pack("<HHHIII", 1, 700, 1, size, 8 + 18 * pages, then)
    return b"II*\0\x08\0\0\0" + data + bytes(size)


def pages(count: int) -> bytes:
    """A sound TIFF of `count` pages of one pixel, with a usual number of tags."""
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 1}
    tags |= dict.fromkeys(range(65_000, 65_011), 1)
    size, data = 2 + 12 * len(tags) + 4, b"II*\0" + struct.pack("<I", 12) + b"\x80\0\0\0"
    for page in range(1, count + 1):
        data += struct.pack("<H", len(tags))
        data += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        data += struct.pack("<I", (12 + size * page) * (page < count))
    return data


def gif(before: bytes = b"", between: bytes = b"", data: bytes = b"\2\x44\1") -> bytes:
    """A GIF of one pixel with these blocks before and behind its frame."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2"
    return head + before + frame + data + b"\0" + between + b";"


def comment(size: int, count: int) -> bytes:
    return b"!\xfe" + (bytes([size]) + b"a" * size) * count + b"\0"


def jpeg2000(before: bytes = b"", inner: bytes = b"") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "JPEG2000")
    data = stream.getvalue()
    at = data.index(b"jp2h") - 4
    size = int.from_bytes(data[at : at + 4])
    header = struct.pack(">I", size + len(inner)) + data[at + 4 : at + size] + inner
    return data[:at] + before + header + data[at + size :]


def psd(resources: int) -> bytes:
    held = (b"8BIM" + struct.pack(">HHI", 1000, 0, 0)) * resources
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 1, 1, 1, 8, 1) + bytes(4)
    return head + struct.pack(">I", len(held)) + held + bytes(4 + 2 + 1)


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
    "directory.tif": lambda: overlapping(1, 5000),
    "directories.tif": lambda: overlapping(70, 4000),
    "shared.tif": lambda: shared(20, 20 * MEBI),
    "end.jpg": lambda: b"\xff\xd8\xff\xd9" + jpeg(segment(0xFE, b"") * 5000)[2:],
    "comment.gif": lambda: gif(comment(1, 300_000)),
    "comments.gif": lambda: gif(comment(1, 1) * 300_000),
    "between.gif": lambda: gif(between=comment(1, 300_000)),
    "data.gif": lambda: gif(data=b"\1\x44" * 300_000),
    "junk.gif": lambda: gif(bytes(2 * MEBI)),
    "large.gif": lambda: gif(comment(255, 140_000)),
    "comment.pgm": lambda: b"P5 1 #" + b"x" * 2 * MEBI + b"\n1 255\n\0",
    "spaces.pbm": lambda: b"P4" + b" " * 2 * MEBI + b"1 1\n\0",
    "boxes.jp2": lambda: jpeg2000(b"\0\0\0\x08free" * 20_000),
    "header.jp2": lambda: jpeg2000(inner=b"\0\0\0\x08free" * 20_000),
    "parts.icns": lambda: b"icns" + struct.pack(">I", 16_008) + b"abcd\0\0\0\x08" * 2000,
    "header.icns": lambda: hostile.icns(jpeg2000(inner=b"\0\0\0\x08free" * 20_000)),
    "resources.psd": lambda: psd(70_000),
    "fields.iim": lambda: b"\x1c\2\5\0\1a" * 70_000,
    "chunks.webp": lambda: with_size(webp(5) + b"abcd\0\0\0\0" * 200_000),
}


@pytest.mark.parametrize("name", HELD)
def test_file_with_excessive_non_pixel_data_is_refused_unread(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(HELD[name]())
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    error = refusal(path)
    assert "has more than" in str(error)
    assert "-strip stripped.png" in error.hint
    assert files.pixel_count(path) == 0


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
@pytest.mark.parametrize("inner", [False, True])
def test_tiff_with_xmp_or_exif_of_usual_size_is_read(
    tmp_path: Path, order: str, big: bool, inner: bool
) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(3000, order, big, inner))
    assert pictures.load(path).pixels.shape == (7, 9, 1)


def test_large_metadata_of_jpeg_png_and_webp_are_read(tmp_path: Path) -> None:
    parts = [*exif(3), *[segment(0xE2, bytes(65_000))] * 300, b"\0" * 99, b"\xff" * 99]
    (tmp_path / "a.jpg").write_bytes(jpeg(*parts))
    assert pictures.load(tmp_path / "a.jpg").pixels.shape == PIXELS.shape
    (tmp_path / "a.png").write_bytes(png(3 * MEBI))
    assert pictures.load(tmp_path / "a.png").pixels.shape == (7, 9, 3)
    (tmp_path / "a.webp").write_bytes(webp(3 * MEBI))
    assert pictures.load(tmp_path / "a.webp").pixels.shape == PIXELS.shape


SOUND: dict[str, Callable[[], bytes]] = {
    "pages.tif": lambda: pages(3000),
    "xmp.gif": lambda: gif(comment(10, 20_000) + comment(255, 20_000), comment(3, 1000)),
    "comment.pgm": lambda: b"P5 1 #" + b"x" * 900_000 + b"\n1 255\n\x80",
    "dark.pbm": lambda: b"P4 4000 4000\n" + b"#" * 2_000_000,
    "boxes.jp2": lambda: jpeg2000(b"\0\0\0\x08free" * 999, b"\0\0\0\x08free" * 999),
    "resources.psd": lambda: psd(5000),
}


@pytest.mark.parametrize("name", SOUND)
def test_large_non_pixel_data_of_other_formats_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(SOUND[name]())
    assert pictures.load(path).pixels.size > 0


@pytest.mark.parametrize("wrap", [bytes, hostile.icns, hostile.ico])
def test_chunk_that_declares_more_than_the_file_has_is_damage(
    wrap: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = hostile.with_chunks(hostile.png(16, 16), struct.pack(">I", 2**31 - 1) + b"abCd")
    (tmp_path / "a").write_bytes(wrap(data))
    assert "damaged or truncated" in str(refusal(tmp_path / "a"))


def test_page_2000_of_a_tiff_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(pages(3000))
    assert pictures.load(tmp_path / "a.tif", frame=2000).pixels.tolist() == [[[128]]]


@pytest.mark.parametrize("kind", [1, 4])
def test_tiff_with_too_many_small_strips_is_refused(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strips of one row, with offsets of type BYTE or LONG; more large ones are accepted."""
    monkeypatch.setattr(parsing_limits, "MAX_TIFF_STRIPS", 50)
    image = Image.new("L", (9, 60), 7)
    image.save(stream := io.BytesIO(), "TIFF", tiffinfo={278: 1})
    path, data = tmp_path / "a.tif", bytearray(stream.getvalue())
    at = data.index(struct.pack("<HHI", 273, 4, 60)) + 2
    data[at : at + 2] = struct.pack("<H", kind)
    path.write_bytes(data)
    error = refusal(path)
    assert "has more than 50 strips or tiles" in str(error)
    assert "converted.png" in error.hint
    monkeypatch.setattr(parsing_limits, "MIN_PIXELS_PER_STRIP", 9)
    parsing_limits.check(io.BytesIO(data), path)


@pytest.mark.parametrize("make", [lambda: png(5), lambda: webp(5), jpeg])
def test_data_after_the_end_of_a_picture_are_ignored(
    make: Callable[[], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(make() + b"\xf3abc" * 100)
    assert pictures.load(path).pixels.size > 0


@pytest.mark.parametrize("last", [b"\0", b"\xd3", b""])
def test_fill_bytes_of_a_jpeg_are_skipped_in_linear_time(last: bytes) -> None:
    """Formerly each fill byte began a search through the rest: a megabyte took an hour."""
    data = b"\xff\xd8" + b"\xff" * MEBI + last
    parsing_limits.check(io.BytesIO(data), Path("a.jpg"))


def test_limit_of_tiff_metadata_grows_with_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing_limits, "MAX_NON_PIXEL_BYTES", 1000)
    stream = io.BytesIO()
    pixels = np.zeros((40, 50), np.uint8)
    for count in (
        parsing_limits.MAX_TIFF_BYTES_PER_PIXEL * pixels.size - 1000,
        6000 * parsing_limits.MAX_TIFF_BYTES_PER_PIXEL,
    ):
        tags = {37724: bytes(count)}
        Image.fromarray(pixels).save(stream := io.BytesIO(), "TIFF", tiffinfo=tags)
        if count < parsing_limits.MAX_TIFF_BYTES_PER_PIXEL * pixels.size:
            parsing_limits.check(stream, Path("a.tif"))
            continue
        with pytest.raises(pictures.PictureError, match="more than 12,000 bytes"):
            parsing_limits.check(stream, Path("a.tif"))


def test_cyclic_tiff_directories_are_visited_once() -> None:
    data = bytearray(tiff(0))
    (at,) = struct.unpack_from("<I", data, 4)
    data[-4:] = struct.pack("<I", at)
    parsing_limits.check(io.BytesIO(bytes(data)), Path("a.tif"))
    for cut in range(len(data)):
        parsing_limits.check(io.BytesIO(bytes(data[:cut])), Path("a.tif"))
