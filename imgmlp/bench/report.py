"""`imgmlp bench`: measure, and print a table or JSON."""

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

NONE = "–"


def bench(terminal: Terminal, device_spec: str, quick: bool, as_json: bool) -> None:
    """Print how fast this machine trains and decodes. Raises what opening the device does."""
    device = open_device(device_spec)
    terminal.note(device.info.describe())
    measured = run(terminal, device, standard_job(), BATCHES, QUICK if quick else FULL)
    show(measured, device, as_json)


def show(measured: Measured, device: AnyDevice, as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        print_data(json.dumps(speed.as_json(measured, device), indent=2))
    else:
        print_table(*table(measured), caption(measured, device))


def run(
    terminal: Terminal, device: AnyDevice, job: Job, batches: Sequence[int], turns: Turns
) -> Measured:
    """All measurements, with their progress shown."""
    with terminal.stages(len(batches) + 3) as tell:
        measured = speed.measure(job, device, batches, turns, tell)
        tell("start-up")
        for turn in range(turns.starts + 1):
            seconds = seconds_to_first_step(device.info.spec)
            if turn:  # the first may compile
                measured.start.append(seconds)
    return measured


def table(measured: Measured) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: a figure each, imgmlp's first, then how long others take."""
    ours, *others = measured.times
    steps, rates = measured.us_per_step(ours), measured.rows_per_second(ours)
    shares = measured.share_of_peak(ours)
    rows = []
    for batch, us in steps.items():
        what = f"step of {batch:,} rows"
        share = f"{shares[batch]:.0%}" if shares else NONE
        theirs = [_beside(measured.us_per_step(name).get(batch), us, "µs") for name in others]
        rows.append([what, f"{us:,.0f} µs", f"{rates[batch] / 1e6:.2f}", share, *theirs])
    height, width, _ = measured.job.pixels.shape
    ms = measured.decode_ms(ours)
    theirs = [_beside(measured.decode_ms(name), ms, "ms") for name in others]
    rows.append([f"decode {width}×{height}", f"{ms:,.1f} ms", NONE, NONE, *theirs])
    start = median(measured.start)
    rows.append(["start to first step", f"{start:.2f} s", NONE, NONE, *(NONE for _ in others)])
    return ["", ours, "Mrow/s", "of peak", *others], rows


def _beside(theirs: float | None, ours: float, unit: str) -> str:
    if theirs is None:
        return NONE
    digits = 1 if unit == "ms" else 0
    return f"{theirs:,.{digits}f} {unit}, {theirs / ours:.1f}×"


def caption(measured: Measured, device: AnyDevice) -> str:
    """What the figures are."""
    height, width, _ = measured.job.pixels.shape
    what = (
        f"AdamW on {measured.job.architecture}, random pixels of {width}×{height}; medians of turns"
    )
    peak = measured.peak_gflops()
    most = "" if peak is None else f"\npeak: {described(peak, device)}, measured in turn"
    return "\n".join([f"{device.info.describe()}\n{what}{most}", *measured.left_out])
