"""Reading and writing pictures: conversion of files and Pillow images to 8-bit pixels, and back.

This module knows neither the codecs nor the engine.
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
_TIFF_TAG_XMP = 700
_EXIF_TAG_ORIENTATION = 0x0112
_ICC_COLOUR_SPACE = slice(16, 20)  # bytes of an ICC profile that name its colour space
FORMATS_WITH_ALPHA = {"PNG", "TIFF", "WEBP"}  # Pillow's names of formats that store alpha exactly
_PNG_EXIF_KEYWORD = "Raw profile type exif"  # text with EXIF data in PNGs older than the eXIf chunk
_EXIF_PREFIX = b"Exif\0\0"  # precedes EXIF data in a JPEG and in Pillow

# Takes a third of the time of Pillow's default level, 6; the files are 1% larger.
PNG_OPTIONS = {"compress_level": 4}

# Pillow's format and options by file name extension. All are lossless except JPEG.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", PNG_OPTIONS),
    ".tif": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ".tiff": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    # exact: keep the colours of fully transparent pixels
    ".webp": ("WEBP", {"lossless": True, "exact": True}),
    ".bmp": ("BMP", {}),
    ".ppm": ("PPM", {}),
    ".pgm": ("PPM", {}),
    ".jpg": ("JPEG", {"quality": 95}),
    ".jpeg": ("JPEG", {"quality": 95}),
}


@dataclass(frozen=True)
class Limits:
    """What a file format can hold."""

    max_side: int = MAX_PIXELS  # pixels
    max_bytes: Mapping[str, int] = field(default_factory=dict)  # by kind of metadata it can hold
    dpi_step: float | None = None  # spacing of the resolutions that it can store; None if it cannot
    max_dpi: float = metadata.MAX_DPI

    def can_store(self, dpi: tuple[float, float]) -> bool:
        """Whether it can store a resolution with an error of at most 5%."""
        step = self.dpi_step
        if step is None:
            return False
        return all(n <= self.max_dpi and abs(step * round(n / step) - n) <= 0.05 * n for n in dpi)


_ALL_METADATA = dict.fromkeys(("icc", "exif", "xmp"), metadata.MAX_BYTES)
# Longer texts and profiles could be written to a PNG, but not read again.
_PNG_METADATA = _ALL_METADATA | dict.fromkeys(("icc", "xmp"), refusals.MAX_TEXT_BYTES)
_JPEG_METADATA = {"icc": 255 * 65_519, "exif": 65_527, "xmp": 65_504}
_DOT_PER_METRE = 0.0254  # in dots per inch
LIMITS = {
    "PNG": Limits(max_bytes=_PNG_METADATA, dpi_step=_DOT_PER_METRE),
    "TIFF": Limits(max_bytes=_ALL_METADATA, dpi_step=1e-6),
    "JPEG": Limits(max_side=65_500, max_bytes=_JPEG_METADATA, dpi_step=1, max_dpi=65_535),
    "WEBP": Limits(max_side=16_383, max_bytes=_ALL_METADATA),
    "BMP": Limits(dpi_step=_DOT_PER_METRE),
    "AVIF": Limits(max_side=32_768),  # libavif reads no larger one
}


def limits_of(name: str) -> Limits:
    """The limits of a format, by Pillow's name of it."""
    return LIMITS.get(name, Limits())


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of 8-bit samples: gray (one channel) or RGB (three), and perhaps alpha (one
    more)."""

    pixels: np.ndarray  # uint8 [height, width, channels]
    metadata: Metadata = NOTHING
    notes: tuple[str, ...] = ()  # conversions that were made when it was read, for people

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
    """Read a picture file and rotate it upright by its EXIF orientation.

    `data` are the bytes of a pipe or standard input; the path is then only its name. `alpha` keeps
    transparency as the last channel; without it, transparent pictures are refused. `frame` selects
    a frame of a file with several, counted from 1. `strip` leaves out metadata.

    Raises UsageError if the file cannot be read, PictureError if it is no picture, damaged or of a
    kind that is not supported, and OutOfMemoryError if it does not fit in memory.
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
    """A picture from a Pillow image, under the same rules as `load`.

    An image that was opened but not loaded yet is read from its file. Raises PictureError and
    OutOfMemoryError.
    """
    name = getattr(image, "filename", "") or "the picture"
    refusals.check_size(image, str(name))
    notes: list[str] = []
    try:
        loaded = files.reread(image, Path(os.fsdecode(name)), notes)
        with _sound_info(str(name)):
            return _picture(loaded, str(name), alpha, strip, notes)
    except MemoryError:
        problem = f"{name} does not fit in memory"
        raise OutOfMemoryError(problem, hint="use a smaller picture") from None


