"""A journal gives back what was added, whatever else its file holds."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from imgmlp.batch.journal import NAME, Done, Journal
from imgmlp.errors import OutputError

ONE = Done("a.imlp", "/in/a.png", 10, 123456789, "p", "s", 5, 987654321, "o", {"psnr": 30.5})
TWO = replace(ONE, output=os.fsdecode(b"caf\xe9.imlp"), facts={})


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    assert list(Journal(tmp_path).read()) == []
    for done in (ONE, TWO):
        Journal(tmp_path).add(done)  # each by a process of its own
    journal = Journal(tmp_path)
    journal.add(ONE)
    journal.add(TWO)
    assert list(journal.read()) == [ONE, TWO, ONE, TWO]
    assert journal.damaged == 0


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe\x00",
        b"{}" * 40_000,
        json.dumps({"version": 2} | asdict(ONE)).encode(),
        json.dumps(asdict(ONE)).encode(),
        json.dumps({"version": 1} | asdict(ONE) | {"bytes": "many"}).encode(),
        json.dumps({"version": 1} | asdict(ONE) | {"facts": None}).encode(),
        json.dumps({"version": 1} | asdict(ONE) | {"output": "\ud800.imlp"}).encode(),
        json.dumps({"version": 1} | asdict(ONE) | {"facts": {"psnr": math.nan}}).encode(),
        json.dumps({"version": 1} | asdict(ONE)).encode().replace(b"30.5", b"1e999"),
        b"[" * 50_000,
    ],
)
def test_a_damaged_line_or_another_versions_is_passed_over(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path)
    journal.add(ONE)
    with (tmp_path / NAME).open("ab") as stream:
        stream.write(line)  # and no end of it, as after a kill
    Journal(tmp_path).add(TWO)
    assert list(journal.read()) == [ONE, TWO]
    assert journal.damaged > 0


def test_news_are_what_came_since_and_a_line_that_is_being_written_comes_later(
    tmp_path: Path,
) -> None:
    journal, other = Journal(tmp_path), Journal(tmp_path)
    other.add(ONE)
    assert list(journal.read()) == [ONE]
    assert list(journal.read(news=True)) == []
    other.add(TWO)
    written = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(written[:-5])
    assert list(journal.read(news=True)) == []
    (tmp_path / NAME).write_bytes(written)
    assert list(journal.read(news=True)) == [TWO]
    assert list(journal.read(news=True)) == []


def test_a_cut_file_gives_what_is_before_the_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(ONE)
    whole = (tmp_path / NAME).read_bytes()
    journal.add(TWO)
    both = (tmp_path / NAME).read_bytes()
    for length in range(len(whole), len(both) - 1):
        (tmp_path / NAME).write_bytes(both[:length])
        assert list(Journal(tmp_path).read()) == [ONE]


def test_fields_of_later_versions_do_not_matter(tmp_path: Path) -> None:
    line = json.dumps({"version": 1} | asdict(ONE) | {"mood": "good"})
    (tmp_path / NAME).write_text(line + "\n")
    assert list(Journal(tmp_path).read()) == [ONE]


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(OutputError, match="cannot read"):
        list(Journal(tmp_path).read())
    with pytest.raises(OutputError, match="cannot write"):
        Journal(tmp_path).add(ONE)
    with pytest.raises(OutputError, match="cannot write"):
        Journal(tmp_path / "missing").add(ONE)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_or_a_device_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / NAME)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it is opened"))
    with pytest.raises(OutputError, match="is a pipe or a device"):
        list(Journal(tmp_path).read())


def test_a_line_that_a_full_disk_takes_a_part_of_is_not_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, write, left = Journal(tmp_path), os.write, [20]
    journal.add(ONE)

    def until_full(handle: int, data: bytes) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: left.pop()])

    monkeypatch.setattr(os, "write", until_full)
    with pytest.raises(OutputError, match="No space left"):
        journal.add(ONE)
    monkeypatch.undo()
    journal.add(TWO)  # on a line of its own
    assert list(journal.read()) == [ONE, TWO]
    assert journal.damaged == 1
