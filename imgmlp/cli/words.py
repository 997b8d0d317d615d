"""Helpers for the words of a command line before Typer parses them.

This module imports nothing that Python has not loaded by itself.
"""

from __future__ import annotations

import os


def options_in(words: list[str]) -> list[str]:
    """The words of a command that may be options: those before --."""
    return words[: words.index("--")] if "--" in words else words


def with_dash_as_file(words: list[str]) -> list[str]:
    """The words of a command, with absolute paths for `./-`.

    By convention `./-` is a file named -. pathlib would shorten it to `-`, which is standard input
    or output.
    """
    return [_with_absolute_dash(word) for word in words]


def _with_absolute_dash(word: str) -> str:
    option, equals, name = "", "", word
    if word.startswith("--"):
        option, equals, name = word.partition("=")
    elif word.startswith("-o"):
        option, name = word[:2], word[2:]
    parts = name.replace(os.sep, "/").split("/")
    is_dash = parts[0] == "." and [part for part in parts if part not in (".", "")] == ["-"]
    return f"{option}{equals}{os.path.abspath(name)}" if is_dash else word


def first_of(spec: str) -> str:
    """The first of the devices that --device names, for commands that use one."""
    name = spec.split(",", maxsplit=1)[0].strip()
    return {"all": "auto", "gpus": "gpu"}.get(name.lower(), name)
