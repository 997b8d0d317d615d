"""What a run over folders has done stays done, and what others have done is left to them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folder_runs import ALL, LOSSLESS, NAMES, Here, Quiet, Shown, encode, lines, made, make_tree
from PIL import Image

from imgmlp import output_files
from imgmlp.batch import encode as batch_encode
from imgmlp.batch import pool as pools
from imgmlp.batch.encode import EncodeFile
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.journal import NAME
from imgmlp.batch.plan import FAILED, Plan
from imgmlp.batch.pool import run_here
from imgmlp.batch.work import Record, Task
from imgmlp.cli import folders, run_report
from imgmlp.codec import encoder
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.training.checkpoint import Checkpoint, Snapshot
from imgmlp.errors import DeviceError, Interrupted, OutputError, TargetError, UsageError
from imgmlp.output_files import digest
from imgmlp.terminal import Terminal


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_tree(tmp_path, monkeypatch)


def test_a_second_run_opens_no_device(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    assert encode(tree) == 0
    capsys.readouterr()
    monkeypatch.setattr(folders.devices, "named", lambda *_: pytest.fail("devices are looked for"))
    monkeypatch.setattr(pools, "open_device", lambda *_: pytest.fail("a device is opened"))
    before = {name: Path("out", name).stat().st_mtime_ns for name in ALL | {NAME}}
    assert encode(tree, as_json=True) == 0
    shown = lines(capsys)
    assert all(entry["unchanged"] and entry["bytes"] for entry in shown.values())
    assert {name: Path("out", name).stat().st_mtime_ns for name in before} == before


def test_a_picture_that_changed_is_encoded_again(tree: Path, capsys: Shown) -> None:
    assert encode(tree) == 0
    Image.new("RGB", (8, 8), (99, 99, 99)).save(tree / "a.png")
    before = Path("out/a.imlp").read_bytes()
    assert encode(tree) == 0
    assert Path("out/a.imlp").read_bytes() != before
    assert "2 files done before" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_what_somebody_writes_while_it_is_encoded_stays(
    tree: Path, there: bool, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """Whether an output of an earlier run was there, which was to be replaced, or nothing."""
    if there:
        assert encode(tree) == 0
    encode_picture = encoder.encode

    def meanwhile(*arguments: Any) -> Encoded:
        Path("out/a.imlp").write_bytes(b"mine")
        return encode_picture(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", meanwhile)
        capsys.readouterr()
        assert encode(tree, options=EncodeOptions(psnr=41)) == 1
    assert Path("out/a.imlp").read_bytes() == b"mine"
    told = capsys.readouterr().err
    assert ("a.imlp has changed since" if there else "a.imlp exists already") in told
    assert "2 files done, 1 failed" in told
    assert encode(tree, options=EncodeOptions(psnr=41)) == 1  # nor later
    assert Path("out/a.imlp").read_bytes() == b"mine"
    assert encode(tree, options=EncodeOptions(psnr=41), force=True) == 0
    assert made() == ALL


@pytest.mark.parametrize(("options", "code"), [(LOSSLESS, 0), (EncodeOptions(size="10"), 1)])
def test_what_the_same_command_does_meanwhile_has_not_failed(
    tree: Path, options: EncodeOptions, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    """It is done, or has missed its target, by whichever of them."""
    encode_picture, turns = encoder.encode, []

    def meanwhile(*arguments: Any) -> Encoded:
        turns.append(arguments)
        if len(turns) == 1:
            assert encode(tree, options=options) == code
            capsys.readouterr()
        return encode_picture(*arguments)

    monkeypatch.setattr(encoder, "encode", meanwhile)
    assert encode(tree, options=options) == code
    told = capsys.readouterr().err
    assert ("3 files done", "0 files done, 3 missed the target")[code] in told
    assert told.count("done by another run") == (2, 0)[code]
    assert made() == ALL


def test_of_two_that_encode_one_picture_the_second_keeps_what_the_first_wrote(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As workers do of which one seemed to be lost; what they make may differ."""
    encode_picture, turns = encoder.encode, []

    def slow(*arguments: Any) -> Encoded:
        turns.append(arguments)
        if len(turns) == 1:
            (first,) = run_here(EncodeFile(LOSSLESS), iter([task]), "numpy", Quiet())
            assert first.problem is None
            return replace(encode_picture(*arguments), bytes=b"others")
        return encode_picture(*arguments)

    monkeypatch.setattr(encoder, "encode", slow)
    task = Task(tree / "a.png", Path("out/a.imlp"))
    (second,) = run_here(EncodeFile(LOSSLESS), iter([task]), "numpy", Quiet())
    assert len(turns) == 2
    assert (second.problem, second.made) == (None, digest(Path("out/a.imlp")))
    assert Path("out/a.imlp").read_bytes() != b"others"


