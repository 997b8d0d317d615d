"""`imgmlp compare`: the page that compares imgmlp with other codecs, and resuming."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, small_pixels
from html_document import Document
from outputs import assert_error, names_beside
from PIL import Image

from imgmlp import output_files
from imgmlp.cli import compare
from imgmlp.cli.compare import CompareOptions
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.training import passes
from imgmlp.errors import DeviceError, Interrupted, OutputError, PictureError
from imgmlp.report import measure, metrics
from imgmlp.terminal import Terminal

RATES = (4.0, 8.0)


@pytest.fixture
def two(tmp_path: Path, brief: None) -> list[Path]:
    """Two pictures that encode quickly."""
    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for turn, path in enumerate(paths):
        Image.fromarray(np.roll(small_pixels()[:16, :16], turn, axis=0)).save(path)
    return paths


class CountingEncoder:
    """An encoder that counts its files and sends SIGINT in one of them.

    The signal comes after the first poll for stop requests if `is_polled`, else before.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, stop_in: int = 0, is_polled: bool = True
    ) -> None:
        self.files, self.stop_in, self.is_polled = 0, stop_in, is_polled
        self.encode = encoder.encode
        monkeypatch.setattr(encoder, "encode", self)

    def __call__(self, *arguments: Any) -> Encoded:
        self.files += 1
        if self.files == self.stop_in:
            assert not (self.is_polled and arguments[4].stopping())
            signal.raise_signal(signal.SIGINT)
        return self.encode(*arguments)


def run(
    sources: list[Path], codec: Codec = "mlp", force: bool = False, as_json: bool = False
) -> int:
    page, options = sources[0].parent / "report.html", CompareOptions(RATES, 1, codec)
    return compare.run(Terminal(), sources, page, options, "numpy", force, as_json)


