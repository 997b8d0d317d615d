"""Picture files of strangers, opened with Pillow: within limits, and refused for the right reason.

What a file claims is compared with the limits before anything is decoded. Knows nothing of what
becomes of the pixels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import (
    ExifTags,
    Image,
    ImageChops,
    ImageFile,
    ImagePalette,
    PngImagePlugin,
    UnidentifiedImageError,
)

from imgmlp.errors import ImgmlpError, PictureError, UsageError
from imgmlp.text import quoted

MAX_PIXELS = 2**28
ICON_PIXELS = 2**20  # of a Windows icon, whose pictures may be larger than it says
TEXT = 2**23  # bytes of a PNG's texts, and of its colour profile, once they are inflated
TILE_PIXELS = 2**20  # of a TIFF's tile, whatever the picture's size
TILE_SHARE = 4  # times the picture's pixels that a tile may have
OVERVIEWS = 64  # pages of a TIFF that are looked at
ICON = b"\0\0\1\0"  # how a Windows icon begins
UPPER_BITS = "of the {} bits of a sample the upper 8 are kept"
DRAWINGS = {"EPS", "WMF"}  # programs that draw, for which Pillow needs another program
STUBS = {"BUFR", "GRIB", "HDF5", "MPEG"}  # that Pillow knows by name only
_REDUCED, _MASK = 1, 4  # bits of a TIFF page's kind
_KIND, _PHOTOMETRIC, _ORIENTATION = 254, 262, 274  # TIFF's tags
_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # likewise
_TOLD = 270, 271, 272, 305, 306, 315, 33432  # what, maker, camera, program, date, who, rights
_UNSUPPORTED = (
    "unsupported",
    "unimplemented",
    "not yet supported",
    "not supported",
    "unknown",
    "too large",
    "too much",
)
JPEG_END = b"\xff\xd9"
_FILLERS = b"\x55" * 64, b"\xaa" * 64  # which no two JPEGs that lack pixels decode alike

# Pillow also logs what it finds wrong; a program that wants to see it can still listen.
logging.getLogger("PIL").addHandler(logging.NullHandler())
_one_at_a_time = threading.RLock()  # as Pillow's limit is one for all threads


def convert_hint(path: Path | str, option: str = "") -> str:
    """How to make a picture of it that can be read."""
    option = f" {option}" if option else ""
    return f"convert it first, for example with `magick {quoted(path)}{option} converted.png`"


def read(stream: BinaryIO, path: Path, frame: int | None, notes: list[str]) -> Image.Image:
    """The picture in a file, loaded; `frame` counts from 1. Says in `notes` what was left out.

    Raises PictureError, UsageError if there is no such frame, and what Pillow does.
    """
    icon = stream.read(len(ICON)) == ICON
    with _one_at_a_time, quietly(), _at_most(ICON_PIXELS if icon else MAX_PIXELS):
        image = Image.open(stream)
        _check_format(image, path)
        check_size(image, str(path))
        _choose_frame(image, path, frame, notes)
        check_size(image, str(path))
        # No picture inside of it, as icons and others have, may be larger than the whole.
        with _at_most(image.width * image.height), _native_silence(image.format):
            _check_tiles(image, path)
            return _load(image, stream, notes)


def endings() -> set[str]:
    """How names of pictures that can be read usually end: with a dot, in lower case."""
    known = Image.registered_extensions()
    return {name for name, kind in known.items() if kind in Image.OPEN.keys() - DRAWINGS - STUBS}


def pixels(path: Path) -> int:
    """How many a file says that it has; 0 if it does not say, for whatever reason."""
    try:
        with quietly(), Image.open(path) as image:
            return image.width * image.height
    except Exception:  # which is told when its turn comes
        return 0


@contextlib.contextmanager
def refusals(stream: BinaryIO, path: Path) -> Iterator[None]:
    """Say what is wrong with a file that Pillow cannot read, as a PictureError.

    MemoryError passes, and OSError with a number if the file itself cannot be read.
    """
    try:
        yield
    except (ImgmlpError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        problem = f"{path} has more pixels than it says, or than {MAX_PIXELS:,}, the limit"
        raise PictureError(problem, hint="cut it into parts or make it smaller") from error
    except UnidentifiedImageError:
        raise _unidentified(stream, path) from None
    except OSError as error:
        if error.errno is not None and not _is_readable(stream):
            raise
        raise _unreadable(path, error) from error
    except Exception as error:  # Pillow's readers raise anything on damaged files
        raise _unreadable(path, error) from error


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without Pillow's warnings of what it makes the best of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _at_most(pixels: int) -> Iterator[None]:
    """Have Pillow refuse what claims to have more pixels, or more text beside them than TEXT.

    Its own limit of a text is too low for large colour profiles, that of all of them too high.
    """
    text = PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = (pixels + 1) // 2  # of which it refuses more than twice as many
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = TEXT
    try:
        yield
    finally:
        PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = text
        Image.MAX_IMAGE_PIXELS = before


@contextlib.contextmanager
def _native_silence(format: str | None) -> Iterator[None]:
    """Hide what libtiff writes to stderr by itself; Pillow's error says it as well."""
    if format != "TIFF":
        yield
        return
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, ValueError, AttributeError):  # closed by whoever started this process
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def check_size(image: Image.Image, name: str) -> None:
    """Refuse, as a PictureError, what has no pixels or too many."""
    width, height = image.size
    if width < 1 or height < 1:
        hint = "give a picture of at least one pixel"
        raise PictureError(f"{name} is {width}×{height}: it has no pixels", hint=hint)
    if width * height > MAX_PIXELS:
        problem = f"{name} has {width}×{height} pixels; the limit is {MAX_PIXELS:,} in all"
        raise PictureError(problem, hint="cut it into parts or make it smaller")


