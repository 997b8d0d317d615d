"""`imgmlp encode` as its users run it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import Command, small_pixels
from outputs import assert_error
from PIL import Image, ImageCms

from imgmlp.batch.encode_options import EncodeOptions, parse_time
from imgmlp.cli import encode as encoding
from imgmlp.cli.encode import Outputs
from imgmlp.cli.folders import Request
from imgmlp.codec import encoder
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.latent.training import effort
from imgmlp.codec.training import target
from imgmlp.codec.training.checkpoint import left_beside
from imgmlp.errors import Interrupted, OutOfMemoryError, OutputError, TargetError, UsageError
from imgmlp.image import Picture, load, psnr
from imgmlp.interrupt import StopRequest
from imgmlp.terminal import Terminal


def encode(sources: list[Path], outputs: Outputs, options: EncodeOptions) -> int:
    return encoding.run(Terminal(), Request(sources, device="numpy"), outputs, options)


QUICK = ("--time", "0.3s")
MLP = ("--codec", "mlp")
CODECS = pytest.mark.parametrize("codec", get_args(Codec))


@pytest.mark.usefixtures("brief")
def test_a_picture_becomes_a_file_that_decodes(
    in_process: Command, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 16 * 400)
    done = in_process("encode", picture.name, "--bytes", "400", *MLP, "--effort", "1")
    written = picture.with_suffix(".imlp")
    assert 388 <= written.stat().st_size <= 400
    assert "bpp" in done.stderr
    assert done.stdout == ""
    in_process("decode", written.name)
    decoded = load(picture.parent / "small.decoded.png").pixels
    assert psnr(decoded, small_pixels()) > 12
    assert sorted(p.name for p in picture.parent.iterdir()) == [
        "small.decoded.png",
        "small.imlp",
        "small.png",
    ]


def test_files_are_of_latents_if_nobody_chooses(in_process: Command, picture: Path) -> None:
    Image.fromarray(small_pixels()[:9, :9]).save(picture)
    in_process("encode", picture.name, "--lambda", "0.001", *QUICK)
    assert container.parse(picture.with_suffix(".imlp").read_bytes()).header.codec == "latent"


def test_one_of_several_may_fail(in_process: Command, picture: Path) -> None:
    (picture.parent / "bad.png").write_bytes(b"no picture")
    deep = Image.fromarray(np.zeros((4, 4), np.float32))
    deep.save(picture.parent / "deep.tif")
    names = ("bad.png", picture.name, "deep.tif")
    done = in_process("encode", *names, "--lambda", "0.01", "--json", *MLP, *QUICK, check=1)
    bad, good, refused = json.loads(done.stdout)
    assert "not a picture" in bad["problem"]
    assert "32 bits" in refused["problem"]
    assert good["problem"] is None
    assert good["bytes"] == (picture.parent / good["output"]).stat().st_size
    assert not (picture.parent / "bad.imlp").exists()


def test_a_missed_target_is_told_and_the_file_is_there(in_process: Command, picture: Path) -> None:
    done = in_process("encode", picture.name, "--bytes", "50", *MLP, *QUICK, check=5)
    assert "instead of 50" in done.stderr
    assert "a file of this picture cannot be smaller" in done.stderr
    assert picture.with_suffix(".imlp").stat().st_size > 50


@CODECS
def test_a_profile_that_leaves_no_room_is_told(
    in_process: Command, picture: Path, codec: Codec
) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(small_pixels()).save(picture, icc_profile=profile)
    most = "300" if codec == "mlp" else "50"  # which no file has
    arguments = ("encode", picture.name, "--codec", codec, "--bytes", most, *QUICK)
    told = in_process(*arguments, check=5).stderr
    beside = metadata_sections.size(load(picture).metadata)
    taken = f"{beside} of {most} bytes are taken by colour profile and metadata"
    assert taken in told  # before any work
    assert_error(told, f"{beside} bytes of it", "--strip leaves out")
    told = in_process(*arguments, "--strip", "--force", check=5 if codec == "latent" else 0).stderr
    assert "--strip" not in told


@CODECS
def test_an_existing_file_is_replaced_only_if_forced(
    in_process: Command, picture: Path, codec: Codec
) -> None:
    there = picture.with_suffix(".imlp")
    there.write_bytes(b"mine")
    in_process("encode", picture.name, "--codec", codec, *QUICK, check=8)
    assert there.read_bytes() == b"mine"
    in_process("encode", picture.name, "--codec", codec, "--quality", "10", "--force", *QUICK)
    assert there.read_bytes().startswith(b"\x89IML")


@CODECS
@pytest.mark.parametrize("size", [(1, 1), (300, 1), (2, 2)])
def test_the_smallest_pictures_have_files_too(
    in_process: Command, picture: Path, size: tuple[int, int], codec: Codec
) -> None:
    values = np.linspace(0, 255, size[0] * size[1]).astype(np.uint8)
    Image.fromarray(values.reshape(size[::-1])).save(picture.parent / "tiny.png")
    done = in_process("encode", "tiny.png", "--codec", codec, "--json", *QUICK)
    (facts,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert facts["problem"] is None
    in_process("verify", "tiny.imlp")


def test_a_picture_whose_own_file_is_no_larger_is_told(in_process: Command, picture: Path) -> None:
    folder = picture.parent / "in"
    folder.mkdir()
    # no file of ours is as small, or as large
    tiny, flat = folder / "tiny.pgm", folder / "flat.ppm"
    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16).save(tiny)
    Image.new("RGB", (40, 30), (10, 200, 77)).save(flat)
    told = f"{tiny.relative_to(picture.parent)} itself has only {tiny.stat().st_size} B, no more"
    for arguments in (("in/tiny.pgm", "in/flat.ppm"), ("in", "--out", "made")):
        found = in_process("encode", *arguments, *QUICK).stderr
        assert told in found
        assert found.count("itself") == 1


@CODECS
def test_one_colour_reaches_any_quality(in_process: Command, picture: Path, codec: Codec) -> None:
    Image.new("RGB", (40, 30), (10, 200, 77)).save(picture.parent / "flat.png")
    done = in_process("encode", "flat.png", "--codec", codec, "--psnr", "40", "--json")
    assert "lossless" in done.stderr
    (facts,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert facts["problem"] is None
    assert facts["psnr"] is None
    in_process("decode", "flat.imlp")
    assert (load(picture.parent / "flat.decoded.png").pixels == (10, 200, 77)).all()
    told = in_process(
        "encode", "flat.png", "--force", "--bytes", "9", "--codec", codec, check=5
    ).stderr
    assert "a file of this picture cannot be smaller" in told


@CODECS
def test_transparency_is_kept(in_process: Command, picture: Path, codec: Codec) -> None:
    pixels = np.dstack([small_pixels(), small_pixels(1)])
    Image.fromarray(pixels).save(picture.parent / "glass.png")
    in_process("encode", "glass.png", "--codec", codec, "--quality", "10", *QUICK)
    in_process("decode", "glass.imlp")
    with Image.open(picture.parent / "glass.decoded.png") as decoded:
        assert decoded.mode == "RGBA"
        assert decoded.size == (31, 24)


@pytest.mark.parametrize(
    "options",
    [
        ("--bpp", "1", "--psnr", "30"),
        ("--effort", "0"),
        ("--effort", "3", "--time", "5s"),
        ("--time", "soon"),
        ("--bytes", "many"),
        ("--quality", "101"),
        ("-o", "small.png", "--force"),
        ("-o", "x.imlp", "small.png"),
    ],
)
def test_wrong_options_are_refused_before_any_work(
    in_process: Command, options: tuple[str, ...]
) -> None:
    code = 8 if "--force" in options else 2
    done = in_process("encode", "small.png", *options, check=code)
    assert "hint:" in done.stderr


def test_a_number_that_is_none_is_refused_in_plain_words(in_process: Command) -> None:
    told = in_process("encode", "small.png", "--effort", "1.5", check=2).stderr
    assert_error(told, "'--effort': it is not a whole number")
    assert_error(
        in_process("encode", "small.png", "--psnr", "x", check=2).stderr, "it is not a number"
    )


def test_the_line_of_a_file_has_the_seconds_of_the_whole_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of training are among the figures."""
    path = tmp_path / "even.png"
    Image.new("RGB", (8, 6)).save(path)
    terminal = Terminal(time.perf_counter() - 3600)
    request, options = Request([path], device="numpy"), EncodeOptions(psnr=40)
    assert encoding.run(terminal, request, Outputs(), options) == 0
    assert "   1:00:0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("2min", 120), ("2h", 7200)]
)
def test_times_are_written_as_people_do(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1d", "99999h", "1000001"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="--time") as refused:
        parse_time(text)
    assert "up to a million seconds" in refused.value.hint


@CODECS
@pytest.mark.usefixtures("brief")
def test_a_stopped_command_goes_on_where_it_was(
    picture: Path,
    codec: Codec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 1920)
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 40)
    Image.fromarray(small_pixels()[:9, :9]).save(picture)
    options = EncodeOptions(size="300", effort=1, codec=codec)
    whole, written = picture.parent / "whole.imlp", picture.with_suffix(".imlp")
    code = encode([picture], Outputs(whole), options)
    assert code in (0, TargetError.exit_code)
    left = iter(range(20))
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", lambda _: next(left, None) is None)
        with pytest.raises(Interrupted, match="stopped after"):
            encode([picture], Outputs(), options)
    assert not written.exists()
    assert left_beside(written)
    capsys.readouterr()
    assert encode([picture], Outputs(), options) == code
    assert "continuing after" in capsys.readouterr().err
    assert written.read_bytes() == whole.read_bytes()
    assert not left_beside(written)