def test_picture_too_large_for_a_codec_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted, wide = CountingEncoder(monkeypatch), tmp_path / "wide.png"
    Image.new("RGB", (16_384, 1)).save(wide)
    assert run([wide]) == PictureError.exit_code
    stderr = capsys.readouterr().err
    assert "has a side of 16,384 pixels, and WEBP at most 16,383" in stderr
    assert counted.files == 0


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_page_has_every_picture_at_every_rate(
    two: list[Path],
    codec: Codec,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    assert run(two, codec, as_json=True) == 0
    folder = two[0].parent
    assert {path.name for path in folder.iterdir()} == {"a.png", "b.png", "report.html"}
    document = Document((folder / "report.html").read_text("utf-8"))
    shown = document.text()
    assert f"codec {codec}, effort 1" in shown
    entries = json.loads(capsys.readouterr().out)
    assert [entry["file"] for entry in entries] == [str(path) for path in two]
    for entry in entries:
        assert entry["problem"] is None
        assert {one["codec"] for one in entry["files"]} == {"imgmlp", *compare.classic.CODECS}
        assert [one["rate"] for one in entry["files"]] == [*[4.0] * 6, *[8.0] * 6]
        for one in entry["files"]:
            assert one["bpp"] == pytest.approx(8 * one["bytes"] / 256)
            assert f"{one['bytes']:,}" in shown
            assert one["encode_seconds"] > 0
            assert one["decode_seconds"] > 0


def test_interrupted_compare_resumes_without_repeating_files(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        CountingEncoder(patch, stop_in=4)
        with pytest.raises(Interrupted, match="stopped after") as raised:
            run(two)
    assert "same command continues" in raised.value.hint
    assert not (two[0].parent / "report.html").exists()
    counted = CountingEncoder(monkeypatch)
    assert run(two) == 0
    assert counted.files == 1
    assert {path.name for path in two[0].parent.iterdir()} == {"a.png", "b.png", "report.html"}


def test_stop_request_is_polled_before_each_file_of_other_codecs(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_theirs, encoded_codecs = measure._theirs, list[str]()

    def stopping(key: str, *arguments: Any) -> measure.Result:
        encoded_codecs.append(key)
        if len(encoded_codecs) == 1:
            signal.raise_signal(signal.SIGINT)
        return encode_theirs(key, *arguments)

    monkeypatch.setattr(measure, "_theirs", stopping)
    with pytest.raises(Interrupted, match="at 4 bits per pixel"):
        run(two)
    assert len(encoded_codecs) == 1  # of five


def test_encode_seconds_of_a_resumed_training_include_the_earlier_run(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode = encoder.encode

    def resumed(*arguments: Any) -> Encoded:
        made = encode(*arguments)
        return replace(made, metrics=made.metrics | {"seconds": 1e6}, resumed=1)

    monkeypatch.setattr(encoder, "encode", resumed)
    assert run(two[:1], as_json=True) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    took = [one["encode_seconds"] for one in entry["files"] if one["codec"] == "imgmlp"]
    assert took == [1e6, 1e6]


def test_signal_before_training_interrupts_and_keeps_finished_files(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if earlier files were polled; these are kept."""
    with monkeypatch.context() as patch:
        CountingEncoder(patch, stop_in=4, is_polled=False)
        with pytest.raises(KeyboardInterrupt):
            run(two)
    counted = CountingEncoder(monkeypatch)
    assert run(two) == 0
    assert counted.files == 1


def test_failed_write_of_the_page_keeps_encoded_files(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON reports the error for each picture of the page."""
    write = output_files.write_atomically

    def full(path: Path, fill: Any, *_: Any) -> None:
        if path.name == "report.html":
            raise OutputError("cannot write report.html: disk full", hint="")
        write(path, fill)

    with monkeypatch.context() as patch:
        patch.setattr(output_files, "write_atomically", full)
        with pytest.raises(OutputError, match="disk full"):
            run([*two, two[0].parent / "gone.png"], as_json=True)
    entries = json.loads(capsys.readouterr().out)
    assert [entry["exit_code"] for entry in entries] == [8, 8, 2]
    assert entries[0]["problem"] == "cannot write report.html: disk full"
    assert entries[0]["files"]
    counted = CountingEncoder(monkeypatch)
    assert run(two) == 0
    assert counted.files == 0


def test_no_checkpoints_are_kept_beside_a_page_in_a_device_file(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    null = two[0].parent / "null"
    null.symlink_to("/dev/null")
    monkeypatch.setattr(compare.page, "render", lambda *_: pytest.fail("rendering fails"))
    with pytest.raises(pytest.fail.Exception):
        compare.run(Terminal(), two, null, CompareOptions(RATES, 1, "mlp"), "numpy", True, False)
    assert {path.name for path in null.parent.iterdir()} == {"a.png", "b.png", "null"}


def test_page_written_by_others_during_the_run_is_kept(
    two: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, render = two[0].parent / "report.html", compare.page.render

    def meanwhile(*arguments: Any) -> str:
        page.write_bytes(b"mine")
        return render(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(compare.page, "render", meanwhile)
        with pytest.raises(OutputError, match="exists already"):
            run(two)
    assert page.read_bytes() == b"mine"


def test_device_error_keeps_encoded_files(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted, count = CountingEncoder(monkeypatch), len(RATES)

    def fails(*arguments: Any) -> Encoded:
        if counted.files == count:
            raise DeviceError("it is gone")
        return counted(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", fails)
        assert run(two) == DeviceError.exit_code
    assert "what was encoded is kept: the same command continues" in capsys.readouterr().err
    assert not (two[0].parent / "report.html").exists()
    assert run(two) == 0
    assert counted.files == 2 * count


def test_failure_of_a_picture_midway_keeps_encoded_files(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of the picture before it, as the next page needs both."""
    counted, count = CountingEncoder(monkeypatch), len(RATES)

    def fails(*arguments: Any) -> Encoded:
        if counted.files == count + 1:
            raise PictureError("its second rate fails")
        return counted(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", fails)
        assert run(two) == 1
    assert "the same command with --force continues from there" in capsys.readouterr().err
    assert run(two, force=True) == 0
    assert counted.files == 2 * count
    assert {path.name for path in two[0].parent.iterdir()} == {"a.png", "b.png", "report.html"}


def test_kept_files_are_reported_if_all_pictures_fail_midway(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = CountingEncoder(monkeypatch)

    def fails(*arguments: Any) -> Encoded:
        if counted.files == 1:
            raise PictureError("its second rate fails")
        return counted(*arguments)

    monkeypatch.setattr(encoder, "encode", fails)
    assert run(two[:1]) == PictureError.exit_code
    assert "no page was written; what was encoded is kept" in capsys.readouterr().err
    assert len(list(two[0].parent.iterdir())) == 3  # with a checkpoint


def test_bad_picture_does_not_stop_the_others(
    two: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bad, clear = two[0].parent / "bad.png", two[0].parent / "clear.png"
    bad.write_bytes(b"no picture")
    Image.fromarray(small_pixels()).convert("RGBA").resize((9, 9)).save(clear)
    pixels = np.zeros((9, 9, 4), np.uint8)
    Image.fromarray(pixels).save(clear)
    assert run([bad, clear, two[0]]) == 1
    stderr = capsys.readouterr().err
    assert "not a picture" in stderr
    assert "transparent" in stderr
    document = Document((bad.parent / "report.html").read_text("utf-8"))
    assert [d["data-name"] for d in document.all("details")] == ["a"]


def test_picture_with_two_names_is_compared_once(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = two[0].with_name("link.png")
    link.symlink_to(two[0])
    counted = CountingEncoder(monkeypatch)
    assert run([two[0], link, two[0]], as_json=True) == 0
    assert counted.files == len(RATES)
    shown = capsys.readouterr()
    assert [entry["file"] for entry in json.loads(shown.out)] == [str(two[0])]
    assert shown.err.count("is given twice but compared once") == 2


def test_no_page_is_written_if_all_pictures_fail(in_process: Command, picture: Path) -> None:
    picture.write_bytes(b"no picture")
    done = in_process("compare", picture.name, check=3)
    assert_error(done.stderr, "not a picture")
    assert names_beside(picture) == set()


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("-o", "there.html"), 8, ("there.html exists already", "--force")),
        (("-o", "small.png"), 2, ("small.png", "ends with .html")),
        (("-o", "gone/a.html"), 8, ("no folder gone",)),
        (("--bpp", "0.5"), 2, ("a curve needs two rates", "several times")),
        (("--bpp", "0.5", "--bpp", "0"), 2, ("--bpp is 0.0",)),
        (("--effort", "10"), 2, ("--effort is 10",)),
        (("--codec", "png"), 2, ("png",)),
        (("--device", "9:9"), 6, ("9:9",)),
        (("missing.png",), 1, ("missing.png does not exist",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_of_compare_are_refused(
    in_process: Command,
    picture: Path,
    arguments: tuple[str, ...],
    code: int,
    parts: tuple[str, ...],
) -> None:
    (picture.parent / "there.html").write_text("somebody's")
    if code == 1:  # of several pictures; the other one is not encoded for this
        picture.unlink()
        code = 1
    done = in_process("compare", picture.name, *arguments, check=code)
    for part in parts:
        assert part in done.stderr
    assert (picture.parent / "there.html").read_text() == "somebody's"


@pytest.mark.parametrize("library", ["no_such_library", "a_broken_library"])
def test_missing_metrics_library_is_named(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    folder = two[0].parent
    (folder / "a_broken_library.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(metrics, "LIBRARY", library)
    with pytest.raises(compare.UsageError, match="blazediff-ssim") as raised:
        run(two)
    assert raised.value.hint == "pip install blazediff-ssim pillow-jxl-plugin"


@pytest.mark.parametrize("setting", ["quiet", "progress"])
def test_page_is_written_without_progress_output(two: list[Path], setting: str) -> None:
    terminal, page = Terminal(), two[0].parent / "page.html"
    setattr(terminal, setting, setting == "quiet")
    options = CompareOptions(RATES, 1, "mlp")
    assert compare.run(terminal, two[:1], page, options, "numpy", False, False) == 0
    assert page.exists()


def test_large_page_is_reported(
    two: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "MAX_PAGE_BYTES", 1000)
    assert run(two[:1]) == 0
    assert "the page is larger than 1.0 kB" in capsys.readouterr().err
