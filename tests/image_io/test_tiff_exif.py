"""EXIF data are added to a TIFF's tags without moving its compressed pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from conftest import small_pixels
from PIL import ExifTags, Image, TiffImagePlugin

from imgmlp.image_io import tiff_exif

PIXELS = small_pixels()
MAKER, WIDTH, LENS, LATITUDE = 271, 256, 0xA434, 2


def data(order: str, odd: bool = False) -> bytes:
    """EXIF data with inner directories, and a tag with an offset of pixels."""
    exif = Image.Exif()
    exif.endian = order
    exif[MAKER], exif[WIDTH] = "a maker" + "!" * odd, 5
    exif[ExifTags.IFD.Exif] = {LENS: "a lens", 0x829A: 0.004}
    exif[ExifTags.IFD.GPSInfo] = {LATITUDE: (48.0, 8.0, 30.0)}
    return exif.tobytes().removeprefix(b"Exif\0\0")


def tiff(pixels: np.ndarray, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "TIFF", **options)
    return stream.getvalue()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("compression", ["tiff_adobe_deflate", None])
def test_exif_data_are_added_to_the_tags_of_a_tiff(
    order: str, odd: bool, compression: str | None
) -> None:
    exif = tiff_exif.that_fits(data(order, odd))
    assert exif is not None
    made = tiff_exif.inserted(tiff(PIXELS, compression=compression, dpi=(300, 150)), exif)
    with Image.open(io.BytesIO(made)) as image:
        np.testing.assert_array_equal(np.asarray(image), PIXELS)
        tags = image.getexif()
        assert (tags[MAKER], tags[WIDTH]) == ("a maker" + "!" * odd, 31)
        assert tags.get_ifd(ExifTags.IFD.Exif)[LENS] == "a lens"
        assert float(tags.get_ifd(ExifTags.IFD.Exif)[0x829A]) == pytest.approx(0.004)
        assert tags.get_ifd(ExifTags.IFD.GPSInfo)[LATITUDE] == (48.0, 8.0, 30.0)
        assert image.info["dpi"] == (300, 150)
        assert image.n_frames == 1
        again = tiff_exif.of_image(image)
    assert again is not None
    assert len(again) == len(exif)


@pytest.mark.parametrize("own", [None, "a lens"])
def test_exif_tags_in_the_image_directory_are_kept(own: str | None) -> None:
    """Two EXIF tags, one of them possibly in the EXIF directory as well, and a tag of layers."""
    stream, tags = io.BytesIO(), TiffImagePlugin.ImageFileDirectory_v2()
    for tag, kind, value in ((0x829A, 5, 0.25), (LENS, 2, "a wrong one"), (37724, 7, b"layers")):
        tags.tagtype[tag] = kind
        tags[tag] = value
    if own is not None:
        tags.tagtype[ExifTags.IFD.Exif] = 4
        tags[ExifTags.IFD.Exif] = {LENS: own}
    Image.fromarray(PIXELS).save(stream, "TIFF", tiffinfo=tags)
    with Image.open(stream) as image:
        data_of_image = tiff_exif.of_image(image)
    exif = Image.Exif()
    exif.load(data_of_image or b"")
    assert dict(exif.get_ifd(ExifTags.IFD.Exif)) == {0x829A: 0.25, LENS: own or "a wrong one"}
    assert 37724 not in exif


def test_interoperability_directory_is_left_out() -> None:
    """Pillow represents it by its offset in the original file."""
    found = Image.Exif()
    found[ExifTags.IFD.Exif] = {LENS: "a lens", ExifTags.IFD.Interop: {1: "R98"}}
    exif = found.tobytes().removeprefix(b"Exif\0\0")
    found.load(exif)
    assert dict(found.get_ifd(ExifTags.IFD.Interop)) == {1: "R98"}
    for made in (tiff_exif.inserted(tiff(PIXELS), exif), tiff(PIXELS, exif=found)):
        with Image.open(io.BytesIO(made)) as image:
            data_of_image = tiff_exif.of_image(image)
        found.load(data_of_image or b"")
        assert dict(found.get_ifd(ExifTags.IFD.Exif)) == {LENS: "a lens"}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about damage
def test_empty_or_damaged_exif_data_do_not_fit_in_a_tiff() -> None:
    exif = Image.Exif()
    exif[WIDTH] = 5
    assert tiff_exif.that_fits(exif.tobytes()) is None
    assert tiff_exif.that_fits(b"II*\0\xff\xff\xff\xff") is None
    for cut in range(len(data("<"))):  # no exception, whatever is cut off
        fits = tiff_exif.that_fits(data("<")[:cut])
        if fits is not None:
            tiff_exif.inserted(tiff(PIXELS[:4, :4]), fits)
