"""Repeated runs over folders: journal, checkpoints, and outputs of other programs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folder_runs import (
    ALL_OUTPUTS,
    LOSSLESS,
    NAMES,
    Captured,
    InProcessPool,
    SilentWatch,
    encode,
    json_entries,
    make_tree,
    output_names,
)
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


def test_second_run_of_an_unchanged_tree_opens_no_device(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert encode(tree) == 0
    capsys.readouterr()
    monkeypatch.setattr(folders.devices, "named", lambda *_: pytest.fail("devices are looked for"))
    monkeypatch.setattr(pools, "open_device", lambda *_: pytest.fail("a device is opened"))
    before = {name: Path("out", name).stat().st_mtime_ns for name in ALL_OUTPUTS | {NAME}}
    assert encode(tree, as_json=True) == 0
    shown = json_entries(capsys)
    assert all(entry["unchanged"] and entry["bytes"] for entry in shown.values())
    assert {name: Path("out", name).stat().st_mtime_ns for name in before} == before


def test_changed_picture_is_encoded_again(tree: Path, capsys: Captured) -> None:
    assert encode(tree) == 0
    Image.new("RGB", (8, 8), (99, 99, 99)).save(tree / "a.png")
    before = Path("out/a.imlp").read_bytes()
    assert encode(tree) == 0
    assert Path("out/a.imlp").read_bytes() != before
    assert "2 files done before" in capsys.readouterr().err


@pytest.mark.parametrize("has_output", [True, False])
def test_output_written_by_others_during_encoding_is_kept(
    tree: Path, has_output: bool, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """With and without an output of an earlier run, which is to be replaced."""
    if has_output:
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
    stderr = capsys.readouterr().err
    assert ("a.imlp has changed since" if has_output else "a.imlp exists already") in stderr
    assert "2 files done, 1 failed" in stderr
    assert encode(tree, options=EncodeOptions(psnr=41)) == 1  # nor in a later run
    assert Path("out/a.imlp").read_bytes() == b"mine"
    assert encode(tree, options=EncodeOptions(psnr=41), force=True) == 0
    assert output_names() == ALL_OUTPUTS


@pytest.mark.parametrize(("options", "code"), [(LOSSLESS, 0), (EncodeOptions(size="10"), 1)])
def test_outputs_of_a_concurrent_run_of_the_same_command_count_as_done(
    tree: Path, options: EncodeOptions, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """They count as done, or as having missed the target, whichever run wrote them."""
    encode_picture, turns = encoder.encode, []

    def meanwhile(*arguments: Any) -> Encoded:
        turns.append(arguments)
        if len(turns) == 1:
            assert encode(tree, options=options) == code
            capsys.readouterr()
        return encode_picture(*arguments)

    monkeypatch.setattr(encoder, "encode", meanwhile)
    assert encode(tree, options=options) == code
    stderr = capsys.readouterr().err
    assert ("3 files done", "0 files done, 3 missed the target")[code] in stderr
    assert stderr.count("done by another run") == (2, 0)[code]
    assert output_names() == ALL_OUTPUTS


def test_second_of_two_concurrent_encodings_keeps_the_first_output(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two workers do if one seemed to be lost; their files may differ."""
    encode_picture, turns = encoder.encode, []

    def slow(*arguments: Any) -> Encoded:
        turns.append(arguments)
        if len(turns) == 1:
            (first,) = run_here(EncodeFile(LOSSLESS), iter([task]), "numpy", SilentWatch())
            assert first.problem is None
            return replace(encode_picture(*arguments), bytes=b"others")
        return encode_picture(*arguments)

    monkeypatch.setattr(encoder, "encode", slow)
    task = Task(tree / "a.png", Path("out/a.imlp"))
    (second,) = run_here(EncodeFile(LOSSLESS), iter([task]), "numpy", SilentWatch())
    assert len(turns) == 2
    assert (second.problem, second.made) == (None, digest(Path("out/a.imlp")))
    assert Path("out/a.imlp").read_bytes() != b"others"


def test_outputs_missing_in_the_journal_are_replaced_only_with_force(
    tree: Path, capsys: Captured
) -> None:
    Path("out").mkdir()
    Path("out/a.imlp").write_bytes(b"mine")
    assert encode(tree) == 1
    assert "a.imlp exists already" in capsys.readouterr().err
    assert encode(tree, skip=True) == 0
    assert Path("out/a.imlp").read_bytes() == b"mine"
    assert encode(tree, force=True) == 0
    assert Path("out/a.imlp").read_bytes().startswith(b"\x89IML")
    assert output_names() == ALL_OUTPUTS
    with pytest.raises(UsageError, match="--skip-existing"):
        encode(tree, force=True, skip=True)


