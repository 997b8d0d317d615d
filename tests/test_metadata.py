"""Colour profile, EXIF, XMP and resolution survive from picture files through .imlp to others."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, Command, small_pixels
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, PngImagePlugin

import imgmlp
from imgmlp import image as pictures
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.training import passes, search
from imgmlp.image import Picture
from imgmlp.image_io import colours
from imgmlp.image_io.refusals import MAX_TEXT_BYTES
from imgmlp.metadata import MAX_BYTES, NOTHING, Metadata, checked, upright_exif

RGB = small_pixels()
ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">a b</x:xmpmeta>'
ORIENTATION, MAKER, LENS = 0x0112, 271, 0xA434


def exif(orientation: int = 1, maker: str = "a maker") -> bytes:
    """EXIF data with an inner directory, as Pillow writes it."""
    exif_data = Image.Exif()
    exif_data[MAKER], exif_data[ORIENTATION] = maker, orientation
    exif_data[0x8769] = {LENS: "a lens"}
    return exif_data.tobytes()[6:]


ALL = Metadata(ICC, exif(), XMP, (300.0, 150.0))


def exif_summary(data: bytes | None) -> tuple[object, object, object]:
    """Maker, lens and orientation in EXIF data."""
    exif = Image.Exif()
    exif.load(b"Exif\0\0" + (data or b""))
    return exif.get(MAKER), exif.get_ifd(0x8769).get(LENS), exif.get(ORIENTATION, 1)


def save(path: Path, suffix: str, orientation: int = 1) -> Path:
    """A file with all metadata that its format can hold, as other programs write it."""
    image, path = Image.fromarray(RGB), path / f"a{suffix}"
    data = b"Exif\0\0" + exif(orientation)
    options: dict[str, object] = {"exif": data, "xmp": XMP, "dpi": (300, 150), "icc_profile": ICC}
    if suffix == ".png":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", XMP)
    if suffix == ".tif":
        tags = Image.Exif()
        tags.load(data)
        tags[700] = XMP
        options["exif"] = tags
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp", ".avif"])
def test_metadata_of_a_file_are_read(tmp_path: Path, suffix: str) -> None:
    metadata = pictures.load(save(tmp_path, suffix)).metadata
    assert (metadata.icc, metadata.xmp) == (ICC, XMP)
    assert exif_summary(metadata.exif) == ("a maker", "a lens", 1)
    if suffix in (".jpg", ".png", ".tif"):  # formats that store a resolution
        assert metadata.dpi == pytest.approx((300, 150), abs=0.05)
    assert pictures.load(save(tmp_path, suffix), strip=True).metadata == NOTHING


@pytest.mark.parametrize("damage", [False, True])
def test_exif_data_in_a_png_text_chunk_are_kept(tmp_path: Path, damage: bool) -> None:
    path, data, told_by = tmp_path / "a.png", b"Exif\0\0" + exif(6), PngImagePlugin.PngInfo()
    text = f"\nexif\n{len(data):8}\n{data.hex()[: -1 if damage else None]}\n"
    told_by.add_text("Raw profile type exif", text, zip=True)
    Image.fromarray(RGB).save(path, pnginfo=told_by)
    picture = pictures.load(path)
    assert picture.pixels.shape == (RGB.shape if damage else (31, 24, 3))
    assert picture.metadata.exif == (None if damage else exif(1))


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_orientation_is_applied_and_reset_so_that_it_is_not_applied_twice(
    tmp_path: Path, suffix: str
) -> None:
    picture = pictures.load(save(tmp_path, suffix, 6))
    assert picture.pixels.shape == (31, 24, 3)
    assert exif_summary(picture.metadata.exif) == ("a maker", "a lens", 1)
    if suffix != ".webp":
        assert picture.metadata.dpi == pytest.approx((150, 300), abs=0.05)
    path = tmp_path / "again.png"
    pictures.save_picture(picture.pixels, path, picture.metadata)
    np.testing.assert_array_equal(pictures.load(path).pixels, picture.pixels)


XMP_ORIENTATIONS = [
    'tiff:Orientation="6"',
    "tiff:Orientation = '6'",
    "<tiff:Orientation>6</tiff:Orientation>",
]


@pytest.mark.parametrize("xmp", XMP_ORIENTATIONS)
@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_orientation_in_xmp_data_is_applied_and_reset(
    tmp_path: Path, suffix: str, xmp: str
) -> None:
    path, image = tmp_path / f"a{suffix}", Image.fromarray(RGB)
    pictures.save_picture(RGB, path, Metadata(xmp=f"<a {xmp}>".encode()))
    picture = pictures.load(path)
    np.testing.assert_array_equal(picture.pixels, np.rot90(RGB, -1))
    assert b"6" not in picture.metadata.xmp
    image.info["xmp"] = xmp
    np.testing.assert_array_equal(pictures.from_image(image).pixels, picture.pixels)


@pytest.mark.parametrize("xmp", XMP_ORIENTATIONS)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_tiff_with_orientation_in_tag_and_xmp_is_rotated_once(
    tmp_path: Path, xmp: str, kind: type
) -> None:
    path = tmp_path / "a.tif"
    pixels = (np.arange(12) * np.iinfo(kind).max // 11).astype(kind).reshape(3, 4)
    tags = {ORIENTATION: 6, 700: xmp.encode()}
    Image.fromarray(pixels).save(path, tiffinfo=tags, compression="tiff_lzw")
    expected = np.rot90(pixels if kind is np.uint8 else pixels >> 8, -1)
    np.testing.assert_array_equal(pictures.load(path).pixels[:, :, 0], expected)
    with Image.open(path) as image:
        image.load()
        np.testing.assert_array_equal(pictures.from_image(image).pixels[:, :, 0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_orientation_is_applied_as_pillow_does(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    path = save(tmp_path, ".png", orientation)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(pictures.load(path).pixels, expected)


@pytest.mark.parametrize(
    ("suffix", "lost"),
    [
        (".png", []),
        (".jpg", []),
        (".tif", []),
        (".webp", ["resolution"]),
        (".bmp", ["colour profile", "EXIF data", "XMP data"]),
        (".ppm", ["colour profile", "EXIF data", "XMP data", "resolution"]),
    ],
)
def test_metadata_that_a_format_holds_are_written_and_others_named(
    tmp_path: Path, suffix: str, lost: list[str]
) -> None:
    path = tmp_path / f"a{suffix}"
    assert pictures.save_picture(RGB, path, ALL) == lost
    metadata = pictures.load(path).metadata
    assert set(metadata.names()) == set(ALL.names()) - set(lost)
    if metadata.exif is not None:
        assert exif_summary(metadata.exif) == ("a maker", "a lens", 1)
    if metadata.dpi is not None:
        assert metadata.dpi == pytest.approx((300, 150), abs=0.05)
    assert metadata.icc in (ICC, None)
    assert metadata.xmp in (XMP, None)


@pytest.mark.parametrize("suffix", [".webp", ".png"])
def test_a_grays_profile_is_lost_where_gray_is_written_as_colour(
    tmp_path: Path, suffix: str
) -> None:
    metadata = Metadata(icc=colours.profile({"gamma": 1}, gray=True))
    lost = ["colour profile"] if suffix == ".webp" else []
    assert pictures.save_picture(RGB[:, :, :1], tmp_path / f"a{suffix}", metadata) == lost
    with Image.open(tmp_path / f"a{suffix}") as image:
        assert ("icc_profile" in image.info) is not bool(lost)
    assert pictures.save_picture(RGB[:, :, :1], tmp_path / f"a{suffix}", Metadata(ICC)) == []


def test_metadata_too_large_for_a_jpeg_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    large = Metadata(ICC, exif(maker="x" * 70_000), b"<" * 70_000)
    assert pictures.save_picture(RGB, path, large) == ["EXIF data", "XMP data"]
    assert pictures.load(path).icc == ICC


@pytest.mark.parametrize("name", ["icc", "xmp"])
def test_metadata_too_large_to_be_read_from_a_png_are_left_out(tmp_path: Path, name: str) -> None:
    largest = ICC + bytes(MAX_TEXT_BYTES - len(ICC))
    path, fits, large = tmp_path / "a.png", Metadata(icc=largest), Metadata(icc=largest + b"\0")
    if name == "xmp":
        fits, large = Metadata(xmp=b"<" * MAX_TEXT_BYTES), Metadata(xmp=b"<" * (MAX_TEXT_BYTES + 1))
    assert pictures.save_picture(RGB, path, fits) == []
    assert len(getattr(pictures.load(path).metadata, name)) == MAX_TEXT_BYTES
    stream = io.BytesIO()
    assert pictures.save_png(RGB, stream, large) == large.names()
    assert pictures.load(path, data=stream.getvalue()).metadata.names() == []


# EXIF and XMP data


def with_preview(order: str, orientation: int, preview: bytes) -> bytes:
    """EXIF data of two directories, the second with a thumbnail."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    first = struct.pack(f"{order}HHHIHHI", 1, ORIENTATION, 3, 1, orientation, 0, 26)
    place = 8 + len(first) + 2 + 24 + 4
    second = struct.pack(f"{order}H", 2)
    for tag, value in ((0x0201, place), (0x0202, len(preview))):
        second += struct.pack(f"{order}HHII", tag, 4, 1, value)
    return mark + struct.pack(f"{order}I", 8) + first + second + bytes(4) + preview


