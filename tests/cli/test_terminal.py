"""The command on a terminal and without one: bars and messages, Ctrl-C and other signals."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Command, environment, imgmlp_command
from outputs import OUTPUTS, assert_error, assert_whole, names_beside
from rich.console import Console

from imgmlp import cli, interrupt, terminal
from imgmlp.batch.pool import Seat
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.training.run import Progress
from imgmlp.errors import ImgmlpError, problem_of

ENDLESS = ("--steps", "100000000", "--batch", "64", "--hidden", "8", "--layers", "1")
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}


class Running:
    """The command on a pseudo-terminal."""

    def __init__(self, folder: Path, *args: str, **variables: str) -> None:
        control, terminal_end = pty.openpty()
        self._control, self.shown = control, ""
        self.process = subprocess.Popen(
            imgmlp_command(args),
            cwd=folder,
            env=environment(**TERMINAL | variables),
            stdin=terminal_end,
            stdout=terminal_end,
            stderr=terminal_end,
            start_new_session=True,
        )
        os.close(terminal_end)

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 600
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def end(self) -> int:
        """Read the remaining output; returns the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=600)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._control)

    def _read(self) -> bool:
        if not select.select([self._control], [], [], 60)[0]:
            return False
        try:
            data = os.read(self._control, 65536)
        except OSError:  # on Linux: the other end is closed
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)


@pytest.fixture
def on_terminal(picture: Path) -> Iterator[object]:
    started: list[Running] = []

    def start(*args: str, **changes: str) -> Running:
        started.append(Running(picture.parent, *args, **changes))
        return started[-1]

    yield start
    for running in started:
        running.close()


def test_training_shows_a_bar_terminal_in_memory(on_terminal: type[Running], picture: Path) -> None:
    running = on_terminal("train", picture.name, *QUICK)
    assert running.end() == 0
    assert "━" in running.shown
    for part in ("20/20", "loss", "dB", "steps/s", "left", "✓"):
        assert part in running.shown
    assert "\x1b[?25h" in running.shown  # the cursor is shown again


