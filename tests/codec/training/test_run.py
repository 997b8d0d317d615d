"""What a run has around it: who may stop it, and how its state is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.codec.training.run import Run
from imgmlp.errors import OutputError


def state(step: int) -> Snapshot:
    return Snapshot({"count": np.array(step)}, {"steps": 9})


def test_a_run_with_nothing_around_it_neither_stops_nor_keeps() -> None:
    run = Run()
    assert not run.stopping()
    assert not run.should_save(True)
    assert run.saved is None
    assert run.interrupted("3 steps").hint == "start it again"


def test_the_next_run_finds_what_was_kept_with_its_facts(tmp_path: Path) -> None:
    kept = Checkpoint(tmp_path / "c", "k")
    run = Run(checkpoint=kept, values={"outputs": ["a.npz"]})
    assert run.saved is None
    run.save(state(4))
    found = Run(checkpoint=kept).saved
    assert found is not None
    assert int(found.arrays["count"]) == 4
    assert found.values == {"steps": 9, "outputs": ["a.npz"]}
    assert str(kept.path) in run.interrupted("4 steps").hint


def test_a_state_is_due_when_it_stops_or_when_some_time_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = Run(checkpoint=Checkpoint(tmp_path / "c", "k"))
    assert run.should_save(True)
    assert not run.should_save(False)
    now[0] += checkpoint.SAVE_INTERVAL + 1
    assert run.should_save(False)
    run.save(state(1))
    assert not run.should_save(False)


def test_a_state_that_cannot_be_kept_is_noted_once_and_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OutputError("the disk is full", hint="make room")

    monkeypatch.setattr(Checkpoint, "save", refuse)
    notes: list[str] = []
    run = Run(note=notes.append, checkpoint=Checkpoint(tmp_path / "c", "k"))
    run.save(state(1))
    assert notes == ["no checkpoints: the disk is full"]
    assert not run.should_save(True)
    assert run.interrupted("1 step").hint == "start it again"
