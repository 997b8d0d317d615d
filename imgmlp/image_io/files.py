"""Reading of untrusted picture files with Pillow: within limits, with precise errors.

What a file declares is compared with the limits before anything is decoded. The conversion of the
pixels to 8 bits is elsewhere (`conversion`).
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from PIL import (
    Image,
    ImageFile,
    ImagePalette,
    PngImagePlugin,
    TiffImagePlugin,
)

from imgmlp import metadata
from imgmlp.errors import PictureError
from imgmlp.image_io import (
    bit_depth,
    claimed_size,
    colours,
    completeness,
    frames,
    icons,
    parsing_limits,
    pillow_faults,
    png,
    refusals,
    shared_stream,
    structure,
    tiff_exif,
)
from imgmlp.image_io.library_messages import silent_libraries
from imgmlp.text import printable

MAX_ICON_PIXELS = 2**20  # of a Windows icon, whose images may be larger than its directory says
# A tile of a TIFF may have at most MAX_TILE_PIXELS_RATIO times the pixels of the picture. A picture
# of fewer than MIN_TILE_LIMIT_PIXELS counts as one of that size.
MAX_TILE_PIXELS_RATIO = 4
MIN_TILE_LIMIT_PIXELS = 2**20
_EPS_SIGNATURES = (b"%!PS", b"\xc5\xd0\xd3\xc6")
_IM_HEADER_BYTES = 2**16  # within which the header of an IM file ends
_IM_HEADER_END = re.compile(rb"\n\r*[\x00\x1a]")
COMPRESSED_EXTENSIONS = (".imlp", ".npz")  # of files that imgmlp writes
# Formats for which Pillow sets `tile`, where the pixels are, only when it loads them.
_FORMATS_WITHOUT_TILE = {"ICNS", "WEBP"}
_FORMATS_READ_AT_OPEN = {"AVIF", "WEBP"}  # Pillow needs no file once it has opened these
# TIFF tags
_TAG_ORIENTATION = 274
_TAG_TILE_WIDTH = 322
_TAG_TILE_HEIGHT = 323
_TIFF_COMPRESSIONS = {  # Pillow's names of those that every libtiff supports
    *("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "jpeg", "tiff_jpeg"),
    *("tiff_ccitt", "group3", "group4"),
}

# Pillow also logs damage. By default nothing is printed; programs can add their own handlers.
logging.getLogger("PIL").addHandler(logging.NullHandler())
_pillow_limits_lock = threading.RLock()  # Pillow's limits are global, shared by all threads


def read(stream: BinaryIO, path: Path, frame: int | None, notes: list[str]) -> Image.Image:
    """Load the picture in a file; `frame` counts from 1. Appends to `notes` what was left out.

    Raises PictureError, UsageError if there is no such frame, and any exception of Pillow.
    """
    with _within_limits(stream, path) as (image, stream):
        png.check_pixel_checksums(stream, path)
        try:
            frames.choose(image, path, frame, notes)
        except Image.DecompressionBombError:
            refusals.check_size(image, str(path))  # names the size of the frame
            raise
        return _decoded(image, stream, path, notes)


@contextlib.contextmanager
def _within_limits(stream: BinaryIO, path: Path) -> Iterator[tuple[ImageFile.ImageFile, BinaryIO]]:
    """An open, unloaded image and the stream that it is read from, with Pillow's limits set while
    the context lasts.

    Raises PictureError for a file that declares too much.
    """
    palette_bytes = completeness.PCX_PALETTE_BYTES
    stream.seek(0)
    if len(start := stream.read(palette_bytes)) < palette_bytes:
        # Pillow seeks a PCX's palette that far before the end: short files need a BytesIO.
        stream = io.BytesIO(start)
    if start.startswith(_EPS_SIGNATURES):  # Pillow would read its lines one by one
        raise refusals.vector_error("EPS", path)
    is_icon = icons.is_icon(start)
    stream = icons.rebuilt(stream, path) if is_icon else stream
    max_pixels = MAX_ICON_PIXELS if is_icon else refusals.MAX_PIXELS
    with _pillow_limits_lock, quietly(), _limited_to(max_pixels):
        for part in chain((stream,), structure.embedded_images(stream)):
            png.check_chunks(part, path)
            parsing_limits.check(part, path)
        image = Image.open(shared_stream.reader(stream)) if is_icon else _open(stream, path)
        refusals.check_format(image, path)
        refusals.check_size(image, str(path))
        yield image, stream


def _open(stream: BinaryIO, path: Path) -> ImageFile.ImageFile:
    """Open an image with Pillow. Raises PictureError, which names the size if it is too large."""
    formats = _possible_formats(stream)
    try:
        return Image.open(shared_stream.reader(stream), formats=formats)
    except Image.DecompressionBombError:
        with _limited_to(2**63):
            image = Image.open(shared_stream.reader(stream), formats=formats)
        refusals.check_format(image, path)
        width, height = image.size
        if image.format in ("BMP", "DIB") and width >= 2**31:
            image._size = width - 2**32, height  # the width is signed; Pillow reads it unsigned
        refusals.check_size(image, str(path))
        raise


def _possible_formats(stream: BinaryIO) -> list[str] | None:
    """Pillow's names of the formats that a file may have, or None for all.

    Long texts are no IM files: Pillow would read any number of lines as the header of one.
    """
    stream.seek(0)
    head = stream.read(_IM_HEADER_BYTES)
    begins_with_letter = head.lstrip(b"\r")[:1].isalpha()
    is_long_text = len(head) == _IM_HEADER_BYTES and begins_with_letter
    if not is_long_text or _IM_HEADER_END.search(head):
        return None
    Image.preinit()  # both, so that Image.ID has the order in which Pillow tries the formats
    Image.init()
    return [name for name in Image.ID if name != "IM"]


def reread(image: Image.Image, path: Path, notes: list[str]) -> Image.Image:
    """Load a Pillow image: from its file, if it was opened but not loaded before.

    The result is then that of `read` for the file, except for entries of `info` that were changed
    since. Raises PictureError.
    """
    stream, is_unloaded = getattr(image, "fp", None), _is_unloaded(image)
    if stream is None or stream.closed:
        stream = None
        if is_unloaded and image.format not in _FORMATS_READ_AT_OPEN:
            hint = "encode it before its file is closed, or load it before"
            raise PictureError(f"{path} was closed before it was read", hint=hint)
    elif image.format == "FTEX":  # its stream contains nothing but the pixels
        stream = None
    if not is_unloaded or stream is None:
        with refusals.explained(io.BytesIO(), path):
            image.load()
        pillow_faults.check(image, path)
        if image.format == "TIFF":  # Pillow has rotated it by its orientation tag
            _reset_xmp_orientation(image)
        return _with_full_range(
            pillow_faults.without_inversion(image), bit_depth.depth(image), notes
        )
    lock, limits = _pillow_limits_lock, _limited_to(refusals.MAX_PIXELS)
    with refusals.explained(stream, path), lock, quietly(), limits:
        position = stream.tell()
        try:
            reopened = Image.open(shared_stream.reader(stream))
            if reopened.tell() != image.tell():
                reopened.seek(image.tell())
            if (reopened.size, reopened.mode) != (image.size, image.mode):  # `draft` reduced it
                image.load()
                return image
            original_info = dict(reopened.info)
            loaded = _decoded(reopened, stream, path, notes)
        finally:
            if not stream.closed:
                stream.seek(position)
    if original_info.get("exif") != image.info.get("exif"):
        loaded._exif = None  # Pillow's cache of the file's EXIF data
    removed = original_info.keys() - image.info.keys()
    retained = {name: value for name, value in loaded.info.items() if name not in removed}
    changed = {name: v for name, v in image.info.items() if original_info.get(name) != v}
    loaded.info = retained | changed
    return loaded


def _is_unloaded(image: Image.Image) -> bool:
    """Whether an image was opened from a file and not loaded since."""
    lacks_pixels = image.format in _FORMATS_WITHOUT_TILE and image._im is None
    return isinstance(image, ImageFile.ImageFile) and (lacks_pixels or bool(image.tile))


def _decoded(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """Load an open image after all checks; no more pixels are decoded than it declares."""
    refusals.check_size(image, str(path))
    pillow_faults.check(image, path, stream)
    claimed_size.check(image, stream, path)
    png.check_pixels(image, stream, path, notes)
    if lost_colours := colours.lost(image, stream):
        notes.append(lost_colours)
    if image.format == "JPEG2000":
        completeness.check_jpeg2000(stream, path)
    if image.format == "PCX":
        completeness.check_pcx(image, stream, path)
    # Images inside the file, as in icons, may not be larger than the file declares to be.
    is_tiff = image.format == "TIFF"
    with _limited_to(image.width * image.height), silent_libraries(is_tiff) as first_message:
        image = _reopened_by_libtiff(image, stream)
        if is_tiff:
            _check_tiles(image, path)
        decoded = _load(image, stream, path, notes)
        if message := first_message():  # of libtiff; Pillow ignores such damage
            reason = printable(message)
            notes.append(f"the file is damaged, so the picture may be as well: {reason}")
        return decoded


def endings() -> set[str]:
    """The file name extensions of pictures that can be read: with a dot, in lower case.

    Those of compressed files are left out, even if imgmlp's plugin for Pillow is registered.
    """
    extensions = Image.registered_extensions()
    formats = Image.OPEN.keys() - refusals.VECTOR_FORMATS - refusals.UNREADABLE_FORMATS
    readable = {extension for extension, name in extensions.items() if name in formats}
    return readable - {*COMPRESSED_EXTENSIONS}


def pixel_count(path: Path) -> int:
    """The number of pixels that a file declares; 0 if it cannot be read."""
    try:
        with path.open("rb") as file, _within_limits(file, path) as (image, _):
            return image.width * image.height
    except Exception:  # reported when the file is encoded
        return 0


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings, such as Pillow's about damage that it tolerates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _limited_to(max_pixels: int) -> Iterator[None]:
    """Have Pillow refuse images of more pixels, and PNGs of more than MAX_TEXT_BYTES of text.

    Pillow's limit of one text is too low for large colour profiles, that of all texts too high.
    """
    text_limits = PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    pixel_limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2  # Pillow refuses more than twice as many
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = refusals.MAX_TEXT_BYTES
    try:
        yield
    finally:
        PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = text_limits
        Image.MAX_IMAGE_PIXELS = pixel_limit


def _check_tiles(image: ImageFile.ImageFile, path: Path) -> None:
    """Refuse a TIFF whose tiles are far larger than the picture, or do not cover all of it.

    libtiff refuses missing tiles itself. Pillow's own reader leaves them black, and reads the
    pixels of a tile at offset 0, which means that there is none, from the file's first bytes.
    """
    lacks_tile = any(tile.codec_name == "raw" and tile.offset == 0 for tile in image.tile)
    if lacks_tile or _has_uncovered_pixels(image):
        problem = f"{path} is damaged, or omits parts that are black: some pixels are missing"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TAG_TILE_WIDTH), tags.get(_TAG_TILE_HEIGHT)
    if not isinstance(width, int) or not isinstance(height, int):
        return
    limited_pixels = max(image.width * image.height, MIN_TILE_LIMIT_PIXELS)
    if width * height > MAX_TILE_PIXELS_RATIO * limited_pixels:
        size = f"{image.width}×{image.height}"
        problem = f"{path} has tiles of {width}×{height} pixels for a picture of {size}"
        raise PictureError(problem, hint=refusals.convert_hint(path))


def _has_uncovered_pixels(image: ImageFile.ImageFile) -> bool:
    """Whether the tiles of an image have fewer pixels than the image."""
    width, height = image.size[::-1] if _is_sideways(image) else image.size
    covered = 0
    for tile in image.tile:
        left, top, right, bottom = tile.extents or (0, 0, width, height)
        covered += max(0, min(right, width) - left) * max(0, min(bottom, height) - top)
    return covered < width * height


# --- pixels ---


def _load(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """Decode the pixels and correct what Pillow misreads; gray of 16 bits keeps all of them."""
    bits, bits_note = bit_depth.depth(image, stream), bit_depth.by_upper_bits(image)
    is_gray_alpha = any("LA;16B" in tile[3:] for tile in image.tile)  # Pillow converts it to RGBA
    exif = tiff_exif.of_image(image) if image.format == "TIFF" else None
    is_rotated = _TAG_ORIENTATION in getattr(image, "tag_v2", {})
    _rotate_resolution(image)
    pillow_faults.correct_decoding(image, stream)
    has_key = bits == 16 and not image.mode.startswith("I") and "transparency" in image.info
    if has_key and (image.format != "PNG" or image.tell() > 0):
        problem = f"Pillow misreads {path}, which has 16 bits per sample and a transparent colour"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    if bit_depth.is_misread(image, bits):
        problem = f"{path} has {bits} bits per sample, and Pillow reads some white as black"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    loaded = pillow_faults.correct_pixels(_pixels(image, stream, path, notes), stream, path, notes)
    if loaded.mode == "P" and loaded.palette is None:  # an image inside an icon
        loaded.palette = ImagePalette.raw("RGB", loaded.im.getpalette("RGB"))
    if exif:
        loaded.info["exif"] = exif
    if is_rotated:
        _reset_xmp_orientation(loaded)
    if is_gray_alpha:
        loaded = loaded.convert("LA")
    return _with_full_range(loaded, bits, notes, bits_note)


def _with_full_range(
    loaded: Image.Image, bits: int, notes: list[str], bits_note: str = bit_depth.UPPER_BITS
) -> Image.Image:
    """A loaded image whose gray samples of more than 8 bits range from 0 (black) to 65535.

    Appends to `notes` how samples of more than 8 bits are reduced.
    """
    if 8 < bits <= 16:
        notes.append(bits_note.format(bits))
    return bit_depth.spread(loaded, bits)


def _pixels(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """The loaded image. Raises OSError, also if pixels of a JPEG are missing."""
    if image.format not in ("JPEG", "MPO"):
        _load_pixels(image)
        return image
    stream.seek(image.tile[0].offset if image.tile else 0)  # of the chosen frame of an MPO
    jpeg = completeness.parse_jpeg(stream.read())
    jpeg.check(image.size, path)
    if not jpeg.has_end:
        notes.append(png.END_MISSING)
    return jpeg.load_complete(image, lambda data: Image.open(io.BytesIO(data), formats=["JPEG"]))


def _load_pixels(image: ImageFile.ImageFile) -> None:
    compression = image.info.get("compression")
    try:
        image.load()
    except OSError as error:
        if image.format != "TIFF" or compression in _TIFF_COMPRESSIONS:
            raise
        raise OSError(f"compression {compression} is not supported, or damaged") from error


def _reopened_by_libtiff(image: ImageFile.ImageFile, stream: BinaryIO) -> ImageFile.ImageFile:
    """The same image; an uncompressed TIFF that Pillow's own reader misreads is read by libtiff."""
    if not pillow_faults.needs_libtiff(image) or any(tile[0] != "raw" for tile in image.tile):
        return image
    page, setting = image.tell(), TiffImagePlugin.READ_LIBTIFF
    TiffImagePlugin.READ_LIBTIFF = True
    try:
        reopened = Image.open(shared_stream.reader(stream))
        reopened.seek(page)
        return reopened
    finally:
        TiffImagePlugin.READ_LIBTIFF = setting


def _rotate_resolution(image: Image.Image) -> None:
    """Swap the resolutions of a TIFF on its side: Pillow rotates only its pixels."""
    if _is_sideways(image) and "dpi" in image.info:
        image.info["dpi"] = image.info["dpi"][::-1]


def _reset_xmp_orientation(image: Image.Image) -> None:
    """Keep the XMP data of a TIFF that Pillow has rotated from rotating it again."""
    if isinstance(xmp := image.info.get("xmp"), bytes):
        image.info["xmp"] = metadata.upright_xmp(xmp)


def _is_sideways(image: Image.Image) -> bool:
    """Whether the orientation of a TIFF swaps its width and height."""
    orientation: object = getattr(image, "tag_v2", {}).get(_TAG_ORIENTATION)
    return orientation in (5, 6, 7, 8)