@pytest.mark.parametrize(("changes", "options"), [({"TERM": "dumb"}, ()), ({}, ("--no-progress",))])
def test_no_bar_on_dumb_terminals_or_with_no_progress(
    on_terminal: type[Running], picture: Path, changes: dict[str, str], options: tuple[str, ...]
) -> None:
    running = on_terminal("train", picture.name, *QUICK, *options, **changes)
    assert running.end() == 0
    assert "━" not in running.shown


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_messages_are_not_cut_on_narrow_terminals(
    on_terminal: type[Running], picture: Path, columns: str
) -> None:
    running = on_terminal("train", picture.name, *QUICK, COLUMNS=columns)
    assert running.end() == 0
    assert "small.png  31×24 RGB   MLP 8-8-3, 96 parameters" in running.shown
    assert "✓ weights.npz" in running.shown.replace("\x1b[32m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("size", ["²", "many", "", "-1"])
def test_invalid_terminal_size_in_the_environment_is_ignored(
    name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, size)
    assert terminal.Terminal()._console.size == Console().size


def test_no_color_also_disables_bold(on_terminal: type[Running]) -> None:
    for changes in ({}, {"NO_COLOR": "1"}):
        running = on_terminal("info", "missing.imlp", **changes)
        assert running.end() == 2
        assert "error:" in running.shown
        assert ("\x1b" in running.shown) is not bool(changes)


def test_binary_output_to_a_terminal_is_refused(on_terminal: type[Running], weights: Path) -> None:
    running = on_terminal("decode", weights.name, "-o", "-")
    assert running.end() == 2
    assert "terminal" in running.shown
    assert "PNG\r" not in running.shown
    running = on_terminal("train", "small.png", *QUICK, "-o", "-")
    assert running.end() == 2
    assert "imgmlp train photo.png -o - > weights.npz" in running.shown


def test_ctrl_c_on_a_terminal_writes_the_best_weights_so_far(
    on_terminal: type[Running], picture: Path
) -> None:
    running = on_terminal("train", picture.name, *ENDLESS)
    running.until("loss")
    os.killpg(running.process.pid, signal.SIGINT)  # as the terminal does
    assert running.end() == 130
    assert "the best weights so far are in weights.npz" in running.shown
    assert "Traceback" not in running.shown
    assert "\x1b[?25h" in running.shown
    assert_whole(picture)


def test_ctrl_c_during_a_folder_run_saves_checkpoints(
    on_terminal: type[Running], picture: Path
) -> None:
    """The terminal shows a bar for all files, and one for each process."""
    for name in ("b", "c"):
        shutil.copy(picture, picture.with_name(f"{name}.png"))
    arguments = ("encode", ".", "--out", "out", "--effort", "9", "--device", "numpy,numpy")
    running = on_terminal(*arguments)
    running.until(" dB")
    for part in ("all files", "0/3 files", "━", "b.png"):
        assert part in running.shown
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.end() == 130
    assert "stopped with 3 files left to do" in running.shown
    assert "the same command continues" in running.shown
    assert "Traceback" not in running.shown
    assert "\x1b[?25h" in running.shown
    checkpoints = list((picture.parent / "out").iterdir())
    assert checkpoints
    assert {path.suffix for path in checkpoints} == {".checkpoint"}
    rerun = on_terminal(*arguments)
    rerun.until(" dB")
    for _ in range(2):  # the second one ends the run at once
        os.killpg(rerun.process.pid, signal.SIGINT)
        time.sleep(0.3)
    assert rerun.end() == 130
    assert not list((picture.parent / "out").glob("*.imlp"))


@pytest.mark.parametrize("number", interrupt.SIGNALS)
def test_a_signal_without_a_terminal_writes_the_best_weights_so_far(
    picture: Path, number: signal.Signals
) -> None:
    """The signal is reset first, as child processes of tests under `nohup` would ignore it."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        process = start_training(picture, *ENDLESS)
    finally:
        signal.signal(number, before)
    wait_for_training(process)
    process.send_signal(number)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 130
    assert_error(text, "stopped after", "weights.npz")
    assert_whole(picture)


def test_a_second_ctrl_c_leaves_no_partial_files(picture: Path) -> None:
    process = start_training(picture, *ENDLESS)
    wait_for_training(process)
    for _ in range(50):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert names_beside(picture, with_checkpoints=False) <= set(OUTPUTS)  # no temporary file
    if (picture.parent / "weights.npz").exists():
        open_stored(picture.parent / "weights.npz")


def test_first_signal_requests_a_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(
        signal.SIGINT
    )  # it is ignored if a shell runs the tests in background
    with interrupt.StopRequest() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in interrupt.SIGNALS:  # a third one would disturb the clean-up
            assert signal.getsignal(number) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is before


def test_first_signal_interrupts_before_the_first_poll() -> None:
    """There is nothing to save yet, perhaps of the second picture of a command."""
    before = signal.getsignal(signal.SIGINT)
    stop = interrupt.StopRequest()
    for _ in range(2):
        with stop, pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with stop:
            assert not stop.requested()
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_ignored_after_an_interrupt_that_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another signal would interrupt the command while it reports the first."""
    monkeypatch.setattr(interrupt, "_interrupting_signals", [])
    before = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    try:
        interrupt.raise_on_signals()
        with pytest.raises(KeyboardInterrupt), interrupt.StopRequest():
            os.kill(os.getpid(), signal.SIGINT)
        for number in interrupt.SIGNALS:
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("failing", [False, True])
def test_ctrl_c_at_the_end_of_a_command_is_reported_as_interrupted(
    in_process: Command, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """Ctrl-C comes before signals are ignored, or while an error is reported."""

    def run(_: object) -> int:
        if failing:
            raise OSError("any error")
        return 0

    def interrupted() -> None:
        raise KeyboardInterrupt

    def problem(error: BaseException) -> ImgmlpError:
        if isinstance(error, OSError):
            interrupted()
        return problem_of(error)

    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setattr(cli, "ignore_signals", interrupted)
    monkeypatch.setattr(cli, "problem_of", problem)
    assert_error(in_process(check=130).stderr, "interrupted", "start it again")


class SignalsWhenFreed:
    """Sends a signal when it is freed; Python drops exceptions that are raised there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_within_context", [False, True])
def test_interrupt_swallowed_by_a_finaliser_is_raised_at_the_next_poll(
    monkeypatch: pytest.MonkeyPatch, is_within_context: bool
) -> None:
    """Before the context of a StopRequest, as when a device is opened, and within it."""
    monkeypatch.setattr(interrupt, "_interrupting_signals", [])
    before = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    stop = interrupt.StopRequest()
    try:
        interrupt.raise_on_signals()
        if not is_within_context:
            SignalsWhenFreed()
        with stop:
            if is_within_context:
                SignalsWhenFreed()
            with pytest.raises(KeyboardInterrupt):
                stop.requested()
        interrupt.raise_on_signals()  # as the next command does
        with stop:
            assert not stop.requested()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_ignored_hangup_signal_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.StopRequest() as stop:
            assert not stop.requested()
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with interrupt.StopRequest() as stop:
            assert not stop.requested()
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_handlers_not_set_by_python_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a program that embeds Python, which could not be restored."""
    handlers: dict[int, Any] = dict.fromkeys(interrupt.SIGNALS, signal.SIG_DFL)
    host = handlers[signal.SIGTERM] = None  # a handler that Python has not set

    def replaced(number: int, handler: Any) -> Any:
        if handler is None:
            raise TypeError("as signal.signal does")
        before, handlers[number] = handlers[number], handler
        return before

    monkeypatch.setattr(signal, "signal", replaced)
    monkeypatch.setattr(signal, "getsignal", lambda number: handlers[number])
    with interrupt.StopRequest():
        assert handlers[signal.SIGTERM] is host
        assert handlers[signal.SIGINT] is not signal.SIG_DFL
    assert handlers == dict.fromkeys(interrupt.SIGNALS, signal.SIG_DFL) | {signal.SIGTERM: host}


@pytest.mark.parametrize("name", ["it is.imlp", "weights.npz"])
def test_decode_to_a_terminal_suggests_a_redirection_with_the_file_name(
    tmp_path: Path, name: str
) -> None:
    running = Running(tmp_path, "decode", name, "-o", "-")
    assert running.end() == 2
    shown = " ".join(running.shown.split())
    assert "a terminal cannot show PNG data" in shown
    assert f"imgmlp decode {shlex.quote(name)} -o - > picture.png" in shown


# A process that has started another one, as a driver does, when Ctrl-C is pressed.
SHIELDED_CHILD_SCRIPT = """
import os, signal, subprocess, sys
from imgmlp.interrupt import raise_on_signals, shield_children
raise_on_signals()
shield_children()
code = "import time; print('here', flush=True); time.sleep(1)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
try:
    os.killpg(0, signal.SIGINT)
    child.wait()
except KeyboardInterrupt:
    print("interrupted")
print(child.wait())
"""


def test_ctrl_c_does_not_reach_child_processes_of_a_driver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHIELDED_CHILD_SCRIPT],
        env=environment(),
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=600,
        check=True,
    )
    assert done.stdout == "interrupted\n0\n"


