"""Standard streams that are full, closed, pipes or files; Ctrl-C during imports; help."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest
from conftest import GOLDEN, QUICK, Command, environment, imgmlp_command, small_pixels
from outputs import assert_error, pixels_of
from PIL import Image

from imgmlp.cli.commands import app
from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device
from imgmlp.errors import problem_of
from imgmlp.terminal import Terminal

SHORT_ENCODE = ("--codec", "mlp", "--time", "0.3s", "--lambda", "0.01")
COMPACT = str(GOLDEN / "rgb-alpha.imlp")


def run(
    folder: Path, *arguments: str, shell: str = "", **streams: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run the command with the given streams, or with those that a shell script redirects.

    In the script, `"$0" "$@"` stands for the command.
    """
    command: Any = imgmlp_command(arguments)
    if shell:
        command = ["bash", "-c", f"set -o pipefail; {shell}", *command]
    defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(
        command, cwd=folder, env=environment(), timeout=600, check=False, **defaults | streams
    )


@pytest.mark.parametrize(
    ("command", "what"), [("encode", "file"), ("decode", "picture"), ("compare", "page")]
)
def test_json_and_an_output_cannot_both_go_to_stdout(
    in_process: Command, picture: Path, command: str, what: str
) -> None:
    if command == "compare":
        pytest.importorskip("blazediff_ssim")
    done = in_process(command, picture.name, "-o", "-", "--json", check=2)
    assert_error(done.stderr, f"--json and the {what} cannot both go to standard output")


