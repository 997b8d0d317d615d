"""`imgmlp verify`: checks that files are intact and decode to what was encoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from imgmlp.batch.find import Search
from imgmlp.batch.plan import Rules
from imgmlp.batch.stored import ENDINGS, VerifyFile, sound, weigh
from imgmlp.cli import files, folders
from imgmlp.cli.files import Entry, Job, display_name, open_file
from imgmlp.cli.folders import Request
from imgmlp.ending import keep_open
from imgmlp.engine import AnyDevice, open_device
from imgmlp.terminal import Terminal


def run(terminal: Terminal, request: Request) -> int:
    """Compare the checksums of files; decode compact ones and compare the digest of the pixels.

    Returns the exit code.
    """
    if request.is_batch:
        rules, search = Rules(None, Path, weigh=weigh), Search(ENDINGS, request.recursive)
        return folders.run(terminal, request, search, rules, VerifyFile())
    device = cache(lambda: keep_open(open_device(request.single_device)))  # .npz files need none
    files.check_names(request.sources, None)
    jobs = []
    for path in request.sources:
        entry: Entry = {"file": str(path), "sound": False, "problem": None}
        jobs.append(Job(entry, partial(_verify, terminal, path, entry, device)))
    return files.run_jobs(terminal, jobs, request.as_json)


def _verify(terminal: Terminal, path: Path, entry: Entry, device: Callable[[], AnyDevice]) -> None:
    """Print that a file is intact. Raises ImgmlpError if it is not."""
    line = sound(open_file(path), device, display_name(path))
    entry["sound"] = True
    terminal.done(line)
