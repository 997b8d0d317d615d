"""JPEG, JPEG 2000 and PCX files that lack pixels are refused."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import save, small_pixels
from hostile import refusal
from PIL import Image, ImageFile

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io import completeness
from imgmlp.image_io.png import END_MISSING
from imgmlp.image_io.structure import CODESTREAM_START, JPEG_SOS, segments

RGB, GRAY = small_pixels(), small_pixels(1)


def test_jpeg_with_too_many_markers_is_refused(tmp_path: Path) -> None:
    """The markers have no length and are in a scan, where encoders write none."""
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg")
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\xff\x01" * 20_000 + data[-2:])
    assert "has more than 16,384 segments" in str(refusal(path))
    path.write_bytes(data[:-2] + b"\xff\x01" * 1000 + data[-2:])
    assert pictures.load(path).notes == ()


def test_surplus_restart_markers_take_no_memory(tmp_path: Path) -> None:
    data = noisy("RGB", restart_marker_blocks=2)
    jpeg = completeness.parse_jpeg(data + b"\xff\xd0" * 500_000)
    (scan,) = jpeg._scans()
    tracemalloc.start()
    try:
        assert not jpeg._lacks_restarts(scan)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("progressive", [False, True])
def test_metadata_of_a_jpeg_do_not_count_as_coded_bytes(
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
def test_smallest_possible_jpegs_of_a_size_are_read(mode: str, side: int) -> None:
    ways = [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 1}]
    for way in ways:
        stream = io.BytesIO()
        image = Image.new(mode, (side, side))
        image.save(stream, "JPEG", optimize=True, quality=1, **way)
        assert pictures.load("a.jpg", data=stream.getvalue()).width == side


def test_flat_jpegs_are_complete(tmp_path: Path) -> None:
    for options in ({}, {"progressive": True}, {"optimize": True, "subsampling": "4:2:0"}):
        path = save(Image.new("RGB", (2000, 2000), "gray"), tmp_path / "a.jpg", **options)
        assert pictures.load(path).pixels.shape == (2000, 2000, 3)


def test_later_frame_of_an_mpo_must_be_complete(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_with_its_eoi_marker_before_the_last_pixels_is_refused(
    tmp_path: Path, progressive: bool
) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg", progressive=progressive)
    data = path.read_bytes()
    for share in (0.7, 0.9):
        path.write_bytes(data[: int(share * len(data))] + data[-2:])
        assert "damaged or truncated" in str(refusal(path))
    path.write_bytes(data + bytes(99))  # data behind the end are ignored
    assert pictures.load(path).notes == ()


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_that_lacks_only_its_eoi_marker_is_read(tmp_path: Path, progressive: bool) -> None:
    path = save(Image.fromarray(RGB), tmp_path / "a.jpg", progressive=progressive)
    data, whole = path.read_bytes(), pictures.load(path)
    for count in (1, 2):
        path.write_bytes(data[:-count])
        picture = pictures.load(path)
        np.testing.assert_array_equal(picture.pixels, whole.pixels)
        assert ["end is missing" in note for note in picture.notes] == [True]
    path.write_bytes(data[:-2])
    for count in (5, 20, 200):
        path.write_bytes(data[:-count])
        assert "truncated" in str(refusal(path))


WAYS = [  # encoder options
    {},
    {"progressive": True},
    {"progressive": True, "subsampling": 0},
    {"restart_marker_rows": 1},
    {"restart_marker_blocks": 1},
    {"restart_marker_rows": 1, "progressive": True},
]


def noisy(mode: str, **way: object) -> bytes:
    """A JPEG of noise without its EOI marker."""
    noise = np.random.default_rng(5).integers(0, 256, (90, 120, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, "JPEG", **way)
    return stream.getvalue()[:-2]


def begins(data: bytes) -> list[int]:
    """The offsets of the SOS markers of a JPEG."""
    return [one.marker_offset for one in segments(data) if one.marker == JPEG_SOS]


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("way", WAYS)
def test_jpeg_truncated_within_its_pixels_is_refused_undecoded(
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
def test_complete_jpeg_without_eoi_is_read_whatever_follows(
    mode: str, way: dict[str, object]
) -> None:
    data = noisy(mode, **way)
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    comment = b"\xff\xfe\0\4ab"
    for tail in (b"", b"\xff", b"\xff\0a\xff", bytes(99), b"\xff\xd3", comment, comment[:-1]):
        picture = pictures.load("a.jpg", data=data + tail)
        np.testing.assert_array_equal(picture.pixels, whole.pixels)
        assert sum("end is missing" in note for note in picture.notes) == 1


def test_jpeg_without_eoi_that_lacks_a_scan_is_refused(tmp_path: Path) -> None:
    """With an EOI marker, the encoder may have omitted the scan on purpose."""
    data = noisy("RGB", progressive=True)
    path, scans = tmp_path / "a.jpg", begins(data)
    assert len(scans) == 10
    for begin in scans[2:]:
        path.write_bytes(data[:begin])
        assert "truncated: some of its pixels are missing" in str(refusal(path))
        path.write_bytes(data[:begin] + b"\xff\xd9")
        assert pictures.load(path).notes == ()


def test_jpeg_with_a_scan_per_component_needs_the_last_scan(tmp_path: Path) -> None:
    gray = noisy("L")
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    three = b"\0\x11\x08" + gray[frame + 5 : frame + 9] + b"\3\1\x11\0\2\x11\0\3\x11\0"
    head = gray[: frame + 2] + three + gray[frame + 13 : scan]
    data = head + b"".join(gray[scan : scan + 5] + bytes([n]) + gray[scan + 6 :] for n in (1, 2, 3))
    picture = pictures.load("a.jpg", data=data)
    assert ["end is missing" in note for note in picture.notes] == [True]
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    np.testing.assert_array_equal(picture.pixels, whole.pixels)
    path = tmp_path / "a.jpg"
    for cut in (begins(data)[2], begins(data)[1], len(data) - 40):
        path.write_bytes(data[:cut])
        assert "truncated: some of its pixels are missing" in str(refusal(path))


def test_jpeg_that_ends_at_a_restart_marker_is_incomplete(tmp_path: Path) -> None:
    data = noisy("RGB", restart_marker_rows=1)
    path, marks = tmp_path / "a.jpg", [data.index(bytes([0xFF, 0xD0 + n])) for n in range(5)]
    for at in marks:
        path.write_bytes(data[:at])
        assert "truncated: some of its pixels are missing" in str(refusal(path))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("mode", "subsampling"), [("L", 0), ("RGB", 0), ("RGB", 1), ("RGB", 2)])
@pytest.mark.parametrize("marks", [{"restart_marker_blocks": 7}, {"restart_marker_rows": 2}])
def test_jpeg_without_eoi_needs_all_restart_markers(
    tmp_path: Path, progressive: bool, mode: str, subsampling: int, marks: dict[str, int]
) -> None:
    data = noisy(mode, progressive=progressive, subsampling=subsampling, **marks)
    path, last = tmp_path / "a.jpg", begins(data)[-1]
    places = [
        match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", data) if match.start() > last
    ]
    assert len(places) > 1
    for at in places:
        for cut in (at - 1, at, at + 1):
            path.write_bytes(data[:cut])
            assert "truncated: some of its pixels are missing" in str(refusal(path))
    path.write_bytes(data)
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    np.testing.assert_array_equal(pictures.load(path).pixels, whole.pixels)


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_that_lacks_a_restart_interval_is_refused(tmp_path: Path, progressive: bool) -> None:
    """Without one interval, without eight (the markers still count on), and with two exchanged."""
    data = noisy("RGB", progressive=progressive, restart_marker_blocks=2) + b"\xff\xd9"
    path, first = tmp_path / "a.jpg", begins(data)[0]
    marks = [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", data[first:])]
    one, two, three, ten = (first + marks[at] for at in (1, 2, 3, 9))
    exchanged = data[:one] + data[two:three] + data[one:two] + data[three:]
    for spoiled in (data[:one] + data[two:], data[:one] + data[ten:], exchanged):
        path.write_bytes(spoiled)
        assert "some of its pixels are missing" in str(refusal(path))
    path.write_bytes(data)
    assert pictures.load(path).notes == ()


def test_missing_pixels_are_found_without_pillows_private_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, path = noisy("RGB"), tmp_path / "a.jpg"
    whole = pictures.load("a.jpg", data=data + b"\xff\xd9")
    monkeypatch.setattr(completeness, "Image", object())
    path.write_bytes(data)
    np.testing.assert_array_equal(pictures.load(path).pixels, whole.pixels)
    path.write_bytes(data[:-99])
    assert "truncated: some of its pixels are missing" in str(refusal(path))


def test_coding_process_is_that_of_the_first_frame_header(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    arithmetic = b"\xff\xc9\0\x0b\x08\0\1\0\1\1\1\x11\0"  # arithmetic coding may take no bytes
    path.write_bytes(hostile.jpeg(hostile.SIDE)[:-2] + arithmetic + b"\xff\xd9")
    assert "cannot hold 16384×16384 pixels" in str(refusal(path))


def test_jpeg_2000_truncated_within_its_pixels_is_refused_undecoded(
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
        path.write_bytes(data + behind)  # data behind the end are ignored
        np.testing.assert_array_equal(pictures.load(path).pixels, RGB)
    head = b"\0\0\0\1free" + (20).to_bytes(8) + b"1234"  # a box with a 64-bit size
    path.write_bytes(data[:12] + head + data[12:-9])
    assert "7 bytes of its pixels are missing" in str(refusal(path))


def test_jpeg_2000_that_lacks_tiles_is_refused(tmp_path: Path) -> None:
    """Pillow fills them with arbitrary pixels, slowly."""
    data = save(Image.fromarray(RGB), tmp_path / "a.jp2").read_bytes()
    codestream, header = data.index(CODESTREAM_START), data.index(b"ihdr") + 4
    for width, height, count in ((2 * RGB.shape[1], 3 * RGB.shape[0], 5), (16_000, 16_000, 0)):
        larger = bytearray(data)
        larger[header : header + 8] = struct.pack(">II", height, width)
        larger[codestream + 8 : codestream + 16] = struct.pack(">II", width, height)
        (tmp_path / "b.jp2").write_bytes(larger)
        problem = f"{count} of its tiles are missing" if count else "of its tiles are missing"
        assert problem in str(refusal(tmp_path / "b.jp2"))
    tiled = {"tile_size": (5, 4), "offset": (3, 2), "tile_offset": (1, 2)}
    path = save(Image.fromarray(RGB), tmp_path / "c.jp2", **tiled)
    np.testing.assert_array_equal(pictures.load(path).pixels, RGB)


def test_pcx_that_lacks_its_palette_is_refused(tmp_path: Path) -> None:
    """Pillow takes the palette indices for gray."""
    path = save(Image.fromarray(RGB).resize((64, 64)).quantize(20), tmp_path / "a.pcx")
    sound = path.read_bytes()
    assert len(np.unique(pictures.load(path).pixels.reshape(-1, 3), axis=0)) > 1
    for cut in (1, 300, 769):
        path.write_bytes(sound[:-cut])
        assert "its colours, which should be its end, are missing" in str(refusal(path))
    gray = bytearray(save(Image.fromarray(GRAY[..., 0]), tmp_path / "b.pcx").read_bytes()[:-769])
    gray[68] = 2  # the palette type: gray
    path.write_bytes(gray)
    np.testing.assert_array_equal(pictures.load(path).pixels, GRAY)
    tiny = save(Image.new("L", (1, 1), 9), tmp_path / "c.pcx").read_bytes()[:-769]
    path.write_bytes(tiny[:68] + b"\2" + tiny[69:])
    assert pictures.load(path).pixels.tolist() == [[[9]]]
