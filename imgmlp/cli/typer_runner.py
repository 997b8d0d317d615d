"""Runs the command line through Typer and translates its errors to ImgmlpError.

Only this module, `commands` and `options` import Typer.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import typer

from imgmlp.cli.arguments import possible_options
from imgmlp.cli.commands import app
from imgmlp.errors import Interrupted, OutputError, UsageError, problem_of
from imgmlp.terminal import Terminal
from imgmlp.text import quoted

INSTALL_OPTION = "--install-completion"


def run(terminal: Terminal) -> int:
    """Run the command of this process; returns the exit code. Raises ImgmlpError."""
    try:
        code: Any = app(obj=terminal, prog_name="imgmlp", standalone_mode=False)
    except typer.TyperException as error:
        if not error.format_message():
            return error.exit_code  # help was printed
        raise _usage_error(error) from error
    except OSError as error:  # of --install-completion, where Typer does not catch it
        if INSTALL_OPTION not in sys.argv[1:]:
            raise
        problem = f"cannot install completion: {error.strerror}: {error.filename}"
        hint = "--show-completion prints a script for your shell"
        raise OutputError(problem, hint=hint) from error
    if code == Interrupted.exit_code:  # Typer catches Ctrl-C and returns this
        raise problem_of(KeyboardInterrupt())
    return code if isinstance(code, int) else 0


def _usage_error(error: typer.TyperException) -> UsageError:
    """A usage error with Typer's message, but without Pydantic's wording."""
    problem = error.format_message().replace("Value error, ", "")  # Pydantic's prefix
    problem = re.sub("Input should be a valid integer.*", "it is not a whole number", problem)
    problem = re.sub("Input should be a valid number.*", "it is not a number", problem)
    return UsageError(problem, hint=_hint(error))


def _hint(error: typer.TyperException) -> str:
    if error.format_message().startswith("No such option"):
        for argument in possible_options(sys.argv[1:]):
            if argument.startswith("-") and os.path.isfile(argument):
                return f"use `{quoted(argument)}` for the file of this name"
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'imgmlp'} --help`"
