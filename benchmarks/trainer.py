"""What `imgmlp train` adds to the bare training step, and how long a whole run takes.

    python -m benchmarks.trainer IMAGE

The trainer (progress bar, loss checks, reads of the weights) and the bare replay of the same step
alternate. The overhead is the ratio of neighbouring turns, in wall-clock time and in processor time
of all threads, which other programs disturb less. Then whole processes train with each preset:
seconds from their start until the smoothed loss corresponds to 19 dB, and until the weights are
written.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from imgmlp import image as pictures
from imgmlp.bench.job import Job
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.fit import fit
from imgmlp.codec.training.run import Run
from imgmlp.engine import open_device
from imgmlp.terminal import Terminal

GOAL = 19.0  # dB


def clock(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processors."""
    begin, busy = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - begin, time.process_time() - busy


def overhead(image: Path, preset: str, spec: str, steps: int, turns: int) -> tuple[float, float]:
    """Times of the trainer over those of the bare step: by the clock, and of the processors."""
    settings = replace(PRESETS[preset], steps=steps)
    job = Job(pictures.load(image).pixels, settings)
    step = job.step(settings.batch, open_device(spec))

    def bare() -> None:
        step.program.run(steps)
        step.program.wait()

    def trained() -> None:
        with Terminal().training(steps) as show:
            fit(step, Run(show))

    bare()  # what is slow only once
    found = []
    for _ in range(turns):
        before, ours, after = clock(bare), clock(trained), clock(bare)
        found.append([2 * t / (b + a) for b, t, a in zip(before, ours, after, strict=True)])
    wall, busy = zip(*found, strict=True)
    return median(wall), median(busy)


SCRIPT = """
import json, sys, time
import imgmlp

image, preset, device, goal = sys.argv[1:]
reached = []

def told(progress):
    if not reached and progress.psnr >= float(goal):
        reached.append(time.time())

trained = imgmlp.train(image, output="w.npz", preset=preset, device=device, on_step=told)
print(json.dumps([reached, time.time(), trained.psnr]))
"""


def whole_run(image: Path, preset: str, spec: str) -> tuple[float, float, float]:
    """Seconds to GOAL and to the end from the start of the process, and the picture's dB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, str(image.resolve()), preset, spec, str(GOAL)]
        begin = time.time()
        reached, end, psnr = json.loads(subprocess.check_output(command, cwd=folder))
    return (reached[0] if reached else math.inf) - begin, end - begin, psnr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("image", type=Path)
    parser.add_argument("--steps", type=int, default=2000, help="in a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--runs", type=int, default=3, help="whole processes for each preset")
    parser.add_argument("--device", default="auto", help="as `imgmlp devices` lists them")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    print(f"preset    trainer / step   processors'   {GOAL:.0f} dB, s   done, s      dB")
    found = {}
    for preset in PRESETS:
        how = options.image, preset, options.device
        wall, busy = overhead(*how, options.steps, options.turns)
        runs = [whole_run(*how) for _ in range(options.runs)]
        reached, done, psnr = (median(column) for column in zip(*runs, strict=True))
        line = f"{wall:14.3f}  {busy:12.3f}  {reached:9.2f}  {done:8.2f}  {psnr:6.2f}"
        print(f"{preset:<8}{line}", flush=True)
        found[preset] = {"trainer": wall, "trainer_busy": busy, "done_s": done, "psnr": psnr}
        found[preset]["goal_s"] = reached
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
