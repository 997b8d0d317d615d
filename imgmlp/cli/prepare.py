"""`imgmlp devices --prepare`: compiles in advance what pictures of any size need."""

from __future__ import annotations

import json

from imgmlp.cli.folders import Request
from imgmlp.codec import kinds
from imgmlp.engine import open_device
from imgmlp.errors import UsageError
from imgmlp.terminal import Terminal
from imgmlp.text import print_data


def run(terminal: Terminal, as_json: bool, spec: str | None, check: bool = False) -> None:
    """Compile for each kind of picture, and print how long that took.

    What is in the cache is not compiled again. Raises UsageError if --check is given as well, and
    DeviceError.
    """
    if check:
        hint = "check the device first, then prepare it"
        raise UsageError("--check and --prepare are both given", hint=hint)
    device = open_device(Request([], device=spec).single_device)
    terminal.note(device.info.describe())
    all_kinds = kinds.kinds(device)
    seconds_by_kind = dict[str, float]()
    for number, kind in enumerate(all_kinds, 1):
        seconds = seconds_by_kind[str(kind)] = kinds.compile_for(kind, device)
        terminal.note(f"{number} of {len(all_kinds)}   {kind}   {seconds:.1f} s of compiling")
    if as_json:
        terminal.has_printed_json = True
        rounded = {kind: round(seconds, 3) for kind, seconds in seconds_by_kind.items()}
        print_data(json.dumps(rounded))
    elif all_kinds:
        total = sum(seconds_by_kind.values())
        has_limit = device.lanes == "group"
        sizes = "up to 1536×1024 pixels, unless very narrow," if has_limit else "all sizes"
        terminal.done(f"RGB pictures of {sizes} now start at once   {total:,.0f} s of compiling")
    else:
        terminal.done("nothing to compile: only OpenCL devices need this")
