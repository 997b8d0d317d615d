"""`imgmlp encode` of single files: targets, options, JSON, resuming."""

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
def test_encode_hits_a_byte_target_and_the_file_decodes(
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


def test_default_codec_is_latent(in_process: Command, picture: Path) -> None:
    Image.fromarray(small_pixels()[:9, :9]).save(picture)
    in_process("encode", picture.name, "--lambda", "0.001", *QUICK)
    assert container.parse(picture.with_suffix(".imlp").read_bytes()).header.codec == "latent"


def test_encode_continues_after_pictures_that_fail(in_process: Command, picture: Path) -> None:
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


def test_missed_target_is_exit_5_and_the_file_is_written(
    in_process: Command, picture: Path
) -> None:
    done = in_process("encode", picture.name, "--bytes", "50", *MLP, *QUICK, check=5)
    assert "instead of 50" in done.stderr
    assert "a file of this picture cannot be smaller" in done.stderr
    assert picture.with_suffix(".imlp").stat().st_size > 50


@CODECS
def test_profile_larger_than_the_byte_target_is_reported(
    in_process: Command, picture: Path, codec: Codec
) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(small_pixels()).save(picture, icc_profile=profile)
    target_bytes = "300" if codec == "mlp" else "50"  # smaller than any file
    arguments = ("encode", picture.name, "--codec", codec, "--bytes", target_bytes, *QUICK)
    stderr = in_process(*arguments, check=5).stderr
    metadata_bytes = metadata_sections.size(load(picture).metadata)
    message = f"{metadata_bytes} of {target_bytes} bytes are taken by colour profile and metadata"
    assert message in stderr  # before any work
    assert_error(stderr, f"{metadata_bytes} bytes of it", "--strip leaves out")
    stderr = in_process(
        *arguments, "--strip", "--force", check=5 if codec == "latent" else 0
    ).stderr
    assert "--strip" not in stderr


@CODECS
def test_existing_file_is_replaced_only_with_force(
    in_process: Command, picture: Path, codec: Codec
) -> None:
    existing = picture.with_suffix(".imlp")
    existing.write_bytes(b"mine")
    in_process("encode", picture.name, "--codec", codec, *QUICK, check=8)
    assert existing.read_bytes() == b"mine"
    in_process("encode", picture.name, "--codec", codec, "--quality", "10", "--force", *QUICK)
    assert existing.read_bytes().startswith(b"\x89IML")


@CODECS
@pytest.mark.parametrize("size", [(1, 1), (300, 1), (2, 2)])
def test_tiny_pictures_are_encoded(
    in_process: Command, picture: Path, size: tuple[int, int], codec: Codec
) -> None:
    values = np.linspace(0, 255, size[0] * size[1]).astype(np.uint8)
    Image.fromarray(values.reshape(size[::-1])).save(picture.parent / "tiny.png")
    done = in_process("encode", "tiny.png", "--codec", codec, "--json", *QUICK)
    (facts,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert facts["problem"] is None
    in_process("verify", "tiny.imlp")


def test_source_file_no_larger_than_its_imlp_file_is_reported(
    in_process: Command, picture: Path
) -> None:
    folder = picture.parent / "in"
    folder.mkdir()
    # The .imlp file of the first is larger than its source; that of the second is smaller.
    tiny, flat = folder / "tiny.pgm", folder / "flat.ppm"
    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16).save(tiny)
    Image.new("RGB", (40, 30), (10, 200, 77)).save(flat)
    message = f"{tiny.relative_to(picture.parent)} itself has only {tiny.stat().st_size} B, no more"
    for arguments in (("in/tiny.pgm", "in/flat.ppm"), ("in", "--out", "made")):
        stderr = in_process("encode", *arguments, *QUICK).stderr
        assert message in stderr
        assert stderr.count("itself") == 1


@CODECS
def test_single_colour_picture_is_lossless(
    in_process: Command, picture: Path, codec: Codec
) -> None:
    Image.new("RGB", (40, 30), (10, 200, 77)).save(picture.parent / "flat.png")
    done = in_process("encode", "flat.png", "--codec", codec, "--psnr", "40", "--json")
    assert "lossless" in done.stderr
    (facts,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert facts["problem"] is None
    assert facts["psnr"] is None
    in_process("decode", "flat.imlp")
    assert (load(picture.parent / "flat.decoded.png").pixels == (10, 200, 77)).all()
    stderr = in_process(
        "encode", "flat.png", "--force", "--bytes", "9", "--codec", codec, check=5
    ).stderr
    assert "a file of this picture cannot be smaller" in stderr


@CODECS
def test_transparency_is_encoded(in_process: Command, picture: Path, codec: Codec) -> None:
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
def test_invalid_options_are_refused_before_encoding(
    in_process: Command, options: tuple[str, ...]
) -> None:
    code = 8 if "--force" in options else 2
    done = in_process("encode", "small.png", *options, check=code)
    assert "hint:" in done.stderr


def test_invalid_numbers_are_reported_without_pydantic_wording(in_process: Command) -> None:
    stderr = in_process("encode", "small.png", "--effort", "1.5", check=2).stderr
    assert_error(stderr, "'--effort': it is not a whole number")
    assert_error(
        in_process("encode", "small.png", "--psnr", "x", check=2).stderr, "it is not a number"
    )


def test_result_line_has_the_seconds_of_the_whole_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seconds of training alone are in the figures."""
    path = tmp_path / "even.png"
    Image.new("RGB", (8, 6)).save(path)
    terminal = Terminal(time.perf_counter() - 3600)
    request, options = Request([path], device="numpy"), EncodeOptions(psnr=40)
    assert encoding.run(terminal, request, Outputs(), options) == 0
    assert "   1:00:0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("2min", 120), ("2h", 7200)]
)
def test_parse_time_accepts_units(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1d", "99999h", "1000001"])
def test_parse_time_refuses_invalid_times(text: str) -> None:
    with pytest.raises(UsageError, match="--time") as refused:
        parse_time(text)
    assert "up to a million seconds" in refused.value.hint


@CODECS
@pytest.mark.usefixtures("brief")
def test_interrupted_encode_resumes_to_identical_bytes(
    picture: Path,
    codec: Codec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 1920)
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 40)
    Image.fromarray(small_pixels()[:9, :9]).save(picture)
    options = EncodeOptions(size="300", effort=1, codec=codec)
    uninterrupted, written = picture.parent / "whole.imlp", picture.with_suffix(".imlp")
    code = encode([picture], Outputs(uninterrupted), options)
    assert code in (0, TargetError.exit_code)
    polls = iter(range(20))
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", lambda _: next(polls, None) is None)
        with pytest.raises(Interrupted, match="stopped after"):
            encode([picture], Outputs(), options)
    assert not written.exists()
    assert left_beside(written)
    capsys.readouterr()
    assert encode([picture], Outputs(), options) == code
    assert "continuing after" in capsys.readouterr().err
    assert written.read_bytes() == uninterrupted.read_bytes()
    assert not left_beside(written)


def test_json_entries_contain_the_notes(in_process: Command, picture: Path) -> None:
    """For a single file and for a run over many files."""
    (picture.parent / "deep.pgm").write_bytes(b"P5 2 2 65535\n" + bytes(8))
    arguments = ("encode", "deep.pgm", "--psnr", "40", "--json")
    (single,) = json.loads(in_process(*arguments).stdout)
    in_folder = json.loads(in_process(*arguments, "--out", "out").stdout)
    bits, smaller = single["notes"]
    assert bits == "samples of 16 bits are reduced to their upper 8 bits"
    assert smaller.startswith("deep.pgm itself has only")
    assert in_folder["notes"] == single["notes"]


def test_checkpoints_are_removed_even_if_json_cannot_be_printed(
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


def test_other_options_neither_resume_nor_remove_a_checkpoint(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 60)
    first = EncodeOptions(size="300", codec="mlp")
    polls = iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", lambda _: next(polls, None) is None)
        with pytest.raises(Interrupted):
            encode([picture], Outputs(), first)
    capsys.readouterr()
    written = picture.with_suffix(".imlp")
    (checkpoint,) = left_beside(written)
    other = EncodeOptions(size="310", codec="mlp")
    assert encode([picture], Outputs(), other) == 0
    stderr = capsys.readouterr().err
    assert "continuing after" not in stderr
    assert checkpoint.name in stderr.replace("\n", "")
    assert left_beside(written) == [checkpoint]  # the first command can still resume
    assert encode([picture], Outputs(force=True), first) == 0
    assert "continuing after" in capsys.readouterr().err
    assert left_beside(written) == []


def test_stop_request_during_the_last_steps_prevents_the_next_picture(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request comes after the last poll of the second picture."""
    names = [picture.parent / f"{name}.png" for name in "abc"]
    for path in names:
        Image.new("RGB", (8, 8), (10, 200, 77)).save(path)
    encode_picture, results = encoder.encode, []

    def stopped(*arguments: Any) -> Encoded:
        encoded = encode_picture(*arguments)
        results.append(encoded)
        arguments[4].stopping()  # as training polls
        if len(results) == 2:
            signal.raise_signal(signal.SIGINT)
        return encoded

    monkeypatch.setattr(encoder, "encode", stopped)
    options = EncodeOptions(psnr=40)
    with pytest.raises(Interrupted, match="after 2 of 3 files"):
        encode(names, Outputs(), options)
    assert [path.with_suffix(".imlp").exists() for path in names] == [True, True, False]
    assert capsys.readouterr().err.count("✓") == 2


def test_ctrl_c_before_training_exits_and_a_rerun_skips_finished_pictures(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [picture.parent / f"{name}.png" for name in "ab"]
    for path in names:
        Image.new("RGB", (8, 8), (10, 200, 77)).save(path)
    encode_picture = encoder.encode

    def stopped(*arguments: Any) -> Encoded:
        if names[0].with_suffix(".imlp").exists():
            signal.raise_signal(signal.SIGINT)
        return encode_picture(*arguments)

    options = EncodeOptions(psnr=40)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "encode", stopped)
        with pytest.raises(KeyboardInterrupt):
            encode(names, Outputs(), options)
    assert [path.with_suffix(".imlp").exists() for path in names] == [True, False]
    capsys.readouterr()
    assert encode(names, Outputs(), options) == 0
    assert capsys.readouterr().err.count("done before") == 1


def test_out_of_memory_in_one_picture_does_not_stop_the_others(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = picture.parent / "flat.png"
    Image.new("RGB", (8, 8)).save(small)
    encode_picture = encoder.encode

    def large(picture: Picture, *arguments: Any) -> Encoded:
        if picture.width > 8:
            raise MemoryError
        return encode_picture(picture, *arguments)

    monkeypatch.setattr(encoder, "encode", large)
    options = EncodeOptions(psnr=40)
    assert encode([picture, small], Outputs(), options) == 1
    assert "out of memory" in capsys.readouterr().err
    assert small.with_suffix(".imlp").exists()
    assert encode([picture], Outputs(), options) == OutOfMemoryError.exit_code
