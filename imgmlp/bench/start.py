"""Times how long a new process takes to its first training step, with all kernels cached.

The process is `python -m imgmlp.bench.start DEVICE`. It prints a line when it has done a step.
"""

from __future__ import annotations

import subprocess
import sys
import time

from imgmlp import child
from imgmlp.bench.job import standard_job
from imgmlp.engine import open_device
from imgmlp.errors import DeviceError

BATCH = 512
DONE_LINE = "done"


def seconds_to_first_step(spec: str) -> float:
    """Seconds from the start of a process to the end of its first step. Raises DeviceError."""
    begin = time.perf_counter()
    with subprocess.Popen(
        child.command("imgmlp.bench.start", spec),
        env=child.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        seconds = time.perf_counter() - begin  # without the end of the process
        _, error_output = process.communicate()
    if line != DONE_LINE:
        reason = (error_output.strip().splitlines() or ["it said nothing"])[-1]
        hint = "`imgmlp devices --check` tells more"
        raise DeviceError(f"a separate process could not train on {spec}: {reason}", hint=hint)
    return seconds


def main(spec: str) -> None:
    program = standard_job().step(BATCH, open_device(spec)).program
    program.run()
    program.wait()
    print(DONE_LINE, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
