"""`imgmlp encode`: pictures into compact files, one after the other."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.cli.parsing import Entry, one_by_one
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.training import checkpoint, target
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import TargetError, TrainingError, UsageError
from imgmlp.facts import dimensions
from imgmlp.interrupt import StopRequest
from imgmlp.terminal import Terminal
from imgmlp.text import duration, size

EXTENSION = ".imlp"
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Wanted:
    """Targets as they were given, at most one of them; and how long to try."""

    quality: float | None = None
    bpp: float | None = None
    size: str | None = None
    psnr: float | None = None
    price: float | None = None
    effort: int | None = None
    time: str | None = None
    codec: Codec = "mlp"

    def target(self, pixels: int) -> Goal:
        """Of a picture with so many pixels. Raises UsageError."""
        return target.choose(pixels, self.quality, self.bpp, self.size, self.psnr, self.price)

    def training(self) -> Workload:
        """Raises UsageError."""
        if self.time is not None and self.effort is not None:
            raise UsageError("--effort and --time are both given", hint="choose one of them")
        seconds = None if self.time is None else parse_time(self.time)
        return encoder.workload(self.codec, self.effort, seconds)


def parse_time(text: str) -> float:
    """Seconds of text such as 90, 60s, 1.5m or 2h. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(s|m|min|h)?", text)
    seconds = float(match[1]) * _SECONDS[match[2] or ""] if match else 0.0
    if not 0 < seconds <= 10**6:
        raise UsageError(f"--time is {text!r}", hint="write it like 60s, 5m or 2h")
    return seconds


def run(
    terminal: Terminal,
    sources: list[Path],
    output: Path | None,
    wanted: Wanted,
    device_spec: str,
    as_json: bool,
    force: bool,
) -> int:
    """Encode pictures; returns the exit code. Raises Interrupted."""
    wanted.target(1)
    workload = wanted.training()
    targets = _targets(sources, output, force)
    device = open_device(device_spec)
    pairs = list(zip(sources, targets, strict=True))
    report: list[Entry] = [
        {"file": str(source), "output": str(path), "problem": None} for source, path in pairs
    ]
    stop = StopRequest()
    how = wanted, workload, device, stop
    work = [
        partial(_encode_one, terminal, *pair, how, entry)
        for pair, entry in zip(pairs, report, strict=True)
    ]
    return one_by_one(terminal, work, report, as_json, stop.requested)


def _targets(sources: list[Path], output: Path | None, force: bool) -> list[Path]:
    """The file to write for each picture, none of them in anyone's way. Raises ImgmlpError."""
    if output is not None and len(sources) > 1:
        hint = "leave -o out, and each file stands beside its picture"
        raise UsageError("-o names one file, and there are several pictures", hint=hint)
    found = [output or source.with_suffix(EXTENSION) for source in sources]
    hint = "encode it for itself, with -o and another name"
    output_files.check_outputs(found, found if force else [], sources, hint)
    return found


def _encode_one(
    terminal: Terminal,
    source: Path,
    path: Path,
    how: tuple[Wanted, Workload, AnyDevice, StopRequest],
    entry: Entry,
) -> None:
    """Write one file, and what is true of it into `entry`.

    Raises TargetError or TrainingError after the best file is written.
    """
    wanted, workload, device, stop = how
    picture = pictures.load(source, alpha=True)
    for note in picture.notes:
        terminal.note(f"{source.name}: {note}")
    goal = wanted.target(picture.width * picture.height)
    what = dimensions(picture.width, picture.height, picture.channels)
    terminal.note(f"{source.name}  {what}   {goal}   {device.info.describe()}")
    kept = checkpoint.of(path, picture, device, f"{wanted.codec} {goal!r} {workload!r}")
    if (others := checkpoint.others(path, kept)) is not None:
        terminal.note(others)
    with stop, terminal.training(workload.steps) as show:
        run = Run(show, stop.requested, terminal.note, kept)
        found = encoder.encode(picture, goal, workload, device, run, wanted.codec)
    output_files.write_atomically(path, lambda stream: stream.write(found.bytes))
    kept.remove(path)
    entry |= found.metrics
    if math.isinf(found.metrics["psnr"]):  # equal pictures; JSON has no infinity
        entry["psnr"] = None
    _report(terminal, path, found)


def _report(terminal: Terminal, path: Path, found: Encoded) -> None:
    metrics = found.metrics
    if found.diverged:
        problem = f"training of {path} could not go on: its loss kept growing without bound"
        raise TrainingError(problem, hint="the best state is in the file; try another target")
    if found.missed is not None:
        hint = "the best file was written; try another target, a higher --effort or more --time"
        raise TargetError(f"{path} has {found.missed}", hint=hint)
    quality = "lossless" if math.isinf(metrics["psnr"]) else f"{metrics['psnr']:.2f} dB"
    figures = f"{size(metrics['bytes'])}   {metrics['bpp']:.3f} bpp   {quality}"
    terminal.done(f"{path}   {figures}   {duration(metrics['seconds'])}")
