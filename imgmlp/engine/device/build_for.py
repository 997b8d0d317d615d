"""A process that builds parts of programs for the one that started it (build_beside.py).

    python -m imgmlp.engine.device.build_for DEVICE

It says a line when the device is open and after each part, of which it reads a line.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from imgmlp.engine.device.discover import open_untried
from imgmlp.engine.device.opencl import Device


def serve(spec: str, parts: TextIO, answers: TextIO) -> None:
    """Build what is told until there is no more. Raises DeviceError."""
    device = open_untried(spec)
    assert isinstance(device, Device)
    print("ready", file=answers, flush=True)
    for part in parts:
        source, options = json.loads(part)
        device.build(source, (), options)
        print("built", file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin, sys.stdout)
