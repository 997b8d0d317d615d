"""The bits per sample of a picture file, and what Pillow does to samples of more than 8 bits.

Pillow reports the depth of few formats, and reduces colours to 8 bits silently.
"""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image, ImageFile

from imgmlp.image_io.structure import CODESTREAM_START

UPPER_BITS = "samples of {} bits are reduced to their upper 8 bits"
ROUNDED = "samples of {} bits are rounded to 8 bits"
_HEAD_BYTES = 2**24  # in which a file is searched for its depth
# TIFF tags
_TAG_BITS_PER_SAMPLE = 258
_TAG_PHOTOMETRIC = 262
# In a JPEG 2000's codestream: Csiz, the number of components, and Ssiz, the depth of the first one,
# less 1. The following ones are 3 bytes apart (ITU T.800, A.5.1).
_CSIZ_OFFSET = 40
_SSIZ_OFFSET = 42
_AV1_CONFIGURATION = b"av1C"  # a box of AVIF (AV1-ISOBMFF 2.3.3)


def depth(image: Image.Image, stream: BinaryIO | None = None) -> int:
    """Bits per sample of an open image; 8 if it has fewer or the number is unknown.

    `stream` is its file, if there is one.
    """
    if image.format == "TIFF":
        tag = getattr(image, "tag_v2", {}).get(_TAG_BITS_PER_SAMPLE)
        bits = tag if isinstance(tag, tuple) else (tag,)
        return max(8, *(bit for bit in bits if isinstance(bit, int)), 0)
    if stream is not None and image.format in ("JPEG2000", "AVIF"):
        stream.seek(0)
        head = stream.read(_HEAD_BYTES)
        return _jpeg2000_depth(head) if image.format == "JPEG2000" else _avif_depth(head)
    for tile in getattr(image, "tile", ()):
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        # 16-bit samples, unlike "BGR;16" with 16 bits per pixel
        if any(isinstance(arg, str) and arg.endswith((";16B", ";16L", ";16N")) for arg in args):
            return 16
        if image.format == "PPM":
            return max(8, *(arg.bit_length() for arg in args if isinstance(arg, int)), 0)
    return 16 if image.mode.startswith("I;16") else 8


def _jpeg2000_depth(head: bytes) -> int:
    codestream = head.find(CODESTREAM_START)
    if codestream < 0:
        raise OSError("it has no codestream")
    field = head[codestream + _CSIZ_OFFSET : codestream + _SSIZ_OFFSET]
    depths = head[codestream + _SSIZ_OFFSET :: 3][: int.from_bytes(field)]
    return max(8, *((depth & 127) + 1 for depth in depths), 0)  # bit 7 is the sign


def _avif_depth(head: bytes) -> int:
    offset = head.find(_AV1_CONFIGURATION)
    flags = head[offset + 6] if 0 <= offset < len(head) - 6 else 0
    high_bitdepth, twelve_bit = flags >> 6 & 1, flags >> 5 & 1
    return 8 + 2 * high_bitdepth + 2 * (high_bitdepth & twelve_bit)


def by_upper_bits(image: ImageFile.ImageFile) -> str:
    """Have Pillow reduce the colours of a PPM to their upper 8 bits, where it can. Returns the note
    about what it does to the samples: UPPER_BITS or ROUNDED.

    By default Pillow rounds colours of a PPM. It also rounds if the maximum is another number than
    65,535 in colours, or than 2ⁿ - 1 in gray.
    """
    if image.format != "PPM" or not image.tile or image.tile[0][0] == "raw":
        return UPPER_BITS
    decoder, extents, offset, args = image.tile[0]
    if decoder == "ppm" and args == ("RGB", 65535):
        image.tile = [ImageFile._Tile("raw", extents, offset, "RGB;16B")]
        return UPPER_BITS
    is_exact = image.mode == "I" and isinstance(args, tuple) and args[1] & (args[1] + 1) == 0
    return UPPER_BITS if is_exact else ROUNDED


def is_misread(image: Image.Image, bits: int) -> bool:
    """Whether Pillow turns the brightest samples black: in a JPEG 2000 of more than 8 bits, except
    16-bit gray.

    Pillow rounds to 8 bits without clamping, so that 255.5 becomes 0.
    """
    return image.format == "JPEG2000" and bits > (16 if image.mode == "I;16" else 8)


def spread(image: Image.Image, bits: int) -> Image.Image:
    """A loaded image whose gray samples of 12 or 16 bits range from 0 (black) to 65535."""
    if not image.mode.startswith("I;16") or image.format != "TIFF":
        return image
    # WhiteIsZero, which Pillow does not invert
    is_inverted = getattr(image, "tag_v2", {}).get(_TAG_PHOTOMETRIC) == 0
    if bits == 12:
        image = image.point(lambda value: value * 16 + 0)
    return image.point(lambda value: value * -1 + 65535) if is_inverted else image
