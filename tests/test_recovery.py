"""Killed at any moment, `imgmlp encode` leaves an old file, a whole new one, or none."""

from __future__ import annotations

import random
import subprocess
import sys
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


def start(picture: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, picture.name, *options],
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
    whole = start(picture, "-o", "whole.imlp")
    assert whole.wait(120) == 0, whole.communicate()[1]
    expected = (tmp_path / "whole.imlp").read_bytes()
    written = picture.with_suffix(".imlp")
    finished = 0
    for _ in range(kills):
        run = start(picture)
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
    last = start(picture)
    error = last.communicate(timeout=120)[1]
    assert last.returncode == 0, error
    assert written.read_bytes() == expected
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["p.imlp", "p.png", "whole.imlp"]  # also nothing of what was half written
    assert finished < kills


def test_without_room_for_checkpoints_the_run_goes_on(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    beside(picture.with_suffix(".imlp")).mkdir()  # nothing can be written there
    run = start(picture, "--no-progress")
    error = run.communicate(timeout=120)[1]
    assert run.returncode == 0, error
    assert error.count("no checkpoints:") == 1
    assert picture.with_suffix(".imlp").exists()
