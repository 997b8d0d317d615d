"""A picture encoded into its file: the same for one file, for many, and wherever it is done.

Until somebody remembers that the file is there, a hidden file beside it holds what was written. So
the same command knows what it has written itself, and can write it again.
"""

from __future__ import annotations

import hashlib
import math
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imgmlp import image, output_files
from imgmlp.batch.journal import looked_at
from imgmlp.batch.leftovers import forget, forget_remembered
from imgmlp.batch.output import REPLACE, check_task, holds, make_folder, put
from imgmlp.batch.shortfall import BESIDE, shortfall
from imgmlp.batch.wanted import Wanted
from imgmlp.batch.work import Record, Watch
from imgmlp.codec import encoder
from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal
from imgmlp.engine import AnyDevice
from imgmlp.errors import OutputError
from imgmlp.facts import dimensions
from imgmlp.image import Picture
from imgmlp.report.live import Live
from imgmlp.text import duration, size

SHORT = 0.1  # of a time limit, that need not be told


@dataclass(frozen=True)
class Result:
    """A file's bytes, and what there is to tell of them."""

    bytes: bytes = field(repr=False)
    metrics: dict[str, Any]
    missed: str | None
    diverged: bool
    beside: int = 0  # bytes that could be left out, where there are too many
    before: bool = False  # whether an earlier run had made it
    took: float = 0.0  # seconds of all of it, compiling and checks as well

    def facts(self) -> dict[str, Any]:
        """For JSON, which has no infinity: the PSNR of equal pictures is null."""
        facts = dict(self.metrics)
        if math.isinf(facts["psnr"]):
            facts["psnr"] = None
        if self.missed is not None:
            facts["missed"] = self.missed
        if self.diverged:
            facts["diverged"] = True
        return facts

    def line(self, name: str) -> str:
        """What there is to say of a file of this name.

        Raises TargetError or TrainingError if it is only the best that there was.
        """
        problem = shortfall(name, self.facts(), self.beside)
        if problem is not None:
            raise problem
        metrics = self.metrics
        quality = "lossless" if math.isinf(metrics["psnr"]) else f"{metrics['psnr']:.2f} dB"
        figures = f"{size(metrics['bytes'])}   {metrics['bpp']:.3f} bpp   {quality}"
        took = "done before" if self.before else duration(self.took)
        return f"{name}   {figures}   {took}"


def smaller_source(source: Path, result: Result) -> str | None:
    """What there is to say of a picture's file that takes no more bytes than what became of it.

    Drawings and text often have such PNGs, which are exact besides. None for pipes.
    """
    there = output_files.status(source)
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_size > len(result.bytes):
        return None
    return f"{source} itself has only {size(there.st_size)}, no more than its .imlp file"