@pytest.mark.parametrize("order", "<>")
def test_exif_thumbnail_is_blanked_and_nothing_else_changes(order: str) -> None:
    before = with_preview(order, 6, b"preview" * 100)
    after = upright_exif(before)
    assert after == with_preview(order, 1, bytes(700)).replace(
        struct.pack(f"{order}I", 26) + struct.pack(f"{order}H", 2),
        bytes(4) + struct.pack(f"{order}H", 2),
    )
    assert upright_exif(after) == after


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_width_and_height_in_exif_data_are_swapped_with_the_orientation(
    order: str, orientation: int
) -> None:
    def made(orientation: int, width: int, height: int) -> bytes:
        first = struct.pack(f"{order}HHIHHI", ORIENTATION, 3, 1, orientation, 0, 0x8769)[:-4]
        first += struct.pack(f"{order}HHII", 0x8769, 4, 1, 38)
        inner = struct.pack(f"{order}HHHIHHHHII", 2, 0xA002, 3, 1, width, 0, 0xA003, 4, 1, height)
        head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 2)
        return head + first + bytes(4) + inner + bytes(4)

    whole = made(orientation, 24, 16)
    for size in range(len(whole)):  # truncated data keep their length, or are left out
        assert len(upright_exif(whole[:size]) or whole[:size]) == size
    upright = Image.Exif()
    upright.load(upright_exif(whole))
    sides = upright.get_ifd(0x8769)
    turned = orientation > 4
    assert (sides[0xA002], sides[0xA003]) == ((16, 24) if turned else (24, 16))
    assert upright[ORIENTATION] == 1


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's warning
@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_data_may_end_with_the_last_entry_of_a_directory(order: str) -> None:
    """The four bytes of the next directory's offset are missing, completely or in part."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", ORIENTATION, 3, 1, 6, 0)
    data = mark + struct.pack(f"{order}IH", 8, 1) + entry
    for more in (b"", b"\1", b"\0\0\0", bytes(4)):
        upright = upright_exif(data + more)
        assert upright is not None
        assert exif_summary(upright)[2] == 1
        assert len(upright) == len(data + more)
    for cut in range(1, 4):
        assert upright_exif(data[:-cut]) is None


@given(st.binary(max_size=200), st.sampled_from([b"II*\0", b"MM\0*", b""]))
def test_upright_exif_of_arbitrary_bytes_keeps_their_length_or_is_none(
    data: bytes, mark: bytes
) -> None:
    upright = upright_exif(mark + data)
    assert upright is None or len(upright) == len(mark + data)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'<a tiff:Orientation="6"/>', b'<a tiff:Orientation="1"/>'),
        (b"<tiff:Orientation>8</tiff:Orientation>", b"<tiff:Orientation>1</tiff:Orientation>"),
        (XMP, XMP),
    ],
)
def test_orientation_in_xmp_data_is_reset(before: bytes, after: bytes) -> None:
    assert checked(Metadata(xmp=before), []).xmp == after


def test_a_file_without_a_resolution_has_none(tmp_path: Path) -> None:
    for suffix in (".tif", ".jpg", ".png", ".webp"):
        path = tmp_path / f"a{suffix}"
        Image.fromarray(RGB).save(path)
        assert pictures.load(path).metadata == NOTHING


@pytest.mark.parametrize(
    "dpi", [(0, 0), (1, 1), (72, 72), (72.009, 72.009), (-1, 300), (np.nan, 300)]
)
def test_default_or_implausible_resolution_is_left_out(dpi: tuple[float, float]) -> None:
    assert checked(Metadata(dpi=dpi), []) == NOTHING


@pytest.mark.parametrize("dpi", [0.001, 0.02, 0.3, 1.2, 65_535, 100_000])
@pytest.mark.parametrize("suffix", [".png", ".tif", ".jpg", ".bmp"])
def test_resolution_is_stored_or_reported_as_lost(tmp_path: Path, suffix: str, dpi: float) -> None:
    path, given = tmp_path / f"a{suffix}", Metadata(dpi=(dpi, dpi))
    lost = pictures.save_picture(RGB, path, given)
    if suffix == ".tif" or dpi == 65_535:
        assert lost == []
    if lost != ["resolution"]:
        assert pictures.load(path).metadata.dpi == pytest.approx(given.dpi, rel=0.05)


def test_metadata_that_are_left_out_are_noted() -> None:
    notes: list[str] = []
    large = bytes(MAX_BYTES + 1)
    assert checked(Metadata(large, b"no EXIF data", large), notes) == NOTHING
    assert len(notes) == 3
    assert "damaged EXIF" in " ".join(notes)


# Through a compressed file


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_compressed_file_restores_the_metadata(tmp_path: Path, codec: str) -> None:
    path = save(tmp_path, ".png", 6)
    expected = pictures.load(path).metadata
    choices = {"quality": 0, "effort": 1, "codec": codec, "device": "numpy"}
    encoded = imgmlp.encode(path, **choices)
    stored = metadata_sections.read(container.parse(encoded.bytes))
    assert stored == expected
    facts = imgmlp.info(encoded.bytes)
    assert facts["exif_bytes"] == len(expected.exif)
    assert facts["xmp_bytes"] == len(XMP)
    assert facts["dpi"] == pytest.approx([150, 300], abs=0.05)
    image = imgmlp.decode(encoded.bytes, device="numpy")
    assert image.info["icc_profile"] == ICC
    assert image.getexif()[MAKER] == "a maker"
    stripped = imgmlp.encode(path, **choices, strip=True)
    assert metadata_sections.read(container.parse(stripped.bytes)) == NOTHING
    assert len(stripped.bytes) < len(encoded.bytes) - 300


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_target_size_includes_metadata(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without metadata either codec would use more than 400 bytes."""
    monkeypatch.setattr(passes, "MAX_PASSES", 6)
    monkeypatch.setattr(search, "MAX_TRIALS", 12)
    picture = Picture(RGB[:16, :16], Metadata(xmp=np.random.default_rng(0).bytes(300)))
    image = pictures.to_image(picture.pixels, picture.metadata)
    encoded = imgmlp.encode(image, size=700, effort=1, codec=codec, device="numpy")
    assert encoded.missed is None
    assert len(encoded.bytes) <= 700