def test_what_nobody_remembers_is_replaced_only_if_forced(tree: Path, capsys: Shown) -> None:
    Path("out").mkdir()
    Path("out/a.imlp").write_bytes(b"mine")
    assert encode(tree) == 1
    assert "a.imlp exists already" in capsys.readouterr().err
    assert encode(tree, skip=True) == 0
    assert Path("out/a.imlp").read_bytes() == b"mine"
    assert encode(tree, force=True) == 0
    assert Path("out/a.imlp").read_bytes().startswith(b"\x89IML")
    assert made() == ALL
    with pytest.raises(UsageError, match="--skip-existing"):
        encode(tree, force=True, skip=True)


@pytest.mark.parametrize("written", [True, False])
def test_a_kill_before_the_journal_is_no_loss(
    tree: Path, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file has its name already or not: it is not encoded once more."""
    shutil.rmtree(tree / "sub")
    (tree / "b.png").unlink()
    write = output_files.write_atomically
    with monkeypatch.context() as patch:

        def killed(*arguments: Any) -> None:
            if written:
                write(*arguments)
            raise KeyboardInterrupt

        patch.setattr(output_files, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            encode(tree)
    assert Path("out/a.imlp").exists() == written
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("it is encoded again"))
    assert encode(tree) == 0
    assert made() == {"a.imlp"}
    assert encode(tree, as_json=True) == 0


@pytest.mark.parametrize("remembered", [True, False])
def test_a_kill_before_hidden_files_are_removed_leaves_none_for_good(
    tree: Path, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the output was remembered before that or not: states of the training go as well."""
    encode_picture = encoder.encode

    def with_state(*arguments: Any) -> Encoded:
        arguments[4].save(Snapshot({}, {}))
        return encode_picture(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", with_state)
        for module in (batch_encode, run_report):
            patch.setattr(module, "forget", lambda _: None)
        if not remembered:
            patch.setattr(Plan, "remember", lambda *_: None)
        assert encode(tree) == 0
    assert len(made()) == 9
    Path("out/.b.imlp.01234567.checkpoint").write_bytes(b"another run's")
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("it is encoded again"))
    assert encode(tree) == 0
    assert made() == ALL | {".b.imlp.01234567.checkpoint"}


def test_what_other_settings_left_goes_with_what_they_made(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (batch_encode, run_report):
            patch.setattr(module, "forget", lambda _: None)
        assert encode(tree) == 0
    assert len(made()) == 6
    assert encode(tree, options=EncodeOptions(psnr=41)) == 0
    assert made() == ALL


def test_a_hidden_file_of_other_bytes_than_the_output_stays(tree: Path) -> None:
    assert encode(tree) == 0
    Checkpoint(Path("out/.a.imlp.01234567.checkpoint"), "0").save(Snapshot.of_result(b"own", {}))
    assert encode(tree) == 0
    assert made() == ALL | {".a.imlp.01234567.checkpoint"}


def test_what_another_run_left_beside_an_output_that_is_as_it_was_goes_once_it_is_old(
    tree: Path,
) -> None:
    """As of two that made it at once, where the second wrote nothing."""
    assert encode(tree) == 0
    names = [f".{letter}.imlp.01234567.checkpoint" for letter in "ab"]
    for name in names:
        Checkpoint(Path("out", name), "0").save(Snapshot.of_result(b"other", {}))
    os.utime(Path("out", names[0]), (1, 1))
    assert encode(tree) == 0
    assert made() == ALL | {names[1]}


def test_an_interrupted_run_goes_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember, seen = Plan.remember, []

    def pressed(plan: Plan, record: Record) -> None:
        remember(plan, record)
        seen.append(record)
        os.kill(os.getpid(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "remember", pressed)
        with pytest.raises(Interrupted, match="2 files left"):
            encode(tree)
    assert len(made()) == 1
    assert encode(tree) == 0
    assert made() == ALL


def test_while_the_only_file_is_compiled_for_a_signal_ends_it_at_once(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[1:]:
        (tree / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", lambda *_: os.kill(os.getpid(), 2))
        with pytest.raises(KeyboardInterrupt):
            encode(tree)
    assert not made() & ALL
    assert encode(tree) == 0


def test_a_run_that_is_stopped_leaves_the_list_that_it_was_given(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:2]:
        (tree / name).write_bytes(b"no picture")
    assert encode(tree) == 1
    before = Path("out", FAILED).read_bytes()
    for name in NAMES[:2]:
        Image.new("RGB", (8, 8)).save(tree / name)
    add_processed = folders.RunReport.add_processed

    def interrupted(report: folders.RunReport, record: Record) -> None:
        add_processed(report, record)
        os.kill(os.getpid(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(folders.RunReport, "add_processed", interrupted)
        with pytest.raises(Interrupted, match="1 file left"):
            encode(tree, files_from=Path("out", FAILED))
    assert Path("out", FAILED).read_bytes() == before
    assert encode(tree, files_from=Path("out", FAILED)) == 0
    assert made() == ALL


def test_where_no_device_is_left_those_that_failed_are_listed_and_come_last(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    class Failing(Here):
        def run(self, *arguments: Any) -> Iterator[Record]:
            yield next(super().run(*arguments))

    for name in NAMES[1:]:
        (tree / name).write_bytes((tree / name).read_bytes()[:45])  # no more than its size
    with monkeypatch.context() as patch:
        patch.setattr(folders, "Pool", Failing)
        with pytest.raises(DeviceError, match="2 files left"):
            encode(tree)
        assert Path("out", FAILED).read_text() == "in/sub/c.png\n"
        with pytest.raises(DeviceError, match="2 files left"):
            encode(tree)
    assert Path("out", FAILED).read_text() == "in/b.png\nin/sub/c.png\n"
    assert "--files-from" not in capsys.readouterr().err
    assert encode(tree) == 1
    assert made() == {"a.imlp", FAILED}
    assert "--files-from" in capsys.readouterr().err


def test_a_full_disk_ends_the_run_and_loses_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    write, writes = output_files.write_atomically, []

    def full(path: Path, *more: Any) -> None:
        writes.append(path)
        if len(writes) > 1:
            raise OutputError("cannot write") from OSError(28, "No space left on device")
        write(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(output_files, "write_atomically", full)
        with pytest.raises(OutputError, match="the disk is full: 1 file left"):
            encode(tree, as_json=True)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["exit_code"] == OutputError.exit_code
    assert len(writes) == 2  # not one for each file of a million
    assert sum(name.endswith(".imlp") for name in made()) == 1
    assert encode(tree) == 0
    assert made() == ALL


@pytest.mark.parametrize(
    ("short", "code"),
    [({"missed": "99 bytes instead of 9"}, TargetError.exit_code), ({"diverged": True}, 1)],
)
@pytest.mark.parametrize("several", [True, False])
def test_a_missed_target_is_remembered_and_told_each_time(
    tree: Path,
    several: bool,
    short: dict[str, Any],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Shown,
) -> None:
    encode_picture = encoder.encode

    def missed(*arguments: Any) -> Encoded:
        return replace(encode_picture(*arguments), **short)

    monkeypatch.setattr(encoder, "encode", missed)
    sources = tree if several else tree / "a.png"
    count, code = (3, 1) if several else (1, code)
    assert encode(sources) == code
    told = capsys.readouterr().err
    assert ("3 missed the target" in told) == several
    assert "--files-from" not in told
    assert encode(sources, as_json=True) == code
    shown = capsys.readouterr()
    files = "1 file" if count == 1 else f"{count} files"
    assert f"{files} done before missed the target" in shown.err
    assert ("a file of this picture cannot be smaller" in shown.err) == ("missed" in short)
    assert "instead of" not in shown.err
    for line in map(json.loads, shown.out.splitlines()):
        assert line["unchanged"]
        assert line["problem"]
        assert short.items() <= line.items()
    monkeypatch.setattr(Terminal, "note", lambda *_: None)  # as with -q
    assert encode(sources) == code  # which is never without a word
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {files} done before missed")


def test_what_others_left_is_removed_once_it_is_old(tree: Path) -> None:
    names = [f"out/.a.imlp.{number}1234567.checkpoint" for number in (0, 1)]
    Path("out").mkdir()
    for name in names:
        Path(name).touch()
    os.utime(names[0], (1, 1))
    assert encode(tree) == 0
    assert [Path(name).exists() for name in names] == [False, True]
