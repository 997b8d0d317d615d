"""What compiling a step costs and what the program needs: time, launches, memory, host time.

    python -m benchmarks.compile_time

The steps are the default training step of a picture, as a block program and with the general
scheduler alone, and those of examples/transformer.py. Each is compiled in several processes of its
own, because a second compilation in one process would find its caches filled. Exits with 1 if a
figure misses its goal, and says which.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from examples import transformer
from imgmlp.codec.float_mlp import fit, pipeline
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.engine import AnyDevice, Program, compiler, open_device
from imgmlp.engine.device import driver
from imgmlp.engine.runtime import program_cache

PICTURE = 512, 512, 3
REPLAYS = 200  # steps, of which the host's work is measured
# Goals. `python` and `host` are microseconds per launch, without and with the driver's enqueueing.
MOST = {
    "mlp-general": {"seconds": 0.3, "launches": 14, "python": 10.0},
    "mlp": {"seconds": 0.3, "launches": 14, "python": 10.0},
    "transformer-1": {"python": 10.0},
    "transformer-4": {"seconds": 3.0, "python": 10.0},
}
LEAST = {"mlp-general": {"saved": 0.7}, "mlp": {"saved": 0.7}, "transformer-1": {"saved": 0.7}}
# Functions of imgmlp/engine/compiler.py whose time is shown.
PASSES = ("simplify", "schedule", "block_procedure", "fuse", "linearize", "render", "plan_memory")


def make(step: str, device: AnyDevice) -> Program:
    if step.startswith("mlp"):
        general = step == "mlp-general"
        return pipeline.training_step(PRESETS["default"], device, *PICTURE, general)
    sizes = transformer.Sizes(layers=int(step.removeprefix("transformer-")))
    return transformer.compile_step(transformer.Sorter(sizes, device), sizes, device)


class Clock:
    """Replaces a module's function and adds up the time of its calls.

    It counts seconds of this thread's processor time, which exclude other programs.
    """

    def __init__(self, holder: Any, name: str) -> None:
        self.function, self.seconds = getattr(holder, name), 0.0
        setattr(holder, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.thread_time() - begin


def host_time(program: Program) -> float:
    """Microseconds of this thread's processor time per launch while a step replays."""
    found = []
    for _ in range(5):
        program.wait()
        begin = time.thread_time()
        program.run(REPLAYS)
        found.append((time.thread_time() - begin) / REPLAYS / len(program.launches) * 1e6)
        program.wait()
    return statistics.median(found)


def without_driver(measure: Callable[[], float]) -> float:
    """The result of `measure` if enqueueing does nothing."""
    enqueue = driver.cl.enqueue_nd_range_kernel
    driver.cl.enqueue_nd_range_kernel = lambda *args: None
    try:
        return measure()
    finally:
        driver.cl.enqueue_nd_range_kernel = enqueue


def figures(step: str, spec: str) -> dict[str, float]:
    """All figures of a step; call it in a process that has compiled nothing before."""
    program_cache.cache_folder = lambda: None  # what an earlier process made of it does not count
    device = open_device(spec)
    module = fit if step.startswith("mlp") else transformer
    compiling, build = Clock(module, "compile"), Clock(device, "build")
    passes = {name: Clock(compiler, name) for name in PASSES}
    compiling.function = alone(compiling.function, build, *passes.values())
    program = make(step, device)
    program.run(2)  # some drivers compile at the first launch
    found = {"seconds": compiling.seconds - build.seconds, **program.stages.figures()}
    found["host"] = host_time(program)
    found["python"] = without_driver(lambda: host_time(program))
    return found | {name: clock.seconds for name, clock in passes.items()}


def alone(compile: Callable[..., Program], *clocks: Clock) -> Callable[..., Program]:
    """Reset the clocks when `compile` is called, since drawing initial weights compiles as well."""

    def start(*args: Any, **kwargs: Any) -> Program:
        for clock in clocks:
            clock.seconds = 0.0
        return compile(*args, **kwargs)

    return start


def in_process(step: str, spec: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.compile_time", "--device", spec, "--one", step]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def misses(step: str, found: dict[str, float]) -> list[str]:
    most, least = MOST.get(step, {}), LEAST.get(step, {})
    high = [f"{n} {found[n]:.3g} > {limit}" for n, limit in most.items() if found[n] > limit]
    return high + [f"{n} {found[n]:.3g} < {m}" for n, m in least.items() if found[n] < m]


def table(results: dict[str, dict[str, float]]) -> str:
    lines = [
        "step           seconds  launches  kernels  bytes unfused      arena  saved"
        "  by packing  python us  host us"
    ]
    for step, f in results.items():
        lines.append(
            f"{step:<13}  {f['seconds']:7.3f}  {f['launches']:8.0f}  {f['kernels']:7.0f}"
            f"  {f['intermediate_bytes']:13,.0f}  {f['arena_bytes']:9,.0f}  {f['saved']:5.1%}"
            f"  {f['saved_by_packing']:10.1%}  {f['python']:9.2f}  {f['host']:7.2f}"
        )
    lines += ["", "milliseconds   " + "  ".join(f"{p:>15}" for p in (*PASSES, "all else"))]
    for step, f in results.items():
        spent = [f[p] for p in PASSES]
        spent.append(f["seconds"] - sum(spent))
        lines.append(f"{step:<13}  " + "  ".join(f"{1e3 * s:15.1f}" for s in spent))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=5, help="for each step; medians are shown")
    parser.add_argument("--device", default="cpu", help="as `imgmlp devices` lists them")
    parser.add_argument("--one", choices=list(MOST), help="print one step's figures as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(figures(options.one, options.device)))
        return 0
    rounds = [{s: in_process(s, options.device) for s in MOST} for _ in range(options.processes)]
    results = {
        step: {name: statistics.median(r[step][name] for r in rounds) for name in rounds[0][step]}
        for step in MOST
    }
    print(table(results))
    missed = [f"{step}: {miss}" for step, f in results.items() for miss in misses(step, f)]
    print("\n".join(missed or ["every goal is met"]), file=sys.stderr if missed else sys.stdout)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
