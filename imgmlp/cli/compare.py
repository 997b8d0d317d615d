"""`imgmlp compare`: a page that compares imgmlp with other codecs on pictures.

Until the page is written, checkpoints beside it hold what imgmlp has encoded, so that the same
command resumes an interrupted run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from pathlib import Path

from imgmlp import __version__, output_files
from imgmlp import image as pictures
from imgmlp.cli import files, parsing
from imgmlp.cli.files import STANDARD, Entry, Job
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import DEFAULT_CODEC, Codec
from imgmlp.codec.training import checkpoint, target
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Progress, Run
from imgmlp.codec.training.target import Goal
from imgmlp.ending import keep_open
from imgmlp.engine import open_device
from imgmlp.errors import DeviceError, UsageError, problem_of
from imgmlp.facts import dimensions
from imgmlp.image import Picture
from imgmlp.interrupt import StopRequest
from imgmlp.report import classic, measure, metrics, page
from imgmlp.report.copies import MAX_PAGE_BYTES
from imgmlp.report.measure import RATES, Comparison, Measured
from imgmlp.terminal import Terminal
from imgmlp.text import size

EXTENSION = ".html"
INSTALL_COMMAND = "pip install blazediff-ssim pillow-jxl-plugin"


@dataclass(frozen=True)
class CompareOptions:
    """The options for the files that imgmlp encodes."""

    rates: tuple[float, ...]  # bits per pixel; none for RATES
    effort: int | None = None
    codec: Codec = DEFAULT_CODEC
    frame: int | None = None

    def sorted_rates(self) -> list[float]:
        """The rates in rising order, each once. Raises UsageError."""
        rates = sorted(set(self.rates or RATES))
        if len(rates) < 2:
            hint = "give --bpp several times"
            raise UsageError("a curve needs two rates", hint=hint)
        for rate in rates:
            target.choose(1, bpp=rate)
        return rates


def run(
    terminal: Terminal,
    sources: list[Path],
    output: Path,
    options: CompareOptions,
    device_spec: str,
    force: bool,
    as_json: bool,
) -> int:
    """Measure pictures and write the page; returns the exit code. Raises Interrupted."""
    rates = options.sorted_rates()
    workload = encoder.workload(options.codec, options.effort, None)
    if not metrics.available():
        raise UsageError(
            f"compare needs {metrics.PACKAGE} for SSIM and MS-SSIM", hint=INSTALL_COMMAND
        )
    _check_output(sources, output, force, as_json)
    sources = _without_duplicates(terminal, sources)

    @cache  # the device is opened when the first picture is measured
    def comparison() -> Comparison:
        device = keep_open(open_device(device_spec))
        terminal.note(device.info.describe())
        return Comparison(options.codec, workload, device, rates, _other_codecs(terminal))

    jobs: list[Job] = []
    try:
        stage_count = len(sources) * len(rates)
        with StopRequest() as stop, terminal.stages(stage_count) as show_stage:
            report = _Report(terminal, output, force, options, comparison, show_stage, stop)
            jobs += [report.job(source) for source in sources]
            code = files.run_jobs(terminal, jobs, False, stop.requested)
        if report.measured and code != DeviceError.exit_code:
            _write(report, jobs)
        elif any(saved.path.exists() for saved in report.checkpoints):
            hint = "the same command continues from there"
            terminal.note(f"no page was written; what was encoded is kept: {hint}")
    finally:
        if as_json and jobs:  # only now is it known whether the page was written
            files.print_entries(terminal, jobs)
    return code


def _write(report: _Report, jobs: list[Job]) -> None:
    """Write the page; if that fails, all pictures on it count as failed. Raises ImgmlpError."""
    try:
        report.write()
    except (KeyboardInterrupt, Exception) as error:
        for job in jobs:
            if job.entry["problem"] is None:
                job.entry |= problem_of(error).facts()
        raise


def _check_output(sources: list[Path], output: Path, force: bool, as_json: bool) -> None:
    """Raise UsageError or OutputError if the page cannot be written to its place."""
    files.check_names(sources, None)
    if output == STANDARD:
        files.check_json(as_json, "page")
        files.check_not_terminal("a page", "imgmlp compare photo.png -o - > report.html")
        return
    pictures.check_ending(output, EXTENSION)
    output_files.check_distinct([output], sources, "choose another name for the page")
    output_files.check_output(output, force)


def _without_duplicates(terminal: Terminal, sources: list[Path]) -> list[Path]:
    """The pictures without those that are given twice, perhaps by different paths."""
    distinct: dict[Path, Path] = {}  # from the resolved path
    for source in sources:
        path = output_files.resolved(source)
        if path in distinct:
            terminal.note(f"{source} is given twice but compared once")
        distinct.setdefault(path, source)
    return list(distinct.values())


def _other_codecs(terminal: Terminal) -> dict[str, classic.Classic]:
    """The other codecs that Pillow can write here; prints a note on those that it cannot."""
    codecs = classic.usable()
    for key, codec in classic.CODECS.items():
        if key not in codecs:
            extra = f"; `{INSTALL_COMMAND}` adds it" if codec.format == "JXL" else ""
            terminal.note(f"{codec.name} is left out, as Pillow cannot write it here{extra}")
    return codecs


@dataclass(eq=False)
class _Report:
    """The measurement of all pictures for one page."""

    terminal: Terminal
    output: Path
    force: bool
    options: CompareOptions
    comparison: Callable[[], Comparison]
    show_stage: Callable[..., None]
    stop: StopRequest
    measured: list[Measured] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    has_unfinished: bool = False  # whether checkpoints belong to a picture that is not on the page

    def job(self, source: Path) -> Job:
        entry: Entry = {"file": str(source), "problem": None}

        def do() -> None:
            picture = parsing.load_picture(self.terminal, source, False, self.options.frame, True)
            measured = self._measure(source, picture)
            entry["files"] = [result.facts() for result in measured.results]

        return Job(entry, do, lambda: files.check_picture(source))

    def _measure(self, source: Path, picture: Picture) -> Measured:
        name, comparison = files.display_name(source), self.comparison()
        what = dimensions(picture.width, picture.height, picture.channels)
        self.terminal.detail(f"{name}  {what}")
        first = len(self.checkpoints)
        try:
            start_run = partial(self._start_run, name, picture, comparison)
            measured = measure.measure(comparison, name, picture, start_run)
        except Exception:
            own = self.checkpoints[first:]
            self.has_unfinished |= any(saved.path.exists() for saved in own)
            raise
        self.measured.append(measured)
        return measured

    def _start_run(
        self, name: str, picture: Picture, comparison: Comparison, rate: float, goal: Goal
    ) -> Run:
        """The run in which imgmlp encodes a picture at a rate."""
        stage = f"{name} at {rate:g} bpp"
        self.show_stage(stage)
        self.stop.begin()  # earlier files are in checkpoints

        def show_progress(progress: Progress) -> None:
            state = f"{progress.step:,}/{progress.steps:,}  {progress.psnr:.1f} dB"
            self.show_stage(f"{stage}  {state}", progress.step / progress.steps)

        callbacks = show_progress, self.stop.requested, self.terminal.detail
        if files.is_stream(self.output):  # a stream has no folder for checkpoints
            return Run(*callbacks)
        choices = f"compare {comparison.codec} {goal!r} {comparison.workload!r}"
        own = checkpoint.of_training(self.output, picture, comparison.device, choices)
        self.checkpoints.append(own)
        return Run(*callbacks, own)

    def write(self) -> None:
        """Write the page, and remove the checkpoints unless a picture has failed.

        Raises OutputError.
        """
        comparison = self.comparison()
        about = page.About(
            codec=comparison.codec,
            effort=self.options.effort,
            device=comparison.device.info.describe(),
            others=comparison.others,
            rates=list(comparison.rates),
            version=__version__,
            made=datetime.now().astimezone(),
        )
        text = page.render(self.measured, about).encode()
        if self.output == STANDARD:
            files.write_standard(text)
        else:
            output_files.write_atomically(
                self.output, lambda stream: stream.write(text), self.force
            )
        if self.has_unfinished:
            hint = "the same command with --force continues from there"
            self.terminal.note(f"what was encoded is kept, as a picture failed: {hint}")
        else:
            for saved in self.checkpoints:
                saved.remove(self.output)
        if len(text) > MAX_PAGE_BYTES:
            advice = "browsers load it slowly; fewer pictures or rates make it smaller"
            self.terminal.note(f"the page is larger than {size(MAX_PAGE_BYTES)}: {advice}")
        count = len(self.measured)
        what = "1 picture" if count == 1 else f"{count} pictures"
        self.terminal.done(f"{self.output} {size(len(text))}   {what}")