# Full and closed streams


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["encode", "--help"], ["info", COMPACT, "-q"], ["info", COMPACT, COMPACT]],
)
def test_output_that_cannot_be_printed_is_exit_8(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(tmp_path, *arguments, stdout=full)
    assert done.returncode == 8
    assert_error(done.stderr.decode(), "cannot write to stdout: No space left")


@pytest.mark.parametrize("arguments", [["--help"], ["info", COMPACT], ["info", COMPACT, "-q"]])
def test_reader_that_closes_the_pipe_early_is_no_error(
    tmp_path: Path, arguments: list[str]
) -> None:
    done = run(tmp_path, *arguments, shell='"$0" "$@" | true')
    assert done.returncode == 0
    assert done.stderr == b""


def test_decode_to_a_closed_pipe_is_exit_8(tmp_path: Path) -> None:
    done = run(tmp_path, "decode", COMPACT, "-o", "-", shell='"$0" "$@" | true')
    assert done.returncode == 8
    assert_error(done.stderr.decode(), "stdout")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_unwritable_stderr_does_not_stop_encoding(picture: Path, redirection: str) -> None:
    arguments = ("encode", picture.name, *SHORT_ENCODE)
    done = run(picture.parent, *arguments, shell=f'"$0" "$@" {redirection}')
    assert done.returncode == 0
    assert open_stored(picture.with_suffix(".imlp")).width == 31
    repeated = run(picture.parent, *arguments, shell=f'"$0" "$@" {redirection}')
    assert repeated.returncode == 8


def test_output_files_do_not_take_descriptors_of_closed_streams(picture: Path) -> None:
    """The first file that is opened would get the descriptor, and with it printed messages."""
    run(picture.parent, "train", picture.name, *QUICK, shell='"$0" "$@" 0<&- 1>&- 2>&-')
    weights = open_stored(picture.parent / "weights.npz")
    assert weights.width == 31
    for words in (("--version",), ("--help",), ("encode", "--help"), ("bench", "--help")):
        done = run(picture.parent, *words, shell='"$0" "$@" 1>&-')
        assert done.returncode == 8
        assert_error(done.stderr.decode(), "stdout is closed")


def test_decode_to_a_file_works_with_closed_stdout(tmp_path: Path) -> None:
    done = run(tmp_path, "decode", COMPACT, "-o", "a.png", shell='"$0" "$@" 1>&-')
    assert done.returncode == 0, done.stderr
    assert b"error" not in done.stderr
    assert (tmp_path / "a.png").exists()
    failed = run(tmp_path, "decode", COMPACT, "-o", "-", shell='"$0" "$@" 1>&-')
    assert failed.returncode == 8
    assert failed.stderr.count(b"error:") == 1


def test_file_names_outside_the_encoding_are_escaped(imgmlp: Command, compact: Path) -> None:
    """On stdout as well as on stderr."""
    compact.rename(compact.with_name("Ж.imlp"))
    latin = {"PYTHONIOENCODING": "latin-1"}
    done = imgmlp("info", "Ж.imlp", "missing.imlp", env=latin, check=1)
    assert done.stdout.startswith("\\u0416.imlp\nformat ")
    assert "unexpected" not in done.stderr


# Standard input and output


def test_encode_reads_a_picture_from_standard_input(picture: Path) -> None:
    arguments = ("encode", "-", *SHORT_ENCODE, "-o", "a.imlp")
    done = run(picture.parent, *arguments, stdin=picture.open("rb"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().startswith("standard input  31×24 RGB")
    assert open_stored(picture.parent / "a.imlp").width == 31


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_encode_and_decode_work_as_filters(picture: Path, codec: str) -> None:
    encoded = run(
        picture.parent,
        "encode",
        "-",
        "--codec",
        codec,
        *SHORT_ENCODE,
        input=picture.read_bytes(),
        stdin=None,
    )
    assert encoded.returncode == 0, encoded.stderr
    assert open_stored(encoded.stdout).width == 31
    assert b"standard output" in encoded.stderr
    decoded = run(picture.parent, "decode", "-", input=encoded.stdout, stdin=None)
    assert decoded.returncode == 0, decoded.stderr
    expected = open_stored(encoded.stdout).decode(open_device("numpy"))
    with Image.open(io.BytesIO(decoded.stdout)) as image:
        np.testing.assert_array_equal(np.asarray(image), expected)
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


def test_dot_slash_dash_is_a_file_named_dash(in_process: Command, picture: Path) -> None:
    """With and without Typer. A dash without a folder is standard input or output."""
    dash = picture.parent / "-"
    dash.write_bytes(Path(COMPACT).read_bytes())
    for arguments in (("info", "./-"), ("info", "./-", "-q"), ("verify", ".//-", "./-")):
        in_process(*arguments)
    in_process("decode", "./-", "-o", "a.png")
    in_process("decode", "./-", "-o", "b.png", "-q")
    fast, with_typer = (picture.parent / f"{name}.png" for name in "ab")
    assert fast.read_bytes() == with_typer.read_bytes()
    in_process("decode", "./-")
    assert (picture.parent / "-.decoded.png").read_bytes() == fast.read_bytes()
    dash.unlink()
    assert in_process("encode", picture.name, *SHORT_ENCODE, "-o", "./-").stdout == ""
    assert open_stored(dash).width == 31
    for option in ("--output=./-", "-o./-"):
        assert_error(in_process("encode", picture.name, option, check=8).stderr, "/- exists")


def test_encode_writes_the_file_to_standard_output(picture: Path) -> None:
    done = run(picture.parent, "encode", picture.name, *SHORT_ENCODE, "-o", "-")
    assert open_stored(done.stdout).width == 31
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]
    done = run(picture.parent, "encode", picture.name, *SHORT_ENCODE, "-o", "-", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2


def test_train_writes_weights_to_standard_output_without_a_picture(picture: Path) -> None:
    done = run(picture.parent, "train", "-", *QUICK, "-o", "-", stdin=picture.open("rb"))
    assert done.returncode == 0, done.stderr
    assert open_stored(done.stdout).width == 31
    assert b"standard output" in done.stderr
    assert b"reconstruction" not in done.stderr
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]
    run(picture.parent, "train", picture.name, *QUICK, "-o", "-", "--png", "a.png")
    assert {path.name for path in picture.parent.iterdir()} == {picture.name, "a.png"}
    unread = run(picture.parent, "train", picture.name, *QUICK, "-o", "-", shell='"$0" "$@" | true')
    assert unread.returncode == 8


def test_no_checkpoint_is_kept_beside_a_device_file(picture: Path) -> None:
    """A failed write to a file would leave a checkpoint, to resume from."""
    full = picture.parent / "full"
    full.symlink_to("/dev/full")
    done = run(picture.parent, "encode", picture.name, *SHORT_ENCODE, "-o", full.name)
    assert done.returncode == 8, done.stderr
    assert {path.name for path in picture.parent.iterdir()} == {picture.name, full.name}


def test_decode_to_dev_stdout_equals_decode_to_dash(tmp_path: Path) -> None:
    named, dashed = (run(tmp_path, "decode", COMPACT, "-o", to) for to in ("/dev/stdout", "-"))
    assert named.returncode == 0, named.stderr
    assert named.stdout == dashed.stdout
    assert named.stdout.startswith(hostile.MAGIC)


@pytest.mark.parametrize("command", ["info", "verify"])
def test_info_and_verify_read_standard_input(tmp_path: Path, command: str) -> None:
    with Path(COMPACT).open("rb") as stream:
        done = run(tmp_path, command, "-", stdin=stream)
    assert done.returncode == 0
    assert "24×7 RGB and alpha".encode() in done.stdout + done.stderr
    cut = run(tmp_path, command, "-", input=Path(COMPACT).read_bytes()[:-1], stdin=None)
    assert cut.returncode == 4
    assert_error(cut.stderr.decode(), "standard input: truncated")


def test_encode_and_info_read_pipes(picture: Path) -> None:
    done = run(
        picture.parent,
        "encode",
        *SHORT_ENCODE,
        "-o",
        "a.imlp",
        shell=f'"$0" "$@" <(cat {picture.name})',
    )
    assert done.returncode == 0, done.stderr
    done = run(picture.parent, "info", shell='"$0" "$@" <(cat a.imlp)')
    assert "31×24 RGB".encode() in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "-", "small.png"),
        ("encode", "-", "--out", "."),
        ("decode", "-", COMPACT),
        ("decode", COMPACT, COMPACT, "-o", "a.png"),
        ("decode", COMPACT, "-o", "a.png", "--out", "."),
    ],
)
def test_contradictory_arguments_are_refused(
    in_process: Command, picture: Path, arguments: tuple[str, ...]
) -> None:
    assert_error(in_process(*arguments, check=2).stderr)
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


