"""What Pillow reads wrongly without a word: put right where that takes little, or else refused.

Knows how the formats say what they hold. Knows nothing of what becomes of the pixels.
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
from imgmlp.image_io.structure import CODESTREAM, chunks, skip_colours

UNSAID = "its header denies alpha, so the last 8 of each pixel's 32 bits were dropped"
UNLISTED = "pixels whose index is beyond its palette are black"
OWN_COLOURS = "it is read as black and white; the two colours in its header are ignored"
_SUN_RUNS, _SUN_ORDERS = 2, {"BGRX": "XBGR", "RGBX": "XRGB"}  # a kind; Pillow's names of orders
_XPM_COLOUR = re.compile(rb"[\t ]c[\t ]+#([0-9A-Fa-f]+)")
_PNG_BITS = 24  # where a PNG says how many a sample has
_CLEAR = 2  # how a frame of a GIF may be left
_BACK, _SOURCE = 2, 0  # ways of an animated PNG to leave a frame, and to draw one
_JP2_LAB = re.compile(rb"colr\x01..\0\0\0\x0e", re.DOTALL)
_HEAD = 2**24  # bytes in which a JPEG 2000 says what its channels are
_WHITES = {"L;2": 3, "L;4": 15}  # by Pillow's names of gray of 2 and 4 bits
_PHOTOMETRIC, _STRIP_BYTES, _PLANES, _SUBSAMPLING = 262, 279, 284, 530  # TIFF's tags
_COLOURS, _SAMPLE_FORMAT = 320, 339  # likewise
_YCBCR, _SIGNED = 6, 2
_INKS = 7  # a colour mode of PSD
_PCX_PALETTES = (2, 5)  # versions of PCX that have colours in the header
_BITFIELDS, _ALPHA_BIT = 3, 0x8000  # of a BMP: how masks are announced, and one of them
_LISTED = {1: "P;1", 4: "P;4", 8: "P"}  # Pillow's names of numbers of colours, by their bits
_ALIKE = ("LA", "La", "PA", "LAB")  # modes of which Pillow puts a plane in another one's place


def check(image: Image.Image, path: Path, stream: BinaryIO | None = None) -> None:
    """Refuse, as a PictureError, an open image whose pixels would be others than its file's.

    `stream` is its file, unless it was loaded before.
    """
    if image.format == "CUR":  # which a file's never is
        hint = "give the file's name instead"
        raise PictureError(f"Pillow misreads {path}, a cursor with a mask", hint=hint)
    why = _of_tiff(image) if image.format == "TIFF" else ""
    if stream is not None and isinstance(image, ImageFile.ImageFile) and image.format in _FAULTS:
        stream.seek(0)
        why = _FAULTS[image.format](image, stream)
    if why:
        raise PictureError(f"Pillow misreads {path}, {why}", hint=convert_hint(path))
    if stream is None and (late := _of_loaded_tiff(image)):
        hint = "give the file's name instead, or the image before it is loaded"
        raise PictureError(f"Pillow misreads {path}, {late}", hint=hint)
    if _is_signed(image):
        hint = "convert it to unsigned samples of 8 or 16 bits first"
        problem = f"{path} has signed samples, whose range is unknown"
        raise PictureError(problem, hint=hint)


def _is_signed(image: Image.Image) -> bool:
    """Whether samples are that Pillow takes for others: of TIFFs of 8 bits, and FITS of 16."""
    formats = _tag(image, _SAMPLE_FORMAT)
    signed = image.mode == "L" and isinstance(formats, tuple) and _SIGNED in formats
    return signed or (image.format == "FITS" and image.mode == "I;16")


def mend(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """Have Pillow decode an open image as it should."""
    if image.format == "PNG":
        _scale_key(image)
    elif image.format in ("BMP", "DIB"):
        _bmp(image, stream)
    elif image.format == "PCX":
        _widen_rows(image, stream)
    elif image.format == "SUN":
        _fill_first(image)
    elif image.format == "TIFF" and (colours := _old_colours(image)):
        image.palette = ImagePalette.raw("RGB;L", colours)


def mended(loaded: Image.Image, stream: BinaryIO, path: Path, notes: list[str]) -> Image.Image:
    """A loaded image as its file has it. Says in `notes` what was left out. Raises PictureError."""
    if loaded.mode == "P" and _has_unlisted(loaded):
        notes.append(UNLISTED)
    if loaded.format == "PNG" and isinstance(loaded.info.get("transparency"), tuple):
        _compare_all_bits(loaded, stream)
    if loaded.format == "TGA":
        return _targa(loaded, stream, path, notes)
    if loaded.format == "PSD":
        _psd_left_out(loaded, stream, notes)
    if loaded.format == "PCX" and loaded.mode == "1":
        _pcx_left_out(stream, notes)
    return positive(loaded)


def positive(loaded: Image.Image) -> Image.Image:
    """A loaded image, inverted if Pillow has a negative of it: where 1 is black, as in bitmaps of
    X11 and of Photoshop."""
    negative = loaded.mode == "1" and loaded.format in ("PSD", "XBM")
    return ImageOps.invert(loaded) if negative else loaded


def _has_unlisted(loaded: Image.Image) -> bool:
    """Whether pixels that are seen have a number beyond the list of colours."""
    counts, key = loaded.histogram(), loaded.info.get("transparency")
    if isinstance(key, int):
        counts[key] = 0
    return any(counts[len(loaded.getpalette() or ()) // 3 :])


# --- PNG ---


def _scale_key(image: ImageFile.ImageFile) -> None:
    """Of gray of less than 8 bits: Pillow scales the samples, and not the transparent one."""
    key, args = image.info.get("transparency"), image.tile[0].args if image.tile else ""
    if isinstance(key, int) and args in _WHITES:
        white = _WHITES[args]
        image.info["transparency"] = (key & white) * (255 // white)


def _compare_all_bits(loaded: Image.Image, stream: BinaryIO) -> None:
    """With the transparent colour of 16 bits a sample, of which Pillow has taken the upper 8."""
    stream.seek(_PNG_BITS)
    if stream.read(1) != b"\x10":
        return
    lower = Image.open(stream, formats=["PNG"])
    lower.tile = [one._replace(args="RGB;16L") for one in lower.tile]  # as if these were the upper
    lower.load()
    key = loaded.info.pop("transparency")
    wanted = (*(value >> 8 for value in key), *(value & 255 for value in key))
    alike = (
        band.point([255 * (value == sought) for value in range(256)])
        for band, sought in zip((*loaded.split(), *lower.split()), wanted, strict=True)
    )
    loaded.putalpha(ImageOps.invert(reduce(ImageChops.darker, alike)))


def _png(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Pillow draws an animation over the picture before it, also if that is no part of it.

    It does not matter where the first frame replaces all of it, for good.
    """
    if image.tell() == 0 or not getattr(image, "default_image", False):
        return ""
    whole = struct.pack(">4I", *image.size, 0, 0)
    firsts = (stream.read(26) for one in chunks(stream, png=True) if one.kind == b"fcTL")
    first = next(firsts, b"").ljust(26)
    replaces = first[4:20] == whole and first[24] != _BACK and first[25] == _SOURCE
    return "" if replaces else "whose frames are drawn over a default picture that is no frame"


