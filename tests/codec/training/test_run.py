"""The surroundings of a run: who may stop it, and how its state is saved."""

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


def test_default_run_neither_stops_nor_saves() -> None:
    run = Run()
    assert not run.stopping()
    assert not run.should_save(True)
    assert run.saved is None
    assert run.interrupted("3 steps").hint == "start it again"


def test_next_run_loads_the_saved_state_with_its_values(tmp_path: Path) -> None:
    own_checkpoint = Checkpoint(tmp_path / "c", "k")
    run = Run(checkpoint=own_checkpoint, values={"outputs": ["a.npz"]})
    assert run.saved is None
    run.save(state(4))
    loaded = Run(checkpoint=own_checkpoint).saved
    assert loaded is not None
    assert int(loaded.arrays["count"]) == 4
    assert loaded.values == {"steps": 9, "outputs": ["a.npz"]}
    assert str(own_checkpoint.path) in run.interrupted("4 steps").hint


def test_state_is_saved_at_a_stop_and_after_the_save_interval(
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


def test_failure_to_save_is_noted_once_and_no_checkpoint_is_promised(
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
