"""Encode small pictures while the processes that do it are killed at random.

    python tools/kill_cluster.py --pictures 500 --kills 200
    python tools/kill_cluster.py --pictures 500 --kills 200 --own

Without `--own`, the command uses a Dask cluster whose scheduler and workers are killed. With it,
the command and the worker processes that it starts itself are killed. These are real processes,
which get SIGKILL at random moments. A killed process is restarted, as a supervisor would do, and so
is a command that failed. In the end, every picture must have one output that decodes to its digest,
and there must be no partial files: only the journal, and hidden files of killed processes. There
are fewer kills than requested if all outputs are complete before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device

WORKERS = 3
OPTIONS = ["--device", "numpy", "--time", "0.2s", "--json", "--no-progress"]
MAX_IDLE_SECONDS = 15.0  # after which a process is killed even if no output was written
MAX_FAILURES = 10  # of the command, after which it is not restarted any more


def draw(folder: Path, count: int) -> None:
    """Write pictures of 16×16 pixels, all different."""
    folder.mkdir(parents=True)
    y, x = np.mgrid[:16, :16]
    for number in range(count):
        planes = [x * 15, y * 15, (x * (number % 16) + y * (number // 16)) % 256]
        Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(folder / f"{number:04}.png")


class Command:
    """The encoding command with worker processes of its own; it is restarted until it succeeds."""

    def __init__(self, folder: Path, *options: str) -> None:
        given = [*OPTIONS, str(folder / "in"), "--out", str(folder / "out"), *options]
        self._command = [sys.executable, "-m", "imgmlp", "encode", *given]
        self._told, self._log = folder / "told.jsonl", folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.codes: list[int] = []  # exit codes of commands that were not killed
        self.killed = {"command": 0, "worker": 0}

    def keep(self) -> None:
        """Start the command if it is not running, and record its exit code if it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if code != -signal.SIGKILL:
                self.codes.append(code)
            self._process = None
        if self._process is None and not self.ended:
            with self._told.open("ab") as out, self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=out, stderr=log)

    @property
    def ended(self) -> bool:
        """Whether the command has succeeded, or has failed too often."""
        return 0 in self.codes or len(self.codes) >= MAX_FAILURES

    def kill(self, chance: random.Random) -> None:
        """Kill one of the worker processes, or the command itself."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ended in the meantime
            own = psutil.Process(self._process.pid)
            workers = [one for one in own.children() if "spawn_main" in " ".join(one.cmdline())]
            victim = chance.choice([own, *workers])
            victim.kill()
            self.killed["command" if victim == own else "worker"] += 1

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Cluster(Command):
    """A scheduler and workers, which are restarted whenever they end, and the command."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._address = f"tcp://127.0.0.1:{self._port}"
        super().__init__(folder, "--cluster", self._address)
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = {"scheduler": 0, "worker": 0}

    def keep(self) -> None:
        for name in ("scheduler", *(f"worker-{number}" for number in range(WORKERS))):
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                self._running[name] = self._start(name)
        super().keep()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        where = ["--host", "127.0.0.1", "--no-dashboard"]
        if name == "scheduler":
            options = ["dask_scheduler", *where, "--port", str(self._port)]
        else:
            options = ["dask_worker", self._address, *where, "--no-nanny", "--nthreads", "1"]
            options += ["--local-directory", str(self._logs)]
        module, *rest = options
        with (self._logs / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *rest]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, chance: random.Random) -> None:
        """Kill the scheduler or a worker."""
        name, process = chance.choice(list(self._running.items()))
        if process.poll() is None:
            process.kill()
            self.killed[name.partition("-")[0]] += 1

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        super().close()


def run(
    folder: Path,
    pictures: int,
    kills: int,
    seed: int = 0,
    limit: float = float("inf"),
    own: bool = False,
) -> dict[str, object]:
    """Encode, kill, and return the results. Kills are distributed evenly over the outputs.

    Ends when the command has, or has failed MAX_FAILURES times; or after `limit` seconds.
    """
    chance, began = random.Random(seed), time.perf_counter()
    draw(folder / "in", pictures)
    processes = Command(folder, "--jobs", str(WORKERS)) if own else Cluster(folder)
    due, last = chance.uniform(0, pictures / kills), time.monotonic()
    try:
        while not processes.ended and time.perf_counter() - began < limit:
            processes.keep()
            time.sleep(0.05)
            done, killed = _outputs(folder / "out"), sum(processes.killed.values())
            if killed < kills and (done >= due or time.monotonic() - last > MAX_IDLE_SECONDS):
                time.sleep(chance.uniform(0, 0.3))
                processes.kill(chance)
                due = (killed + chance.uniform(0.5, 1.5)) * pictures / kills
                last = time.monotonic()
    finally:
        processes.close()
    found = {"killed": processes.killed, "seconds": round(time.perf_counter() - began)}
    return found | {"exit codes": processes.codes} | examine(folder, folder / "told.jsonl")


def _outputs(folder: Path) -> int:
    return len(list(folder.glob("*.imlp")))


def examine(folder: Path, told: Path) -> dict[str, object]:
    """Check the output folder, and how often each file was reported as done."""
    device, good, faults = open_device("numpy"), 0, []
    for source in sorted((folder / "in").iterdir()):
        output = folder / "out" / f"{source.stem}.imlp"
        try:
            open_stored(output).decode(device)  # verifies the digest of the pixels
            good += 1
        except Exception as error:
            faults.append(f"{output.name}: {error}")
    known = {f"{source.stem}.imlp" for source in (folder / "in").iterdir()}
    beside = {path.name for path in (folder / "out").glob("*")} - known  # it may not be there
    lines = list(_objects(told.read_text("utf-8")))
    done = [line["file"] for line in lines if line["problem"] is None and "unchanged" not in line]
    return {
        "verified": good,
        "faults": faults,
        "beside them": sorted(beside - {".imgmlp-journal.jsonl"}),
        "told twice": len(done) - len(set(done)),
        "failed": sorted({str(line["problem"]) for line in lines if line["problem"]}),
    }


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that the commands printed; an error takes several lines."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        found, place = decoder.raw_decode(text, place)
        yield found
        place += len(text[place:]) - len(text[place:].lstrip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own", action="store_true", help="processes of the command's own")
    parser.add_argument("--folder", type=Path, help="a new one, which is kept")
    chosen = parser.parse_args()
    place = chosen.folder or Path(tempfile.mkdtemp(prefix="imgmlp-kills-"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = run(place, chosen.pictures, chosen.kills, chosen.seed, own=chosen.own)
    print(json.dumps(found, indent=2))
