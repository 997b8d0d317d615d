"""Encodes small pictures on a Dask cluster whose scheduler and workers are killed all the while.

    python tools/kill_cluster.py --pictures 500 --kills 200

Real processes, SIGKILL at random moments; what was killed is started again, as a supervisor would,
and so is a command that failed. In the end every picture must have one output that decodes to its
digest, with nothing in part beside them: only the journal, and hidden files of workers that were
lost. There are fewer kills than were asked for if all outputs are there before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device

WORKERS = 3
PATIENCE = 15.0  # seconds without an output after which another process is killed nevertheless
TURNS = 10  # times that the command is given, each of which lasts as long as it knows how to go on


def draw(folder: Path, count: int) -> None:
    """Pictures of 16×16, each another one."""
    folder.mkdir(parents=True)
    y, x = np.mgrid[:16, :16]
    for number in range(count):
        planes = [x * 15, y * 15, (x * (number % 16) + y * (number // 16)) % 256]
        Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(folder / f"{number:04}.png")


@dataclass
class Processes:
    """A scheduler and workers, which are started again however they end."""

    logs: Path
    killed: dict[str, int] = field(default_factory=lambda: {"scheduler": 0, "worker": 0})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.logs.mkdir()

    def keep(self) -> None:
        """Start what is not running."""
        for name in ("scheduler", *(f"worker-{number}" for number in range(WORKERS))):
            process = self.running.get(name)
            if process is None or process.poll() is not None:
                self.running[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        where = ["--host", "127.0.0.1", "--no-dashboard"]
        if name == "scheduler":
            options = ["dask_scheduler", *where, "--port", str(self.port)]
        else:
            options = ["dask_worker", self.address, *where, "--no-nanny", "--nthreads", "1"]
            options += ["--local-directory", str(self.logs)]
        module, *rest = options
        with (self.logs / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *rest]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        if self.running[name].poll() is None:
            self.running[name].kill()
            self.killed[name.partition("-")[0]] += 1

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def run(
    folder: Path, pictures: int, kills: int, seed: int = 0, limit: float = float("inf")
) -> dict[str, object]:
    """What came of it. Kills are spread over the run: so many for so many outputs.

    Ends when the command has, or has failed TURNS times; or after `limit` seconds.
    """
    chance, began = random.Random(seed), time.perf_counter()
    draw(folder / "in", pictures)
    processes, told, codes = Processes(folder / "logs"), folder / "told.jsonl", []
    command = [sys.executable, "-m", "imgmlp", "encode", str(folder / "in")]
    command += ["--out", str(folder / "out"), "--cluster", processes.address, "--json"]
    command += ["--device", "numpy", "--time", "0.2s", "--no-progress"]
    driver: subprocess.Popen[bytes] | None = None
    due, last = chance.uniform(0, pictures / kills), time.monotonic()
    try:
        while 0 not in codes and len(codes) < TURNS and time.perf_counter() - began < limit:
            processes.keep()
            if driver is None or driver.poll() is not None:
                with told.open("ab") as out, (folder / "logs" / "driver.log").open("ab") as log:
                    driver = subprocess.Popen(command, stdout=out, stderr=log)
            time.sleep(0.05)
            done, killed = _outputs(folder / "out"), sum(processes.killed.values())
            if killed < kills and (done >= due or time.monotonic() - last > PATIENCE):
                time.sleep(chance.uniform(0, 0.3))
                processes.kill(chance.choice(list(processes.running)))
                due = (killed + chance.uniform(0.5, 1.5)) * pictures / kills
                last = time.monotonic()
            if driver.poll() is not None:
                codes.append(driver.returncode)
    finally:
        processes.close()
        if driver is not None:
            driver.kill()
            driver.wait()
    found = {"killed": processes.killed, "seconds": round(time.perf_counter() - began)}
    return found | {"exit codes": codes} | examine(folder, told)


def _outputs(folder: Path) -> int:
    return len(list(folder.glob("*.imlp")))


def examine(folder: Path, told: Path) -> dict[str, object]:
    """What is in the folder of the outputs, and how often each was told to be done."""
    device, good, faults = open_device("numpy"), 0, []
    for source in sorted((folder / "in").iterdir()):
        output = folder / "out" / f"{source.stem}.imlp"
        try:
            open_stored(output).decode(device)  # whose pixels have the file's own digest
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
    """What commands printed one after the other: a line for a file, several for an error."""
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
    parser.add_argument("--folder", type=Path, help="a new one, which is kept")
    chosen = parser.parse_args()
    place = chosen.folder or Path(tempfile.mkdtemp(prefix="imgmlp-kills-"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(run(place, chosen.pictures, chosen.kills, chosen.seed), indent=2))
