"""Pictures in and out: files and Pillow images become plain 8-bit pixels, and the other way around.

Knows neither the codec nor the engine.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, PngImagePlugin

from imgmlp import metadata
from imgmlp.errors import ImgmlpError, OutOfMemoryError, OutputError, PictureError, UsageError
from imgmlp.image_io import colours, conversion, files, refusals, tiff_exif
from imgmlp.metadata import NOTHING, Metadata, begins_as_exif
from imgmlp.output_files import is_special, write_atomically
from imgmlp.text import by_command, printable

MAX_PIXELS = refusals.MAX_PIXELS
_TIFF_XMP = 700  # its tag
_ORIENTATION = 0x0112  # EXIF's
_ICC_SPACE = slice(16, 20)  # where a colour profile says what its colours are made of
TRANSPARENT = {"PNG", "TIFF", "WEBP"}  # Pillow's formats that keep an alpha channel as it is
_PNG_EXIF = "Raw profile type exif"  # a PNG's text of before it had a chunk for them
_EXIF = b"Exif\0\0"  # how JPEG begins it, and Pillow

PNG = {"compress_level": 4}  # a third of the time of Pillow's 6, and a hundredth larger

# How a picture is written, by extension: Pillow's format and options. Lossless but for JPEG.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", PNG),
    ".tif": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ".tiff": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    # exact: also the colours of what cannot be seen
    ".webp": ("WEBP", {"lossless": True, "exact": True}),
    ".bmp": ("BMP", {}),
    ".ppm": ("PPM", {}),
    ".pgm": ("PPM", {}),
    ".jpg": ("JPEG", {"quality": 95}),
    ".jpeg": ("JPEG", {"quality": 95}),
}


@dataclass(frozen=True)
class Limits:
    """What one of Pillow's formats can hold."""

    side: int = MAX_PIXELS  # pixels along one, at most
    kept: Mapping[str, int] = field(default_factory=dict)  # metadata, and the most bytes of each
    step: float | None = None  # of resolutions, in dots an inch; without it none is kept
    dpi: float = metadata.MAX_DPI  # the highest resolution

    def holds(self, dpi: tuple[float, float]) -> bool:
        """Whether it keeps a resolution, about."""
        step = self.step
        if step is None:
            return False
        return all(n <= self.dpi and abs(step * round(n / step) - n) <= 0.05 * n for n in dpi)


_ALL = dict.fromkeys(("icc", "exif", "xmp"), metadata.MAX_BYTES)
_IN_PNG = _ALL | dict.fromkeys(("icc", "xmp"), refusals.TEXT)  # which is read again
_METRE = 0.0254  # a dot a metre
LIMITS = {
    "PNG": Limits(kept=_IN_PNG, step=_METRE),
    "TIFF": Limits(kept=_ALL, step=1e-6),
    "JPEG": Limits(65_500, {"icc": 255 * 65_519, "exif": 65_527, "xmp": 65_504}, 1, 65_535),
    "WEBP": Limits(16_383, _ALL),
    "BMP": Limits(step=_METRE),
    "AVIF": Limits(32_768),  # of what libavif reads
}


