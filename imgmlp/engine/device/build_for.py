"""A process that builds parts of programs for the one that started it (build_beside.py).

    python -m imgmlp.engine.device.build_for DEVICE

It writes a line when the device is open and after each part. It reads one line for each part.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from imgmlp.engine.device.discover import open_named


def serve(spec: str, parts: TextIO, answers: TextIO) -> None:
    """Build the parts that are read, until the end of the input. Raises DeviceError."""
    device = open_named(spec)
    print("ready", file=answers, flush=True)
    for part in parts:
        device.build(json.loads(part), ())
        print("built", file=answers, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it ends it
    answers_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # drivers may print
    serve(sys.argv[1], sys.stdin, answers_stream)
