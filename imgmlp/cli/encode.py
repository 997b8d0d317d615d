"""`imgmlp encode`: pictures into compact files, one after the other."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.cli import files, parsing
from imgmlp.cli.files import STANDARD, Entry, Job
from imgmlp.codec import encoder
from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.training import checkpoint, target
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import DeviceError, TargetError, TrainingError, UsageError
from imgmlp.facts import dimensions
from imgmlp.image import Picture
from imgmlp.interrupt import StopRequest
from imgmlp.report import live
from imgmlp.report.live import LiveView
from imgmlp.terminal import Terminal
from imgmlp.text import duration, size

EXTENSION = ".imlp"
_BESIDE = "profile and metadata beside the picture, which --strip leaves out"
APART = "encode it for itself, with -o and another name"
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
    frame: int | None = None
    strip: bool = False

    def target(self, pixels: int) -> Goal:
        """Of a picture with so many pixels. Raises UsageError."""
        return target.choose(pixels, self.quality, self.bpp, self.size, self.psnr, self.price)

    def training(self) -> Workload:
        """Raises UsageError."""
        if self.time is not None and self.effort is not None:
            raise UsageError("--effort and --time are both given", hint="choose one of them")
        seconds = None if self.time is None else parse_time(self.time)
        return encoder.workload(self.codec, self.effort, seconds)

    def work(self) -> str:
        """The same for people, as far as it is said before the codec has a look."""
        if self.time is not None:
            return f"about {duration(parse_time(self.time))}"
        usual = target.EFFORT if self.codec == "mlp" else None
        level = usual if self.effort is None else self.effort
        return "as long as is usual" if level is None else f"effort {level}"


def parse_time(text: str) -> float:
    """Seconds of text such as 90, 60s, 1.5m or 2h. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(s|m|min|h)?", text)
    seconds = float(match[1]) * _SECONDS[match[2] or ""] if match else 0.0
    if not 0 < seconds <= 10**6:
        raise UsageError(f"--time is {text!r}", hint="write it like 60s, 5m or 2h")
    return seconds


@dataclass(frozen=True)
class Outputs:
    """Where files go, and what becomes of those that exist."""

    file: Path | None = None
    folder: Path | None = None
    force: bool = False
    skip: bool = False
    live: Path | None = None  # a preview, of one picture

    def of(self, sources: Sequence[Path]) -> list[Path]:
        """The file to write for each picture, none of them in anyone's way. Raises ImgmlpError."""
        if self.force and self.skip:
            problem = "--force and --skip-existing are both given"
            raise UsageError(problem, hint="choose one of them")
        files.check_names(sources, self.file, self.folder)
        if self.file is not None and self.file not in sources:
            pictures.check_no_picture(self.file, EXTENSION)
        found = [files.output_of(one, self.file, self.folder, EXTENSION) for one in sources]
        pairs = zip(sources, found, strict=True)  # over itself is that one's own problem
        others = [path for source, path in pairs if path not in (source, STANDARD)]
        if self.live is not None and len(sources) > 1:
            raise UsageError("--live shows one picture", hint="give it for one at a time")
        output_files.check_distinct([*others, *live.files_of(self.live)], sources, APART)
        return found

    def check(self, path: Path) -> None:
        """Refuse, as an OutputError, a file that must not be replaced or cannot be written."""
        hint = "--force replaces it, --skip-existing passes it over"
        output_files.check_output(path, self.force, hint)