def limits_of(name: str) -> Limits:
    """Of one of Pillow's formats."""
    return LIMITS.get(name, Limits())


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as 8-bit samples, gray (one channel) or RGB (three), alpha one more."""

    pixels: np.ndarray  # uint8 [height, width, channels]
    metadata: Metadata = NOTHING
    notes: tuple[str, ...] = ()  # what was changed on the way in, for people

    @property
    def icc(self) -> bytes | None:
        return self.metadata.icc

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[2])


def load(
    path: Path | str,
    alpha: bool = False,
    data: bytes | None = None,
    frame: int | None = None,
    strip: bool = False,
) -> Picture:
    """Read a picture file, turned as its EXIF orientation says.

    `data` is what there is under this name, if it is no file. `alpha` keeps transparency as a last
    channel; without it, what is transparent is refused. Of a file with several frames, `frame`
    chooses one, from 1 on. `strip` leaves out metadata.
    Raises UsageError if it cannot be read at all, PictureError if it is no picture, a damaged
    one, or one of a kind that is not supported, OutOfMemoryError if it does not fit.
    """
    path = Path(path)
    notes: list[str] = []
    try:
        opened: BinaryIO = path.open("rb") if data is None else io.BytesIO(data)
        with opened as file:
            stream = file if file.seekable() else io.BytesIO(file.read())
            with refusals.explained(stream, path):
                image = files.read(stream, path, frame, notes)
                return _picture(image, str(path), alpha, strip, notes)
    except MemoryError:
        hint = "use a smaller picture"
        raise OutOfMemoryError(f"{path} does not fit in memory", hint=hint) from None
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="check the name") from None
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror or error}"
        raise UsageError(problem, hint="give a readable file") from error


def from_image(image: Image.Image, alpha: bool = False, strip: bool = False) -> Picture:
    """Pixels of a Pillow image, under the same rules as `load`.

    One that was opened and not loaded since is read as its file is. Raises PictureError and
    OutOfMemoryError.
    """
    name = getattr(image, "filename", "") or "the picture"
    refusals.check_size(image, str(name))
    notes: list[str] = []
    try:
        whole = files.reread(image, Path(os.fsdecode(name)), notes)
        with _sound_info(str(name)):
            return _picture(whole, str(name), alpha, strip, notes)
    except MemoryError:
        problem = f"{name} does not fit in memory"
        raise OutOfMemoryError(problem, hint="use a smaller picture") from None


@contextlib.contextmanager
def _sound_info(name: str) -> Iterator[None]:
    """Say of which image it is, as a PictureError, that its `info` has what cannot be used.

    Anybody may put anything there: colours that are none, or EXIF data that cannot be written.
    """
    try:
        yield
    except (ImgmlpError, MemoryError):
        raise
    except Exception as error:
        told = printable(f"{type(error).__name__}: {error}")
        problem = f"the info of {name} cannot be used ({told})"
        raise PictureError(problem, hint="correct or remove that entry of its info") from error


def from_array(pixels: np.ndarray[Any, Any], alpha: bool = False) -> Picture:
    """A picture of an array, uint8 [height, width, 1 to 4] or [height, width].

    Raises PictureError for another one, and for a masked one.
    """
    if isinstance(pixels, np.ma.MaskedArray):
        hint = "replace the masked samples, for example with array.filled(0)"
        raise PictureError("a masked array is not a picture", hint=hint)
    pixels = np.asarray(pixels)  # of a matrix, whose parts would be matrices as well
    shaped = pixels[:, :, None] if pixels.ndim == 2 else pixels
    good = shaped.ndim == 3 and shaped.shape[2] in (1, 2, 3, 4) and shaped.dtype == np.uint8
    if not good or not 0 < shaped.shape[0] * shaped.shape[1] <= MAX_PIXELS:
        problem = f"an array of {pixels.dtype}{list(pixels.shape)} is not a picture"
        raise PictureError(problem, hint="give uint8 [height, width, 1 to 4]")
    notes: list[str] = []
    shaped = conversion.without_opaque_alpha(shaped, notes)
    _check_alpha(shaped, "the array", alpha)
    return Picture(shaped, notes=tuple(notes))


def _picture(image: Image.Image, name: str, alpha: bool, strip: bool, notes: list[str]) -> Picture:
    pixels = conversion.samples(image, name, notes)
    _check_alpha(pixels, name, alpha)
    orientation = _orientation(image)
    pixels = conversion.upright(pixels, orientation)
    found = NOTHING if strip else metadata.checked(_metadata(image), notes)
    if not strip and image.info.get("icc_profile") is None:
        made = colours.profile(image.info, gray=pixels.shape[2] < 3)
        found = replace(found, icc=made)
        notes += [colours.MADE] if made else []
    if found.dpi is not None and orientation in (5, 6, 7, 8):
        found = replace(found, dpi=found.dpi[::-1])
    return Picture(pixels, found, tuple(notes))


def _check_alpha(pixels: np.ndarray[Any, Any], name: str, alpha: bool) -> None:
    if not alpha and pixels.shape[2] in (2, 4):
        command = "magick {} -background white -alpha remove flat.png"
        hint = by_command("flatten it first", name, command)
        raise PictureError(f"{name} has transparent pixels", hint=hint)


def _orientation(image: Image.Image) -> int:
    try:
        with files.quietly():
            given = image.info.get("exif")  # which Pillow reads as bytes only
            exif = given if isinstance(given, Image.Exif) else image.getexif()
            if _ORIENTATION in exif:
                return int(exif[_ORIENTATION])
    except MemoryError:
        raise
    except Exception:  # metadata that cannot be parsed says nothing about the pixels
        pass
    return metadata.orientation_of(_xmp(image) or b"")  # in forms that Pillow does not know, too


def _metadata(image: Image.Image) -> Metadata:
    """What Pillow tells of an image."""
    info = image.info
    icc = info.get("icc_profile") if image.mode not in ("CMYK", "LAB") else None
    found = {"icc": icc, "exif": _exif(image), "xmp": _xmp(image)}
    kept = {name: data for name, data in found.items() if isinstance(data, bytes) and data}
    return Metadata(**kept, dpi=_pair(info.get("dpi")))


def _exif(image: Image.Image) -> bytes | None:
    found, text = image.info.get("exif"), image.info.get(_PNG_EXIF)
    if found is None and isinstance(text, str):
        with contextlib.suppress(ValueError):  # it is damaged
            found = bytes.fromhex("".join(text.split("\n")[3:]))
    found = found.tobytes() if isinstance(found, Image.Exif) else found
    return found.removeprefix(_EXIF) if isinstance(found, bytes) else None


def _xmp(image: Image.Image) -> bytes | None:
    found = image.info.get("xmp")
    found = found.encode() if isinstance(found, str) else found
    return found if isinstance(found, bytes) else None


def _pair(dpi: Any) -> tuple[float, float] | None:
    """Two numbers, of whatever Pillow has for a resolution."""
    try:
        x, y = (float(n) for n in (dpi if isinstance(dpi, tuple) else (dpi, dpi)))
    except (TypeError, ValueError, ArithmeticError):  # such as beyond what a float can be
        return None
    return x, y


def check_size(width: int, height: int) -> None:
    """Refuse, as a UsageError, a size to decode to that is empty or has too many pixels."""
    size = f"{width}x{height}"
    if width < 1 or height < 1:
        raise UsageError(f"the size is {size}", hint="both must be at least 1")
    if width * height > MAX_PIXELS:
        hint = f"use at most {MAX_PIXELS:,} pixels in all"
        raise UsageError(f"{size} pixels are too many", hint=hint)


def scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    """(width, height) of a picture made larger or smaller. Raises UsageError."""
    limit = float(2**40)  # so that no factor leads to numbers beyond a float's range
    width, height = (max(1, round(min(n * scale, limit))) for n in (width, height))
    check_size(width, height)
    return width, height


def psnr(original: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 pictures of one shape, in dB; inf if equal.

    Colours that nobody sees, as the original's alpha is 0 there, do not count.
    """
    if original.shape != other.shape:
        raise ValueError(
            f"pictures of shapes {original.shape} and {other.shape} cannot be compared"
        )
    squares = 0
    for row, its in zip(original, other, strict=True):  # row by row, as pictures may be large
        difference = row.astype(np.int32) - its
        if has_alpha(original):
            difference[row[:, -1] == 0, :-1] = 0
        squares += int(np.sum(difference * difference, dtype=np.int64))
    count = original.size * counted(original)
    return math.inf if squares == 0 else 10 * math.log10(255**2 * count / squares)


