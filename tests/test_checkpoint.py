"""Checkpoints: whose they are, and that damage makes them none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import small_pixels

from imgmlp.codec import checkpoint
from imgmlp.codec.checkpoint import Checkpoint, Resumable, State
from imgmlp.image import Picture


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    found = Checkpoint(checkpoint.beside(tmp_path / "a.imlp"), "k")
    arrays = {"flat": np.arange(5, dtype=np.float32), "count": np.uint32(7).reshape(())}
    found.save(State(arrays, {"steps": 9, "price": 0.1}))
    return found


def test_what_is_saved_is_loaded(saved: Checkpoint) -> None:
    state = saved.load()
    assert state is not None
    assert state.facts == {"steps": 9, "price": 0.1}
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


def test_it_can_be_removed_twice(saved: Checkpoint) -> None:
    saved.remove()
    saved.remove()
    assert saved.load() is None


def test_another_version_of_the_program_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Picture(small_pixels())
    before = checkpoint.key(picture, "a")
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path).replace(b"BATCH = 1024", b"BATCH = 512")
    )
    checkpoint.program.cache_clear()
    other = checkpoint.key(picture, "a")
    monkeypatch.undo()
    checkpoint.program.cache_clear()
    assert other != before
    assert checkpoint.key(picture, "a") == before


def test_a_key_stands_for_every_sample_and_choice() -> None:
    pixels = small_pixels()
    keys = {checkpoint.key(Picture(pixels), "a"), checkpoint.key(Picture(pixels), "b")}
    keys.add(checkpoint.key(Picture(pixels, b"icc"), "a"))
    other = pixels.copy()
    other[3, 4, 1] ^= 1
    keys.add(checkpoint.key(Picture(other), "a"))
    keys.add(checkpoint.key(Picture(pixels.reshape(31, 24, 3)), "a"))
    assert len(keys) == 5
    assert checkpoint.key(Picture(pixels.copy()), "a") in keys


def test_what_goes_on_says_what_moves() -> None:
    class Still(Resumable):
        pass

    with pytest.raises(TypeError, match="_moving"):
        Still()  # type: ignore[abstract]
