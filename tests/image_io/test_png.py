"""PNGs, also those in icons, that lack pixels or have wrong checksums are refused."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import hostile
import numpy as np
import pytest
from conftest import save, small_pixels
from hostile import refusal
from PIL import Image

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io import png
from imgmlp.image_io.png import END_MISSING, MAX_MISSING_BYTES
from imgmlp.image_io.structure import chunks

RGB = small_pixels()


@pytest.mark.parametrize("wrap", [bytes, hostile.icns, hostile.ico])
def test_png_with_too_many_tiny_chunks_is_refused_also_in_icons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrap: Callable[[bytes], bytes]
) -> None:
    path, flood = tmp_path / "a", hostile.chunk(b"abCd", b"")
    path.write_bytes(wrap(hostile.with_chunks(hostile.png(16, 16, rows=16), flood, 5000)))
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    assert "more than 4,096 tiny chunks" in str(refusal(path))


def test_chunks_are_read_only_up_to_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[object]()

    def counted(stream: BinaryIO, png: bool) -> Iterator[object]:
        for chunk in chunks(stream, png):
            looked.append(chunk)
            yield chunk

    monkeypatch.setattr(png, "chunks", counted)
    monkeypatch.setattr(png, "MAX_CHUNKS", 100)
    data = hostile.with_chunks(hostile.png(9, 7, rows=7), hostile.chunk(b"abCd", bytes(200)), 999)
    png.check_chunks(io.BytesIO(data), Path("a.png"))
    assert len(looked) == 100


def test_png_with_many_large_chunks_is_read(tmp_path: Path) -> None:
    data = hostile.png(9, 7, rows=7)
    path = tmp_path / "a.png"
    path.write_bytes(hostile.with_chunks(data, hostile.chunk(b"abCd", bytes(120)), 5000))
    assert pictures.load(path).notes == ()


def test_png_truncated_within_its_pixels_is_refused_undecoded(
    tmp_path: Path,
) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (300, 200, 3), np.uint8)
    path = save(Image.fromarray(noise), tmp_path / "a.png")
    data = path.read_bytes()
    for count in (12, 16):  # IEND; IEND and the checksum of IDAT
        path.write_bytes(data[:-count])
        np.testing.assert_array_equal(pictures.load(path).pixels, noise)
    for count in (16 + MAX_MISSING_BYTES + 1, len(data) // 2):
        path.write_bytes(data[:-count])
        assert "bytes of its pixels are missing" in str(refusal(path))
    path.write_bytes(data[: -16 - MAX_MISSING_BYTES])  # only decoding shows that pixels are missing
    assert "truncated" in str(refusal(path))


def test_first_frame_of_an_apng_truncated_in_a_later_one_is_read(tmp_path: Path) -> None:
    frames = np.random.default_rng(3).integers(0, 256, (2, 60, 50, 3), np.uint8)
    first, second = map(Image.fromarray, frames)
    path = save(first, tmp_path / "a.png", save_all=True, append_images=[second])
    path.write_bytes(path.read_bytes()[: -16 - MAX_MISSING_BYTES - 100])
    np.testing.assert_array_equal(pictures.load(path).pixels, frames[0])


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
    """A PNG of 8 bits per sample whose zlib stream ends after `rows` rows, with valid checksums."""
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    data = b"".join(b"\0" + row.tobytes() for row in pixels[:rows]) + bytes(more)
    parts = ((b"IHDR", header), (b"", before), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return hostile.MAGIC + b"".join(hostile.chunk(*part) if part[0] else part[1] for part in parts)


@pytest.mark.parametrize("wrap", [bytes, hostile.icns, hostile.ico])
def test_a_png_whose_data_end_before_its_last_row_is_refused(
    tmp_path: Path, wrap: Callable[[bytes], bytes]
) -> None:
    """Pillow makes the missing rows black; all checksums are valid."""
    side = {bytes: 33, hostile.icns: 256, hostile.ico: 16}[wrap]
    pixels = np.random.default_rng(0).integers(1, 256, (side, side, 3), dtype=np.uint8)
    path = tmp_path / "a"
    for rows in (1, side // 2, side - 1):
        path.write_bytes(wrap(png_of(pixels, rows)))
        assert "its last rows are missing" in str(refusal(path))
    for more in (0, 5):  # bytes behind the last row
        path.write_bytes(wrap(png_of(pixels, side, more=more)))
        np.testing.assert_array_equal(pictures.load(path).pixels, pixels)


def test_pngs_searched_in_an_icon_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG that declares more pixels than the icon has, and a flood of PNG signatures."""
    pixels = np.random.default_rng(0).integers(1, 256, (16, 16, 3), dtype=np.uint8)
    icon, path = hostile.ico(png_of(pixels, 16)), tmp_path / "a.ico"
    path.write_bytes(icon + hostile.png(20_000, 20_000, rows=3))
    np.testing.assert_array_equal(pictures.load(path).pixels, pixels)
    looked, check = list[object](), png._check_rows

    def counted(stream: BinaryIO, *others: Any) -> bool:
        looked.append(stream)
        return check(stream, *others)

    monkeypatch.setattr(png, "_check_rows", counted)
    path.write_bytes(icon + hostile.MAGIC * 10_000)
    np.testing.assert_array_equal(pictures.load(path).pixels, pixels)
    assert len(looked) == png._MAX_ICON_PNGS


def adam7(pixels: np.ndarray) -> list[bytes]:
    """The rows of gray pixels with their filter types, in the order of the Adam7 passes."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)]
    passes += [(0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    parts = [pixels[top::down, left::across] for left, top, across, down in passes]
    return [b"\0" + row.tobytes() for part in parts for row in part if row.size]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 5), (5, 4), (16, 17)])
def test_interlaced_png_that_lacks_a_pass_is_refused(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
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


def test_apng_frames_up_to_the_chosen_one_must_be_complete(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(1, 256, (3, 12, 10, 3), dtype=np.uint8)
    frames[1, :5], frames[2, :, :3] = (
        frames[0, :5],
        frames[1, :, :3],
    )  # each differs from the previous one in a part
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


def test_indexed_png_without_a_palette_is_refused(tmp_path: Path) -> None:
    """Pillow makes all pixels black."""
    numbers, path = np.arange(64, dtype=np.uint8).reshape(8, 8), tmp_path / "a.png"
    path.write_bytes(png_of(numbers, 8, kind=3))
    assert "its colours are missing" in str(refusal(path))
    colours = np.random.default_rng(0).integers(0, 256, (64, 3), dtype=np.uint8)
    path.write_bytes(png_of(numbers, 8, 3, hostile.chunk(b"PLTE", colours.tobytes())))
    np.testing.assert_array_equal(pictures.load(path).pixels, colours[numbers])


def test_png_without_iend_is_read_with_a_note(tmp_path: Path) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.png")
    sound = path.read_bytes()
    assert pictures.load(path).notes == ()
    for cut in (5, 8, 12, 16):
        path.write_bytes(sound[:-cut])
        picture = pictures.load(path)
        np.testing.assert_array_equal(picture.pixels, RGB)
        assert picture.notes == (END_MISSING,)