def start_training(picture: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        imgmlp_command(["train", picture.name, *options]),
        cwd=picture.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def wait_for_training(process: subprocess.Popen[str]) -> None:
    """Return once the first steps are reported: until then there is nothing to save."""
    assert process.stderr is not None
    assert any(line.startswith("training ") for line in process.stderr)


def test_stages_show_the_fraction_of_the_current_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[float, str]] = []

    class Bar(terminal.Progress):
        def update(self, task: int, **changes: Any) -> None:
            shown.append((changes["completed"], changes["description"]))

    monkeypatch.setenv("TERM", TERMINAL["TERM"])
    monkeypatch.setattr(terminal, "Progress", Bar)
    monkeypatch.setattr(terminal, "REDRAW_INTERVAL", 0.0)
    memory_terminal = terminal.Terminal()
    memory_terminal._console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(memory_terminal._console.file, "isatty", lambda: True, raising=False)
    with memory_terminal.stages(4) as show:
        show("a")
        show("b")
        show("b, half", 0.5)
        show("c")
    assert shown == [(0, "a"), (1, "b"), (1.5, "b, half"), (2, "c")]


LINE_BREAK = re.compile(r"[\r\n]|\x1b\[\S*?[A-Za-z]")  # between the lines of a bar


def terminal_in_memory(
    monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8"
) -> terminal.Terminal:
    """A terminal in memory, whose bar is redrawn at every update."""
    monkeypatch.setenv("TERM", TERMINAL["TERM"])
    monkeypatch.setattr(terminal, "REDRAW_INTERVAL", 0.0)
    result = terminal.Terminal()
    file = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    result._console = Console(file=file, force_terminal=True, color_system=None, width=120)
    return result


