"""The choice of a frame or page in a file with several.

Reduced copies and masks are not counted: only frames that are pictures of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from imgmlp.errors import UsageError
from imgmlp.text import by_command

MAX_FRAMES = 2048  # that are searched, one by one
ONLY_FIRST = "only its first frame is used; --frame chooses another"
MASK_LEFT_OUT = "its transparency mask, a separate page, is left out"
# TIFF 6.0: NewSubfileType, a bit set, and the older SubfileType
_TAG_NEW_SUBFILE_TYPE = 254
_NEW_SUBFILE_REDUCED = 1
_NEW_SUBFILE_MASK = 4
_TAG_SUBFILE_TYPE = 255
_SUBFILE_REDUCED = 2
# Multi-picture format (MPO): the tag of the list of images, and Pillow's name of a reduced copy
_MPO_ENTRIES = 0xB002
_MPO_REDUCED = "Large Thumbnail"


def choose(image: Image.Image, path: Path, frame: int | None, notes: list[str]) -> None:
    """Seek `frame`, counted from 1, or the first one; then append to `notes` if there are others.

    Raises UsageError if there is no such frame.
    """
    if frame is not None and frame > MAX_FRAMES:
        command = f"magick {{}}'[{frame - 1}]' frame.png"
        hint = by_command("extract it first", path, command)
        raise UsageError(f"frame {frame} is beyond the first {MAX_FRAMES:,}", hint=hint)
    wanted = 0 if frame is None else frame - 1
    others = False
    try:
        if image.format == "TIFF":
            others = _choose_page(image, wanted, notes)
        elif frame is None:
            others = _has_others(image)
        elif image.format != "PSD":
            image.seek(wanted)
        elif wanted != 0:  # Pillow's further frames of a PSD are layers
            raise EOFError
    except EOFError:
        count = _count(image)
        number = "there is one" if count == 1 else f"there are {count:,}"
        hint = f"--frame counts from 1, and {number}"
        raise UsageError(f"{path} has no frame {frame}", hint=hint) from None
    if frame is not None or not others:
        return
    if image.format == "PSD":
        notes.append("its layers are merged, as the file has them")
    else:
        notes.append(ONLY_FIRST)


def _has_others(image: Image.Image) -> bool:
    """Whether there are frames after the first, other than reduced copies in a camera's JPEG.

    True if the second frame is damaged.
    """
    if image.format == "MPO":
        entries = getattr(image, "mpinfo", {})[_MPO_ENTRIES]
        types = [entry["Attribute"]["MPType"] for entry in entries]
        return any(not name.startswith(_MPO_REDUCED) for name in types[1:])
    try:
        return bool(getattr(image, "is_animated", False))
    except MemoryError:
        raise
    except Exception:  # Pillow's readers raise any exception on damaged files
        return True


def _count(image: Image.Image) -> int:
    """The number of frames to choose from."""
    if image.format == "TIFF":
        return sum(not is_mask for _, is_mask in _pages(image)) or 1
    return 1 if image.format == "PSD" else getattr(image, "n_frames", 1)


def _choose_page(image: Image.Image, wanted: int, notes: list[str]) -> bool:
    """Seek a page of a TIFF, counted from 0. Returns whether there are later ones. Raises EOFError.

    Reduced copies and masks do not count as pages, unless there is nothing else. Appends to `notes`
    if the page has a mask: masks follow their pages.
    """
    if wanted < 0:
        raise EOFError
    pages: list[int] = []
    has_mask = False
    for page, is_mask in _pages(image):
        has_mask |= is_mask and len(pages) == wanted + 1
        if not is_mask:
            pages.append(page)
        if len(pages) > wanted + 1:
            break
    pages = pages or [0]
    if wanted >= len(pages):
        raise EOFError
    if image.tell() > 0:
        if pages[wanted] > 0:
            image.seek(0)  # so that the next seek reads the page again, and fails if Pillow cannot
        image.info.clear()  # Pillow does not remove entries of other pages
        image.seek(pages[wanted])
    if has_mask:
        notes.append(MASK_LEFT_OUT)
    return len(pages) > wanted + 1


def _pages(image: Image.Image) -> Iterator[tuple[int, bool]]:
    """(index, whether it is a mask) of each page of a TIFF that is no reduced copy."""
    for page in range(MAX_FRAMES):
        try:
            image.seek(page)
        except EOFError:
            return
        except Exception as error:  # Pillow cannot read the page; another one may be chosen
            if isinstance(error, MemoryError) or image.tell() != page:
                raise
        tags = getattr(image, "tag_v2", {})
        subfile_type = tags.get(_TAG_NEW_SUBFILE_TYPE, 0)
        is_reduced = subfile_type & _NEW_SUBFILE_REDUCED
        if not is_reduced and tags.get(_TAG_SUBFILE_TYPE) != _SUBFILE_REDUCED:
            yield page, bool(subfile_type & _NEW_SUBFILE_MASK)