def _check_format(image: Image.Image, path: Path) -> None:
    if image.format in DRAWINGS:
        hint = f"draw it first, for example with `magick -density 300 {quoted(path)} drawn.png`"
        raise PictureError(f"{path} is a drawing ({image.format}) and has no pixels", hint=hint)
    if image.format in STUBS:
        problem = f"{path} is a {image.format} file, which Pillow cannot read"
        raise PictureError(problem, hint=convert_hint(path))


def _check_tiles(image: Image.Image, path: Path) -> None:
    """Refuse a TIFF whose tiles are far larger than the picture that they cover."""
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TILE_WIDTH), tags.get(_TILE_HEIGHT)
    if not isinstance(width, int) or not isinstance(height, int):
        return
    if width * height > TILE_SHARE * max(image.width * image.height, TILE_PIXELS):
        size = f"{image.width}×{image.height}"
        problem = f"{path} has tiles of {width}×{height} pixels for a picture of {size}"
        raise PictureError(problem, hint=convert_hint(path))


# --- frames ---


def _choose_frame(image: Image.Image, path: Path, frame: int | None, notes: list[str]) -> None:
    """Go to a frame, or stay at the first, and say so if there are others."""
    if frame is not None:
        try:
            if image.format != "PSD":  # whose frames would be layers
                image.seek(frame - 1)
            elif frame != 1:
                raise EOFError
        except EOFError:
            problem = f"{path} has no frame {frame}"
            raise UsageError(problem, hint="--frame counts from 1") from None
    elif image.format == "PSD" and getattr(image, "is_animated", False):
        notes.append("its layers are merged, as the file has them")
    elif _has_others(image):
        notes.append("only its first frame is taken; --frame chooses another")


def _has_others(image: Image.Image) -> bool:
    """Whether there are frames beside the first that are pictures of their own."""
    if image.format == "MPO":  # a phone's JPEG with a second picture behind the first
        return False
    if not getattr(image, "is_animated", False):
        return False
    if image.format != "TIFF":
        return True
    try:
        for page in range(1, OVERVIEWS):
            image.seek(page)
            if not getattr(image, "tag_v2", {}).get(_KIND, 0) & (_REDUCED | _MASK):
                return True
    except EOFError:
        return False
    finally:
        image.seek(0)
    return True


# --- pixels ---


def _load(image: ImageFile.ImageFile, stream: BinaryIO, notes: list[str]) -> Image.Image:
    """The same picture with its pixels decoded, and of 16 bits if it says so."""
    deep, inverted = _depth(image), _is_inverted(image)
    gray = any("LA;16B" in tile[3:] for tile in image.tile)  # which Pillow makes RGBA
    exif = _tiff_exif(image) if image.format == "TIFF" else None
    _turn_resolution(image)
    if deep == 16 and not image.mode.startswith("I") and "transparency" in image.info:
        raise OSError("unsupported: 16 bits a sample and a transparent colour")
    loaded: Image.Image = image
    try:
        image.load()
    except OSError:
        found = _without_end(stream) if image.format == "JPEG" else None
        if found is None:
            raise
        notes.append("the file's end is missing, but none of its pixels")
        loaded = found
    if loaded.mode == "P" and loaded.palette is None:  # of a picture inside of an icon
        loaded.palette = ImagePalette.raw("RGB", loaded.im.getpalette("RGB"))
    if exif:
        loaded.info["exif"] = exif
    if gray:
        loaded = loaded.convert("LA")
    if deep > 8:
        notes.append(UPPER_BITS.format(deep))
    if deep == 12:
        loaded = loaded.point(lambda value: value * 16 + 0)
    if inverted:
        loaded = loaded.point(lambda value: value * -1 + 65535)
    return loaded


