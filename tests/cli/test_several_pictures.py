"""`imgmlp encode a b c`: what is done stays done, and one picture does not stop the others."""

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
    """Three pictures that take a moment to encode."""
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    for turn, path in enumerate(paths):
        Image.fromarray(np.roll(small_pixels()[:9, :9], turn, axis=0)).save(path)
    return paths


class Counted:
    """The encoder, which counts its pictures and asks to stop in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_in: int = 0) -> None:
        self.pictures, self.stop_in, self.encode = 0, stop_in, encoder.encode
        monkeypatch.setattr(encoder, "encode", self)

    def __call__(self, *arguments: Any) -> Encoded:
        self.pictures += 1
        if self.pictures == self.stop_in:
            arguments[4].stopping()  # as training asks: before that the command ends at once
            signal.raise_signal(signal.SIGINT)
        return self.encode(*arguments)


def run(sources: list[Path], codec: Codec = "mlp", as_json: bool = False, **outputs: Any) -> int:
    options = EncodeOptions(lmbda=0.01, effort=1, codec=codec)
    request = Request(sources, device="numpy", as_json=as_json)
    return encoding.run(Terminal(), request, Outputs(**outputs), options)


def test_a_time_limit_counts_from_when_the_command_began_and_then_from_each_picture(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock: where others keep the processor busy, Python takes seconds to start."""
    moments, encode = list[float](), encoder.encode

    def noted(*arguments: Any) -> Encoded:
        moments.append(arguments[4].began)
        return encode(*arguments)

    monkeypatch.setattr(encoder, "encode", noted)
    now, options = time.perf_counter(), EncodeOptions(lmbda=0.01, time="1s", codec="latent")
    request = Request(three[:2], device="numpy")
    assert encoding.run(Terminal(now - 50), request, Outputs(), options) == 0
    assert moments[0] == now - 50
    assert moments[1] > now


def interrupted(
    monkeypatch: pytest.MonkeyPatch, sources: list[Path], codec: Codec = "mlp", **outputs: Any
) -> None:
    """Stop the command in its third picture."""
    with monkeypatch.context() as patch:
        Counted(patch, stop_in=3)
        with pytest.raises(Interrupted, match="stopped after"):
            run(sources, codec, **outputs)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".checkpoint")


