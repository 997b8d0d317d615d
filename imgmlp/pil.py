"""A Pillow plugin: once this module is imported, Pillow opens and saves .imlp files.

Opening reads the header and compares the checksums; the pixels are decoded on their first use, as
with all of Pillow's formats. `image.save("a.imlp", bpp=0.4)` takes the options of `imgmlp.encode`
except `frame`, and Pillow's `icc_profile`, `exif`, `xmp` and `dpi`. Changes to the image and a
missed target are reported as ImgmlpWarning. Pillow empties the file before it calls the plugin, so
an older file is lost if encoding fails.
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
# Options of `imgmlp.encode`.
_TARGETS = ("quality", "bpp", "size", "psnr", "lmbda")
_ENCODE_OPTIONS = (*_TARGETS, "effort", "seconds", "codec", "strip", "device", "on_step")
_METADATA_OPTIONS = ("icc_profile", "exif", "xmp", "dpi")  # Pillow's names
# Options of Pillow's other formats that look like misspelt options of `imgmlp.encode`.
_SIMILAR_FOREIGN_OPTIONS = ("sizes", "bpc")
# Names of options on the command line, in `imgmlp.train` and in other codecs -> names here.
_SYNONYMS = {
    "bytes": "size", "lambda": "lmbda", "lambd": "lmbda", "lam": "lmbda", "rate": "bpp",
    "time": "seconds", "sec": "seconds", "steps": "effort",
    "frame": "image.seek",
}  # fmt: skip
# Similarity, from 0 to 1, from which an unknown option counts as misspelt; one wrong letter lowers
# the similarity of a short name more.
_MIN_SIMILARITY = 0.8
_MIN_SIMILARITY_OF_SHORT_NAME = 0.65
_MAX_SHORT_NAME = 5  # letters


class ImlpImageFile(ImageFile.ImageFile):
    """An .imlp file. Raises OSError if it is damaged, as Pillow's other formats do."""

    format = FORMAT
    format_description = "imgmlp compact picture"
    _stored: Stored | None = None  # the file until it is decoded; None in copies, which have pixels

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
                self.fp.close()
            self.fp = io.BytesIO(pixels)
            self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), 0, self.mode)]
        return super().load()

    def load_seek(self, pos: int) -> None:
        """Do nothing. Pillow maps files of raw pixels into memory unless this method exists."""


def _save(image: Image.Image, stream: IO[bytes], filename: str | bytes) -> None:
    """Compress an image into a file, as `imgmlp.encode` does. Raises OSError."""
    from imgmlp import api

    options: dict[str, Any] = image.encoderinfo
    for name in options:
        _check_option(name)
    metadata: dict[Any, Any] = {
        name: options[name] for name in _METADATA_OPTIONS if name in options
    }
    encode_options = {name: options[name] for name in _ENCODE_OPTIONS if name in options}
    try:
        with _with_metadata(image, metadata):
            encoded = api.encode(image, **encode_options)
    except ImgmlpError as error:
        raise OSError(f"{error}; {error.hint}") from error
    stream.write(encoded.bytes)
    for note in encoded.notes:
        warnings.warn(note, ImgmlpWarning, stacklevel=3)
    if encoded.missed is not None:
        warnings.warn(f"the target was missed: {encoded.missed}", ImgmlpWarning, stacklevel=3)


@contextlib.contextmanager
def _with_metadata(image: Image.Image, metadata: dict[Any, Any]) -> Iterator[None]:
    """Give an image additional metadata for the duration of a context.

    A copy of the image would not do: it does not know its file, which `encode` needs to detect what
    Pillow misreads.
    """
    before = image.info, image._exif
    image.info = image.info | metadata
    if "exif" in metadata:
        image._exif = None  # Pillow's parsed form of the old EXIF data
    try:
        yield
    finally:
        image.info, image._exif = before


def _check_option(name: str) -> None:
    """Raise TypeError for a misspelt option. Options of Pillow's other formats are ignored."""
    is_short = len(name) <= _MAX_SHORT_NAME
    min_similarity = _MIN_SIMILARITY_OF_SHORT_NAME if is_short else _MIN_SIMILARITY
    similar = difflib.get_close_matches(name, _ENCODE_OPTIONS, 1, min_similarity)
    suggestion = _SYNONYMS.get(name) or (similar[0] if similar else name)
    if name == "preset":
        raise TypeError(f"{name!r} is not an option of .imlp files; it is for imgmlp.train only")
    if suggestion != name and name not in (*_METADATA_OPTIONS, *_SIMILAR_FOREIGN_OPTIONS):
        raise TypeError(f"{name!r} is not an option of .imlp files; use {suggestion!r}")


def _save_all(image: Image.Image, stream: IO[bytes], filename: str | bytes) -> None:
    """As `_save`, for `save_all=True`. Raises OSError, also for more than one picture."""
    appended = list(image.encoderinfo.get("append_images") or ())  # it may be a generator
    count = getattr(image, "n_frames", 1) + len(appended)
    if count > 1:
        raise OSError(f"an .imlp file holds one picture, not {count}; save each to its own file")
    _save(image, stream, filename)


Image.register_open(FORMAT, ImlpImageFile, lambda start: start.startswith(container.SIGNATURE))
Image.register_save(FORMAT, _save)
Image.register_save_all(FORMAT, _save_all)
Image.register_extension(FORMAT, ".imlp")
Image.register_mime(FORMAT, "image/x-imlp")
