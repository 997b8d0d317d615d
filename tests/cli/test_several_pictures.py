"""`imgmlp encode a b c`: reruns skip finished pictures; one failure does not stop the others."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import small_pixels
from PIL import Image

from imgmlp import output_files
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.cli import encode as encoding
from imgmlp.cli.encode import Outputs
from imgmlp.cli.folders import Request
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import Encoded
from imgmlp.errors import DeviceError, Interrupted, OutputError, UsageError, problem_of
from imgmlp.terminal import Terminal

CODECS = pytest.mark.parametrize("codec", get_args(Codec))


@pytest.fixture
def three(tmp_path: Path, brief: None) -> list[Path]:
    """Three pictures that encode quickly."""
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    for turn, path in enumerate(paths):
        Image.fromarray(np.roll(small_pixels()[:9, :9], turn, axis=0)).save(path)
    return paths


class CountingEncoder:
    """An encoder that counts its pictures and sends SIGINT in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_in: int = 0) -> None:
        self.pictures, self.stop_in, self.encode = 0, stop_in, encoder.encode
        monkeypatch.setattr(encoder, "encode", self)

    def __call__(self, *arguments: Any) -> Encoded:
        self.pictures += 1
        if self.pictures == self.stop_in:
            arguments[4].stopping()  # as training polls; without a poll the command ends at once
            signal.raise_signal(signal.SIGINT)
        return self.encode(*arguments)


def run(sources: list[Path], codec: Codec = "mlp", as_json: bool = False, **outputs: Any) -> int:
    options = EncodeOptions(lmbda=0.01, effort=1, codec=codec)
    request = Request(sources, device="numpy", as_json=as_json)
    return encoding.run(Terminal(), request, Outputs(**outputs), options)


