"""Files whose pixels Pillow silently misreads: corrected where that is simple, else refused.

Each function handles one format; fields are named by its specification.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageChops, ImageFile, ImageOps, ImagePalette

from imgmlp.errors import PictureError
from imgmlp.image_io.refusals import convert_hint
from imgmlp.image_io.structure import CODESTREAM_START, chunks, skip_gif_colour_table

NOTE_ALPHA_DROPPED = "its header denies alpha, so the last 8 of each pixel's 32 bits were dropped"
NOTE_BEYOND_PALETTE = "pixels whose index is beyond its palette are black"
NOTE_PCX_COLOURS_IGNORED = (
    "it is read as black and white; the two colours in its header are ignored"
)
_SUN_RUN_LENGTH_ENCODED = 2  # the image type of a Sun raster file
_SUN_PADDING_FIRST = {"BGRX": "XBGR", "RGBX": "XRGB"}  # Pillow's raw modes, and the correct ones
_XPM_COLOUR = re.compile(rb"[\t ]c[\t ]+#([0-9A-Fa-f]+)")
_PNG_BIT_DEPTH_OFFSET = 24  # bytes
_GIF_DISPOSE_TO_BACKGROUND = 2
_APNG_DISPOSE_TO_PREVIOUS = 2
_APNG_BLEND_SOURCE = 0
_JP2_LAB = re.compile(rb"colr\x01..\0\0\0\x0e", re.DOTALL)
_JP2_HEADER_BYTES = 2**24  # within which a JPEG 2000 file defines its channels
_WHITE_BY_RAW_MODE = {"L;2": 3, "L;4": 15}  # the largest sample, by Pillow's raw mode
_TIFF_PHOTOMETRIC = 262  # this and the following ones are tags
_TIFF_STRIP_BYTE_COUNTS = 279
_TIFF_PLANAR_CONFIGURATION = 284
_TIFF_COLOUR_MAP = 320
_TIFF_SAMPLE_FORMAT = 339
_TIFF_YCBCR_SUBSAMPLING = 530
_TIFF_IS_YCBCR = 6  # a value of the tag for photometric interpretation
_TIFF_SIGNED_INTEGER = 2  # a value of the tag for sample format
_PSD_MULTICHANNEL = 7  # a colour mode
_PCX_VERSIONS_WITH_PALETTE = (2, 5)  # they have colours in the header
_BMP_BITFIELDS = 3  # a compression method: the header has bit masks
_BMP_ALPHA_MASK = 0x8000  # of pixels of 16 bits
_RAW_MODE_BY_INDEX_BITS = {1: "P;1", 4: "P;4", 8: "P"}  # Pillow's raw modes of palette pictures
_MODES_WITH_SWAPPED_PLANES = ("LA", "La", "PA", "LAB")  # Pillow misplaces separate planes of these


def check(image: Image.Image, path: Path, stream: BinaryIO | None = None) -> None:
    """Refuse, as a PictureError, an open image whose pixels Pillow would misread.

    `stream` is its file; None if the image has been loaded already.
    """
    if image.format == "CUR":  # files are read as rebuilt icons instead
        hint = "give the file's name instead"
        raise PictureError(f"Pillow misreads {path}, a cursor with a mask", hint=hint)
    fault = _tiff_fault(image) if image.format == "TIFF" else ""
    if (
        stream is not None
        and isinstance(image, ImageFile.ImageFile)
        and image.format in _FAULT_BY_FORMAT
    ):
        stream.seek(0)
        fault = _FAULT_BY_FORMAT[image.format](image, stream)
    if fault:
        raise PictureError(f"Pillow misreads {path}, {fault}", hint=convert_hint(path))
    if stream is None and (fault := _loaded_tiff_fault(image)):
        hint = "give the file's name instead, or the image before it is loaded"
        raise PictureError(f"Pillow misreads {path}, {fault}", hint=hint)
    if _is_signed(image):
        hint = "convert it to unsigned samples of 8 or 16 bits first"
        problem = f"{path} has signed samples, whose range is unknown"
        raise PictureError(problem, hint=hint)


def _is_signed(image: Image.Image) -> bool:
    """Whether samples are signed, but Pillow reads them as unsigned: 8-bit TIFF, 16-bit FITS."""
    formats = _tiff_tag(image, _TIFF_SAMPLE_FORMAT)
    signed = image.mode == "L" and isinstance(formats, tuple) and _TIFF_SIGNED_INTEGER in formats
    return signed or (image.format == "FITS" and image.mode == "I;16")


def correct_decoding(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """Change how Pillow decodes an open, unloaded image, where it would misread it."""
    if image.format == "PNG":
        _scale_transparent_gray(image)
    elif image.format in ("BMP", "DIB"):
        _correct_bmp(image, stream)
    elif image.format == "PCX":
        _use_header_row_length(image, stream)
    elif image.format == "SUN":
        _move_padding_first(image)
    elif image.format == "TIFF" and (colours := _narrow_tiff_palette(image)):
        image.palette = ImagePalette.raw("RGB;L", colours)


def correct_pixels(
    loaded: Image.Image, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """A loaded image with correct pixels. Appends losses to `notes`. Raises PictureError."""
    if loaded.mode == "P" and _has_indices_beyond_palette(loaded):
        notes.append(NOTE_BEYOND_PALETTE)
    if loaded.format == "PNG" and isinstance(loaded.info.get("transparency"), tuple):
        _apply_16_bit_transparency(loaded, stream)
    if loaded.format == "TGA":
        return _without_undeclared_alpha(loaded, stream, path, notes)
    if loaded.format == "PSD":
        _note_ignored_psd_channels(loaded, stream, notes)
    if loaded.format == "PCX" and loaded.mode == "1":
        _note_ignored_pcx_colours(stream, notes)
    return without_inversion(loaded)


def without_inversion(loaded: Image.Image) -> Image.Image:
    """A loaded image, inverted if Pillow reads a negative of it: in 1-bit XBM and PSD, 1 is
    black."""
    negative = loaded.mode == "1" and loaded.format in ("PSD", "XBM")
    return ImageOps.invert(loaded) if negative else loaded


def _has_indices_beyond_palette(loaded: Image.Image) -> bool:
    """Whether visible pixels have an index beyond the end of the palette."""
    counts, key = loaded.histogram(), loaded.info.get("transparency")
    if isinstance(key, int):
        counts[key] = 0
    return any(counts[len(loaded.getpalette() or ()) // 3 :])


# --- PNG ---


def _scale_transparent_gray(image: ImageFile.ImageFile) -> None:
    """Scale the transparent value of gray PNGs of 2 or 4 bits: Pillow scales the samples only."""
    key, args = image.info.get("transparency"), image.tile[0].args if image.tile else ""
    if isinstance(key, int) and args in _WHITE_BY_RAW_MODE:
        white = _WHITE_BY_RAW_MODE[args]
        image.info["transparency"] = (key & white) * (255 // white)


def _apply_16_bit_transparency(loaded: Image.Image, stream: BinaryIO) -> None:
    """Compare all 16 bits of samples with the transparent colour: Pillow compares only 8."""
    stream.seek(_PNG_BIT_DEPTH_OFFSET)
    if stream.read(1) != b"\x10":
        return
    lower = Image.open(stream, formats=["PNG"])
    # "L" for little endian: takes the lower bytes of the samples for the upper ones
    lower.tile = [tile._replace(args="RGB;16L") for tile in lower.tile]
    lower.load()
    key = loaded.info.pop("transparency")
    key_bytes = (*(value >> 8 for value in key), *(value & 255 for value in key))
    matches = (
        band.point([255 * (value == key_byte) for value in range(256)])
        for band, key_byte in zip((*loaded.split(), *lower.split()), key_bytes, strict=True)
    )
    loaded.putalpha(ImageOps.invert(reduce(ImageChops.darker, matches)))


def _png_fault(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse an animation with a default picture: Pillow draws the frames over it.

    This does no harm if the first frame replaces the whole picture for good.
    """
    if image.tell() == 0 or not getattr(image, "default_image", False):
        return ""
    whole_image = struct.pack(">4I", *image.size, 0, 0)  # width, height, x and y offset
    controls = (stream.read(26) for chunk in chunks(stream, png=True) if chunk.type == b"fcTL")
    first = next(controls, b"").ljust(26)
    replaces = (
        first[4:20] == whole_image
        and first[24] != _APNG_DISPOSE_TO_PREVIOUS
        and first[25] == _APNG_BLEND_SOURCE
    )
    return "" if replaces else "whose frames are drawn over a default picture that is no frame"


