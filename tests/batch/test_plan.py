"""What is done and unchanged needs no work; whatever else is there is never lost."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from conftest import stops_after

from imgmlp.batch import journal as journals
from imgmlp.batch import plan as planning
from imgmlp.batch.encode import status_and_digest
from imgmlp.batch.find import Found, Search, names_in
from imgmlp.batch.plan import FAILED, Plan, Rules
from imgmlp.batch.work import Record, Task
from imgmlp.errors import OutputError, TrainingError
from imgmlp.output_files import digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inputs = tmp_path / "in"
    inputs.mkdir()
    for turn, name in enumerate(("a.png", "b.png", "c.png")):
        (inputs / name).write_bytes(name.encode() * (turn + 1))
    return inputs


def planned(folder: Path, settings: str = "s", **choices: bool) -> tuple[Plan, list[Record]]:
    rules = Rules(
        folder.parent / "out",
        lambda name: name.with_suffix(".out"),
        settings,
        weigh=lambda path: path.stat().st_size,
        **choices,
    )
    plan = Plan(rules)
    return plan, list(plan.make(Search({".png", ".jpg"}).find([folder])))


def work(plan: Plan) -> list[str]:
    """Do what is to be done; the sources' names, in order."""
    names = []
    for task in plan.tasks():
        assert task.output is not None
        task.output.parent.mkdir(exist_ok=True)
        task.output.write_bytes(task.source.read_bytes()[::-1])
        record = Record(task, {"figure": 1}, written=True)
        record.source_status, record.digest = status_and_digest(task.source)
        record.made = digest(task.output)
        plan.remember(record)
        names.append(task.source.name)
    return names


def may_replace(plan: Plan) -> list[tuple[bool, str]]:
    return [(task.replace, task.known) for task in plan.tasks()]


@pytest.fixture
def done(folder: Path) -> Path:
    plan, records = planned(folder)
    assert (records, plan.count, plan.weight) == ([], 3, 30)
    assert work(plan) == ["c.png", "b.png", "a.png"]  # the largest first
    return folder


