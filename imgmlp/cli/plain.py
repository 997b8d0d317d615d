"""Decoding that is asked for in plain words, which begins without Typer.

To load Typer, and pydantic with it, takes a fifth of the time in which a photograph is decoded.
`commands` has the same options; whatever is not quite plain goes there, also to have an error told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from imgmlp.interrupt import raise_on_signals, shield_children
from imgmlp.terminal import Terminal

GLOBS = os.name == "nt"  # names with a * are the command's to look up, which Typer does


def work(words: Sequence[str]) -> Callable[[Terminal], int] | None:
    """What does the work of a command, if its words are `decode FILE... [-o PICTURE] [--force]`.

    It returns the exit code, and raises ImgmlpError.
    """
    if words[:1] != ["decode"] or GLOBS:
        return None
    sources: list[Path] = []
    output: Path | None = None
    force = False
    rest = iter(words[1:])
    for word in rest:
        if word == "--force":
            force = True
        elif word in ("-o", "--output") and output is None:
            name = next(rest, "--")
            if name.startswith("-") and name != "-":
                return None
            output = Path(name)
        elif word.startswith("-") and word != "-":
            return None
        else:
            sources.append(Path(word))
    return partial(_decode, sources, output, force) if sources else None


def _decode(sources: list[Path], output: Path | None, force: bool, terminal: Terminal) -> int:
    from imgmlp.cli.decode import Outputs, run
    from imgmlp.cli.folders import Request

    raise_on_signals()  # once all is loaded, as in `options.terminal_of`
    shield_children()
    return run(terminal, Request(sources), Outputs(output, force=force))
