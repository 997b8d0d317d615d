"""Pillow and .imlp files."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import GOLDEN, small_pixels
from PIL import Image, UnidentifiedImageError
from test_pillow_faults import psd
from test_public_api import modules_after

import imgmlp.pil
from imgmlp import image as image_module
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.bitstream.container import Container, Header, Section
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError, ImgmlpWarning
from imgmlp.metadata import Metadata


def pixels(channels: int) -> np.ndarray:
    """A small picture with any number of channels, uint8 [24, 31, channels]."""
    return np.concatenate([small_pixels(), 255 - small_pixels(1)], axis=2)[:, :, :channels]


def file(picture: np.ndarray, icc: bytes = b"") -> bytes:
    height, width, channels = picture.shape
    header = Header(width, height, channels, container.digest(picture))
    sections = [Section("N", b"network"), Section("W", bytes(5000))]
    return container.write(header, sections + ([Section("i", icc)] if icc else []))


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Container]:
    """The files that were decoded, by something that knows the pixels of `file` already."""
    decoded: list[Container] = []

    def decode(found: Container, device: AnyDevice) -> np.ndarray:
        decoded.append(found)
        return pixels(found.header.channels)

    monkeypatch.setattr("imgmlp.codec.mlp.decode.decode", decode)
    return decoded


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
def test_a_file_opens_like_any_picture(
    tmp_path: Path, decodings: list[Container], channels: int, mode: str
) -> None:
    path = tmp_path / "a.imlp"
    path.write_bytes(file(pixels(channels), b"profile"))
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("IMLP", mode, (31, 24))
        assert image.info["icc_profile"] == b"profile"
        assert image.get_format_mimetype() == "image/x-imlp"
        assert decodings == []  # only now the pixels are asked for
        found = np.asarray(image).reshape(24, 31, channels)
        image.load()
    np.testing.assert_array_equal(found, pixels(channels))
    assert decodings == [container.parse(path.read_bytes())]


def test_the_pixels_are_those_that_the_file_decodes_to() -> None:
    path = GOLDEN / "rgb-alpha.imlp"
    with Image.open(path) as image:
        found = np.asarray(image)
    assert container.digest(found) == container.parse(path.read_bytes()).header.digest


@pytest.mark.parametrize("loaded", [False, True])
def test_copies_have_the_pixels(decodings: list[Container], loaded: bool) -> None:
    """Deep ones, which are made as pickled ones are, too."""
    with Image.open(io.BytesIO(file(pixels(3)))) as image:
        if loaded:
            image.load()
        for found in (copy.deepcopy(image), image.copy()):
            np.testing.assert_array_equal(np.asarray(found), pixels(3))
    assert len(decodings) == 1


@pytest.mark.usefixtures("decodings")
@pytest.mark.filterwarnings("error")
def test_its_file_is_closed_once_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    path.write_bytes(file(pixels(3)))
    image = Image.open(path)
    stream = image.fp
    image.load()
    assert stream.closed


@pytest.mark.parametrize("exif", [b"", b"garbage and more of it", b"II*\0\x08", b"Exif\0\0garbage"])
@pytest.mark.usefixtures("decodings")
def test_exif_data_that_are_none_are_left_out(exif: bytes) -> None:
    found = container.parse(file(pixels(3)))
    beside = metadata_sections.sections(Metadata(exif=exif))
    with Image.open(io.BytesIO(container.write(found.header, [*found.sections, *beside]))) as image:
        assert "exif" not in image.info
        assert dict(image.getexif()) == {}


def test_a_stream_is_read_from_its_beginning(decodings: list[Container]) -> None:
    with Image.open(io.BytesIO(file(pixels(3)))) as image:
        assert "icc_profile" not in image.info
        np.testing.assert_array_equal(np.asarray(image.rotate(180)), pixels(3)[::-1, ::-1])
    assert len(decodings) == 1


def test_a_damaged_file_is_the_error_that_pillow_has_for_it(tmp_path: Path) -> None:
    data = file(pixels(3))
    path = tmp_path / "a.imlp"
    path.write_bytes(data[:-1])
    with pytest.raises(OSError, match="truncated") as caught, Image.open(path):
        pass
    assert isinstance(caught.value.__cause__, FormatError)
    with pytest.raises(UnidentifiedImageError):
        Image.open(io.BytesIO(data[:7]))


def test_pixels_that_cannot_be_decoded_are_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(found: Container, device: AnyDevice) -> np.ndarray:
        raise FormatError("the network is damaged", hint="get the file again")

    monkeypatch.setattr("imgmlp.codec.mlp.decode.decode", decode)
    with Image.open(io.BytesIO(file(pixels(3)))) as image:
        for _ in range(2):
            with pytest.raises(OSError, match="the network is damaged; get the file again"):
                image.load()


def test_an_image_is_saved_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    image = Image.fromarray(np.full((9, 7, 3), 80, np.uint8))
    image.info["dpi"] = 300, 300
    exif = Image.Exif()
    exif[270] = "a wall"
    image.save(path, quality=50, effort=1, codec="mlp", device="numpy", exif=exif, optimize=True)
    assert "exif" not in image.info
    with Image.open(path) as found:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(image))
        assert found.info["dpi"] == (300, 300)
        assert found.getexif()[270] == "a wall"
    image.save(path, effort=1, device="numpy", strip=True)
    with Image.open(path) as found:
        assert found.info == {}


def test_an_orientation_is_applied_however_it_is_given(tmp_path: Path) -> None:
    """As EXIF data that Pillow has read, or as their bytes."""
    path = tmp_path / "a.imlp"
    exif = Image.Exif()
    exif[274] = 6  # to be turned to the right
    image = Image.fromarray(np.full((9, 7, 3), 80, np.uint8))
    for given in (exif, exif.tobytes()):
        image.save(path, device="numpy", exif=given)
        with Image.open(path) as found:
            assert found.size == (9, 7)
            assert found.getexif().get(274, 1) == 1


@pytest.mark.parametrize("beside", [{}, {"dpi": (300, 300)}])
def test_metadata_that_are_given_change_nothing_of_the_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: dict[str, object]
) -> None:
    """Of 16 bits with 0 for white, of 12 bits, and of one bit with 1 for black."""
    taken, tags = list[np.ndarray](), {256: 1, 257: 1, 259: 1, 273: 0, 277: 1, 278: 1}

    def encode(image: Image.Image) -> None:
        taken.append(image_module.from_image(image).pixels)
        assert image.info.items() >= beside.items()
        raise FormatError("seen", hint="enough")

    monkeypatch.setattr("imgmlp.api.encode", encode)
    for data, value in (
        (hostile.tiff(tags | {258: 16, 262: 0, 279: 2}, b"\0\x40"), 0xBF),
        (hostile.tiff(tags | {258: 12, 262: 1, 279: 2}, b"\x40\0"), 0x40),
        (b"#define a_width 1\n#define a_height 1\nstatic char a_bits[] = {\n0x01};\n", 0),
        (psd(1, 0, bytes([0b10000000]), bits=1), 0),
    ):
        with Image.open(io.BytesIO(data)) as image:
            before = dict(image.info)
            with pytest.raises(OSError, match="seen"):
                image.save(tmp_path / "a.imlp", **beside)
            assert image.info == before
        assert taken.pop().tolist() == [[[value]]]


def test_an_orientation_that_is_given_counts_and_not_that_of_the_file(tmp_path: Path) -> None:
    exifs = Image.Exif(), Image.Exif()
    exifs[0][274], exifs[1][274] = 6, 1
    image = Image.new("RGB", (9, 7))
    image.save(tmp_path / "a.jpg", exif=exifs[0])
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.getexif()[274] == 6
        image.save(tmp_path / "a.imlp", exif=exifs[1].tobytes(), device="numpy")
        assert image.getexif()[274] == 6
    with Image.open(tmp_path / "a.imlp") as found:
        assert found.size == (9, 7)
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.getexif()[274] == 6
        image.info["exif"] = exifs[1].tobytes()
        assert image_module.from_image(image).pixels.shape == (7, 9, 3)


def test_what_had_to_be_changed_is_a_warning(tmp_path: Path) -> None:
    image = Image.fromarray(np.full((4, 4), 0x1234, np.uint16))
    with pytest.warns(ImgmlpWarning, match="their upper 8 bits"):
        image.save(tmp_path / "a.imlp", device="numpy")


def test_what_cannot_be_saved_is_the_error_that_pillow_has_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    image = Image.fromarray(np.full((9, 7, 3), 80, np.uint8))
    with pytest.raises(OSError, match=r"quality is 101.*; use a value"):
        image.save(path, quality=101, device="numpy")
    assert not path.exists()
    with pytest.warns(ImgmlpWarning, match="the target was missed"):
        image.save(path, size=9, device="numpy")
    assert path.stat().st_size > 9


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("time", "seconds"), ("bytes", "size"), ("lambda", "lmbda"), ("qualty", "quality")),
        *(("bbp", "bpp"), ("pnsr", "psnr"), ("szie", "size"), ("lambd", "lmbda"), ("rate", "bpp")),
        *(("sec", "seconds"), ("steps", "effort"), ("frame", "image.seek")),
    ],
)
def test_a_choice_of_another_name_is_refused(tmp_path: Path, name: str, meant: str) -> None:
    path = tmp_path / "a.imlp"
    with pytest.raises(TypeError, match=f"'{name}' is not an option of .imlp files; use '{meant}'"):
        Image.new("RGB", (8, 6)).save(path, **{name: 5})
    assert not path.exists()


def test_a_preset_is_refused_without_another_name_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    with pytest.raises(
        TypeError, match=r"'preset' is not an option .*; it is for imgmlp\.train only"
    ):
        Image.new("RGB", (8, 6)).save(path, preset="seed")
    assert not path.exists()


def test_options_of_other_formats_are_no_choices_of_another_name() -> None:
    for name in [
        "optimize",
        "sizes",
        "bits",
        "bpc",
        "kmin",
        "mct",
        "plt",
        "rle",
        "frames",
        "title",
        "smooth",
        "progressive",
        "subsampling",
        "lossless",
        "method",
        "exact",
        "compression",
        "compress_level",
        "comment",
        "speed",
        "codec",
        "range",
        "quality_mode",
        "quality_layers",
        "alpha_quality",
        "minimize_size",
        "save_all",
        "append_images",
        "duration",
        "loop",
        "tile_size",
        "resolution",
        "xmp",
        "exif",
        "dpi",
        "icc_profile",
        "strip",
        "device",
    ]:
        imgmlp.pil._check_option(name)


def test_the_extension_is_known_and_importing_needs_no_opencl() -> None:
    assert Image.registered_extensions()[".imlp"] == imgmlp.pil.FORMAT
    assert "pyopencl" not in modules_after("import imgmlp.pil")


def test_one_picture_may_be_saved_as_all_there_are(tmp_path: Path) -> None:
    image, path = Image.new("RGB", (8, 6), (1, 2, 3)), tmp_path / "x.imlp"
    image.save(path, save_all=True, psnr=40)
    with Image.open(path) as found:
        assert found.size == (8, 6)
    path.unlink()
    for others in ([image], (one for one in [image])):
        with pytest.raises(OSError, match="holds one picture, not 2; save each"):
            image.save(path, save_all=True, append_images=others)
        assert not path.exists()
    image.save(path, save_all=True, append_images=None, psnr=40)
    assert path.exists()