def run(
    terminal: Terminal,
    sources: list[Path],
    outputs: Outputs,
    wanted: Wanted,
    device_spec: str,
    as_json: bool,
) -> int:
    """Encode pictures; returns the exit code. Raises Interrupted."""
    wanted.target(1)
    workload, targets = wanted.training(), outputs.of(sources)
    if STANDARD in targets:
        if as_json:
            problem = "--json prints to where the file goes"
            raise UsageError(problem, hint="leave it out, or give a file with -o")
        files.check_terminal("an .imlp file", "imgmlp encode photo.png -o - > photo.imlp")
    stop, device = StopRequest(), cache(lambda: _opened(terminal, device_spec))
    tasks = [
        _Task(terminal, source, path, outputs, wanted, workload, device, stop)
        for source, path in zip(sources, targets, strict=True)
    ]
    tasks[0].began = time.perf_counter() - time.process_time()  # starting counts as well
    jobs = [Job(task.entry, task.encode, task.check) for task in tasks]
    code = files.one_by_one(terminal, jobs, as_json, stop.requested)
    if code != DeviceError.exit_code:  # which leaves pictures to go on with
        for task in tasks:
            task.forget()
    return code


def _opened(terminal: Terminal, spec: str) -> AnyDevice:
    device = open_device(spec)
    terminal.note(device.info.describe())
    return device


@dataclass(frozen=True)
class _Result:
    """A file's bytes, and what there is to tell of them."""

    bytes: bytes = field(repr=False)
    metrics: dict[str, Any]
    missed: str | None
    diverged: bool
    before: bool = False  # whether the command had come to it before it was stopped


