"""`imgmlp train`: outputs, options, and resuming an interrupted training."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import OPENCL, QUICK, Command, small_pixels
from outputs import OUTPUTS, assert_error, assert_whole, names_beside, pixels_of
from PIL import Image

from imgmlp import interrupt, terminal
from imgmlp.cli import parsing
from imgmlp.cli import train as training
from imgmlp.cli.train import Outputs
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.float_mlp import fit, npz
from imgmlp.codec.float_mlp.pipeline import Trained
from imgmlp.engine import list_devices
from imgmlp.errors import Interrupted, OutputError


def test_train_writes_weights_and_reconstruction_and_nothing_to_stdout(
    imgmlp: Command, picture: Path
) -> None:
    done = imgmlp("train", picture.name, *QUICK)
    assert done.stdout == ""
    header, device, *progress, last = done.stderr.splitlines()
    assert header == "small.png  31×24 RGB   MLP 8-8-3, 96 parameters   20 steps"
    assert device.startswith("NumPy")
    assert re.fullmatch(r"about \d.* s", progress[0])
    assert re.fullmatch(r"training  \d+/20  loss .* dB  .* steps/s  .* left", progress[-1])
    assert re.fullmatch(r"✓ weights.npz .* kB   reconstruction.png .* dB   .* s", last)
    assert_whole(picture)


def test_train_and_decode_run_on_opencl_on_the_cpu(imgmlp: Command, picture: Path) -> None:
    if not any(device.kind == "cpu" for device in list_devices()):
        pytest.skip("there is no OpenCL driver for the processor")
    imgmlp("train", picture.name, *QUICK, "--device", OPENCL["device"])
    imgmlp("decode", "weights.npz", "--device", OPENCL["device"])
    decoded = pixels_of(picture.parent / "weights.png")
    np.testing.assert_array_equal(decoded, pixels_of(picture.parent / "reconstruction.png"))


def test_same_seed_gives_identical_weights(in_process: Command, picture: Path) -> None:
    files = []
    for seed in ("7", "7", "8"):
        in_process("train", picture.name, *QUICK, "--seed", seed, "--force", "-q")
        files.append((picture.parent / "weights.npz").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_options_replace_values_of_the_preset(in_process: Command, picture: Path) -> None:
    options = ("--preset", "seed", "--hidden", "12", "--layers", "2", "--features", "16")
    options += ("--steps", "3", "--batch", "5", "--lr", "0.01", "--seed", "9", "-v")
    done = in_process("train", picture.name, *options, "-o", "a.npz", "--png", "b.png")
    assert "preset seed  steps 3  batch 5  lr 0.01" in done.stderr
    facts = json.loads(in_process("info", "a.npz", "--json").stdout)
    assert facts["network"] == "16-12-12-3"
    assert names_beside(picture) == {"a.npz", "b.png"}


def test_gray_picture_gives_a_gray_reconstruction(in_process: Command, picture: Path) -> None:
    Image.fromarray(small_pixels(1)[:, :, 0]).save(picture)
    assert "31×24 gray" in in_process("train", picture.name, *QUICK).stderr
    assert pixels_of(picture.parent / "reconstruction.png").ndim == 2


def test_dropped_alpha_channel_is_reported(in_process: Command, picture: Path) -> None:
    Image.fromarray(small_pixels()).convert("RGBA").save(picture)
    done = in_process("train", picture.name, *QUICK)
    assert "small.png: the fully opaque alpha channel was dropped" in done.stderr


def test_live_option_leaves_preview_and_page(in_process: Command, picture: Path) -> None:
    in_process("train", picture.name, *QUICK, "--live", "live.png")
    live = pixels_of(picture.parent / "live.png")
    np.testing.assert_array_equal(live, pixels_of(picture.parent / "reconstruction.png"))
    page = (picture.parent / "live.html").read_text("utf-8")
    assert "Done: 20 of 20 steps" in page
    assert 'src="live.png?' in page


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "0"),
        ("--steps", "100000001"),
        ("--steps", "many"),
        ("--batch", "0"),
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--lr", "inf"),
        ("--hidden", "0"),
        ("--layers", "0"),
        ("--features", "6"),
        ("--features", "0"),
        ("--seed", "-1"),
        ("--seed", "4294967296"),
        ("--preset", "other"),
        ("--unheard-of",),
    ],
    ids=" ".join,
)
def test_invalid_option_of_train_is_exit_2(
    in_process: Command, picture: Path, options: tuple[str, ...]
) -> None:
    done = in_process("train", picture.name, *options, check=2)
    assert_error(done.stderr, options[0])
    assert done.stdout == ""
    assert names_beside(picture) == set()


@pytest.mark.parametrize("name", ["live.html", "live.txt"])
def test_live_option_refuses_extensions_of_other_files(
    in_process: Command, picture: Path, name: str
) -> None:
    done = in_process("train", picture.name, *QUICK, "--live", name, check=2)
    assert_error(done.stderr, f"{name} has the extension")


@pytest.mark.parametrize("existing", [*OUTPUTS, "live.png", "live.html"])
def test_existing_output_is_replaced_only_with_force(
    in_process: Command, picture: Path, existing: str
) -> None:
    path = picture.parent / existing
    path.write_bytes(b"old")
    options = (*QUICK, "--live", "live.png")
    assert_error(in_process("train", picture.name, *options, check=8).stderr, "--force", existing)
    assert path.read_bytes() == b"old"
    assert names_beside(picture) == {existing}
    in_process("train", picture.name, *options, "--force")
    assert path.read_bytes() != b"old"


def test_full_disk_is_exit_8(in_process: Command, picture: Path) -> None:
    done = in_process("train", picture.name, *QUICK, "-o", "/dev/full", check=8)
    assert_error(done.stderr, "/dev/full", "No space left")
    assert names_beside(picture) == set()


def test_diverged_loss_is_exit_1_and_weights_are_written(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("train", picture.name, *QUICK, "--lr", "1e30", check=1)
    assert_error(done.stderr, "the loss diverged", "weights.npz", "--lr")
    assert "Warning" not in done.stderr
    assert_whole(picture)


def test_weights_are_kept_if_the_reconstruction_cannot_be_written(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command then replaces its own weights."""
    folder, save = picture.parent, training.pictures.save_named
    chosen = {"steps": 300, "batch": 64, "hidden": 8, "layers": 1, "features": 8}
    settings = parsing.training_settings("default", **chosen)

    def train(name: str) -> None:
        outputs = Outputs(folder / f"{name}.npz", folder / f"{name}.png")
        training.run(terminal.Terminal(), picture, outputs, settings, "numpy", False)

    def full(*_: Any) -> None:
        raise OutputError("cannot write a.png: No space left on device", hint="another place")

    train("whole")
    with monkeypatch.context() as patch:
        patch.setattr(training.pictures, "save_named", full)
        patch.setattr(training.Run, "should_save", lambda *_: True)
        with pytest.raises(OutputError, match="No space left") as raised:
            train("a")
    assert training.pictures.save_named is save
    assert f"`imgmlp decode {folder / 'a.npz'} -o picture.png`" in raised.value.hint
    assert open_stored(folder / "a.npz").width == 31
    train("a")
    for end in ("npz", "png"):
        assert (folder / f"a.{end}").read_bytes() == (folder / f"whole.{end}").read_bytes()
    assert names_beside(picture) == {"a.npz", "a.png", "whole.npz", "whole.png"}


