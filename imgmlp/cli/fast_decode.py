"""A fast path for simple `decode` commands, which run without Typer.

Loading Typer, and pydantic with it, takes a fifth of the time of decoding a photograph. `commands`
has the same options; anything else, errors included, is left to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from imgmlp.interrupt import raise_on_signals, shield_children
from imgmlp.terminal import Terminal

EXPANDS_WILDCARDS = os.name == "nt"  # on Windows, Typer expands wildcards in names


def parse(arguments: Sequence[str]) -> Callable[[Terminal], int] | None:
    """A function that runs the command, or None for Typer to parse it.

    The arguments must have the form `decode FILE... [-o PICTURE] [--force]`. The function returns
    the exit code and raises ImgmlpError.
    """
    if arguments[:1] != ["decode"] or EXPANDS_WILDCARDS:
        return None
    sources: list[Path] = []
    output: Path | None = None
    force = False
    remaining = iter(arguments[1:])
    for argument in remaining:
        if argument == "--force":
            force = True
        elif argument in ("-o", "--output") and output is None:
            name = next(remaining, "--")
            if name.startswith("-") and name != "-":
                return None
            output = Path(name)
        elif argument.startswith("-") and argument != "-":
            return None
        else:
            sources.append(Path(argument))
    return partial(_decode, sources, output, force) if sources else None


def _decode(sources: list[Path], output: Path | None, force: bool, terminal: Terminal) -> int:
    from imgmlp.cli.decode import Outputs, run
    from imgmlp.cli.folders import Request

    raise_on_signals()  # after the imports, as in `options.open_terminal`
    shield_children()
    return run(terminal, Request(sources), Outputs(output, force=force))
