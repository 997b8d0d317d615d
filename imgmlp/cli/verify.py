"""`imgmlp verify`: are files what they were when they were written?"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from imgmlp.codec.decoder import open_stored
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import FormatError, ImgmlpError
from imgmlp.facts import dimensions
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, size


def run(terminal: Terminal, paths: list[Path], device_spec: str, as_json: bool) -> int:
    """Compare the checksums of files; decode compact ones and compare the digest of the pixels.

    Returns the exit code: the error's own for one file, 1 if some of several are not sound.
    """
    device = cache(lambda: open_device(device_spec))  # archives need none
    codes, report = [], []
    for path in paths:
        problem = None
        try:
            found = _verified(path, device)
        except ImgmlpError as error:
            problem = str(error)
            codes.append(terminal.fail(error))
        else:
            codes.append(0)
            picture = dimensions(found["width"], found["height"], found["channels"])
            terminal.done(f"{path}  {picture}   {size(found['bytes'])}")
        report.append({"file": str(path), "sound": problem is None, "problem": problem})
    if as_json:
        print_data(json.dumps(report, indent=2))
    return codes[0] if len(codes) == 1 else int(any(codes))


def _verified(path: Path, device: Callable[[], AnyDevice]) -> dict[str, Any]:
    """Facts about a file that is sound. Raises ImgmlpError."""
    stored = open_stored(path)
    if stored.exact:
        try:
            stored.decode(device())
        except FormatError as error:
            raise FormatError(f"{path}: {error}", hint=error.hint) from error
    return stored.facts
