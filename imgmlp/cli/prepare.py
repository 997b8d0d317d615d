"""`imgmlp devices --prepare`: compiling what pictures of any size need, while nobody waits."""

from __future__ import annotations

import json

from imgmlp.cli.folders import Request
from imgmlp.codec import kinds
from imgmlp.engine import open_device
from imgmlp.errors import UsageError
from imgmlp.terminal import Terminal
from imgmlp.text import print_data


def run(terminal: Terminal, as_json: bool, spec: str | None, check: bool = False) -> None:
    """Compile for each kind of pictures, and tell how long that took; what was compiled before is
    found again. Raises UsageError where devices should be checked as well, DeviceError.
    """
    if check:
        hint = "check the device first, then prepare it"
        raise UsageError("--check and --prepare are both given", hint=hint)
    device = open_device(Request([], device=spec).single_device)
    terminal.note(device.info.describe())
    wanted = kinds.kinds(device)
    taken = dict[str, float]()
    for number, kind in enumerate(wanted, 1):
        seconds = taken[str(kind)] = kinds.compile_for(kind, device)
        terminal.note(f"{number} of {len(wanted)}   {kind}   {seconds:.1f} s of compiling")
    if as_json:
        terminal.has_printed_json = True
        print_data(json.dumps({kind: round(seconds, 3) for kind, seconds in taken.items()}))
    elif wanted:
        whole = sum(taken.values())
        few = device.lanes == "group"
        which = "up to 1536×1024 pixels, unless very narrow," if few else "all sizes"
        terminal.done(f"RGB pictures of {which} now start at once   {whole:,.0f} s of compiling")
    else:
        terminal.done("nothing to compile: only OpenCL devices need this")
