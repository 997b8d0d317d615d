"""The command `imgmlp`, which is also `python -m imgmlp`.

A plain look at a file is answered here: loading the command line takes several times as long.
Whatever is not quite plain goes there, also to have an error told.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from imgmlp import facts
from imgmlp.errors import Interrupted

COMPLETION = "_IMGMLP_COMPLETE"  # set by a shell that asks what could be typed


def main() -> None:
    """Run the command line and leave with its exit code."""
    if not looked(sys.argv[1:]):
        from imgmlp import cli

        cli.main()


def looked(arguments: list[str]) -> bool:
    """Whether these were `info FILE [--json]`, and the file's facts are printed."""
    command, rest = arguments[:1], [word for word in arguments[1:] if word != "--json"]
    plain = command == ["info"] and len(rest) == 1 and not rest[0].startswith("-")
    if not plain or len(arguments) > 3 or COMPLETION in os.environ:
        return False
    try:
        facts.info(Path(rest[0]), "--json" in arguments)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except Exception:  # the command line says what is wrong
        return False
    return True


if __name__ == "__main__":
    main()
