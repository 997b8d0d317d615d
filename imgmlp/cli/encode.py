"""`imgmlp encode`: compress pictures to compact files, one after the other, beside them.

With --out or for folders, `folders` runs it over many files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.batch import store
from imgmlp.batch.encode import EncodeFile, Encoding, smaller_source
from imgmlp.batch.encode_in_store import EncodeInStore
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.find import Search
from imgmlp.batch.output import EXTENSION, REPLACE
from imgmlp.batch.plan import Rules
from imgmlp.batch.work import Work
from imgmlp.cli import files, folders, parsing
from imgmlp.cli.files import STANDARD, Entry, Job
from imgmlp.cli.folders import Request
from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Progress
from imgmlp.ending import keep_open
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import OutputError, UsageError
from imgmlp.image_io.files import endings, pixel_count
from imgmlp.interrupt import StopRequest
from imgmlp.report.live import Live
from imgmlp.terminal import Terminal

SEPARATE_HINT = "encode it separately, with -o and another name"


@dataclass(frozen=True)
class Outputs:
    """Where files are written, and what happens to files that exist."""

    file: Path | None = None
    folder: Path | None = None
    force: bool = False
    skip: bool = False
    live: Path | None = None  # a preview, of one picture

    def preview(self) -> Live:
        return Live(self.live, self.force)

    def check_choices(self, several: bool) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.live is not None and (several or self.folder is not None):
            hint = "encode one picture at a time, without --out"
            raise UsageError("--live shows one picture only", hint=hint)
        files.check_single_output(self.file, self.folder)
        if self.force and self.skip:
            problem = "--force and --skip-existing are both given"
            raise UsageError(problem, hint="choose one of them")

    def for_sources(self, sources: Sequence[Path]) -> list[Path]:
        """The file to write for each picture. Raises ImgmlpError."""
        files.check_names(sources, self.file)
        if self.file is not None and self.file not in sources:
            pictures.check_ending(self.file, EXTENSION)
        outputs = [files.output_of(source, self.file, EXTENSION) for source in sources]
        written = [path for path in outputs if path != STANDARD]
        output_files.check_distinct(self.preview().paths(), [*sources, *written], SEPARATE_HINT)
        return outputs

    def check(self, path: Path) -> None:
        """Raise OutputError for a file that must not be replaced or cannot be written."""
        output_files.check_output(path, self.force, REPLACE)


def run(terminal: Terminal, request: Request, outputs: Outputs, options: EncodeOptions) -> int:
    """Encode pictures; returns the exit code. Raises Interrupted."""
    options.check()
    outputs.check_choices(request.is_batch or len(request.sources) > 1)
    if outputs.folder is None and not request.is_batch:
        return _encode_beside(terminal, request, outputs, options)
    folders.check_out(request, outputs.folder)
    assert outputs.folder is not None
    return _encode_into_folder(terminal, request, outputs, outputs.folder, options)


def _encode_into_folder(
    terminal: Terminal, request: Request, outputs: Outputs, folder: Path, options: EncodeOptions
) -> int:
    """Encode pictures into a folder, which may be in an object store."""
    work: Work
    if is_stored := store.is_stored(folder):
        _check_store(request, outputs, folder)
        work = EncodeInStore(options, folder, outputs.force)
    else:
        request.check()
        work = EncodeFile(options)
        if any(map(store.is_stored, request.sources)):
            hint = "give an --out in an object store too, such as s3://bucket/folder"
            problem = "pictures in an object store are encoded into an object store"
            raise UsageError(problem, hint=hint)
    destination = store.url(folder) if is_stored else folder
    terminal.note(f"{options.codec}, {options.describe_effort()}, into {destination}")
    search = Search(endings(), request.recursive, check=files.check_picture)
    rules = Rules(
        folder,
        naming=lambda name: name.with_suffix(EXTENSION),
        settings=options.digest(),
        force=outputs.force,
        skip=outputs.skip,
        journal=not is_stored,  # the workers leave notes in the store instead
        weigh=pixel_count,
    )
    return folders.run(terminal, request, search, rules, work)


def _check_store(request: Request, outputs: Outputs, folder: Path) -> None:
    """Raise ImgmlpError, before any work, if the options or access rights forbid writing to the
    object store."""
    if request.cluster is None:
        hint = "add --cluster with an address, or --cluster local"
        raise UsageError(f"{store.url(folder)} is in an object store", hint=hint)
    if outputs.skip:
        hint = "leave it out: outputs that are up to date are skipped anyway"
        raise UsageError("--skip-existing is for local folders only", hint=hint)
    request.check()
    store.check_writable(folder)


def _encode_beside(
    terminal: Terminal, request: Request, outputs: Outputs, options: EncodeOptions
) -> int:
    """Encode pictures one by one, each to a file beside it or to the file that -o names."""
    sources = request.sources
    paths = outputs.for_sources(sources)
    if STANDARD in paths:
        files.check_json(request.as_json, "file")
        files.check_not_terminal("an .imlp file", "imgmlp encode photo.png -o - > photo.imlp")
    watch, device = Watch(terminal), cache(lambda: _open_device(terminal, request.single_device))
    reserved = {output_files.resolved(source): source for source in sources if source != STANDARD}
    tasks = [
        _Task(watch, source, path, outputs, options, device, reserved)
        for source, path in zip(sources, paths, strict=True)
    ]
    tasks[0].began = terminal.began  # the time limit includes the start of the process
    jobs = [Job(task.entry, task.encode, task.check) for task in tasks]
    try:
        code = files.run_jobs(terminal, jobs, request.as_json, watch.stopping)
    finally:  # also if the JSON cannot be printed
        if all_done := all(map(_Task.is_done, tasks)):
            for task in tasks:
                task.remove_checkpoint()
    if not all_done and any(task.result_checkpoint is not None for task in tasks if task.written):
        terminal.note("the same command skips the files that it has written")
    return code


def _open_device(terminal: Terminal, spec: str) -> AnyDevice:
    device = keep_open(open_device(spec))
    terminal.note(device.info.describe())
    return device


class Watch:
    """Shows the progress of encoding on the terminal; Ctrl-C asks it to stop."""

    def __init__(self, terminal: Terminal) -> None:
        self.announce = self.note = terminal.note
        self.terminal, self._stop = terminal, StopRequest()

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[Progress], None]]:
        with self.terminal.training(steps) as show:
            yield show

    def stopping(self) -> bool:
        return self._stop.requested()

    def saving(self) -> AbstractContextManager[object]:
        return self._stop


@dataclass(eq=False)
class _Task:
    """The encoding of one picture.

    The checkpoints of finished pictures are removed once all pictures of the command are done, so
    that the same command can skip them until then.
    """

    watch: Watch
    source: Path
    path: Path
    outputs: Outputs
    options: EncodeOptions
    device: Callable[[], AnyDevice]
    reserved: dict[Path, Path]  # paths that this command reads or writes -> the source of each
    began: float = 0.0  # start of the time limit, by time.perf_counter; 0: when its turn comes
    result_checkpoint: Checkpoint | None = None
    written: bool = False

    def __post_init__(self) -> None:
        self.entry: Entry = {"file": str(self.source), "output": str(self.path), "problem": None}
        self.entry["notes"] = self.notes = list[str]()

    def check(self) -> None:
        """Raise ImgmlpError, before any work begins, for what cannot be done."""
        files.check_picture(self.source)
        if self.path != STANDARD:
            self._reserve(output_files.resolved(self.path))
        if self.path == STANDARD or checkpoint.left_beside(self.path):
            return  # the output may be this command's own
        if self._may_write():
            self.outputs.preview().check()

    def encode(self) -> None:
        """Write the file, and its figures into the entry.

        Raises TargetError or TrainingError after the best file is written.
        """
        if "skipped" in self.entry:
            return
        began, options = self.began or time.perf_counter(), self.options
        terminal = self.watch.terminal
        picture = parsing.load_picture(terminal, self.source, True, options.frame, options.strip)
        self.notes += picture.notes
        encoding = Encoding(
            picture,
            name=files.display_name(self.source),
            output=None if files.is_stream(self.path) else self.path,
            options=options,
            device=self.device,
            watch=self.watch,
            may_write=self._may_write,
            write=self._write,
            began=began,
            live=self.outputs.preview(),
        )
        result = encoding.run()
        self.result_checkpoint = encoding.result_checkpoint
        if result is None:
            return
        self.written = True
        self.entry |= result.facts()
        note = None if self.source == STANDARD else smaller_source(self.source, result)
        if note is not None:
            self.notes.append(note)
            terminal.note(note)
        is_standard = self.path == STANDARD
        terminal.done(result.line("standard output" if is_standard else str(self.path)))

    def _reserve(self, path: Path) -> None:
        """Reserve a resolved path.

        Raises OutputError if another picture of this command reads or writes it.
        """
        if path in self.reserved:
            other = self.reserved[path]
            problem = f"{other} and {self.source} would both be written to {self.path}"
            if other == self.source:
                problem = f"{self.source} is given twice"
            if path == output_files.resolved(other):
                problem = f"{self.path}, the output of {self.source}, would overwrite {other}"
            raise OutputError(problem, hint=SEPARATE_HINT)
        self.reserved[path] = self.source

    def is_done(self) -> bool:
        """Whether the file was written, even if it misses its target, or was skipped."""
        return self.written or "skipped" in self.entry

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint of a picture whose file is written."""
        if self.written and self.result_checkpoint is not None:
            self.result_checkpoint.remove(self.path)

    def _may_write(self) -> bool:
        """Whether to write the file; with --skip-existing, an existing file is skipped with a note.

        Raises OutputError.
        """
        if self.path == STANDARD:
            return True
        if self.outputs.skip and output_files.status(self.path) is not None:
            self.entry["skipped"] = True
            self.watch.note(f"{self.path} exists already: {self.source} is skipped")
            return False
        self.outputs.check(self.path)
        return True

    def _write(self, data: bytes) -> None:
        if self.path == STANDARD:
            files.write_standard(data)
            return
        force = self.outputs.force
        output_files.write_atomically(self.path, lambda stream: stream.write(data), force)
