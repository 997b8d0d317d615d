"""Picture files of strangers, opened with Pillow: within limits, and refused for the right reason.

What a file claims is compared with the limits before anything is decoded. Knows nothing of what
becomes of the pixels.
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
    misread,
    parsing_limits,
    png,
    refusals,
    shared_stream,
    structure,
    tiff_exif,
)
from imgmlp.image_io.library_messages import silent_libraries
from imgmlp.text import printable

ICON_PIXELS = 2**20  # of a Windows icon, whose pictures may be larger than it says
TILE_PIXELS = 2**20  # of a TIFF's tile, whatever the picture's size
TILE_SHARE = 4  # times the picture's pixels that a tile may have
_EPS = (b"%!PS", b"\xc5\xd0\xd3\xc6")  # how these begin, whose lines Pillow reads one by one
_IM_HEAD = 2**16  # bytes within which the header of an IM picture ends, if it is one
_IM_END = re.compile(rb"\n\r*[\x00\x1a]")
OWN = (".imlp", ".npz")  # how names of compressed files end
_LATE = {"ICNS", "WEBP"}  # of which Pillow says where the pixels are only when it loads them
_OUTLIVING = {"AVIF", "WEBP"}  # whose bytes Pillow has once it has opened them
_ORIENTATION = 274  # TIFF's tag
_TILE_WIDTH, _TILE_HEIGHT = 322, 323  # likewise
_USUAL = {  # compressions of TIFF that libtiff always has
    *("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "jpeg", "tiff_jpeg"),
    *("tiff_ccitt", "group3", "group4"),
}

# Pillow also logs what it finds wrong; a program that wants to see it can still listen.
logging.getLogger("PIL").addHandler(logging.NullHandler())
_one_at_a_time = threading.RLock()  # as Pillow's limit is one for all threads


def read(stream: BinaryIO, path: Path, frame: int | None, notes: list[str]) -> Image.Image:
    """The picture in a file, loaded; `frame` counts from 1. Says in `notes` what was left out.

    Raises PictureError, UsageError if there is no such frame, and what Pillow does.
    """
    with _within_limits(stream, path) as (image, stream):
        png.check_pixel_checksums(stream, path)
        try:
            frames.choose(image, path, frame, notes)
        except Image.DecompressionBombError:
            refusals.check_size(image, str(path))  # that of the frame
            raise
        return _decoded(image, stream, path, notes)


@contextlib.contextmanager
def _within_limits(stream: BinaryIO, path: Path) -> Iterator[tuple[ImageFile.ImageFile, BinaryIO]]:
    """What Pillow finds in a file, not loaded yet, and the bytes that it reads it from.

    Raises PictureError for what claims too much, here and while the picture is in use.
    """
    most = completeness.PCX_PALETTE_BYTES
    stream.seek(0)
    if len(start := stream.read(most)) < most:  # before such files Pillow may look for colours
        stream = io.BytesIO(start)
    if start.startswith(_EPS):
        raise refusals.drawing("EPS", path)
    icon = icons.is_icon(start)
    stream = icons.rebuilt(stream, path) if icon else stream
    with _one_at_a_time, quietly(), _at_most(ICON_PIXELS if icon else refusals.MAX_PIXELS):
        for one in chain((stream,), structure.embedded_images(stream)):
            png.check_chunks(one, path)
            parsing_limits.check(one, path)
        image = Image.open(shared_stream.reader(stream)) if icon else _opened(stream, path)
        refusals.check_format(image, path)
        refusals.check_size(image, str(path))
        yield image, stream


def _opened(stream: BinaryIO, path: Path) -> ImageFile.ImageFile:
    """What Pillow finds; of too many pixels, it is said how many there are. Raises PictureError."""
    formats = _formats(stream)
    try:
        return Image.open(shared_stream.reader(stream), formats=formats)
    except Image.DecompressionBombError:
        with _at_most(2**63):
            image = Image.open(shared_stream.reader(stream), formats=formats)
        refusals.check_format(image, path)
        width, height = image.size
        if image.format in ("BMP", "DIB") and width >= 2**31:  # which Pillow takes for a large one
            image._size = width - 2**32, height
        refusals.check_size(image, str(path))
        raise


def _formats(stream: BinaryIO) -> list[str] | None:
    """Those that it may be of, or None for all. Pillow takes lines of text for the header of an IM
    picture, however many there are."""
    stream.seek(0)
    head = stream.read(_IM_HEAD)
    if len(head) < _IM_HEAD or not head.lstrip(b"\r")[:1].isalpha() or _IM_END.search(head):
        return None
    Image.preinit()  # in the order in which Pillow tries them
    Image.init()
    return [name for name in Image.ID if name != "IM"]


def reread(image: Image.Image, path: Path, notes: list[str]) -> Image.Image:
    """The picture of a Pillow image, loaded: from its file, if it was not loaded before.

    So it is what `read` gives for the file, but for metadata that were changed since. Raises
    PictureError.
    """
    stream, fresh = getattr(image, "fp", None), _is_fresh(image)
    if stream is None or stream.closed:
        stream = None
        if fresh and image.format not in _OUTLIVING:
            hint = "encode it before its file is closed, or load it before"
            raise PictureError(f"{path} was closed before it was read", hint=hint)
    elif image.format == "FTEX":  # which has the pixels alone there
        stream = None
    if not fresh or stream is None:
        with refusals.explained(io.BytesIO(), path):
            image.load()
        misread.check(image, path)
        if image.format == "TIFF":  # which Pillow has turned by its tag, and that is gone
            _set_upright(image)
        return _whole(misread.positive(image), bit_depth.depth(image), notes)
    with refusals.explained(stream, path), _one_at_a_time, quietly(), _at_most(refusals.MAX_PIXELS):
        place = stream.tell()
        try:
            again = Image.open(shared_stream.reader(stream))
            if again.tell() != image.tell():
                again.seek(image.tell())
            if (again.size, again.mode) != (image.size, image.mode):  # drafted, to be smaller
                image.load()
                return image
            before = dict(again.info)
            loaded = _decoded(again, stream, path, notes)
        finally:
            if not stream.closed:
                stream.seek(place)
    if before.get("exif") != image.info.get("exif"):
        loaded._exif = None  # which Pillow has made of the file's
    removed = before.keys() - image.info.keys()
    kept = {name: value for name, value in loaded.info.items() if name not in removed}
    told = image.info.items()
    loaded.info = kept | {name: value for name, value in told if before.get(name) != value}
    return loaded


def _is_fresh(image: Image.Image) -> bool:
    """Whether it was opened, and not loaded since."""
    late = image.format in _LATE and image._im is None
    return isinstance(image, ImageFile.ImageFile) and (late or bool(image.tile))


def _decoded(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """The same picture with its pixels, of which no more are decoded than it says to have."""
    refusals.check_size(image, str(path))
    misread.check(image, path, stream)
    claimed_size.check(image, stream, path)
    png.check_pixels(image, stream, path, notes)
    if told := colours.lost(image, stream):
        notes.append(told)
    if image.format == "JPEG2000":
        completeness.check_jpeg2000(stream, path)
    if image.format == "PCX":
        completeness.check_pcx(image, stream, path)
    # No picture inside of it, as icons and others have, may be larger than the whole.
    tiff = image.format == "TIFF"
    with _at_most(image.width * image.height), silent_libraries(tiff) as complaint:
        image = _by_libtiff(image, stream)
        if tiff:
            _check_tiles(image, path)
        decoded = _load(image, stream, path, notes)
        if told := complaint():  # of what Pillow takes for sound
            notes.append(f"the file is damaged, so the picture may be as well: {printable(told)}")
        return decoded


def endings() -> set[str]:
    """How names of pictures that can be read usually end: with a dot, in lower case.

    Compressed files are none, also where somebody has Pillow open them.
    """
    known = Image.registered_extensions()
    kinds = Image.OPEN.keys() - refusals.DRAWINGS - refusals.STUBS
    return {name for name, kind in known.items() if kind in kinds} - {*OWN}


def pixel_count(path: Path) -> int:
    """How many a file says that it has; 0 if it does not say, for whatever reason."""
    try:
        with path.open("rb") as file, _within_limits(file, path) as (image, _):
            return image.width * image.height
    except Exception:  # which is told when its turn comes
        return 0


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
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = refusals.TEXT
    try:
        yield
    finally:
        PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = text
        Image.MAX_IMAGE_PIXELS = before


def _check_tiles(image: ImageFile.ImageFile, path: Path) -> None:
    """Refuse a TIFF whose tiles are far larger than the picture, or do not cover it all.

    Of these libtiff refuses those that it reads; Pillow itself takes what is missing for black,
    and the file's first bytes for the pixels of a tile that it does not have.
    """
    if any(one.codec_name == "raw" and one.offset == 0 for one in image.tile) or _gaps(image):
        problem = f"{path} is damaged, or omits parts that are black: some pixels are missing"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TILE_WIDTH), tags.get(_TILE_HEIGHT)
    if not isinstance(width, int) or not isinstance(height, int):
        return
    if width * height > TILE_SHARE * max(image.width * image.height, TILE_PIXELS):
        size = f"{image.width}×{image.height}"
        problem = f"{path} has tiles of {width}×{height} pixels for a picture of {size}"
        raise PictureError(problem, hint=refusals.convert_hint(path))


def _gaps(image: ImageFile.ImageFile) -> bool:
    """Whether its tiles have fewer pixels than it has."""
    width, height = image.size[::-1] if _is_sideways(image) else image.size
    covered = 0
    for one in image.tile:
        left, top, right, bottom = one.extents or (0, 0, width, height)
        covered += max(0, min(right, width) - left) * max(0, min(bottom, height) - top)
    return covered < width * height


# --- pixels ---


def _load(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """The same picture with its pixels decoded, and of 16 bits if it says so."""
    bits, told = bit_depth.depth(image, stream), bit_depth.by_upper_bits(image)
    gray = any("LA;16B" in tile[3:] for tile in image.tile)  # which Pillow makes RGBA
    exif = tiff_exif.of_image(image) if image.format == "TIFF" else None
    turned = _ORIENTATION in getattr(image, "tag_v2", {})
    _turn_resolution(image)
    misread.mend(image, stream)
    keyed = bits == 16 and not image.mode.startswith("I") and "transparency" in image.info
    if keyed and (image.format != "PNG" or image.tell() > 0):
        problem = f"Pillow misreads {path}, which has 16 bits per sample and a transparent colour"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    if bit_depth.is_misread(image, bits):
        problem = f"{path} has {bits} bits per sample, and Pillow reads some white as black"
        raise PictureError(problem, hint=refusals.convert_hint(path))
    loaded = misread.mended(_pixels(image, stream, path, notes), stream, path, notes)
    if loaded.mode == "P" and loaded.palette is None:  # of a picture inside of an icon
        loaded.palette = ImagePalette.raw("RGB", loaded.im.getpalette("RGB"))
    if exif:
        loaded.info["exif"] = exif
    if turned:
        _set_upright(loaded)
    if gray:
        loaded = loaded.convert("LA")
    return _whole(loaded, bits, notes, told)


def _whole(
    loaded: Image.Image, bits: int, notes: list[str], told: str = bit_depth.UPPER_BITS
) -> Image.Image:
    """A loaded picture whose gray of more than 8 bits is what it should be."""
    if 8 < bits <= 16:
        notes.append(told.format(bits))
    return bit_depth.spread(loaded, bits)


def _pixels(
    image: ImageFile.ImageFile, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """The picture, loaded; a JPEG's only if none of its pixels are missing. Raises OSError."""
    if image.format not in ("JPEG", "MPO"):
        _load_others(image)
        return image
    stream.seek(image.tile[0].offset if image.tile else 0)  # of its frame, if it has a scan
    jpeg = completeness.parse_jpeg(stream.read())
    jpeg.check(image.size, path)
    if not jpeg.has_end:
        notes.append(png.END_MISSING)
    return jpeg.load_complete(image, lambda data: Image.open(io.BytesIO(data), formats=["JPEG"]))


