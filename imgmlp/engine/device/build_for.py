"""A process that builds parts of programs for the one that started it (build_beside.py).

    python -m imgmlp.engine.device.build_for DEVICE

It says a line when the device is open and after each part, of which it reads a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from imgmlp.engine.device.discover import open_named


def serve(spec: str, parts: TextIO, answers: TextIO) -> None:
    """Build what is told until there is no more. Raises DeviceError."""
    device = open_named(spec)
    print("ready", file=answers, flush=True)
    for part in parts:
        device.build(json.loads(part), ())
        print("built", file=answers, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other one ends it
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # as drivers may print
    serve(sys.argv[1], sys.stdin, told)
