"""What Pillow reads wrongly without a word: put right where that takes little, or else refused.

Knows how the formats say what they hold. Knows nothing of what becomes of the pixels.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from imgmlp.errors import PictureError
from imgmlp.text import by_command

_PLANES = 284  # TIFF's tag
_ALIKE = ("LA", "PA", "LAB")  # modes of which Pillow puts a plane in another one's place


def convert_hint(path: Path | str) -> str:
    """How to make a picture of it that can be read."""
    return by_command("convert it to a PNG first", path, "magick {} converted.png")


def check(image: Image.Image, path: Path) -> None:
    """Refuse, as a PictureError, an open image whose pixels would be others than its file's."""
    if image.format == "TIFF" and (why := _of_tiff(image)):
        raise PictureError(f"Pillow misreads {path}, {why}", hint=convert_hint(path))


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
