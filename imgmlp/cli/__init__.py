"""The command line: its entry, and an exit code for whatever happens.

`commands` holds every command's name, options and help; what a command does is in the file of its
name, which is imported when it runs. Only `commands` and `options` know Typer beside this module.
Nothing but `__main__` imports this. May import batch, bench, child, codec, ending, engine, facts,
image, image_files, imgmlp, interrupt, metadata, output_files, report, terminal, text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Any

import typer

from imgmlp import ending  # first, as the others have something to write
from imgmlp.cli.commands import app
from imgmlp.errors import ImgmlpError, Interrupted, OutputError, UsageError, problem_of
from imgmlp.interrupt import ignore_signals
from imgmlp.terminal import Terminal
from imgmlp.text import guard_streams, print_data, quoted

__all__ = ["app", "main"]

INSTALL = "--install-completion"


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
            code = _told(terminal, _problem(error))
        ignore_signals()
    except KeyboardInterrupt as order:  # also one that came while something else was told
        code = _told(terminal, _problem(order))
    ending.leave(code)


def _run(terminal: Terminal) -> int:
    if any(map(_is_empty, _options(sys.argv[1:]))) or "" in sys.argv[1:]:
        hint = "is a variable of your shell unset? leave it out, or give it a value"
        raise UsageError("an argument is empty", hint=hint)
    try:
        code: Any = app(obj=terminal, prog_name="imgmlp", standalone_mode=False)
    except typer.TyperException as error:
        if error.format_message():
            raise
        return error.exit_code  # the help was shown instead
    if code == Interrupted.exit_code:  # Typer catches Ctrl-C and returns this
        return _told(terminal, problem_of(KeyboardInterrupt()))
    if sys.stdout is not None:  # closed, which is no matter to what writes files
        sys.stdout.flush()  # help is still in its buffer
    return code if isinstance(code, int) else 0


def _problem(error: BaseException) -> ImgmlpError:
    """What is told of whatever went wrong."""
    if isinstance(error, typer.TyperException):
        problem = error.format_message().replace("Value error, ", "")  # as Pydantic begins it
        problem = re.sub("Input should be a valid integer.*", "it is no whole number", problem)
        problem = re.sub("Input should be a valid number.*", "it is no number", problem)
        return UsageError(problem, hint=_usage_hint(error))
    if isinstance(error, OSError) and INSTALL in sys.argv[1:]:  # of Typer's, which asks nothing
        problem = f"cannot install completion: {error.strerror}: {error.filename}"
        return OutputError(problem, hint="--show-completion prints what your shell is to read")
    return problem_of(error)


def _told(terminal: Terminal, problem: ImgmlpError) -> int:
    """Say what is wrong, also as JSON where that was asked for; returns the exit code."""
    code = terminal.fail(problem)
    words = _options(sys.argv[1:])
    asked = any(word == "--json" or word.startswith("--json=") for word in words)
    if asked and not terminal.answered:
        with contextlib.suppress(OutputError):  # which is told by now, or matters less
            print_data(json.dumps(problem.facts(), indent=2))
    return code


def _options(words: list[str]) -> list[str]:
    """Those words of a command that may be options."""
    return words[: words.index("--")] if "--" in words else words


def _is_empty(word: str) -> bool:
    """Whether an option has an empty value, which would be the folder that one is in."""
    return word.startswith("--") and word.endswith("=")


def _usage_hint(error: typer.TyperException) -> str:
    if error.format_message().startswith("No such option"):
        for word in _options(sys.argv[1:]):
            if word.startswith("-") and os.path.isfile(word):
                return f"`{quoted(word)}` means the file of this name"
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'imgmlp'} --help`"
