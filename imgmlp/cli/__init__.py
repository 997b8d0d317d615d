"""The command line: its entry, and an exit code for whatever happens.

`plain` does at once what needs no Typer; `typed` has that read what was typed. `commands` holds
every command's name, options and help; what a command does is in the file of its name, which is
imported when it runs. Nothing but `__main__` imports this. May import batch, bench, child, codec,
ending, engine, facts, image, image_io, imgmlp, interrupt, metadata, output_files, report,
terminal, text.
"""

from __future__ import annotations

import contextlib
import json
import sys

from imgmlp import ending  # first, as the others have something to write
from imgmlp.cli import plain
from imgmlp.cli.words import options_in, with_dash_as_file
from imgmlp.errors import ImgmlpError, OutputError, UsageError, problem_of
from imgmlp.interrupt import ignore_signals
from imgmlp.terminal import Terminal
from imgmlp.text import guard_streams, print_data

__all__ = ["main"]


def main(began: float | None = None) -> None:
    """Run the command line and leave with its exit code. `began` is when the process did, if not
    now."""
    guard_streams()
    terminal = Terminal(began)
    terminal.show_warnings()
    try:
        try:
            code = _run(terminal)
        except Exception as error:
            code = _told(terminal, problem_of(error))
        ignore_signals()
    except KeyboardInterrupt as order:  # also one that came while something else was told
        code = _told(terminal, problem_of(order))
    ending.leave(code)


def _run(terminal: Terminal) -> int:
    words = sys.argv[1:]
    if any(map(_is_empty, options_in(words))) or "" in words:
        hint = "is a shell variable unset? leave the argument out, or give it a value"
        raise UsageError("an argument is empty", hint=hint)
    sys.argv[1:] = words = with_dash_as_file(words)
    work = plain.work(words)
    if work is None:
        from imgmlp.cli import typed

        work = typed.run
    code = work(terminal)
    if sys.stdout is not None:  # closed, which is no matter to what writes files
        sys.stdout.flush()  # help is still in its buffer
    return code


def _told(terminal: Terminal, problem: ImgmlpError) -> int:
    """Say what is wrong, also as JSON where that was asked for; returns the exit code."""
    code = terminal.fail(problem)
    words = options_in(sys.argv[1:])
    asked = any(word == "--json" or word.startswith("--json=") for word in words)
    if asked and not terminal.answered:
        with contextlib.suppress(OutputError):  # which is told by now, or matters less
            print_data(json.dumps(problem.facts(), indent=2))
    return code


def _is_empty(word: str) -> bool:
    """Whether an option has an empty value, which would be the folder that one is in."""
    return word.startswith("--") and word.endswith("=")
