"""What a person sees while imgmlp works: messages, progress and errors, all on stderr.

This module decides only the form: a live bar on a terminal, plain lines elsewhere, ASCII if the
encoding requires it, and no control characters, which file names may contain. It knows neither
files nor how anything is computed.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import ASCII, SIMPLE_HEAD
from rich.console import Console, OverflowMethod
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from imgmlp.errors import ImgmlpError, ImgmlpWarning
from imgmlp.text import ascii_only, duration, encodes_unicode, printable, standard_output

if TYPE_CHECKING:
    from imgmlp.batch.pool import Seat
    from imgmlp.codec.training.run import Progress as TrainingProgress

LINE_INTERVAL = 10.0  # seconds between two progress lines where there is no terminal
REDRAW_INTERVAL = 0.1  # seconds between two drawings of the bar
ShowFiles = Callable[[int, int, float, "Sequence[Seat]"], None]
MIN_WIDTH = 8  # columns; a terminal that claims fewer is taken to have USUAL_WIDTH
USUAL_WIDTH = 80  # columns
TABLE_WIDTH = 120  # columns of a table that is not printed to a terminal
TRAINING_LABEL = " training"
SHORTEST_BAR = "━" * 4
# Parts of a training's progress line, in the order in which they are omitted on narrow terminals.
OPTIONAL_PARTS = ("bar", "cost", "rate", "word", "bpp", "loss")


class Terminal:
    """Standard error, with the user's choice of verbosity and the time when the command started."""

    def __init__(self, began: float | None = None) -> None:
        """`began` is a time of `time.perf_counter`; the default is now."""
        self.began = time.perf_counter() if began is None else began
        self.quiet = False
        self.verbosity = 0
        self.progress = True
        self.has_printed_json = False  # JSON on stdout already reports the errors
        self._console = _new_console(stderr=True)

    def note(self, text: str) -> None:
        """Print a message, unless -q was given."""
        if not self.quiet:
            self._print(text)

    def detail(self, text: str) -> None:
        """Print a message if -v was given."""
        if self.verbosity and not self.quiet:
            self._print(text, style="dim")

    def done(self, text: str) -> None:
        """Print the last line of work that succeeded."""
        if not self.quiet:
            self._print(f" {text}", ("✓", "green"))

    def fail(self, error: ImgmlpError) -> int:
        """Print an error and its hint, with -vv also a traceback; returns the exit code."""
        if self.verbosity > 1:
            for line in traceback.format_exc().splitlines():
                self._print(line)
        self.problem(error)
        return error.exit_code

    def problem(self, error: ImgmlpError) -> None:
        """Print an error and its hint."""
        self._print(f" {error}", ("error:", "bold red"))
        first, *others = error.hint.splitlines() or [""]  # a compiler's messages may follow
        if first:
            self._print(f" {first}", ("hint:", "bold"))
        for line in others:
            self._print(line)

    def show_warnings(self) -> None:
        """From now on, print imgmlp's warnings as notes."""
        show_others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ImgmlpWarning):
                self.note(f"warning: {message}")
            else:
                show_others(message, category, filename, lineno, file, line)

        warnings.showwarning = show

    def _print(self, line: str, mark: tuple[str, str] = ("", ""), style: str = "") -> None:
        text = Text.assemble(mark, (printable(line), style))
        if not encodes_unicode(self._console.file):
            text = Text(ascii_only(text.plain))
        self._console.print(text, soft_wrap=True)

    def _can_draw_bars(self) -> bool:
        return self._console.file.isatty() and not self._console.is_dumb_terminal

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
        """Show the progress of a training; yields the function to call with each progress."""
        if self.quiet or not self.progress:
            yield lambda _: None
        elif self._can_draw_bars():
            with _training_bar(self._console, steps) as show:
                yield show
        else:
            lines = _TrainingLines(self.note)
            try:
                yield lines.show
            finally:
                lines.finish()

    @contextmanager
    def stages(self, total: int) -> Iterator[Callable[..., None]]:
        """Show the progress of work in stages; yields the function to call as each one begins.

        It takes the stage's name. With a fraction from 0 to 1 as well, it says how much of the
        current stage is done.
        """
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif self._can_draw_bars():
            columns = (BarColumn(), _text_column("{task.description}", self._console))
            # Redrawn only on news, so that no thread competes with what is measured.
            with Progress(*columns, console=self._console, auto_refresh=False) as bar:
                yield _StageBar(bar, total).show
        else:
            yield _StageLines(self.note).show

    @contextmanager
    def files(self, total: int) -> Iterator[ShowFiles]:
        """Show the progress of a run over many files; yields the function to call with news."""
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif self._can_draw_bars():
            columns = (
                _text_column(" {task.description}", self._console),
                BarColumn(),
                _text_column("{task.fields[state]}", self._console),
            )
            # Redrawn only on news, so that no thread competes with the work.
            with Progress(*columns, console=self._console, auto_refresh=False) as bars:
                yield _FileBars(bars, total).show
        else:
            yield _FileLines(self.note, total).show


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    """Print a table to stdout, with the first column left-aligned. Raises OutputError."""
    with standard_output() as stream:
        is_ascii = not encodes_unicode(stream)
        console = _new_console(file=stream, emoji=False, markup=False)
        if not stream.isatty():
            console.width = max(console.width, TABLE_WIDTH)
        table = Table(
            box=ASCII if is_ascii else SIMPLE_HEAD, caption=caption, caption_justify="left"
        )
        for number, name in enumerate(heading):
            table.add_column(name, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(ascii_only(cell) if is_ascii else cell for cell in row))
        console.print(table)