def test_time_limit_counts_from_process_start_then_from_each_picture(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, Python may take seconds to start."""
    starts, encode = list[float](), encoder.encode

    def noted(*arguments: Any) -> Encoded:
        starts.append(arguments[4].began)
        return encode(*arguments)

    monkeypatch.setattr(encoder, "encode", noted)
    now, options = time.perf_counter(), EncodeOptions(lmbda=0.01, time="1s", codec="latent")
    request = Request(three[:2], device="numpy")
    assert encoding.run(Terminal(now - 50), request, Outputs(), options) == 0
    assert starts[0] == now - 50
    assert starts[1] > now


def interrupt_third_picture(
    monkeypatch: pytest.MonkeyPatch, sources: list[Path], codec: Codec = "mlp", **outputs: Any
) -> None:
    """Interrupt the command in its third picture."""
    with monkeypatch.context() as patch:
        CountingEncoder(patch, stop_in=3)
        with pytest.raises(Interrupted, match="stopped after"):
            run(sources, codec, **outputs)


def checkpoint_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".checkpoint")


@CODECS
@pytest.mark.parametrize("force", [False, True])
def test_rerun_skips_finished_pictures(
    three: list[Path],
    codec: Codec,
    force: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = three[0].parent
    interrupt_third_picture(monkeypatch, three, codec, force=force)
    before = {name: (folder / name).read_bytes() for name in ("a.imlp", "b.imlp")}
    times = {name: (folder / name).stat().st_mtime_ns for name in before}
    assert not (folder / "c.imlp").exists()
    capsys.readouterr()
    counted = CountingEncoder(monkeypatch)
    assert run(three, codec, as_json=True, force=force) == 0
    assert counted.pictures == 1  # c alone
    shown = capsys.readouterr()
    assert shown.err.count("done before") == 2
    assert "continuing after" in shown.err
    facts = json.loads(shown.out)
    assert [one["bytes"] for one in facts[:2]] == [len(data) for data in before.values()]
    for name, data in before.items():
        assert (folder / name).read_bytes() == data
        assert (folder / name).stat().st_mtime_ns == times[name]
    assert checkpoint_names(folder) == []  # once all are done, outputs belong to the user
    assert run(three[:1], codec) == OutputError.exit_code


def test_rerun_keeps_files_that_others_have_written_since(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = three[0].parent
    interrupt_third_picture(monkeypatch, three)
    ours = (folder / "b.imlp").read_bytes()
    (folder / "a.imlp").write_bytes(b"mine")
    (folder / "b.imlp").unlink()
    counted = CountingEncoder(monkeypatch)
    assert run(three) == 1
    assert "a.imlp exists already" in capsys.readouterr().err
    assert (folder / "a.imlp").read_bytes() == b"mine"
    assert (folder / "b.imlp").read_bytes() == ours  # without another training
    assert counted.pictures == 1


def test_rerun_with_other_settings_or_pictures_does_not_skip(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_third_picture(monkeypatch, three)
    before = [path.with_suffix(".imlp").read_bytes() for path in three[:2]]
    Image.fromarray(255 - small_pixels()[:9, :9]).save(three[0])
    options = EncodeOptions(lmbda=0.02, effort=1)
    request = Request(three[1:2], device="numpy")
    assert encoding.run(Terminal(), request, Outputs(), options) == 8
    assert run(three) == 1  # a is another picture; b and c are as they were
    stderr = capsys.readouterr().err
    assert stderr.count("a.imlp exists already") == 1
    assert stderr.count("b.imlp exists already") == 1  # with the other lambda
    assert [path.with_suffix(".imlp").read_bytes() for path in three[:2]] == before


def test_output_that_appears_during_encoding_is_kept_and_so_is_the_result(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = three[0].with_suffix(".imlp")
    with monkeypatch.context() as patch:
        encode = encoder.encode

        def slow(*arguments: Any) -> Encoded:
            path.write_bytes(b"mine")
            return encode(*arguments)

        patch.setattr(encoder, "encode", slow)
        assert run(three[:1]) == OutputError.exit_code
    assert path.read_bytes() == b"mine"
    counted = CountingEncoder(monkeypatch)
    assert run(three[:1], force=True) == 0
    assert counted.pictures == 0
    assert path.read_bytes().startswith(b"\x89IML")
    assert checkpoint_names(path.parent) == []


def test_kill_after_or_before_writing_the_file_loses_no_result(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after or before the file has its final name."""
    path = three[0].with_suffix(".imlp")
    for written in (True, False):
        with monkeypatch.context() as patch:
            write = output_files.write_atomically

            def killed(*arguments: Any, write: Any = write, written: bool = written) -> None:
                if written:
                    write(*arguments)
                raise KeyboardInterrupt

            patch.setattr(output_files, "write_atomically", killed)
            with pytest.raises(KeyboardInterrupt):
                run(three[:1])
        assert path.exists() == written
        with monkeypatch.context() as patch:
            counted = CountingEncoder(patch)
            assert run(three[:1]) == 0
            assert counted.pictures == 0
        assert checkpoint_names(path.parent) == []
        path.unlink()


def test_device_error_ends_the_command_but_keeps_finished_pictures(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode, calls = encoder.encode, []

    def broken(*arguments: Any) -> Encoded:
        calls.append(arguments)
        if len(calls) == 2:
            raise DeviceError("it is gone")
        return encode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", broken)
        assert run(three, as_json=True) == DeviceError.exit_code
    assert len(calls) == 2
    shown = capsys.readouterr()
    assert shown.err.count("it is gone") == 1
    problems = [one["problem"] for one in json.loads(shown.out)]
    assert problems == [None, "it is gone", "not done"]
    counted = CountingEncoder(monkeypatch)
    assert run(three) == 0
    assert counted.pictures == 2
    assert checkpoint_names(three[0].parent) == []


def test_json_reports_the_picture_that_ctrl_c_interrupted(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any) -> Encoded:
        raise KeyboardInterrupt  # as before the first step

    monkeypatch.setattr(encoder, "encode", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(three, as_json=True)
    first, *others = json.loads(capsys.readouterr().out)
    assert problem_of(KeyboardInterrupt()).facts().items() <= first.items()
    assert [one["problem"] for one in others] == ["not done"] * 2


def test_unexpected_exception_in_one_picture_does_not_stop_the_others(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode = encoder.encode

    def broken(*arguments: Any) -> Encoded:
        monkeypatch.setattr(encoder, "encode", encode)
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(encoder, "encode", broken)
    assert run(three, as_json=True) == 1
    first, *others = json.loads(capsys.readouterr().out)
    assert first["problem"] == "unexpected ZeroDivisionError: a fault"
    assert "please report it" in first["hint"]
    assert [one["problem"] for one in others] == [None, None]
    assert [path.with_suffix(".imlp").exists() for path in three] == [False, True, True]


def test_existing_output_or_missing_source_does_not_stop_the_others(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = three
    b.unlink()
    a.with_suffix(".imlp").write_bytes(b"mine")
    assert run(three, as_json=True) == 1
    shown = capsys.readouterr()
    entry_a, entry_b, entry_c = json.loads(shown.out)
    assert (entry_a["exit_code"], entry_b["exit_code"], entry_c["problem"]) == (8, 2, None)
    assert "--png" not in entry_a["hint"]
    assert c.with_suffix(".imlp").exists()
    assert a.with_suffix(".imlp").read_bytes() == b"mine"
    stderr_lines = shown.err.splitlines()
    assert [line for line in stderr_lines if "error:" in line] == stderr_lines[
        0:4:2
    ]  # before any work


def test_rerun_after_an_error_skips_finished_pictures(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until every picture has a file. Files of other programs are not replaced."""
    a, b, c = (path.with_suffix(".imlp") for path in three)
    content_of_c = three[2].read_bytes()
    three[2].unlink()
    assert run(three) == 1
    assert "skips the files that it has written" in capsys.readouterr().err
    ours = a.read_bytes()
    b.write_bytes(b"mine")
    temporary = a.with_name(f".{a.name}.01234567.tmp")  # a second name that a kill may leave
    temporary.hardlink_to(a)
    counted = CountingEncoder(monkeypatch)
    assert run(three) == 1
    assert (counted.pictures, temporary.exists()) == (0, False)
    stderr = capsys.readouterr().err
    assert stderr.count("done before") == stderr.count("b.imlp exists already") == 1
    assert (a.read_bytes(), b.read_bytes()) == (ours, b"mine")
    b.unlink()
    three[2].write_bytes(content_of_c)
    assert run(three) == 0
    assert counted.pictures == 1  # c: b was made once already
    assert c.exists()
    assert "skips" not in capsys.readouterr().err
    assert checkpoint_names(a.parent) == []
    assert run(three) == 1  # the outputs belong to the user now
    assert capsys.readouterr().err.count("exists already") == 3


def test_missed_target_leaves_no_checkpoint(three: list[Path]) -> None:
    options = EncodeOptions(size="50", effort=1, codec="mlp")
    assert encoding.run(Terminal(), Request(three[:2], device="numpy"), Outputs(), options) == 1
    assert all(path.with_suffix(".imlp").exists() for path in three[:2])
    assert checkpoint_names(three[0].parent) == []


def test_pictures_with_the_same_output_do_not_stop_the_others(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of them is encoded, also if one picture is named twice."""
    other = three[0].with_suffix(".bmp")
    Image.open(three[0]).save(other)
    assert run([three[0], other, three[1], three[1]], as_json=True) == 1
    printed = capsys.readouterr()
    first, second, third, fourth = (entry["problem"] for entry in json.loads(printed.out))
    assert first is third is None
    output = three[0].with_suffix(".imlp")
    assert second == f"{three[0]} and {other} would both be written to {output}"
    assert fourth == f"{three[1]} is given twice"
    assert "-o and another name" in printed.err


def test_skip_existing_skips_existing_files(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    three[0].with_suffix(".imlp").write_bytes(b"mine")
    assert run(three, as_json=True, skip=True) == 0
    skipped, encoded, _ = json.loads(capsys.readouterr().out)
    assert skipped["skipped"]
    assert skipped["problem"] is None
    assert "skipped" not in encoded
    assert three[0].with_suffix(".imlp").read_bytes() == b"mine"
    with pytest.raises(UsageError, match="--skip-existing"):
        run(three, force=True, skip=True)


def test_skip_existing_leaves_no_checkpoints(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_third_picture(monkeypatch, three, skip=True)
    assert len(checkpoint_names(three[0].parent)) >= 2
    assert run(three, skip=True) == 0
    assert checkpoint_names(three[0].parent) == []


def test_out_option_writes_into_a_folder(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert run(three[:1], folder=folder) == 0  # the folder is created
    assert run(three[:1], folder=folder) == 0
    assert "1 file done before" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    before = (folder / "a.imlp").read_bytes()
    same_name = three[2].rename(other / "a.png")
    assert run([three[0], same_name], folder=folder, force=True) == 1
    assert f"of {same_name}, would overwrite another file" in capsys.readouterr().err
    assert (folder / "a.imlp").read_bytes() == before  # not replaced by the last one
    assert run([same_name], folder=folder) == OutputError.exit_code
    assert (folder / "a.imlp").read_bytes() == before
    with pytest.raises(UsageError, match="--out"):
        run(three[1:], folder=folder, file=tmp_path / "x.imlp")


def test_encoding_an_imlp_file_is_refused(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(three[:1]) == 0
    capsys.readouterr()
    compact = three[0].with_suffix(".imlp")
    before = compact.read_bytes()
    assert run([compact, three[1]]) == 1
    stderr = capsys.readouterr().err
    assert "a.imlp is compressed already" in stderr
    assert "imgmlp decode" in stderr
    assert run([compact], force=True) == 3
    assert compact.read_bytes() == before
    picture = three[2].rename(three[2].with_suffix(".imlp"))
    before = picture.read_bytes()
    assert run([picture], force=True) == OutputError.exit_code  # the output would be the source
    assert picture.read_bytes() == before
