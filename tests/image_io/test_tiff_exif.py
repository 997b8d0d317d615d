"""EXIF data among a TIFF's own tags, whose pixels stay where they are, compressed."""

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
    """EXIF data with directories inside, and a tag that says where pixels would be."""
    found = Image.Exif()
    found.endian = order
    found[MAKER], found[WIDTH] = "a maker" + "!" * odd, 5
    found[ExifTags.IFD.Exif] = {LENS: "a lens", 0x829A: 0.004}
    found[ExifTags.IFD.GPSInfo] = {LATITUDE: (48.0, 8.0, 30.0)}
    return found.tobytes().removeprefix(b"Exif\0\0")


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
    """Two of them, of which the right directory may have one as well, and a program's layers."""
    stream, tags = io.BytesIO(), TiffImagePlugin.ImageFileDirectory_v2()
    for tag, kind, value in ((0x829A, 5, 0.25), (LENS, 2, "a wrong one"), (37724, 7, b"layers")):
        tags.tagtype[tag] = kind
        tags[tag] = value
    if own is not None:
        tags.tagtype[ExifTags.IFD.Exif] = 4
        tags[ExifTags.IFD.Exif] = {LENS: own}
    Image.fromarray(PIXELS).save(stream, "TIFF", tiffinfo=tags)
    with Image.open(stream) as image:
        kept = tiff_exif.of_image(image)
    found = Image.Exif()
    found.load(kept or b"")
    assert dict(found.get_ifd(ExifTags.IFD.Exif)) == {0x829A: 0.25, LENS: own or "a wrong one"}
    assert 37724 not in found


def test_interoperability_directory_is_left_out() -> None:
    """Pillow would have its place in the file that it was in."""
    found = Image.Exif()
    found[ExifTags.IFD.Exif] = {LENS: "a lens", ExifTags.IFD.Interop: {1: "R98"}}
    exif = found.tobytes().removeprefix(b"Exif\0\0")
    found.load(exif)
    assert dict(found.get_ifd(ExifTags.IFD.Interop)) == {1: "R98"}
    for made in (tiff_exif.inserted(tiff(PIXELS), exif), tiff(PIXELS, exif=found)):
        with Image.open(io.BytesIO(made)) as image:
            kept = tiff_exif.of_image(image)
        found.load(kept or b"")
        assert dict(found.get_ifd(ExifTags.IFD.Exif)) == {LENS: "a lens"}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what is damaged
def test_empty_or_damaged_exif_data_do_not_fit_in_a_tiff() -> None:
    found = Image.Exif()
    found[WIDTH] = 5
    assert tiff_exif.that_fits(found.tobytes()) is None
    assert tiff_exif.that_fits(b"II*\0\xff\xff\xff\xff") is None
    for cut in range(len(data("<"))):  # any of it, or None, and nothing else
        fits = tiff_exif.that_fits(data("<")[:cut])
        if fits is not None:
            tiff_exif.inserted(tiff(PIXELS[:4, :4]), fits)
