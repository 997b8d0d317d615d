"""Output files: old or new and never in between, and nothing left beside them."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from conftest import environment

from imgmlp import output_files
from imgmlp.errors import OutputError

# Writes half of a file, says so, and waits to be killed.
HALF = """
import sys, time
from imgmlp.output_files import write_atomically
def write(stream):
    stream.write(b"half")
    stream.flush()
    print("here", flush=True)
    time.sleep(60)
write_atomically(sys.argv[1], write)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is open")
def test_nothing_is_removed_or_renamed_that_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which Windows refuses; it has no fcntl either."""

    def checked(method: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path, *rest: Any, **named: Any) -> object:
            opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
            assert os.path.realpath(path) not in opened, f"{path} is open"
            return method(path, *rest, **named)

        return call

    monkeypatch.setattr(output_files, "fcntl", None)
    for name in ("unlink", "replace", "rename"):
        monkeypatch.setattr(Path, name, checked(getattr(Path, name)))
    path = tmp_path / "a"
    for replaces in (False, True):
        output_files.check_output(path, replaces)
        output_files.write_atomically(path, lambda stream: stream.write(b"new"), replaces)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a longer old content")
    output_files.write_atomically(path, lambda stream: stream.write(b"new"))
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "a", list[tuple[int, bool]]()

    def synced(handle: int) -> None:
        seen.append((os.fstat(handle).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", synced)
    output_files.write_atomically(path, lambda stream: stream.write(b"new"))
    assert seen[0] == (3, False)


def test_a_file_that_came_meanwhile_has_the_name_that_was_given(tmp_path: Path) -> None:
    whole, link = tmp_path / "whole", tmp_path / "link"
    link.symlink_to(whole)

    def meanwhile(_: BinaryIO) -> None:
        whole.write_bytes(b"mine")

    with pytest.raises(OutputError, match="link exists already"):
        output_files.write_atomically(link, meanwhile, replace=False)
    assert whole.read_bytes() == b"mine"


def test_a_file_is_announced_before_it_takes_its_name(tmp_path: Path) -> None:
    path, told = tmp_path / "a", list[tuple[str, bool]]()

    def announce(digest: str) -> None:
        told.append((digest, path.exists()))

    output_files.write_atomically(path, lambda stream: stream.write(b"new"), True, announce)
    assert told == [(output_files.digest(path), False)]


def test_a_file_that_another_process_took_for_a_dead_ones_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its opening and its lock."""
    lock, taken = output_files._lock, list[Path]()

    def late(stream: BinaryIO) -> None:
        if not taken:
            taken.append(Path(stream.name))
            output_files.remove_leftovers(tmp_path / "a")
            assert not taken[0].exists()
        lock(stream)

    monkeypatch.setattr(output_files, "_lock", late)
    output_files.write_atomically(tmp_path / "a", lambda stream: stream.write(b"new"))
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"new")]


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions here")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_who_may_read_a_file_may_read_the_one_that_replaces_it(tmp_path: Path, mode: int) -> None:
    """And nobody else, at any time."""
    path, seen = tmp_path / "a", list[int]()
    path.write_bytes(b"old")
    path.chmod(mode)

    def write(stream: BinaryIO) -> None:
        seen.append(stat.S_IMODE(os.fstat(stream.fileno()).st_mode))

    output_files.write_atomically(path, write)
    assert [*seen, stat.S_IMODE(path.stat().st_mode)] == [mode, mode]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write(stream: io.BufferedWriter) -> None:
        stream.write(b"half")
        raise error

    with pytest.raises(OutputError if error is OSError else error):
        output_files.write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_as_soon_as_a_file_is_there_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def interrupted(path: Path, mode: str) -> None:
        opened(path, mode).close()
        assert path.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output_files.write_atomically(tmp_path / "a", lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    output_files.write_atomically(tmp_path / "a", lambda stream: stream.write(b"x"))
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_symbolic_link_still_points_to_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    output_files.write_atomically(link, lambda stream: stream.write(b"new"))
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("links", ["supported", "refused", "unknown"])
def test_a_file_that_came_meanwhile_stays_unless_it_may_be_replaced(
    tmp_path: Path, links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if links == "refused":  # as by some file systems
        monkeypatch.setattr("os.link", refuse)
    elif links == "unknown":  # as to some builds of Python
        monkeypatch.delattr("os.link")
    path = tmp_path / "a"
    output_files.write_atomically(path, lambda stream: stream.write(b"new"), replace=False)
    assert path.read_bytes() == b"new"
    with pytest.raises(OutputError, match="a exists already"):
        output_files.write_atomically(path, lambda stream: stream.write(b"x"), replace=False)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_the_same_bytes_may_be_there_by_then(tmp_path: Path) -> None:
    """Of the same command, given twice at once, the later one has nothing left to do."""
    path = tmp_path / "a"
    path.write_bytes(b"same")
    output_files.write_atomically(path, lambda stream: stream.write(b"same"), replace=False)
    assert path.read_bytes() == b"same"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match="a exists already"):
        output_files.write_atomically(path, lambda stream: stream.write(b"sam"), replace=False)


def test_a_full_device_is_an_output_error() -> None:
    with pytest.raises(OutputError, match="No space left"):
        output_files.write_atomically("/dev/full", lambda stream: stream.write(b"x"))
    assert Path("/dev/full").is_char_device()


def test_outputs_are_checked_before_they_are_needed(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"old")
    for path, reason in (
        (old, "exists"),
        (tmp_path, "folder"),
        (tmp_path / "missing" / "a", "no folder"),
        (old / "a", "no folder"),
        (Path("/proc/a"), "cannot write"),
        (tmp_path / ("a" * 300), "cannot write"),
    ):
        with pytest.raises(OutputError, match=reason):
            output_files.check_output(path, force=False)
    assert old.read_bytes() == b"old"


def test_nothing_is_made_beside_a_device_to_see_whether_it_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        output_files, "_temporary_beside", lambda path: pytest.fail(f"beside {path}")
    )
    output_files.check_output(Path("/dev/null"), force=False)


