"""Which of a file's frames or pages is the picture: those that are pictures of their own count.

Knows nothing of pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from PIL import Image

from imgmlp.errors import UsageError
from imgmlp.text import by_command

FRAMES = 2048  # that are looked for, one by one
_KIND, _OLD_KIND = 254, 255  # TIFF's tags
_REDUCED, _MASK = 1, 4  # bits of a page's kind
_OLD_REDUCED = 2  # a page's kind, in the older tag


def choose(image: Image.Image, path: Path, frame: int | None, notes: list[str]) -> None:
    """Go to a frame, or to the first, and say so if there are others. Raises UsageError."""
    if frame is not None and frame > FRAMES:
        command = f"magick {{}}'[{frame - 1}]' frame.png"
        hint = by_command("take it out first", path, command)
        raise UsageError(f"frame {frame} is beyond the first {FRAMES:,}", hint=hint)
    wanted = 0 if frame is None else frame - 1
    try:
        if image.format == "TIFF":
            others = _choose_page(image, wanted)
        else:
            others = getattr(image, "is_animated", False)
            if frame is not None and image.format != "PSD":  # whose frames would be layers
                image.seek(wanted)
            elif wanted != 0:
                raise EOFError
    except EOFError:
        count = _count(image)
        there = "there is one" if count == 1 else f"there are {count:,}"
        hint = f"--frame counts from 1, and {there}"
        raise UsageError(f"{path} has no frame {frame}", hint=hint) from None
    if frame is not None or not others:
        return
    if image.format == "PSD":
        notes.append("its layers are merged, as the file has them")
    elif image.format != "MPO":  # a phone's JPEG with a second picture behind the first
        notes.append("only its first frame is taken; --frame chooses another")


def _count(image: Image.Image) -> int:
    """How many frames there are to choose from."""
    if image.format == "TIFF":
        return sum(1 for _ in _own_pages(image)) or 1
    return 1 if image.format == "PSD" else getattr(image, "n_frames", 1)


def _choose_page(image: Image.Image, wanted: int) -> bool:
    """Go to a page of a TIFF; returns whether there are others. Raises EOFError.

    Reduced copies and masks are no pages, if there is anything else.
    """
    found = list(islice(_own_pages(image), max(0, wanted) + 2)) or [0]
    if not 0 <= wanted < len(found):
        raise EOFError
    if image.tell() > 0:
        if found[wanted] > 0:
            image.seek(0)  # so that it is looked at anew, and refused if Pillow cannot read it
        image.info.clear()  # where Pillow leaves what other pages have
        image.seek(found[wanted])
    return len(found) > wanted + 1


def _own_pages(image: Image.Image) -> Iterator[int]:
    for page in range(FRAMES):
        try:
            image.seek(page)
        except EOFError:
            return
        except Exception as error:  # of a page that Pillow cannot read, which may not be wanted
            if isinstance(error, MemoryError) or image.tell() != page:
                raise
        tags = getattr(image, "tag_v2", {})
        if not tags.get(_KIND, 0) & (_REDUCED | _MASK) and tags.get(_OLD_KIND) != _OLD_REDUCED:
            yield page