@contextlib.contextmanager
def _sound_info(name: str) -> Iterator[None]:
    """Report unusable entries of an image's `info` as a PictureError that names the image.

    Programs may put anything there, such as invalid colours or EXIF data that cannot be written.
    """
    try:
        yield
    except (ImgmlpError, MemoryError):
        raise
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}")
        problem = f"the info of {name} cannot be used ({reason})"
        raise PictureError(problem, hint="correct or remove that entry of its info") from error


def from_array(pixels: np.ndarray[Any, Any], alpha: bool = False) -> Picture:
    """A picture from an array, uint8 [height, width, 1 to 4] or [height, width].

    Raises PictureError for other arrays, and for masked ones.
    """
    if isinstance(pixels, np.ma.MaskedArray):
        hint = "replace the masked samples, for example with array.filled(0)"
        raise PictureError("a masked array is not a picture", hint=hint)
    pixels = np.asarray(pixels)  # slices of an np.matrix would be matrices
    samples = pixels[:, :, None] if pixels.ndim == 2 else pixels
    is_valid = samples.ndim == 3 and samples.shape[2] in (1, 2, 3, 4) and samples.dtype == np.uint8
    if not is_valid or not 0 < samples.shape[0] * samples.shape[1] <= MAX_PIXELS:
        problem = f"an array of {pixels.dtype}{list(pixels.shape)} is not a picture"
        raise PictureError(problem, hint="give uint8 [height, width, 1 to 4]")
    notes: list[str] = []
    samples = conversion.without_opaque_alpha(samples, notes)
    _check_alpha(samples, "the array", alpha)
    return Picture(samples, notes=tuple(notes))


def _picture(image: Image.Image, name: str, alpha: bool, strip: bool, notes: list[str]) -> Picture:
    pixels = conversion.samples(image, name, notes)
    _check_alpha(pixels, name, alpha)
    orientation = _orientation(image)
    pixels = conversion.upright(pixels, orientation)
    picture_metadata = NOTHING if strip else metadata.checked(_metadata(image), notes)
    if not strip and image.info.get("icc_profile") is None:
        profile = colours.profile(image.info, gray=pixels.shape[2] < 3)
        picture_metadata = replace(picture_metadata, icc=profile)
        notes += [colours.PROFILE_MADE] if profile else []
    if picture_metadata.dpi is not None and orientation in (5, 6, 7, 8):
        picture_metadata = replace(picture_metadata, dpi=picture_metadata.dpi[::-1])
    return Picture(pixels, picture_metadata, tuple(notes))


def _check_alpha(pixels: np.ndarray[Any, Any], name: str, alpha: bool) -> None:
    if not alpha and pixels.shape[2] in (2, 4):
        command = "magick {} -background white -alpha remove flat.png"
        hint = by_command("flatten it first", name, command)
        raise PictureError(f"{name} has transparent pixels", hint=hint)


def _orientation(image: Image.Image) -> int:
    try:
        with files.quietly():
            stored_exif = image.info.get("exif")  # getexif() would expect bytes here
            exif = stored_exif if isinstance(stored_exif, Image.Exif) else image.getexif()
            if _EXIF_TAG_ORIENTATION in exif:
                return int(exif[_EXIF_TAG_ORIENTATION])
    except MemoryError:
        raise
    except Exception:  # metadata that cannot be parsed says nothing about the pixels
        pass
    return metadata.orientation_of(_xmp(image) or b"")  # Pillow knows fewer forms of it


def _metadata(image: Image.Image) -> Metadata:
    """The metadata of a Pillow image."""
    info = image.info
    icc = info.get("icc_profile") if image.mode not in ("CMYK", "LAB") else None
    fields = {"icc": icc, "exif": _exif(image), "xmp": _xmp(image)}
    present = {name: data for name, data in fields.items() if isinstance(data, bytes) and data}
    return Metadata(**present, dpi=_pair(info.get("dpi")))


def _exif(image: Image.Image) -> bytes | None:
    exif, text = image.info.get("exif"), image.info.get(_PNG_EXIF_KEYWORD)
    if exif is None and isinstance(text, str):
        with contextlib.suppress(ValueError):  # it is damaged
            exif = bytes.fromhex("".join(text.split("\n")[3:]))
    exif = exif.tobytes() if isinstance(exif, Image.Exif) else exif
    return exif.removeprefix(_EXIF_PREFIX) if isinstance(exif, bytes) else None