def has_alpha(pixels: np.ndarray) -> bool:
    """Whether the last channel of [height, width, 1 to 4] is alpha."""
    return pixels.shape[2] in (2, 4)


def counted(pixels: np.ndarray) -> float:
    """The share of the samples that anybody sees: all but colours under alpha 0."""
    if not has_alpha(pixels):
        return 1.0
    height, width, channels = pixels.shape
    hidden = 1 - int(np.count_nonzero(pixels[:, :, -1])) / (height * width)
    share: float = 1 - hidden * (channels - 1) / channels
    return share


def to_image(pixels: np.ndarray, found: Metadata = NOTHING) -> Image.Image:
    """A Pillow image of uint8 pixels [height, width, 1 to 4], and what Pillow keeps beside them."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.info |= info_of(found)
    return image


def info_of(found: Metadata) -> dict[Any, Any]:
    """Metadata as Pillow names them in an image's `info`, and as options of `save`.

    Without EXIF data that begin otherwise than any do, on which Pillow fails.
    """
    named = {"icc_profile": found.icc, "xmp": found.xmp, "dpi": found.dpi}
    exif = (found.exif or b"").removeprefix(_EXIF)
    named |= {"exif": _EXIF + exif if begins_as_exif(exif) else None}
    return {name: value for name, value in named.items() if value is not None}


def save_picture(
    pixels: np.ndarray,
    path: Path,
    found: Metadata = NOTHING,
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> list[str]:
    """Write pixels in the format that the extension names; the rest as in `write_atomically`.

    Returns the names of what cannot be kept there. Raises UsageError, OutputError.
    """
    height, width, channels = pixels.shape
    name, options = check_extension(path, channels, (width, height))
    kept = _kept_by(name, found, channels)
    if path.suffix.lower() == ".ppm" and channels == 1:
        pixels = np.repeat(pixels, 3, axis=2)  # it is a colour format

    def write(stream: BinaryIO) -> None:
        try:
            _save(pixels, stream, name, options, kept)
        except (ValueError, SystemError) as error:  # larger than the format can hold
            hint = "write a .png instead"
            raise OutputError(f"{name} cannot hold this picture: {error}", hint=hint) from error

    write_atomically(path, write, replace, announce)
    return _lost(found, kept)


def save_named(
    pixels: np.ndarray,
    path: Path,
    found: Metadata = NOTHING,
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> list[str]:
    """As `save_picture`, but to what is no file as PNG, as its name says nothing."""
    if not is_special(path):
        return save_picture(pixels, path, found, replace, announce)
    return save_png(pixels, path, found)


def save_png(
    pixels: np.ndarray, target: Path | str | BinaryIO, found: Metadata = NOTHING
) -> list[str]:
    """Write pixels, uint8 [height, width, 1 to 4], as PNG; returns what `save_picture` does.

    Raises OutputError for a path.
    """
    kept = _kept_by("PNG", found, pixels.shape[2])
    if isinstance(target, Path | str):
        write_atomically(target, lambda stream: _save(pixels, stream, "PNG", PNG, kept))
    else:
        _save(pixels, target, "PNG", PNG, kept)
    return _lost(found, kept)


def _lost(found: Metadata, kept: Metadata) -> list[str]:
    return [what for what in found.names() if what not in kept.names()]


def _save(
    pixels: np.ndarray, stream: BinaryIO, name: str, options: dict[str, Any], kept: Metadata
) -> None:
    named = info_of(kept)
    if name == "PNG" and kept.xmp is not None:
        named["pnginfo"] = PngImagePlugin.PngInfo()
        named["pnginfo"].add_itxt("XML:com.adobe.xmp", kept.xmp)
    if name == "TIFF" and kept.xmp is not None:
        named["tiffinfo"] = {_TIFF_XMP: kept.xmp}
    if name != "TIFF" or kept.exif is None:
        to_image(pixels).save(stream, format=name, **named, **options)
        return
    del named["exif"]  # which Pillow cannot write beside compressed pixels
    without = io.BytesIO()
    to_image(pixels).save(without, format=name, **named, **options)
    stream.write(tiff_exif.inserted(without.getvalue(), kept.exif))


def _kept_by(name: str, found: Metadata, channels: int) -> Metadata:
    """What one of Pillow's formats can keep."""
    limits = limits_of(name)
    fields = {key: getattr(found, key) for key in ("icc", "exif", "xmp")}
    if name == "TIFF" and found.exif is not None:
        with files.quietly():
            fields["exif"] = tiff_exif.that_fits(found.exif)
    if name == "WEBP" and channels < 3 and found.icc and found.icc[_ICC_SPACE] == b"GRAY":
        fields["icc"] = None  # as three channels are written
    most = limits.kept
    kept = {key: data for key, data in fields.items() if data and len(data) <= most.get(key, 0)}
    return Metadata(**kept, dpi=found.dpi if found.dpi and limits.holds(found.dpi) else None)