def test_empty_standard_input_is_refused(picture: Path) -> None:
    done = run(picture.parent, "encode", "-")
    assert done.returncode == 3
    assert_error(done.stderr.decode())
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


# Several files


def test_decode_processes_several_files(in_process: Command, compact: Path, tmp_path: Path) -> None:
    (compact.parent / "cut.imlp").write_bytes(compact.read_bytes()[:-1])
    (compact.parent / "b.imlp").write_bytes(compact.read_bytes())
    done = in_process("decode", "cut.imlp", "missing.imlp", "a.imlp", "b.imlp", check=1)
    assert done.stderr.count("error:") == 2
    decoded = pixels_of(compact.with_name("a.decoded.png"))
    np.testing.assert_array_equal(decoded, pixels_of(compact.with_name("b.decoded.png")))
    out = tmp_path / "out"
    out.mkdir()
    in_process("decode", "a.imlp", "b.imlp", "--out", str(out))
    assert sorted(path.name for path in out.glob("[!.]*")) == ["a.decoded.png", "b.decoded.png"]
    other = tmp_path / "other" / "a.imlp"
    other.parent.mkdir()
    other.write_bytes(compact.read_bytes())
    done = in_process("decode", "a.imlp", other, "--out", str(out), "--force", check=1)
    assert "another file of this run" in done.stderr
    assert "1 file done before" in done.stderr


def test_info_describes_several_files(in_process: Command, compact: Path) -> None:
    done = in_process("info", "a.imlp", "missing.imlp", "a.imlp", check=1)
    assert done.stdout.count("a.imlp\nformat    imgmlp-compact") == 2
    assert_error(done.stderr, "missing.imlp does not exist")
    done = in_process("info", "a.imlp", "missing.imlp", "--json", check=1)
    one, two = json.loads(done.stdout)
    assert one == {"file": "a.imlp", "problem": None} | open_stored(compact).facts
    assert two["exit_code"] == 2


