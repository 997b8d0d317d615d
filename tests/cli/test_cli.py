"""The command line as users run it, with pipes; where it matters in its own process."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import QUICK, Command, environment, imgmlp_command
from outputs import assert_error, names_beside

from imgmlp import terminal, text
from imgmlp.cli import devices, typer_runner
from imgmlp.codec.training.run import Progress
from imgmlp.engine import list_devices
from imgmlp.errors import OutputError


def test_info_and_verify_read_imlp_files(in_process: Command, compact: Path) -> None:
    assert "picture   24×7 RGB and alpha" in in_process("info", compact.name).stdout
    assert in_process("verify", compact.name).stderr == "✓ a.imlp  24×7 RGB and alpha   287 B\n"


# info, verify and devices


def test_info_prints_json_or_lines_to_stdout(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("info", weights.name, "--json")
    facts = json.loads(done.stdout)
    assert (facts["width"], facts["height"], facts["parameters"]) == (31, 24, 96)
    assert facts["bytes"] == weights.stat().st_size
    plain = imgmlp("info", weights.name)
    assert "picture   31×24 RGB" in plain.stdout
    assert done.stderr == plain.stderr == ""


def test_verify_prints_one_line_for_an_intact_file(in_process: Command, weights: Path) -> None:
    done = in_process("verify", weights.name, weights.name)
    assert done.stdout == ""
    assert len(re.findall(r"✓ weights\.npz  31×24 RGB   .* kB", done.stderr)) == 2
    done = in_process("verify", weights.name, "--json", "-q")
    assert json.loads(done.stdout) == [{"file": "weights.npz", "sound": True, "problem": None}]
    assert done.stderr == ""


def test_verify_continues_after_a_damaged_file(in_process: Command, weights: Path) -> None:
    data = weights.read_bytes()
    (weights.parent / "cut.npz").write_bytes(data[:-1])
    done = in_process("verify", "cut.npz", weights.name, "--json", check=1)
    assert [one["sound"] for one in json.loads(done.stdout)] == [False, True]
    assert done.stderr.startswith("error: cut.npz: truncated")
    assert_error(in_process("verify", "cut.npz", check=4).stderr, "truncated")
    assert_error(in_process("verify", "missing.npz", check=2).stderr, "does not exist")
    assert_error(in_process("verify", check=2).stderr, "name files or folders")


def test_devices_lists_the_values_of_the_device_option(in_process: Command) -> None:
    devices = json.loads(in_process("devices", "--json").stdout)
    assert devices[-1]["spec"] == "numpy"
    lines = in_process("devices").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["--device", *(d["spec"] for d in devices)]


def test_unwritable_home_is_reported_by_install_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def app(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/home/u/.bashrc")

    monkeypatch.setattr(sys, "argv", ["imgmlp", "--install-completion"])
    monkeypatch.setattr(typer_runner, "app", app)
    with pytest.raises(OutputError) as error:
        typer_runner.run(terminal.Terminal())
    problem = "cannot install completion: Read-only file system: /home/u/.bashrc"
    assert str(error.value) == problem
    assert "--show-completion" in error.value.hint


def test_devices_advises_how_to_install_a_missing_driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_numpy = [device for device in list_devices() if device.kind == "numpy"]
    monkeypatch.setattr(devices, "list_devices", lambda: only_numpy)
    monkeypatch.setattr(devices, "missing_drivers", lambda found: ["no driver; install one"])
    devices.run(terminal.Terminal(), as_json=False)
    shown = capsys.readouterr()
    assert "numpy" in shown.out
    assert shown.err == "no driver; install one\n"


def test_device_defaults_to_the_environment_variable(in_process: Command, weights: Path) -> None:
    done = in_process("decode", weights.name, env={"IMGMLP_DEVICE": "9:9"}, check=6)
    assert_error(done.stderr, "9:9")
    in_process("decode", weights.name, "--device", "numpy", env={"IMGMLP_DEVICE": "9:9"})


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("train",), 2, "IMAGE"),
        (("unheard-of",), 2, "unheard-of"),
        (("train", "missing.png"), 2, "missing.png does not exist"),
        (("decode", "missing.npz"), 2, "missing.npz does not exist"),
        (("info", "missing.npz"), 2, "missing.npz does not exist"),
        (("info", "."), 2, "is not a file"),
        (("train", "."), 2, "is not a file"),
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
        (("encode", "small.png", "--skip-existing", "-o", f"{'a' * 300}.imlp"), 8, "too long"),
        (("train", "small.png", "-o", "a", "--png", "a"), 8, "another file"),
        (("train", "small.png", "-o", "a.png", "--live", "./a.png"), 8, "another file"),
        (("train", "small.png", "--png", "small.png", "--force"), 8, "another file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_have_an_exit_code_and_a_line_with_a_hint(
    in_process: Command, picture: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    (picture.parent / "text.png").write_text("no picture")
    before = picture.read_bytes()
    done = in_process(*arguments, check=code)
    assert_error(done.stderr, part)
    header_lines = 1 if "--device" in arguments else 0  # printed before the device is opened
    assert len(done.stderr.splitlines()) == 2 + header_lines  # before any work
    assert done.stdout == ""
    assert names_beside(picture) == {"text.png"}
    assert picture.read_bytes() == before


@pytest.mark.parametrize("arguments", [("info", "weights.npz"), ("--version",)])
def test_full_stdout_is_exit_8(imgmlp: Command, weights: Path, arguments: tuple[str, ...]) -> None:
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


def test_tracebacks_are_printed_only_with_vv(in_process: Command) -> None:
    assert "Traceback" not in in_process("decode", "missing.npz", "-v", check=2).stderr
    assert "Traceback" in in_process("decode", "missing.npz", "-vv", check=2).stderr


def test_help_is_printed_without_arguments(in_process: Command) -> None:
    done = in_process(check=2)
    assert "Usage: imgmlp" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no line is cut
    assert done.stderr == ""


# Messages and progress


def test_quiet_prints_nothing(in_process: Command, picture: Path) -> None:
    done = in_process("train", picture.name, *QUICK, "-q")
    assert done.stdout == done.stderr == ""


def test_no_progress_still_prints_header_and_result(in_process: Command, picture: Path) -> None:
    done = in_process("train", picture.name, *QUICK, "--no-progress")
    header, device, time, result = done.stderr.splitlines()
    assert header.startswith(picture.name)
    assert device.startswith("NumPy")
    assert time.startswith("about ")
    assert result.startswith("✓")


def test_output_is_ascii_for_other_encodings(imgmlp: Command, picture: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii"}
    done = imgmlp("train", picture.name, *QUICK, env=environment)
    assert "31x24 RGB" in done.stderr
    assert "\n* weights.npz" in done.stderr
    done = imgmlp("info", "weights.npz", env=environment)
    assert "31x24 RGB" in done.stdout


@pytest.mark.parametrize("name", ["[bold]x.png", ":smile:.png", "ü λ.png", os.fsdecode(b"\xff")])
def test_file_names_are_printed_without_interpreting_markup(
    in_process: Command, picture: Path, name: str
) -> None:
    picture.rename(picture.parent / name)
    done = in_process("train", name, *QUICK)
    assert done.stderr.startswith(name.encode("utf-8", "backslashreplace").decode())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31m.png", r"a\x1b[31m.png"),
        ("a\nb.png", r"a\nb.png"),
        ("a\x9b.png", r"a\x9b.png"),
        ("a\u202egnp.png", r"a\u202egnp.png"),
    ],
)
def test_control_characters_in_file_names_are_escaped(
    in_process: Command, picture: Path, name: str, shown: str
) -> None:
    """A file's name cannot move the cursor, end the line or change the writing direction."""
    assert_error(in_process("encode", name, check=2).stderr, shown)
    picture.rename(picture.parent / name)
    (picture.parent / "text.png").write_text("no picture")
    done = in_process("train", name, *QUICK)
    assert done.stderr.startswith(shown)
    assert not set(done.stderr) & {"\x1b", "\x9b", "\u202e"}
    done = in_process("info", "weights.npz", name, check=1)
    assert_error(done.stderr, shown)