def check_ending(path: Path, ending: str) -> None:
    """Refuse, as a UsageError, the name of a picture or another of our files for one of `ending`.

    Endings that nobody knows are free.
    """
    found = path.suffix.lower()
    if found == ending:
        return
    hint = f"use a name that ends with {ending}"
    if found in files.OWN:
        raise UsageError(f"{path} has the extension of another kind of file", hint=hint)
    if found in FORMATS or found in files.endings():
        raise UsageError(f"{path} has a picture's extension, but will not be a picture", hint=hint)


def check_extension(
    path: Path, channels: int | None = None, size: tuple[int, int] = (1, 1)
) -> tuple[str, dict[str, Any]]:
    """Pillow's format and options for a file to write; 2 or 4 channels mean that there is alpha.

    Raises UsageError, also if the format cannot hold so many channels, if they are known, or a
    picture of (width, height) `size`.
    """
    try:
        name, options = FORMATS[path.suffix.lower()]
    except KeyError:
        known = " ".join(FORMATS)
        what = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise UsageError(f"{path} has {what}", hint=f"use one of {known}") from None
    if channels in (2, 4) and name not in TRANSPARENT:
        problem = f"{path} cannot hold transparency"
        raise UsageError(problem, hint="use .png, .tif or .webp")
    if channels == 3 and path.suffix.lower() == ".pgm":
        raise UsageError(f"{path} can hold gray pictures only", hint="use .ppm")
    most = limits_of(name).side
    if max(size) > most:
        problem = f"{path} cannot hold {size[0]}×{size[1]} pixels"
        raise UsageError(problem, hint=f"a {name} has at most {most:,} pixels per side; use .png")
    return name, options
