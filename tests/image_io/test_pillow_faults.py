"""Sound files that Pillow misreads are read correctly or refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import hostile
import numpy as np
import pytest
from hostile import MAGIC, chunk, refusal
from PIL import Image

from imgmlp import image as pictures
from imgmlp.errors import PictureError
from imgmlp.image_io.bit_depth import UPPER_BITS
from imgmlp.image_io.pillow_faults import (
    NOTE_ALPHA_DROPPED,
    NOTE_BEYOND_PALETTE,
    NOTE_PCX_COLOURS_IGNORED,
)


def pixels(data: bytes, frame: int | None = None) -> list[object]:
    """The pixels of a file as nested lists."""
    rows: list[object] = pictures.load("a", alpha=True, data=data, frame=frame).pixels.tolist()
    return rows


# PNG


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("key", [0, 1])
def test_transparent_gray_of_png_with_few_bits_is_scaled_like_its_samples(
    bits: int, key: int
) -> None:
    """A PNG of two pixels, 0 and 1."""
    header = struct.pack(">IIBBBBB", 2, 1, bits, 0, 0, 0, 0)
    row = zlib.compress(b"\0" + (1 << 16 - 2 * bits).to_bytes(2))
    parts = ((b"IHDR", header), (b"tRNS", bytes([0, key])), (b"IDAT", row), (b"IEND", b""))
    step = 255 // (2**bits - 1)
    data = MAGIC + b"".join(chunk(*part) for part in parts)
    assert pixels(data) == [[[0, 255 * key], [step, 255 * (1 - key)]]]
    for times in range(2):
        with Image.open(io.BytesIO(data)) as image:
            picture = [pictures.from_image(image, alpha=True) for _ in range(times + 1)][-1]
            assert picture.pixels.tolist() == [[[0, 255 * key], [step, 255 * (1 - key)]]]


def test_apng_with_a_default_image_is_refused_unless_frames_replace_it(tmp_path: Path) -> None:
    """Two gray pixels, and frames over the first one or both."""

    def frame(number: int, *values: int, back: int = 0, over: int = 0) -> bytes:
        control = struct.pack(">5I2H2B", number, len(values), 1, 0, 0, 1, 10, back, over)
        body = (number + 1).to_bytes(4) + zlib.compress(bytes([0, *values]))
        return chunk(b"fcTL", control) + chunk(b"fdAT", body)

    begin = MAGIC + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 0, 0, 0, 0))
    begin += chunk(b"acTL", bytes(8)[:3] + b"\2" + bytes(4))
    begin += chunk(b"IDAT", zlib.compress(b"\0\x07\x07"))
    sound = begin + frame(0, 8, 9) + frame(2, 5) + chunk(b"IEND", b"")
    frames = [pixels(sound, number) for number in (1, 2, 3)]
    assert frames == [[[[7], [7]]], [[[8], [9]]], [[[5], [9]]]]
    path = tmp_path / "a.png"
    for first in (frame(0, 8), frame(0, 8, 9, back=2), frame(0, 8, 9, over=1)):
        path.write_bytes(begin + first + frame(2, 5) + chunk(b"IEND", b""))
        assert pictures.load(path, frame=1).pixels.tolist() == [[[7], [7]]]
        for number in (2, 3):
            with pytest.raises(PictureError, match="drawn over a default picture that is no frame"):
                pictures.load(path, frame=number)


def listed_png(colours: bytes, alpha: bytes = b"") -> bytes:
    """A PNG of two pixels, with palette indices 0 and 1."""
    header = struct.pack(">IIBBBBB", 2, 1, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(b"\0\0\1"))]
    parts[2:2] = [(b"tRNS", alpha)] if alpha else []
    return MAGIC + b"".join(chunk(*part) for part in (*parts, (b"IEND", b"")))


def test_palette_indices_beyond_the_palette_are_noted() -> None:
    both, first = bytes([9, 8, 7, 99, 88, 77]), bytes([9, 8, 7])
    for data in (listed_png(both), bmp(8, b"\0\1", bytes([7, 8, 9, 0, 77, 88, 99, 0]))):
        picture = pictures.load("a", data=data)
        assert picture.pixels.tolist() == [[[9, 8, 7], [99, 88, 77]]]
        assert picture.notes == ()
    for data in (listed_png(first), bmp(8, b"\0\1", bytes([7, 8, 9, 0]))):
        picture = pictures.load("a", data=data)
        assert picture.pixels.tolist() == [[[9, 8, 7], [0, 0, 0]]]
        assert picture.notes == (NOTE_BEYOND_PALETTE,)
    unseen = pictures.load("a", alpha=True, data=listed_png(first, b"\xff\0"))
    assert unseen.pixels[0, :, 3].tolist() == [255, 0]
    assert unseen.notes == ()


# BMP


def bmp(bits: int, row: bytes, colours: bytes = b"", masks: tuple[int, ...] = ()) -> bytes:
    """A BMP of two pixels, with a palette or with bit masks; 4 masks need a longer header."""
    size = 56 if len(masks) == 4 else 40
    kind = 3 if masks else 0
    head = struct.pack("<IiiHHIIiiII", size, 2, 1, 1, bits, kind, 4, 0, 0, len(colours) // 4, 0)
    head += struct.pack(f"<{len(masks)}I", *masks) + colours
    return b"BM" + struct.pack("<IHHI", 18 + len(head), 0, 0, 14 + len(head)) + head + row.ljust(4)


@pytest.mark.parametrize(("bits", "row"), [(1, b"\x40"), (4, b"\x01"), (8, b"\0\1")])
def test_bmp_with_a_gray_palette_is_read_at_any_index_size(bits: int, row: bytes) -> None:
    """The palette is black and white, or has all grays of the index size."""
    grays = [0, 0, 0, 0, 255, 255, 255, 0], [n for gray in range(2**bits) for n in [gray] * 3 + [0]]
    for listed in grays:
        samples = np.array(pixels(bmp(bits, row, bytes(listed))))
        assert samples[0, :, 0].tolist() == [0, listed[4]]
        assert (samples == samples[..., :1]).all()


def test_bmp_of_5_bits_per_colour_has_alpha_if_a_mask_declares_it() -> None:
    row, masks = struct.pack("<HH", 0x7C00, 0x801F), (0x7C00, 0x3E0, 0x1F, 0x8000)
    assert pixels(bmp(16, row, masks=masks)) == [[[255, 0, 0, 0], [0, 0, 255, 255]]]
    for without in (masks[:3], (*masks[:3], 0)):
        assert pixels(bmp(16, row, masks=without)) == [[[255, 0, 0], [0, 0, 255]]]


# GIF


def gif(*frames: tuple[int, int, int | None, bytes]) -> bytes:
    """A GIF of three pixels; frames have a position, a disposal method and a transparent index."""
    data = b"GIF89a" + struct.pack("<HHBBB", 3, 1, 0x91, 0, 0) + bytes([10] * 3)
    data += b"\xff\0\0\0\xff\0\0\0\xff"
    for left, way, key, values in frames:
        codes = [code for value in values for code in (4, value)] + [5]  # of 3 bits
        coded = sum(code << 3 * at for at, code in enumerate(codes)).to_bytes(3, "little")
        data += b"!\xf9\4" + bytes([way << 2 | (key is not None), 0, 0, key or 0, 0])
        data += b"," + struct.pack("<4HB", left, 0, len(values), 1, 0) + b"\2\3" + coded + b"\0"
    return data + b";"


def test_frames_of_a_gif_that_pillow_clears_wrongly_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    red, grey = (0, 1, None, b"\1\1\1"), (2, 1, None, b"\0")
    path.write_bytes(gif(red, (0, 2, 3, b"\3\2"), grey))
    assert pictures.load(path, frame=2).pixels.tolist() == [[[255, 0, 0], [0, 255, 0], [255, 0, 0]]]
    with pytest.raises(PictureError, match="the first has no alpha"):
        pictures.load(path, frame=3, alpha=True)
    clear = (0, 2, 3, b"\3\1\1")
    path.write_bytes(gif(clear, (0, 0, 3, b"\3\2"), grey))
    with pytest.raises(PictureError, match="not all say how they are disposed of"):
        pictures.load(path, frame=3, alpha=True)
    path.write_bytes(gif(clear, (0, 1, 3, b"\3\2"), grey))
    pixels = pictures.load(path, frame=3, alpha=True).pixels
    assert pixels[..., 3].tolist() == [[0, 255, 255]]
    assert pixels[0, 1:, :3].tolist() == [[0, 255, 0], [10, 10, 10]]
    path.write_bytes(gif(clear, (0, 2, 3, b"\3\2"), grey))
    pixels = pictures.load(path, frame=3, alpha=True).pixels
    assert pixels[..., 3].tolist() == [[0, 0, 255]]


# TIFF


def tiff(
    size: tuple[int, int], photometric: int, *blocks: bytes, samples: int = 1, **tags: list[int]
) -> bytes:
    """An uncompressed TIFF with these strips; tags are keyword arguments such as _284."""
    width, height = size
    data, places = bytearray(8), []
    for block in blocks:
        places.append(len(data))
        data += block
    fields = {256: [width], 257: [height], 258: [8] * samples, 259: [1], 262: [photometric]}
    fields |= {273: places, 277: [samples], 278: [height], 279: [len(one) for one in blocks]}
    fields |= {int(name[1:]): value for name, value in tags.items()}
    entries = b""
    for tag, values in sorted(fields.items()):
        field = struct.pack(f"<{len(values)}H", *values).ljust(4, b"\0")
        if len(field) > 4:
            field, begin = struct.pack("<I", len(data)), field
            data += begin
        entries += struct.pack("<HHI", tag, 3, len(values)) + field
    data[:8] = b"II*\0" + struct.pack("<I", len(data))
    return bytes(data) + struct.pack("<H", len(fields)) + entries + bytes(4)


COLOURS = [value * 257 for value in range(256)] * 3


@pytest.mark.parametrize(
    ("photometric", "planes", "tags"),
    [
        (1, (b"\x0a\x14", b"\xff\x80"), {"_338": [2]}),
        (1, (b"\x0a\x14", b"\xff\x80"), {"_338": [1]}),
        (3, (b"\x0a\x14", b"\xff\x80"), {"_338": [2], "_320": COLOURS}),
        (8, (b"\x80\x80", b"\0\0", b"\0\0"), {}),
    ],
)
def test_tiff_with_separate_planes_that_pillow_swaps_is_refused(
    tmp_path: Path, photometric: int, planes: tuple[bytes, ...], tags: dict[str, list[int]]
) -> None:
    """Gray with straight or premultiplied alpha, a palette with alpha, and CIELab."""
    path = tmp_path / "a.tif"
    count = len(planes)
    path.write_bytes(tiff((2, 1), photometric, *planes, samples=count, _284=[2], **tags))
    assert "planes are separate" in str(refusal(path))
    mixed = bytes(value for pixel in zip(*planes, strict=True) for value in pixel)
    path.write_bytes(tiff((2, 1), photometric, mixed, samples=count, **tags))
    assert pictures.load(path, alpha=True).pixels.shape[:2] == (1, 2)


def test_loaded_image_of_a_tiff_with_separate_planes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff((2, 1), 8, b"\x80\x80", b"\0\0", b"\0\0", samples=3, _284=[2]))
    with Image.open(path) as image:
        image.load()
        with pytest.raises(PictureError, match="planes are separate"):
            pictures.from_image(image)


def planes(bits: int, photometric: int, *channels: np.ndarray) -> bytes:
    """An uncompressed TIFF of 9×7 pixels with separate planes."""
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


def test_uncompressed_tiff_with_separate_planes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    deep = np.random.default_rng(0).integers(0, 2**16, (3, 7, 9), np.uint16)
    path.write_bytes(planes(16, 2, *deep))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, deep.transpose(1, 2, 0) >> 8)
    assert picture.notes == (UPPER_BITS.format(16),)
    with Image.open(path) as image:
        np.testing.assert_array_equal(pictures.from_image(image).pixels, picture.pixels)
        image.load()  # Pillow misreads it
        with pytest.raises(PictureError, match="separate"):
            pictures.from_image(image)
    gray = (deep[0] >> 8).astype(np.uint8)
    path.write_bytes(planes(8, 0, gray))  # WhiteIsZero
    np.testing.assert_array_equal(pictures.load(path).pixels[:, :, 0], 255 - gray)


@pytest.mark.parametrize("subsampling", [{"_530": [2, 2]}, {}])
def test_uncompressed_tiff_with_subsampled_ycbcr_is_read(
    subsampling: dict[str, list[int]],
) -> None:
    data = tiff(
        (2, 4),
        6,
        bytes([9, 99, 199, 30, 128, 128, 40, 50, 60, 70, 128, 128]),
        samples=3,
        **subsampling,
    )
    gray = np.array([[9, 99], [199, 30], [40, 50], [60, 70]])
    np.testing.assert_allclose(np.array(pixels(data)), gray[:, :, None].repeat(3, 2), atol=1)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        with pytest.raises(PictureError, match="colours are subsampled") as caught:
            pictures.from_image(image)
        assert "before it is loaded" in caught.value.hint


def test_ycbcr_that_does_not_say_how_it_is_sampled_may_have_all_colours() -> None:
    found = pixels(tiff((2, 1), 6, bytes([9, 128, 128, 199, 128, 128]), samples=3))
    assert found == [[[9, 9, 9], [199, 199, 199]]]


def test_tiff_with_4x4_subsampled_ycbcr_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff((4, 4), 6, bytes([*16 * [99], 128, 128]), samples=3, _530=[4, 4]))
    assert "colours are subsampled 4×4" in str(refusal(path))


def test_signed_samples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(tiff((2, 1), 1, b"\x7f\x80", _339=[2]))
    assert "signed samples" in str(refusal(path))
    path.write_bytes(tiff((2, 1), 1, b"\x7f\x80", _339=[1]))
    assert pictures.load(path).pixels.tolist() == [[[127], [128]]]


def test_tiff_palette_of_8_bits_per_sample_is_read(tmp_path: Path) -> None:
    colours = [*range(256), *range(256)[::-1], *range(256)]
    data = tiff((2, 1), 3, b"\1\xc8", _320=colours)
    assert pixels(data) == [[[1, 254, 1], [200, 55, 200]]]
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        with pytest.raises(PictureError, match="palette has 8 bits") as caught:
            pictures.from_image(image)
        assert "before it is loaded" in caught.value.hint
    assert pixels(tiff((2, 1), 3, b"\1\xc8", _320=COLOURS)) == [[[1] * 3, [200] * 3]]


# FITS


@pytest.mark.parametrize("bits", [8, 16])
def test_a_fits_of_16_bits_is_signed_and_refused(tmp_path: Path, bits: int) -> None:
    cards = {"SIMPLE": "T", "BITPIX": bits, "NAXIS": 2, "NAXIS1": 2, "NAXIS2": 1}
    head = "".join(f"{name:8}= {value:>20}".ljust(80) for name, value in cards.items()) + "END"
    path = tmp_path / "a.fits"
    path.write_bytes(head.ljust(2880).encode() + bytes([7, 9] * (bits // 8)).ljust(2880, b"\0"))
    if bits == 8:
        assert pictures.load(path).pixels.tolist() == [[[7], [9]]]
    else:
        assert "signed samples" in str(refusal(path))


# PCX


def pcx(width: int, bits: int, planes: int, row_bytes: int, *rows: bytes) -> bytes:
    """A PCX whose rows are padded to `row_bytes` per plane."""
    head = struct.pack("<4B6H", 10, 5, 1, bits, 0, 0, width - 1, len(rows) - 1, 72, 72)
    head += bytes(range(48)) + struct.pack("<BBHH", 0, planes, row_bytes, 1) + bytes(58)
    count = -(-width * bits // 8)
    parts = [
        row[at : at + count].ljust(row_bytes, b"\xff")
        for row in rows
        for at in range(0, len(row), count)
    ]
    return head + b"".join(bytes([0xC1, value]) for part in parts for value in part)


@pytest.mark.parametrize("row_bytes", [2, 3, 4, 7, 60_000])
def test_pcx_with_padded_rows_is_read(row_bytes: int) -> None:
    rows = bytes([1, 2, 3, 4, 5, 6]), bytes([11, 12, 13, 14, 15, 16])
    expected = [[[1, 3, 5], [2, 4, 6]], [[11, 13, 15], [12, 14, 16]]]
    assert pixels(pcx(2, 8, 3, row_bytes, *rows)) == expected
    black = pcx(9, 1, 1, row_bytes, b"\x80\x80", b"\x7f\x00")
    assert pixels(black) == [[[255], *[[0]] * 7, [255]], [[0], *[[255]] * 7, [0]]]
    listed = pcx(8, 1, 4, row_bytes, b"\x80\x80\x80\x80", b"\1\0\1\0")
    assert pixels(listed) == [[[45, 46, 47], *[[0, 1, 2]] * 7], [*[[0, 1, 2]] * 7, [15, 16, 17]]]


@pytest.mark.parametrize(
    ("version", "colours", "is_noted"),
    [
        (5, b"\xff\xff\xff\0\0\0", True),
        (2, b"\0\0\0\xff\0\0", True),
        (5, b"\0\0\0\xff\xff\xff", False),
        (5, b"\7\7\7\7\7\7", False),
        (3, b"\0\0\0\xff\0\0", False),  # this version has no palette
    ],
)
def test_ignored_colours_of_a_1_bit_pcx_are_noted(
    version: int, colours: bytes, is_noted: bool
) -> None:
    data = bytearray(pcx(2, 1, 1, 2, b"\x40"))
    data[1], data[16:22] = version, colours
    picture = pictures.load("a", data=bytes(data))
    assert picture.pixels.tolist() == [[[0], [255]]]
    assert picture.notes == (NOTE_PCX_COLOURS_IGNORED,) * is_noted


# Targa, PSD, Sun, X11


def targa(alpha: int, bits: int, *values: int, listed: bool = False) -> bytes:
    """A Targa of one row of pixels of 16 or 32 bits, or of colour map indices."""
    data, count = b"".join(value.to_bytes(bits // 8, "little") for value in values), len(values)
    kinds = (1, 1, 0, count, bits) if listed else (0, 2, 0, 0, 0)
    head = struct.pack("<3B2HB4H2B", 0, *kinds, 0, 0, count, 1, 8 if listed else bits, 32 | alpha)
    return head + data + (bytes(range(count)) if listed else b"") + bytes(26)  # a footer's size


@pytest.mark.parametrize("listed", [False, True])
def test_targa_of_16_bits_without_alpha_is_read(listed: bool) -> None:
    found = pixels(targa(0, 16, 0x8000 | 31 << 10, 31, listed=listed))
    assert found == [[[255, 0, 0], [0, 0, 255]]]


@pytest.mark.parametrize("listed", [False, True])
def test_targa_with_a_varying_alpha_bit_is_refused(tmp_path: Path, listed: bool) -> None:
    path = tmp_path / "a.tga"
    path.write_bytes(targa(1, 16, 0x8000 | 31 << 10, 31, listed=listed))
    assert "one bit of alpha" in str(refusal(path))
    for bit in (0, 0x8000):
        alike = targa(1, 16, bit | 31 << 10, bit | 31, listed=listed)
        assert pixels(alike) == [[[255, 0, 0], [0, 0, 255]]]


def test_targa_of_32_bits_has_alpha_if_its_header_declares_it() -> None:
    assert pixels(targa(0, 32, 0x00010203, 0x00040506)) == [[[1, 2, 3], [4, 5, 6]]]
    assert pixels(targa(8, 32, 0x00010203, 0x70040506)) == [[[1, 2, 3, 0], [4, 5, 6, 112]]]
    picture = pictures.load("a", data=targa(0, 32, 0x00010203, 0x70040506))
    assert picture.pixels.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert picture.notes == (NOTE_ALPHA_DROPPED,)


def psd(channels: int, mode: int, data: bytes, width: int = 1, bits: int = 8) -> bytes:
    """A PSD of one row of pixels, channel by channel."""
    return b"8BPS" + struct.pack(">H6xHIIHH", 1, channels, 1, width, bits, mode) + bytes(14) + data


def test_1_bit_psd_has_1_for_black() -> None:
    assert pixels(psd(1, 0, b"\x80", width=8, bits=1)) == [[[0], *[[255]] * 7]]


def test_a_psd_of_several_inks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.psd"
    path.write_bytes(psd(4, 7, bytes([20, 60, 100, 140])))
    assert "4 inks" in str(refusal(path))
    path.write_bytes(psd(1, 7, bytes([20])))
    assert pictures.load(path).pixels.tolist() == [[[20]]]


@pytest.mark.parametrize(
    ("mode", "channels", "taken"), [(1, 2, 1), (8, 3, 1), (3, 5, 3), (1, 1, 1), (3, 3, 3)]
)
def test_ignored_extra_channels_of_a_psd_are_noted(mode: int, channels: int, taken: int) -> None:
    picture = pictures.load("a.psd", data=psd(channels, mode, bytes(range(channels))))
    assert picture.pixels.tolist() == [[[*range(taken)]]]
    note = f"only the first {taken} of its {channels} channels are used"
    assert picture.notes == (note,) * (channels > taken)


def sun(width: int, bits: int, kind: int, data: bytes) -> bytes:
    """A Sun raster."""
    height = len(data) // (-(-width * bits // 16) * 2)
    return struct.pack(">8I", 0x59A66A95, width, height, bits, len(data), kind, 0, 0) + data


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_sun_raster_of_32_bits_has_its_padding_byte_first(kind: int) -> None:
    data = sun(4, 32, kind, bytes([7, 3, 2, 1] * 4 + [0, 6, 5, 4] * 4))
    first, second = ([3, 2, 1], [6, 5, 4]) if kind == 3 else ([1, 2, 3], [4, 5, 6])
    assert pixels(data) == [[first] * 4, [second] * 4]


def test_run_length_sun_raster_with_padded_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ras"
    path.write_bytes(sun(3, 8, 2, bytes([1, 2, 3, 0, 4, 5, 6, 0])))
    assert "rows are padded" in str(refusal(path))
    for kind, width in ((1, 3), (2, 4)):
        path.write_bytes(sun(width, 8, kind, bytes([1, 2, 3, 0, 4, 5, 6, 0])))
        assert pictures.load(path).pixels[:, :3].tolist() == [[[1], [2], [3]], [[4], [5], [6]]]


def test_an_x11_bitmap_has_1_for_black() -> None:
    text = "#define a_width 3\n#define a_height 1\nstatic char a_bits[] = {\n0x03};\n"
    assert pixels(text.encode()) == [[[0], [0], [255]]]
    with Image.open(io.BytesIO(text.encode())) as image:
        for _ in range(2):
            assert pictures.from_image(image).pixels.tolist() == [[[0], [0], [255]]]
            image.load()


@pytest.mark.parametrize("colour", ["#f00", "#ffff00000000", "#ff0000"])
def test_xpm_colours_of_other_than_six_digits_are_refused(tmp_path: Path, colour: str) -> None:
    path = tmp_path / "a.xpm"
    path.write_text(f'/* XPM */\nstatic char *a[] = {{\n"1 1 1 1",\n"a c {colour}",\n"a"\n}};\n')
    if len(colour) == 7:
        assert pictures.load(path).pixels.tolist() == [[[255, 0, 0]]]
    else:
        assert f"colours have {len(colour) - 1} digits" in str(refusal(path))


# JPEG 2000


def jp2(*boxes: tuple[bytes, bytes], space: int = 16) -> bytes:
    """A JPEG 2000 of one red pixel with more boxes in its header."""
    Image.new("RGB", (1, 1), "red").save(stream := io.BytesIO(), "JPEG2000", no_jp2=True)
    inner = [(b"ihdr", struct.pack(">IIHBBBB", 1, 1, 3, 7, 7, 0, 0))]
    inner += [(b"colr", b"\1\0\0" + space.to_bytes(4)), *boxes]
    header = b"".join(box(*one) for one in inner)
    parts = (b"jP  ", b"\r\n\x87\n"), (b"ftyp", b"jp2 \0\0\0\0jp2 "), (b"jp2h", header)
    return b"".join(box(*one) for one in (*parts, (b"jp2c", stream.getvalue())))


def box(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", 8 + len(data)) + kind + data


@pytest.mark.parametrize(
    ("channels", "sound"),
    [
        (((0, 0, 1), (1, 0, 2), (2, 0, 3)), True),
        (((2, 0, 3), (1, 0, 2), (0, 0, 1)), True),
        (((0, 0, 3), (1, 0, 2), (2, 0, 1)), False),
        (((0, 1, 0), (1, 0, 2), (2, 0, 3)), False),
    ],
)
def test_jpeg_2000_with_channels_in_unusual_order_is_refused(
    tmp_path: Path, channels: tuple[tuple[int, int, int], ...], sound: bool
) -> None:
    path = tmp_path / "a.jp2"
    order = b"".join(struct.pack(">3H", *one) for one in channels)
    path.write_bytes(jp2((b"cdef", len(channels).to_bytes(2) + order)))
    if sound:
        assert pictures.load(path).pixels.tolist() == [[[255, 0, 0]]]
    else:
        assert "not in the usual order" in str(refusal(path))


def test_a_jpeg_2000_of_cielab_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jp2"
    path.write_bytes(jp2(space=14))
    assert "CIELab" in str(refusal(path))
