"""How many bits samples of a picture file have, and what Pillow makes of more than 8.

It tells that of few files, and cuts the samples of colours to 8 bits without a word.
"""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image, ImageFile

from imgmlp.image_io.structure import CODESTREAM_START

UPPER_BITS = "samples of {} bits are reduced to their upper 8 bits"
ROUNDED = "samples of {} bits are rounded to 8 bits"
_HEAD = 2**24  # bytes in which a file says it
_BITS, _PHOTOMETRIC = 258, 262  # TIFF's tags
_J2K_DEPTH = 42  # bytes on, of its first component, less 1; each has 3 bytes
_AV1 = b"av1C"  # a box of AVIF (AV1-ISOBMFF 2.3.3)


def depth(image: Image.Image, stream: BinaryIO | None = None) -> int:
    """Bits of a sample of an open picture, where it is known that they are more than 8; else 8.

    `stream` is its file, if there is one. "BGR;16" has 16 bits a pixel.
    """
    if image.format == "TIFF":
        tag = getattr(image, "tag_v2", {}).get(_BITS)
        bits = tag if isinstance(tag, tuple) else (tag,)
        return max(8, *(bit for bit in bits if isinstance(bit, int)), 0)
    if stream is not None and image.format in ("JPEG2000", "AVIF"):
        stream.seek(0)
        head = stream.read(_HEAD)
        return _jpeg2000(head) if image.format == "JPEG2000" else _avif(head)
    for tile in getattr(image, "tile", ()):
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(isinstance(arg, str) and arg.endswith((";16B", ";16L", ";16N")) for arg in args):
            return 16
        if image.format == "PPM":
            return max(8, *(arg.bit_length() for arg in args if isinstance(arg, int)), 0)
    return 16 if image.mode.startswith("I;16") else 8


def _jpeg2000(head: bytes) -> int:
    at = head.find(CODESTREAM_START)
    if at < 0:
        raise OSError("it has no codestream")
    bits = head[at + _J2K_DEPTH :: 3][: int.from_bytes(head[at + 40 : at + 42])]
    return max(8, *((bit & 127) + 1 for bit in bits), 0)


def _avif(head: bytes) -> int:
    at = head.find(_AV1)
    flags = head[at + 6] if 0 <= at < len(head) - 6 else 0
    high, twelve = flags >> 6 & 1, flags >> 5 & 1
    return 8 + 2 * high + 2 * (high & twelve)


def by_upper_bits(image: ImageFile.ImageFile) -> str:
    """Have Pillow take these of a PPM's colours, where it can; what is told of what it does.

    It would round them, as it does where white is another number than 65,535, in gray than 2ⁿ - 1.
    """
    if image.format != "PPM" or not image.tile or image.tile[0][0] == "raw":
        return UPPER_BITS
    name, box, place, args = image.tile[0]
    if name == "ppm" and args == ("RGB", 65535):
        image.tile = [ImageFile._Tile("raw", box, place, "RGB;16B")]
        return UPPER_BITS
    exact = image.mode == "I" and isinstance(args, tuple) and args[1] & (args[1] + 1) == 0
    return UPPER_BITS if exact else ROUNDED


def is_misread(image: Image.Image, bits: int) -> bool:
    """Whether Pillow takes the brightest samples for black: of deep JPEG 2000 in colours.

    It rounds them to 8 bits, and 255.5 becomes 0.
    """
    return image.format == "JPEG2000" and bits > (16 if image.mode == "I;16" else 8)


def spread(image: Image.Image, bits: int) -> Image.Image:
    """A loaded picture whose gray of 12 or 16 bits goes from 0 for black to 65535."""
    if not image.mode.startswith("I;16") or image.format != "TIFF":
        return image
    inverted = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0  # which Pillow leaves so
    if bits == 12:
        image = image.point(lambda value: value * 16 + 0)
    return image.point(lambda value: value * -1 + 65535) if inverted else image
