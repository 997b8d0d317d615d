"""The command line: its entry point, and an exit code for every outcome.

`fast_decode` runs simple decode commands without Typer, `typer_runner` all others with it.
`commands` holds the names, options and help of all commands; the module of a command's name does
its work and is imported when it runs. Only `__main__` imports this package. May import batch,
bench, child, codec, ending, engine, facts, image, image_io, imgmlp, interrupt, metadata,
output_files, report, terminal, text.
"""

from __future__ import annotations

import contextlib
import json
import sys

from imgmlp import ending  # first: exit functions registered before it are skipped
from imgmlp.cli import fast_decode
from imgmlp.cli.arguments import possible_options, with_absolute_dashes
from imgmlp.errors import ImgmlpError, OutputError, UsageError, problem_of
from imgmlp.interrupt import ignore_signals
from imgmlp.terminal import Terminal
from imgmlp.text import guard_streams, print_data

__all__ = ["main"]


def main(began: float | None = None) -> None:
    """Run the command line and leave with its exit code.

    `began` is when the process started, a time of `time.perf_counter`; the default is now.
    """
    guard_streams()
    terminal = Terminal(began)
    terminal.show_warnings()
    try:
        try:
            code = _run(terminal)
        except Exception as error:
            code = _report(terminal, problem_of(error))
        ignore_signals()
    except KeyboardInterrupt as interrupt:  # perhaps while another error was printed
        code = _report(terminal, problem_of(interrupt))
    ending.leave(code)


def _run(terminal: Terminal) -> int:
    """Run the command of this process; returns the exit code. Raises ImgmlpError."""
    arguments = sys.argv[1:]
    if any(map(_has_empty_value, possible_options(arguments))) or "" in arguments:
        hint = "is a shell variable unset? leave the argument out, or give it a value"
        raise UsageError("an argument is empty", hint=hint)
    sys.argv[1:] = arguments = with_absolute_dashes(arguments)
    command = fast_decode.parse(arguments)
    if command is None:
        from imgmlp.cli import typer_runner

        command = typer_runner.run
    code = command(terminal)
    if sys.stdout is not None:  # it is None if the parent process has closed it
        sys.stdout.flush()  # help is still in its buffer
    return code


def _report(terminal: Terminal, problem: ImgmlpError) -> int:
    """Print an error, with --json also as JSON; returns the exit code."""
    code = terminal.fail(problem)
    options = possible_options(sys.argv[1:])
    as_json = any(option == "--json" or option.startswith("--json=") for option in options)
    if as_json and not terminal.has_printed_json:
        with contextlib.suppress(OutputError):  # it was printed before, or matters less
            print_data(json.dumps(problem.facts(), indent=2))
    return code


def _has_empty_value(option: str) -> bool:
    """Whether an option has an empty value, which a Path would take for the current folder."""
    return option.startswith("--") and option.endswith("=")