def _load_others(image: ImageFile.ImageFile) -> None:
    kind = image.info.get("compression")
    try:
        image.load()
    except OSError as error:
        if image.format != "TIFF" or kind in _USUAL:
            raise
        raise OSError(f"compression {kind} is not supported, or damaged") from error


def _by_libtiff(image: ImageFile.ImageFile, stream: BinaryIO) -> ImageFile.ImageFile:
    """The same, but a TIFF that is not compressed is left to libtiff where Pillow misreads it."""
    if not misread.is_for_libtiff(image) or any(tile[0] != "raw" for tile in image.tile):
        return image
    page, before = image.tell(), TiffImagePlugin.READ_LIBTIFF
    TiffImagePlugin.READ_LIBTIFF = True
    try:
        again = Image.open(shared_stream.reader(stream))
        again.seek(page)
        return again
    finally:
        TiffImagePlugin.READ_LIBTIFF = before


def _turn_resolution(image: Image.Image) -> None:
    """Of a TIFF on its side: Pillow turns its pixels as it loads them, and nothing else."""
    if _is_sideways(image) and "dpi" in image.info:
        image.info["dpi"] = image.info["dpi"][::-1]


def _set_upright(image: Image.Image) -> None:
    """Of a TIFF that Pillow has turned: its XMP data are not to turn it again."""
    if isinstance(xmp := image.info.get("xmp"), bytes):
        image.info["xmp"] = metadata.upright_xmp(xmp)


def _is_sideways(image: Image.Image) -> bool:
    orientation: object = getattr(image, "tag_v2", {}).get(_ORIENTATION)
    return orientation in (5, 6, 7, 8)
