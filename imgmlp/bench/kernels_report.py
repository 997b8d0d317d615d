"""`imgmlp bench kernels`: measure, and print a table or JSON; also as CSV and as a plot."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from imgmlp import output_files
from imgmlp.bench import plot as drawing
from imgmlp.bench.kernels import (
    CASES,
    COLUMNS,
    QUICK_SIDES,
    SIDES,
    Ours,
    Point,
    rows,
    sweep,
)
from imgmlp.bench.peak import Peak, described
from imgmlp.engine import AnyDevice, Device, open_device
from imgmlp.errors import OutOfMemoryError, UsageError
from imgmlp.terminal import Terminal, print_table
from imgmlp.text import print_data

TURNS, QUICK_TURNS = 15, 5
MOST_SIDE = 10**9  # whose matrix has fewer bytes than can be counted
NONE = "–"
PLOTS = (".png", ".svg")


def bench_kernels(
    terminal: Terminal,
    device_spec: str,
    quick: bool,
    sides: Sequence[int],
    as_json: bool,
    table_file: Path | None,
    plot: Path | None,
    force: bool,
) -> None:
    """Print how fast single kernels are; also write them as CSV and draw them, if wanted.

    Raises UsageError for sides that no matrix has, or if there is no matplotlib to draw with, and
    OutOfMemoryError for sides that do not fit.
    """
    for side in sides:
        if not 1 <= side <= MOST_SIDE:
            hint = f"use a whole number from 1 to {MOST_SIDE:,}, as often as you like"
            raise UsageError(f"--side is {side:,}", hint=hint)
    _check(table_file, plot, force)
    device = open_device(device_spec)
    terminal.note(device.info.describe())
    try:
        points, peak = run(terminal, device, quick, sides)
    except (MemoryError, OutOfMemoryError) as error:
        raise OutOfMemoryError("out of memory", hint="give a smaller --side") from error
    if table_file is not None:
        text = as_csv(points, peak).encode()
        output_files.write_atomically(table_file, lambda stream: stream.write(text), force)
    if plot is not None:
        kind, title = plot.suffix.lstrip(".").lower(), device.info.describe()
        output_files.write_atomically(
            plot, lambda stream: drawing.save(points, title, stream, kind), force
        )
    if as_json:  # last: where a file cannot be written, the error is what stdout has
        print_data(json.dumps(rows(points, peak), indent=2))
    else:
        print_table(*table(points, peak), caption(peak, device))


def _check(table_file: Path | None, plot: Path | None, force: bool) -> None:
    """Refuse, before anything is measured, files that cannot be written, as an ImgmlpError."""
    paths = [path for path in (table_file, plot) if path is not None]
    if Path("-") in paths:
        hint = "give a file; --json prints the figures"
        raise UsageError("tables and plots are not written to standard output", hint=hint)
    output_files.check_distinct(paths, [], "give each a name of its own")
    for path in paths:
        output_files.check_output(path, force)
    if plot is None:
        return
    if plot.suffix.lower() not in PLOTS:
        problem = f"a plot is no {plot.suffix or 'file without an ending'}"
        raise UsageError(problem, hint=f"end its name with {' or '.join(PLOTS)}")
    if find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib", hint="pip install matplotlib")


def run(
    terminal: Terminal, device: AnyDevice, quick: bool, sides: Sequence[int]
) -> tuple[list[Point], float | None]:
    """All measurements, with their progress shown, and the device's peak in GFLOP/s."""
    chosen = {unit: sides or usual for unit, usual in (QUICK_SIDES if quick else SIDES).items()}
    with terminal.stages(sum(len(chosen[case.unit]) for case in CASES)) as tell:
        points = list(sweep(device, chosen, QUICK_TURNS if quick else TURNS, tell))
    return points, Peak(device).gflops() if isinstance(device, Device) else None


def table(points: Sequence[Point], peak: float | None) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: a line for each case and size, a column for each provider."""
    names = list(dict.fromkeys(name for p in points for name in p.seconds))
    lines = []
    for p in points:
        speeds = [f"{p.speed(n):,.1f}" if n in p.seconds else NONE for n in names]
        share = p.share(Ours.name, peak)
        reached = f"{share:.0%}" if share is not None else NONE
        lines.append([f"{p.case.name} {p.side} × {p.side}", p.case.unit, *speeds, reached])
    return ["", "", *names, "of the ceiling"], lines


def caption(peak: float | None, device: AnyDevice) -> str:
    copies = "The ceiling of GB/s is the driver's own copy of as many bytes"
    most = f"the measured peak, {described(peak, device)}" if peak else "unknown"
    return f"{copies}, of GFLOP/s {most}."


def as_csv(points: Sequence[Point], peak: float | None) -> str:
    """A line for each provider and size."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(points, peak))
    return text.getvalue()
