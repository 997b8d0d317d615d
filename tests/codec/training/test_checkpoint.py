"""Checkpoints: to which run they belong, and that damaged ones are ignored."""

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
    saved = Checkpoint(checkpoint.path_beside(tmp_path / "a.imlp", KEY), KEY)
    arrays = {"flat": np.arange(5, dtype=np.float32), "count": np.uint32(7).reshape(())}
    saved.save(Snapshot(arrays, {"steps": 9, "lmbda": 0.1}))
    return saved


def test_saved_state_is_loaded(saved: Checkpoint) -> None:
    state = saved.load()
    assert state is not None
    assert state.values == {"steps": 9, "lmbda": 0.1}
    assert state.arrays["flat"].tolist() == [0, 1, 2, 3, 4]
    assert state.arrays["count"].dtype == np.uint32
    assert state.arrays["count"].shape == ()


def test_checkpoint_of_another_run_is_ignored(saved: Checkpoint) -> None:
    assert Checkpoint(saved.path, "other").load() is None


def test_damaged_checkpoint_is_ignored(saved: Checkpoint) -> None:
    whole = saved.path.read_bytes()
    for size in range(0, len(whole), 7):
        saved.path.write_bytes(whole[:size])
        assert saved.load() is None
    for at in range(0, len(whole), 11):
        saved.path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        state = saved.load()
        assert state is None or state.arrays["flat"].tolist() == [0, 1, 2, 3, 4]


def test_checkpoint_can_be_removed_twice(saved: Checkpoint, tmp_path: Path) -> None:
    """A temporary file, left by a process that was killed while writing, is removed with it."""
    (tmp_path / f".{saved.path.name}.01234567.tmp").write_bytes(b"half")
    saved.remove(tmp_path / "a.imlp")
    saved.remove(tmp_path / "a.imlp")
    assert saved.load() is None
    assert list(tmp_path.iterdir()) == []


def test_runs_for_one_output_have_their_own_checkpoints(saved: Checkpoint, tmp_path: Path) -> None:
    target = tmp_path / "a.imlp"
    other = Checkpoint(checkpoint.path_beside(target, OTHER), OTHER)
    assert checkpoint.note_on_others(target, saved) is None
    other.save(Snapshot({}, {"steps": 10}))
    Checkpoint(checkpoint.path_beside(tmp_path / "b.imlp", OTHER), OTHER).save(Snapshot({}, {}))
    assert checkpoint.left_beside(target) == sorted([saved.path, other.path])
    note = checkpoint.note_on_others(target, saved)
    assert note is not None
    assert str(other.path) in note
    assert str(saved.path) not in note
    other.remove(target)
    assert saved.load() is not None
    assert other.load() is None


def test_outputs_with_long_names_have_their_own_checkpoints(tmp_path: Path) -> None:
    one, other = (tmp_path / f"{'n' * 200}{end}.imlp" for end in "ab")
    path = checkpoint.path_beside(one, KEY)
    Checkpoint(path, KEY).save(Snapshot({}, {}))
    assert checkpoint.left_beside(one) == [path]
    assert checkpoint.left_beside(other) == []
    assert len(path.name) < 90


def test_checkpoints_of_other_runs_are_removed_when_they_are_old(
    saved: Checkpoint, tmp_path: Path
) -> None:
    other = Checkpoint(checkpoint.path_beside(tmp_path / "a.imlp", OTHER), OTHER)
    other.save(Snapshot({}, {}))
    for days, left in ((29, True), (31, False)):
        then = time.time() - 86_400 * days
        os.utime(other.path, (then, then))
        saved.remove(tmp_path / "a.imlp")
        assert other.path.exists() == left


def test_checkpoint_of_a_result_is_removed_once_the_output_has_changed(
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


def test_values_are_added_only_to_an_existing_checkpoint(saved: Checkpoint, tmp_path: Path) -> None:
    before = saved.load()
    assert before is not None
    saved.add({"more": 1})
    after = saved.load()
    assert after is not None
    assert after.values == before.values | {"more": 1}
    assert after.arrays.keys() == before.arrays.keys()
    missing = Checkpoint(checkpoint.path_beside(tmp_path / "b.imlp", OTHER), OTHER)
    missing.add({"more": 1})
    assert missing.load() is None


def test_another_version_resumes_no_training_but_knows_finished_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an output that was just written would be taken for a foreign file."""
    picture, device, target = Picture(small_pixels()), open_device("numpy"), tmp_path / "a.imlp"
    begun = checkpoint.of_training(target, picture, device, "a").path
    finished = checkpoint.of_result(target, picture, "a").path
    monkeypatch.setattr(checkpoint, "source_digest", lambda: "another version")
    assert checkpoint.of_training(target, picture, device, "a").path != begun
    assert checkpoint.of_result(target, picture, "a").path == finished
    monkeypatch.undo()
    assert checkpoint.of_training(target, picture, device, "a").path == begun


def test_key_of_a_run_depends_on_every_sample_and_option() -> None:
    pixels = small_pixels()
    keys = {checkpoint.run_key(Picture(pixels), "a"), checkpoint.run_key(Picture(pixels), "b")}
    keys.add(checkpoint.run_key(Picture(pixels, Metadata(b"icc")), "a"))
    other = pixels.copy()
    other[3, 4, 1] ^= 1
    keys.add(checkpoint.run_key(Picture(other), "a"))
    keys.add(checkpoint.run_key(Picture(pixels.reshape(31, 24, 3)), "a"))
    assert len(keys) == 5
    assert checkpoint.run_key(Picture(pixels.copy()), "a") in keys


def test_resumable_class_has_to_define_its_moving_state() -> None:
    class Still(Resumable):
        pass

    with pytest.raises(TypeError, match="_moving"):
        Still()  # type: ignore[abstract]


def test_too_large_state_is_not_saved(saved: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_BYTES", saved.path.stat().st_size)
    arrays = {"flat": np.arange(500, dtype=np.float32)}
    with pytest.raises(OutputError, match="too large to keep"):
        saved.save(Snapshot(arrays, {"steps": 10}))
    state = saved.load()
    assert state is not None
    assert state.values["steps"] == 9
