"""Compare random graphs of Tensor operations with NumPy on any device.

    python tools/graphs.py --device numpy --count 1000
    python tools/graphs.py --device cpu --lanes group --first 5000 --together 4

Each seed gives a graph (tests/random_graphs.py). A failing graph is reduced and printed as a
program of its own; the exit code is then 1. `--together` compiles several graphs as one program,
which is faster with OpenCL.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from graph_check import expected, faults_of, faults_on, shrunk, told
from graph_text import Graph
from random_graphs import Maker

from imgmlp.engine import AnyDevice, open_device


def report(seed: int, graph: Graph, device: AnyDevice, opened: str) -> None:
    """Print the smallest program to which a failing graph can be reduced."""
    kind = faults_of(graph, device)[0].told.partition(":")[0]

    def fails(smaller: Graph) -> bool:
        found = faults_of(smaller, device)
        return any(f.name or f.told.partition(":")[0] == kind for f in found)

    small = shrunk(graph, fails)
    print(f"# seed {seed}", told(small, faults_of(small, device), opened), sep="\n", end="\n\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="as `imgmlp devices` lists it, or a form")
    parser.add_argument(
        "--lanes", choices=["one", "group"], help="replace the device's own mapping"
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--together", type=int, default=1)
    given = parser.parse_args()
    device, opened = open_device(given.device), f"device = open_device({given.device!r})"
    if given.lanes:
        device.lanes = given.lanes
        opened += f"\ndevice.lanes = {given.lanes!r}"
    wrong = 0
    for first in range(given.first, given.first + given.count, given.together):
        seeds = range(first, min(first + given.together, given.first + given.count))
        graphs = [Maker(seed).graph() for seed in seeds]
        try:
            wanted = [expected(g) for g in graphs]
            faults = faults_on(graphs, wanted, device)
            failed = any(w.faults or f for w, f in zip(wanted, faults, strict=True))
        except Exception:  # reported below, for the graph that raises it
            failed = True
        alone = [faults_of(graph, device) for graph in graphs] if failed else []
        for seed, graph, found in zip(seeds, graphs, alone, strict=True) if failed else ():
            if found:
                wrong += 1
                report(seed, graph, device, opened)
        if failed and not any(alone):
            wrong += 1
            print(f"# seeds {first} to {seeds[-1]} fail in one program, and none by itself")
        done = seeds.stop - given.first
        if sys.stderr.isatty() or done == given.count:
            print(f"{done} graphs, {wrong} wrong", file=sys.stderr, end="\r")
    print(file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