def test_commands_keep_or_strip_metadata_and_report_losses(
    in_process: Command, picture: Path
) -> None:
    save(picture.parent, ".png")
    quick = ("--codec", "mlp", "--quality", "0", "--time", "0.3s")
    in_process("encode", "a.png", *quick)
    assert "EXIF" in in_process("info", "a.imlp").stdout
    in_process("decode", "a.imlp", "-o", "b.jpg")
    assert exif_summary(pictures.load(picture.parent / "b.jpg").metadata.exif)[0] == "a maker"
    lost = in_process("decode", "a.imlp", "-o", "b.bmp").stderr
    assert "b.bmp cannot hold the colour profile, EXIF data and XMP data" in lost
    in_process("encode", "a.png", *quick, "--strip", "--force")
    assert "EXIF" not in in_process("info", "a.imlp").stdout


def test_frame_option_chooses_a_frame_by_number(in_process: Command, picture: Path) -> None:
    frames = [Image.new("L", (9, 7), level) for level in (50, 100, 150)]
    frames[0].save(picture.parent / "a.gif", save_all=True, append_images=frames[1:])
    quick = ("--codec", "mlp", "--quality", "0", "--effort", "1", "-o", "a.imlp", "--force")
    done = in_process("encode", "a.gif", *quick)
    assert "only its first frame is used; --frame chooses another" in done.stderr
    for number, level in ((1, 50), (3, 150)):
        in_process("encode", "a.gif", *quick, "--frame", str(number))
        in_process("decode", "a.imlp", "-o", "a.png", "--force")
        with Image.open(picture.parent / "a.png") as image:
            assert set(np.asarray(image).ravel()) == {level}
    told = in_process("encode", "a.gif", *quick, "--frame", "4", check=2).stderr
    assert "no frame 4" in told
    assert "there are 3" in told


def test_files_of_older_versions_have_no_metadata_but_a_profile(tmp_path: Path) -> None:
    for path in {*GOLDEN.glob("*.imlp")} - {GOLDEN / "metadata.imlp"}:
        file = container.parse(path.read_bytes())
        assert metadata_sections.read(file) == Metadata(file.get(container.ICC))