@dataclass(eq=False)
class _Task:
    """A picture on its way to its file.

    Until the command is at its end, the checkpoint of a picture that is done holds its file. So the
    same command knows what it has written itself, and can write it again.
    """

    terminal: Terminal
    source: Path
    path: Path
    outputs: Outputs
    wanted: Wanted
    workload: Workload
    device: Callable[[], AnyDevice]
    stop: StopRequest
    began: float = 0.0  # on the clock, what a time limit counts from; 0 for when it is its turn
    kept: Checkpoint | None = None
    written: bool = False

    def __post_init__(self) -> None:
        self.entry: Entry = {"file": str(self.source), "output": str(self.path), "problem": None}

    def check(self) -> None:
        """Refuse what cannot be done before any work begins. Raises ImgmlpError."""
        files.check_picture(self.source)
        if self.path == self.source and self.path != STANDARD:
            output_files.check_distinct([self.path], [self.source], APART)
        if self.path == STANDARD or checkpoint.left_beside(self.path):
            return  # this command's own, perhaps
        if not self._skipped():
            self.outputs.check(self.path)
            live.check(self.outputs.live, self.outputs.force)

    def encode(self) -> None:
        """Write the file, and what is true of it into the entry.

        Raises TargetError or TrainingError after the best file is written.
        """
        if "skipped" in self.entry:
            return
        self.began = self.began or time.perf_counter()
        wanted = self.wanted
        picture = parsing.load_picture(self.terminal, self.source, True, wanted.frame, wanted.strip)
        goal = wanted.target(picture.width * picture.height)
        beside = metadata_sections.size(picture.metadata) if goal.kind == "bytes" else 0
        self._announce(picture, goal, beside)
        if self.path != STANDARD:
            choices = f"{wanted.codec} {goal!r} {self.workload!r}"
            self.kept = checkpoint.of(self.path, picture, self.device(), choices)
        found = self._done_before()
        if found is None or not _holds(self.path, found.bytes):
            if self._skipped():
                return
            self._check_output()
            with self.stop:
                found = found or self._trained(picture, goal)
                self._write(found.bytes)
        self.written = True
        self.entry |= found.metrics
        if math.isinf(found.metrics["psnr"]):  # equal pictures; JSON has no infinity
            self.entry["psnr"] = None
        name = "standard output" if self.path == STANDARD else str(self.path)
        _report(self.terminal, name, found, beside if len(found.bytes) > goal.value else 0)

    def _announce(self, picture: Picture, goal: Goal, beside: int) -> None:
        """Say what was understood. At once: looking for a device may take seconds."""
        what = dimensions(picture.width, picture.height, picture.channels)
        asked = f"{goal}, {self.wanted.codec}, {self.wanted.work()}"
        self.terminal.note(f"{files.named(self.source)}  {what}   {asked}")
        if 2 * beside > goal.value:
            self.terminal.note(f"{beside:,} of {goal} are {_BESIDE}")

    def forget(self) -> None:
        """Keep nothing of a picture whose file is there. Once the whole command is at its end."""
        if self.written and self.kept is not None:
            self.kept.remove(self.path)

    def _skipped(self) -> bool:
        """Whether a file that exists is left as it is, which is told."""
        if not (self.outputs.skip and self.path.exists()):
            return False
        self.entry["skipped"] = True
        self.terminal.note(f"{self.path} exists already: {self.source} is passed over")
        return True

    def _check_output(self) -> None:
        if self.path != STANDARD:
            self.outputs.check(self.path)

    def _done_before(self) -> _Result | None:
        """What this command has made of the picture already, if it was stopped after that."""
        saved = None if self.kept is None else self.kept.load()
        if saved is None or (finished := saved.finished()) is None:
            return None
        data, values = finished
        return _Result(data, **values, before=True)

    def _trained(self, picture: Picture, goal: Goal) -> _Result:
        """A file's bytes, which the checkpoint holds as well. Raises Interrupted."""
        if self.kept is not None and (others := checkpoint.others(self.path, self.kept)):
            self.terminal.note(others)
        how = goal, self.workload, self.device(), self.wanted.codec
        if self.workload.steps and self.workload.seconds is None:  # else it is told already
            self.terminal.note(f"about {duration(encoder.expected_seconds(picture, *how))}")
        shown = [str(path.resolve()) for path in live.files_of(self.outputs.live)]
        heard = self.stop.requested, self.terminal.note, self.kept, {"live": shown}, self.began
        run = Run(None, *heard)
        saved = {} if run.saved is None else run.saved.values
        live.check(self.outputs.live, self.outputs.force, saved.get("live", ()), picture)
        view = LiveView(
            self.outputs.live, files.named(self.source), picture.metadata, self.terminal.note
        )
        with self.terminal.training(self.workload.steps) as show, view:
            run.tell = view.after(show)
            made = encoder.encode(
                picture, goal, self.workload, self.device(), run, self.wanted.codec
            )
            view.end(f"Done: {len(made.bytes):,} bytes, {made.metrics['psnr']:.2f} dB", made.pixels)
        found = _Result(made.bytes, made.metrics, made.missed, made.diverged)
        if run.due(stopping=True):
            values = {"metrics": found.metrics, "missed": found.missed, "diverged": found.diverged}
            run.keep(Snapshot.of_finished(found.bytes, values))
        return found

    def _write(self, data: bytes) -> None:
        if self.path == STANDARD:
            files.write_standard(data)
            return
        self._check_output()  # somebody may have written it in the meantime
        output_files.write_atomically(self.path, lambda stream: stream.write(data))


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file is just these bytes."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _report(terminal: Terminal, name: str, found: _Result, beside: int) -> None:
    """Say how it went; a file is too large by up to `beside` bytes that could be left out.

    Raises TargetError or TrainingError.
    """
    metrics = found.metrics
    if found.diverged:
        problem = f"training of {name} could not go on: its loss kept growing without bound"
        raise TrainingError(problem, hint="the best state is in the file; try another target")
    if found.missed is not None:
        advice = "try another target, a higher --effort or more --time"
        if beside:
            advice = f"{beside:,} bytes of it are {_BESIDE}"
        hint = f"the best file was written; {advice}"
        raise TargetError(f"{name} has {found.missed}", hint=hint)
    quality = "lossless" if math.isinf(metrics["psnr"]) else f"{metrics['psnr']:.2f} dB"
    figures = f"{size(metrics['bytes'])}   {metrics['bpp']:.3f} bpp   {quality}"
    took = "done before" if found.before else duration(metrics["seconds"])
    terminal.done(f"{name}   {figures}   {took}")
