"""Encodes small pictures by processes that are killed all the while.

    python tools/kill_cluster.py --pictures 500 --kills 200
    python tools/kill_cluster.py --pictures 500 --kills 200 --own

First on a Dask cluster, whose scheduler and workers are killed; with `--own` by the processes that
the command starts itself, which is killed as well. Real processes, SIGKILL at random moments; what
was killed is started again, as a supervisor would, and so is a command that failed. In the end
every picture must have one output that decodes to its digest, with nothing in part beside them:
only the journal, and hidden files of processes that were lost. There are fewer kills than were
asked for if all outputs are there before.
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
PATIENCE = 15.0  # seconds without an output after which another process is killed nevertheless
TURNS = 10  # times that the command is given, each of which lasts as long as it knows how to go on


def draw(folder: Path, count: int) -> None:
    """Pictures of 16×16, each another one."""
    folder.mkdir(parents=True)
    y, x = np.mgrid[:16, :16]
    for number in range(count):
        planes = [x * 15, y * 15, (x * (number % 16) + y * (number // 16)) % 256]
        Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(folder / f"{number:04}.png")


class Command:
    """The command that encodes, with processes of its own; it is given again however it ends."""

    def __init__(self, folder: Path, *options: str) -> None:
        given = [*OPTIONS, str(folder / "in"), "--out", str(folder / "out"), *options]
        self._command = [sys.executable, "-m", "imgmlp", "encode", *given]
        self._told, self._log = folder / "told.jsonl", folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.codes: list[int] = []  # of those that ended by themselves
        self.killed = {"command": 0, "worker": 0}

    def keep(self) -> None:
        """Start it if it is not running, and note how it ended if it did."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if code != -signal.SIGKILL:
                self.codes.append(code)
            self._process = None
        if self._process is None and not self.ended:
            with self._told.open("ab") as out, self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=out, stderr=log)

    @property
    def ended(self) -> bool:
        """Whether it did all, or does nothing."""
        return 0 in self.codes or len(self.codes) >= TURNS

    def kill(self, chance: random.Random) -> None:
        """One of its processes that does files, or itself."""
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
    """A scheduler and workers, which are started again however they end, and the command."""

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
        """The scheduler or a worker."""
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
    """What came of it. Kills are spread over the run: so many for so many outputs.

    Ends when the command has, or has failed TURNS times; or after `limit` seconds.
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
            if killed < kills and (done >= due or time.monotonic() - last > PATIENCE):
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
    parser.add_argument("--own", action="store_true", help="processes of the command's own")
    parser.add_argument("--folder", type=Path, help="a new one, which is kept")
    chosen = parser.parse_args()
    place = chosen.folder or Path(tempfile.mkdtemp(prefix="imgmlp-kills-"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = run(place, chosen.pictures, chosen.kills, chosen.seed, own=chosen.own)
    print(json.dumps(found, indent=2))
