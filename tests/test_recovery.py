"""Killed at any moment, `imgmlp encode` leaves an old file, a whole new one, or none."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import environment
from PIL import Image

from imgmlp.codec import container
from imgmlp.codec.checkpoint import beside

# The command, but with short runs that are saved often.
COMMAND = """
import sys
from imgmlp.codec import course, target
course.KEEP_SECONDS, target.STEPS = 0.0, 200
sys.argv = ["imgmlp", "encode", *sys.argv[1:], "--bytes", "150"]
from imgmlp.cli import main
main()
"""

# The same, killed once its state was saved for the n-th time.
KILLED = """
import os, signal, sys
from imgmlp.codec.checkpoint import Checkpoint
left, save = int(sys.argv.pop(1)), Checkpoint.save
def save_and_die(self, state):
    global left
    save(self, state)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoint.save = save_and_die
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
    "kills", [pytest.param(6, id="some"), pytest.param(500, id="many", marks=pytest.mark.soak)]
)
def test_a_kill_leaves_no_partial_file_and_loses_little(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    picture = tmp_path / "p.png"
    y, x = np.mgrid[:8, :8]
    Image.fromarray((x * 20 + y * 10).astype(np.uint8)).save(picture)
    whole = start(picture, "p.png", "-o", "whole.imlp")
    assert whole.wait(120) == 0, whole.communicate()[1]
    expected = (tmp_path / "whole.imlp").read_bytes()
    written = picture.with_suffix(".imlp")
    finished = 0
    for _ in range(kills):
        run = start(picture, "p.png")
        try:
            run.communicate(timeout=chance.uniform(0.3, 4.0))
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
        if written.exists():  # whole, and of the same bits, however often it was killed before
            assert written.read_bytes() == expected
            container.parse(expected)
            finished += 1
            written.unlink()
    last = start(picture, "p.png")
    error = last.communicate(timeout=120)[1]
    assert last.returncode == 0, error
    assert written.read_bytes() == expected
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["p.imlp", "p.png", "whole.imlp"]  # also nothing of what was half written
    assert finished < kills


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((17,), id="one"),
        pytest.param(range(1, 40, 2), id="twenty", marks=pytest.mark.soak),
    ],
)
def test_a_run_killed_at_any_point_goes_on_bit_for_bit(
    tmp_path: Path, points: Sequence[int]
) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    assert start(picture, "p.png", "-o", "whole.imlp").wait(120) == 0
    expected, written = (tmp_path / "whole.imlp").read_bytes(), picture.with_suffix(".imlp")
    for point in points:
        killed = start(picture, str(point), "p.png", code=KILLED + COMMAND)
        killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL
        assert beside(written).exists()
        again = start(picture, "p.png")
        error = again.communicate(timeout=120)[1]
        assert again.returncode == 0, error
        assert "continuing after" in error
        assert written.read_bytes() == expected
        written.unlink()


def test_without_room_for_checkpoints_the_run_goes_on(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    beside(picture.with_suffix(".imlp")).mkdir()  # nothing can be written there
    run = start(picture, "p.png", "--no-progress")
    error = run.communicate(timeout=120)[1]
    assert run.returncode == 0, error
    assert error.count("no checkpoints:") == 1
    assert picture.with_suffix(".imlp").exists()
