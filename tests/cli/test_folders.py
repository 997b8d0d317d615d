"""Folders are mirrored, what is done stays done, and one bad file does not stop the others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Command
from outputs import assert_error, pixels_of
from PIL import Image

from imgmlp import output_files
from imgmlp.batch import pool as pools
from imgmlp.batch.encode import EncodeFile
from imgmlp.batch.journal import NAME, digest
from imgmlp.batch.plan import FAILED, Plan
from imgmlp.batch.pool import Seat, run_here
from imgmlp.batch.wanted import Wanted
from imgmlp.batch.work import Record, Task, Work, attempt
from imgmlp.cli import decode as decoding
from imgmlp.cli import encode as encoding
from imgmlp.cli import folders
from imgmlp.cli import verify as verifying
from imgmlp.cli.folders import Request
from imgmlp.codec import encoder
from imgmlp.codec.encoder import Encoded
from imgmlp.engine import open_device
from imgmlp.errors import DeviceError, ImgmlpError, Interrupted, OutputError, UsageError
from imgmlp.terminal import Terminal

LOSSLESS = Wanted(psnr=40)  # of one colour, which takes no training
NAMES = ("a.png", "b.png", "sub/c.png")


class Here:
    """Stands for the processes of a run, and does their files in this one."""

    def __init__(self, work: Work, devices: list[str], note: object) -> None:
        self.work, self.device = work, devices[0]

    def seats(self) -> list[Seat]:
        return [Seat(self.device)]

    def run(
        self, tasks: Iterator[Task], stopping: Callable[[], bool], tick: Callable[[], None]
    ) -> Iterator[Record]:
        for task in tasks:
            if stopping():
                return
            yield (record := attempt(self.work, task, lambda: open_device(self.device), Quiet()))
            tick()
            if record.no_room:
                return


class Quiet:
    """Stands for the watch of a process."""

    def note(self, text: str) -> None: ...

    announce = note

    def stopping(self) -> bool:
        return False

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def training(self, steps: int) -> AbstractContextManager[Callable[[object], None]]:
        return nullcontext(lambda _: None)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures of one colour each, which this process encodes."""
    monkeypatch.setattr(folders, "Pool", Here)
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        path = Path("in") / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8 + number, 8), (number, 20, 30)).save(path)
    return Path("in")


def encode(
    *sources: Path | str,
    wanted: Wanted = LOSSLESS,
    force: bool = False,
    skip: bool = False,
    **more: Any,
) -> int:
    given = {"recursive": True, "device": "numpy"} | more
    request = Request([Path(source) for source in sources], **given)
    return encoding.run(
        Terminal(), request, encoding.Outputs(None, Path("out"), force, skip), wanted
    )


def made(folder: str = "out") -> set[str]:
    """The files of a folder, but the journal."""
    found = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*"))
    return {name for name in found if Path(folder, name).is_file()} - {NAME}


ALL = {"a.imlp", "b.imlp", "sub/c.imlp"}
Shown = pytest.CaptureFixture[str]


def lines(shown: Shown) -> dict[str, dict[str, Any]]:
    found = (json.loads(line) for line in shown.readouterr().out.splitlines())
    return {entry["file"]: entry for entry in found}


def test_a_tree_is_mirrored_and_told_as_it_ends(tree: Path, capsys: Shown) -> None:
    assert encode(tree, as_json=True) == 0
    assert made() == ALL
    told = lines(capsys)
    assert set(told) == {str(tree / name) for name in NAMES}
    one = told["in/a.png"]
    assert one["output"] == "out/a.imlp"
    assert one["problem"] is one["psnr"] is None
    assert one["bytes"] == Path("out/a.imlp").stat().st_size


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
    assert encode(tree, listed=Path("out", FAILED)) == 0
    assert made() == ALL
    assert "1 file done" not in capsys.readouterr().err


