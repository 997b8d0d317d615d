"""`imgmlp bench kernels`: measures, prints a table or JSON, and writes CSV files and plots."""

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
MAX_SIDE = 10**9  # so that the bytes of a matrix fit in 64 bits
NO_VALUE = "–"
PLOT_EXTENSIONS = (".png", ".svg")


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
    """Measure and print how fast single kernels are; write CSV and a plot if files are given.

    Raises UsageError for invalid sides or if matplotlib is missing, OutOfMemoryError for matrices
    that do not fit, and the errors of `_check`.
    """
    for side in sides:
        if not 1 <= side <= MAX_SIDE:
            hint = f"use a whole number from 1 to {MAX_SIDE:,}, as often as you like"
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
    if as_json:  # last, so that stdout has only the error if a file cannot be written
        print_data(json.dumps(rows(points, peak), indent=2))
    else:
        print_table(*table(points, peak), caption(peak, device))


def _check(table_file: Path | None, plot: Path | None, force: bool) -> None:
    """Raise an ImgmlpError before anything is measured if a file cannot be written."""
    paths = [path for path in (table_file, plot) if path is not None]
    if Path("-") in paths:
        hint = "give a file; --json prints the figures"
        raise UsageError("tables and plots are not written to standard output", hint=hint)
    output_files.check_distinct(paths, [], "give each a name of its own")
    for path in paths:
        output_files.check_output(path, force)
    if plot is None:
        return
    if plot.suffix.lower() not in PLOT_EXTENSIONS:
        problem = f"a plot is no {plot.suffix or 'file without an ending'}"
        raise UsageError(problem, hint=f"end its name with {' or '.join(PLOT_EXTENSIONS)}")
    if find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib", hint="pip install matplotlib")


def run(
    terminal: Terminal, device: AnyDevice, quick: bool, sides: Sequence[int]
) -> tuple[list[Point], float | None]:
    """Do all measurements and show their progress; also returns the device's peak in GFLOP/s."""
    chosen = {unit: sides or default for unit, default in (QUICK_SIDES if quick else SIDES).items()}
    with terminal.stages(sum(len(chosen[case.unit]) for case in CASES)) as tell:
        points = list(sweep(device, chosen, QUICK_TURNS if quick else TURNS, tell))
    return points, Peak(device).gflops() if isinstance(device, Device) else None


def table(points: Sequence[Point], peak: float | None) -> tuple[list[str], list[list[str]]]:
    """The heading and rows of the table: a row per case and size, a column per provider."""
    names = list(dict.fromkeys(name for p in points for name in p.seconds))
    lines = []
    for p in points:
        speeds = [f"{p.speed(n):,.1f}" if n in p.seconds else NO_VALUE for n in names]
        fraction = p.fraction_of_ceiling(Ours.name, peak)
        fraction_text = f"{fraction:.0%}" if fraction is not None else NO_VALUE
        lines.append([f"{p.case.name} {p.side} × {p.side}", p.case.unit, *speeds, fraction_text])
    return ["", "", *names, "of the ceiling"], lines


def caption(peak: float | None, device: AnyDevice) -> str:
    copy_text = "The ceiling of GB/s is the driver's own copy of as many bytes"
    peak_text = f"the measured peak, {described(peak, device)}" if peak else "unknown"
    return f"{copy_text}, of GFLOP/s {peak_text}."


def as_csv(points: Sequence[Point], peak: float | None) -> str:
    """The results as CSV, with a line for each provider and size."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(points, peak))
    return text.getvalue()
