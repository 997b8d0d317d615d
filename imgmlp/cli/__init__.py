"""The command line: its entry, and an exit code for whatever happens.

`commands` holds every command's name, options and help; what a command does is in the file of its
name, which is imported when it runs. Only `commands` and `options` know Typer beside this module.
Nothing but `__main__` imports this. May import bench, child, codec, engine, facts, image, imgmlp,
interrupt, metadata, output_files, terminal, text.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

from imgmlp.cli.commands import app
from imgmlp.errors import ImgmlpError, Interrupted, UsageError, out_of_memory
from imgmlp.interrupt import ignore_signals, raise_on_signals
from imgmlp.terminal import Terminal
from imgmlp.text import standard_output

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    terminal = Terminal()
    terminal.show_warnings()
    try:
        code = _run(terminal)
    except KeyboardInterrupt:
        code = terminal.fail(_interrupted())
    except MemoryError:
        code = terminal.fail(out_of_memory())
    except ImgmlpError as error:
        code = terminal.fail(error)
    except typer.TyperException as error:
        message = error.format_message()  # empty where the help was shown instead
        usage = UsageError(message, hint=_usage_hint(error))
        code = terminal.fail(usage) if message else error.exit_code
    except Exception as error:
        reason = (str(error) or "no message").splitlines()[0]
        problem = f"unexpected {type(error).__name__}: {reason}"
        hint = "this is a fault in imgmlp; please report it with what -vv prints"
        code = terminal.fail(ImgmlpError(problem, hint=hint))
    ignore_signals()
    sys.exit(code)


def _run(terminal: Terminal) -> int:
    raise_on_signals()
    code: Any = app(obj=terminal, prog_name="imgmlp", standalone_mode=False)
    if code == Interrupted.exit_code:  # Typer catches Ctrl-C and returns this
        return terminal.fail(_interrupted())
    with standard_output():  # help is still in its buffer
        pass
    return code if isinstance(code, int) else 0


def _interrupted() -> Interrupted:
    return Interrupted("interrupted", hint="files are as they were or whole; start it again")


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'imgmlp'} --help`"