@pytest.mark.parametrize("written", [True, False])
def test_kill_before_the_journal_is_written_loses_no_result(
    tree: Path, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after or before the file has its name; it is not encoded again."""
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
    assert output_names() == {"a.imlp"}
    assert encode(tree, as_json=True) == 0


@pytest.mark.parametrize("is_in_journal", [True, False])
def test_checkpoints_left_by_a_kill_are_removed_by_the_next_run(
    tree: Path, is_in_journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the outputs in the journal. Checkpoints of training are removed as well."""
    encode_picture = encoder.encode

    def with_training_checkpoint(*arguments: Any) -> Encoded:
        arguments[4].save(Snapshot({}, {}))
        return encode_picture(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", with_training_checkpoint)
        for module in (batch_encode, run_report):
            patch.setattr(module, "forget", lambda _: None)
        if not is_in_journal:
            patch.setattr(Plan, "remember", lambda *_: None)
        assert encode(tree) == 0
    assert len(output_names()) == 9
    Path("out/.b.imlp.01234567.checkpoint").write_bytes(b"another run's")
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("it is encoded again"))
    assert encode(tree) == 0
    assert output_names() == ALL_OUTPUTS | {".b.imlp.01234567.checkpoint"}


def test_checkpoints_of_other_settings_are_removed_with_their_outputs(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for module in (batch_encode, run_report):
            patch.setattr(module, "forget", lambda _: None)
        assert encode(tree) == 0
    assert len(output_names()) == 6
    assert encode(tree, options=EncodeOptions(psnr=41)) == 0
    assert output_names() == ALL_OUTPUTS


def test_checkpoint_with_other_bytes_than_the_output_is_kept(tree: Path) -> None:
    assert encode(tree) == 0
    Checkpoint(Path("out/.a.imlp.01234567.checkpoint"), "0").save(Snapshot.of_result(b"own", {}))
    assert encode(tree) == 0
    assert output_names() == ALL_OUTPUTS | {".a.imlp.01234567.checkpoint"}


def test_old_checkpoints_of_other_runs_beside_unchanged_outputs_are_removed(
    tree: Path,
) -> None:
    """As after two concurrent runs, of which the second wrote no output."""
    assert encode(tree) == 0
    names = [f".{letter}.imlp.01234567.checkpoint" for letter in "ab"]
    for name in names:
        Checkpoint(Path("out", name), "0").save(Snapshot.of_result(b"other", {}))
    os.utime(Path("out", names[0]), (1, 1))
    assert encode(tree) == 0
    assert output_names() == ALL_OUTPUTS | {names[1]}


def test_interrupted_run_continues_with_remaining_files(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember, done = Plan.remember, []

    def remember_and_interrupt(plan: Plan, record: Record) -> None:
        remember(plan, record)
        done.append(record)
        os.kill(os.getpid(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "remember", remember_and_interrupt)
        with pytest.raises(Interrupted, match="2 files left"):
            encode(tree)
    assert len(output_names()) == 1
    assert encode(tree) == 0
    assert output_names() == ALL_OUTPUTS


def test_signal_before_training_of_the_only_file_interrupts_at_once(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[1:]:
        (tree / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", lambda *_: os.kill(os.getpid(), 2))
        with pytest.raises(KeyboardInterrupt):
            encode(tree)
    assert not output_names() & ALL_OUTPUTS
    assert encode(tree) == 0


def test_interrupted_run_keeps_the_list_of_failed_files(
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
    assert output_names() == ALL_OUTPUTS


def test_failed_files_are_listed_and_come_last_if_no_device_is_left(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    class Failing(InProcessPool):
        def run(self, *arguments: Any) -> Iterator[Record]:
            yield next(super().run(*arguments))

    for name in NAMES[1:]:
        (tree / name).write_bytes(
            (tree / name).read_bytes()[:45]
        )  # the header has the size, the pixels are cut off
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
    assert output_names() == {"a.imlp", FAILED}
    assert "--files-from" in capsys.readouterr().err


def test_full_disk_ends_the_run_and_keeps_finished_files(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
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
    assert len(writes) == 2  # not one for each remaining file
    assert sum(name.endswith(".imlp") for name in output_names()) == 1
    assert encode(tree) == 0
    assert output_names() == ALL_OUTPUTS


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"missed": "99 bytes instead of 9"}, TargetError.exit_code), ({"diverged": True}, 1)],
)
@pytest.mark.parametrize("is_tree", [True, False])
def test_missed_target_is_reported_by_every_run(
    tree: Path,
    is_tree: bool,
    changes: dict[str, Any],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    encode_picture = encoder.encode

    def missed(*arguments: Any) -> Encoded:
        return replace(encode_picture(*arguments), **changes)

    monkeypatch.setattr(encoder, "encode", missed)
    sources = tree if is_tree else tree / "a.png"
    count, code = (3, 1) if is_tree else (1, code)
    assert encode(sources) == code
    stderr = capsys.readouterr().err
    assert ("3 missed the target" in stderr) == is_tree
    assert "--files-from" not in stderr
    assert encode(sources, as_json=True) == code
    shown = capsys.readouterr()
    files = "1 file" if count == 1 else f"{count} files"
    assert f"{files} done before missed the target" in shown.err
    assert ("a file of this picture cannot be smaller" in shown.err) == ("missed" in changes)
    assert "instead of" not in shown.err
    for line in map(json.loads, shown.out.splitlines()):
        assert line["unchanged"]
        assert line["problem"]
        assert changes.items() <= line.items()
    monkeypatch.setattr(Terminal, "note", lambda *_: None)  # as with -q
    assert encode(sources) == code  # the exit code is always explained
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {files} done before missed")


def test_old_leftovers_of_other_runs_are_removed(tree: Path) -> None:
    names = [f"out/.a.imlp.{number}1234567.checkpoint" for number in (0, 1)]
    Path("out").mkdir()
    for name in names:
        Path(name).touch()
    os.utime(names[0], (1, 1))
    assert encode(tree) == 0
    assert [Path(name).exists() for name in names] == [False, True]