def test_extension_selects_the_picture_format(in_process: Command, picture: Path) -> None:
    in_process("train", picture.name, *QUICK, "--png", "a.jpg", "--live", "b.webp")
    with Image.open(picture.parent / "a.jpg") as image:
        assert image.format == "JPEG"
    with Image.open(picture.parent / "b.webp") as image:
        assert image.format == "WEBP"
    for name in ("a.pgm", "a.xyz"):
        assert_error(
            in_process("train", picture.name, "--png", name, "--force", check=2).stderr, name
        )
        assert_error(in_process("decode", "weights.npz", "-o", name, check=2).stderr, name)
    for command in ("encode", "train"):  # their output is not a picture
        stderr = in_process(command, picture.name, "-o", "made.jpg", check=2).stderr
        assert_error(stderr, "a picture's extension")
    for command, name in (("encode", "made.npz"), ("train", "made.imlp")):
        stderr = in_process(command, picture.name, "-o", name, check=2).stderr
        assert_error(stderr, "another kind of file")
    gray = picture.parent / "gray.png"
    Image.fromarray(small_pixels(1)[:, :, 0]).save(gray)
    in_process("train", gray.name, *QUICK, "-o", "g.npz", "--png", "g.pgm")
    assert (picture.parent / "g.pgm").read_bytes().startswith(b"P5")


def test_standard_input_is_checked_like_a_file(tmp_path: Path) -> None:
    for command in ("encode", "train"):
        with open(COMPACT, "rb") as stream:
            stderr = run(tmp_path, command, "-", stdin=stream).stderr.decode()
        assert_error(stderr, "standard input is compressed already")
        assert "imgmlp decode -" in stderr
    stderr = run(tmp_path, "encode", "-", "-o", "a.imlp").stderr.decode()
    assert_error(stderr, "standard input is empty", "give a PNG")
    assert "magick" not in stderr
    data = hostile.png(9, 7, rows=7)
    for_iphones = tmp_path / "a.png"
    for_iphones.write_bytes(data[:8] + hostile.chunk(b"CgBI", bytes(4)) + data[8:])
    with for_iphones.open("rb") as stream:
        stderr = run(tmp_path, "encode", "-", "-o", "a.imlp", stdin=stream).stderr.decode()
    assert_error(stderr, "standard input is a PNG for iPhones")
    assert "ffmpeg" not in stderr


# Errors as JSON


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("encode", "--unheard-of"), 2),
        (("encode",), 2),
        (("encode", "small.png", "--effort", "many"), 2),
        (("encode", "small.png", "--device", "9:9"), 6),
        (("info", "missing.imlp"), 2),
        (("verify", "--device", "9:9", COMPACT), 6),
        (("devices", "--device", "9:9"), 6),
        (("graph", "--size", "many"), 2),
    ],
)
def test_json_option_prints_errors_as_json(
    in_process: Command, arguments: tuple[str, ...], code: int
) -> None:
    done = in_process(*arguments, "--json", check=code)
    report = json.loads(done.stdout)
    (facts,) = report if isinstance(report, list) else [report]
    assert facts["exit_code"] == code
    assert facts["problem"] in done.stderr
    assert facts["hint"] in done.stderr
    assert "{" not in in_process(*arguments, check=code).stdout


def test_json_option_with_a_value_is_an_error_in_json(in_process: Command) -> None:
    done = in_process("verify", COMPACT, "--json=1", check=2)
    assert json.loads(done.stdout)["exit_code"] == 2


def test_decode_reports_pictures_as_json(in_process: Command, tmp_path: Path) -> None:
    done = in_process("decode", COMPACT, "-o", tmp_path / "a.png", "--device", "numpy", "--json")
    (entry,) = json.loads(done.stdout)
    assert entry["output"] == str(tmp_path / "a.png")
    assert (entry["problem"], entry["channels"]) == (None, 4)
    assert_error(
        in_process("decode", COMPACT, "-o", "-", "--json", check=2).stderr, "cannot both go to"
    )


