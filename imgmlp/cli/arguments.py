"""Helpers for the arguments of a command line before Typer parses them.

This module imports nothing that Python has not loaded by itself.
"""

from __future__ import annotations

import os


def possible_options(arguments: list[str]) -> list[str]:
    """The arguments that may be options: those before --."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def with_absolute_dashes(arguments: list[str]) -> list[str]:
    """The arguments, with absolute paths for `./-`.

    By convention `./-` is a file named -. pathlib would shorten it to `-`, which is standard input
    or output.
    """
    return [_with_absolute_dash(argument) for argument in arguments]


def _with_absolute_dash(argument: str) -> str:
    option, equals, path = "", "", argument
    if argument.startswith("--"):
        option, equals, path = argument.partition("=")
    elif argument.startswith("-o"):
        option, path = argument[:2], argument[2:]
    parts = path.replace(os.sep, "/").split("/")
    is_dash = parts[0] == "." and [part for part in parts if part not in (".", "")] == ["-"]
    return f"{option}{equals}{os.path.abspath(path)}" if is_dash else argument


def first_device(spec: str) -> str:
    """The first of the devices that --device names, for commands that use one."""
    name = spec.split(",", maxsplit=1)[0].strip()
    return {"all": "auto", "gpus": "gpu"}.get(name.lower(), name)