# --- BMP ---


def _correct_bmp(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """Correct the index size of gray palettes, and keep alpha in pixels of 16 bits.

    If the palette is gray, Pillow ignores how many bits an index has. Of 16 bits with 5 per colour
    it drops the last, even if a mask declares it to be alpha.
    """
    stream.seek(14 if image.format == "BMP" else 0)
    head = stream.read(56)
    size = int.from_bytes(head[:4], "little")
    (tile,) = image.tile
    raw_mode, *others = tile.args if isinstance(tile.args, tuple) else (tile.args,)
    if image.mode in ("1", "L"):
        bits = int.from_bytes(head[10:12] if size == 12 else head[14:16], "little")
        if bits != (1 if image.mode == "1" else 8):
            grays = (0, 255) if image.mode == "1" else range(2**bits)
            image._mode = "P"
            image.palette = ImagePalette.raw("RGB", bytes(n for gray in grays for n in 3 * [gray]))
            image.tile = [tile._replace(args=(_RAW_MODE_BY_INDEX_BITS[bits], *others))]
    elif raw_mode == "BGR;15" and size >= len(head) and _has_alpha_bit(head):
        image._mode = "RGBA"
        image.tile = [tile._replace(args=("BGRA;15", *others))]


def _has_alpha_bit(head: bytes) -> bool:
    has_masks = int.from_bytes(head[16:20], "little") == _BMP_BITFIELDS
    return has_masks and int.from_bytes(head[52:], "little") == _BMP_ALPHA_MASK


# --- GIF ---


def _gif_fault(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse frames whose disposal Pillow gets wrong.

    If the first frame has no alpha, Pillow has none to clear later frames with. It takes the
    disposal "unspecified" for that of the frame before.
    """
    first, *others = [*islice(_gif_frame_controls(stream), image.tell())] or [(0, False)]
    methods = [method for method, _ in (first, *others)]
    if any(
        before >= _GIF_DISPOSE_TO_BACKGROUND and method == 0 for before, method in pairwise(methods)
    ):
        return "whose frames do not all say how they are disposed of"
    if not first[1] and any(
        method == _GIF_DISPOSE_TO_BACKGROUND and has_alpha for method, has_alpha in others
    ):
        return "whose frames are cleared although the first has no alpha"
    return ""


def _gif_frame_controls(stream: BinaryIO) -> Iterator[tuple[int, bool]]:
    """Each frame's disposal method, and whether it has a transparent colour (GIF89a, 23)."""
    flags = 0
    skip_gif_colour_table(stream, stream.read(13)[10:11])
    while introducer := stream.read(1):
        if introducer == b"!":
            is_graphic_control, blocks = stream.read(1) == b"\xf9", _gif_sub_blocks(stream)
            control = next(blocks, b"")
            flags = control[0] if is_graphic_control and control else flags
            deque(blocks, 0)  # skips the rest
        elif introducer == b",":
            yield flags >> 2 & 7, bool(flags & 1)
            flags = 0
            skip_gif_colour_table(stream, stream.read(9)[8:])
            stream.read(1)
            deque(_gif_sub_blocks(stream), 0)
        elif introducer != b"\0":
            return


def _gif_sub_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The data sub-blocks at the stream's position (GIF89a, 15)."""
    while (size := stream.read(1)) not in (b"", b"\0"):
        yield stream.read(size[0])


# --- PCX ---


def _use_header_row_length(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """Use the row length of the header: Pillow assumes the shortest even number of bytes."""
    stream.seek(0)
    head = stream.read(68)
    row_bytes, min_bytes = int.from_bytes(head[66:], "little"), -(-image.width * head[3] // 8)
    if row_bytes > min_bytes:
        (tile,) = image.tile
        mode = tile.args[0] if isinstance(tile.args, tuple) else tile.args
        image.tile = [tile._replace(args=(mode, head[65] * row_bytes))]


def _note_ignored_pcx_colours(stream: BinaryIO, notes: list[str]) -> None:
    """Note that the two colours of a 1-bit PCX are ignored, as they are by some programs."""
    stream.seek(0)
    head = stream.read(22)
    black, white = head[16:19], head[19:]
    has_palette = head[1] in _PCX_VERSIONS_WITH_PALETTE and black != white
    if has_palette and (black, white) != (b"\0\0\0", b"\xff\xff\xff"):
        notes.append(NOTE_PCX_COLOURS_IGNORED)


# --- Sun ---


def _sun_fault(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse run-length encoded rows with a padding byte, which Pillow does not skip."""
    head = stream.read(24)
    bits, image_type = int.from_bytes(head[12:16]), int.from_bytes(head[20:])
    is_padded = -(-image.width * bits // 8) % 2  # to an even number of bytes
    return "whose rows are padded" if is_padded and image_type == _SUN_RUN_LENGTH_ENCODED else ""


def _move_padding_first(image: ImageFile.ImageFile) -> None:
    """Take the first 8 of a pixel's 32 bits for padding: Pillow takes the last 8."""
    for number, tile in enumerate(image.tile):
        is_tuple = isinstance(tile.args, tuple)
        args = tile.args if isinstance(tile.args, tuple) else (tile.args,)
        if args[0] in _SUN_PADDING_FIRST:
            order = _SUN_PADDING_FIRST[args[0]]
            image.tile[number] = tile._replace(args=(order, *args[1:]) if is_tuple else order)


# --- Targa ---


def _without_undeclared_alpha(
    loaded: Image.Image, stream: BinaryIO, path: Path, notes: list[str]
) -> Image.Image:
    """Drop alpha that the header denies: Pillow takes unrelated bits for it.

    Pictures with one bit of alpha are refused with a PictureError: programs disagree on its
    meaning, and Pillow takes 1 for transparent.
    """
    stream.seek(0)
    head = stream.read(18)
    # 1: colour-mapped, 2: true colour
    image_type, alpha_bits = head[2] & 7, head[17] & 15
    bits = {1: head[7], 2: head[16]}.get(image_type)  # of a colour map entry, or of a pixel
    # Colour maps of 32 bits keep their alpha: Pillow writes them with a header that denies it.
    if bits != 16 and (bits != 32 or image_type == 1 or alpha_bits):
        return loaded
    least, most = loaded.convert("RGBA").getchannel("A").getextrema()
    if least != most and alpha_bits:
        problem = f"Pillow misreads {path}, whose pixels of 16 bits have one bit of alpha"
        raise PictureError(problem, hint=convert_hint(path))
    if least != most and bits == 32:
        notes.append(NOTE_ALPHA_DROPPED)
    return loaded.convert("RGB")


# --- PSD ---


def _psd_fault(_: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse several inks without a colour model, of which Pillow reads only the first."""
    channels, mode = _psd_channels_and_mode(stream)
    return f"which has {channels} inks" if mode == _PSD_MULTICHANNEL and channels > 1 else ""


def _psd_channels_and_mode(stream: BinaryIO) -> tuple[int, int]:
    """The number of channels and the colour mode."""
    stream.seek(0)
    head = stream.read(26)
    return int.from_bytes(head[12:14]), int.from_bytes(head[24:])


def _note_ignored_psd_channels(loaded: Image.Image, stream: BinaryIO, notes: list[str]) -> None:
    channels, used = _psd_channels_and_mode(stream)[0], len(loaded.getbands())
    if channels > used:
        notes.append(f"only the first {used} of its {channels} channels are used")


# --- XPM ---


def _xpm_fault(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse colours of other than 6 digits, of which Pillow reads the last 24 bits."""
    head = stream.read(image.tile[0].offset)
    digits = {len(colour) for colour in _XPM_COLOUR.findall(head)} - {6}
    return f"whose colours have {min(digits)} digits" if digits else ""


# --- JPEG 2000 ---


def _jpeg2000_fault(_: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Refuse CIELab, which Pillow takes for RGB, and reordered channels (ITU T.800, I.5.3)."""
    head = stream.read(_JP2_HEADER_BYTES).partition(CODESTREAM_START)[0]
    if _JP2_LAB.search(head):
        return "whose colours are CIELab"
    definition = head.partition(b"cdef")[2]
    count = min(int.from_bytes(definition[:2]), max(0, len(definition) - 2) // 6)
    channels = list(struct.iter_unpack(">3H", definition[2 : 2 + 6 * count]))
    colours = [number for number, kind, _ in channels if kind == 0]
    moved = any(kind == 0 and place not in (0, number + 1) for number, kind, place in channels)
    before = any(
        kind in (1, 2) and number < max(colours, default=0) for number, kind, _ in channels
    )
    return "whose channels are not in the usual order" if moved or before else ""


# --- TIFF ---


def needs_libtiff(image: Image.Image) -> bool:
    """Whether libtiff must read an uncompressed TIFF, as Pillow's own reader takes it for
    interleaved samples: its planes are separate, or its colours are subsampled."""
    return _has_separate_planes(image) or _is_subsampled(image)


def _has_separate_planes(image: Image.Image) -> bool:
    return _tiff_tag(image, _TIFF_PLANAR_CONFIGURATION) == 2


def _is_subsampled(image: Image.Image) -> bool:
    """Whether YCbCr is subsampled, by the tag for it or, without the tag, by the number of
    bytes."""
    if _tiff_tag(image, _TIFF_PHOTOMETRIC) != _TIFF_IS_YCBCR:
        return False
    if (factors := _tiff_tag(image, _TIFF_YCBCR_SUBSAMPLING)) is not None:
        return factors != (1, 1)
    counts = _tiff_tag(image, _TIFF_STRIP_BYTE_COUNTS)
    return isinstance(counts, tuple) and sum(counts) < 3 * image.width * image.height


def _tiff_fault(image: Image.Image) -> str:
    if _has_separate_planes(image) and image.mode in _MODES_WITH_SWAPPED_PLANES:
        return f"whose planes are separate ({image.mode})"
    compression = image.info.get("compression")
    factors = _tiff_tag(image, _TIFF_YCBCR_SUBSAMPLING)
    if _is_subsampled(image) and factors == (4, 4) and compression != "jpeg":
        return "whose colours are subsampled 4×4"  # read correctly at some sizes only
    return ""


def _loaded_tiff_fault(image: Image.Image) -> str:
    """What is wrong with a loaded image that could have been read correctly from its file."""
    if needs_libtiff(image) and image.info.get("compression") == "raw":
        return "whose planes are separate or whose colours are subsampled"
    return "whose palette has 8 bits per sample" if _narrow_tiff_palette(image) else ""


def _narrow_tiff_palette(image: Image.Image) -> bytes:
    """A TIFF's palette if its samples have 8 bits instead of 16, by libtiff's rule; else b""."""
    palette = _tiff_tag(image, _TIFF_COLOUR_MAP)
    if not isinstance(palette, tuple) or image.mode not in ("P", "PA"):
        return b""
    narrow = all(isinstance(one, int) and 0 <= one < 256 for one in palette)
    return bytes(palette) if narrow and any(palette) else b""


def _tiff_tag(image: Image.Image, tag: int) -> object:
    value: object = getattr(image, "tag_v2", {}).get(tag)
    return value


_FAULT_BY_FORMAT: dict[str, Callable[[ImageFile.ImageFile, BinaryIO], str]] = {  # by format
    "GIF": _gif_fault,
    "JPEG2000": _jpeg2000_fault,
    "PNG": _png_fault,
    "PSD": _psd_fault,
    "SUN": _sun_fault,
    "XPM": _xpm_fault,
}