def _turn_resolution(image: Image.Image) -> None:
    """Of a TIFF on its side: Pillow turns its pixels as it loads them, and nothing else."""
    sideways = getattr(image, "tag_v2", {}).get(_ORIENTATION) in (5, 6, 7, 8)
    if sideways and "dpi" in image.info:
        image.info["dpi"] = image.info["dpi"][::-1]


def _tiff_exif(image: ImageFile.ImageFile) -> bytes | None:
    """What a TIFF's own tags tell beside the pixels, as EXIF data."""
    try:
        found = _told(image.getexif())
        return found.tobytes() if found else None
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return None  # of values that no tag may have


def _told(found: Image.Exif) -> Image.Exif:
    """Those of a TIFF's tags that tell of the picture and not where its pixels are."""
    kept = Image.Exif()
    kept.load(found.tobytes())
    for tag in list(kept):
        if tag not in (*_TOLD, ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            del kept[tag]
    return kept


def _depth(image: Image.Image) -> int:
    """Bits of a sample, where it is known that they are more than 8; else 8.

    Pillow cuts the samples of colours to 8 bits without a word. "BGR;16" has 16 bits a pixel.
    """
    for tile in getattr(image, "tile", ()):
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        kinds = [arg for arg in args if isinstance(arg, str)]
        if any(kind.endswith(";12") for kind in kinds):
            return 12
        if any(kind.endswith((";16B", ";16L", ";16N")) for kind in kinds):
            return 16
        if image.format == "PPM" and any(isinstance(arg, int) and arg > 255 for arg in args):
            return 16
    return 16 if image.mode.startswith("I;16") else 8


def _is_inverted(image: Image.Image) -> bool:
    """Whether white is 0 and Pillow leaves it so: of a TIFF's gray, if it has 16 bits."""
    return image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0


def _without_end(stream: BinaryIO) -> Image.Image | None:
    """A JPEG whose last bytes are missing, if its pixels are the same whatever follows."""
    stream.seek(0)
    data = stream.read()
    if data.endswith(JPEG_END):
        return None
    data = data.removesuffix(JPEG_END[:1])
    try:
        found = [
            Image.open(io.BytesIO(data + filler + JPEG_END), formats=["JPEG"])
            for filler in _FILLERS
        ]
        first, second = found
        same = ImageChops.difference(first, second).getbbox() is None
    except (OSError, ValueError):
        return None
    return first if same else None


# --- refusals ---


def _is_readable(stream: BinaryIO) -> bool:
    """Whether the file is, so that Pillow has looked for what is not in it."""
    try:
        stream.seek(0)
        stream.read(1)
    except OSError:
        return False
    return True


def _unidentified(stream: BinaryIO, path: Path) -> PictureError:
    stream.seek(0)
    start = stream.read(16)
    for name, (_, accept) in Image.OPEN.items():
        try:
            known = accept is not None and accept(start) is True
        except Exception:  # Pillow's readers look for more than there is
            known = False
        if known:
            problem = f"{path} is a damaged {name} file, or one of a kind that Pillow cannot read"
            return PictureError(problem, hint=f"get it again, or {convert_hint(path)}")
    hint = f"give a PNG, JPEG, WebP or TIFF; if it is a picture, {convert_hint(path)}"
    return PictureError(f"{path} is not a picture that Pillow can read", hint=hint)


def _unreadable(path: Path, error: Exception) -> PictureError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    kind = isinstance(error, NotImplementedError)
    if kind or any(word in reason.lower() for word in _UNSUPPORTED):
        problem = f"{path} is of a kind that Pillow cannot read: {reason}"
        return PictureError(problem, hint=convert_hint(path))
    return PictureError(f"{path} is damaged or truncated: {reason}", hint="get the file again")
