"""Processes that end at once have written everything, and done what was to be done at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import environment

KEPT = """
import atexit, sys, tempfile, threading, time, weakref
from pathlib import Path
from imgmlp import ending

class Slow:
    def __del__(self):
        print("given back")

folder = tempfile.TemporaryDirectory(dir=".")
atexit.register(lambda: Path("noted").touch())
"""


def run(folder: Path, code: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", KEPT + code]
    return subprocess.run(
        command, cwd=folder, env=environment(), timeout=600, check=False, **(kept | streams)
    )


def test_what_is_held_is_left_to_the_system_and_all_else_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, "ending.keep_open(Slow()); sys.stdout.write('said'); ending.leave(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"said", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["noted"]  # and no temporary folder


@pytest.mark.parametrize("code", ["kept = Slow()", "ending.keep_open(Slow()); ending.keep_open(1)"])
def test_all_else_is_given_back(tmp_path: Path, code: str) -> None:
    done = run(tmp_path, f"{code}; ending.leave(3)")
    assert (done.returncode, done.stdout) == (3, b"given back\n")


def test_a_thread_that_is_at_work_is_waited_for(tmp_path: Path) -> None:
    work = "threading.Thread(target=lambda: (time.sleep(0.2), print('worked'))).start()"
    done = run(tmp_path, f"ending.keep_open(1); {work}; ending.leave(0)")
    assert (done.returncode, done.stdout) == (0, b"worked\n")


def test_what_cannot_be_written_is_told_as_python_tells_it(tmp_path: Path) -> None:
    buffered = "sys.stdout = open(1, 'w', closefd=False); print('said')"
    with Path("/dev/full").open("wb") as full:
        done = run(tmp_path, f"ending.keep_open(1); {buffered}; ending.leave(0)", stdout=full)
    assert done.returncode == 120
    assert b"No space left" in done.stderr


def test_nothing_that_the_command_line_loads_is_left_undone() -> None:
    noted = "import atexit; noted = []; atexit.register = lambda f, *_, **__: noted.append(f) or f"
    loaded = "import imgmlp.cli.encode; print(noted[0].__module__, len(noted) > 1)"
    command = [sys.executable, "-c", f"{noted}; {loaded}"]
    done = subprocess.run(command, env=environment(), timeout=600, check=True, capture_output=True)
    assert done.stdout.split() == [b"imgmlp.ending", b"True"]