def test_progress_lines_are_printed_first_at_once_then_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    printed: list[str] = []
    lines = terminal._TrainingLines(printed.append)
    for step in range(1, 31):  # one step per second
        now = float(step)
        lines.show(Progress(step, 100, 0.01, 20.0, 1.0, 100.0 - step))
    lines.finish()
    assert [line.split()[1] for line in printed] == ["1/100", "11/100", "21/100", "30/100"]
    assert printed[0] == "training  1/100  loss 0.01  20.0 dB  1 steps/s  1:39 left"


def test_preparing_lines_are_printed_until_training_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "LINE_INTERVAL", 0.01)
    has_several = threading.Event()
    printed: list[str] = []

    def note(line: str) -> None:
        printed.append(line)
        if len(printed) > 2:
            has_several.set()

    lines = terminal._TrainingLines(note)
    assert has_several.wait(60)
    lines.show(Progress(1, 100, 0.01, 20.0, 1.0, 99.0))
    lines.finish()
    lines._waiting.join(60)
    *before, last = printed
    assert all(line.startswith("preparing  0.") for line in before)
    assert last.startswith("training  1/100")


@pytest.mark.parametrize("command", [(), ("train",), ("bench", "kernels")])
def test_version_option_prints_the_version(in_process: Command, command: tuple[str, ...]) -> None:
    assert re.fullmatch(r"imgmlp \d+\.\d+\.\d+\n", in_process(*command, "--version").stdout)


