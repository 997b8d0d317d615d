"""What is refused for its size or its kind, and what is told of a file that Pillow cannot read.

Knows what a file begins with, and nothing of what it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from imgmlp.errors import ImgmlpError, PictureError
from imgmlp.text import by_command

MAX_PIXELS = 2**28
TEXT = 2**23  # bytes of a PNG's texts, and of its colour profile, once they are inflated
DRAWINGS = {"EPS", "WMF"}  # programs that draw, for which Pillow needs another program
STUBS = {"BUFR", "GRIB", "HDF5", "MPEG"}  # that Pillow knows by name only
_UNSUPPORTED = (
    "unsupported",
    "unimplemented",
    "not yet supported",
    "not supported",
    "unknown",
    "too large",
    "too much",
)


def convert_hint(path: Path | str) -> str:
    """How to make a picture of it that can be read."""
    return by_command("convert it to a PNG first", path, "magick {} converted.png")


def check_size(image: Image.Image, name: str) -> None:
    """Refuse, as a PictureError, what has no pixels or too many."""
    width, height = image.size
    if width < 1 or height < 1:
        hint = "give a picture of at least one pixel"
        raise PictureError(f"{name} is {width}×{height}: it has no pixels", hint=hint)
    if width * height > MAX_PIXELS:
        problem = f"{name} has {width}×{height} pixels; the limit is {MAX_PIXELS:,} in all"
        raise PictureError(problem, hint="cut it into parts or make it smaller")


def check_format(image: Image.Image, path: Path) -> None:
    """Refuse, as a PictureError, what Pillow knows and has no pixels of."""
    if image.format is not None and image.format in DRAWINGS:
        raise drawing(image.format, path)
    if image.format in STUBS:
        problem = f"{path} is a {image.format} file, which Pillow cannot read"
        raise PictureError(problem, hint=convert_hint(path))


def drawing(kind: str, path: Path) -> PictureError:
    """What is said of a drawing, by Pillow's name of its format."""
    hint = by_command("rasterise it first", path, "magick -density 300 {} drawn.png")
    return PictureError(f"{path} is a vector drawing ({kind}), which has no pixels", hint=hint)


@contextlib.contextmanager
def explained(stream: BinaryIO, path: Path) -> Iterator[None]:
    """Say what is wrong with a file that Pillow cannot read, as a PictureError.

    MemoryError passes, and OSError with a number if the file itself cannot be read.
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
    except Exception:  # Pillow's readers look for more than there is
        return False


def _unreadable(path: Path, error: Exception) -> PictureError:
    said = error.args[0] if error.args else ""  # bytes, of a PPM
    said = said.decode("ascii", "replace") if isinstance(said, bytes) else str(error)
    reason = (said or type(error).__name__).splitlines()[0]
    kind = isinstance(error, NotImplementedError)
    if "MAX_TEXT" in reason:
        hint = by_command("remove them first", path, "magick {} -strip stripped.png")
        problem = f"{path} has texts or a colour profile of more than {TEXT // 2**20} MiB"
        return PictureError(problem, hint=hint)
    if kind or any(word in reason.lower() for word in _UNSUPPORTED):
        problem = f"{path} is of a kind that Pillow cannot read: {reason}"
        return PictureError(problem, hint=convert_hint(path))
    if isinstance(error, OSError) and error.errno is not None:  # of a file that can be read
        reason = "it points to pixels beyond the end of the file"
    return PictureError(f"{path} is damaged or truncated: {reason}", hint="get the file again")