def _xmp(image: Image.Image) -> bytes | None:
    xmp = image.info.get("xmp")
    xmp = xmp.encode() if isinstance(xmp, str) else xmp
    return xmp if isinstance(xmp, bytes) else None


def _pair(dpi: Any) -> tuple[float, float] | None:
    """A resolution as two numbers; None if Pillow has anything else."""
    try:
        x, y = (float(n) for n in (dpi if isinstance(dpi, tuple) else (dpi, dpi)))
    except (TypeError, ValueError, ArithmeticError):  # such as an overflow
        return None
    return x, y


def check_size(width: int, height: int) -> None:
    """Refuse, as a UsageError, an output size that is empty or has too many pixels."""
    size = f"{width}x{height}"
    if width < 1 or height < 1:
        raise UsageError(f"the size is {size}", hint="both must be at least 1")
    if width * height > MAX_PIXELS:
        hint = f"use at most {MAX_PIXELS:,} pixels in all"
        raise UsageError(f"{size} pixels are too many", hint=hint)


def scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    """The scaled (width, height) of a picture. Raises UsageError."""
    limit = float(2**40)  # keeps any factor within the range of a float
    width, height = (max(1, round(min(n * scale, limit))) for n in (width, height))
    check_size(width, height)
    return width, height


def psnr(original: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 pictures of the same shape, in dB; inf if equal.

    Colours do not count where the original's alpha is 0, as they are invisible.
    """
    if original.shape != other.shape:
        raise ValueError(
            f"pictures of shapes {original.shape} and {other.shape} cannot be compared"
        )
    squares = 0
    for row, other_row in zip(original, other, strict=True):  # saves memory
        difference = row.astype(np.int32) - other_row
        if has_alpha(original):
            difference[row[:, -1] == 0, :-1] = 0
        squares += int(np.sum(difference * difference, dtype=np.int64))
    count = original.size * visible_fraction(original)
    return math.inf if squares == 0 else 10 * math.log10(255**2 * count / squares)


def has_alpha(pixels: np.ndarray) -> bool:
    """Whether the last channel of [height, width, 1 to 4] is alpha."""
    return pixels.shape[2] in (2, 4)


def visible_fraction(pixels: np.ndarray) -> float:
    """The fraction of the samples that are visible: all but colours under alpha 0."""
    if not has_alpha(pixels):
        return 1.0
    height, width, channels = pixels.shape
    hidden = 1 - int(np.count_nonzero(pixels[:, :, -1])) / (height * width)
    fraction: float = 1 - hidden * (channels - 1) / channels
    return fraction


def to_image(pixels: np.ndarray, metadata: Metadata = NOTHING) -> Image.Image:
    """A Pillow image of uint8 pixels [height, width, 1 to 4], with metadata in its `info`."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.info |= info_of(metadata)
    return image


def info_of(metadata: Metadata) -> dict[Any, Any]:
    """Metadata by Pillow's names, for an image's `info` and as options of `save`.

    EXIF data without a valid header are left out, because Pillow fails on them.
    """
    named = {"icc_profile": metadata.icc, "xmp": metadata.xmp, "dpi": metadata.dpi}
    exif = (metadata.exif or b"").removeprefix(_EXIF_PREFIX)
    named |= {"exif": _EXIF_PREFIX + exif if begins_as_exif(exif) else None}
    return {name: value for name, value in named.items() if value is not None}


def save_picture(
    pixels: np.ndarray,
    path: Path,
    metadata: Metadata = NOTHING,
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> list[str]:
    """Write pixels in the format of the path's extension; `replace` and `announce` are those of
    `write_atomically`.

    Returns the names of the metadata that the format cannot hold. Raises UsageError, OutputError.
    """
    height, width, channels = pixels.shape
    name, options = check_extension(path, channels, (width, height))
    kept = _kept_by(name, metadata, channels)
    if path.suffix.lower() == ".ppm" and channels == 1:
        pixels = np.repeat(pixels, 3, axis=2)  # a PPM is always RGB

    def write(stream: BinaryIO) -> None:
        try:
            _save(pixels, stream, name, options, kept)
        except (ValueError, SystemError) as error:  # larger than the format can hold
            hint = "write a .png instead"
            raise OutputError(f"{name} cannot hold this picture: {error}", hint=hint) from error

    write_atomically(path, write, replace, announce)
    return _lost(metadata, kept)


def save_named(
    pixels: np.ndarray,
    path: Path,
    metadata: Metadata = NOTHING,
    replace: bool = True,
    announce: Callable[[str], object] | None = None,
) -> list[str]:
    """As `save_picture`, but pipes and devices get a PNG, as their names have no extension."""
    if not is_special(path):
        return save_picture(pixels, path, metadata, replace, announce)
    return save_png(pixels, path, metadata)


def save_png(
    pixels: np.ndarray, target: Path | str | BinaryIO, metadata: Metadata = NOTHING
) -> list[str]:
    """Write pixels, uint8 [height, width, 1 to 4], as PNG; returns what `save_picture` does.

    Raises OutputError for a path.
    """
    kept = _kept_by("PNG", metadata, pixels.shape[2])
    if isinstance(target, Path | str):
        write_atomically(target, lambda stream: _save(pixels, stream, "PNG", PNG_OPTIONS, kept))
    else:
        _save(pixels, target, "PNG", PNG_OPTIONS, kept)
    return _lost(metadata, kept)


def _lost(given: Metadata, kept: Metadata) -> list[str]:
    return [what for what in given.names() if what not in kept.names()]


def _save(
    pixels: np.ndarray, stream: BinaryIO, name: str, options: dict[str, Any], kept: Metadata
) -> None:
    named = info_of(kept)
    if name == "PNG" and kept.xmp is not None:
        named["pnginfo"] = PngImagePlugin.PngInfo()
        named["pnginfo"].add_itxt("XML:com.adobe.xmp", kept.xmp)
    if name == "TIFF" and kept.xmp is not None:
        named["tiffinfo"] = {_TIFF_TAG_XMP: kept.xmp}
    if name != "TIFF" or kept.exif is None:
        to_image(pixels).save(stream, format=name, **named, **options)
        return
    del named["exif"]  # Pillow cannot write it to a compressed TIFF, so it is inserted below
    without = io.BytesIO()
    to_image(pixels).save(without, format=name, **named, **options)
    stream.write(tiff_exif.inserted(without.getvalue(), kept.exif))


def _kept_by(name: str, metadata: Metadata, channels: int) -> Metadata:
    """The part of the metadata that a format can hold."""
    limits = limits_of(name)
    fields = {key: getattr(metadata, key) for key in ("icc", "exif", "xmp")}
    if name == "TIFF" and metadata.exif is not None:
        with files.quietly():
            fields["exif"] = tiff_exif.that_fits(metadata.exif)
    if (
        name == "WEBP"
        and channels < 3
        and metadata.icc
        and metadata.icc[_ICC_COLOUR_SPACE] == b"GRAY"
    ):
        fields["icc"] = None  # a WebP always has three channels
    most = limits.max_bytes
    kept = {key: data for key, data in fields.items() if data and len(data) <= most.get(key, 0)}
    return Metadata(
        **kept, dpi=metadata.dpi if metadata.dpi and limits.can_store(metadata.dpi) else None
    )


def check_ending(path: Path, ending: str) -> None:
    """Refuse, as a UsageError, a name with the extension of a picture or of another of our formats.

    `ending` itself and unknown extensions are allowed.
    """
    suffix = path.suffix.lower()
    if suffix == ending:
        return
    hint = f"use a name that ends with {ending}"
    if suffix in files.COMPRESSED_EXTENSIONS:
        raise UsageError(f"{path} has the extension of another kind of file", hint=hint)
    if suffix in FORMATS or suffix in files.endings():
        raise UsageError(f"{path} has a picture's extension, but will not be a picture", hint=hint)


def check_extension(
    path: Path, channels: int | None = None, size: tuple[int, int] = (1, 1)
) -> tuple[str, dict[str, Any]]:
    """Pillow's format and options for a picture file to write.

    Raises UsageError if the extension is unknown, or if the format cannot hold `channels` (2 and 4
    include alpha) or a picture of (width, height) `size`.
    """
    try:
        name, options = FORMATS[path.suffix.lower()]
    except KeyError:
        extensions = " ".join(FORMATS)
        what = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise UsageError(f"{path} has {what}", hint=f"use one of {extensions}") from None
    if channels in (2, 4) and name not in FORMATS_WITH_ALPHA:
        problem = f"{path} cannot hold transparency"
        raise UsageError(problem, hint="use .png, .tif or .webp")
    if channels == 3 and path.suffix.lower() == ".pgm":
        raise UsageError(f"{path} can hold gray pictures only", hint="use .ppm")
    max_side = limits_of(name).max_side
    if max(size) > max_side:
        problem = f"{path} cannot hold {size[0]}×{size[1]} pixels"
        raise UsageError(
            problem, hint=f"a {name} has at most {max_side:,} pixels per side; use .png"
        )
    return name, options
