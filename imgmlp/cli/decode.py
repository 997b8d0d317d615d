"""`imgmlp decode`: a file's picture, at its own size or another."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from imgmlp import facts, output_files
from imgmlp import image as pictures
from imgmlp.cli import devices
from imgmlp.cli.parsing import parse_scale, parse_size, scaled
from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device
from imgmlp.errors import UsageError
from imgmlp.terminal import Terminal
from imgmlp.text import duration, standard_output

STDOUT = Path("-")


def run(
    terminal: Terminal,
    source: Path,
    output: Path | None,
    scale: float | None,
    wanted: str | None,
    device_spec: str,
    force: bool,
) -> None:
    """Write the picture that a file holds; to stdout if output is `-`."""
    began = time.perf_counter()
    parse_scale(scale)
    dimensions = parse_size(wanted)
    if scale is not None and dimensions is not None:
        raise UsageError("--scale and --size are both given", hint="choose one of them")
    stored = open_stored(source)
    target = output or source.with_suffix(".decoded.png" if stored.exact else ".png")
    _check_decoded(target, force)
    if scale is not None:
        dimensions = scaled(stored.width, stored.height, scale)
    if target != STDOUT:
        own = stored.width, stored.height
        pictures.check_extension(target, stored.channels, dimensions or own)
    device = open_device(device_spec)
    terminal.detail(devices.details(device))
    pixels = stored.decode(device, dimensions)
    if stored.exact and dimensions not in (None, (stored.width, stored.height)):
        terminal.note("another size than its own: rendered in floats, not the exact picture")
    if target == STDOUT:
        with standard_output() as stdout:
            pictures.save_png(pixels, stdout.buffer, stored.metadata)
        return
    if lost := pictures.save_picture(pixels, target, stored.metadata):
        terminal.note(f"{target} cannot hold the {' and '.join(lost)}")
    height, width, channels = pixels.shape
    seconds = duration(time.perf_counter() - began)
    terminal.done(f"{target}  {facts.dimensions(width, height, channels)}   {seconds}")


def _check_decoded(target: Path, force: bool) -> None:
    if target != STDOUT:
        pictures.check_extension(target)
        output_files.check_output(target, force)
    elif sys.stdout is not None and sys.stdout.isatty():
        hint = "send it somewhere: imgmlp decode weights.npz -o - > picture.png"
        raise UsageError("a PNG is nothing that a terminal can show", hint=hint)
