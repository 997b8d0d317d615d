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
FilesShown = Callable[[int, int, float, "Sequence[Seat]"], None]
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
        self._console = _console(stderr=True)

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

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
        """Show the progress of a training; yields the function to call with each progress."""
        terminal = self._console.file.isatty() and not self._console.is_dumb_terminal
        if self.quiet or not self.progress:
            yield lambda _: None
        elif terminal:
            with _bar(self._console, steps) as show:
                yield show
        else:
            lines = _Lines(self.note)
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
        terminal = self._console.file.isatty() and not self._console.is_dumb_terminal
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif terminal:
            columns = (BarColumn(), _text("{task.description}", self._console))
            # Redrawn only on news, so that no thread competes with what is measured.
            with Progress(*columns, console=self._console, auto_refresh=False) as bar:
                task = bar.add_task("", total=total, completed=-1)

                begun, drawn = -1, 0.0

                def show(stage: str, fraction: float | None = None) -> None:
                    nonlocal begun, drawn
                    begun += fraction is None
                    now = time.monotonic()
                    if fraction is None or now - drawn >= REDRAW_INTERVAL:
                        drawn, done = now, begun + (fraction or 0.0)
                        name = printable(stage)
                        bar.update(task, completed=done, description=name, refresh=True)

                yield show
        else:
            began = time.monotonic()

            def show_line(stage: str, fraction: float | None = None) -> None:
                nonlocal began
                if time.monotonic() >= began + LINE_INTERVAL:
                    began = time.monotonic()
                    self.note(stage)

            yield show_line

    @contextmanager
    def files(self, total: int) -> Iterator[FilesShown]:
        """Show the progress of a run over many files; yields the function to call with news."""
        terminal = self._console.file.isatty() and not self._console.is_dumb_terminal
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif terminal:
            columns = (
                _text(" {task.description}", self._console),
                BarColumn(),
                _text("{task.fields[state]}", self._console),
            )
            # Redrawn only on news, so that no thread competes with the work.
            with Progress(*columns, console=self._console, auto_refresh=False) as bars:
                yield _FileBars(bars, total).show
        else:
            yield _FileLines(self.note, total).show


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    """Print a table to stdout, with the first column left-aligned. Raises OutputError."""
    with standard_output() as stream:
        plain = not encodes_unicode(stream)
        console = _console(file=stream, emoji=False, markup=False)
        if not stream.isatty():
            console.width = max(console.width, TABLE_WIDTH)
        table = Table(box=ASCII if plain else SIMPLE_HEAD, caption=caption, caption_justify="left")
        for number, name in enumerate(heading):
            table.add_column(name, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(ascii_only(cell) if plain else cell for cell in row))
        console.print(table)


def _console(**options: Any) -> Console:
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


def _text(form: str, console: Console) -> TextColumn:
    """Literal text of a bar, as file names may look like Rich's markup.

    Text that does not fit ends with an ellipsis, if the encoding has that character.
    """
    cut: OverflowMethod = "ellipsis" if encodes_unicode(console.file) else "crop"
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True, overflow=cut))


@contextmanager
def _bar(console: Console, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
    columns = {
        "word": _text(TRAINING_LABEL, console),
        "bar": BarColumn(),
        "done": _text("{task.completed:,.0f}/{task.total:,.0f}", console),
        "state": _text("{task.fields[state]}", console),
    }
    # Redrawn only on news, so that no thread competes with the training.
    bar = Progress(*columns.values(), console=console, auto_refresh=False)
    drawn = 0.0
    with bar:
        task = bar.add_task("training", total=steps, state="preparing")
        bar.refresh()

        def show(progress: TrainingProgress) -> None:
            nonlocal drawn
            plain = not encodes_unicode(console.file)
            without = _omitted_parts(progress, console.width, plain)
            bar.columns = tuple(columns[name] for name in columns if name not in without)
            state = _state(progress, without, plain)
            bar.update(task, completed=progress.step, total=progress.steps, state=state)
            now = time.monotonic()
            if now - drawn >= REDRAW_INTERVAL or progress.step == progress.steps:
                drawn = now
                bar.refresh()

        yield show


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
        whole, *others = self._tasks
        state = self._state(done, failed, fraction)
        self._bars.update(whole, completed=fraction, state=state)
        for _ in seats[len(others) :]:
            self._tasks.append(self._bars.add_task("", total=None, state=""))
        for task, seat in zip(self._tasks[1:], seats, strict=True):
            psnr = f"  {seat.psnr:.1f} dB" if seat.psnr else ""
            state = printable(seat.file) + psnr
            total = seat.steps or None if seat.file else 1
            name = printable(seat.device)
            self._bars.update(task, description=name, total=total, completed=seat.step, state=state)
        self._bars.refresh()


class _Lines:
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
            self._note(f"training  {_done(self._unprinted)}  {_state(self._unprinted)}")
            self._unprinted = None


def _omitted_parts(progress: TrainingProgress, width: int, plain: bool) -> Sequence[str]:
    """The OPTIONAL_PARTS that do not fit into a line of `width` columns.

    The usual width has room for all, unless λ is spelled out because the line is `plain` ASCII.
    """
    if width >= USUAL_WIDTH and not plain:
        return ()
    for count in range(len(OPTIONAL_PARTS)):
        without = OPTIONAL_PARTS[:count]
        parts = {"word": TRAINING_LABEL, "bar": SHORTEST_BAR, "done": _done(progress)}
        line = [text for name, text in parts.items() if name not in without]
        if len(" ".join([*line, _state(progress, without, plain)])) <= width:
            return without
    return OPTIONAL_PARTS


def _done(progress: TrainingProgress) -> str:
    return f"{progress.step:,}/{progress.steps:,}"


def _state(progress: TrainingProgress, without: Sequence[str] = (), plain: bool = False) -> str:
    """A training's figures `without` some parts; in ASCII if `plain`."""
    parts = {"loss": f"loss {progress.loss:.3g}", "psnr": f"{progress.psnr:.1f} dB"}
    if progress.bpp is not None and progress.cost is not None:
        parts = {"bpp": f"{progress.bpp:.3f} bpp", "psnr": parts["psnr"]}
        parts["cost"] = f"D+λR {progress.cost:.3g}"
    parts["rate"] = f"{progress.steps_per_second:,.0f} steps/s"
    parts["left"] = f"{duration(progress.seconds_left)} left"
    line = "  ".join(text for name, text in parts.items() if name not in without)
    return ascii_only(line) if plain else line
