"""The command `imgmlp`, which is also `python -m imgmlp`.

A plain look at a file is answered here: loading the command line takes several times as long.
Whatever is not quite plain goes there, also to have an error told.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from imgmlp import facts
from imgmlp.errors import Interrupted, OutputError
from imgmlp.text import print_data

COMPLETION = "_IMGMLP_COMPLETE"  # set by a shell that asks what could be typed


def main() -> None:
    """Run the command line and leave with its exit code."""
    text = looked_at(sys.argv[1:])
    if text is None:
        from imgmlp import cli

        cli.main()
        return
    try:
        print_data(text)
    except OutputError as error:
        from imgmlp.terminal import Terminal

        sys.exit(Terminal().fail(error))


def looked_at(arguments: list[str]) -> str | None:
    """What there is to print if these are `info FILE [--json]` and the file is sound."""
    command, rest = arguments[:1], [word for word in arguments[1:] if word != "--json"]
    plain = command == ["info"] and len(rest) == 1 and not rest[0].startswith("-")
    if not plain or len(arguments) > 3 or COMPLETION in os.environ:
        return None
    try:
        return facts.text(Path(rest[0]), "--json" in arguments)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except Exception:  # the command line says what is wrong
        return None


if __name__ == "__main__":
    main()