def test_completion_offers_matching_commands(in_process: Command) -> None:
    request = {"_IMGMLP_COMPLETE": "complete_bash", "COMP_WORDS": "imgmlp de", "COMP_CWORD": "1"}
    assert set(in_process(env=request).stdout.split()) == {"decode", "devices"}


@pytest.mark.parametrize("home", [None, "/proc/none", ""])
def test_devices_works_without_a_home_folder(picture: Path, home: str | None) -> None:
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


def test_empty_arguments_are_refused(in_process: Command) -> None:
    """They come from unset shell variables; a Path would take them for the current folder."""
    for arguments in (
        ["encode", "", "--out", "out"],
        ["decode", "x.imlp", "-o", ""],
        ["encode", "x.png", "--out="],
    ):
        assert "an argument is empty" in in_process(*arguments, check=2).stderr
    assert "--out= does not exist" in in_process("encode", "--", "--out=", check=2).stderr


# File names in suggested commands


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.png", "a.png"),
        ("a b.png", "'a b.png'"),
        ("-", "-"),  # standard input
        ("it's.png", "'it'\"'\"'s.png'"),
        ("a\n'b.png", r"$'a\n\'b.png'"),
        (
            "\udcff\\udcff.png",
            r"$'\xff\\udcff.png'",
        ),  # a byte that is not UTF-8, and text that looks like one
    ],
)
def test_quoted_file_name_is_valid_in_a_shell(name: str, expected: str) -> None:
    assert text.quoted(name) == expected
    echoed = ["bash", "-c", f"printf %s {text.quoted(name)}"]
    assert subprocess.run(echoed, capture_output=True, check=True).stdout == os.fsencode(name)


def test_file_name_that_looks_like_an_option_is_suggested_with_its_folder(
    in_process: Command, picture: Path
) -> None:
    assert text.quoted("-x y.png") == "'./-x y.png'"
    (picture.parent / "-x.png").write_bytes(b"no picture")
    stderr = in_process("encode", "-x.png", check=2).stderr
    assert_error(stderr, "No such option", "use `./-x.png` for the file of this name")
    assert "magick ./-x.png" in in_process("encode", "--", "-x.png", check=3).stderr
    stderr = in_process("encode", "-z.png", check=2).stderr
    assert_error(stderr, "No such option", "see `imgmlp encode --help`")


def test_options_before_a_bench_subcommand_are_refused(in_process: Command) -> None:
    for option in ("--quick", "-q"):
        stderr = in_process("bench", option, "kernels", check=2).stderr
        assert_error(stderr, "options were given before 'kernels'", "imgmlp bench kernels --help")


def test_option_without_a_value_names_the_help_of_its_command(in_process: Command) -> None:
    stderr = in_process("encode", "a.png", "-o", check=2).stderr
    assert_error(stderr, "'-o' requires an argument", "see `imgmlp encode --help`")
    stderr = in_process("bench", "kernels", "--csv", check=2).stderr
    assert_error(stderr, "'--csv' requires an argument", "see `imgmlp bench kernels --help`")
    shown = in_process("bench", "--json", "--device", check=2).stdout
    assert json.loads(shown)["hint"] == "see `imgmlp bench --help`"


@pytest.mark.parametrize(
    "command",
    [
        ["encode", "{picture}", "-o", "x.imlp", "--effort", "1"],
        ["train", "{picture}", "--steps", "5"],
        ["encode", "small.png"],
        ["encode", "{folder}", "--out", "o"],
    ],
)
def test_removed_working_folder_is_reported_as_output_error(
    picture: Path, command: list[str]
) -> None:
    removed = picture.parent / "gone"
    removed.mkdir()
    arguments = [word.format(picture=picture, folder=picture.parent) for word in command]
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *imgmlp_command(arguments)],
        cwd=removed,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == OutputError.exit_code, done.stderr
    assert "error: the current folder was removed" in done.stderr
