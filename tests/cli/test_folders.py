"""Runs over folders: mirrored trees, lists of files, refused options, decode and verify."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Command
from folder_runs import (
    ALL_OUTPUTS,
    LOSSLESS,
    NAMES,
    Captured,
    encode,
    json_entries,
    make_tree,
    output_names,
)
from outputs import assert_error, pixels_of
from PIL import Image

from imgmlp.batch.journal import NAME
from imgmlp.batch.plan import FAILED
from imgmlp.cli import decode as decoding
from imgmlp.cli import encode as encoding
from imgmlp.cli import verify as verifying
from imgmlp.cli.files import STANDARD
from imgmlp.cli.folders import Request
from imgmlp.errors import DeviceError, ImgmlpError, OutputError, UsageError
from imgmlp.terminal import Terminal


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_tree(tmp_path, monkeypatch)


def test_tree_is_mirrored_and_each_file_reported_as_json(tree: Path, capsys: Captured) -> None:
    assert encode(tree, as_json=True) == 0
    assert output_names() == ALL_OUTPUTS
    entries = json_entries(capsys)
    assert set(entries) == {str(tree / name) for name in NAMES}
    entry = entries["in/a.png"]
    assert entry["output"] == "out/a.imlp"
    assert entry["problem"] is entry["psnr"] is None
    assert entry["bytes"] == Path("out/a.imlp").stat().st_size


def test_run_is_announced_before_the_first_file(tree: Path, capsys: Captured) -> None:
    assert encode(tree, options=replace(LOSSLESS, effort=1)) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"{LOSSLESS.codec}, effort 1, into out"
    assert second == "3 files to do, 1 at a time on numpy"


def test_name_too_long_for_the_new_extension_is_an_output_error(
    tree: Path, capsys: Captured
) -> None:
    path = tree / f"{'n' * 251}.png"
    (tree / "a.png").rename(path)
    assert encode(path) == OutputError.exit_code
    assert_error(capsys.readouterr().err.partition("\n")[2], "too long", "a shorter name")


def test_empty_list_of_files_is_no_error(tree: Path, capsys: Captured) -> None:
    Path("list").touch()
    assert encode(tree, files_from=Path("list"), as_json=True) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[1:] == ["the list names no files: there is nothing to do"]
    assert printed.out == ""  # JSON has a line for each file


@pytest.mark.parametrize("recursive", [False, True])
def test_folder_without_pictures_is_refused_with_a_hint(recursive: bool, tree: Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(UsageError, match="no files were found") as caught:
        encode(tree / "empty", recursive=recursive)
    assert caught.value.hint.startswith("to use a file of any" if recursive else "--recursive")


def test_bad_file_does_not_stop_others_and_can_be_retried_from_the_list(
    tree: Path, capsys: Captured
) -> None:
    good = (tree / "b.png").read_bytes()
    (tree / "b.png").write_bytes(b"no picture")
    assert encode(tree) == 1
    assert output_names() == ALL_OUTPUTS - {"b.imlp"} | {FAILED}
    stderr = capsys.readouterr().err
    assert "not a picture" in stderr
    assert "2 files done, 1 failed" in stderr
    assert f"--files-from out/{FAILED}" in stderr
    assert Path("out", FAILED).read_text() == "in/b.png\n"
    (tree / "b.png").write_bytes(good)
    (tree / "sub" / "d.png").write_bytes(good)  # the list does not name it
    assert encode(tree, files_from=Path("out", FAILED)) == 0
    assert output_names() == ALL_OUTPUTS
    assert "1 file done" not in capsys.readouterr().err


def test_list_of_failed_files_is_not_suggested_if_all_failed(tree: Path, capsys: Captured) -> None:
    """The same command would do just that."""
    for name in NAMES:
        (tree / name).write_bytes(b"no picture")
    assert encode(tree) == 1
    assert "--files-from" not in capsys.readouterr().err


def test_refused_run_is_not_announced(tree: Path, capsys: Captured) -> None:
    request = Request([STANDARD], device="numpy", jobs=2)
    with pytest.raises(UsageError, match="no name in a folder"):
        encoding.run(Terminal(), request, encoding.Outputs(None, Path("out")), LOSSLESS)
    assert "into out" not in capsys.readouterr().err


def test_out_folder_dash_is_refused(tree: Path) -> None:
    request = Request([tree], device="numpy")
    with pytest.raises(UsageError, match="standard output"):
        encoding.run(Terminal(), request, encoding.Outputs(None, Path("-")), LOSSLESS)


def test_single_file_keeps_its_own_exit_code(tree: Path) -> None:
    (tree / "b.png").write_bytes(b"no picture")
    assert encode(tree / "b.png") == 3
    assert encode(tree / "missing.png") == 2


def test_too_long_output_name_is_reported(tree: Path, capsys: Captured) -> None:
    long = (tree / "a.png").rename(tree / f"{'a' * 251}.png")
    for _ in range(2):
        assert encode(long) == OutputError.exit_code
        assert "too long" in capsys.readouterr().err
        Path("out").mkdir(exist_ok=True)


def test_list_of_files_may_contain_any_names(
    imgmlp: Command, picture: Path, tmp_path: Path
) -> None:
    """Also names that are not UTF-8, in messages and in the list of failed files."""
    name = os.fsdecode(b"caf\xe9\n.png")
    (picture.parent / name).write_bytes(b"no picture")
    flat = picture.with_name(os.fsdecode(b"\xff.png"))
    Image.new("RGB", (8, 8)).save(flat)
    list_file = tmp_path / "list"
    list_file.write_bytes(b"\0".join(os.fsencode(one) for one in (name, flat.name)))
    arguments = ("--out", "out", "--psnr", "40", "--json", "--device", "numpy,numpy")
    done = imgmlp("encode", "--files-from", list_file, *arguments, check=1)
    assert "caf\\udce9\\n.png is not a picture" in done.stderr
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["file"] for one in entries} == {name, flat.name}
    out = picture.parent / "out"
    assert (out / os.fsdecode(b"\xff.imlp")).exists()
    assert (out / FAILED).read_bytes() == os.fsencode(name) + b"\0"
    assert (
        "1 file done before" in imgmlp("encode", flat.name, "--out", "out", "--psnr", "40").stderr
    )


def test_out_folder_inside_the_inputs_is_skipped(tree: Path, capsys: Captured) -> None:
    Path("out").symlink_to("in/sub")
    assert encode(tree) == 0
    assert output_names() - {"c.png"} == {"a.imlp", "b.imlp"}
    assert "is inside the inputs" in capsys.readouterr().err


def test_file_in_place_of_an_output_folder_does_not_stop_others(
    tree: Path, capsys: Captured
) -> None:
    Path("out").mkdir()
    Path("out/sub").write_bytes(b"mine")
    assert encode(tree) == 1
    assert output_names() == {"a.imlp", "b.imlp", "sub", FAILED}
    assert "cannot read out/sub/c.imlp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        ({"device": "9:9,numpy"}, DeviceError),
        ({"jobs": 0}, UsageError),
        ({"files_from": Path("missing")}, UsageError),
    ],
)
def test_invalid_options_of_a_folder_run_are_refused_before_any_work(
    tree: Path, request_fields: dict[str, Any], error: type[ImgmlpError]
) -> None:
    with pytest.raises(error):
        encode(tree, **request_fields)
    assert not Path("out").exists()


def test_out_folder_that_cannot_be_created_is_reported_once(tree: Path) -> None:
    Path("mine").symlink_to("nowhere/at-all")
    request = Request([tree], recursive=True, device="numpy")
    outputs = encoding.Outputs(None, Path("mine/out"))
    with pytest.raises(OutputError, match="cannot make the folder mine/out") as caught:
        encoding.run(Terminal(), request, outputs, LOSSLESS)
    assert "--out" in caught.value.hint


def test_out_folder_with_too_long_name_is_reported(tree: Path) -> None:
    outputs = encoding.Outputs(None, Path("a" * 300))
    with pytest.raises(OutputError, match=r"cannot write .*too long"):
        encoding.run(Terminal(), Request([tree], recursive=True), outputs, LOSSLESS)


@pytest.mark.parametrize("spec", ["numpy,numpy:uops", "all"])
def test_single_file_uses_one_of_the_devices_in_the_environment(
    in_process: Command, picture: Path, spec: str
) -> None:
    Image.new("RGB", (8, 8)).save(picture)
    env = {"IMGMLP_DEVICE": spec}
    assert "✓ small.imlp" in in_process("encode", "small.png", "--psnr", "40", env=env).stderr
    assert "✓ small.imlp" in in_process("verify", "small.imlp", env=env).stderr
    graph = in_process("graph", "--json", env=env)
    assert json.loads(graph.stdout)


def test_sources_without_a_definite_output_are_refused(in_process: Command, picture: Path) -> None:
    folder = str(picture.parent)
    for arguments in (
        ("encode", folder),
        ("encode", picture, "--device", "numpy,numpy"),
        ("decode", "*.imlp"),
        ("encode", "--out", "x"),
        ("encode", "-", "--out", "x"),
        ("decode", folder, "--out", "x"),  # it has no compressed files
    ):
        assert_error(in_process(*arguments, check=2).stderr)
    assert_error(in_process("encode", folder, "--out", picture, check=8).stderr, "is not a folder")
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--jobs", "0"), 2, "--jobs is 0"),
        (("--jobs", "2"), 2, "--jobs is for many files"),
        (("--device", "numpy,cpu"), 2, "--device numpy,cpu names several devices"),
        (("--device", "numpy,none"), 6, "no device 'none'"),
        (("--cluster", "foo"), 2, "--cluster is 'foo'"),
        (("--cluster", "local"), 2, "--cluster is for many files"),
    ],
)
def test_options_for_many_files_are_refused_for_one(
    in_process: Command, picture: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    assert_error(in_process("encode", picture, *options, check=code).stderr, message)


def test_invalid_options_are_reported_before_a_missing_out_option(
    in_process: Command, picture: Path
) -> None:
    for options, message in ((("--jobs", "0"), "--jobs is 0"), ((), "where should the outputs")):
        assert_error(in_process("decode", ".", *options, check=2).stderr, message)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_local_urls_are_refused_as_object_stores(
    in_process: Command, picture: Path, scheme: str
) -> None:
    folder = picture.parent
    for arguments in (
        ("encode", picture, "--out", f"{scheme}://{folder}/out", "--cluster", "local"),
        ("encode", f"{scheme}://{picture}", "--out", "out", "--cluster", "local"),
        ("decode", ".", "--out", f"{scheme}://{folder}/out"),
        ("verify", f"{scheme}://{folder}"),
    ):
        stderr = in_process(*arguments, check=2).stderr
        assert f"{scheme}:// is not an object store" in stderr
        assert "plain path" in stderr
    assert list(folder.iterdir()) == [picture]


# decode and verify


@pytest.fixture
def stored(tree: Path) -> Path:
    for name in ("x.imlp", "deep/y.imlp"):
        path = Path("stored", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(GOLDEN / "gray.imlp", path)
    Path("stored/cut.imlp").write_bytes((GOLDEN / "gray.imlp").read_bytes()[:-1])
    return Path("stored")


def decode(*sources: Path, **outputs: Any) -> int:
    request = Request(list(sources), recursive=True, device="numpy")
    all_outputs = decoding.Outputs(folder=Path("out"), **outputs)
    return decoding.run(Terminal(), request, all_outputs)


def test_decode_mirrors_a_folder_tree(stored: Path, capsys: Captured) -> None:
    assert decode(stored) == 1
    assert output_names() == {"x.decoded.png", "deep/y.decoded.png", FAILED}
    assert "cut.imlp" in capsys.readouterr().err
    (stored / "cut.imlp").unlink()
    assert decode(stored) == 0
    assert "2 files done before" in capsys.readouterr().err
    small = pixels_of(Path("out/x.decoded.png")).shape
    assert decode(stored, scale=2) == 0
    assert "x.imlp: rendered at another size" in capsys.readouterr().err
    assert pixels_of(Path("out/x.decoded.png")).shape == (2 * small[0], 2 * small[1])
    (Path("out") / NAME).unlink()  # as after a kill before the journal was written
    assert decode(stored, scale=2) == 0
    (Path("out") / NAME).unlink()
    assert decode(stored) == 1  # the existing output has another size


def test_json_entry_is_the_same_with_and_without_out_option(stored: Path, capsys: Captured) -> None:
    request = Request([stored / "x.imlp"], device="numpy", as_json=True)
    both = []
    for folder in (None, Path("out")):
        outputs = decoding.Outputs(folder=folder, scale=2)
        assert decoding.run(Terminal(), request, outputs) == 0
        entries = json.loads(capsys.readouterr().out)
        both.append(entries[0] if isinstance(entries, list) else entries)
    single, in_folder = both
    assert in_folder.keys() == single.keys() | {"device"}
    assert in_folder["channels"] == single["channels"] == 1
    assert in_folder["notes"] == single["notes"]
    assert single["notes"][0].startswith("rendered at another size")


def test_verify_searches_folders(stored: Path, capsys: Captured) -> None:
    request = Request([stored], recursive=True, device="numpy", as_json=True)
    assert verifying.run(Terminal(), request) == 1
    sound = {name: entry["sound"] for name, entry in json_entries(capsys).items()}
    assert sound == {
        "stored/x.imlp": True,
        "stored/deep/y.imlp": True,
        "stored/cut.imlp": False,
    }
    assert {path.name for path in stored.iterdir()} == {"x.imlp", "deep", "cut.imlp"}


def test_files_of_a_folder_are_distributed_to_several_devices(
    imgmlp: Command, picture: Path
) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(picture.with_name(f"{number}.png"))
    picture.unlink()
    arguments = ("encode", ".", "--out", "out", "--psnr", "40", "--device", "numpy,numpy:uops")
    done = imgmlp(*arguments, "--json")
    devices = {json.loads(line)["device"] for line in done.stdout.splitlines()}
    assert devices == {"numpy", "numpy:uops"}  # each gets a file before any has ended
    assert "3 files done" in done.stderr
    assert imgmlp("verify", "out").stderr.count("✓") == 3
