"""The command line as its users meet it: in a process of its own, on a pipe or a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, OPENCL, QUICK, Command, environment, imgmlp_command, small_pixels
from PIL import Image

from imgmlp import interrupt, terminal
from imgmlp.cli import arguments, devices
from imgmlp.cli import train as training
from imgmlp.cli.train import Outputs
from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.training.run import Progress
from imgmlp.engine import list_devices, open_device
from imgmlp.errors import Interrupted, OutputError, UsageError

OUTPUTS = ("weights.npz", "reconstruction.png")
ENDLESS = ("--steps", "100000000", "--batch", "64", "--hidden", "8", "--layers", "1")
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def names(picture: Path, states: bool = True) -> set[str]:
    """What lies beside the picture, temporary files included, and checkpoints if wanted."""
    found = {path.name for path in picture.parent.iterdir()} - {picture.name}
    return {name for name in found if states or not name.endswith(".checkpoint")}


def assert_whole(picture: Path) -> None:
    """The weights can be decoded, and the reconstruction is what they decode to."""
    folder = picture.parent
    assert names(picture, states=False) == set(OUTPUTS)
    decoded = open_stored(folder / "weights.npz").decode(open_device("numpy"))
    np.testing.assert_array_equal(pixels_of(folder / "reconstruction.png"), decoded)


def assert_error(text: str, *expected: str) -> None:
    """The last two lines are an error and a hint, and nothing is a traceback."""
    *_, error, hint = text.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "Traceback" not in text
    for part in expected:
        assert part in error + hint


@pytest.fixture
def weights(imgmlp: Command, picture: Path) -> Path:
    imgmlp("train", picture.name, *QUICK, "-q")
    return picture.parent / "weights.npz"


# The main job


def test_training_writes_both_outputs_and_nothing_to_stdout(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK)
    assert done.stdout == ""
    header, *progress, last = done.stderr.splitlines()
    assert header.startswith("small.png  31×24 RGB   MLP 8-8-3, 96 parameters   NumPy")
    assert re.fullmatch(r"training  \d+/20  loss .* dB  .* steps/s  .* left", progress[-1])
    assert re.fullmatch(r"✓ weights.npz .* kB   reconstruction.png .* dB   .* s", last)
    assert_whole(picture)


def test_decoding_gives_the_reconstruction_again(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("decode", weights.name)
    assert done.stdout == ""
    decoded = pixels_of(weights.with_suffix(".png"))
    np.testing.assert_array_equal(decoded, pixels_of(weights.parent / "reconstruction.png"))


def test_the_main_job_runs_on_the_processors_opencl(imgmlp: Command, picture: Path) -> None:
    if not any(device.kind == "cpu" for device in list_devices()):
        pytest.skip("there is no OpenCL driver for the processor")
    imgmlp("train", picture.name, *QUICK, "--device", OPENCL["device"])
    imgmlp("decode", "weights.npz", "--device", OPENCL["device"])
    decoded = pixels_of(picture.parent / "weights.png")
    np.testing.assert_array_equal(decoded, pixels_of(picture.parent / "reconstruction.png"))


def test_the_same_seed_gives_the_same_file(imgmlp: Command, picture: Path) -> None:
    files = []
    for seed in ("7", "7", "8"):
        imgmlp("train", picture.name, *QUICK, "--seed", seed, "--force", "-q")
        files.append((picture.parent / "weights.npz").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_options_replace_values_of_the_preset(imgmlp: Command, picture: Path) -> None:
    options = ("--preset", "seed", "--hidden", "12", "--layers", "2", "--features", "16")
    options += ("--steps", "3", "--batch", "5", "--lr", "0.01", "--seed", "9", "-v")
    done = imgmlp("train", picture.name, *options, "-o", "a.npz", "--png", "b.png")
    assert "preset seed  steps 3  batch 5  lr 0.01" in done.stderr
    facts = json.loads(imgmlp("info", "a.npz", "--json").stdout)
    assert facts["network"] == "16-12-12-3"
    assert names(picture) == {"a.npz", "b.png"}


def test_gray_stays_gray(imgmlp: Command, picture: Path) -> None:
    Image.fromarray(small_pixels(1)[:, :, 0]).save(picture)
    assert "31×24 gray" in imgmlp("train", picture.name, *QUICK).stderr
    assert pixels_of(picture.parent / "reconstruction.png").ndim == 2


def test_a_dropped_alpha_channel_is_mentioned(imgmlp: Command, picture: Path) -> None:
    Image.fromarray(small_pixels()).convert("RGBA").save(picture)
    done = imgmlp("train", picture.name, *QUICK)
    assert "small.png: the fully opaque alpha channel was dropped" in done.stderr


def test_live_leaves_a_preview(imgmlp: Command, picture: Path) -> None:
    imgmlp("train", picture.name, *QUICK, "--live", "live.png")
    live = pixels_of(picture.parent / "live.png")
    np.testing.assert_array_equal(live, pixels_of(picture.parent / "reconstruction.png"))


def test_a_preview_that_cannot_be_written_ends_the_previews_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "LIVE_EVERY", 0.0)
    gone = training.LivePreview(tmp_path / "gone" / "live.png", None, terminal.Terminal())
    decodings = []

    def decode() -> np.ndarray:
        decodings.append(1)
        return small_pixels()

    gone.update(decode)
    gone.update(decode)
    assert len(decodings) == 1
    assert capsys.readouterr().err.count("no more previews") == 1


# Decoding to other sizes and places


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (("--size", "5x7"), (5, 7)),
        (("--scale", "2"), (62, 48)),
        (("--scale", "0.001"), (1, 1)),
    ],
)
def test_a_picture_decodes_at_any_size(
    imgmlp: Command, weights: Path, options: tuple[str, ...], size: tuple[int, int]
) -> None:
    imgmlp("decode", weights.name, *options, "-o", "other.webp")
    with Image.open(weights.parent / "other.webp") as image:
        assert image.size == size


@pytest.mark.parametrize(
    ("text", "size"), [("640x480", (640, 480)), ("1X2", (1, 2)), ("16384×16384", (2**14, 2**14))]
)
def test_a_size_is_width_by_height(text: str, size: tuple[int, int]) -> None:
    assert arguments.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "5x", "0x5", "-1x5", "5x5x5", "1.5x2", "16385x16384"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        arguments.parse_size(text)


def test_a_dash_writes_png_to_stdout(imgmlp: Command, weights: Path) -> None:
    target = weights.parent / "out.png"
    with target.open("wb") as stream:
        subprocess.run(
            imgmlp_command(["decode", weights, "-o", "-"]),
            env=environment(),
            stdout=stream,
            check=True,
        )
    np.testing.assert_array_equal(
        pixels_of(target), pixels_of(weights.parent / "reconstruction.png")
    )


@pytest.fixture
def compact(picture: Path) -> Path:
    """A compact file with an alpha channel and a colour profile."""
    path = picture.parent / "a.imlp"
    path.write_bytes((GOLDEN / "rgb-alpha.imlp").read_bytes())
    return path


def test_a_compact_file_decodes_to_the_picture_beside_it(imgmlp: Command, compact: Path) -> None:
    done = imgmlp("decode", compact.name)
    assert done.stderr.startswith("✓ a.decoded.png  24×7 RGB and alpha   ")
    with Image.open(compact.with_name("a.decoded.png")) as image:
        assert image.info["icc_profile"] == b"not a real profile"
        pixels = np.asarray(image)
    expected = decoder.decode(container.parse(compact.read_bytes()), open_device("numpy"))
    np.testing.assert_array_equal(pixels, expected)
    imgmlp("decode", compact.name, "-o", "b.webp", "-q")
    np.testing.assert_array_equal(pixels_of(compact.with_name("b.webp")), expected)


def test_a_compact_file_is_not_decoded_where_something_would_be_lost(
    imgmlp: Command, compact: Path
) -> None:
    before = set(compact.parent.iterdir())
    assert_error(imgmlp("decode", compact.name, "-o", "b.jpg", check=2).stderr, "transparent")
    compact.write_bytes(compact.read_bytes()[:-1])
    assert_error(imgmlp("decode", compact.name, check=4).stderr, "a.imlp: truncated")
    assert set(compact.parent.iterdir()) == before


def test_info_and_verify_take_compact_files(imgmlp: Command, compact: Path) -> None:
    assert "picture   24×7 RGB and alpha" in imgmlp("info", compact.name).stdout
    assert imgmlp("verify", compact.name).stderr == "✓ a.imlp  24×7 RGB and alpha   287 B\n"


# Looking at files and devices


def test_info_is_json_or_lines_on_stdout(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("info", weights.name, "--json")
    facts = json.loads(done.stdout)
    assert (facts["width"], facts["height"], facts["parameters"]) == (31, 24, 96)
    assert facts["bytes"] == weights.stat().st_size
    plain = imgmlp("info", weights.name)
    assert "picture   31×24 RGB" in plain.stdout
    assert done.stderr == plain.stderr == ""


def test_verify_is_quiet_about_sound_files_but_for_a_line(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("verify", weights.name, weights.name)
    assert done.stdout == ""
    assert len(re.findall(r"✓ weights\.npz  31×24 RGB   .* kB", done.stderr)) == 2
    done = imgmlp("verify", weights.name, "--json", "-q")
    assert json.loads(done.stdout) == [{"file": "weights.npz", "sound": True, "problem": None}]
    assert done.stderr == ""


def test_verify_goes_on_after_a_damaged_file(imgmlp: Command, weights: Path) -> None:
    data = weights.read_bytes()
    (weights.parent / "cut.npz").write_bytes(data[:-1])
    done = imgmlp("verify", "cut.npz", weights.name, "--json", check=1)
    assert [one["sound"] for one in json.loads(done.stdout)] == [False, True]
    assert done.stderr.startswith("error: cut.npz: truncated")
    assert_error(imgmlp("verify", "cut.npz", check=4).stderr, "truncated")
    assert_error(imgmlp("verify", "missing.npz", check=2).stderr, "does not exist")
    assert_error(imgmlp("verify", check=2).stderr, "FILE")


def test_devices_lists_what_the_option_takes(imgmlp: Command) -> None:
    found = json.loads(imgmlp("devices", "--json").stdout)
    assert found[-1]["spec"] == "numpy"
    lines = imgmlp("devices").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["--device", *(d["spec"] for d in found)]


def test_devices_says_how_to_mend_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_numpy = [device for device in list_devices() if device.kind == "numpy"]
    monkeypatch.setattr(devices, "list_devices", lambda: only_numpy)
    monkeypatch.setattr(devices, "missing_drivers", lambda found: ["no driver; install one"])
    devices.run(terminal.Terminal(), as_json=False)
    shown = capsys.readouterr()
    assert "numpy" in shown.out
    assert shown.err == "no driver; install one\n"


def test_the_device_may_come_from_the_environment(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("decode", weights.name, env={"IMGMLP_DEVICE": "9:9"}, check=6)
    assert_error(done.stderr, "9:9")
    imgmlp("decode", weights.name, "--device", "numpy", env={"IMGMLP_DEVICE": "9:9"})


# Errors


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "0"),
        ("--steps", "100000001"),
        ("--steps", "many"),
        ("--batch", "0"),
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--lr", "inf"),
        ("--hidden", "0"),
        ("--layers", "0"),
        ("--features", "6"),
        ("--features", "0"),
        ("--seed", "-1"),
        ("--seed", "4294967296"),
        ("--preset", "other"),
        ("--unheard-of",),
    ],
    ids=" ".join,
)
def test_a_bad_option_of_train_is_exit_2(
    imgmlp: Command, picture: Path, options: tuple[str, ...]
) -> None:
    done = imgmlp("train", picture.name, *options, check=2)
    assert_error(done.stderr, options[0])
    assert done.stdout == ""
    assert names(picture) == set()


@pytest.mark.parametrize(
    "options",
    [
        ("--scale", "0"),
        ("--scale", "-1"),
        ("--scale", "nan"),
        ("--scale", "1e300"),
        ("--size", "5"),
        ("--size", "99999x99999"),
        ("--size", "5x5", "--scale", "2"),
        ("-o", "picture.xyz"),
        ("-o", "picture"),
    ],
    ids=" ".join,
)
def test_a_bad_option_of_decode_is_exit_2(
    imgmlp: Command, weights: Path, options: tuple[str, ...]
) -> None:
    before = set(weights.parent.iterdir())
    assert_error(imgmlp("decode", weights.name, *options, check=2).stderr)
    assert set(weights.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("train",), 2, "IMAGE"),
        (("unheard-of",), 2, "unheard-of"),
        (("train", "missing.png"), 2, "missing.png does not exist"),
        (("decode", "missing.npz"), 2, "missing.npz does not exist"),
        (("info", "missing.npz"), 2, "missing.npz does not exist"),
        (("info", "."), 2, "no file"),
        (("train", "."), 2, "no file"),
        *(((command, "x" * 300), 2, "cannot read") for command in ("encode", "decode", "info")),
        (("train", "text.png"), 3, "not a picture"),
        (("decode", "small.png", "-o", "a.png"), 4, "small.png"),
        (("info", "text.png"), 4, "text.png"),
        (("train", "small.png", "--device", "9:9"), 6, "9:9"),
        (("train", "small.png", "--device", "abacus"), 6, "abacus"),
        (("train", "small.png", "-o", "missing/a.npz"), 8, "no folder missing"),
        (("train", "small.png", "-o", "text.png/a.npz"), 8, "text.png"),
        (("train", "small.png", "-o", "/proc/a.npz"), 8, "/proc/a.npz"),
        (("train", "small.png", "-o", "."), 8, "folder"),
        (("train", "small.png", "-o", "a", "--png", "a"), 8, "another file"),
        (("train", "small.png", "-o", "a", "--live", "./a"), 8, "another file"),
        (("train", "small.png", "--png", "small.png", "--force"), 8, "another file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_has_its_exit_code_and_two_lines(
    imgmlp: Command, picture: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    (picture.parent / "text.png").write_text("no picture")
    before = picture.read_bytes()
    done = imgmlp(*arguments, check=code)
    assert_error(done.stderr, part)
    assert len(done.stderr.splitlines()) == 2  # before any work
    assert done.stdout == ""
    assert names(picture) == {"text.png"}
    assert picture.read_bytes() == before


@pytest.mark.parametrize("existing", [*OUTPUTS, "live.png"])
def test_an_existing_output_stays_untouched(imgmlp: Command, picture: Path, existing: str) -> None:
    path = picture.parent / existing
    path.write_bytes(b"old")
    options = (*QUICK, "--live", "live.png")
    assert_error(imgmlp("train", picture.name, *options, check=8).stderr, "--force", existing)
    assert path.read_bytes() == b"old"
    assert names(picture) == {existing}
    imgmlp("train", picture.name, *options, "--force")
    assert path.read_bytes() != b"old"


def test_decode_leaves_an_existing_picture_untouched(imgmlp: Command, weights: Path) -> None:
    target = weights.with_suffix(".png")
    target.write_bytes(b"old")
    assert_error(imgmlp("decode", weights.name, check=8).stderr, "weights.png")
    assert target.read_bytes() == b"old"


def test_a_full_disk_is_exit_8(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK, "-o", "/dev/full", check=8)
    assert_error(done.stderr, "/dev/full", "No space left")
    assert names(picture) == set()


@pytest.mark.parametrize("arguments", [("info", "weights.npz"), ("--version",)])
def test_a_full_stdout_is_exit_8(
    imgmlp: Command, weights: Path, arguments: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            imgmlp_command(arguments),
            cwd=weights.parent,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 8
    assert_error(done.stderr, "stdout")


def test_a_loss_that_explodes_is_exit_1_with_weights(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK, "--lr", "1e30", check=1)
    assert_error(done.stderr, "no longer finite", "weights.npz", "--lr")
    assert "Warning" not in done.stderr
    assert_whole(picture)


def test_a_traceback_is_shown_with_vv_only(imgmlp: Command) -> None:
    assert "Traceback" not in imgmlp("decode", "missing.npz", "-v", check=2).stderr
    assert "Traceback" in imgmlp("decode", "missing.npz", "-vv", check=2).stderr


def test_no_arguments_show_the_help(imgmlp: Command) -> None:
    done = imgmlp(check=2)
    assert "Usage: imgmlp" in done.stdout
    assert done.stderr == ""


# What is shown


def test_quiet_is_silent(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK, "-q")
    assert done.stdout == done.stderr == ""


def test_no_progress_leaves_the_header_and_the_result(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK, "--no-progress")
    assert len(done.stderr.splitlines()) == 2


def test_other_encodings_get_ascii(imgmlp: Command, picture: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii"}
    done = imgmlp("train", picture.name, *QUICK, env=environment)
    assert "31x24 RGB" in done.stderr
    assert "\n* weights.npz" in done.stderr
    done = imgmlp("info", "weights.npz", env=environment)
    assert "31x24 RGB" in done.stdout


@pytest.mark.parametrize("name", ["[bold]x.png", ":smile:.png", "ü \n.png", os.fsdecode(b"\xff")])
def test_names_are_shown_as_they_are(imgmlp: Command, picture: Path, name: str) -> None:
    picture.rename(picture.parent / name)
    done = imgmlp("train", name, *QUICK)
    assert done.stderr.startswith(name.encode("utf-8", "backslashreplace").decode())


def test_plain_lines_come_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said: list[str] = []
    lines = terminal._Lines(said.append)
    for step in range(1, 31):  # a step a second
        now = float(step)
        lines.show(Progress(step, 100, 0.01, 20.0, 1.0, 100.0 - step))
    lines.finish()
    assert [line.split()[1] for line in said] == ["10/100", "20/100", "30/100"]
    assert said[0] == "training  10/100  loss 0.01  20.0 dB  1 steps/s  1:30 left"


def test_the_version_is_that_of_the_package(imgmlp: Command) -> None:
    assert re.fullmatch(r"imgmlp \d+\.\d+\.\d+\n", imgmlp("--version").stdout)


def test_shells_can_complete(imgmlp: Command) -> None:
    request = {"_IMGMLP_COMPLETE": "complete_bash", "COMP_WORDS": "imgmlp de", "COMP_CWORD": "1"}
    assert set(imgmlp(env=request).stdout.split()) == {"decode", "devices"}


@pytest.mark.parametrize("home", [None, "/proc/none", ""])
def test_a_missing_home_does_not_matter(picture: Path, home: str | None) -> None:
    changed = environment(IMGMLP_DEVICE="auto")
    changed = {k: v for k, v in changed.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    if home is not None:
        changed["HOME"] = home
    done = subprocess.run(
        imgmlp_command(["devices"]),
        env=changed,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "numpy" in done.stdout


# Interruption and terminals


class Running:
    """The command on a pseudo-terminal."""

    def __init__(self, folder: Path, *args: str, **changes: str) -> None:
        control, its_end = pty.openpty()
        self._control, self.shown = control, ""
        self.process = subprocess.Popen(
            imgmlp_command(args),
            cwd=folder,
            env=environment(**TERMINAL | changes),
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
        )
        os.close(its_end)

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def end(self) -> int:
        """Read what is left; the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=60)

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
        except OSError:  # how Linux says that the other end is closed
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


