"""What words of a command mean that are looked at before Typer reads them, or beside it.

Loads nothing.
"""

from __future__ import annotations

COMPLETION = "_IMGMLP_COMPLETE"  # set by a shell that asks what could be typed


def options_in(words: list[str]) -> list[str]:
    """Those words of a command that may be options."""
    return words[: words.index("--")] if "--" in words else words


def first_of(spec: str) -> str:
    """One of the devices that --device names, for what is done on one."""
    name = spec.split(",", maxsplit=1)[0].strip()
    return {"all": "auto", "gpus": "gpu"}.get(name.lower(), name)