def test_the_only_file_has_its_own_exit_code(tree: Path) -> None:
    (tree / "b.png").write_bytes(b"no picture")
    assert encode(tree / "b.png") == 3
    assert encode(tree / "missing.png") == 2


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
        assert encode(tree, wanted=Wanted(psnr=41)) == 1
    assert Path("out/a.imlp").read_bytes() == b"mine"
    told = capsys.readouterr().err
    assert ("a.imlp was changed since" if there else "a.imlp exists already") in told
    assert "2 files done, 1 failed" in told
    assert encode(tree, wanted=Wanted(psnr=41)) == 1  # nor later
    assert Path("out/a.imlp").read_bytes() == b"mine"
    assert encode(tree, wanted=Wanted(psnr=41), force=True) == 0
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


def test_a_run_that_is_stopped_leaves_the_list_that_it_was_given(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:2]:
        (tree / name).write_bytes(b"no picture")
    assert encode(tree) == 1
    before = Path("out", FAILED).read_bytes()
    for name in NAMES[:2]:
        Image.new("RGB", (8, 8)).save(tree / name)
    finished = folders.RunReport.finished

    def pressed(told: folders.RunReport, record: Record) -> None:
        finished(told, record)
        os.kill(os.getpid(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(folders.RunReport, "finished", pressed)
        with pytest.raises(Interrupted, match="1 file left"):
            encode(tree, listed=Path("out", FAILED))
    assert Path("out", FAILED).read_bytes() == before
    assert encode(tree, listed=Path("out", FAILED)) == 0
    assert made() == ALL


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


def test_a_missed_target_is_told_once(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    encode_picture = encoder.encode

    def missed(*arguments: Any) -> Encoded:
        found = encode_picture(*arguments)
        return Encoded(found.bytes, found.pixels, found.metrics, "99 bytes instead of 9")

    monkeypatch.setattr(encoder, "encode", missed)
    assert encode(tree) == 1
    told = capsys.readouterr().err
    assert "3 missed the target" in told
    assert "--files-from" not in told
    assert made() == ALL
    assert encode(tree) == 0  # the best that there was


def test_outputs_may_lie_inside_of_the_inputs(tree: Path, capsys: Shown) -> None:
    Path("out").symlink_to("in/sub")
    assert encode(tree) == 0
    assert made() - {"c.png"} == {"a.imlp", "b.imlp"}
    assert "lies among the inputs" in capsys.readouterr().err


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
        ({"listed": Path("missing")}, UsageError),
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


def test_what_others_left_is_removed_once_it_is_old(tree: Path) -> None:
    names = [f"out/.a.imlp.{number}1234567.checkpoint" for number in (0, 1)]
    Path("out").mkdir()
    for name in names:
        Path(name).touch()
    os.utime(names[0], (1, 1))
    assert encode(tree) == 0
    assert [Path(name).exists() for name in names] == [False, True]


@pytest.mark.parametrize("spec", ["numpy,numpy:uops", "all"])
def test_several_devices_of_the_environment_are_for_many_files(
    imgmlp: Command, picture: Path, spec: str
) -> None:
    """One picture is done on one of them, beside it."""
    Image.new("RGB", (8, 8)).save(picture)
    several = {"IMGMLP_DEVICE": spec}
    assert "✓ small.imlp" in imgmlp("encode", "small.png", "--psnr", "40", env=several).stderr
    assert "✓ small.imlp" in imgmlp("verify", "small.imlp", env=several).stderr
    devices = imgmlp("graph", "--json", env=several)
    assert json.loads(devices.stdout)


def test_what_has_no_place_is_refused(imgmlp: Command, picture: Path) -> None:
    folder = str(picture.parent)
    for arguments in (
        ("encode", folder),
        ("encode", picture, "--device", "numpy,numpy"),
        ("decode", "*.imlp"),
        ("encode", "--out", "x"),
        ("encode", "-", "--out", "x"),
        ("decode", folder, "--out", "x"),  # which has no such files
    ):
        assert_error(imgmlp(*arguments, check=2).stderr)
    assert_error(imgmlp("encode", folder, "--out", picture, check=8).stderr, "is no folder")
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]


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
    assert pixels_of(Path("out/x.decoded.png")).shape == (2 * small[0], 2 * small[1])
    (Path("out") / NAME).unlink()  # as if it had been killed before it remembered
    assert decode(stored, scale=2) == 0
    (Path("out") / NAME).unlink()
    assert decode(stored) == 1  # another size is another picture


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
