"""`imgmlp info`: describes files from their headers. It imports little, so that it is quick."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from imgmlp import facts
from imgmlp.cli.files import Job, display_name, open_file, run_jobs
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, printable


def run(terminal: Terminal, paths: list[Path], as_json: bool) -> int:
    """Print descriptions of files; returns the exit code.

    The JSON of one file is an object; that of several is a list of objects with the files' names.
    """
    if len(paths) == 1:
        file_facts = open_file(paths[0]).facts
        print_data(json.dumps(file_facts, indent=2) if as_json else facts.lines(file_facts))
        return 0
    jobs, texts = [], list[str]()
    for path in paths:
        job = Job({"file": str(path)}, lambda: None)
        job.do = partial(_describe, path, job, texts)
        jobs.append(job)
    code = run_jobs(terminal, jobs, as_json)
    if texts and not as_json:  # at the end, as an error of stdout is not the error of a file
        print_data("\n".join(texts))
    return code


def _describe(path: Path, job: Job, texts: list[str]) -> None:
    file_facts = open_file(path).facts
    job.entry |= file_facts
    texts.append(f"{printable(display_name(path))}\n{facts.lines(file_facts)}\n")