def test_resumed_training_replaces_only_its_own_outputs(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, own_terminal = picture.parent, terminal.Terminal()
    chosen = {"batch": 64, "hidden": 8, "layers": 1, "features": 8}

    def train(name: str, steps: int = 300, png: str = "a", live: Path | None = None) -> None:
        settings = parsing.training_settings("default", steps=steps, **chosen)
        outputs = Outputs(folder / f"{name}.npz", folder / f"{png}.png", live)
        training.run(own_terminal, picture, outputs, settings, "numpy", False)

    train("whole", png="whole")
    polls = iter(range(7))
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.StopRequest, "requested", lambda _: next(polls, None) is None)
        with pytest.raises(Interrupted, match="stopped after") as raised:
            train("a")
    assert "the same command continues" in raised.value.hint
    assert open_stored(folder / "a.npz").width == 31
    with pytest.raises(OutputError, match="exists already"):  # not with other settings
        train("a", 310)
    with pytest.raises(OutputError, match=r"whole\.png exists already"):  # nor over other files
        train("a", png="whole")
    with pytest.raises(OutputError, match=r"whole\.png exists already"):
        train("a", live=folder / "whole.png")
    for name in ("a.npz", "a.png"):  # nor files of other programs, however old
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"mine")
        os.utime(folder / name, (0, 0))
        with pytest.raises(OutputError, match=f"{name} exists already") as refused:
            train("a")
        assert "move it away" in refused.value.hint
        assert (folder / name).read_bytes() == b"mine"
        (folder / name).write_bytes(content)  # restored
    capsys.readouterr()
    train("a")
    assert "continuing after" in capsys.readouterr().err
    for end in ("npz", "png"):
        assert (folder / f"a.{end}").read_bytes() == (folder / f"whole.{end}").read_bytes()
    assert names_beside(picture) == {"a.npz", "a.png", "whole.npz", "whole.png"}


def test_resumed_training_replaces_only_its_own_preview(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, chosen = picture.parent, {"batch": 64, "hidden": 8, "layers": 1, "features": 8}
    settings = parsing.training_settings("default", steps=300, **chosen)

    def train() -> None:
        outputs = Outputs(folder / "a.npz", folder / "a.png", folder / "live.png")
        training.run(terminal.Terminal(), picture, outputs, settings, "numpy", False)

    polls = iter(range(7))
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.StopRequest, "requested", lambda _: next(polls, None) is None)
        with pytest.raises(Interrupted):
            train()
    for name in ("live.png", "live.html"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"mine")
        with pytest.raises(OutputError, match=r"live\.\w+ exists already"):
            train()
        assert (folder / name).read_bytes() == b"mine"
        (folder / name).write_bytes(content)
    train()
    assert "Done: " in (folder / "live.html").read_text("utf-8")


