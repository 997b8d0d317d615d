"""`imgmlp bench`: measures the speed of this machine and prints a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

from imgmlp.bench import speed
from imgmlp.bench.job import BATCHES, Job, standard_job
from imgmlp.bench.peak import described
from imgmlp.bench.speed import FULL, QUICK, Measured, Turns
from imgmlp.bench.start import seconds_to_first_step
from imgmlp.engine import AnyDevice, open_device
from imgmlp.terminal import Terminal, print_table
from imgmlp.text import print_data

NO_VALUE = "–"


def bench(terminal: Terminal, device_spec: str, quick: bool, as_json: bool) -> None:
    """Measure and print how fast this machine trains and decodes. Raises as `open_device` does."""
    device = open_device(device_spec)
    terminal.note(device.info.describe())
    measured = run(terminal, device, standard_job(), BATCHES, QUICK if quick else FULL)
    show(measured, device, as_json)


def show(measured: Measured, device: AnyDevice, as_json: bool) -> None:
    """Print the results."""
    if as_json:
        print_data(json.dumps(speed.as_json(measured, device), indent=2))
    else:
        print_table(*table(measured), caption(measured, device))


def run(
    terminal: Terminal, device: AnyDevice, job: Job, batches: Sequence[int], turns: Turns
) -> Measured:
    """Do all measurements and show their progress."""
    with terminal.stages(len(batches) + 3) as tell:
        measured = speed.measure(job, device, batches, turns, tell)
        tell("start-up")
        for turn in range(turns.starts + 1):
            seconds = seconds_to_first_step(device.info.spec)
            if turn:  # the first may compile kernels
                measured.start.append(seconds)
    return measured


def table(measured: Measured) -> tuple[list[str], list[list[str]]]:
    """The heading and rows of the table. Each row has a figure of imgmlp and of the others."""
    ours, *others = measured.times
    steps, rates = measured.us_per_step(ours), measured.rows_per_second(ours)
    fractions_of_peak = measured.fraction_of_peak(ours)
    rows = []
    for batch, us in steps.items():
        what = f"step of {batch:,} rows"
        fraction = f"{fractions_of_peak[batch]:.0%}" if fractions_of_peak else NO_VALUE
        theirs = [_compared(measured.us_per_step(name).get(batch), us, "µs") for name in others]
        rows.append([what, f"{us:,.0f} µs", f"{rates[batch] / 1e6:.2f}", fraction, *theirs])
    height, width, _ = measured.job.pixels.shape
    ms = measured.decode_ms(ours)
    theirs = [_compared(measured.decode_ms(name), ms, "ms") for name in others]
    rows.append([f"decode {width}×{height}", f"{ms:,.1f} ms", NO_VALUE, NO_VALUE, *theirs])
    start = median(measured.start)
    rows.append(
        ["start to first step", f"{start:.2f} s", NO_VALUE, NO_VALUE, *(NO_VALUE for _ in others)]
    )
    return ["", ours, "Mrow/s", "of peak", *others], rows


def _compared(theirs: float | None, ours: float, unit: str) -> str:
    if theirs is None:
        return NO_VALUE
    digits = 1 if unit == "ms" else 0
    return f"{theirs:,.{digits}f} {unit}, {theirs / ours:.1f}×"


def caption(measured: Measured, device: AnyDevice) -> str:
    """The text below the table, which says what the figures are."""
    height, width, _ = measured.job.pixels.shape
    what = (
        f"AdamW on {measured.job.architecture}, random pixels of {width}×{height}; medians of turns"
    )
    peak = measured.peak_gflops()
    peak_text = "" if peak is None else f"\npeak: {described(peak, device)}, measured in turn"
    return "\n".join([f"{device.info.describe()}\n{what}{peak_text}", *measured.left_out])
