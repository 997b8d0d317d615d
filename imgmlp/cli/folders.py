"""Runs over many files: `encode` and `decode` with --out, and `verify` of folders.

Names come from the command line or a list. `imgmlp.batch` finds the files, plans the run and
carries it out; `run_report` prints its results.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from imgmlp.batch import devices, find, store
from imgmlp.batch.find import Found, Search, names_in
from imgmlp.batch.leftovers import Leftovers
from imgmlp.batch.output import make_folder
from imgmlp.batch.plan import Plan, Rules
from imgmlp.batch.pool import Pool, Seat, run_here
from imgmlp.batch.work import Work
from imgmlp.cli import files
from imgmlp.cli.arguments import first_device
from imgmlp.cli.files import STANDARD
from imgmlp.cli.run_report import RunReport
from imgmlp.codec.training.run import Progress
from imgmlp.errors import ImgmlpError, OutputError, UsageError
from imgmlp.interrupt import StopRequest
from imgmlp.output_files import check_output, status
from imgmlp.terminal import Terminal
from imgmlp.text import enumeration, print_data

if TYPE_CHECKING:
    from imgmlp.batch.cluster import Cluster


@dataclass(frozen=True)
class Request:
    """The files of a command, and the devices to process them on."""

    sources: list[Path]
    files_from: Path | None = None  # a list of files
    recursive: bool = False
    device: str | None = None  # None if the option is not given
    jobs: int | None = None
    as_json: bool = False
    cluster: str | None = None

    @property
    def device_spec(self) -> str:
        """The devices: those of the option, or else those of the environment variable."""
        return self.device or os.environ.get("IMGMLP_DEVICE") or "auto"

    @property
    def single_device(self) -> str:
        """The device of commands that use one, as the environment variable may name several."""
        return self.device or first_device(self.device_spec)

    @property
    def process_devices(self) -> str:
        """The devices of the processes; a cluster's workers have one each."""
        return self.device_spec if self.cluster is None else self.single_device

    @property
    def is_batch(self) -> bool:
        """Whether the options or names are only valid for a run over many files."""
        return (
            devices.is_several(self.device or "")
            or self.jobs is not None
            or self.cluster is not None
            or any(map(store.is_stored, self.sources))
            or self.files_from is not None
            or self.recursive
            or any(map(_is_folder_or_pattern, self.sources))
        )

    def check(self) -> None:
        """Raise UsageError or DeviceError for an invalid request."""
        if STANDARD in self.sources:
            hint = "name its output with -o instead of --out"
            raise UsageError("- is standard input, whose output has no name in a folder", hint=hint)
        if not self.sources and self.files_from is None:
            raise UsageError("no files were given", hint="name files or folders")
        for source in self.sources:
            store.check_scheme(source)
        stored = next(filter(store.is_stored, self.sources), None)
        if stored is not None and (self.cluster is None or self.files_from is not None):
            hint = "only encode reads stores: with --cluster ADDRESS or local, and without a list"
            raise UsageError(f"{store.url(stored)} is in an object store", hint=hint)
        self._check_places()

    def check_without_folder(self) -> None:
        """Raise UsageError for a request of many files without --out.

        For a single file, the error names the option that is for many files only.
        """
        if not self._is_alone():
            self.check()
            hint = "use --out DIR for a folder; it is created if it does not exist"
            raise UsageError("where should the outputs of many files go?", hint=hint)
        self._check_places()
        if self.cluster is None and self.jobs is None:
            hint = "name one device, or give --out DIR for many files"
            raise UsageError(f"--device {self.device} names several devices", hint=hint)
        option = "--jobs" if self.cluster is None else "--cluster"
        raise UsageError(f"{option} is for many files only", hint="leave it out, or give --out DIR")

    def _is_alone(self) -> bool:
        """Whether a single file is named."""
        if self.files_from is not None or self.recursive or len(self.sources) != 1:
            return False
        return not _is_folder_or_pattern(self.sources[0]) and not store.is_stored(self.sources[0])

    def _check_places(self) -> None:
        """Raise UsageError or DeviceError for invalid devices, jobs or cluster."""
        if self.cluster is not None and devices.is_several(self.device or ""):
            hint = "start a worker for each device, with its name in IMGMLP_DEVICE"
            raise UsageError("each worker of a cluster uses one device", hint=hint)
        if self.cluster not in (None, devices.LOCAL):
            if not self.cluster.startswith(devices.SCHEDULERS):
                hint = (
                    "use local, or the address that the scheduler prints, like tcp://192.0.2.1:8786"
                )
                raise UsageError(f"--cluster is {self.cluster!r}", hint=hint)
            if self.jobs is not None:
                hint = "leave out --jobs: each worker does one file at a time"
                raise UsageError("--jobs is for processes on this machine", hint=hint)
        devices.check(self.process_devices, self.jobs)

    def find(self, search: Search) -> Iterator[Found]:
        """Find the files. Raises UsageError if the list cannot be read."""
        if self.files_from is None:
            local = [source for source in self.sources if not store.is_stored(source)]
            stored = [source for source in self.sources if store.is_stored(source)]
            found = (store.found(one, search.endings, search.recursive) for one in stored)
            return chain(search.find(local), chain.from_iterable(found))
        is_stream = files.is_stream(self.files_from)
        data = files.read(self.files_from) if is_stream else _read_list(self.files_from)
        return search.listed(names_in(data), self.sources)


