"""Processes do files from one queue; one that dies, or a device that fails, stops no other."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from drivers import files, left_by_a_killed
from works import WAIT, Acting, fail_between_files, tries

from imgmlp import child
from imgmlp.batch.pool import MAX_FAILURES, Pool, run_here
from imgmlp.batch.work import Record, Task
from imgmlp.errors import OutOfMemoryError

TWO = ("numpy", "numpy:procedure")  # names alone: these works open no device


def run(tasks: Sequence[Task], devices: Sequence[str] = TWO) -> tuple[list[Record], list[str]]:
    notes: list[str] = []
    pool = Pool(Acting(), devices, notes.append)
    records = list(pool.run(iter(tasks), lambda: False, lambda: None))
    return sorted(records, key=lambda record: record.task.source), notes


def test_files_are_shared_out_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    records, notes = run(files(tmp_path, "good", "bad", "fault", "good", "good"))
    assert [record.problem is None for record in records] == [True, False, False, True, True]
    assert (records[1].problem, records[1].hint, records[1].exit_code) == (
        "no picture",
        "give another",
        3,
    )
    assert "unexpected ZeroDivisionError" in (records[2].problem or "")
    assert "works.py" in records[2].trace
    assert {record.device for record in records} == set(TWO)
    assert notes == []


def test_processes_keep_to_their_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.child.available_cores", lambda: 6)
    before = dict(os.environ)
    monkeypatch.setattr("imgmlp.batch.pool.list_devices", list)  # no driver is there
    for devices, share in ((["0:0"] * 3, "1"), (TWO, "3"), (["auto"], "6")):
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        before.pop("OPENBLAS_NUM_THREADS", None)
        records, _ = run(files(tmp_path, "threads", "threads"), devices)
        assert [record.problem for record in records] == [share] * 2
    assert dict(os.environ) == before
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    assert run(files(tmp_path, "threads"), TWO)[0][0].problem == "5"


def test_of_several_processes_none_has_others_compile_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(child.COMPILERS_VARIABLE)
    for devices, told in ((TWO, "0"), (["numpy"], "as usual")):
        records, _ = run(files(tmp_path, "compilers"), devices)
        assert [record.problem for record in records] == [told]
    assert child.COMPILERS_VARIABLE not in os.environ
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "5")
    assert run(files(tmp_path, "compilers"), TWO)[0][0].problem == "5"


def test_a_fault_of_a_process_itself_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    process = multiprocessing.get_context("spawn").Process(target=fail_between_files)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["pool.ProcessPoolExecutor", "pool._SPAWN.RawArray"])
def test_a_system_that_has_no_room_for_so_many_processes_is_told(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"imgmlp.batch.{place}", refuse)
    with pytest.raises(OutOfMemoryError, match="processes: Too many open files") as caught:
        run(files(tmp_path, "good"))
    assert "fewer --jobs" in caught.value.hint


def test_a_working_folder_that_was_removed_is_no_lack_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")  # of os.getcwd

    monkeypatch.setattr("imgmlp.batch.pool._SPAWN.RawArray", refuse)
    with pytest.raises(FileNotFoundError):
        run(files(tmp_path, "good"))


def test_files_are_begun_in_their_order(tmp_path: Path) -> None:
    pool = Pool(Acting(), ["numpy"], print)
    tasks = files(tmp_path, "good", "good", "good")
    records = pool.run(iter(tasks[::-1]), lambda: False, lambda: None)
    assert [record.task for record in records] == tasks[::-1]


def test_a_process_that_dies_is_noticed_and_its_file_tried_once_more(tmp_path: Path) -> None:
    tasks = files(tmp_path, "good", "die once", "die", "good", "good", "good")
    records, _ = run(tasks)
    assert [record.problem is None for record in records] == [True, True, False, True, True, True]
    assert "died" in (records[2].problem or "")
    assert [tries(task.source) for task in tasks] == [1, 2, 2, 1, 1, 1]


def test_where_there_is_one_process_it_is_started_anew(tmp_path: Path) -> None:
    records, _ = run(files(tmp_path, "die once", "die", "good"), ["numpy"])
    assert [record.problem is None for record in records] == [True, False, True]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_process_that_dies_without_a_file_is_started_anew(tmp_path: Path) -> None:
    first, second = files(tmp_path, "good", "good")

    def tasks() -> Iterator[Task]:
        """The second only once nothing is left of the process that did the first."""
        yield first
        (left,) = tmp_path.glob("0.try*")
        process, deadline = int(left.name.split("-")[1]), time.monotonic() + 60
        os.kill(process, signal.SIGKILL)
        while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield second

    records = list(Pool(Acting(), ["numpy"], print).run(tasks(), lambda: False, lambda: None))
    assert [record.problem for record in records] == [None, None]
    assert tries(second.source) == 1


def test_a_device_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    tasks = files(tmp_path, "no device once", "no device once", "good")
    records, _ = run(tasks)
    assert [record.problem for record in records] == [None] * 3
    tasks = files(tmp_path, *["no device"] * (MAX_FAILURES + 2))
    for left in tmp_path.glob("*.try*"):
        left.unlink()
    records, notes = run(tasks, ["numpy"])
    assert len(records) < len(tasks)  # the others are left for when there is a device
    assert {record.exit_code for record in records} == {6}
    assert len(notes) == 1
    assert "was given up: it is gone" in notes[0]


def test_files_that_end_their_process_keep_no_other_from_being_done(tmp_path: Path) -> None:
    tasks = files(tmp_path, *["die"] * (MAX_FAILURES - 1), "good", "good")
    records, notes = run(tasks, ["numpy"])
    assert [record.problem is None for record in records] == [False] * (MAX_FAILURES - 1) + [
        True
    ] * 2
    assert [tries(task.source) for task in tasks] == [2] * (MAX_FAILURES - 1) + [1] * 2
    assert notes == []


def test_a_second_end_with_the_same_file_does_not_speak_against_a_place(tmp_path: Path) -> None:
    """However many there are in a row, as all that failed come last."""
    tasks = files(tmp_path, *["die", "good"] * (MAX_FAILURES + 1))
    _, notes = run(tasks, ["numpy"])
    assert [tries(task.source) for task in tasks] == [2, 1] * (MAX_FAILURES + 1)
    assert notes == []


def test_where_no_process_is_left_all_files_that_ended_one_are_told(tmp_path: Path) -> None:
    tasks = files(tmp_path, *["die"] * (MAX_FAILURES + 1))
    records, notes = run(tasks, ["numpy"])
    assert [record.task for record in records] == tasks[:MAX_FAILURES]  # the other was not begun
    assert all("died" in (record.problem or "") for record in records)
    assert len(notes) == 1


def test_a_full_disk_ends_the_run(tmp_path: Path) -> None:
    records, _ = run(files(tmp_path, "full", "good", "good"), ["numpy"])
    assert [record.disk_full for record in records] == [True]


def test_a_request_to_stop_reaches_the_processes(tmp_path: Path) -> None:
    tasks = files(tmp_path, "wait", "wait", "good")
    pool = Pool(Acting(), TWO, print)

    def begun() -> bool:
        return all(tries(task.source) for task in tasks[:2])

    records = list(pool.run(iter(tasks), begun, lambda: None))
    assert [record.interrupted for record in records] == [True, True]
    assert tries(tasks[2].source) == 0


def test_a_request_to_stop_ends_at_once_what_only_compiles(tmp_path: Path) -> None:
    tasks = files(tmp_path, "compile", "good")
    pool = Pool(Acting(), ["numpy"], print)

    def begun() -> bool:
        return bool(tries(tasks[0].source))

    records = list(pool.run(iter(tasks), begun, lambda: None))
    assert [record.interrupted for record in records] == [True]
    assert tries(tasks[1].source) == 0


def test_what_processes_are_doing_can_be_seen(tmp_path: Path) -> None:
    pool = Pool(Acting(), TWO, print)
    seen: set[tuple[str, str]] = set()

    def look() -> None:
        seen.update((seat.device, seat.file) for seat in pool.seats())

    tasks = files(tmp_path, "wait", "wait")
    list(pool.run(iter(tasks), lambda: len(seen) >= 2, look))
    assert {("numpy", "0"), ("numpy:procedure", "1")} <= seen
    assert [seat.file for seat in pool.seats()] == ["", ""]


DRIVER = """
import sys
from pathlib import Path
from imgmlp.batch.pool import Pool
from imgmlp.batch.work import Task
from works import Acting
if __name__ == "__main__":
    tasks = [Task(Path(name)) for name in sys.argv[1:]]
    pool = Pool(Acting(), ["numpy"] * len(tasks), print)
    list(pool.run(iter(tasks), lambda: False, lambda: None))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    assert left_by_a_killed(DRIVER, files(tmp_path, "wait", "wait")) == []


@pytest.mark.parametrize("contents", [("no device", "good"), ("full", "good")])
def test_one_process_ends_where_all_others_would_fail(
    tmp_path: Path, contents: tuple[str, ...]
) -> None:
    class Silent:
        def note(self, text: str) -> None: ...

        announce = note

        def stopping(self) -> bool:
            return False

    records = run_here(Acting(), iter(files(tmp_path, *contents)), "numpy", Silent())  # type: ignore[arg-type]
    assert len(list(records)) == 1
