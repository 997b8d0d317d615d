"""Pillow opens and saves .imlp files like any others once this module is imported.

Opening reads the header and compares the checksums; the pixels are decoded when they are asked
for, as Pillow does with every format. `image.save("a.imlp", bpp=0.4)` takes what `imgmlp.encode`
does but `frame`, and beside that Pillow's `icc_profile`, `exif`, `xmp` and `dpi`. What of the image
had to be changed is an ImgmlpWarning, as a missed target is. As Pillow empties the file before it
asks for the bytes of any format, an older one is lost if encoding fails.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import warnings
from collections.abc import Iterator
from typing import IO, Any

from PIL import Image, ImageFile

from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import Stored, open_stored
from imgmlp.errors import ImgmlpError, ImgmlpWarning
from imgmlp.image import info_of

FORMAT = "IMLP"
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# What `imgmlp.encode` takes, and beside it Pillow's own names for metadata; others are not for it.
_TARGETS = ("quality", "bpp", "size", "psnr", "lmbda")
_CHOICES = (*_TARGETS, "effort", "seconds", "codec", "strip", "device", "on_step")
_METADATA = ("icc_profile", "exif", "xmp", "dpi")
_OTHERS = ("sizes", "bpc")  # options of other formats that look like one of ours
# What some of these are called elsewhere: on the command line, in `imgmlp.train`, by other codecs.
_OTHER_NAMES = {
    "bytes": "size", "lambda": "lmbda", "lambd": "lmbda", "lam": "lmbda", "rate": "bpp",
    "time": "seconds", "sec": "seconds", "steps": "effort",
    "frame": "image.seek",
}  # fmt: skip


class ImlpImageFile(ImageFile.ImageFile):
    """A compact picture. Raises OSError if it is damaged, as Pillow's other formats do."""

    format = FORMAT
    format_description = "imgmlp compact picture"
    _stored: Stored | None = None  # what is to be decoded; a copy of an image has its pixels

    def _open(self) -> None:
        assert self.fp is not None
        size = self.fp.seek(0, io.SEEK_END)
        self.fp.seek(0)
        try:
            stored = open_stored(self.fp.read(min(size, container.MAX_FILE_BYTES + 1)))
        except ImgmlpError as error:
            raise OSError(f"{error}; {error.hint}") from error
        self._stored = stored
        self._size = stored.width, stored.height
        self._mode = _MODES[stored.channels]
        self.info |= info_of(stored.metadata)

    def load(self) -> Any:
        """Decode the pixels, once."""
        if self._stored is not None:
            from imgmlp.engine import open_device

            try:
                pixels = self._stored.decode(open_device()).tobytes()
            except ImgmlpError as error:
                raise OSError(f"{error}; {error.hint}") from error
            self._stored = None
            if self._exclusive_fp and self.fp is not None:
                self.fp.close()  # which has been read
            self.fp = io.BytesIO(pixels)
            self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), 0, self.mode)]
        return super().load()

    def load_seek(self, pos: int) -> None:
        """Nowhere to go; that it exists keeps Pillow from mapping the file as if it were pixels."""


def _save(image: Image.Image, stream: IO[bytes], filename: str | bytes) -> None:
    """Compress an image into a file, as `imgmlp.encode` does. Raises OSError."""
    from imgmlp import api

    given: dict[str, Any] = image.encoderinfo
    for name in given:
        _check_name(name)
    beside: dict[Any, Any] = {name: given[name] for name in _METADATA if name in given}
    choices = {name: given[name] for name in _CHOICES if name in given}
    try:
        with _having(image, beside):
            encoded = api.encode(image, **choices)
    except ImgmlpError as error:
        raise OSError(f"{error}; {error.hint}") from error
    stream.write(encoded.bytes)
    for note in encoded.notes:
        warnings.warn(note, ImgmlpWarning, stacklevel=3)
    if encoded.missed is not None:
        warnings.warn(f"the target was missed: {encoded.missed}", ImgmlpWarning, stacklevel=3)


@contextlib.contextmanager
def _having(image: Image.Image, beside: dict[Any, Any]) -> Iterator[None]:
    """With these metadata for a moment. A copy would not tell what file it comes from, nor so what
    Pillow misreads of it."""
    before = image.info, image._exif
    image.info = image.info | beside
    if "exif" in beside:
        image._exif = None  # which Pillow has made of what it read
    try:
        yield
    finally:
        image.info, image._exif = before


def _check_name(name: str) -> None:
    """Refuse, as a TypeError, what looks like a choice and is none; other formats' options pass."""
    # of a short name one wrong letter is much
    near = difflib.get_close_matches(name, _CHOICES, 1, 0.8 if len(name) > 5 else 0.65)
    meant = _OTHER_NAMES.get(name) or (near[0] if near else name)
    if name == "preset":
        raise TypeError(f"{name!r} is not an option of .imlp files; it is for imgmlp.train only")
    if meant != name and name not in (*_METADATA, *_OTHERS):
        raise TypeError(f"{name!r} is not an option of .imlp files; use {meant!r}")


def _save_all(image: Image.Image, stream: IO[bytes], filename: str | bytes) -> None:
    """The same for `save_all`, of one picture. Raises OSError."""
    others = list(image.encoderinfo.get("append_images") or ())  # which may be a generator
    count = getattr(image, "n_frames", 1) + len(others)
    if count > 1:
        raise OSError(f"an .imlp file holds one picture, not {count}; save each to its own file")
    _save(image, stream, filename)


Image.register_open(FORMAT, ImlpImageFile, lambda start: start.startswith(container.SIGNATURE))
Image.register_save(FORMAT, _save)
Image.register_save_all(FORMAT, _save_all)
Image.register_extension(FORMAT, ".imlp")
Image.register_mime(FORMAT, "image/x-imlp")
