"""Speed of training and decoding compared with NumPy and PyTorch: tables and plot of the docs.

    python -m benchmarks.speed --json here.json
    python -m benchmarks.speed --show here.json there.json --plot speed.svg

The first command runs `imgmlp bench --json` in several processes of its own, each of which times
all contenders alternately, and writes their results to a file. The second one prints such files as
Markdown and, with matplotlib (`pip install '.[plot]'`), plots them: medians over processes, with
ratios that are computed within each process. PyTorch is needed for its own columns only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Run = dict[str, Any]  # what `imgmlp bench --json` prints
OURS = "imgmlp"


def measure(device: str, processes: int, quick: bool) -> list[Run]:
    """Figures of every process."""
    command = [sys.executable, "-m", "imgmlp", "bench", "--json", "--device", device]
    command += ["--quick"] if quick else []
    runs = []
    for number in range(processes):
        print(f"process {number + 1} of {processes}", file=sys.stderr)
        runs.append(json.loads(subprocess.check_output(command)))
    return runs


def middle(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    """The median of a figure over the processes that have it."""
    found = [value for run in runs if (value := figure(run)) is not None]
    return median(found) if found else None


def of(run: Run, name: str) -> Run:
    """A contender's figures in a run."""
    return run if name == OURS else run["others"].get(name, {"us_per_step": {}, "decode_ms": None})


def names(runs: Sequence[Run]) -> list[str]:
    return [OURS, *dict.fromkeys(name for run in runs for name in run["others"])]


def report(runs: Sequence[Run]) -> str:
    """Markdown: what it ran on, a table of steps, and a line about decoding and the start."""
    first, there = runs[0], names(runs)
    heading = ["rows of a step", "imgmlp, µs", "Mrow/s", "GFLOP/s", "of peak"]
    heading += [f"{name}, µs" for name in there[1:]]
    lines = [heading, ["---"] * len(heading)]
    for batch in first["us_per_step"]:
        lines.append(_step(runs, batch, there[1:]))
    decode = ["decode, ms", _number(middle(runs, lambda r: r["decode_ms"]), 1), "", "", ""]
    for name in there[1:]:
        decode.append(_beside(runs, lambda r, n: of(r, n)["decode_ms"], name, 1))
    lines.append(decode)
    peak = _number(middle(runs, lambda r: r["peak_gflops"]), 0)
    start = _number(middle(runs, lambda r: r["start_s"]), 2)
    return "\n".join(
        [
            f"{first['device']}; {first['driver']}; {len(runs)} processes",
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            f"Peak of multiply-adds: {peak} GFLOP/s. The first step of a new process: {start} s.",
        ]
    )


def _step(runs: Sequence[Run], batch: str, others: Sequence[str]) -> list[str]:
    def figure(name: str) -> float | None:
        return middle(runs, lambda run: run[name].get(batch))

    rate, share = figure("rows_per_second"), figure("share_of_peak")
    line = [f"{int(batch):,}", _number(figure("us_per_step"), 0)]
    line += [_number(None if rate is None else rate / 1e6, 2), _number(figure("gflops"), 0)]
    line += ["–" if share is None else f"{share:.0%}"]
    return line + [
        _beside(runs, lambda r, n: of(r, n)["us_per_step"].get(batch), n) for n in others
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _beside(
    runs: Sequence[Run], figure: Callable[[Run, str], float | None], name: str, digits: int = 0
) -> str:
    """Another's time, and how many of imgmlp's it is."""

    def ratio(run: Run) -> float | None:
        theirs, ours = figure(run, name), figure(run, OURS)
        return None if theirs is None or ours is None else theirs / ours

    times = middle(runs, ratio)
    found = _number(middle(runs, lambda run: figure(run, name)), digits)
    return found if times is None else f"{found} ({times:.1f}×)"


def plot(machines: Sequence[Sequence[Run]], path: Path) -> None:
    """Rows a second over rows of a step: a panel for each machine, a line for each contender."""
    import matplotlib as mpl  # the only thing here that needs it

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(machines), figsize=(5.5 * len(machines), 4), squeeze=False, layout="constrained"
    )
    for panel, runs in zip(panels[0], machines, strict=True):
        for name in names(runs):
            batches = list(of(runs[0], name)["us_per_step"])
            rates = [
                middle(runs, lambda r, n=name, b=b: int(b) / of(r, n)["us_per_step"][b])
                for b in batches
            ]
            width = 2.5 if name == OURS else 1.2
            panel.plot([int(b) for b in batches], rates, marker="o", linewidth=width, label=name)
        panel.set(xscale="log", yscale="log", title=runs[0]["device"])
        panel.set(xlabel="rows of a training step", ylabel="million rows a second")
        panel.grid(visible=True, which="both", alpha=0.2)
        panel.legend()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="measure, and write all figures here")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--device", default="auto", help="as `imgmlp devices` lists them")
    parser.add_argument("--quick", action="store_true", help="short turns")
    parser.add_argument("--show", type=Path, nargs="+", default=[], help="files to make tables of")
    parser.add_argument("--plot", type=Path, help="also draw them: .svg or .png")
    options = parser.parse_args()
    if not options.json and not options.show:
        parser.error("give --json to measure, or --show")
    if options.json:
        runs = measure(options.device, options.processes, options.quick)
        options.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    paths = options.show or [options.json]
    machines = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    print("\n\n".join(map(report, machines)))
    if options.plot:
        plot(machines, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
