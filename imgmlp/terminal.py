"""What a person sees while imgmlp works: messages, progress and errors, all on stderr.

Only form is decided here: a live bar on a terminal, plain lines elsewhere, ASCII where the
encoding asks for it, and no control characters: names of files may hold any. Knows neither files
nor how anything is computed.
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

LINE_EVERY = 10.0  # seconds between two lines where there is no terminal
DRAW_EVERY = 0.1  # seconds between two drawings of the bar
FilesShown = Callable[[int, int, float, "Sequence[Seat]"], None]
NARROWEST, USUAL_WIDTH = 8, 80  # characters of a line
WORD, BAR = " training", "━" * 4  # of which the bar has more where there is room
# What a narrower line of a training leaves out for the rest to fit, this first.
LEFT_OUT = ("bar", "cost", "rate", "word", "bpp", "loss")
TABLE_WIDTH = 120  # characters, where there is no terminal whose width would count


class Terminal:
    """Standard error, how much the user wants to read there, and since when they wait."""

    def __init__(self, began: float | None = None) -> None:
        """`began` is a moment of `time.perf_counter`; now if it is not given."""
        self.began = time.perf_counter() if began is None else began
        self.quiet = False
        self.verbosity = 0
        self.progress = True
        self.answered = False  # whether stdout has its JSON, so that an error need not be one
        self._console = _console(stderr=True)

    def note(self, text: str) -> None:
        """Something worth knowing; left out with -q."""
        if not self.quiet:
            self._print(text)

    def detail(self, text: str) -> None:
        """Something worth knowing with -v."""
        if self.verbosity and not self.quiet:
            self._print(text, style="dim")

    def done(self, text: str) -> None:
        """The last line of work that succeeded."""
        if not self.quiet:
            self._print(f" {text}", ("✓", "green"))

    def fail(self, error: ImgmlpError) -> int:
        """Say what is wrong and what to do; returns the exit code."""
        if self.verbosity > 1:
            for line in traceback.format_exc().splitlines():
                self._print(line)
        self.problem(error)
        return error.exit_code

    def problem(self, error: ImgmlpError) -> None:
        """The same without where in the program it was found."""
        self._print(f" {error}", ("error:", "bold red"))
        first, *others = error.hint.splitlines() or [""]  # a compiler's own words follow
        if first:
            self._print(f" {first}", ("hint:", "bold"))
        for line in others:
            self._print(line)

    def show_warnings(self) -> None:
        """From now on, what imgmlp warns of is a note."""
        others = warnings.showwarning

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
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show

    def _print(self, line: str, mark: tuple[str, str] = ("", ""), style: str = "") -> None:
        text = Text.assemble(mark, (printable(line), style))
        if not encodes_unicode(self._console.file):
            text = Text(ascii_only(text.plain))
        self._console.print(text, soft_wrap=True)

    @contextmanager
    def training(self, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
        """Show the progress of so many steps, as the terminal allows, through what is yielded."""
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
        """Show which of so many stages of some work begins: its name goes to what is yielded.

        With a share as well, from 0 to 1, that is how far the present stage is.
        """
        terminal = self._console.file.isatty() and not self._console.is_dumb_terminal
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif terminal:
            columns = (BarColumn(), _text("{task.description}", self._console))
            # Drawn when there is news, so that no thread competes with what is measured.
            with Progress(*columns, console=self._console, auto_refresh=False) as bar:
                task = bar.add_task("", total=total, completed=-1)

                begun, drawn = -1, 0.0

                def show(stage: str, share: float | None = None) -> None:
                    nonlocal begun, drawn
                    begun += share is None
                    now = time.monotonic()
                    if share is None or now - drawn >= DRAW_EVERY:
                        drawn, done = now, begun + (share or 0.0)
                        name = printable(stage)
                        bar.update(task, completed=done, description=name, refresh=True)

                yield show
        else:
            began = time.monotonic()

            def tell(stage: str, share: float | None = None) -> None:
                nonlocal began
                if time.monotonic() >= began + LINE_EVERY:
                    began = time.monotonic()
                    self.note(stage)

            yield tell

    @contextmanager
    def files(self, total: int) -> Iterator[FilesShown]:
        """Show how far a run over so many files is, through what is yielded."""
        terminal = self._console.file.isatty() and not self._console.is_dumb_terminal
        if self.quiet or not self.progress:
            yield lambda *_: None
        elif terminal:
            columns = (
                _text(" {task.description}", self._console),
                BarColumn(),
                _text("{task.fields[state]}", self._console),
            )
            # Drawn when there is news, so that no thread competes with the work.
            with Progress(*columns, console=self._console, auto_refresh=False) as bars:
                yield _FileBars(bars, total).show
        else:
            yield _FileLines(self.note, total).show


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    """Write a table to stdout, its first column to the left. Raises OutputError."""
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
    """Rich's, which shows nothing at all where COLUMNS is 0."""
    if os.environ.get("NO_COLOR"):  # of which Rich leaves bold
        options["color_system"] = None
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "0").isdecimal():  # some digits, as ², Rich takes for numbers
            del os.environ[name]
    console = Console(highlight=False, **options)
    if console.width < NARROWEST:
        console.width = USUAL_WIDTH
    return console


