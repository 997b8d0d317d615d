"""A temporary folder is gone once it is done with, also where its process was killed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgmlp.batch import scratch
from imgmlp.errors import OutputError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders go, in a process that has not looked there yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch.remove_abandoned.cache_clear()
    yield tmp_path
    scratch.remove_abandoned.cache_clear()


def test_it_is_gone_afterwards_whatever_happened_in_it(place: Path) -> None:
    with pytest.raises(FileNotFoundError), scratch.folder() as folder:
        (folder / "a").rename(folder.with_name("b"))
    assert list(place.iterdir()) == []


@pytest.mark.skipif(scratch.fcntl is None, reason="there are no locks here")
def test_what_was_left_is_removed_and_what_is_used_stays(place: Path) -> None:
    left = place / f"{scratch.PREFIX}left"
    others = [place / "others", place / f"{scratch.PREFIX}link"]
    with scratch.folder() as used:
        left.mkdir()
        (left / "picture.png").touch()
        others[0].mkdir()
        others[1].symlink_to(others[0])
        scratch.remove_abandoned.cache_clear()  # as a process does that starts
        with scratch.folder() as other:
            assert sorted(place.iterdir()) == sorted([used, other, *others])
            assert used != other


@pytest.mark.skipif(scratch.fcntl is None, reason="there are no locks here")
def test_one_that_another_process_removes_before_it_is_locked_is_made_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, list[Path]()

    def mkdtemp(**given: str) -> str:
        made.append(Path(make(**given)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch.folder() as folder:
        assert (folder, len(made), folder.is_dir()) == (made[1], 2, True)


def test_where_none_can_be_made_the_place_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    told = f"temporary folder {place}/missing: No such"
    with pytest.raises(OutputError, match=told) as caught, scratch.folder():
        pass
    assert "TMPDIR" in caught.value.hint