def test_ctrl_c_before_the_first_step_leaves_files_unchanged(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels are compiled then, and nothing can be saved. After a step, Ctrl-C saves it."""
    folder, enqueue_chunk = picture.parent, fit._Replay.enqueue_chunk
    chosen = {"steps": 300, "batch": 64, "hidden": 8, "layers": 1, "features": 8}
    settings = parsing.training_settings("default", **chosen)

    def train(step: Any = enqueue_chunk) -> None:
        outputs = Outputs(folder / "a.npz", folder / "a.png")
        with monkeypatch.context() as patch:
            patch.setattr(fit._Replay, "enqueue_chunk", step)
            training.run(terminal.Terminal(), picture, outputs, settings, "numpy", False)

    def interrupt_before_step(replay: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        enqueue_chunk(replay)

    def interrupt_after_step(replay: Any) -> None:
        enqueue_chunk(replay)
        signal.raise_signal(signal.SIGINT)

    def interrupted_at_once() -> dict[str, bytes]:
        with pytest.raises(KeyboardInterrupt):
            train(interrupt_before_step)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    assert interrupted_at_once().keys() == {picture.name}
    with pytest.raises(Interrupted, match="stopped after 1 of"):
        train(interrupt_after_step)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"a.npz", "a.png"} < before.keys()
    assert interrupted_at_once() == before
    capsys.readouterr()
    train()
    assert "continuing after 1 of 300 steps" in capsys.readouterr().err
    assert names_beside(picture) == {"a.npz", "a.png"}


def test_interrupted_training_to_a_device_file_keeps_no_checkpoint(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    null = picture.parent / "null"
    null.symlink_to("/dev/null")
    settings = parsing.training_settings("default", batch=64, hidden=8, layers=1, features=8)
    monkeypatch.setattr(interrupt.StopRequest, "requested", lambda _: True)
    outputs = Outputs(null, picture.parent / "a.png")
    with pytest.raises(Interrupted) as raised:
        training.run(terminal.Terminal(), picture, outputs, settings, "numpy", False)
    assert "the best weights so far are in" in raised.value.hint
    assert "start it again" in raised.value.hint
    assert names_beside(picture) == {"null", "a.png"}


@pytest.mark.parametrize("name", ["a.npz", "a.png"])
@pytest.mark.parametrize("force", [False, True])
def test_output_written_by_others_during_training_is_kept_without_force(
    picture: Path, name: str, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, train = picture.parent, training.pipeline.train

    def meanwhile(*arguments: Any) -> Trained:
        (folder / name).write_bytes(b"mine")
        return train(*arguments)

    monkeypatch.setattr(training.pipeline, "train", meanwhile)
    chosen = {"steps": 3, "batch": 64, "hidden": 8, "layers": 1, "features": 8}
    settings = parsing.training_settings("default", **chosen)
    outputs = Outputs(folder / "a.npz", folder / "a.png")
    with nullcontext() if force else pytest.raises(OutputError, match=f"{name} was .* meantime"):
        training.run(terminal.Terminal(), picture, outputs, settings, "numpy", force)
    assert ((folder / name).read_bytes() == b"mine") is not force
    if not force and name == "a.png":  # the weights are written all the same
        with (folder / "a.npz").open("rb") as file:
            assert npz.load(file).width == 31


def test_rerun_after_a_failed_write_does_not_train_again(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even after a short run, the result is in a checkpoint."""
    folder, steps = picture.parent, list[int]()
    settings = parsing.training_settings("default", steps=3, batch=64, hidden=8, layers=1)
    outputs = Outputs(folder / "a.npz", folder / "a.png")

    write, enqueue_chunk = training.output_files.write_atomically, fit._Replay.enqueue_chunk

    def run() -> None:
        training.run(terminal.Terminal(), picture, outputs, settings, "numpy", False)

    def full(path: Path, *rest: Any) -> None:
        if path.suffix == ".npz":
            raise OutputError(f"cannot write {path}: disk full", hint="")
        write(path, *rest)

    def counted(replay: Any) -> None:
        enqueue_chunk(replay)
        steps.append(replay.done)

    monkeypatch.setattr(fit._Replay, "enqueue_chunk", counted)
    with monkeypatch.context() as patch:
        patch.setattr(training.output_files, "write_atomically", full)
        with pytest.raises(OutputError, match="disk full"):
            run()
    assert steps[-1] == 3
    steps.clear()
    run()
    assert not steps
    assert names_beside(picture) == {"a.npz", "a.png"}