def test_a_terminal_gets_a_bar(on_terminal: type[Running], picture: Path) -> None:
    running = on_terminal("train", picture.name, *QUICK)
    assert running.end() == 0
    assert "━" in running.shown
    for part in ("20/20", "loss", "dB", "steps/s", "left", "✓"):
        assert part in running.shown
    assert "\x1b[?25h" in running.shown  # the cursor is back


@pytest.mark.parametrize(("changes", "options"), [({"TERM": "dumb"}, ()), ({}, ("--no-progress",))])
def test_not_every_terminal_gets_a_bar(
    on_terminal: type[Running], picture: Path, changes: dict[str, str], options: tuple[str, ...]
) -> None:
    running = on_terminal("train", picture.name, *QUICK, *options, **changes)
    assert running.end() == 0
    assert "━" not in running.shown


def test_no_png_is_sent_to_a_terminal(on_terminal: type[Running], weights: Path) -> None:
    running = on_terminal("decode", weights.name, "-o", "-")
    assert running.end() == 2
    assert "terminal" in running.shown
    assert "PNG\r" not in running.shown


def test_ctrl_c_on_a_terminal_writes_the_best_so_far(
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


@pytest.mark.parametrize("number", interrupt.SIGNALS)
def test_a_signal_without_a_terminal_writes_the_best_so_far(
    picture: Path, number: signal.Signals
) -> None:
    process = start(picture, *ENDLESS)
    wait_for_training(process)
    process.send_signal(number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert_error(text, "stopped after", "weights.npz")
    assert_whole(picture)


def test_a_stopped_training_goes_on_over_what_it_wrote(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, show = picture.parent, terminal.Terminal()
    chosen = {"batch": 64, "hidden": 8, "layers": 1, "features": 8}

    def train(name: str, steps: int = 300, png: str = "a", live: Path | None = None) -> None:
        settings = arguments.training_settings("default", steps=steps, **chosen)
        outputs = Outputs(folder / f"{name}.npz", folder / f"{png}.png", live)
        training.run(show, picture, outputs, settings, "numpy", False)

    train("whole", png="whole")
    left = iter(range(7))
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.StopRequest, "requested", lambda _: next(left, None) is None)
        with pytest.raises(Interrupted, match="stopped after") as raised:
            train("a")
    assert "the same command goes on" in raised.value.hint
    assert open_stored(folder / "a.npz").width == 31
    with pytest.raises(OutputError, match="exists already"):  # not with other settings
        train("a", 310)
    os.utime(folder / "whole.png", (0, 0))
    with pytest.raises(OutputError, match=r"whole\.png exists already"):  # nor over other files
        train("a", png="whole")
    with pytest.raises(OutputError, match=r"whole\.png exists already"):
        train("a", live=folder / "whole.png")
    os.utime(folder / "a.npz", (2**32, 2**32))
    with pytest.raises(OutputError, match="exists already"):  # nor if something else wrote it
        train("a")
    os.utime(folder / "a.npz", (0, 0))
    capsys.readouterr()
    train("a")
    assert "continuing after" in capsys.readouterr().err
    for end in ("npz", "png"):
        assert (folder / f"a.{end}").read_bytes() == (folder / f"whole.{end}").read_bytes()
    assert names(picture) == {"a.npz", "a.png", "whole.npz", "whole.png"}


def test_a_second_ctrl_c_leaves_nothing_half_done(picture: Path) -> None:
    process = start(picture, *ENDLESS)
    wait_for_training(process)
    for _ in range(50):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert names(picture, states=False) <= set(OUTPUTS)  # no temporary file
    if (picture.parent / "weights.npz").exists():
        open_stored(picture.parent / "weights.npz")


def test_the_first_signal_is_a_request_and_the_second_an_order() -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored in what a shell runs in the background
    with interrupt.StopRequest() as stop:
        assert not stop.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in interrupt.SIGNALS:  # a third one would only disturb the cleaning up
            assert signal.getsignal(number) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is before


def start(picture: Path, *options: str) -> subprocess.Popen[str]:
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
    """Return once the header is shown, which is a moment before the first step."""
    assert process.stderr is not None
    assert "MLP" in process.stderr.readline()
    time.sleep(0.3)
