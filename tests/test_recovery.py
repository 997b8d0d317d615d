"""Killed at any moment, `imgmlp encode` leaves an old file, a whole new one, or none."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, QUICK, environment, imgmlp_command, small_pixels
from PIL import Image

from imgmlp.batch.journal import NAME
from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.training.checkpoint import left_beside, of_written_result
from imgmlp.engine import open_device

# The command, but with short runs that are saved often.
COMMAND = """
import sys
from imgmlp.codec.latent.training import effort, initialisation, latent_trainer, schedule
from imgmlp.codec.training import checkpoint, target
checkpoint.SAVE_INTERVAL, target.DEFAULT_EFFORT_STEPS = 0.0, 3200
effort.MIN_EFFORT_STEPS, latent_trainer.MIN_CHECK_INTERVAL = 60, 1
effort.MAX_UNCONDITIONAL_PASSES = 1
sys.argv = ["imgmlp", "encode", *sys.argv[1:], "--effort", "1"]
from imgmlp.cli import main
main()
"""

TARGETS = {"mlp": ("--bytes", "150"), "latent": ("--lambda", "0.001")}
CODECS = pytest.mark.parametrize("codec", TARGETS)

# The same, killed once its state was saved for the n-th time, or, for 0, once its file was.
KILLED = """
import os, signal, sys
from imgmlp.codec.training.checkpoint import Checkpoint
left, save = int(sys.argv.pop(1)), Checkpoint.save
def save_and_die(self, state, replace=True):
    global left
    save(self, state, replace)
    left -= 1
    if left == 0 or (left < 0 and not replace):
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoint.save = save_and_die
"""


# The same, killed while it writes its first state, which later runs have no time to write again.
HALF_WRITTEN = """
import os, signal
from imgmlp.codec.training import checkpoint
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
checkpoint.np.lib.format.write_array = die
"""

# Killed when an output has its own name, and still the one that it grew under.
TWO_NAMES = """
import os, signal
link = os.link
def link_and_die(here, there):
    link(here, there)
    if not there.name.startswith("."):
        os.kill(os.getpid(), signal.SIGKILL)
os.link = link_and_die
"""

# Killed when its weights are there, and its picture is not.
WITHOUT_PICTURE = """
import os, signal
from imgmlp import image
image.save_named = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def start(picture: Path, *options: str, code: str = COMMAND) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *options],
        cwd=picture.parent,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    "kills", [pytest.param(10, id="some"), pytest.param(500, id="many", marks=pytest.mark.soak)]
)
@CODECS
def test_a_kill_leaves_no_partial_file_and_loses_little(
    tmp_path: Path, kills: int, codec: str
) -> None:
    options = ("p.png", "--codec", codec, *TARGETS[codec])
    chance = random.Random(kills)
    picture = tmp_path / "p.png"
    y, x = np.mgrid[:8, :8]
    Image.fromarray((x * 20 + y * 10).astype(np.uint8)).save(picture)
    for _ in range(2):  # the second one finds every kernel compiled, as those to be killed do
        begun = time.monotonic()
        whole = start(picture, *options, "--force", "-o", "whole.imlp")
        assert whole.wait(120) == 0, whole.communicate()[1]
        seconds = time.monotonic() - begun
    expected = (tmp_path / "whole.imlp").read_bytes()
    written = picture.with_suffix(".imlp")
    finished = 0
    for _ in range(kills):
        run = start(picture, *options)
        try:
            run.communicate(timeout=chance.uniform(0, 1) * seconds)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
        if written.exists():  # whole, and of the same bits, however often it was killed before
            assert written.read_bytes() == expected
            container.parse(expected)
            finished += 1
            written.unlink()
    last = start(picture, *options)
    error = last.communicate(timeout=600)[1]
    assert last.returncode == 0, error
    assert written.read_bytes() == expected
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["p.imlp", "p.png", "whole.imlp"]  # also nothing of what was half written
    assert finished < kills


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((3, 31, 0), id="three"),
        pytest.param((*range(1, 40, 2), 0), id="twenty", marks=pytest.mark.soak),
    ],
)
@CODECS
def test_a_run_killed_at_any_point_goes_on_bit_for_bit(
    tmp_path: Path, points: Sequence[int], codec: str
) -> None:
    options = ("p.png", "--codec", codec, *TARGETS[codec])
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    assert start(picture, *options, "-o", "whole.imlp").wait(120) == 0
    expected, written = (tmp_path / "whole.imlp").read_bytes(), picture.with_suffix(".imlp")
    digest = hashlib.sha256(expected).hexdigest()
    for point in points:
        killed = start(picture, str(point), *options, code=KILLED + COMMAND)
        killed.communicate(timeout=600)
        assert killed.returncode == -signal.SIGKILL
        names = [left.name for left in left_beside(written)]
        assert names
        assert bool(of_written_result(written, digest, names)) is (point == 0)
        again = start(picture, *options)
        error = again.communicate(timeout=600)[1]
        assert again.returncode == 0, error
        assert ("continuing after" in error) is (point > 0)
        assert written.read_bytes() == expected
        written.unlink()


