"""Which of a file's frames or pages is the picture: those that are pictures of their own count.

Knows nothing of pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from imgmlp.errors import UsageError
from imgmlp.text import by_command

FRAMES = 2048  # that are looked for, one by one
ONLY_FIRST = "only its first frame is used; --frame chooses another"
MASK_LEFT_OUT = "its transparency mask, a separate page, is left out"
_KIND, _OLD_KIND = 254, 255  # TIFF's tags
_REDUCED, _MASK = 1, 4  # bits of a page's kind
_OLD_REDUCED = 2  # a page's kind, in the older tag
_PICTURES, _COPY = 0xB002, "Large Thumbnail"  # a list in an MPO, and how a reduced copy is called


def choose(image: Image.Image, path: Path, frame: int | None, notes: list[str]) -> None:
    """Go to a frame, or to the first, and say so if there are others. Raises UsageError."""
    if frame is not None and frame > FRAMES:
        command = f"magick {{}}'[{frame - 1}]' frame.png"
        hint = by_command("extract it first", path, command)
        raise UsageError(f"frame {frame} is beyond the first {FRAMES:,}", hint=hint)
    wanted = 0 if frame is None else frame - 1
    others = False
    try:
        if image.format == "TIFF":
            others = _choose_page(image, wanted, notes)
        elif frame is None:
            others = _has_others(image)
        elif image.format != "PSD":
            image.seek(wanted)
        elif wanted != 0:  # its frames would be layers
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
    else:
        notes.append(ONLY_FIRST)


def _has_others(image: Image.Image) -> bool:
    """Whether there are frames behind the first, also if the second is damaged.

    Reduced copies in a camera's JPEG are none.
    """
    if image.format == "MPO":
        kinds = [one["Attribute"]["MPType"] for one in getattr(image, "mpinfo", {})[_PICTURES]]
        return any(not kind.startswith(_COPY) for kind in kinds[1:])
    try:
        return bool(getattr(image, "is_animated", False))
    except MemoryError:
        raise
    except Exception:  # Pillow's readers raise anything
        return True


def _count(image: Image.Image) -> int:
    """How many frames there are to choose from."""
    if image.format == "TIFF":
        return sum(not is_mask for _, is_mask in _pages(image)) or 1
    return 1 if image.format == "PSD" else getattr(image, "n_frames", 1)


def _choose_page(image: Image.Image, wanted: int, notes: list[str]) -> bool:
    """Go to a page of a TIFF; returns whether there are others. Raises EOFError.

    Reduced copies and masks are no pages, if there is anything else. Says in `notes` if the page
    has a mask, which follows it.
    """
    if wanted < 0:
        raise EOFError
    pages: list[int] = []
    masked = False
    for page, is_mask in _pages(image):
        masked |= is_mask and len(pages) == wanted + 1
        if not is_mask:
            pages.append(page)
        if len(pages) > wanted + 1:
            break
    pages = pages or [0]
    if wanted >= len(pages):
        raise EOFError
    if image.tell() > 0:
        if pages[wanted] > 0:
            image.seek(0)  # so that it is looked at anew, and refused if Pillow cannot read it
        image.info.clear()  # where Pillow leaves what other pages have
        image.seek(pages[wanted])
    if masked:
        notes.append(MASK_LEFT_OUT)
    return len(pages) > wanted + 1


def _pages(image: Image.Image) -> Iterator[tuple[int, bool]]:
    """Of a TIFF, those that are no reduced copies, each with whether it is a mask."""
    for page in range(FRAMES):
        try:
            image.seek(page)
        except EOFError:
            return
        except Exception as error:  # of a page that Pillow cannot read, which may not be wanted
            if isinstance(error, MemoryError) or image.tell() != page:
                raise
        tags = getattr(image, "tag_v2", {})
        kind = tags.get(_KIND, 0)
        if not kind & _REDUCED and tags.get(_OLD_KIND) != _OLD_REDUCED:
            yield page, bool(kind & _MASK)
