"""Pictures in and out: what Pillow can read becomes plain 8-bit pixels, or a clear refusal.

Files come from strangers, so size and kind are judged from the header before anything is
decoded. Knows neither the codec nor the engine.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from imgmlp.errors import OutOfMemoryError, OutputError, PictureError, UsageError
from imgmlp.output_files import write_atomically

MAX_PIXELS = 2**28
MAX_ICC = 2**24  # bytes of a colour profile
OPAQUE = "the fully opaque alpha channel was dropped"
TRANSPARENT = {"PNG", "TIFF", "WEBP"}  # Pillow's formats that keep an alpha channel as it is
_FLATTEN = "flatten it first, for example with `magick {} -background white -alpha remove flat.png`"
_CONVERT = "convert it first, for example with `magick {} {} converted.png`"

# Pillow also logs what it finds wrong; a program that wants to see it can still listen.
logging.getLogger("PIL").addHandler(logging.NullHandler())

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


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as 8-bit samples, gray (one channel) or RGB (three), alpha one more."""

    pixels: np.ndarray  # uint8 [height, width, channels]
    icc: bytes | None = None  # colour profile
    notes: tuple[str, ...] = ()  # what was changed on the way in, for people

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[2])


def load(path: Path | str, alpha: bool = False, data: bytes | None = None) -> Picture:
    """Read a picture file, turned as its EXIF orientation says.

    `data` is what there is under this name, if it is no file. `alpha` keeps transparency as a last
    channel; without it, what is transparent is refused.
    Raises UsageError if it cannot be read at all, PictureError if it is no picture, a damaged
    one, or one of a kind that is not supported, OutOfMemoryError if it does not fit.
    """
    path = Path(path)
    try:
        opened = path.open("rb") if data is None else io.BytesIO(data)
        with opened as stream, _undisturbed():
            return _decode(stream, path.name, alpha)
    except PictureError:
        raise
    except MemoryError:
        hint = "use a smaller picture"
        raise OutOfMemoryError(f"{path} does not fit in memory", hint=hint) from None
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="check the name") from None
    except UnidentifiedImageError:
        hint = "give a PNG, JPEG, WebP, TIFF or another file that Pillow can read"
        raise PictureError(f"{path} is not a picture", hint=hint) from None
    except OSError as error:
        if error.errno is not None:
            problem = f"cannot read {path}: {error.strerror}"
            raise UsageError(problem, hint="give a readable file") from error
        raise _damaged(path, error) from error
    except Exception as error:  # Pillow's readers raise anything on damaged files
        raise _damaged(path, error) from error


def from_image(image: Image.Image, name: str = "the picture", alpha: bool = False) -> Picture:
    """Pixels of a Pillow image, under the same rules as `load`."""
    _check_size(image, name)
    _check_kind(image, name)
    image.load()
    notes: list[str] = []
    icc = image.info.get("icc_profile") or None
    if icc is not None and (not isinstance(icc, bytes) or len(icc) > MAX_ICC):
        icc = None
        notes.append("the colour profile is too large and was left out")
    image = _plain(_upright(image, notes), name, notes, alpha)
    pixels = np.array(image, dtype=np.uint8)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return Picture(pixels, icc, tuple(notes))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without Pillow's warnings and its own limit, which is lower than ours."""
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.MAX_IMAGE_PIXELS = None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _decode(stream: BinaryIO, name: str, alpha: bool) -> Picture:
    with Image.open(stream) as image:
        # A phone's JPEG often carries a second picture behind the first.
        several = bool(getattr(image, "is_animated", False))
        if several and image.format != "MPO":
            hint = f"take one frame, for example with `magick '{name}[0]' frame.png`"
            raise PictureError(f"{name} holds more than one frame", hint=hint)
        return from_image(image, name, alpha)


def _damaged(path: Path, error: Exception) -> PictureError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return PictureError(f"{path} is damaged or truncated: {reason}", hint="get the file again")


def check_size(width: int, height: int) -> None:
    """Refuse, as a UsageError, a size to decode to that is empty or has too many pixels."""
    size = f"{width}x{height}"
    if width < 1 or height < 1:
        raise UsageError(f"the size is {size}", hint="both must be at least 1")
    if width * height > MAX_PIXELS:
        hint = f"use at most {MAX_PIXELS:,} pixels in all"
        raise UsageError(f"{size} pixels are too many", hint=hint)


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        hint = "give a picture of at least one pixel"
        raise PictureError(f"{name} is {width}×{height}: it has no pixels", hint=hint)
    if width * height > MAX_PIXELS:
        problem = f"{name} has {width}×{height} pixels; the limit is {MAX_PIXELS:,} in all"
        raise PictureError(problem, hint="cut it into parts or make it smaller")


