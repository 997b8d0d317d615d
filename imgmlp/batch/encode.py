"""Encodes a picture into its file: for one file and for many, in any process.

A hidden file beside the output holds what was written until the journal records the output. So if
the command is interrupted, it knows the next time that it has written the output itself, and can
write it again.
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
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.journal import status_and_digest
from imgmlp.batch.leftovers import forget, forget_recorded
from imgmlp.batch.output import REPLACE, check_task, holds, make_folder, put
from imgmlp.batch.shortfall import BESIDE, shortfall
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

MIN_TOLD_FRACTION = 0.1  # of a time limit; compiling for longer is announced


@dataclass(frozen=True)
class Result:
    """An encoded file and its figures."""

    bytes: bytes = field(repr=False)
    metrics: dict[str, Any]
    missed: str | None
    diverged: bool
    beside: int = 0  # bytes of metadata, if the file is larger than its target
    before: bool = False  # whether an earlier run has made it
    took: float = 0.0  # seconds, including compiling and checks

    def facts(self) -> dict[str, Any]:
        """The figures for JSON, in which an infinite PSNR is null."""
        facts = dict(self.metrics)
        if math.isinf(facts["psnr"]):
            facts["psnr"] = None
        if self.missed is not None:
            facts["missed"] = self.missed
        if self.diverged:
            facts["diverged"] = True
        return facts

    def line(self, name: str) -> str:
        """The message for the file `name`.

        Raises TargetError or TrainingError if it is only the best one that was reached.
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
    """A note if the picture's own file is no larger than the encoded one; else None.

    PNGs of drawings and text often are smaller, and they are lossless. None for pipes.
    """
    there = output_files.status(source)
    if there is None or not stat.S_ISREG(there.st_mode) or there.st_size > len(result.bytes):
        return None
    return f"{source} itself has only {size(there.st_size)}, no more than its .imlp file"


