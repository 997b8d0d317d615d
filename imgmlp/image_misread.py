"""What Pillow reads wrongly without a word: put right where that takes little, or else refused.

Knows how the formats say what they hold. Knows nothing of what becomes of the pixels.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageFile

from imgmlp.errors import PictureError
from imgmlp.text import by_command

_WHITES = {"L;2": 3, "L;4": 15}  # by Pillow's names of gray of 2 and 4 bits
_PLANES = 284  # TIFF's tag
_ALIKE = ("LA", "PA", "LAB")  # modes of which Pillow puts a plane in another one's place


def convert_hint(path: Path | str) -> str:
    """How to make a picture of it that can be read."""
    return by_command("convert it to a PNG first", path, "magick {} converted.png")


def check(image: Image.Image, path: Path) -> None:
    """Refuse, as a PictureError, an open image whose pixels would be others than its file's."""
    if image.format == "TIFF" and (why := _of_tiff(image)):
        raise PictureError(f"Pillow misreads {path}, {why}", hint=convert_hint(path))


def mend(image: ImageFile.ImageFile) -> None:
    """Have Pillow decode an open image as it should."""
    if image.format == "PNG":
        _scale_key(image)


# --- PNG ---


def _scale_key(image: ImageFile.ImageFile) -> None:
    """Of gray of less than 8 bits: Pillow scales the samples, and not the transparent one."""
    key, args = image.info.get("transparency"), image.tile[0].args if image.tile else ""
    if isinstance(key, int) and args in _WHITES:
        white = _WHITES[args]
        image.info["transparency"] = (key & white) * (255 // white)


# --- TIFF ---


def is_apart(image: Image.Image) -> bool:
    """Whether a TIFF's planes are separate."""
    return _tag(image, _PLANES) == 2


def _of_tiff(image: Image.Image) -> str:
    if is_apart(image) and image.mode in _ALIKE:
        return f"whose planes are separate ({image.mode})"
    return ""


def _tag(image: Image.Image, tag: int) -> object:
    found: object = getattr(image, "tag_v2", {}).get(tag)
    return found
