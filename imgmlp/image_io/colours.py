"""Colour spaces that a file declares without an ICC profile: converted to a profile, or reported
as lost."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from imgmlp.image_io.structure import chunks

PROFILE_MADE = "a colour profile was made of its gamma and primaries"
# sRGB as a PNG declares it (gAMA, cHRM): gamma; x and y of white, red, green and blue. Values
# within libpng's tolerances are taken for sRGB.
_SRGB_GAMMA = 0.45455
_GAMMA_TOLERANCE = 0.05  # relative
_SRGB_CHROMATICITIES = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
_CHROMATICITY_TOLERANCE = 0.01  # absolute
_MAX_EXPONENT = 16  # of a plausible transfer function; its reciprocal is the minimum
_D50 = np.array([0.9642, 1, 0.8249])  # XYZ of a profile's white (ICC.1:2001-04, 6.1.11)
_BRADFORD = np.array(  # XYZ to cone responses
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)
_AVIF_HEAD_BYTES = 2**24  # in which an AVIF is searched
_NCLX = re.compile(rb"colrnclx(....)", re.DOTALL)  # box of primaries and transfer, 16 bits each
# Code points (ITU-T H.273, 8.1 and 8.2) that mean sRGB, a similar colour space, or "unspecified".
_SRGB_PRIMARIES = (1, 2)
_SRGB_TRANSFERS = (1, 2, 6, 13, 14, 15)


def lost(image: Image.Image, stream: BinaryIO) -> str:
    """A message that the colour space of a PNG or an AVIF, given by code points, is not kept; "" if
    it is close to sRGB."""
    code_points = None
    if image.format == "PNG":
        payloads = (stream.read(2) for chunk in chunks(stream, png=True) if chunk.type == b"cICP")
        code_points = next(payloads, None)
    elif image.format == "AVIF" and not image.info.get("icc_profile"):  # a profile has priority
        stream.seek(0)
        match = _NCLX.search(stream.read(_AVIF_HEAD_BYTES))
        code_points = match and match[1][1::2]
    if not code_points or len(code_points) < 2:
        return ""
    primaries, transfer = code_points
    if primaries in _SRGB_PRIMARIES and transfer in _SRGB_TRANSFERS:
        return ""
    named = f"primaries {primaries} and transfer {transfer} (ITU-T H.273)"
    return f"its colour space, {named}, is not kept; its colours may look different"


def profile(info: Mapping[Any, Any], gray: bool) -> bytes | None:
    """An ICC profile of the gamma and primaries in Pillow's `info` of a PNG.

    None if they are those of sRGB, or implausible.
    """
    try:
        gamma = float(info.get("gamma", _SRGB_GAMMA))
        xy = np.array(info.get("chromaticity", _SRGB_CHROMATICITIES), float)
        has_valid_gamma = 1 / _MAX_EXPONENT <= gamma <= _MAX_EXPONENT
        is_valid = xy.shape == (8,) and has_valid_gamma and xy[1::2].all()
        is_srgb = abs(gamma - _SRGB_GAMMA) <= _GAMMA_TOLERANCE * _SRGB_GAMMA
        differences = abs(xy - _SRGB_CHROMATICITIES)
        is_srgb = is_srgb and (gray or bool((differences <= _CHROMATICITY_TOLERANCE).all()))
        if "srgb" in info or not is_valid or is_srgb:
            return None
        curve = b"curv" + struct.pack(">4xIH2x", 1, round(256 / gamma))
        tags = {b"wtpt": _xyz_tag(_D50)}
        if gray:
            return _icc(b"GRAY", tags | {b"kTRC": curve})
        columns = _primaries_for_d50(xy.reshape(4, 2)).T
        for name, column in zip((b"r", b"g", b"b"), columns, strict=True):
            tags |= {name + b"XYZ": _xyz_tag(column), name + b"TRC": curve}
        return _icc(b"RGB ", tags)
    except (TypeError, ValueError, OverflowError, struct.error):  # any value may be in an `info`
        return None


def _primaries_for_d50(xy: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """XYZ of red, green and blue (the columns of [3, 3]), adapted to a D50 white by Bradford's
    method, from x and y of white, red, green and blue [4, 2]. Raises ValueError."""
    white, *colours = (np.array([x, y, 1 - x - y]) / y for x, y in xy)
    columns = np.stack(colours, axis=1)
    columns = columns * np.linalg.solve(columns, white)
    adapted = np.diag((_BRADFORD @ _D50) / (_BRADFORD @ white)) @ _BRADFORD @ columns
    return np.linalg.solve(_BRADFORD, adapted)


def _xyz_tag(values: np.ndarray[Any, Any]) -> bytes:
    return b"XYZ " + struct.pack(">4x3i", *(round(65536 * float(value)) for value in values))


def _icc(colour_space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """A display profile with these tags and the required ones (ICC.1:2001-04, 6)."""
    description = b"gamma and primaries of a PNG\0"
    desc = b"desc" + struct.pack(">4xI", len(description)) + description + bytes(78)
    tags = {b"desc": desc, b"cprt": b"text" + bytes(4) + b"none\0"} | tags
    data_offset, table, body = 132 + 12 * len(tags), b"", b""
    for tag, data in tags.items():
        table += tag + struct.pack(">II", data_offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    classes = struct.pack(">4s4s4s", b"mntr", colour_space, b"XYZ ")
    created = struct.pack(">6H", 2000, 1, 1, 0, 0, 0)
    version = struct.pack(">8xI", 0x2100000)
    header = version + classes + created + b"acsp" + bytes(28) + _xyz_tag(_D50)[8:]
    header = struct.pack(">I", data_offset + len(body)) + header[4:]
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body
