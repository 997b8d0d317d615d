"""Files that declare to be far larger than their coded images are refused; sound files are not."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from conftest import small_pixels
from hostile import refusal
from PIL import Image, features

from imgmlp import image as pictures
from imgmlp.image_io import claimed_size

SIDE = 16_000
PIXELS = small_pixels()
avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")


def saved(kind: str, frames: int = 1, **options: object) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(PIXELS)
    if frames > 1:
        options |= {"save_all": True, "append_images": [image.rotate(90)] * (frames - 1)}
    image.save(stream, kind, **options)
    return stream.getvalue()


def says(data: bytes, side: int) -> bytes:
    """An AVIF that declares another size."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", side, side) + data[at + 8 :]


def on_canvas(data: bytes, side: int) -> bytes:
    at = data.index(b"VP8X") + 12
    return data[:at] + struct.pack("<I", side - 1)[:3] * 2 + data[at + 6 :]


@avif
def test_avif_that_declares_far_more_pixels_is_refused_undecoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.avif"
    path.write_bytes(says(saved("AVIF"), SIDE))
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it was decoded"))
    assert f"{SIDE}×{SIDE} pixels but holds a far smaller" in str(refusal(path))


def test_webp_with_tiny_frames_on_a_huge_canvas_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    data = saved("WEBP", 2, lossless=True)
    path.write_bytes(on_canvas(data, 16_383))
    assert "16383×16383 pixels but holds a far smaller" in str(refusal(path))
    path.write_bytes(on_canvas(data, 300))  # allowed for an animation
    assert pictures.load(path, alpha=True).pixels.shape[:2] == (300, 300)


def in_frame(data: bytes, side: int) -> bytes:
    """An animated WebP with another size in the header of its first frame."""
    at = data.index(b"ANMF") + 14
    return data[:at] + struct.pack("<I", side - 1)[:3] * 2 + data[at + 6 :]


def test_size_in_a_webp_frame_header_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    for lossless in (True, False):
        data = on_canvas(saved("WEBP", 2, lossless=lossless), 16_383)
        path.write_bytes(in_frame(data, 16_383))
        assert "16383×16383 pixels but holds a far smaller" in str(refusal(path))


def framed(parts: bytes) -> bytes:
    """A WebP with these chunks in a frame."""
    body = bytes(16) + parts
    frame = b"ANMF" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(frame)) + b"WEBP" + frame


def test_chunks_of_a_webp_frame_are_searched_up_to_a_limit() -> None:
    stream = io.BytesIO(framed((b"abcd" + bytes(4)) * 1000))
    assert 0 < len(list(claimed_size._chunks_and_frame_chunks(stream))) < 20


def test_chunk_of_odd_size_in_a_webp_frame_is_padded() -> None:
    """An alpha chunk before the image may have an odd size."""
    size = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 40, 30)
    parts = b"ALPH" + struct.pack("<I", 3) + bytes(4) + b"VP8 " + struct.pack("<I", 10) + size
    (frame,) = claimed_size._coded_frames(io.BytesIO(framed(parts)))
    assert (frame.width, frame.height, frame.lossy) == (40, 30, True)


