"""How many small pictures per hour a machine encodes, with one and with several processes per GPU.

    python benchmarks/folders.py --json folders.json

The pictures are synthetic, smooth colours with edges. A folder of them is encoded for a while with
each number of processes, on one GPU and then on more. Counting begins when every process has
finished a file, so it excludes startup and compilation; a first picture fills the kernel caches.
GPU utilisation is the mean of nvidia-smi's figure, read ten times a second. Processor time is
shown as well, because other programs hardly affect it. For comparison, `imgmlp encode` is started
for each picture separately. `--device cpu` measures the same without GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from imgmlp.batch.devices import named

COMMAND = [sys.executable, "-m", "imgmlp", "encode"]
QUERY = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "-lms", "100"]


@dataclass
class Row:
    """What one way of doing it gave."""

    way: str
    devices: int
    processes: int  # on each device
    files: int = 0  # in the time that counts
    seconds: float = 0.0
    files_an_hour: float = 0.0
    gpu_busy: float | None = None  # mean percentage, of the GPUs in use
    gpu_megabytes: float | None = None  # most, of one of them
    core_seconds: float = 0.0  # processor time of all of it, start and end too, for a file
    failed: int = 0
    bpp: float = 0.0  # median
    psnr: float = 0.0  # median


class Gpus:
    """What nvidia-smi tells while it is open, if it is there."""

    def __enter__(self) -> Gpus:
        self.samples: list[tuple[float, int, float, float]] = []
        self._process = None
        if shutil.which("nvidia-smi"):
            command = [*QUERY, "--format=csv,noheader,nounits"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                number, busy, used = (float(value) for value in line.split(","))
            except ValueError:  # a GPU that does not tell
                continue
            self.samples.append((time.monotonic(), int(number), busy, used))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def within(self, row: Row, begin: float, end: float) -> None:
        """Mean and most of the time that counts, of the GPUs with the lowest numbers."""
        found = [one for one in self.samples if begin <= one[0] <= end and one[1] < row.devices]
        if found:
            row.gpu_busy = statistics.fmean(one[2] for one in found)
            row.gpu_megabytes = max(one[3] for one in found)


def make_pictures(folder: Path, count: int, side: int) -> None:
    """Pictures that are neither noise nor all alike."""
    folder.mkdir(parents=True)
    y, x = np.mgrid[:side, :side] / side
    for number in range(count):
        rng = np.random.default_rng(number)
        planes = []
        for _ in range(3):
            a, b, c, d = rng.uniform(1, 9, 4)
            planes.append(np.sin(a * x + c) * np.cos(b * y + d))
        centre, radius = rng.uniform(0.2, 0.8, 2), rng.uniform(0.1, 0.4)
        inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
        pixels = 110 + 90 * np.stack(planes, axis=-1) + 40 * inside[..., None]
        pixels += rng.normal(0, 4, pixels.shape)
        whole = pixels.clip(0, 255).astype(np.uint8)
        Image.fromarray(whole).save(folder / f"{number:05}.png", compress_level=1)


def encode_folder(
    options: argparse.Namespace, pictures: Path, out: Path, devices: list[str], processes: int
) -> Row:
    """Encode a folder for a while; what came of it since all processes had begun."""
    row = Row("folder", len(devices), processes)
    command = [*COMMAND, str(pictures), "--out", str(out), "--json", "--no-progress", "-q"]
    command += ["--device", ",".join(devices), "--jobs", str(processes), *settings(options)]
    began, ended, used = time.monotonic(), [], processor_time()
    with Gpus() as gpus:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stopper = threading.Timer(options.seconds, process.send_signal, (signal.SIGINT,))
        stopper.start()
        assert process.stdout is not None
        for line in process.stdout:
            entry = json.loads(line)
            if "file" in entry:
                ended.append((time.monotonic(), entry))
        stopper.cancel()
        process.wait()
    row.core_seconds = (processor_time() - used) / max(len(ended), 1)
    stopped = min(began + options.seconds, ended[-1][0] if ended else began)
    count(row, ended, stopped, len(devices) * processes)
    gpus.within(row, stopped - row.seconds, stopped)
    return row


def count(row: Row, ended: list[tuple[float, dict]], stopped: float, processes: int) -> None:
    """Files and seconds from when as many files had ended as there are processes."""
    if len(ended) <= processes:
        return
    begin = ended[processes - 1][0]
    counted = [entry for when, entry in ended[processes:] if when <= stopped]
    row.failed = sum(entry["problem"] is not None for entry in counted)
    good = [entry for entry in counted if entry["problem"] is None]
    row.files, row.seconds = len(good), stopped - begin
    row.files_an_hour = 3600 * row.files / max(row.seconds, 1e-9)
    if good:
        row.bpp = statistics.median(entry["bpp"] for entry in good)
        row.psnr = statistics.median(entry["psnr"] or 99.0 for entry in good)


def encode_one(options: argparse.Namespace, picture: Path, out: Path, device: str) -> dict:
    """Start the command for one picture; what it tells of it."""
    command = [*COMMAND, str(picture), "-o", str(out / f"{picture.stem}.imlp"), "--json"]
    command += ["--no-progress", "-q", "--device", device, *settings(options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout)[0]


def one_after_another(options: argparse.Namespace, pictures: Path, out: Path, device: str) -> Row:
    """Start the command anew for each picture."""
    row, ended = Row("a process for each file", 1, 1), []
    began, used = time.monotonic(), processor_time()
    with Gpus() as gpus:
        for picture in sorted(pictures.iterdir()):
            entry = encode_one(options, picture, out, device)
            ended.append((time.monotonic(), entry))
            if time.monotonic() > began + options.seconds / 2:
                break
    row.core_seconds = (processor_time() - used) / len(ended)
    count(row, ended, ended[-1][0], 1)
    gpus.within(row, ended[0][0], ended[-1][0])
    return row


def processor_time() -> float:
    """Seconds of all processes that have ended, of whatever core; other work does not add to it."""
    times = os.times()
    return times.children_user + times.children_system


def settings(options: argparse.Namespace) -> list[str]:
    return ["--codec", options.codec, "--effort", str(options.effort)]


def show(row: Row) -> None:
    busy = "     " if row.gpu_busy is None else f"{row.gpu_busy:4.0f}%"
    used = "" if row.gpu_megabytes is None else f"{row.gpu_megabytes:8,.0f} MB"
    failed = f"  {row.failed} failed" if row.failed else ""
    print(
        f"{row.way:24}{row.devices:3} × {row.processes}{row.files:7} files in {row.seconds:5.1f} s"
        f"{row.files_an_hour:11,.0f} an hour  {row.core_seconds:7.2f} core-s  {busy} {used}"
        f"  {row.psnr:.2f} dB {row.bpp:.3f} bpp{failed}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="gpus", help="as of `imgmlp encode`")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--side", type=int, default=256, help="pixels")
    parser.add_argument("--codec", default="latent")
    parser.add_argument("--effort", type=int, default=1)
    parser.add_argument("--processes", default="1,2,4,8", help="on one device")
    parser.add_argument("--seconds", type=float, default=35.0, help="for each way")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    devices = [name for name, _ in named(options.device)]
    print(f"devices {', '.join(devices)}; {os.cpu_count()} processors")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        make_pictures(top / "in", options.pictures, options.side)
        for name in ("warm", "out"):
            (top / name).mkdir()
        encode_one(options, next((top / "in").iterdir()), top / "warm", devices[0])
        rows.append(one_after_another(options, top / "in", top / "out", devices[0]))
        show(rows[-1])
        for processes in map(int, options.processes.split(",")):
            out = top / f"out-{processes}"
            rows.append(encode_folder(options, top / "in", out, devices[:1], processes))
            show(rows[-1])
        best = max(rows[1:], key=lambda row: row.files_an_hour).processes
        more = sorted({2, len(devices)} & set(range(2, len(devices) + 1)))
        for used in more:
            out = top / f"out-on-{used}"
            rows.append(encode_folder(options, top / "in", out, devices[:used], best))
            show(rows[-1])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