@dataclass(eq=False)
class Encoding:
    """A picture on its way to its file."""

    picture: Picture
    name: str  # of the picture, for people
    output: Path | None  # None for what is no file, and so has no hidden one beside it
    wanted: Wanted
    device: Callable[[], AnyDevice]
    watch: Watch
    # Whether the file may be written now; False leaves it as it is. Raises OutputError.
    allowed: Callable[[], bool]
    write: Callable[[bytes], None]
    began: float = field(default_factory=time.perf_counter)  # what a time limit counts from
    live: Live = field(default_factory=Live)
    kept: Checkpoint | None = None  # what was written
    _state: Path | None = None  # of the training

    def run(self) -> Result | None:
        """What was written now or before; None if the file is left as it is.

        Raises ImgmlpError: Interrupted once the state is saved, where the watch asks for it.
        """
        picture, wanted = self.picture, self.wanted
        goal, workload = wanted.target(picture.width * picture.height), wanted.training()
        beside = metadata_sections.size(picture.metadata) if goal.kind == "bytes" else 0
        self._announce(goal, beside)
        choices = f"{wanted.codec} {goal!r} {workload!r}"
        if self.output is not None:
            self.kept = checkpoint.of_finished(self.output, picture, choices)
        result = self._done_before()
        if result is None or self.output is None or not holds(self.output, result.bytes):
            if not self.allowed():
                return None
            with self.watch.saving():
                result = result or self._trained(goal, choices)
                self.write(result.bytes)
        else:
            output_files.remove_second_name(self.output)
        forget(self._state)  # where nothing could be kept, or there was no time to
        took = time.perf_counter() - self.began
        return replace(result, beside=beside if len(result.bytes) > goal.value else 0, took=took)

    def _announce(self, goal: Goal, beside: int) -> None:
        """Say what was understood. At once: looking for a device may take seconds."""
        picture, wanted = self.picture, self.wanted
        what = dimensions(picture.width, picture.height, picture.channels)
        asked = f"{goal}, {wanted.codec}, {wanted.work()}"
        self.watch.announce(f"{self.name}  {what}   {asked}")
        if 2 * beside > goal.value:
            self.watch.announce(f"{beside:,} of {goal} are taken by {BESIDE}")

    def _announce_time(self, goal: Goal, device: AnyDevice) -> None:
        """Say how long it takes, of which a time limit is told already."""
        workload = self.wanted.training()
        asked = self.picture, goal, workload, device, self.wanted.codec
        if workload.seconds is None:
            self.watch.announce(f"about {duration(encoder.expected_seconds(*asked))}")
            return
        compiling = encoder.compiling_seconds(*asked)
        if compiling > SHORT * workload.seconds:
            told = (
                f"compiles for about {duration(compiling)} first, only once for pictures like this"
            )
            self.watch.announce(told)

    def _done_before(self) -> Result | None:
        """What was made of the picture already, if the command was stopped after that."""
        saved = None if self.kept is None else self.kept.load()
        if saved is None or (finished := saved.finished()) is None:
            return None
        data, values = finished
        state = values.pop(checkpoint.STATE, None)
        beside = [] if self.output is None else checkpoint.left_beside(self.output)
        self._state = next((path for path in beside if path.name == state), None)
        return Result(data, **values, before=True)

    def _trained(self, goal: Goal, choices: str) -> Result:
        """A file's bytes, which the hidden file holds as well. Raises Interrupted."""
        picture, codec, workload = self.picture, self.wanted.codec, self.wanted.training()
        state, device = None, self.device()
        if self.output is not None:
            state = checkpoint.of(self.output, picture, device, choices)
            self._state = state.path
            if (others := checkpoint.others(self.output, state)) is not None:
                self.watch.note(others)
        self._announce_time(goal, device)
        run = Run(None, self.watch.stopping, self.watch.note, state, began=self.began)
        key = "" if state is None else state.key
        self.live.check(None if run.saved is None else key, picture)
        view = self.live.view(self.name, picture, self.watch.note, key)
        with self.watch.training(workload.steps) as show, view:
            run.tell = view.after(show)
            made = encoder.encode(picture, goal, workload, device, run, codec)
            view.end(f"Done: {len(made.bytes):,} bytes, {made.metrics['psnr']:.2f} dB", made.pixels)
        result = Result(made.bytes, made.metrics, made.missed, made.diverged)
        return self._keep(result) if run.due(stopping=True) else result

    def _keep(self, result: Result) -> Result:
        """What the hidden file holds from now on: of several that made the same, the first one's.

        So whoever comes by knows what is written, also by one that seemed to be lost.
        """
        assert self.kept is not None
        assert self._state is not None
        values = {"metrics": result.metrics, "missed": result.missed, "diverged": result.diverged}
        values[checkpoint.STATE] = self._state.name
        try:
            self.kept.save(Snapshot.of_finished(result.bytes, values), replace=False)
        except OutputError as error:
            own = self._state
            if (first := self._done_before()) is not None:
                forget(own)
                return first
            self.watch.note(f"no checkpoints are written: {error}")
            return result
        forget(self._state)
        return result


@dataclass(frozen=True)
class EncodeFile:
    """Encodes picture files: each task's source to its output."""

    wanted: Wanted

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises TargetError or TrainingError after the best file is written."""
        task, wanted, began = record.task, self.wanted, time.perf_counter()
        output = task.output
        assert output is not None
        make_folder(output)
        there = output_files.status(output) is not None
        if there and not checkpoint.left_beside(output):  # else it may be our own
            check_task(task, REPLACE)
        if task.known:  # what was made with other settings, and is remembered
            forget_remembered(output, task.known)
        record.source_status, record.digest = looked_at(task.source)
        picture = image.load(task.source, True, frame=wanted.frame, strip=wanted.strip)
        record.notes += [f"{task.source}: {note}" for note in picture.notes]

        def allowed() -> bool:
            check_task(task, REPLACE)
            output_files.check_output(output, force=True)
            return True

        def write(data: bytes) -> None:
            put(task, data, REPLACE)

        encoding = Encoding(
            picture, str(task.source), output, wanted, device, watch, allowed, write, began
        )
        result = encoding.run()
        assert result is not None
        checkpoint.remove_stale(output)
        record.written, record.facts = True, result.facts()
        record.made = hashlib.sha256(result.bytes).hexdigest()
        record.state = None if encoding.kept is None else encoding.kept.path
        if (told := smaller_source(task.source, result)) is not None:
            record.notes.append(told)
        record.line = result.line(str(output))