@pytest.mark.parametrize("frames", [1, 2])
def test_a_lossy_webp_of_too_few_bytes_is_refused_undecoded(
    frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved("WEBP", frames)
    at = data.index(b"\x9d\x01\x2a") + 3
    data = data[:at] + struct.pack("<HH", 16_383, 16_383) + data[at + 4 :]
    path = tmp_path / "a.webp"
    path.write_bytes(data if frames == 1 else on_canvas(data, 16_383))
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it was decoded"))
    assert "coded bytes cannot hold 16383×16383 pixels" in str(refusal(path))


@pytest.mark.parametrize("side", [1, 16, 17, 1000])
@pytest.mark.parametrize("lossless", [True, False])
def test_flat_webps_are_read(side: int, lossless: bool) -> None:
    for colour in ((0, 0, 0, 255), (255, 255, 255, 255), (9, 200, 7, 99)):
        stream = io.BytesIO()
        image = Image.new("RGBA", (side, side), colour)
        image.save(stream, "WEBP", lossless=lossless, quality=0, method=6)
        assert pictures.load("a.webp", True, stream.getvalue()).pixels.shape[:2] == (side, side)


@avif
@pytest.mark.parametrize("options", [{}, {"quality": 0}, {"subsampling": "4:4:4"}, {"speed": 10}])
@pytest.mark.parametrize("frames", [1, 2])
def test_sound_files_code_as_many_pixels_as_they_declare(
    options: dict[str, object], frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read even if a file may declare no more pixels than it codes."""
    for name in ("UNCHECKED_AVIF_PIXELS", "UNCHECKED_WEBP_PIXELS"):
        monkeypatch.setattr(claimed_size, name, 0)
    monkeypatch.setattr(claimed_size, "MAX_ENLARGEMENT", 1)
    data = saved("AVIF", frames, **options)
    assert max(claimed_size._max_frame_pixels(data)) == 31 * 24
    pictures.load("a.avif", data=data)
    pictures.load("a.webp", data=saved("WEBP", frames))


@avif
def test_a_large_flat_avif_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (1500, 1200), "teal").save(stream, "AVIF", speed=10)
    assert pictures.load("a.avif", data=stream.getvalue()).width == 1500


def header(*fields: tuple[int, int]) -> bytes:
    bits = "".join(f"{value:0{count}b}" for value, count in fields)
    return int(bits.ljust(-len(bits) % 8 + len(bits), "0"), 2).to_bytes(-(-len(bits) // 8))


def test_av1_sequence_header_is_read_in_each_form() -> None:
    size = [(9, 4), (9, 4), (639, 10), (479, 10)]
    reduced = header((0, 3), (1, 1), (1, 1), (4, 5), *size)
    point = [(0, 12), (9, 5), (0, 1), (1, 1), (5, 4)]  # a high level and a display delay
    whole = header((0, 3), (0, 1), (0, 1), (0, 1), (1, 1), (1, 5), *point, *point, *size)
    for form in (reduced, whole):
        assert claimed_size._sequence_pixels(claimed_size._BitReader(form)) == 640 * 480
    timed = header((0, 3), (0, 1), (0, 1), (1, 1), (0, 32), *size)
    for doubtful in (timed, whole[:3], b""):
        with pytest.raises(ValueError, match=r"^$"):
            claimed_size._sequence_pixels(claimed_size._BitReader(doubtful))


SEQUENCE = b"\x12\0\x0a\x0a" + header(
    (0, 3), (1, 1), (1, 1), (4, 5), (9, 4), (9, 4), (63, 10), (63, 10)
)


def test_unreadable_sequence_header_makes_all_sizes_unknown() -> None:
    head = b"mdat" + SEQUENCE + bytes(9)
    assert claimed_size._max_frame_pixels(head) == [64 * 64]
    timed = header((0, 3), (0, 1), (0, 1), (1, 1), (0, 26))
    assert claimed_size._max_frame_pixels(head + b"\x12\0\x0a\x04" + timed) == []


def item(kind: bytes, version: int = 2) -> bytes:
    return b"infe" + bytes([version]) + bytes(7 if version == 2 else 9) + kind


def test_grid_is_at_most_as_large_as_its_coded_images_together() -> None:
    one, grid = item(b"av01"), item(b"grid", 3)
    assert claimed_size._max_tiles(grid + 6 * one) == 6
    assert claimed_size._max_tiles(item(b"tmap") + 2 * one) == 1
    assert claimed_size._max_tiles(grid) == 1


@avif
@pytest.mark.parametrize("word", [b"grid", b"tmap", item(b"tmap"), item(b"grid")])
def test_stray_grid_or_item_words_do_not_make_a_small_avif_pass(
    word: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.avif"
    path.write_bytes(says(saved("AVIF"), SIDE) + struct.pack(">I", 8 + len(word)) + b"free" + word)
    assert f"{SIDE}×{SIDE} pixels but holds a far smaller" in str(refusal(path))


def test_candidates_for_sequence_headers_are_limited() -> None:
    header = b"\x12\0\x0a\x06\x08" + bytes(5)
    assert claimed_size._max_frame_pixels(3 * header) == [1, 1, 1]
    assert (
        len(claimed_size._max_frame_pixels(10_000 * header)) == claimed_size._MAX_SEQUENCE_HEADERS
    )
