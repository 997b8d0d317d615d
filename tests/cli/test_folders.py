"""Folders are mirrored, what is done stays done, and one bad file does not stop the others."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Command
from folder_runs import ALL, LOSSLESS, NAMES, Shown, encode, lines, made, make_tree
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


def test_a_tree_is_mirrored_and_told_as_it_ends(tree: Path, capsys: Shown) -> None:
    assert encode(tree, as_json=True) == 0
    assert made() == ALL
    told = lines(capsys)
    assert set(told) == {str(tree / name) for name in NAMES}
    one = told["in/a.png"]
    assert one["output"] == "out/a.imlp"
    assert one["problem"] is one["psnr"] is None
    assert one["bytes"] == Path("out/a.imlp").stat().st_size


def test_what_is_done_is_told_before_the_first_file_is(tree: Path, capsys: Shown) -> None:
    assert encode(tree, options=replace(LOSSLESS, effort=1)) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"{LOSSLESS.codec}, effort 1, into out"
    assert second == "3 files to do, 1 at a time on numpy"


def test_a_name_with_no_room_for_another_ending_is_no_fault(tree: Path, capsys: Shown) -> None:
    path = tree / f"{'n' * 251}.png"
    (tree / "a.png").rename(path)
    assert encode(path) == OutputError.exit_code
    assert_error(capsys.readouterr().err.partition("\n")[2], "too long", "a shorter name")


def test_an_empty_list_is_nothing_to_do(tree: Path, capsys: Shown) -> None:
    Path("list").touch()
    assert encode(tree, files_from=Path("list"), as_json=True) == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[1:] == ["the list names no files: there is nothing to do"]
    assert told.out == ""  # a line for each file


@pytest.mark.parametrize("recursive", [False, True])
def test_a_folder_without_pictures_is_refused_with_what_helps(recursive: bool, tree: Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(UsageError, match="no files were found") as caught:
        encode(tree / "empty", recursive=recursive)
    assert caught.value.hint.startswith("to use a file of any" if recursive else "--recursive")


def test_one_bad_file_stops_no_other_and_can_be_tried_again(tree: Path, capsys: Shown) -> None:
    good = (tree / "b.png").read_bytes()
    (tree / "b.png").write_bytes(b"no picture")
    assert encode(tree) == 1
    assert made() == ALL - {"b.imlp"} | {FAILED}
    told = capsys.readouterr().err
    assert "not a picture" in told
    assert "2 files done, 1 failed" in told
    assert f"--files-from out/{FAILED}" in told
    assert Path("out", FAILED).read_text() == "in/b.png\n"
    (tree / "b.png").write_bytes(good)
    (tree / "sub" / "d.png").write_bytes(good)  # which the list does not name
    assert encode(tree, files_from=Path("out", FAILED)) == 0
    assert made() == ALL
    assert "1 file done" not in capsys.readouterr().err


def test_where_all_failed_no_list_of_them_is_advised(tree: Path, capsys: Shown) -> None:
    """It would do what the same command does."""
    for name in NAMES:
        (tree / name).write_bytes(b"no picture")
    assert encode(tree) == 1
    assert "--files-from" not in capsys.readouterr().err


def test_nothing_is_said_to_begin_that_is_refused(tree: Path, capsys: Shown) -> None:
    request = Request([STANDARD], device="numpy", jobs=2)
    with pytest.raises(UsageError, match="no name in a folder"):
        encoding.run(Terminal(), request, encoding.Outputs(None, Path("out")), LOSSLESS)
    assert "into out" not in capsys.readouterr().err


def test_standard_output_is_no_folder(tree: Path) -> None:
    request = Request([tree], device="numpy")
    with pytest.raises(UsageError, match="standard output"):
        encoding.run(Terminal(), request, encoding.Outputs(None, Path("-")), LOSSLESS)


def test_the_only_file_has_its_own_exit_code(tree: Path) -> None:
    (tree / "b.png").write_bytes(b"no picture")
    assert encode(tree / "b.png") == 3
    assert encode(tree / "missing.png") == 2


def test_an_output_whose_name_is_too_long_is_told(tree: Path, capsys: Shown) -> None:
    long = (tree / "a.png").rename(tree / f"{'a' * 251}.png")
    for _ in range(2):
        assert encode(long) == OutputError.exit_code
        assert "too long" in capsys.readouterr().err
        Path("out").mkdir(exist_ok=True)


def test_a_list_from_standard_input_may_have_any_names(
    imgmlp: Command, picture: Path, tmp_path: Path
) -> None:
    """Also such as are no UTF-8, in every message and in the list of those that failed."""
    name = os.fsdecode(b"caf\xe9\n.png")
    (picture.parent / name).write_bytes(b"no picture")
    flat = picture.with_name(os.fsdecode(b"\xff.png"))
    Image.new("RGB", (8, 8)).save(flat)
    listed = tmp_path / "list"
    listed.write_bytes(b"\0".join(os.fsencode(one) for one in (name, flat.name)))
    arguments = ("--out", "out", "--psnr", "40", "--json", "--device", "numpy,numpy")
    done = imgmlp("encode", "--files-from", listed, *arguments, check=1)
    assert "caf\\udce9\\n.png is not a picture" in done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["file"] for one in told} == {name, flat.name}
    out = picture.parent / "out"
    assert (out / os.fsdecode(b"\xff.imlp")).exists()
    assert (out / FAILED).read_bytes() == os.fsencode(name) + b"\0"
    assert (
        "1 file done before" in imgmlp("encode", flat.name, "--out", "out", "--psnr", "40").stderr
    )


def test_outputs_may_lie_inside_of_the_inputs(tree: Path, capsys: Shown) -> None:
    Path("out").symlink_to("in/sub")
    assert encode(tree) == 0
    assert made() - {"c.png"} == {"a.imlp", "b.imlp"}
    assert "is inside the inputs" in capsys.readouterr().err


def test_a_file_in_the_way_of_a_folder_stops_no_other(tree: Path, capsys: Shown) -> None:
    Path("out").mkdir()
    Path("out/sub").write_bytes(b"mine")
    assert encode(tree) == 1
    assert made() == {"a.imlp", "b.imlp", "sub", FAILED}
    assert "cannot read out/sub/c.imlp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"device": "9:9,numpy"}, DeviceError),
        ({"jobs": 0}, UsageError),
        ({"files_from": Path("missing")}, UsageError),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_work(
    tree: Path, more: dict[str, Any], error: type[ImgmlpError]
) -> None:
    with pytest.raises(error):
        encode(tree, **more)
    assert not Path("out").exists()


def test_a_place_where_no_folder_can_be_made_is_told_once(tree: Path) -> None:
    Path("mine").symlink_to("nowhere/at-all")
    request = Request([tree], recursive=True, device="numpy")
    outputs = encoding.Outputs(None, Path("mine/out"))
    with pytest.raises(OutputError, match="cannot make the folder mine/out") as caught:
        encoding.run(Terminal(), request, outputs, LOSSLESS)
    assert "--out" in caught.value.hint


def test_a_folder_that_cannot_be_looked_at_is_told(tree: Path) -> None:
    outputs = encoding.Outputs(None, Path("a" * 300))
    with pytest.raises(OutputError, match=r"cannot write .*too long"):
        encoding.run(Terminal(), Request([tree], recursive=True), outputs, LOSSLESS)


@pytest.mark.parametrize("spec", ["numpy,numpy:uops", "all"])
def test_several_devices_of_the_environment_are_for_many_files(
    in_process: Command, picture: Path, spec: str
) -> None:
    """One picture is done on one of them, beside it."""
    Image.new("RGB", (8, 8)).save(picture)
    several = {"IMGMLP_DEVICE": spec}
    assert "✓ small.imlp" in in_process("encode", "small.png", "--psnr", "40", env=several).stderr
    assert "✓ small.imlp" in in_process("verify", "small.imlp", env=several).stderr
    devices = in_process("graph", "--json", env=several)
    assert json.loads(devices.stdout)


def test_what_has_no_place_is_refused(in_process: Command, picture: Path) -> None:
    folder = str(picture.parent)
    for arguments in (
        ("encode", folder),
        ("encode", picture, "--device", "numpy,numpy"),
        ("decode", "*.imlp"),
        ("encode", "--out", "x"),
        ("encode", "-", "--out", "x"),
        ("decode", folder, "--out", "x"),  # which has no such files
    ):
        assert_error(in_process(*arguments, check=2).stderr)
    assert_error(in_process("encode", folder, "--out", picture, check=8).stderr, "is not a folder")
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--jobs", "0"), 2, "--jobs is 0"),
        (("--jobs", "2"), 2, "--jobs is for many files"),
        (("--device", "numpy,cpu"), 2, "--device numpy,cpu names several devices"),
        (("--device", "numpy,none"), 6, "no device 'none'"),
        (("--cluster", "foo"), 2, "--cluster is 'foo'"),
        (("--cluster", "local"), 2, "--cluster is for many files"),
    ],
)
def test_what_is_for_many_files_is_refused_for_one(
    in_process: Command, picture: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    assert_error(in_process("encode", picture, *options, check=code).stderr, words)


def test_without_a_folder_the_request_is_looked_at_first(
    in_process: Command, picture: Path
) -> None:
    for options, words in ((("--jobs", "0"), "--jobs is 0"), ((), "where should the outputs")):
        assert_error(in_process("decode", ".", *options, check=2).stderr, words)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_an_address_of_this_machine_is_no_store(
    in_process: Command, picture: Path, scheme: str
) -> None:
    folder = picture.parent
    for arguments in (
        ("encode", picture, "--out", f"{scheme}://{folder}/out", "--cluster", "local"),
        ("encode", f"{scheme}://{picture}", "--out", "out", "--cluster", "local"),
        ("decode", ".", "--out", f"{scheme}://{folder}/out"),
        ("verify", f"{scheme}://{folder}"),
    ):
        told = in_process(*arguments, check=2).stderr
        assert f"{scheme}:// is not an object store" in told
        assert "plain path" in told
    assert list(folder.iterdir()) == [picture]


# Compressed files


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
    chosen = decoding.Outputs(folder=Path("out"), **outputs)
    return decoding.run(Terminal(), request, chosen)


def test_decode_mirrors_a_tree(stored: Path, capsys: Shown) -> None:
    assert decode(stored) == 1
    assert made() == {"x.decoded.png", "deep/y.decoded.png", FAILED}
    assert "cut.imlp" in capsys.readouterr().err
    (stored / "cut.imlp").unlink()
    assert decode(stored) == 0
    assert "2 files done before" in capsys.readouterr().err
    small = pixels_of(Path("out/x.decoded.png")).shape
    assert decode(stored, scale=2) == 0
    assert "x.imlp: rendered at another size" in capsys.readouterr().err
    assert pixels_of(Path("out/x.decoded.png")).shape == (2 * small[0], 2 * small[1])
    (Path("out") / NAME).unlink()  # as if it had been killed before it remembered
    assert decode(stored, scale=2) == 0
    (Path("out") / NAME).unlink()
    assert decode(stored) == 1  # another size is another picture


def test_the_entry_of_a_picture_is_that_of_one_alone(stored: Path, capsys: Shown) -> None:
    request = Request([stored / "x.imlp"], device="numpy", as_json=True)
    found = []
    for folder in (None, Path("out")):
        outputs = decoding.Outputs(folder=folder, scale=2)
        assert decoding.run(Terminal(), request, outputs) == 0
        entries = json.loads(capsys.readouterr().out)
        found.append(entries[0] if isinstance(entries, list) else entries)
    alone, one = found
    assert one.keys() == alone.keys() | {"device"}
    assert one["channels"] == alone["channels"] == 1
    assert one["notes"] == alone["notes"]
    assert alone["notes"][0].startswith("rendered at another size")


def test_verify_looks_into_folders(stored: Path, capsys: Shown) -> None:
    request = Request([stored], recursive=True, device="numpy", as_json=True)
    assert verifying.run(Terminal(), request) == 1
    sound = {name: entry["sound"] for name, entry in lines(capsys).items()}
    assert sound == {
        "stored/x.imlp": True,
        "stored/deep/y.imlp": True,
        "stored/cut.imlp": False,
    }
    assert {path.name for path in stored.iterdir()} == {"x.imlp", "deep", "cut.imlp"}


def test_several_devices_share_a_folder(imgmlp: Command, picture: Path) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(picture.with_name(f"{number}.png"))
    picture.unlink()
    arguments = ("encode", ".", "--out", "out", "--psnr", "40", "--device", "numpy,numpy:uops")
    done = imgmlp(*arguments, "--json")
    devices = {json.loads(line)["device"] for line in done.stdout.splitlines()}
    assert devices == {"numpy", "numpy:uops"}  # each is given one before any has ended
    assert "3 files done" in done.stderr
    assert imgmlp("verify", "out").stderr.count("✓") == 3
