"""Small pictures of every format and mode that Pillow writes, and hostile ones, all the way.

Each is encoded with minimal training, inspected, verified and decoded, or refused with a message.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hostile
import numpy as np
import pytest
from conftest import Command, small_pixels
from PIL import Image

from imgmlp import image as pictures
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.encoder import Encoded, encode
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.errors import ImgmlpError, PictureError
from imgmlp.image import Picture
from imgmlp.image_io import refusals

HEIGHT, WIDTH = 7, 9
MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr"]
MODES += ["LAB", "HSV", "I;16", "I", "F"]
LOSSLESS = {"BMP", "DIB", "PCX", "PNG", "PPM", "QOI", "SGI", "TGA", "TIFF"}
REFUSED = {  # formats that Pillow writes but that are refused, and why
    "EPS": "drawing",
    "PDF": "not a picture",
    "PALM": "not a picture",
    "SPIDER": "32 bits",
}
DEVICE = open_device("numpy")
CODECS: tuple[Codec, Codec] = "mlp", "latent"


def image(mode: str) -> Image.Image:
    """9×7 pixels, partly transparent if the mode allows."""
    colours = small_pixels()[:HEIGHT, :WIDTH]
    opacity = small_pixels(1)[:HEIGHT, :WIDTH] * 3
    if mode == "I;16":
        return Image.fromarray(colours[:, :, 0].astype(np.uint16) * 257)
    if mode.endswith(("A", "a")):
        seen_through = Image.fromarray(np.dstack([colours, opacity]))
        return seen_through.convert("LA" if mode in ("LA", "La") else "RGBA").convert(mode)
    converted = Image.fromarray(colours)
    return (converted.convert("L") if mode in ("1", "I", "F") else converted).convert(mode)


@cache
def corpus() -> dict[str, bytes]:
    """Files of all formats and modes that Pillow can write here, by "format-mode"."""
    Image.init()
    files = {}
    for kind in sorted(Image.SAVE.keys() - {"IMLP"}):
        for mode in MODES:
            stream = io.BytesIO()
            try:
                image(mode).save(stream, kind)
            except (OSError, ValueError, KeyError, AttributeError):  # the format has no such mode
                continue
            files[f"{kind}-{mode}"] = stream.getvalue()
    return files


def load(name: str, data: bytes) -> Picture:
    return pictures.load(Path(name), alpha=True, data=data)


def as_pillow_reads(data: bytes, channels: int) -> np.ndarray:
    image_read = Image.open(io.BytesIO(data))
    if image_read.mode.startswith("I"):
        image_read = Image.fromarray((np.asarray(image_read) // 256).astype(np.uint8))
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    return np.asarray(image_read.convert(mode)).reshape(HEIGHT, WIDTH, channels)


def kinds() -> list[str]:
    return sorted({name.partition("-")[0] for name in corpus()})


def test_corpus_covers_the_common_formats() -> None:
    assert len(corpus()) > 150
    assert {"PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "ICO"} < set(kinds())


@cache
def encoded(pixels: bytes, shape: tuple[int, ...], codec: Codec) -> Encoded:
    """Cached, as many formats hold the same picture."""
    picture = Picture(np.frombuffer(pixels, np.uint8).reshape(shape))
    return encode(picture, Goal("lambda", 1), Workload(1), DEVICE, codec=codec)


def check_all_the_way(picture: Picture, path: Path, codec: Codec) -> None:
    """Encode a picture, then open, verify and decode its file."""
    made = encoded(picture.pixels.tobytes(), picture.pixels.shape, codec)
    stored = open_stored(made.bytes)
    assert (stored.height, stored.width, stored.channels) == picture.pixels.shape
    assert stored.facts["bytes"] == len(made.bytes)
    pixels = stored.decode(DEVICE)  # compares the digest
    np.testing.assert_array_equal(pixels, made.pixels)
    pictures.save_picture(pixels, path, stored.metadata)
    np.testing.assert_array_equal(pictures.load(path, alpha=True).pixels.shape[:2], (HEIGHT, WIDTH))


@pytest.mark.parametrize("kind", kinds())
def test_every_format_and_mode_is_read_encoded_and_decoded(kind: str, tmp_path: Path) -> None:
    """The codecs alternate from picture to picture."""
    for number, (name, data) in enumerate(corpus().items()):
        if not name.startswith(f"{kind}-"):
            continue
        mode = name.removeprefix(f"{kind}-")
        if kind in REFUSED or (mode in ("F", "I") and kind in ("IM", "PPM", "TIFF")):
            if (kind, mode) == ("PPM", "I"):  # it has 16 bits
                assert load(name, data).notes
                continue
            with pytest.raises(PictureError, match=REFUSED.get(kind, "32 bits")) as caught:
                load(name, data)
            assert caught.value.hint
            continue
        picture = load(name, data)
        if kind == "ICNS":  # its sizes are fixed
            assert picture.pixels.shape[:2] == (1024, 1024)
            continue
        assert picture.pixels.shape[:2] == (HEIGHT, WIDTH)
        if kind in LOSSLESS and mode in ("L", "RGB"):
            expected = np.asarray(image(mode)).reshape(picture.pixels.shape)
            np.testing.assert_array_equal(picture.pixels, expected)
        if kind != "XBM":  # Pillow reads a negative of it
            theirs = as_pillow_reads(data, picture.channels)
            np.testing.assert_array_equal(picture.pixels, theirs)
        check_all_the_way(picture, tmp_path / "a.png", CODECS[number % 2])


@pytest.mark.parametrize("mode", ["1", "LA", "RGB", "RGBA"])
def test_latent_codec_encodes_every_number_of_channels(mode: str, tmp_path: Path) -> None:
    picture = load(f"PNG-{mode}", corpus()[f"PNG-{mode}"])
    check_all_the_way(picture, tmp_path / "a.png", "latent")


def changed(data: bytes) -> Iterator[bytes]:
    """Truncated versions of a file, and versions with single bytes replaced."""
    for share in (0.1, 0.5, 0.9):
        yield data[: int(share * len(data))]
    for cut in (1, 2, 9):
        yield data[:-cut]
    generator = np.random.default_rng(len(data))
    for _ in range(30):
        spoiled = bytearray(data)
        place = generator.integers(0, min(len(data), 200))
        spoiled[place] = generator.choice([0, 1, 127, 128, 255])
        yield bytes(spoiled)


@pytest.mark.parametrize("kind", kinds())
def test_damaged_file_gives_pixels_or_an_error_with_a_hint(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of pixels is lowered, so that no damaged header makes this test slow."""
    monkeypatch.setattr(refusals, "MAX_PIXELS", 2**16)
    mode = next(m for m in ("RGB", "L", "1", "P") if f"{kind}-{m}" in corpus())
    for data in changed(corpus()[f"{kind}-{mode}"]):
        refused, picture = None, None
        try:
            picture = load(f"a.{kind}", data)
        except ImgmlpError as error:
            refused = error
        if picture is not None:
            assert picture.pixels.dtype == np.uint8
        if refused is not None:
            assert refused.exit_code in (3, 7)
            assert refused.hint
            assert "\n" not in str(refused)


def test_commands_continue_after_hostile_files(in_process: Command, picture: Path) -> None:
    folder, names = picture.parent, []
    for kind, mode in (("PNG", "1"), ("TIFF", "I;16"), ("JPEG", "CMYK"), ("GIF", "P")):
        names.append(f"{kind.lower()}.{kind.lower()}")
        (folder / names[-1]).write_bytes(corpus()[f"{kind}-{mode}"])
    for name in ("icns-png.icns", "ico-claim.ico", "tiff-tile.tif", "png-empty.png"):
        names.append(name)
        (folder / name).write_bytes(hostile.BOMBS[name]())
    quick = ("--codec", "mlp", "--lambda", "1", "--time", "0.1s", "--json")
    done = in_process("encode", *names, *quick, check=1)
    assert done.stderr.count("error:") == 4
    assert "Traceback" not in done.stderr
    made = [f"{name.partition('.')[0]}.imlp" for name in names[:4]]
    assert sorted(path.name for path in folder.glob("*.imlp")) == sorted(made)
    in_process("verify", *made)
    for name in made:
        assert "9×7" in in_process("info", name).stdout
        in_process("decode", name)
