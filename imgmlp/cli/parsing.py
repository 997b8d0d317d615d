"""Parses options that several commands share, and reads pictures."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from imgmlp.cli import files
from imgmlp.codec.decoder import check_not_compressed
from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.errors import UsageError
from imgmlp.image import Picture, check_size, load
from imgmlp.terminal import Terminal


def training_settings(preset: str, **chosen: float | str | None) -> Settings:
    """A preset, with its values replaced by those that are not None. Raises UsageError."""
    values: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return replace(PRESETS[preset], **values)


def check_scale(scale: float | None) -> None:
    """Raise UsageError for a factor that is not above 0 and finite."""
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"--scale is {scale:g}", hint="use a number above 0, like 2 or 0.5")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """(width, height) from text such as 640x480. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,10})[xX×](\d{1,10})", text, re.ASCII)
    if match is None:
        raise UsageError(f"--size is {text!r}", hint="use WIDTHxHEIGHT in pixels, like 640x480")
    width, height = int(match[1]), int(match[2])
    check_size(width, height)
    return width, height


def load_picture(
    terminal: Terminal, path: Path, alpha: bool, frame: int | None, strip: bool
) -> Picture:
    """A picture from a file, a pipe or standard input; prints notes on conversions."""
    name = files.display_name(path)
    data = files.read(path) if files.is_stream(path) else None
    if data is not None:
        check_not_compressed(path, name, data)
    picture = load(name, alpha, data, frame, strip)
    for note in picture.notes:
        terminal.note(f"{name}: {note}")
    return picture