def test_a_name_that_is_too_long_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 256)
    for check in (output_files.check_output, output_files.check_free):
        with pytest.raises(OutputError, match="too long") as raised:
            check(path, force=True)
        assert raised.value.hint == "choose a shorter name"


def test_force_allows_an_existing_file_but_no_folder(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"old")
    output_files.check_output(old, force=True)
    with pytest.raises(OutputError):
        output_files.check_output(tmp_path, force=True)
    assert old.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [old]


def half_written(path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing a file."""
    command = [sys.executable, "-c", HALF, str(path)]
    run = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "here\n"
    return run


@pytest.mark.parametrize("check", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, check: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    (tmp_path / ".a.notes.tmp").write_bytes(b"someone else's")
    run = half_written(path)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert len(list(tmp_path.iterdir())) == 3
    if check:
        output_files.check_output(path, force=True)
    else:
        output_files.write_atomically(path, lambda stream: stream.write(b"old"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.notes.tmp", "a"]
    assert path.read_bytes() == b"old"


def test_a_folder_of_many_files_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But what was left there is removed, and where a file has two names it is looked for anew."""
    for name in (".a.01234567.tmp", ".b.01234567.tmp", "c", "d"):
        (tmp_path / name).write_bytes(b"left")
    listed, listing = list[object](), os.listdir

    def counted(folder: Path) -> list[str]:
        listed.append(folder)
        return listing(folder)

    monkeypatch.setattr(os, "listdir", counted)
    for most, times in ((10, 4), (3, 1)):
        monkeypatch.setattr(output_files, "LARGE_FOLDER_FILES", most)
        for name in "cd":
            output_files.check_output(tmp_path / name, force=True)
            output_files.write_atomically(tmp_path / name, lambda stream: stream.write(b"new"))
        assert len(listed) == times
        listed.clear()
    for name in "ab":
        output_files.write_atomically(tmp_path / name, lambda stream: stream.write(b"new"))
    assert listed == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "d"]
    left = tmp_path / ".a.76543210.tmp"
    left.hardlink_to(tmp_path / "a")
    output_files.remove_second_name(tmp_path / "a")
    assert not left.exists()


def test_a_second_name_is_beside_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    whole, link = tmp_path / "there" / "a.imlp", tmp_path / "link.imlp"
    whole.write_bytes(b"whole")
    link.symlink_to(whole)
    left = whole.with_name(".a.imlp.01234567.tmp")
    left.hardlink_to(whole)
    with pytest.raises(OutputError, match="exists already"):
        output_files.check_free(link, force=False)
    assert not left.exists()
    assert link.read_bytes() == b"whole"


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    run = half_written(path)
    try:
        output_files.write_atomically(path, lambda stream: stream.write(b"new"))
        assert path.read_bytes() == b"new"
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        run.kill()
        run.communicate()


def test_without_locks_files_are_written_and_nothing_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    left = tmp_path / ".a.0123abcd.tmp"
    left.write_bytes(b"who knows")
    monkeypatch.setattr("fcntl.flock", refuse)
    output_files.write_atomically(tmp_path / "a", lambda stream: stream.write(b"new"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert left.exists()


def test_a_link_that_leads_to_itself_is_an_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.symlink_to(path)
    with pytest.raises(OutputError, match="Too many levels of symbolic links"):
        output_files.write_atomically(path, lambda stream: stream.write(b"new"))
    assert path.is_symlink()
    assert list(tmp_path.iterdir()) == [path]
    output_files.check_distinct([tmp_path / "b"], [path], "")


@pytest.mark.parametrize(("goal", "why"), [("loop", "symbolic links"), ("no/x", "No such file")])
def test_a_link_that_leads_nowhere_is_refused_before_anything_is_made(
    tmp_path: Path, goal: str, why: str
) -> None:
    link = tmp_path / "loop"
    link.symlink_to(tmp_path / goal)
    with pytest.raises(OutputError, match=why):
        output_files.check_output(link, force=False)
    link.unlink()
    link.symlink_to(tmp_path / "new")  # a name that a file may take
    output_files.check_output(link, force=False)
    assert list(tmp_path.iterdir()) == [link]


def test_what_is_announced_is_read_from_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the rights of what was there before, which may keep its owner from opening it."""
    path, told = tmp_path / "a", list[str]()
    path.write_bytes(b"old")
    path.chmod(0o200)

    def refused(path: Path) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(output_files, "digest", refused)
    output_files.write_atomically(path, lambda stream: stream.write(b"new"), True, told.append)
    assert stat.S_IMODE(path.stat().st_mode) == 0o200
    assert told == [hashlib.sha256(b"new").hexdigest()]