def _new_console(**options: Any) -> Console:
    """A Rich console, corrected for environment variables that confuse Rich, such as COLUMNS=0."""
    if os.environ.get("NO_COLOR"):  # Rich alone would still print bold
        options["color_system"] = None
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "0").isdecimal():  # Rich would fail on digits such as ²
            del os.environ[name]
    console = Console(highlight=False, **options)
    if console.width < MIN_WIDTH:
        console.width = USUAL_WIDTH
    return console


def _text_column(form: str, console: Console) -> TextColumn:
    """Literal text of a bar, as file names may look like Rich's markup.

    Text that does not fit ends with an ellipsis, if the encoding has that character.
    """
    cut: OverflowMethod = "ellipsis" if encodes_unicode(console.file) else "crop"
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True, overflow=cut))


@contextmanager
def _training_bar(console: Console, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
    columns = {
        "word": _text_column(TRAINING_LABEL, console),
        "bar": BarColumn(),
        "done": _text_column("{task.completed:,.0f}/{task.total:,.0f}", console),
        "state": _text_column("{task.fields[state]}", console),
    }
    # Redrawn only on news, so that no thread competes with the training.
    bar = Progress(*columns.values(), console=console, auto_refresh=False)
    drawn = 0.0
    with bar:
        task = bar.add_task("training", total=steps, state="preparing")
        bar.refresh()

        def show(progress: TrainingProgress) -> None:
            nonlocal drawn
            is_ascii = not encodes_unicode(console.file)
            omitted = _omitted_parts(progress, console.width, is_ascii)
            bar.columns = tuple(columns[name] for name in columns if name not in omitted)
            state = _state(progress, omitted, is_ascii)
            bar.update(task, completed=progress.step, total=progress.steps, state=state)
            now = time.monotonic()
            if now - drawn >= REDRAW_INTERVAL or progress.step == progress.steps:
                drawn = now
                bar.refresh()

        yield show


class _StageBar:
    """The progress of work in stages, as a bar."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar, self._task = bar, bar.add_task("", total=total, completed=-1)
        self._stage_number = -1  # of the current stage, from 0
        self._drawn = 0.0  # time of the last drawing

    def show(self, stage: str, fraction: float | None = None) -> None:
        self._stage_number += fraction is None
        now = time.monotonic()
        if fraction is None or now - self._drawn >= REDRAW_INTERVAL:
            self._drawn, completed = now, self._stage_number + (fraction or 0.0)
            name = printable(stage)
            self._bar.update(self._task, completed=completed, description=name, refresh=True)


class _StageLines:
    """The progress of work in stages, as a plain line every ten seconds."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._printed = time.monotonic()  # time of the last line

    def show(self, stage: str, fraction: float | None = None) -> None:
        if time.monotonic() >= self._printed + LINE_INTERVAL:
            self._printed = time.monotonic()
            self._note(stage)


class _FileLines:
    """The progress of a run over files, as a plain line every ten seconds."""

    def __init__(self, note: Callable[[str], None], total: int) -> None:
        self._note, self._total = note, total
        self._began = time.monotonic()
        self._next = self._began + LINE_INTERVAL

    def show(self, done: int, failed: int, fraction: float, seats: Sequence[Seat]) -> None:
        """`fraction` is the part of the work, from 0 to 1, that is done."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_INTERVAL
            self._note(self._state(done, failed, fraction))

    def _state(self, done: int, failed: int, fraction: float) -> str:
        took = time.monotonic() - self._began
        left = f"  {duration(took / fraction * (1 - fraction))} left" if fraction else ""
        problems = f"  {failed:,} failed" if failed else ""
        return f"{done:,}/{self._total:,} files{problems}{left}"


class _FileBars(_FileLines):
    """The progress of a run over files as a bar, with one bar for each process below it."""

    def __init__(self, bars: Progress, total: int) -> None:
        super().__init__(lambda _: None, total)
        self._bars, self._tasks = bars, [bars.add_task("all files", total=1.0, state="")]
        bars.refresh()

    def show(self, done: int, failed: int, fraction: float, seats: Sequence[Seat]) -> None:
        all_files, *processes = self._tasks
        state = self._state(done, failed, fraction)
        self._bars.update(all_files, completed=fraction, state=state)
        for _ in seats[len(processes) :]:
            self._tasks.append(self._bars.add_task("", total=None, state=""))
        for task, seat in zip(self._tasks[1:], seats, strict=True):
            psnr = f"  {seat.psnr:.1f} dB" if seat.psnr else ""
            state = printable(seat.file) + psnr
            total = seat.steps or None if seat.file else 1
            name = printable(seat.device)
            self._bars.update(task, description=name, total=total, completed=seat.step, state=state)
        self._bars.refresh()


class _TrainingLines:
    """A training's progress as plain lines: the first state, one every ten seconds, and the last.

    Before the first one, while kernels compile, a line every ten seconds shows the time so far.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._next = 0.0  # the first state is printed at once, with the time left
        self._unprinted: TrainingProgress | None = None
        self._begun = threading.Event()
        self._waiting = threading.Thread(target=self._wait, daemon=True)
        self._waiting.start()

    def _wait(self) -> None:
        began = time.monotonic()
        while not self._begun.wait(LINE_INTERVAL):
            self._note(f"preparing  {duration(time.monotonic() - began)}")

    def show(self, progress: TrainingProgress) -> None:
        self._begun.set()
        self._unprinted = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_INTERVAL
            self.finish()

    def finish(self) -> None:
        self._begun.set()
        if self._unprinted is not None:
            self._note(f"training  {_steps_done(self._unprinted)}  {_state(self._unprinted)}")
            self._unprinted = None


def _omitted_parts(progress: TrainingProgress, width: int, is_ascii: bool) -> Sequence[str]:
    """The OPTIONAL_PARTS that do not fit into a line of `width` columns.

    The usual width has room for all, unless λ is spelled out because the line must be ASCII.
    """
    if width >= USUAL_WIDTH and not is_ascii:
        return ()
    for count in range(len(OPTIONAL_PARTS)):
        omitted = OPTIONAL_PARTS[:count]
        parts = {"word": TRAINING_LABEL, "bar": SHORTEST_BAR, "done": _steps_done(progress)}
        line = [text for name, text in parts.items() if name not in omitted]
        if len(" ".join([*line, _state(progress, omitted, is_ascii)])) <= width:
            return omitted
    return OPTIONAL_PARTS


def _steps_done(progress: TrainingProgress) -> str:
    return f"{progress.step:,}/{progress.steps:,}"


def _state(progress: TrainingProgress, omitted: Sequence[str] = (), is_ascii: bool = False) -> str:
    """A training's figures except the omitted parts; in ASCII if `is_ascii`."""
    parts = {"loss": f"loss {progress.loss:.3g}", "psnr": f"{progress.psnr:.1f} dB"}
    if progress.bpp is not None and progress.cost is not None:
        parts = {"bpp": f"{progress.bpp:.3f} bpp", "psnr": parts["psnr"]}
        parts["cost"] = f"D+λR {progress.cost:.3g}"
    parts["rate"] = f"{progress.steps_per_second:,.0f} steps/s"
    parts["left"] = f"{duration(progress.seconds_left)} left"
    line = "  ".join(text for name, text in parts.items() if name not in omitted)
    return ascii_only(line) if is_ascii else line