def test_json_has_what_notes_say(in_process: Command, picture: Path) -> None:
    """The same of one file and of a run over many."""
    (picture.parent / "deep.pgm").write_bytes(b"P5 2 2 65535\n" + bytes(8))
    asked = ("encode", "deep.pgm", "--psnr", "40", "--json")
    (alone,) = json.loads(in_process(*asked).stdout)
    one = json.loads(in_process(*asked, "--out", "out").stdout)
    bits, smaller = alone["notes"]
    assert bits == "samples of 16 bits are reduced to their upper 8 bits"
    assert smaller.startswith("deep.pgm itself has only")
    assert one["notes"] == alone["notes"]


def test_json_that_nobody_can_read_leaves_no_hidden_file(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: str) -> None:
        raise OutputError("cannot write to stdout", hint="redirect it elsewhere")

    Image.new("RGB", (8, 8), (10, 200, 77)).save(picture)
    monkeypatch.setattr(encoding.files, "print_data", full)
    request = Request([picture], device="numpy", as_json=True)
    with pytest.raises(OutputError, match="stdout"):
        encoding.run(Terminal(), request, Outputs(), EncodeOptions(psnr=40))
    written = picture.with_suffix(".imlp")
    assert written.exists()
    assert not left_beside(written)


def test_other_choices_neither_go_on_from_a_checkpoint_nor_remove_it(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 60)
    first = EncodeOptions(size="300", codec="mlp")
    steps = iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", lambda _: next(steps, None) is None)
        with pytest.raises(Interrupted):
            encode([picture], Outputs(), first)
    capsys.readouterr()
    written = picture.with_suffix(".imlp")
    (left,) = left_beside(written)
    other = EncodeOptions(size="310", codec="mlp")
    assert encode([picture], Outputs(), other) == 0
    told = capsys.readouterr().err
    assert "continuing after" not in told
    assert left.name in told.replace("\n", "")
    assert left_beside(written) == [left]  # and the first can still go on
    assert encode([picture], Outputs(force=True), first) == 0
    assert "continuing after" in capsys.readouterr().err
    assert left_beside(written) == []