def _text(form: str, console: Console) -> TextColumn:
    """Text of a bar as it is: names of files may look like Rich's markup.

    Where there is no room for it, Rich ends it with a character that not every encoding has.
    """
    cut: OverflowMethod = "ellipsis" if encodes_unicode(console.file) else "crop"
    return TextColumn(form, markup=False, table_column=Column(no_wrap=True, overflow=cut))


@contextmanager
def _bar(console: Console, steps: int) -> Iterator[Callable[[TrainingProgress], None]]:
    columns = {
        "word": _text(WORD, console),
        "bar": BarColumn(),
        "done": _text("{task.completed:,.0f}/{task.total:,.0f}", console),
        "state": _text("{task.fields[state]}", console),
    }
    # Drawn when there is news, so that no thread competes with the training.
    bar = Progress(*columns.values(), console=console, auto_refresh=False)
    drawn = 0.0
    with bar:
        task = bar.add_task("training", total=steps, state="preparing")
        bar.refresh()

        def show(progress: TrainingProgress) -> None:
            nonlocal drawn
            plain = not encodes_unicode(console.file)
            without = _left_out(progress, console.width, plain)
            bar.columns = tuple(columns[name] for name in columns if name not in without)
            state = _state(progress, without, plain)
            bar.update(task, completed=progress.step, total=progress.steps, state=state)
            now = time.monotonic()
            if now - drawn >= DRAW_EVERY or progress.step == progress.steps:
                drawn = now
                bar.refresh()

        yield show


class _FileLines:
    """How far a run over files is, as a plain line every ten seconds."""

    def __init__(self, note: Callable[[str], None], total: int) -> None:
        self._note, self._total = note, total
        self._began = time.monotonic()
        self._next = self._began + LINE_EVERY

    def show(self, done: int, failed: int, share: float, seats: Sequence[Seat]) -> None:
        """`share` is that of the work, from 0 to 1, that is done."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            self._note(self._state(done, failed, share))

    def _state(self, done: int, failed: int, share: float) -> str:
        took = time.monotonic() - self._began
        left = f"  {duration(took / share * (1 - share))} left" if share else ""
        problems = f"  {failed:,} failed" if failed else ""
        return f"{done:,}/{self._total:,} files{problems}{left}"


class _FileBars(_FileLines):
    """The same as a bar, and one for each process below it."""

    def __init__(self, bars: Progress, total: int) -> None:
        super().__init__(lambda _: None, total)
        self._bars, self._tasks = bars, [bars.add_task("all files", total=1.0, state="")]
        bars.refresh()

    def show(self, done: int, failed: int, share: float, seats: Sequence[Seat]) -> None:
        whole, *others = self._tasks
        state = self._state(done, failed, share)
        self._bars.update(whole, completed=share, state=state)
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
    """Progress as plain lines: the first state, one every ten seconds, and the last state.

    Until the first one, while kernels are compiled, a line every ten seconds says that it goes on.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._next = 0.0  # how long it will take is worth knowing at once
        self._unsaid: TrainingProgress | None = None
        self._begun = threading.Event()
        self._waiting = threading.Thread(target=self._wait, daemon=True)
        self._waiting.start()

    def _wait(self) -> None:
        began = time.monotonic()
        while not self._begun.wait(LINE_EVERY):
            self._note(f"preparing  {duration(time.monotonic() - began)}")

    def show(self, progress: TrainingProgress) -> None:
        self._begun.set()
        self._unsaid = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            self.finish()

    def finish(self) -> None:
        self._begun.set()
        if self._unsaid is not None:
            self._note(f"training  {_done(self._unsaid)}  {_state(self._unsaid)}")
            self._unsaid = None


def _left_out(progress: TrainingProgress, width: int, plain: bool) -> Sequence[str]:
    """Those of LEFT_OUT that a line of so many characters has no room for.

    A usual one has room for all, but not where λ is a plain word.
    """
    if width >= USUAL_WIDTH and not plain:
        return ()
    for count in range(len(LEFT_OUT)):
        without = LEFT_OUT[:count]
        parts = {"word": WORD, "bar": BAR, "done": _done(progress)}
        line = [text for name, text in parts.items() if name not in without]
        if len(" ".join([*line, _state(progress, without, plain)])) <= width:
            return without
    return LEFT_OUT


def _done(progress: TrainingProgress) -> str:
    return f"{progress.step:,}/{progress.steps:,}"


def _state(progress: TrainingProgress, without: Sequence[str] = (), plain: bool = False) -> str:
    """How a training goes, but for some of it; in ASCII if that is to be plain."""
    parts = {"loss": f"loss {progress.loss:.3g}", "psnr": f"{progress.psnr:.1f} dB"}
    if progress.bpp is not None and progress.cost is not None:
        parts = {"bpp": f"{progress.bpp:.3f} bpp", "psnr": parts["psnr"]}
        parts["cost"] = f"D+λR {progress.cost:.3g}"
    parts["rate"] = f"{progress.steps_per_second:,.0f} steps/s"
    parts["left"] = f"{duration(progress.seconds_left)} left"
    line = "  ".join(text for name, text in parts.items() if name not in without)
    return ascii_only(line) if plain else line
