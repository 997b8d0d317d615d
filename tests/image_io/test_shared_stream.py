"""Formats for which Pillow relies on the stream's position or closes the stream."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import small_pixels
from PIL import Image

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io import shared_stream

OPAQUE = small_pixels()[:8, :12]
SEEN_THROUGH = np.dstack([OPAQUE, OPAQUE[:, :, :1]])


def gbr(pixels: np.ndarray) -> bytes:
    """A GIMP brush."""
    height, width, channels = pixels.shape
    name = b"brush\0"
    head = struct.pack(">5I4sI", 28 + len(name), 2, width, height, channels, b"GIMP", 10)
    return head + name + pixels.tobytes()


def ftex(pixels: np.ndarray) -> bytes:
    """A texture of the game Independence War 2."""
    height, width, _ = pixels.shape
    head = struct.pack("<4s7i", b"FTEX", 1, width, height, 1, 1, 1, 32)
    return head + struct.pack("<i", pixels.nbytes) + pixels.tobytes()


def dds(pixels: np.ndarray, **options: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "DDS", **options)
    return stream.getvalue()


FILES = {
    "a.gbr": gbr(SEEN_THROUGH),
    "a.ftu": ftex(OPAQUE),
    "gray.dds": dds(OPAQUE[:, :, 0]),
    "rgb.dds": dds(OPAQUE),
    "rgba.dds": dds(SEEN_THROUGH),
    **{f"{k}.dds": dds(OPAQUE, pixel_format=k) for k in ("DXT1", "DXT3", "DXT5", "BC2", "BC3")},
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_equal_those_that_pillow_reads(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    pixels = pictures.load(path, alpha=True).pixels
    with Image.open(path) as image:
        np.testing.assert_array_equal(pictures.from_image(image, alpha=True).pixels, pixels)
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[pixels.shape[2]]
    theirs = np.asarray(Image.open(path).convert(mode))
    np.testing.assert_array_equal(pixels.reshape(theirs.shape), theirs)


def test_readers_of_one_stream_have_independent_positions() -> None:
    stream = io.BytesIO(bytes(range(100)))
    stream.seek(50)
    reader = shared_stream.reader(stream)
    assert reader.read(2) == b"\0\1"
    stream.seek(70)
    assert reader.read(2) == b"\2\3"
    assert reader.seek(-10, io.SEEK_END) == 90
    assert reader.seek(3, io.SEEK_CUR) == 93
    assert reader.read(1) == b"\x5d"
    assert reader.read() == bytes(range(94, 100))
    assert reader.tell() == 100
    reader.close()
    assert not stream.closed


class Bare:
    """A stream that has no more than Pillow asks for, and does not say where it has gone to."""

    closed = False

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)
        self.read, self.tell = self._stream.read, self._stream.tell

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> None:
        self._stream.seek(offset, whence)


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("TIFF", {"compression": "tiff_lzw"})])
def test_stream_needs_only_the_methods_that_pillow_uses(kind: str, options: dict[str, str]) -> None:
    stream = io.BytesIO()
    Image.fromarray(OPAQUE).save(stream, kind, **options)
    image = Image.open(Bare(stream.getvalue()))
    np.testing.assert_array_equal(pictures.from_image(image).pixels, OPAQUE)


def test_stream_closed_before_it_was_read_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.ftu"
    path.write_bytes(ftex(OPAQUE))
    with Image.open(path) as image:
        pass
    with pytest.raises(PictureError, match="closed before it was read"):
        pictures.from_image(image)