@CODECS
def test_what_a_kill_left_half_written_of_a_state_goes_with_the_next_run(
    tmp_path: Path, codec: str
) -> None:
    options = ("p.png", "--codec", codec, *TARGETS[codec])
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    killed = start(picture, *options, code=HALF_WRITTEN + COMMAND)
    killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir() if path.name.startswith(".")] == [".tmp"]
    again = start(picture, *options, code=COMMAND.replace("0.0", "1e9"))
    assert again.wait(120) == 0, again.communicate()[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.imlp", "p.png"]


TRAIN = """
import sys
from imgmlp.codec.training import checkpoint
checkpoint.SAVE_INTERVAL = 0.0
sys.argv[0] = "imgmlp"
from imgmlp.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "output", "code"),
    [
        (("encode", "p.png", "--codec", "mlp", "--time", "0.2s"), "p.imlp", 0),
        (("encode", "p.png", "--time", "0.2s", "--out", "made"), "made/p.imlp", 0),
        (("decode", str(GOLDEN / "rgb-alpha.imlp"), "-o", "d.png"), "d.png", 8),  # it is there
    ],
    ids=["encode", "folder", "decode"],
)
def test_a_kill_at_the_very_end_leaves_no_second_name(
    tmp_path: Path, arguments: tuple[str, ...], output: str, code: int
) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(small_pixels()).save(picture)
    killed = start(picture, *arguments, code=TWO_NAMES + TRAIN)
    killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert [path.samefile(tmp_path / output) for path in tmp_path.rglob("*.tmp")] == [True]
    again = start(picture, *arguments, code=TRAIN)
    error = again.communicate(timeout=600)[1]
    assert again.returncode == code, error
    assert (tmp_path / output).exists()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_training_that_was_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(small_pixels()).save(picture)
    arguments = ("train", "p.png", *QUICK, "--steps", "150")
    files = ("-o", "whole.npz", "--png", "whole.png")
    assert start(picture, *arguments, *files, code=TRAIN).wait(120) == 0
    killed = start(picture, "4", *arguments, code=KILLED + TRAIN)
    killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL
    again = start(picture, *arguments, code=TRAIN)
    error = again.communicate(timeout=600)[1]
    assert again.returncode == 0, error
    assert "continuing after" in error
    assert (tmp_path / "weights.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert not left_beside(tmp_path / "weights.npz")


def test_a_training_that_was_killed_between_its_outputs_writes_both(tmp_path: Path) -> None:
    picture, names = tmp_path / "p.png", ["p.png", "reconstruction.png", "weights.npz"]
    Image.fromarray(small_pixels()).save(picture)
    arguments = ("train", "p.png", *QUICK, "--steps", "150")
    killed = start(picture, *arguments, code=WITHOUT_PICTURE + TRAIN)
    killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL
    weights = (tmp_path / "weights.npz").read_bytes()
    again = start(picture, *arguments, code=TRAIN)
    error = again.communicate(timeout=600)[1]
    assert again.returncode == 0, error
    assert (tmp_path / "weights.npz").read_bytes() == weights
    assert sorted(path.name for path in tmp_path.iterdir()) == names


# The same without room for the files of a checkpoint.
NO_ROOM = """
from imgmlp.codec.training import checkpoint
from imgmlp.errors import OutputError
def refuse(*_):
    raise OutputError("cannot write it")
checkpoint.write_atomically = refuse
"""


def test_without_room_for_checkpoints_the_run_goes_on(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    options = ("--codec", "mlp", *TARGETS["mlp"], "--no-progress")
    run = start(picture, "p.png", *options, code=NO_ROOM + COMMAND)
    error = run.communicate(timeout=600)[1]
    assert run.returncode == 0, error
    assert error.count("no checkpoints:") == 1
    assert picture.with_suffix(".imlp").exists()


# The command on a disk with room for so many bytes of each file.
FULL = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv[0] = "imgmlp"
from imgmlp.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("train", *QUICK, "--png", "r.png", "p.png"), "weights.npz"),
        (("encode", "--codec", "mlp", "--bytes", "900", "--time", "0.2s", "p.png"), "p.imlp"),
        (("decode", "-o", "d.png", str(GOLDEN / "rgb-alpha.imlp")), "d.png"),
    ],
    ids=["train", "encode", "decode"],
)
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, arguments: tuple[str, ...], output: str
) -> None:
    Image.fromarray(small_pixels()).save(tmp_path / "p.png")
    (tmp_path / output).write_bytes(b"old")
    before = {path.name for path in tmp_path.iterdir()}
    run = start(tmp_path / "p.png", "40", *arguments, "--force", code=FULL)
    error = run.communicate(timeout=600)[1]
    assert run.returncode == 8, error
    assert f"cannot write {output}: File too large" in error
    assert (tmp_path / output).read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == before


# Folders


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.parametrize(
    "kills", [pytest.param(3, id="some"), pytest.param(200, id="many", marks=pytest.mark.soak)]
)
def test_kills_of_a_run_over_a_folder_and_of_its_processes_lose_nothing(
    tmp_path: Path, kills: int
) -> None:
    """Every output is there once, whole and remembered, and nothing else is."""
    (tmp_path / "in").mkdir()
    count = 2 * kills
    for number in range(count):
        pixels = np.full((3, 5, 3), number % 256, np.uint8)
        pixels[0, 0] = number % 7 * 36  # two colours: what is trained takes a moment
        Image.fromarray(pixels).save(tmp_path / "in" / f"{number:04}.png")
    arguments = (
        "encode",
        "in",
        "--out",
        "out",
        "--codec",
        "mlp",
        "--lambda",
        "0.01",
        "--time",
        "0.1s",
    )
    command = [*imgmlp_command(arguments), "--device", "numpy,numpy"]
    chance = random.Random(kills)
    out = tmp_path / "out"

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)

    for turn in range(kills):
        run, before = begin(), len(list(out.glob("*.imlp")))
        deadline = time.monotonic() + 600
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if len(list(out.glob("*.imlp"))) > before and chance.random() < 0.2:
                others = children(run.pid)
                one = chance.choice(others) if turn % 2 and others else run.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        assert run.poll() is not None
    assert begin().wait(600) == 0
    assert sorted(path.stem for path in out.glob("*.imlp")) == [f"{n:04}" for n in range(count)]
    assert {path.name for path in out.glob(".*")} == {NAME}
    device = open_device("numpy")
    for path in out.glob("*.imlp"):
        assert open_stored(path).decode(device).shape == (3, 5, 3)
    written = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert begin().wait(60) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == written