@CODECS
@pytest.mark.parametrize("force", [False, True])
def test_the_same_command_passes_over_what_it_has_done(
    three: list[Path],
    codec: Codec,
    force: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = three[0].parent
    interrupted(monkeypatch, three, codec, force=force)
    before = {name: (folder / name).read_bytes() for name in ("a.imlp", "b.imlp")}
    times = {name: (folder / name).stat().st_mtime_ns for name in before}
    assert not (folder / "c.imlp").exists()
    capsys.readouterr()
    counted = Counted(monkeypatch)
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
    assert left(folder) == []  # and what is done is forgotten: it is the user's
    assert run(three[:1], codec) == OutputError.exit_code


def test_what_others_have_written_since_is_not_passed_over(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = three[0].parent
    interrupted(monkeypatch, three)
    ours = (folder / "b.imlp").read_bytes()
    (folder / "a.imlp").write_bytes(b"mine")
    (folder / "b.imlp").unlink()
    counted = Counted(monkeypatch)
    assert run(three) == 1
    assert "a.imlp exists already" in capsys.readouterr().err
    assert (folder / "a.imlp").read_bytes() == b"mine"
    assert (folder / "b.imlp").read_bytes() == ours  # without training it once more
    assert counted.pictures == 1


def test_other_settings_or_pictures_are_not_passed_over(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(monkeypatch, three)
    before = [path.with_suffix(".imlp").read_bytes() for path in three[:2]]
    Image.fromarray(255 - small_pixels()[:9, :9]).save(three[0])
    options = EncodeOptions(lmbda=0.02, effort=1)
    request = Request(three[1:2], device="numpy")
    assert encoding.run(Terminal(), request, Outputs(), options) == 8
    assert run(three) == 1  # a is another picture; b and c are as they were
    told = capsys.readouterr().err
    assert told.count("a.imlp exists already") == 1
    assert told.count("b.imlp exists already") == 1  # with the other lambda
    assert [path.with_suffix(".imlp").read_bytes() for path in three[:2]] == before


def test_a_file_that_appears_meanwhile_is_kept_and_so_is_the_work(
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
    counted = Counted(monkeypatch)
    assert run(three[:1], force=True) == 0
    assert counted.pictures == 0
    assert path.read_bytes().startswith(b"\x89IML")
    assert left(path.parent) == []


def test_a_kill_between_the_file_and_the_end_is_no_loss(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file has its name already or not."""
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
            counted = Counted(patch)
            assert run(three[:1]) == 0
            assert counted.pictures == 0
        assert left(path.parent) == []
        path.unlink()


def test_a_device_that_fails_ends_the_command_and_loses_nothing(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode, seen = encoder.encode, []

    def broken(*arguments: Any) -> Encoded:
        seen.append(arguments)
        if len(seen) == 2:
            raise DeviceError("it is gone")
        return encode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", broken)
        assert run(three, as_json=True) == DeviceError.exit_code
    assert len(seen) == 2
    shown = capsys.readouterr()
    assert shown.err.count("it is gone") == 1
    problems = [one["problem"] for one in json.loads(shown.out)]
    assert problems == [None, "it is gone", "not done"]
    counted = Counted(monkeypatch)
    assert run(three) == 0
    assert counted.pictures == 2
    assert left(three[0].parent) == []


def test_of_what_ctrl_c_ends_json_says_so(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any) -> Encoded:
        raise KeyboardInterrupt  # as before there is anything to save

    monkeypatch.setattr(encoder, "encode", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(three, as_json=True)
    first, *others = json.loads(capsys.readouterr().out)
    assert problem_of(KeyboardInterrupt()).facts().items() <= first.items()
    assert [one["problem"] for one in others] == ["not done"] * 2


def test_a_fault_in_one_picture_does_not_stop_the_others(
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


def test_one_existing_or_missing_file_does_not_stop_the_others(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = three
    b.unlink()
    a.with_suffix(".imlp").write_bytes(b"mine")
    assert run(three, as_json=True) == 1
    shown = capsys.readouterr()
    one, two, three_ = json.loads(shown.out)
    assert (one["exit_code"], two["exit_code"], three_["problem"]) == (8, 2, None)
    assert "--png" not in one["hint"]
    assert c.with_suffix(".imlp").exists()
    assert a.with_suffix(".imlp").read_bytes() == b"mine"
    told = shown.err.splitlines()
    assert [line for line in told if "error:" in line] == told[0:4:2]  # before any work


def test_the_same_command_passes_over_what_it_has_done_before_an_error(
    three: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until there is a file of each picture, whatever the others have; of others it takes none."""
    a, b, c = (path.with_suffix(".imlp") for path in three)
    kept = three[2].read_bytes()
    three[2].unlink()
    assert run(three) == 1
    assert "skips the files that it has written" in capsys.readouterr().err
    ours = a.read_bytes()
    b.write_bytes(b"mine")
    second = a.with_name(f".{a.name}.01234567.tmp")  # which a kill may leave just then
    second.hardlink_to(a)
    counted = Counted(monkeypatch)
    assert run(three) == 1
    assert (counted.pictures, second.exists()) == (0, False)
    told = capsys.readouterr().err
    assert told.count("done before") == told.count("b.imlp exists already") == 1
    assert (a.read_bytes(), b.read_bytes()) == (ours, b"mine")
    b.unlink()
    three[2].write_bytes(kept)
    assert run(three) == 0
    assert counted.pictures == 1  # c: b was made once already
    assert c.exists()
    assert "skips" not in capsys.readouterr().err
    assert left(a.parent) == []
    assert run(three) == 1  # they are the user's now
    assert capsys.readouterr().err.count("exists already") == 3


def test_a_missed_target_leaves_nothing_to_go_on_with(three: list[Path]) -> None:
    options = EncodeOptions(size="50", effort=1, codec="mlp")
    assert encoding.run(Terminal(), Request(three[:2], device="numpy"), Outputs(), options) == 1
    assert all(path.with_suffix(".imlp").exists() for path in three[:2])
    assert left(three[0].parent) == []


def test_pictures_of_one_output_do_not_stop_the_others(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has it, also where one picture is named twice."""
    same = three[0].with_suffix(".bmp")
    Image.open(three[0]).save(same)
    assert run([three[0], same, three[1], three[1]], as_json=True) == 1
    said = capsys.readouterr()
    first, second, third, fourth = (entry["problem"] for entry in json.loads(said.out))
    assert first is third is None
    taken = three[0].with_suffix(".imlp")
    assert second == f"{three[0]} and {same} would both be written to {taken}"
    assert fourth == f"{three[1]} is given twice"
    assert "-o and another name" in said.err


def test_existing_files_can_be_skipped(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    three[0].with_suffix(".imlp").write_bytes(b"mine")
    assert run(three, as_json=True, skip=True) == 0
    one, two, _ = json.loads(capsys.readouterr().out)
    assert one["skipped"]
    assert one["problem"] is None
    assert "skipped" not in two
    assert three[0].with_suffix(".imlp").read_bytes() == b"mine"
    with pytest.raises(UsageError, match="--skip-existing"):
        run(three, force=True, skip=True)


def test_skipping_leaves_no_state_of_what_was_done(
    three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, three, skip=True)
    assert len(left(three[0].parent)) >= 2
    assert run(three, skip=True) == 0
    assert left(three[0].parent) == []


def test_files_go_into_a_folder(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert run(three[:1], folder=folder) == 0  # which is made
    assert run(three[:1], folder=folder) == 0
    assert "1 file done before" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    before = (folder / "a.imlp").read_bytes()
    same = three[2].rename(other / "a.png")
    assert run([three[0], same], folder=folder, force=True) == 1
    assert f"of {same}, would overwrite another file" in capsys.readouterr().err
    assert (folder / "a.imlp").read_bytes() == before  # not of whichever came last
    assert run([same], folder=folder) == OutputError.exit_code
    assert (folder / "a.imlp").read_bytes() == before
    with pytest.raises(UsageError, match="--out"):
        run(three[1:], folder=folder, file=tmp_path / "x.imlp")


def test_a_compressed_file_is_told_from_a_picture(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(three[:1]) == 0
    capsys.readouterr()
    compact = three[0].with_suffix(".imlp")
    before = compact.read_bytes()
    assert run([compact, three[1]]) == 1
    told = capsys.readouterr().err
    assert "a.imlp is compressed already" in told
    assert "imgmlp decode" in told
    assert run([compact], force=True) == 3
    assert compact.read_bytes() == before
    picture = three[2].rename(three[2].with_suffix(".imlp"))
    before = picture.read_bytes()
    assert run([picture], force=True) == OutputError.exit_code  # not over the picture itself
    assert picture.read_bytes() == before
