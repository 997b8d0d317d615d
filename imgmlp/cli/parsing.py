"""What several commands do with their arguments: options checked and understood, files in turn."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.errors import ImgmlpError, Interrupted, UsageError, out_of_memory
from imgmlp.image import check_size
from imgmlp.terminal import Terminal
from imgmlp.text import print_data

Entry = dict[str, Any]  # what a JSON report says of a file


def training_settings(preset: str, **chosen: float | str | None) -> Settings:
    """A preset with what the user chose in place of its values. Raises UsageError."""
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return replace(PRESETS[preset], **given)


def parse_scale(scale: float | None) -> None:
    """Refuse, as a UsageError, a factor that is not above 0 and finite."""
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"--scale is {scale:g}", hint="use a number above 0, like 2 or 0.5")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """(width, height) of text such as 640x480. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,10})[xX×](\d{1,10})", text, re.ASCII)
    if match is None:
        raise UsageError(f"--size is {text!r}", hint="use WIDTHxHEIGHT in pixels, like 640x480")
    width, height = int(match[1]), int(match[2])
    check_size(width, height)
    return width, height


def scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    """(width, height) of a picture made larger or smaller. Raises UsageError."""
    limit = float(2**40)  # so that no factor leads to numbers beyond a float's range
    width, height = (max(1, round(min(n * scale, limit))) for n in (width, height))
    check_size(width, height)
    return width, height


def one_by_one(
    terminal: Terminal,
    work: Sequence[Callable[[], None]],
    report: list[Entry],
    as_json: bool,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Do the work for several files, whatever becomes of the others; returns the exit code.

    That is the error's own for one file; 1 if some of several failed. `report` has an entry for
    each file, with its "problem", and is printed if JSON is wanted. Raises Interrupted, also after
    a file that was done although somebody asked to stop.
    """
    codes = []
    for do, entry in zip(work, report, strict=True):
        try:
            do()
        except Interrupted:
            raise
        except (ImgmlpError, MemoryError) as error:
            problem = error if isinstance(error, ImgmlpError) else out_of_memory()
            entry["problem"] = str(problem)
            codes.append(terminal.fail(problem))
        else:
            codes.append(0)
        if should_stop():
            hint = "what was written is whole; give the others again"
            raise Interrupted(f"stopped after {len(codes)} of {len(work)} files", hint=hint)
    if as_json:
        print_data(json.dumps(report, indent=2))
    return codes[0] if len(codes) == 1 else int(any(codes))
