"""Where the time of one `imgmlp encode` goes: the start and the duration of each phase, in seconds.

    python -m benchmarks.encode_phases PICTURE [--effort 7] [--device gpu]

Phases are calls of the functions in PHASES. They are indented below the phase that they are part
of. The first row ends when all modules are imported. Run it twice, because the first run compiles.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

BEGAN = time.perf_counter() - time.process_time()  # includes the start of Python
MIN_SHOWN_SECONDS = 0.003
LATENT = "imgmlp.codec.latent"
# (module, function) of each phase, by its name in the output.
PHASES = {
    "read the picture": ("imgmlp.cli.parsing", "load_picture"),
    "open the device": ("imgmlp.cli.encode", "_open_device"),
    "estimate the time": ("imgmlp.codec.encoder", "expected_seconds"),
    "encode": ("imgmlp.codec.encoder", "encode"),
    "prepare": (f"{LATENT}.encode", "_Encoder._prepare_trainer"),
    "make the step": (f"{LATENT}.step.latent_step", "LatentStep.__init__"),
    "load a program": ("imgmlp.engine.runtime.program", "Program.__init__"),
    "time the step": (f"{LATENT}.training.run_plan", "RunPlan.choose_steps"),
    "initial latents": (f"{LATENT}.encode", "initialise"),
    "train": (f"{LATENT}.encode", "_Encoder._train"),
    "round": (f"{LATENT}.encode", "_Encoder._round"),
    "step sizes of networks": (f"{LATENT}.training.bit_allocation", "Search.best_networks"),
    "progressive quantisation": (f"{LATENT}.training.progressive_quantisation", "quantise"),
    "RDOQ of latents": (f"{LATENT}.training.bit_allocation", "Search.optimise_latents"),
    "single weights": (f"{LATENT}.training.bit_allocation", "Search.refined"),
    "code and synthesise": (f"{LATENT}.training.rounding_search", "Rounding._written"),
    "decode the file": ("imgmlp.codec.encoder", "_decoded"),
}


class Timeline:
    """Replaces functions by ones that record when they are called and how long they take."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float, int, str]] = []  # start, seconds, depth, phase
        self._depth = 0

    def record(self, phase: str, module: str, function: str) -> None:
        """Record the calls of a function, which may be a method."""
        *holders, name = function.split(".")
        holder: Any = functools.reduce(getattr, holders, importlib.import_module(module))
        original = getattr(holder, name)

        @functools.wraps(original)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began, depth = time.perf_counter(), self._depth
            self._depth += 1
            try:
                return original(*arguments, **keywords)
            finally:
                self._depth = depth
                self.calls.append((began - BEGAN, time.perf_counter() - began, depth, phase))

        setattr(holder, name, timed)

    def render(self, end: float) -> str:
        shown = [call for call in sorted(self.calls) if call[1] >= MIN_SHOWN_SECONDS]
        rows = [
            f"{start:7.3f} {took:7.3f}  {'  ' * deep}{name}" for start, took, deep, name in shown
        ]
        return "\n".join([*rows, f"{end:7.3f}          end"])


def _raise_exit(code: int) -> NoReturn:
    """Replaces the command's own way to end its process, which would skip what follows."""
    raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--effort", default="7")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    from imgmlp import cli, ending  # here, as the time of its imports counts

    timeline = Timeline()
    for phase, (module, function) in PHASES.items():
        timeline.record(phase, module, function)
    timeline.calls.append((0.0, time.perf_counter() - BEGAN, 0, "imports"))
    with tempfile.TemporaryDirectory() as folder:
        choices = "--effort", options.effort, "--device", options.device
        output = str(Path(folder, "file.imlp"))
        sys.argv = ["imgmlp", "encode", str(options.picture), *choices, "-o", output]
        ending.leave = _raise_exit
        try:
            cli.main(BEGAN)
        except SystemExit as ended:
            if ended.code:
                raise
    print(timeline.render(time.perf_counter() - BEGAN))


if __name__ == "__main__":
    main()