def read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, whoever reads a file fails."""
    monkeypatch.setattr(planning, "digest", lambda path: pytest.fail(f"{path} is read"))


def test_a_second_run_has_nothing_to_do_and_reads_no_file(
    done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_no_more(monkeypatch)
    plan, records = planned(done)
    assert (plan.count, plan.unchanged) == (0, 3)
    assert all(record.facts == {"unchanged": True, "figure": 1} for record in records)
    for choices in ({"force": True}, {"skip": True}):
        assert planned(done, **choices)[0].unchanged == 3


@pytest.mark.parametrize("name", ["in/a.png", "out/a.out"])
def test_a_picture_or_an_output_with_another_time_is_read_once(
    done: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(done.parent / name, (1, 1))
    assert planned(done)[0].unchanged == 3
    read_no_more(monkeypatch)
    assert planned(done)[0].unchanged == 3


def test_a_tree_that_has_moved_is_still_done_and_may_be_done_again(done: Path) -> None:
    moved = done.rename(done.parent / "elsewhere")
    known = [digest(done.parent / "out" / f"{name}.out") for name in "cba"]
    assert [task.known for task in planned(moved, "t")[0].tasks()] == known
    assert planned(moved)[0].unchanged == 3


def test_a_picture_that_changed_is_done_again(done: Path) -> None:
    (done / "b.png").write_bytes(b"another")
    plan, _ = planned(done)
    (task,) = plan.tasks()
    old = digest(done.parent / "out" / "b.out")
    assert (task.source.name, task.replace, task.known) == ("b.png", False, old)
    assert work(plan) == ["b.png"]
    assert planned(done)[0].unchanged == 3


def test_other_settings_do_all_again(done: Path) -> None:
    plan, _ = planned(done, "t")
    known = [task.known == digest(task.output or Path()) for task in plan.tasks()]
    assert known == [True] * 3
    assert planned(done, "t", skip=True)[0].skipped == 3


def test_an_output_that_is_gone_is_made_again(done: Path) -> None:
    (done.parent / "out" / "a.out").unlink()
    plan, _ = planned(done)
    assert [task.source.name for task in plan.tasks()] == ["a.png"]


def test_an_output_that_somebody_changed_is_not_replaced(done: Path) -> None:
    (done.parent / "out" / "a.out").write_bytes(b"mine")
    assert may_replace(planned(done)[0]) == [(False, "")]
    assert may_replace(planned(done, force=True)[0]) == [(True, "")]
    plan, _ = planned(done, skip=True)
    assert (plan.count, plan.skipped, plan.unchanged) == (0, 1, 2)


def test_an_output_that_somebody_changed_before_it_was_remembered_is_not_known(done: Path) -> None:
    (done / "a.png").write_bytes(b"another")
    plan, _ = planned(done)
    (task,) = plan.tasks()
    assert task.output is not None
    task.output.write_bytes(b"mine")
    with pytest.raises(OutputError, match="has changed since"):
        plan.remember(Record(task, written=True, made=task.known))
    assert may_replace(planned(done)[0]) == [(False, "")]


def test_an_output_of_another_picture_is_not_replaced(done: Path) -> None:
    other = done.parent / "other"
    other.mkdir()
    (other / "a.png").write_bytes(b"a!png")  # as long as the first
    assert may_replace(planned(other)[0]) == [(False, "")]


def test_an_output_that_was_touched_or_copied_is_known(done: Path) -> None:
    os.utime(done.parent / "out" / "a.out", (1, 1))
    assert planned(done)[0].unchanged == 3


def test_of_two_inputs_with_one_output_one_is_taken_and_the_other_told(folder: Path) -> None:
    (folder / "a.jpg").write_bytes(b"a.jpg")
    plan, (refused,) = planned(folder)
    assert refused.exit_code == 8
    assert refused.task.source.name == "a.png"
    assert f"the output of {folder / 'a.png'}, would overwrite" in (refused.problem or "")
    assert sorted(work(plan)) == ["a.jpg", "b.png", "c.png"]


def test_a_newcomer_does_not_take_the_output_of_another(done: Path) -> None:
    """Whichever of them comes first."""
    (done / "a.jpg").write_bytes(b"a.jpg")
    plan, records = planned(done)
    assert (plan.count, plan.unchanged) == (0, 3)
    (refused,) = (record for record in records if record.problem)
    assert refused.task.source.name == "a.jpg"


def test_a_file_that_is_given_twice_is_done_once(folder: Path) -> None:
    plan = Plan(Rules(folder.parent / "out", lambda name: name.with_suffix(".out")))
    assert list(plan.make(Search({".png"}).find([folder, folder / "a.png"]))) == []
    assert plan.count == 3


def test_without_a_journal_nothing_is_lost(done: Path) -> None:
    (done.parent / "out" / journals.NAME).write_bytes(b"\0" * 1000)
    plan, _ = planned(done)
    assert plan.journal is not None
    assert plan.journal.damaged == 1
    assert may_replace(plan) == [(False, "")] * 3


def test_those_that_failed_are_listed_until_none_do(folder: Path) -> None:
    plan, _ = planned(folder)
    work(plan)
    assert plan.list_failed() is None
    names = [folder / "a.png", folder / os.fsdecode(b"\xff.png")]
    for name in names:
        plan.failed(name)
    path = plan.list_failed()
    assert path == folder.parent / "out" / FAILED
    assert path.read_bytes() == b"".join(os.fsencode(name) + b"\n" for name in names)
    plan.failed(folder / "two\nlines.png")
    plan.list_failed()
    assert path.read_bytes().count(b"\0") == 3
    plan, _ = planned(folder)
    plan.failed(folder / "a.png\r")
    plan.list_failed()
    assert list(names_in(path.read_bytes())) == [folder / "a.png\r"]
    assert planned(folder)[0].list_failed() is None
    assert not path.exists()


def listed(plan: Plan, *names: str, whole: bool = True) -> list[str]:
    """Those that the list names once these have failed."""
    for name in names:
        plan.failed(Path(name))
    path = plan.list_failed(whole)
    assert path is not None
    return path.read_text().splitlines()


def test_what_failed_in_the_run_before_comes_last(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    listed(planned(folder)[0], str(folder / "c.png"), str(folder / "b.png"))
    plan, _ = planned(folder)
    assert [task.source.name for task in plan.tasks()] == ["a.png", "c.png", "b.png"]
    (folder.parent / "out" / FAILED).write_text(f"{folder}/c.png\n")  # by somebody else
    plan, _ = planned(folder)
    assert [task.source.name for task in plan.tasks()] == ["c.png", "b.png", "a.png"]


def test_a_run_that_ends_early_only_adds_to_the_list(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    assert listed(planned(folder)[0], "a", "b", whole=False) == ["a", "b"]
    assert planned(folder)[0].list_failed(whole=False) is None
    assert listed(planned(folder)[0], "c", "b", whole=False) == ["c", "b", "a"]
    assert listed(planned(folder)[0], "c") == ["c"]


def test_what_failed_among_other_inputs_stays_listed_while_it_is_there(folder: Path) -> None:
    other, odd = folder.parent / "other.png", folder.parent / os.fsdecode(b"\xff.png")
    other.write_bytes(b"x")
    odd.write_bytes(b"x")
    path = folder.parent / "out" / FAILED
    path.parent.mkdir()
    names = [str(other), str(odd), str(folder / "a.png"), os.path.relpath(folder / "b.png")]
    first, _ = planned(folder)
    for name in names:
        first.failed(Path(name))
    first.list_failed()
    assert planned(folder)[0].list_failed() is None  # none failed of those that it looked at
    assert list(names_in(path.read_bytes())) == [other, odd]
    odd.unlink()
    assert listed(planned(folder)[0], str(folder / "a.png")) == [str(folder / "a.png"), str(other)]
    other.unlink()
    assert planned(folder)[0].list_failed() is None
    assert not path.exists()


def test_what_failed_in_a_store_stays_listed(folder: Path) -> None:
    """Nobody asks there whether it is gone."""
    stored, path = Path("s3:/bucket/c.png"), folder.parent / "out" / FAILED  # as pathlib has it
    path.parent.mkdir()
    first, _ = planned(folder)
    first.failed(stored)
    first.list_failed()
    assert planned(folder)[0].list_failed() is None
    assert list(names_in(path.read_bytes())) == [stored]


def test_what_another_run_does_meanwhile_is_done_and_its_list_stays(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    late, _ = planned(folder)
    tasks = {task.source.name: task for task in late.tasks()}
    first, _ = planned(folder)
    work(first)
    names = listed(first, str(folder / "b.png"))
    refused = Record(tasks["a.png"])
    refused.fail(OutputError("it exists already"))
    done = late.recheck_output(refused)
    assert (done.written, done.facts, done.problem) == (True, {"figure": 1}, None)
    assert done.made == digest(folder.parent / "out" / "a.out")
    failed = Record(tasks["b.png"])
    failed.fail(TrainingError("it diverged", hint="try another"))  # which is no matter of outputs
    assert late.recheck_output(failed) is failed
    (folder.parent / "out" / "c.out").write_bytes(b"somebody else's")
    other = Record(tasks["c.png"])
    other.fail(OutputError("it exists already"))
    assert late.recheck_output(other) is other
    assert late.list_failed() is None
    assert (folder.parent / "out" / FAILED).read_text().splitlines() == names


def test_a_list_that_somebody_else_wrote_stays(folder: Path) -> None:
    path = folder.parent / "out" / FAILED
    path.parent.mkdir()
    path.write_text("mine")
    assert planned(folder)[0].list_failed() is None  # none failed
    plan, _ = planned(folder)
    plan.failed(folder / "a.png")
    with pytest.raises(OutputError, match="exists already"):
        plan.list_failed()
    assert path.read_text() == "mine"
    path.unlink()
    assert plan.list_failed() == path
    path.write_text("mine")  # also over one of ours
    assert planned(folder)[0].list_failed() is None
    plan, _ = planned(folder)
    plan.failed(folder / "a.png")
    with pytest.raises(OutputError, match="has changed since"):
        plan.list_failed()
    assert path.read_text() == "mine"
    plan, _ = planned(folder, force=True)
    plan.failed(folder / "a.png")
    assert plan.list_failed() == path


def test_of_outputs_in_a_store_nothing_is_asked_of_this_machine() -> None:
    """Where a key's name may be none that a file can have."""
    names = ("a.png", "a.jpg", "b\0.png")
    files = [Found(Path("s3://bucket/in", name), Path(name)) for name in names]
    out = Path("s3://bucket/out")
    plan = Plan(Rules(out, lambda name: name.with_suffix(".out"), journal=False))
    (refused,) = plan.make(files)
    assert refused.problem == (
        "s3://bucket/out/a.out, the output of s3://bucket/in/a.png, would overwrite another file "
        "of this run: s3://bucket/in/a.jpg"
    )
    assert [task.source.name for task in plan.tasks()] == ["a.jpg", "b\0.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_that_has_the_lists_name_is_not_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "out").mkdir()
    os.mkfifo(folder.parent / "out" / FAILED)
    for name in ("digest", "write_atomically"):
        monkeypatch.setattr(planning, name, lambda *_: pytest.fail("it is opened"))
    plan, _ = planned(folder)
    assert plan.list_failed() is None
    plan.failed(folder / "a.png")
    with pytest.raises(OutputError, match="is a pipe or a device"):
        plan.list_failed()


def test_where_nothing_is_written_everything_is_to_do(folder: Path) -> None:
    plan = Plan(Rules(None, Path))
    assert list(plan.make(Search({".png"}).find([folder]))) == []
    assert sorted(plan.tasks(), key=str) == sorted(
        (Task(path) for path in folder.iterdir()), key=str
    )


def test_a_file_that_cannot_be_read_stops_no_other(done: Path) -> None:
    (done / "a.png").unlink()
    found = [
        Found(done / "a.png", Path("a.png"), 5, 0),
        Found(done / "b.png", Path("b.png"), 0, 0),
    ]
    plan = Plan(Rules(done.parent / "out", lambda name: name.with_suffix(".out"), "s"))
    (refused,) = plan.make(iter(found))
    assert "cannot read" in (refused.problem or "")
    assert [task.source.name for task in plan.tasks()] == ["b.png"]


def test_a_picture_is_not_written_over_itself(folder: Path) -> None:
    (folder.parent / "out").mkdir()
    (folder / "a.png").rename(folder.parent / "out" / "a.out")
    rules = Rules(folder.parent / "out", lambda name: name.with_suffix(".out"), force=True)
    (refused,) = Plan(rules).make(Search(()).find([folder.parent / "out" / "a.out"]))
    assert "overwrite itself" in (refused.problem or "")


def test_files_of_one_name_are_no_matter_where_nothing_is_written(folder: Path) -> None:
    plan = Plan(Rules(None, Path))
    other = folder.parent / "other"
    other.mkdir()
    (other / "a.png").write_bytes(b"")
    assert list(plan.make(Search({".png"}).find([folder, other, folder]))) == []
    assert plan.count == 4


def test_a_full_disk_of_temporary_files_is_told(folder: Path) -> None:
    plan = Plan(Rules(None, Path))
    plan._data.execute("PRAGMA max_page_count = 1")  # no more than there are
    many = (Found(folder / str(number), Path()) for number in range(1000))
    with pytest.raises(OutputError, match="database or disk is full"):
        list(plan.make(many))


def test_it_is_told_as_well_where_those_that_failed_are_listed(folder: Path) -> None:
    plan, _ = planned(folder)
    work(plan)
    plan.failed(folder / "a.png")
    plan._data.execute("DROP TABLE done")  # as if it could not be read
    with pytest.raises(OutputError, match="no such table"):
        plan.list_failed()


def test_the_temporary_file_goes_with_the_plan() -> None:
    plan = Plan(Rules(None, Path))
    data = plan._data
    del plan
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        data.execute("SELECT 1")


@pytest.mark.parametrize("looks", range(4))
def test_a_request_to_stop_ends_the_planning(folder: Path, looks: int) -> None:
    """After so many looks: of three while files are found, and three while they are decided on."""
    plan, stopping = Plan(Rules(None, Path)), stops_after(looks)
    assert list(plan.make(Search({".png"}).find([folder]), stopping)) == []
    assert (plan.count, plan.whole) == (0, False)
    assert next(plan._data.execute("SELECT count(*) FROM found"))[0] == min(looks, 3)


def test_who_asks_to_stop_while_files_are_decided_on_hears_of_no_more(done: Path) -> None:
    plan = Plan(Rules(done.parent / "out", lambda name: name.with_suffix(".out"), "s"))
    records = list(plan.make(Search({".png"}).find([done]), stops_after(4)))
    assert len(records) == 1
    assert not plan.whole