@dataclass(eq=False)
class Encoding:
    """The encoding of one picture into its file."""

    picture: Picture
    name: str  # of the picture, for messages
    output: Path | None  # None for streams, which have no hidden file
    options: EncodeOptions
    device: Callable[[], AnyDevice]
    watch: Watch
    # Whether the output may be written now; if not, it is left as it is. Raises OutputError.
    may_write: Callable[[], bool]
    write: Callable[[bytes], None]
    began: float = field(default_factory=time.perf_counter)  # the start of a time limit
    live: Live = field(default_factory=Live)
    result_checkpoint: Checkpoint | None = None  # holds the result until the run is over
    _training_checkpoint: Path | None = None

    def run(self) -> Result | None:
        """The result, which was written now or before; None if the output is left as it is.

        Raises ImgmlpError: Interrupted after the state is saved, if the watch asks to stop.
        """
        picture, options = self.picture, self.options
        goal, workload = options.target(picture.width * picture.height), options.workload()
        beside = metadata_sections.size(picture.metadata) if goal.kind == "bytes" else 0
        self._announce(goal, beside)
        choices = f"{options.codec} {goal!r} {workload!r}"
        if self.output is not None:
            self.result_checkpoint = checkpoint.of_result(self.output, picture, choices)
        result = self._done_before()
        if result is None or self.output is None or not holds(self.output, result.bytes):
            if not self.may_write():
                return None
            with self.watch.saving():
                result = result or self._train(goal, choices)
                self.write(result.bytes)
        else:
            output_files.remove_second_name(self.output)
        forget(self._training_checkpoint)  # unless _save_result has removed it
        took = time.perf_counter() - self.began
        return replace(result, beside=beside if len(result.bytes) > goal.value else 0, took=took)

    def _announce(self, goal: Goal, beside: int) -> None:
        """Announce the task at once, as opening a device may take seconds."""
        picture, options = self.picture, self.options
        what = dimensions(picture.width, picture.height, picture.channels)
        asked = f"{goal}, {options.codec}, {options.describe_effort()}"
        self.watch.announce(f"{self.name}  {what}   {asked}")
        if 2 * beside > goal.value:
            self.watch.announce(f"{beside:,} of {goal} are taken by {BESIDE}")

    def _announce_time(self, goal: Goal, device: AnyDevice) -> None:
        """Announce the estimated time; with a time limit only that of compiling, if it is long."""
        workload = self.options.workload()
        asked = self.picture, goal, workload, device, self.options.codec
        if workload.seconds is None:
            self.watch.announce(f"about {duration(encoder.expected_seconds(*asked))}")
            return
        compiling = encoder.compiling_seconds(*asked)
        if compiling > MIN_TOLD_FRACTION * workload.seconds:
            message = (
                f"compiles for about {duration(compiling)} first, only once for pictures like this"
            )
            self.watch.announce(message)

    def _done_before(self) -> Result | None:
        """The result of an earlier run that was interrupted after it had encoded the picture."""
        saved = None if self.result_checkpoint is None else self.result_checkpoint.load()
        result = None if saved is None else saved.result()
        if result is None:
            return None
        data, values = result
        name = values.pop(checkpoint.TRAINING_CHECKPOINT, None)
        beside = [] if self.output is None else checkpoint.left_beside(self.output)
        self._training_checkpoint = next((path for path in beside if path.name == name), None)
        return Result(data, **values, before=True)

    def _train(self, goal: Goal, choices: str) -> Result:
        """Train and encode; the result is also saved in a checkpoint. Raises Interrupted."""
        picture, codec, workload = self.picture, self.options.codec, self.options.workload()
        state, device = None, self.device()
        if self.output is not None:
            state = checkpoint.of_training(self.output, picture, device, choices)
            self._training_checkpoint = state.path
            if (note := checkpoint.note_on_others(self.output, state)) is not None:
                self.watch.note(note)
        self._announce_time(goal, device)
        run = Run(None, self.watch.stopping, self.watch.note, state, began=self.began)
        key = "" if state is None else state.key
        self.live.check(None if run.saved is None else key, picture)
        view = self.live.view(self.name, picture, self.watch.note, key)
        with self.watch.training(workload.steps) as show, view:
            run.on_progress = view.after(show)
            made = encoder.encode(picture, goal, workload, device, run, codec)
            view.end(f"Done: {len(made.bytes):,} bytes, {made.metrics['psnr']:.2f} dB", made.pixels)
        result = Result(made.bytes, made.metrics, made.missed, made.diverged)
        return self._save_result(result) if run.should_save(stopping=True) else result

    def _save_result(self, result: Result) -> Result:
        """Save a result in its checkpoint; returns the result that the checkpoint holds.

        If several runs encode the same picture, the first result stays, so that all of them write
        the same bytes.
        """
        assert self.result_checkpoint is not None
        assert self._training_checkpoint is not None
        values = {"metrics": result.metrics, "missed": result.missed, "diverged": result.diverged}
        values[checkpoint.TRAINING_CHECKPOINT] = self._training_checkpoint.name
        try:
            self.result_checkpoint.save(Snapshot.of_result(result.bytes, values), replace=False)
        except OutputError as error:
            own = self._training_checkpoint
            if (first := self._done_before()) is not None:
                forget(own)
                return first
            self.watch.note(f"no checkpoints are written: {error}")
            return result
        forget(self._training_checkpoint)
        return result


@dataclass(frozen=True)
class EncodeFile:
    """Encodes picture files: each task's source to its output."""

    options: EncodeOptions

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises TargetError or TrainingError after writing the best file."""
        task, options, began = record.task, self.options, time.perf_counter()
        output = task.output
        assert output is not None
        make_folder(output)
        there = output_files.status(output) is not None
        if there and not checkpoint.left_beside(output):  # else a run may have been interrupted
            check_task(task, REPLACE)
        if task.known:  # an output of other settings, which is recorded
            forget_recorded(output, task.known)
        record.source_status, record.digest = status_and_digest(task.source)
        picture = image.load(task.source, True, frame=options.frame, strip=options.strip)
        record.notes += [f"{task.source}: {note}" for note in picture.notes]

        def may_write() -> bool:
            check_task(task, REPLACE)
            output_files.check_output(output, force=True)
            return True

        def write(data: bytes) -> None:
            put(task, data, REPLACE)

        encoding = Encoding(
            picture, str(task.source), output, options, device, watch, may_write, write, began
        )
        result = encoding.run()
        assert result is not None
        checkpoint.remove_stale(output)
        record.written, record.facts = True, result.facts()
        record.made = hashlib.sha256(result.bytes).hexdigest()
        record.state = (
            None if encoding.result_checkpoint is None else encoding.result_checkpoint.path
        )
        if (note := smaller_source(task.source, result)) is not None:
            record.notes.append(note)
        record.line = result.line(str(output))
