"""Checkpoints: whose they are, and that damage makes them none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import small_pixels

from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint, Resumable, Snapshot
from imgmlp.engine import open_device
from imgmlp.errors import OutputError
from imgmlp.image import Picture
from imgmlp.metadata import Metadata

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    found = Checkpoint(checkpoint.path_beside(tmp_path / "a.imlp", KEY), KEY)
    arrays = {"flat": np.arange(5, dtype=np.float32), "count": np.uint32(7).reshape(())}
    found.save(Snapshot(arrays, {"steps": 9, "lmbda": 0.1}))
    return found


def test_what_is_saved_is_loaded(saved: Checkpoint) -> None:
    state = saved.load()
    assert state is not None
    assert state.values == {"steps": 9, "lmbda": 0.1}
    assert state.arrays["flat"].tolist() == [0, 1, 2, 3, 4]
    assert state.arrays["count"].dtype == np.uint32
    assert state.arrays["count"].shape == ()


def test_another_runs_checkpoint_counts_as_none(saved: Checkpoint) -> None:
    assert Checkpoint(saved.path, "other").load() is None


def test_a_damaged_one_counts_as_none(saved: Checkpoint) -> None:
    whole = saved.path.read_bytes()
    for size in range(0, len(whole), 7):
        saved.path.write_bytes(whole[:size])
        assert saved.load() is None
    for at in range(0, len(whole), 11):
        saved.path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        state = saved.load()
        assert state is None or state.arrays["flat"].tolist() == [0, 1, 2, 3, 4]


def test_it_can_be_removed_twice(saved: Checkpoint, tmp_path: Path) -> None:
    """And goes with what a process has left that was killed while it wrote it."""
    (tmp_path / f".{saved.path.name}.01234567.tmp").write_bytes(b"half")
    saved.remove(tmp_path / "a.imlp")
    saved.remove(tmp_path / "a.imlp")
    assert saved.load() is None
    assert list(tmp_path.iterdir()) == []


def test_runs_for_one_target_keep_their_own(saved: Checkpoint, tmp_path: Path) -> None:
    target = tmp_path / "a.imlp"
    other = Checkpoint(checkpoint.path_beside(target, OTHER), OTHER)
    assert checkpoint.note_on_others(target, saved) is None
    other.save(Snapshot({}, {"steps": 10}))
    Checkpoint(checkpoint.path_beside(tmp_path / "b.imlp", OTHER), OTHER).save(Snapshot({}, {}))
    assert checkpoint.left_beside(target) == sorted([saved.path, other.path])
    told = checkpoint.note_on_others(target, saved)
    assert told is not None
    assert str(other.path) in told
    assert str(saved.path) not in told
    other.remove(target)
    assert saved.load() is not None
    assert other.load() is None


def test_two_long_names_have_no_checkpoint_in_common(tmp_path: Path) -> None:
    one, other = (tmp_path / f"{'n' * 200}{end}.imlp" for end in "ab")
    path = checkpoint.path_beside(one, KEY)
    Checkpoint(path, KEY).save(Snapshot({}, {}))
    assert checkpoint.left_beside(one) == [path]
    assert checkpoint.left_beside(other) == []
    assert len(path.name) < 90


def test_others_are_removed_when_they_are_old(saved: Checkpoint, tmp_path: Path) -> None:
    other = Checkpoint(checkpoint.path_beside(tmp_path / "a.imlp", OTHER), OTHER)
    other.save(Snapshot({}, {}))
    for days, left in ((29, True), (31, False)):
        then = time.time() - 86_400 * days
        os.utime(other.path, (then, then))
        saved.remove(tmp_path / "a.imlp")
        assert other.path.exists() == left


def test_what_a_file_was_is_forgotten_once_it_is_another_one(
    saved: Checkpoint, tmp_path: Path
) -> None:
    target = tmp_path / "a.imlp"
    target.write_bytes(b"new")
    keys = {b"old": "1" * 64, b"new": "2" * 64}
    for data, key in keys.items():
        own = Checkpoint(checkpoint.path_beside(target, key), key)
        own.save(Snapshot.of_result(data, {}))
    running = Checkpoint(checkpoint.path_beside(target, OTHER), OTHER)
    running.save(Snapshot({}, {}))
    saved.remove(target)
    left = checkpoint.left_beside(target)
    assert left == sorted([checkpoint.path_beside(target, keys[b"new"]), running.path])


def test_values_are_added_to_what_is_saved_and_to_nothing_else(
    saved: Checkpoint, tmp_path: Path
) -> None:
    before = saved.load()
    assert before is not None
    saved.add({"more": 1})
    found = saved.load()
    assert found is not None
    assert found.values == before.values | {"more": 1}
    assert found.arrays.keys() == before.arrays.keys()
    none = Checkpoint(checkpoint.path_beside(tmp_path / "b.imlp", OTHER), OTHER)
    none.add({"more": 1})
    assert none.load() is None


def test_another_version_of_the_program_does_not_go_on_but_knows_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the output that was written, and that nobody remembers yet, would be a stranger's."""
    picture, device, target = Picture(small_pixels()), open_device("numpy"), tmp_path / "a.imlp"
    begun = checkpoint.of_training(target, picture, device, "a").path
    finished = checkpoint.of_result(target, picture, "a").path
    monkeypatch.setattr(checkpoint, "source_digest", lambda: "another version")
    assert checkpoint.of_training(target, picture, device, "a").path != begun
    assert checkpoint.of_result(target, picture, "a").path == finished
    monkeypatch.undo()
    assert checkpoint.of_training(target, picture, device, "a").path == begun


def test_a_key_stands_for_every_sample_and_choice() -> None:
    pixels = small_pixels()
    keys = {checkpoint.run_key(Picture(pixels), "a"), checkpoint.run_key(Picture(pixels), "b")}
    keys.add(checkpoint.run_key(Picture(pixels, Metadata(b"icc")), "a"))
    other = pixels.copy()
    other[3, 4, 1] ^= 1
    keys.add(checkpoint.run_key(Picture(other), "a"))
    keys.add(checkpoint.run_key(Picture(pixels.reshape(31, 24, 3)), "a"))
    assert len(keys) == 5
    assert checkpoint.run_key(Picture(pixels.copy()), "a") in keys


def test_what_goes_on_says_what_moves() -> None:
    class Still(Resumable):
        pass

    with pytest.raises(TypeError, match="_moving"):
        Still()  # type: ignore[abstract]


def test_what_would_not_be_loaded_is_not_saved(
    saved: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_BYTES", saved.path.stat().st_size)
    arrays = {"flat": np.arange(500, dtype=np.float32)}
    with pytest.raises(OutputError, match="too large to keep"):
        saved.save(Snapshot(arrays, {"steps": 10}))
    state = saved.load()
    assert state is not None
    assert state.values["steps"] == 9
