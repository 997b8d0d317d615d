"""`imgmlp graph`: prints the compiled training step in one of several forms."""

from __future__ import annotations

import json

from imgmlp.cli.devices import note_precision
from imgmlp.cli.parsing import parse_size
from imgmlp.codec.float_mlp import pipeline
from imgmlp.codec.float_mlp.config import Settings
from imgmlp.engine import open_device
from imgmlp.errors import UsageError
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, size


def run(
    terminal: Terminal,
    settings: Settings,
    picture_size: str,
    device_spec: str,
    form: str,
    as_json: bool,
    general: bool,
) -> None:
    """Print a form of the training step for an RGB picture of a size, or its figures as JSON."""
    width, height = parse_size(picture_size) or (0, 0)
    if as_json and form != "summary":
        raise UsageError("--json prints the step's figures only", hint="leave out --form or --json")
    device = open_device(device_spec)
    note_precision(terminal, settings, device)
    program = pipeline.training_step(settings, device, width, height, 3, general)
    if as_json:
        figures = program.stages.figures() | {"note": program.stages.procedure.note}
        print_data(json.dumps(figures, indent=2))
    elif form == "summary":
        print_data(_figures(program.stages.figures(), program.stages.procedure.note))
    elif form == "times":
        print_data(program.render_times())
    else:
        print_data(program.stages.show(form))


def _figures(figures: dict[str, int | float], note: str) -> str:
    saved, packing = figures["saved"], figures["saved_by_packing"]
    unfused = size(int(figures["intermediate_bytes"]))
    rows = {
        "launches": f"{figures['launches']}, of {figures['kernels']} different kernels",
        "memory": f"{size(int(figures['arena_bytes']))} of {unfused} unfused, {saved:.0%} saved",
        "packing": f"saves {packing:.0%} of what fusion leaves",
    }
    kind, _, why = (note or "no block: left out").partition(": ")
    rows[kind] = why
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())