def lines_on(console: Console) -> list[str]:
    """The lines that were drawn on a terminal in memory."""
    file = console.file
    assert isinstance(file, io.TextIOWrapper)
    assert isinstance(file.buffer, io.BytesIO)
    return LINE_BREAK.split(file.buffer.getvalue().decode(file.encoding))


# Names that contain Rich markup or control characters -> as they are shown.
ESCAPED_NAMES = {
    "d[/a].png": "d[/a].png",
    "a[b].png": "a[b].png",
    "\x1b[31mc\n.png": "\\x1b[31mc\\n.png",
}


@pytest.mark.parametrize("name", ESCAPED_NAMES)
def test_names_in_bars_are_escaped_and_not_read_as_markup(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Names of stages, and of files and devices in a run over a folder."""
    memory_terminal = terminal_in_memory(monkeypatch)
    with memory_terminal.stages(2) as show:
        show(name)
    with memory_terminal.files(3) as show_files:
        show_files(1, 0, 0.5, [Seat("[bold]dev\x1bice[/]", name, 1, 2, 31.5)])
    lines = lines_on(memory_terminal._console)
    assert any(line.rstrip().endswith(f" {ESCAPED_NAMES[name]}") for line in lines)
    assert any(f"{ESCAPED_NAMES[name]}  31.5 dB" in line for line in lines)
    assert any("[bold]dev\\x1bice[/]" in line for line in lines)


NETWORK_STATE = "6,412/10,000 loss 0.0093  20.4 dB"
LATENT_STATE = "1,389/3,500 1.089 bpp  31.9 dB  D+λR 0.00155  101 steps/s  20.9 s left"


@pytest.mark.parametrize(
    ("width", "latents", "network"),
    [
        (40, "1,389/3,500 31.9 dB  20.9 s left", "6,412/10,000 20.4 dB  1.2 s left"),
        (50, "1,389/3,500 1.089 bpp  31.9 dB  20.9 s left", f"{NETWORK_STATE}  1.2 s left"),
        (
            60,
            "training 1,389/3,500 1.089 bpp  31.9 dB  20.9 s left",
            f"training {NETWORK_STATE}  1.2 s left",
        ),
        (
            70,
            "training 1,389/3,500 1.089 bpp  31.9 dB  101 steps/s  20.9 s left",
            f"training {NETWORK_STATE}  3,100 steps/s  1.2 s left",
        ),
        (80, f"training {LATENT_STATE}", f"training ━ {NETWORK_STATE}  3,100 steps/s  1.2 s left"),
        (
            120,
            f"training ━ {LATENT_STATE}",
            f"training ━ {NETWORK_STATE}  3,100 steps/s  1.2 s left",
        ),
    ],
)
def test_narrow_bar_omits_the_least_important_parts(
    width: int, latents: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps, the quality and the remaining time are always shown."""
    states = [
        Progress(1389, 3500, 0.0015, 31.9, 101.0, 20.9, bpp=1.089, cost=0.00155),
        Progress(6412, 10_000, 0.0093, 20.4, 3100.0, 1.2),
    ]
    for state, line in zip(states, (latents, network), strict=True):
        shown = bar_of(state, terminal_in_memory(monkeypatch)._console, width)
        assert re.sub("[━╸]+ *", "━ ", shown) == line


@pytest.mark.parametrize("width", [20, 60, 80, 86, 120])
def test_bar_is_ascii_if_the_encoding_is_not_unicode(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has room for the longer spelling of lambda from 81 columns on."""
    state = Progress(1389, 3500, 0.0015, 31.9, 101.0, 20.9, bpp=1.089, cost=0.00155)
    shown = bar_of(state, terminal_in_memory(monkeypatch, "latin-1")._console, width)
    assert shown.isascii()
    assert ("D+lambda R 0.00155" in shown) is (width > 80)
    assert shown.endswith("  20.9 s left") is (width > 20)


def test_long_names_are_cropped_in_ascii_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_terminal = terminal_in_memory(monkeypatch, "latin-1")
    with memory_terminal.stages(2) as show:
        show("n" * 200)
    assert any("nnn" in line for line in lines_on(memory_terminal._console))


def bar_of(state: Progress, console: Console, width: int) -> str:
    """The last line of a training's bar."""
    console.width = width
    with terminal._training_bar(console, state.steps) as show:
        show(state)
    return [text for text in lines_on(console) if text.strip()][-1].strip()
