"""`imgmlp verify`: are files what they were when they were written?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from imgmlp.cli.parsing import Entry, one_by_one
from imgmlp.codec.decoder import open_stored
from imgmlp.engine import AnyDevice, open_device
from imgmlp.facts import dimensions
from imgmlp.terminal import Terminal
from imgmlp.text import size


def run(terminal: Terminal, paths: list[Path], device_spec: str, as_json: bool) -> int:
    """Compare the checksums of files; decode compact ones and compare the digest of the pixels.

    Returns the exit code.
    """
    device = cache(lambda: open_device(device_spec))  # archives need none
    report: list[Entry] = [{"file": str(path), "sound": False, "problem": None} for path in paths]
    work = [partial(_verify, terminal, *one, device) for one in zip(paths, report, strict=True)]
    return one_by_one(terminal, work, report, as_json)


def _verify(terminal: Terminal, path: Path, entry: Entry, device: Callable[[], AnyDevice]) -> None:
    """Say that a file is sound. Raises ImgmlpError if it is not."""
    stored = open_stored(path)
    if stored.exact:
        stored.decode(device())
    entry["sound"], found = True, stored.facts
    picture = dimensions(found["width"], found["height"], found["channels"])
    terminal.done(f"{path}  {picture}   {size(found['bytes'])}")
