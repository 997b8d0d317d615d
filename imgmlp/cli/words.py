"""What words of a command mean that are looked at before Typer reads them, or beside it.

Loads nothing that Python has not loaded.
"""

from __future__ import annotations

import os


def options_in(words: list[str]) -> list[str]:
    """Those words of a command that may be options."""
    return words[: words.index("--")] if "--" in words else words


def with_dash_as_file(words: list[str]) -> list[str]:
    """Words of a command in which `./-` has its whole path, as the shells' custom is: it is the
    file of this name, and a Path of it would be `-`, which is standard input or output."""
    return [_whole(word) for word in words]


def _whole(word: str) -> str:
    option, equals, name = "", "", word
    if word.startswith("--"):
        option, equals, name = word.partition("=")
    elif word.startswith("-o"):
        option, name = word[:2], word[2:]
    parts = name.replace(os.sep, "/").split("/")
    dash = parts[0] == "." and [part for part in parts if part not in (".", "")] == ["-"]
    return f"{option}{equals}{os.path.abspath(name)}" if dash else word


def first_of(spec: str) -> str:
    """One of the devices that --device names, for what is done on one."""
    name = spec.split(",", maxsplit=1)[0].strip()
    return {"all": "auto", "gpus": "gpu"}.get(name.lower(), name)
