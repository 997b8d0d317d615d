"""8-bit samples of any Pillow image: gray or RGB, with alpha where something is transparent.

A few rows are converted at a time, so that no second copy of a large picture is needed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from imgmlp.errors import PictureError

ALPHA_DROPPED = "the fully opaque alpha channel was dropped"
PIXELS_PER_BAND = 2**20  # converted at a time
_GRAY_MODES = ("1", "L", "LA", "La")

Array = np.ndarray[Any, Any]
Convert = Callable[[Image.Image], Array]


def samples(image: Image.Image, name: str, notes: list[str]) -> Array:
    """uint8 [height, width, 1 to 4] of a loaded image; alpha only if some pixel is not opaque.

    Appends conversions to `notes`. Raises PictureError for samples of an unknown range.
    """
    _check_mode(image, name)
    convert = _conversion(image, notes)
    has_alpha = image.has_transparency_data and any(
        bool((band[:, :, -1] < 255).any()) for _, band in _bands(image, convert)
    )
    if image.has_transparency_data and not has_alpha:
        notes.append(ALPHA_DROPPED)
    channels = (1 if _is_gray(image) else 3) + has_alpha
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    for rows, band in _bands(image, convert):
        pixels[rows] = band[:, :, :channels]
    return pixels


def without_opaque_alpha(pixels: Array, notes: list[str]) -> Array:
    """uint8 [height, width, 1 to 4] without an alpha channel that is fully opaque."""
    if pixels.shape[2] in (2, 4) and (pixels[:, :, -1] == 255).all():
        notes.append(ALPHA_DROPPED)
        return np.ascontiguousarray(pixels[:, :, :-1])
    return pixels


def upright(pixels: Array, orientation: int) -> Array:
    """The pixels, rotated and mirrored upright by an EXIF orientation (EXIF 2.3, 4.6.4 A)."""
    if orientation in (5, 6, 7, 8):  # others than 2 to 8 change nothing
        pixels = pixels.transpose(1, 0, 2)
    row_step = -1 if orientation in (3, 4, 7, 8) else 1
    column_step = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::row_step, ::column_step])


def _check_mode(image: Image.Image, name: str) -> None:
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        what = f"samples of 32 bits or signed ones ({image.mode})"
        problem = f"{name} has {what}, whose range is unknown"
        raise PictureError(problem, hint="convert it to unsigned samples of 8 or 16 bits first")


def _is_gray(image: Image.Image) -> bool:
    return image.mode in _GRAY_MODES or image.mode.startswith("I")


def _bands(image: Image.Image, convert: Convert) -> Iterator[tuple[slice, Array]]:
    """(rows, their samples as uint8 [rows, width, channels]) from the top to the bottom."""
    rows = max(1, PIXELS_PER_BAND // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        band = convert(image.crop((0, top, image.width, bottom)))
        yield slice(top, bottom), band[:, :, None] if band.ndim == 2 else band


def _conversion(image: Image.Image, notes: list[str]) -> Convert:
    """The function from a part of the image to its uint8 samples, with alpha last if it has any."""
    key = image.info.get("transparency")
    if image.mode in ("1", "L", "RGB") or _has_16_bits(image):
        return _without_alpha if key is None else lambda band: _with_key(band, key)
    if image.mode == "CMYK":
        return _from_cmyk(image, notes)
    if image.mode == "LAB":
        notes.append("CIELab is converted to sRGB")
    wanted = {"LA": "LA", "La": "LA"}.get(image.mode)
    if wanted is None:
        wanted = "RGBA" if image.has_transparency_data else "RGB"
    return lambda band: np.asarray(band.convert(wanted))


def _has_16_bits(image: Image.Image) -> bool:
    """Whether samples range from 0 to 65535."""
    return image.mode.startswith("I")


def _without_alpha(band: Image.Image) -> Array:
    if _has_16_bits(band):
        return (np.asarray(band) >> 8).astype(np.uint8)
    return np.asarray(band.convert("L") if band.mode == "1" else band)


def _with_key(band: Image.Image, key: int | tuple[int, ...]) -> Array:
    """Samples with alpha: 0 where they equal the transparent colour `key`, 255 elsewhere."""
    colours = _without_alpha(band)
    values = np.asarray(band) if _has_16_bits(band) else colours
    rows = values.shape[:2]
    hidden = (values == np.array(key)).reshape(*rows, -1).all(axis=2)
    return np.dstack([colours, np.where(hidden, 0, 255).astype(np.uint8)])


def _from_cmyk(image: Image.Image, notes: list[str]) -> Convert:
    """The conversion to sRGB by the image's colour profile; without one, of ideal inks."""
    profile = image.info.get("icc_profile")
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile or b""))
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            "CMYK",
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, ImportError):
        lacks = "its colour profile cannot be used" if profile else "there is no colour profile"
        notes.append(f"CMYK is converted to sRGB only roughly, as {lacks}")
        return lambda band: np.asarray(band.convert("RGB"))
    notes.append("CMYK is converted to sRGB by its colour profile")
    return lambda band: np.asarray(ImageCms.applyTransform(band, transform))