def test_unknown_codec_is_reported_without_pydantic_wording(in_process: Command) -> None:
    stderr = in_process("encode", "a.png", "--codec", "foo", check=2).stderr
    assert_error(stderr, "'foo' is not one of")
    assert "Value error" not in stderr


# Ctrl-C during imports

# Runs a command and sends SIGINT when it imports a module.
INTERRUPTED_IMPORT_SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
sys.argv = ["imgmlp", *{arguments!r}]
from imgmlp.__main__ import main
main()
"""


def run_with_interrupted_import(
    picture: Path, module: str, arguments: list[str]
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the folder of a picture, with Ctrl-C when it imports a module."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            INTERRUPTED_IMPORT_SCRIPT.format(module=module, arguments=arguments),
        ],
        cwd=picture.parent,
        env=environment(),
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("imgmlp.facts", ["info", COMPACT]),
        ("json", ["info", COMPACT]),
        ("imgmlp.cli", ["train", "small.png"]),
        ("typer", ["--help"]),
        ("rich.console", ["train", "small.png"]),
        ("numpy", ["train", "small.png"]),
        ("numpy._core", ["encode", "small.png"]),
        ("pyopencl", ["decode", COMPACT]),
        ("imgmlp.cli.encode", ["encode", "small.png"]),
    ],
)
def test_ctrl_c_during_imports_exits_silently(
    picture: Path, module: str, arguments: list[str]
) -> None:
    done = run_with_interrupted_import(picture, module, arguments)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("module", ["imgmlp.cli", "numpy"])
def test_ctrl_c_during_imports_is_reported_as_json(picture: Path, module: str) -> None:
    done = run_with_interrupted_import(picture, module, ["encode", picture.name, "--json"])
    assert (done.returncode, done.stderr) == (130, b"")
    assert json.loads(done.stdout) == problem_of(KeyboardInterrupt()).facts()


def test_ctrl_c_ends_a_wait_for_standard_input(tmp_path: Path) -> None:
    process = subprocess.Popen(
        imgmlp_command(["encode", "-"]),
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        process.wait(4)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


# Help


@pytest.mark.parametrize("columns", ["0", "1", "40", "80", "200", "many"])
@pytest.mark.parametrize("command", ["encode", "train", "bench"])
def test_help_names_every_option_at_any_width(
    in_process: Command, columns: str, command: str
) -> None:
    shown = in_process(command, "--help", env={"COLUMNS": columns}).stdout
    last_options = {"encode": "--skip-existing", "train": "--features", "bench": "--no-progress"}
    assert {"--device", "--verbose", last_options[command]} <= set(shown.replace(",", " ").split())
    assert "bool" not in shown
    assert "<" not in shown  # no Python types


def test_help_is_the_same_without_docstrings(tmp_path: Path) -> None:
    for words in ([], ["encode"], ["bench"], ["bench", "kernels"]):
        full, stripped = (
            subprocess.run(
                [sys.executable, *options, "-m", "imgmlp", *words, "--help"],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                timeout=600,
                check=True,
            ).stdout
            for options in ([], ["-OO"])
        )
        assert stripped == full


COMMANDS = "train", "encode", "decode", "info", "verify", "compare", "devices", "graph", "bench"


@pytest.mark.parametrize("command", [(), *((one,) for one in COMMANDS), ("bench", "kernels")])
def test_help_fits_the_terminal_and_has_the_same_text_at_any_width(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    shown = {}
    for columns in (40, 47, 60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        app([*command, "--help"], obj=Terminal(), prog_name="imgmlp", standalone_mode=False)
        shown[columns] = capsys.readouterr().out
    for columns, text in shown.items():
        assert max(map(len, text.splitlines())) <= columns
        assert "".join(text.split()) == "".join(shown[80].split())
    assert len(shown[40].splitlines()) > len(shown[80].splitlines())