def _is_folder_or_pattern(source: Path) -> bool:
    return find.is_folder(source) or find.is_pattern_of_any(source)


def _read_list(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot read the list {path}: {error.strerror}"
        raise UsageError(problem, hint="give a file with one name per line") from error


def check_out(request: Request, folder: Path | None) -> None:
    """Raise ImgmlpError, before any work, if --out is missing or cannot be written to."""
    if folder is None:
        request.check_without_folder()
        return
    if folder == STANDARD:
        raise UsageError("--out is -, which is standard output", hint="give a folder")
    store.check_scheme(folder)
    if status(folder) is not None and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="choose another place with --out")


def run(terminal: Terminal, request: Request, search: Search, rules: Rules, work: Work) -> int:
    """Process the files; returns the exit code. Raises ImgmlpError."""
    try:
        return _run(terminal, request, search, rules, work)
    except ImgmlpError as error:
        if request.as_json:  # as the last line
            terminal.has_printed_json = True
            print_data(json.dumps(error.facts()))
        raise


def _run(terminal: Terminal, request: Request, search: Search, rules: Rules, work: Work) -> int:
    request.check()
    if rules.folder is not None:
        search.leave_out = Path(os.path.realpath(rules.folder))
    plan = Plan(rules)
    report, leftovers = RunReport(terminal, plan, request.as_json), Leftovers()
    with StopRequest() as stop:
        for record in plan.make(request.find(search), stop.requested):
            leftovers.remove(record)
            report.add(record)
        report.note_skipped(search)
        if plan.count:
            _process(terminal, request, plan, work, report, stop)
    has_list = request.files_from is not None
    return report.finish(stop.requested(), has_list, request.recursive)


def _process(
    terminal: Terminal,
    request: Request,
    plan: Plan,
    work: Work,
    report: RunReport,
    stop: StopRequest,
) -> None:
    """Process the files of a plan. Raises ImgmlpError if none can be processed."""
    if request.cluster in (None, devices.LOCAL):
        candidates = devices.named(request.process_devices)
    else:  # the workers' device, which this machine may not have
        candidates = [(request.single_device, False)]
    seats = devices.processes(candidates, request.jobs, plan.weight / plan.count)[: plan.count]
    if plan.count > 1:  # before the first file, which may take a while
        terminal.note(f"{plan.count:,} files to do, {_describe_seats(request, seats)}")
    with _open_cluster(request, work, len(seats)) as cluster:
        if plan.journal is not None:  # once, instead of an error for every file
            make_folder(plan.journal.path)
            check_output(plan.journal.path, force=True)
        with terminal.files(plan.count) as report.show_progress:
            if cluster is not None:
                report.seats = cluster.seats
                records = cluster.run(plan.tasks(), stop.requested, report.update_progress)
            elif plan.count == 1:
                watch = _Watch(report, stop, seats[0])
                report.seats = watch.seats
                records = run_here(work, plan.tasks(), seats[0], watch)
            else:
                pool = Pool(work, seats, terminal.note)
                report.seats = pool.seats
                records = pool.run(plan.tasks(), stop.requested, report.update_progress)
            with contextlib.closing(records):
                for record in records:
                    report.add_processed(record)


def _describe_seats(request: Request, seats: Sequence[str]) -> str:
    """Where the files are processed; `seats` are the devices of the processes."""
    if request.cluster not in (None, devices.LOCAL):
        return f"on the workers of {request.cluster}"
    names = [name for name in dict.fromkeys(seats) if name != "auto"]
    return f"{len(seats)} at a time" + (f" on {enumeration(names)}" if names else "")


@contextmanager
def _open_cluster(request: Request, work: Work, processes: int) -> Iterator[Cluster | None]:
    """The cluster, or None if --cluster is not given.

    Raises UsageError where Dask is not installed, and what Cluster raises.
    """
    if request.cluster is None:
        yield None
        return
    try:
        from imgmlp.batch.cluster import Cluster
    except ModuleNotFoundError as error:
        hint = "pip install distributed fsspec s3fs, here and for the workers"
        raise UsageError(f"--cluster needs {error.name}", hint=hint) from error
    cluster = Cluster(work, request.cluster, request.single_device, processes)
    with contextlib.closing(cluster):
        yield cluster


class _Watch:
    """The watch of a run's only file, which is processed in this process."""

    def __init__(self, report: RunReport, stop: StopRequest, device: str) -> None:
        self._report, self._stop = report, stop
        self._seat = Seat(device)
        self.announce, self.note = report.terminal.detail, report.terminal.note

    def seats(self) -> list[Seat]:
        return [self._seat]

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[Progress], None]]:
        def show(progress: Progress) -> None:
            self._seat = Seat(
                self._seat.device, "its training", progress.step, progress.steps, progress.psnr
            )
            self._report.update_progress()

        self._stop.begin()
        yield show

    def stopping(self) -> bool:
        return self._stop.requested()

    def saving(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()
