"""`imgmlp info`: what files say of themselves. Loads next to nothing beside the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from imgmlp import facts
from imgmlp.cli.files import Job, named, one_by_one, stored
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, printable


def run(terminal: Terminal, paths: list[Path], as_json: bool) -> int:
    """Print what files say of themselves; returns the exit code.

    Of one file JSON is an object, of several a list of them, each with its file's name.
    """
    if len(paths) == 1:
        found = stored(paths[0]).facts
        print_data(json.dumps(found, indent=2) if as_json else facts.lines(found))
        return 0
    jobs = []
    for path in paths:
        job = Job({"file": str(path)}, lambda: None)
        job.do = partial(_tell, path, job, as_json)
        jobs.append(job)
    return one_by_one(terminal, jobs, as_json)


def _tell(path: Path, job: Job, as_json: bool) -> None:
    found = stored(path).facts
    job.entry |= found
    if not as_json:
        print_data(f"{printable(named(path))}\n{facts.lines(found)}\n")