def _check_kind(image: Image.Image, name: str) -> None:
    if image.mode.startswith(("I", "F")) or _is_deep(image):
        problem = f"{name} has more than 8 bits a sample, which is not supported yet"
        raise PictureError(problem, hint=_CONVERT.format(name, "-depth 8"))
    if image.mode in ("CMYK", "LAB", "HSV"):
        problem = f"{name} is {image.mode}; only gray and RGB are supported"
        raise PictureError(problem, hint=_CONVERT.format(name, "-colorspace sRGB"))


def _is_deep(image: Image.Image) -> bool:
    """Whether Pillow would silently cut a file's 16-bit colour samples down to 8."""
    for tile in getattr(image, "tile", ()):
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(isinstance(arg, str) and ";16" in arg for arg in args):
            return True
        if image.format == "PPM" and any(isinstance(arg, int) and arg > 255 for arg in args):
            return True
    return False


def _upright(image: Image.Image, notes: list[str]) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # metadata that cannot be parsed says nothing about the pixels
        notes.append("damaged EXIF data was ignored")
        return image


def _plain(image: Image.Image, name: str, notes: list[str], alpha: bool) -> Image.Image:
    """Gray or RGB, with alpha only if it is wanted and there is any."""
    gray = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        image = image.convert("LA" if gray and image.mode != "1" else "RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            if alpha:
                return image
            raise PictureError(f"{name} has transparent pixels", hint=_FLATTEN.format(name))
        notes.append(OPAQUE)
    return image.convert("L" if gray else "RGB")


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 pictures of one shape, in dB; inf if equal."""
    if a.shape != b.shape:
        raise ValueError(f"pictures of shapes {a.shape} and {b.shape} cannot be compared")
    squares = 0
    for row, other in zip(a, b, strict=True):  # row by row, as whole pictures may be large
        difference = row.astype(np.int32) - other
        squares += int(np.sum(difference * difference, dtype=np.int64))
    return math.inf if squares == 0 else 10 * math.log10(255**2 * a.size / squares)


def to_image(pixels: np.ndarray, icc: bytes | None = None) -> Image.Image:
    """A Pillow image of uint8 pixels [height, width, 1 to 4]."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if icc:
        image.info["icc_profile"] = icc
    return image


def save_picture(pixels: np.ndarray, path: Path, icc: bytes | None = None) -> None:
    """Write pixels in the format that the extension names. Raises UsageError, OutputError."""
    channels = pixels.shape[2]
    name, options = check_extension(path, channels)
    if path.suffix.lower() == ".ppm" and channels == 1:
        pixels = np.repeat(pixels, 3, axis=2)  # it is a colour format
    image = to_image(pixels, icc)

    def write(stream: BinaryIO) -> None:
        try:
            image.save(stream, format=name, icc_profile=icc, **options)
        except (ValueError, SystemError) as error:  # larger than the format can hold
            hint = "write a .png instead"
            raise OutputError(f"{name} cannot hold this picture: {error}", hint=hint) from error

    write_atomically(path, write)


def save_png(pixels: np.ndarray, target: Path | str | BinaryIO, icc: bytes | None = None) -> None:
    """Write pixels, uint8 [height, width, 1 to 4], as PNG. Raises OutputError for a path."""
    image = to_image(pixels, icc)
    if isinstance(target, Path | str):
        write_atomically(
            target, lambda stream: image.save(stream, format="PNG", icc_profile=icc, **PNG)
        )
    else:
        image.save(target, format="PNG", icc_profile=icc, **PNG)


def check_extension(path: Path, channels: int | None = None) -> tuple[str, dict[str, Any]]:
    """Pillow's format and options for a file to write; 2 or 4 channels mean that there is alpha.

    Raises UsageError, if `channels` are known also where the format cannot hold them.
    """
    try:
        name, options = FORMATS[path.suffix.lower()]
    except KeyError:
        known = " ".join(FORMATS)
        what = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise UsageError(f"{path} has {what}", hint=f"use one of {known}") from None
    if channels in (2, 4) and name not in TRANSPARENT:
        problem = f"{path} cannot keep what is transparent"
        raise UsageError(problem, hint="use .png, .tif or .webp")
    if channels == 3 and path.suffix.lower() == ".pgm":
        raise UsageError(f"{path} can hold gray only", hint="use .ppm")
    return name, options
