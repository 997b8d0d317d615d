"""`imgmlp verify`: are files what they were when they were written?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from imgmlp.cli.files import Entry, Job, named, one_by_one, stored
from imgmlp.engine import AnyDevice, open_device
from imgmlp.facts import dimensions
from imgmlp.terminal import Terminal
from imgmlp.text import size


def run(terminal: Terminal, paths: list[Path], device_spec: str, as_json: bool) -> int:
    """Compare the checksums of files; decode compact ones and compare the digest of the pixels.

    Returns the exit code.
    """
    device = cache(lambda: open_device(device_spec))  # archives need none
    jobs = []
    for path in paths:
        entry: Entry = {"file": str(path), "sound": False, "problem": None}
        jobs.append(Job(entry, partial(_verify, terminal, path, entry, device)))
    return one_by_one(terminal, jobs, as_json)


def _verify(terminal: Terminal, path: Path, entry: Entry, device: Callable[[], AnyDevice]) -> None:
    """Say that a file is sound. Raises ImgmlpError if it is not."""
    opened = stored(path)
    if opened.exact:
        opened.decode(device())
    entry["sound"], found = True, opened.facts
    picture = dimensions(found["width"], found["height"], found["channels"])
    terminal.done(f"{named(path)}  {picture}   {size(found['bytes'])}")
