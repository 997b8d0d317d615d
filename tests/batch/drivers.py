"""Files for the works of `works`, and what becomes of processes whose driver is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conftest import environment
from works import WAIT, tries

from imgmlp.batch.work import Task


def files(folder: Path, *contents: str) -> list[Task]:
    tasks = []
    for number, content in enumerate(contents):
        path = folder / str(number)
        path.write_text(content)
        tasks.append(Task(path))
    return tasks


def left_by_a_killed(driver: str, tasks: Sequence[Task]) -> list[int]:
    """The processes that do files which wait, some time after the one that gave them was killed."""
    folder = tasks[0].source.parent
    (folder / "driver.py").write_text(driver)
    command = [sys.executable, str(folder / "driver.py"), *(str(task.source) for task in tasks)]
    path = os.pathsep.join([str(Path(__file__).parent), environment()["PYTHONPATH"]])
    process = subprocess.Popen(command, env=environment(PYTHONPATH=path))
    until(lambda: process.poll() is not None or all(tries(task.source) for task in tasks))
    workers = [int(left.name.split("-")[1]) for left in folder.glob("*.try*")]
    assert len(workers) == len(tasks)
    process.kill()
    process.wait()
    until(lambda: not any(map(_alive, workers)))
    return [worker for worker in workers if _alive(worker)]


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"  # ended, and nobody asked yet how