# --- BMP ---


def _bmp(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """Of one whose list of colours is gray Pillow forgets how many bits a pixel's number has.

    Of 5 bits a colour it drops the 16th, also where a mask says that it is alpha.
    """
    stream.seek(14 if image.format == "BMP" else 0)
    head = stream.read(56)
    size = int.from_bytes(head[:4], "little")
    (one,) = image.tile
    kind, *how = one.args if isinstance(one.args, tuple) else (one.args,)
    if image.mode in ("1", "L"):
        bits = int.from_bytes(head[10:12] if size == 12 else head[14:16], "little")
        if bits != (1 if image.mode == "1" else 8):
            grays = (0, 255) if image.mode == "1" else range(2**bits)
            image._mode = "P"
            image.palette = ImagePalette.raw("RGB", bytes(n for gray in grays for n in 3 * [gray]))
            image.tile = [one._replace(args=(_LISTED[bits], *how))]
    elif kind == "BGR;15" and size >= len(head) and _has_alpha_bit(head):
        image._mode = "RGBA"
        image.tile = [one._replace(args=("BGRA;15", *how))]


def _has_alpha_bit(head: bytes) -> bool:
    masked = int.from_bytes(head[16:20], "little") == _BITFIELDS
    return masked and int.from_bytes(head[52:], "little") == _ALPHA_BIT


# --- GIF ---


def _gif(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Pillow has no alpha to leave a frame with if the first has none, and goes on leaving them so.

    It takes "unspecified" for the way in which the frame before was left.
    """
    first, *others = [*islice(_ways(stream), image.tell())] or [(0, False)]
    ways = [way for way, _ in (first, *others)]
    if any(before >= _CLEAR and way == 0 for before, way in pairwise(ways)):
        return "whose frames do not all say how they are disposed of"
    if not first[1] and any(way == _CLEAR and key for way, key in others):
        return "whose frames are cleared although the first has no alpha"
    return ""


def _ways(stream: BinaryIO) -> Iterator[tuple[int, bool]]:
    """How each frame of a GIF is left, and whether it has a transparent colour (GIF89a, 23)."""
    flags = 0
    skip_colours(stream, stream.read(13)[10:11])
    while kind := stream.read(1):
        if kind == b"!":
            control, blocks = stream.read(1) == b"\xf9", _blocks(stream)
            said = next(blocks, b"")
            flags = said[0] if control and said else flags
            deque(blocks, 0)
        elif kind == b",":
            yield flags >> 2 & 7, bool(flags & 1)
            flags = 0
            skip_colours(stream, stream.read(9)[8:])
            stream.read(1)
            deque(_blocks(stream), 0)
        elif kind != b"\0":
            return


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while (size := stream.read(1)) not in (b"", b"\0"):
        yield stream.read(size[0])


# --- PCX ---


def _widen_rows(image: ImageFile.ImageFile, stream: BinaryIO) -> None:
    """To as many bytes as a plane's are said to have: Pillow goes up to an even number only."""
    stream.seek(0)
    head = stream.read(68)
    said, least = int.from_bytes(head[66:], "little"), -(-image.width * head[3] // 8)
    if said > least:
        (one,) = image.tile
        mode = one.args[0] if isinstance(one.args, tuple) else one.args
        image.tile = [one._replace(args=(mode, head[65] * said))]


def _pcx_left_out(stream: BinaryIO, notes: list[str]) -> None:
    """Says that colours of 1 bit are, as programs do not agree on whether they count."""
    stream.seek(0)
    head = stream.read(22)
    black, white = head[16:19], head[19:]
    given = head[1] in _PCX_PALETTES and black != white
    if given and (black, white) != (b"\0\0\0", b"\xff\xff\xff"):
        notes.append(OWN_COLOURS)


# --- Sun ---


def _sun(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Pillow does not skip the byte that makes the length of a row even, if runs are counted."""
    head = stream.read(24)
    bits, kind = int.from_bytes(head[12:16]), int.from_bytes(head[20:])
    odd = -(-image.width * bits // 8) % 2
    return "whose rows are padded" if odd and kind == _SUN_RUNS else ""


def _fill_first(image: ImageFile.ImageFile) -> None:
    """Of a pixel's 32 bits the first 8 fill it up, where Pillow takes the last."""
    for number, one in enumerate(image.tile):
        several = isinstance(one.args, tuple)
        args = one.args if isinstance(one.args, tuple) else (one.args,)
        if args[0] in _SUN_ORDERS:
            order = _SUN_ORDERS[args[0]]
            image.tile[number] = one._replace(args=(order, *args[1:]) if several else order)


# --- Targa ---


def _targa(loaded: Image.Image, stream: BinaryIO, path: Path, notes: list[str]) -> Image.Image:
    """Without alpha if it says that it has none: Pillow takes other bits for it.

    Refuses, as a PictureError, what has one bit of it: programs do not agree on what it means, and
    Pillow takes 1 for transparent.
    """
    stream.seek(0)
    head = stream.read(18)
    kind, alpha = head[2] & 7, head[17] & 15
    bits = {1: head[7], 2: head[16]}.get(kind)  # of a listed colour, or of a pixel
    if bits != 16 and (bits != 32 or kind == 1 or alpha):  # Pillow lists 32 bits with alpha 0
        return loaded
    least, most = loaded.convert("RGBA").getchannel("A").getextrema()
    if least != most and alpha:
        problem = f"Pillow misreads {path}, whose pixels of 16 bits have one bit of alpha"
        raise PictureError(problem, hint=convert_hint(path))
    if least != most and bits == 32:
        notes.append(UNSAID)
    return loaded.convert("RGB")


# --- PSD ---


def _psd(_: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Of several inks without a model of what they look like together Pillow takes the first."""
    channels, mode = _psd_head(stream)
    return f"which has {channels} inks" if mode == _INKS and channels > 1 else ""


def _psd_head(stream: BinaryIO) -> tuple[int, int]:
    """How many channels there are, and of which colour mode."""
    stream.seek(0)
    head = stream.read(26)
    return int.from_bytes(head[12:14]), int.from_bytes(head[24:])


def _psd_left_out(loaded: Image.Image, stream: BinaryIO, notes: list[str]) -> None:
    channels, taken = _psd_head(stream)[0], len(loaded.getbands())
    if channels > taken:
        notes.append(f"only the first {taken} of its {channels} channels are used")


# --- XPM ---


def _xpm(image: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Pillow takes the last 24 bits of a colour's number."""
    head = stream.read(image.tile[0].offset)
    digits = {len(found) for found in _XPM_COLOUR.findall(head)} - {6}
    return f"whose colours have {min(digits)} digits" if digits else ""


# --- JPEG 2000 ---


def _jpeg2000(_: ImageFile.ImageFile, stream: BinaryIO) -> str:
    """Pillow takes CIELab for RGB, and channels as they come (ITU T.800, I.5.3)."""
    head = stream.read(_HEAD).partition(CODESTREAM)[0]
    if _JP2_LAB.search(head):
        return "whose colours are CIELab"
    said = head.partition(b"cdef")[2]
    count = min(int.from_bytes(said[:2]), max(0, len(said) - 2) // 6)
    channels = list(struct.iter_unpack(">3H", said[2 : 2 + 6 * count]))
    colours = [number for number, kind, _ in channels if kind == 0]
    moved = any(kind == 0 and place not in (0, number + 1) for number, kind, place in channels)
    before = any(
        kind in (1, 2) and number < max(colours, default=0) for number, kind, _ in channels
    )
    return "whose channels are not in the usual order" if moved or before else ""


# --- TIFF ---


def is_for_libtiff(image: Image.Image) -> bool:
    """Whether Pillow itself reads a TIFF wrongly: takes the samples for plain bytes, one by one.

    It does that where planes are separate, and where colours have fewer samples than brightness.
    """
    return _is_apart(image) or _is_subsampled(image)


def _is_apart(image: Image.Image) -> bool:
    return _tag(image, _PLANES) == 2


def _is_subsampled(image: Image.Image) -> bool:
    """Whether a TIFF says so of YCbCr, or says nothing, which means the same, and is as short."""
    if _tag(image, _PHOTOMETRIC) != _YCBCR:
        return False
    if (said := _tag(image, _SUBSAMPLING)) is not None:
        return said != (1, 1)
    counts = _tag(image, _STRIP_BYTES)
    return isinstance(counts, tuple) and sum(counts) < 3 * image.width * image.height


def _of_tiff(image: Image.Image) -> str:
    if _is_apart(image) and image.mode in _ALIKE:
        return f"whose planes are separate ({image.mode})"
    coded = image.info.get("compression")
    if _is_subsampled(image) and _tag(image, _SUBSAMPLING) == (4, 4) and coded != "jpeg":
        return "whose colours are subsampled 4×4"  # right of some sizes only
    return ""


def _of_loaded_tiff(image: Image.Image) -> str:
    """What is read rightly from the file, and cannot be put right any more."""
    if is_for_libtiff(image) and image.info.get("compression") == "raw":
        return "whose planes are separate or whose colours are subsampled"
    return "whose palette has 8 bits per sample" if _old_colours(image) else ""


def _old_colours(image: Image.Image) -> bytes:
    """A TIFF's list of them if it has 8 bits instead of 16, as libtiff finds out; else nothing."""
    found = _tag(image, _COLOURS)
    if not isinstance(found, tuple) or image.mode not in ("P", "PA"):
        return b""
    narrow = all(isinstance(one, int) and 0 <= one < 256 for one in found)
    return bytes(found) if narrow and any(found) else b""


def _tag(image: Image.Image, tag: int) -> object:
    found: object = getattr(image, "tag_v2", {}).get(tag)
    return found


_FAULTS: dict[str, Callable[[ImageFile.ImageFile, BinaryIO], str]] = {  # by format
    "GIF": _gif,
    "JPEG2000": _jpeg2000,
    "PNG": _png,
    "PSD": _psd,
    "SUN": _sun,
    "XPM": _xpm,
}
