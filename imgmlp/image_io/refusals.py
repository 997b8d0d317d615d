"""Refusals of pictures for their size or format, and error messages for files that Pillow cannot
read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from imgmlp.errors import ImgmlpError, PictureError
from imgmlp.text import by_command

MAX_PIXELS = 2**28
MAX_TEXT_BYTES = 2**23  # of a PNG's texts, and of its colour profile, decompressed
VECTOR_FORMATS = {"EPS", "WMF"}  # Pillow needs other programs to rasterise these
UNREADABLE_FORMATS = {"BUFR", "GRIB", "HDF5", "MPEG"}  # Pillow only identifies these
# Parts of Pillow's messages that mean a sound file of an unsupported kind, in lower case
_UNSUPPORTED_PHRASES = (
    "unsupported",
    "unimplemented",
    "not yet supported",
    "not supported",
    "unknown",
    "too large",
    "too much",
)


def convert_hint(path: Path | str) -> str:
    """A hint how to convert a file to one that can be read."""
    return by_command("convert it to a PNG first", path, "magick {} converted.png")


def check_size(image: Image.Image, name: str) -> None:
    """Refuse, as a PictureError, an image without pixels or with more than MAX_PIXELS."""
    width, height = image.size
    if width < 1 or height < 1:
        hint = "give a picture of at least one pixel"
        raise PictureError(f"{name} is {width}×{height}: it has no pixels", hint=hint)
    if width * height > MAX_PIXELS:
        problem = f"{name} has {width}×{height} pixels; the limit is {MAX_PIXELS:,} in all"
        raise PictureError(problem, hint="cut it into parts or make it smaller")


def check_format(image: Image.Image, path: Path) -> None:
    """Refuse, as a PictureError, an image of a format whose pixels Pillow cannot read."""
    if image.format is not None and image.format in VECTOR_FORMATS:
        raise vector_error(image.format, path)
    if image.format in UNREADABLE_FORMATS:
        problem = f"{path} is a {image.format} file, which Pillow cannot read"
        raise PictureError(problem, hint=convert_hint(path))


def vector_error(format_name: str, path: Path) -> PictureError:
    """The error for a vector drawing; `format_name` is Pillow's."""
    hint = by_command("rasterise it first", path, "magick -density 300 {} drawn.png")
    return PictureError(
        f"{path} is a vector drawing ({format_name}), which has no pixels", hint=hint
    )


@contextlib.contextmanager
def explained(stream: BinaryIO, path: Path) -> Iterator[None]:
    """Turn exceptions of Pillow about a file into a PictureError that says what is wrong.

    MemoryError passes through, and so does an OSError with an errno if the file cannot be read.
    """
    try:
        yield
    except (ImgmlpError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        problem = f"{path} contains a picture with more pixels than its header says"
        raise PictureError(problem, hint="get the file again") from error
    except UnidentifiedImageError:
        raise _unidentified(stream, path) from None
    except OSError as error:
        if error.errno is not None and not _is_readable(stream):
            raise
        raise _unreadable(path, error) from error
    except Exception as error:  # Pillow's readers raise anything on damaged files
        raise _unreadable(path, error) from error


def _is_readable(stream: BinaryIO) -> bool:
    """Whether the file can be read; then an OSError was about an offset beyond its end."""
    try:
        stream.seek(0)
        stream.read(1)
    except OSError:
        return False
    return True


def _unidentified(stream: BinaryIO, path: Path) -> PictureError:
    stream.seek(0)
    start = stream.read(16)
    if not start:
        return PictureError(f"{path} is empty", hint="give a PNG, JPEG, WebP or TIFF")
    name = Image.registered_extensions().get(path.suffix.lower(), "")
    if name not in Image.OPEN or (Image.OPEN[name][1] is not None and not _may_be(name, start)):
        name = next((name for name in Image.OPEN if _may_be(name, start)), "")
    if name:
        problem = f"{path} is a damaged {name} file, or one of a kind that Pillow cannot read"
        return PictureError(problem, hint=f"get it again, or {convert_hint(path)}")
    hint = f"give a PNG, JPEG, WebP or TIFF, or if it is a picture, {convert_hint(path)}"
    return PictureError(f"{path} is not a picture that Pillow can read", hint=hint)


def _may_be(name: str, start: bytes) -> bool:
    accept = Image.OPEN[name][1]
    try:
        return accept is not None and accept(start) is True
    except Exception:  # Pillow's functions may read beyond a short start
        return False


def _unreadable(path: Path, error: Exception) -> PictureError:
    message = error.args[0] if error.args else ""  # bytes, for a PPM
    message = message.decode("ascii", "replace") if isinstance(message, bytes) else str(error)
    reason = (message or type(error).__name__).splitlines()[0]
    is_unsupported = isinstance(error, NotImplementedError)
    if "MAX_TEXT" in reason:
        hint = by_command("remove them first", path, "magick {} -strip stripped.png")
        problem = f"{path} has texts or a colour profile of more than {MAX_TEXT_BYTES // 2**20} MiB"
        return PictureError(problem, hint=hint)
    if is_unsupported or any(phrase in reason.lower() for phrase in _UNSUPPORTED_PHRASES):
        problem = f"{path} is of a kind that Pillow cannot read: {reason}"
        return PictureError(problem, hint=convert_hint(path))
    if isinstance(error, OSError) and error.errno is not None:  # the file can be read
        reason = "it points to pixels beyond the end of the file"
    return PictureError(f"{path} is damaged or truncated: {reason}", hint="get the file again")
