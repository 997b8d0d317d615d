"""An output is written over nothing but what is known, or what somebody said to replace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imgmlp import output_files
from imgmlp.batch.output import check, put
from imgmlp.batch.work import Task
from imgmlp.errors import OutputError
from imgmlp.output_files import digest

HINT = "what to do"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Whose output is there, and known."""
    output = tmp_path / "a.out"
    output.write_bytes(b"old")
    return Task(tmp_path / "a", output, known=digest(output))


def held(task: Task) -> bytes:
    assert task.output is not None
    return task.output.read_bytes()


def test_what_is_known_is_replaced(task: Task) -> None:
    put(task, b"new", HINT)
    assert held(task) == b"new"


@pytest.mark.parametrize(
    ("known", "problem"),
    [(True, "has changed since it was written here"), (False, "exists already")],
)
def test_anything_else_stays_without_force(task: Task, known: bool, problem: str) -> None:
    assert task.output is not None
    if known:
        task.output.write_bytes(b"odd")  # as long as the old one
    else:
        task = replace(task, known="")
    before = held(task)
    with pytest.raises(OutputError, match=problem) as caught:
        put(task, b"new", HINT)
    assert caught.value.hint == HINT
    assert held(task) == before
    put(task, before, HINT)  # which another process may have written in the meantime
    put(replace(task, replace=True), b"new", HINT)
    assert held(task) == b"new"


def test_a_file_that_comes_while_it_is_written_stays(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task.output is not None
    task.output.unlink()  # also of one that is known, and was there when it was planned
    write = output_files.write_atomically

    def late(path: Path, *more: object) -> None:
        path.write_bytes(b"mine")
        write(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(output_files, "write_atomically", late)
    with pytest.raises(OutputError, match="exists already"):
        put(task, b"new", HINT)
    assert held(task) == b"mine"


def test_an_output_that_cannot_be_looked_at_is_refused(task: Task, tmp_path: Path) -> None:
    path = tmp_path / ("a" * 300)
    for known in ("", task.known):
        with pytest.raises(OutputError, match=r"cannot write .*too long"):
            check(path, False, known, HINT)
        with pytest.raises(OutputError, match=r"cannot write .*too long"):
            put(replace(task, output=path, known=known), b"new", HINT)
