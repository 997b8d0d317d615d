"""What a file says of its colours without a colour profile: made one, or told to be left out.

Knows nothing of pixels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from imgmlp.image_io.structure import chunks

MADE = "a colour profile was made of its gamma and primaries"
# sRGB's gamma as a PNG says it, and x, y of its white, red, green and blue. What is as near as
# libpng asks for is taken for them: a share of the one, a difference of the others.
_GAMMA, _SHARE = 0.45455, 0.05
_ENDS, _DIFFERENCE = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06), 0.01
_STEEPEST = 16  # a gamma, or one over it, that makes sense
_D50 = np.array([0.9642, 1, 0.8249])  # X, Y, Z of white in a profile (ICC.1:2001-04, 6.1.11)
_CONES = np.array(  # Bradford's, from X, Y, Z
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)
_HEAD = 2**24  # bytes in which an AVIF is looked at
_NUMBERS = re.compile(rb"colrnclx(....)", re.DOTALL)
# Of primaries and of transfers (ITU-T H.273, 8.1 and 8.2): unknown ones, and what passes for sRGB.
_PRIMARIES, _TRANSFERS = (1, 2), (1, 2, 6, 13, 14, 15)


def lost(image: Image.Image, stream: BinaryIO) -> str:
    """Says that the numbers by which a PNG or an AVIF names its colours are not kept; nothing if
    they name those that are taken for granted."""
    numbers = None
    if image.format == "PNG":
        payloads = (stream.read(2) for chunk in chunks(stream, png=True) if chunk.type == b"cICP")
        numbers = next(payloads, None)
    elif image.format == "AVIF" and not image.info.get("icc_profile"):  # which goes before them
        stream.seek(0)
        said = _NUMBERS.search(stream.read(_HEAD))
        numbers = said and said[1][1::2]
    if not numbers or len(numbers) < 2:
        return ""
    primaries, transfer = numbers
    if primaries in _PRIMARIES and transfer in _TRANSFERS:
        return ""
    named = f"primaries {primaries} and transfer {transfer} (ITU-T H.273)"
    return f"its colour space, {named}, is not kept; its colours may look different"


def profile(info: Mapping[Any, Any], gray: bool) -> bytes | None:
    """A colour profile that says what Pillow's `info` of a PNG does of gamma and primaries.

    None if they are those of sRGB, or make no sense.
    """
    try:
        gamma = float(info.get("gamma", _GAMMA))
        ends = np.array(info.get("chromaticity", _ENDS), float)
        sound = ends.shape == (8,) and 1 / _STEEPEST <= gamma <= _STEEPEST and ends[1::2].all()
        usual = abs(gamma - _GAMMA) <= _SHARE * _GAMMA
        usual = usual and (gray or bool((abs(ends - _ENDS) <= _DIFFERENCE).all()))
        if "srgb" in info or not sound or usual:
            return None
        curve = b"curv" + struct.pack(">4xIH2x", 1, round(256 / gamma))
        tags = {b"wtpt": _xyz(_D50)}
        if gray:
            return _icc(b"GRAY", tags | {b"kTRC": curve})
        for name, column in zip((b"r", b"g", b"b"), _columns(ends.reshape(4, 2)).T, strict=True):
            tags |= {name + b"XYZ": _xyz(column), name + b"TRC": curve}
        return _icc(b"RGB ", tags)
    except (TypeError, ValueError, OverflowError, struct.error):  # of what a program put there
        return None


def _columns(ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """X, Y, Z [3, of red, green and blue] where white is D50, of x, y [4, 2]. Raises ValueError."""
    white, *colours = (np.array([x, y, 1 - x - y]) / y for x, y in ends)
    columns = np.stack(colours, axis=1)
    columns = columns * np.linalg.solve(columns, white)
    adapted = np.diag((_CONES @ _D50) / (_CONES @ white)) @ _CONES @ columns
    return np.linalg.solve(_CONES, adapted)


def _xyz(values: np.ndarray[Any, Any]) -> bytes:
    return b"XYZ " + struct.pack(">4x3i", *(round(65536 * float(value)) for value in values))


def _icc(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """A display's profile with these tags, and those that each must have (ICC.1:2001-04, 6)."""
    name = b"gamma and primaries of a PNG\0"
    described = b"desc" + struct.pack(">4xI", len(name)) + name + bytes(78)
    tags = {b"desc": described, b"cprt": b"text" + bytes(4) + b"none\0"} | tags
    at, table, body = 132 + 12 * len(tags), b"", b""
    for tag, data in tags.items():
        table += tag + struct.pack(">II", at + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    kind = struct.pack(">4s4s4s", b"mntr", space, b"XYZ ")
    made = struct.pack(">6H", 2000, 1, 1, 0, 0, 0)
    head = struct.pack(">8xI", 0x2100000) + kind + made + b"acsp" + bytes(28) + _xyz(_D50)[8:]
    head = struct.pack(">I", at + len(body)) + head[4:]
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body