def test_a_request_to_stop_that_a_picture_outlasts_keeps_the_next_from_starting(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one whose last steps are done when the request comes."""
    names = [picture.parent / f"{name}.png" for name in "abc"]
    for path in names:
        Image.new("RGB", (8, 8), (10, 200, 77)).save(path)
    real, seen = encoder.encode, []

    def stopped(*arguments: Any) -> Encoded:
        found = real(*arguments)
        seen.append(found)
        arguments[4].stopping()  # as training asks
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(encoder, "encode", stopped)
    options = EncodeOptions(psnr=40)
    with pytest.raises(Interrupted, match="after 2 of 3 files"):
        encode(names, Outputs(), options)
    assert [path.with_suffix(".imlp").exists() for path in names] == [True, True, False]
    assert capsys.readouterr().err.count("✓") == 2


def test_before_a_picture_is_trained_ctrl_c_ends_the_command_and_what_is_done_is_passed_over(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [picture.parent / f"{name}.png" for name in "ab"]
    for path in names:
        Image.new("RGB", (8, 8), (10, 200, 77)).save(path)
    real = encoder.encode

    def stopped(*arguments: Any) -> Encoded:
        if names[0].with_suffix(".imlp").exists():
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    options = EncodeOptions(psnr=40)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", stopped)
        with pytest.raises(KeyboardInterrupt):
            encode(names, Outputs(), options)
    assert [path.with_suffix(".imlp").exists() for path in names] == [True, False]
    capsys.readouterr()
    assert encode(names, Outputs(), options) == 0
    assert capsys.readouterr().err.count("done before") == 1


def test_a_picture_that_memory_cannot_hold_does_not_end_the_others(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = picture.parent / "flat.png"
    Image.new("RGB", (8, 8)).save(small)
    real = encoder.encode

    def large(found: Picture, *others: Any) -> Encoded:
        if found.width > 8:
            raise MemoryError
        return real(found, *others)

    monkeypatch.setattr(encoder, "encode", large)
    options = EncodeOptions(psnr=40)
    assert encode([picture, small], Outputs(), options) == 1
    assert "out of memory" in capsys.readouterr().err
    assert small.with_suffix(".imlp").exists()
    assert encode([picture], Outputs(), options) == OutOfMemoryError.exit_code
