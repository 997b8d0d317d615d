"""`imgmlp devices --prepare`: afterwards pictures of any size begin without compiling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Command, open_opencl, open_pocl

from imgmlp.cli import prepare
from imgmlp.codec import encoder, kinds
from imgmlp.codec.latent.training import buckets as latent_buckets
from imgmlp.codec.latent.training import forms
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.mlp import buckets, rate_model
from imgmlp.codec.mlp.rounding_search import paid_weights
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import Device
from imgmlp.engine.device.base import KernelHandle
from imgmlp.image import Picture
from imgmlp.terminal import Terminal

CPU: Any = SimpleNamespace(
    info=SimpleNamespace(kind="cpu", compute_units=2, memory=1 << 32), lanes="one"
)
CARD: Any = SimpleNamespace(info=SimpleNamespace(kind="gpu", memory=1 << 33), lanes="group")


def programs(sizes: set[tuple[int, int]], device: Any = CPU) -> set[str]:
    """Of short runs, of latents."""
    shapes, quick = [(*size, 3) for size in sizes], device is CPU
    return {
        TrainingSetup(s, device, True).step_program(forms.widths(s, np.inf, quick)) for s in shapes
    }


def test_there_is_a_picture_of_every_kind() -> None:
    sides = [*range(1, 34), *range(40, 600, 31), *range(600, 3001, 97), 3000]
    own = {(k.height, k.width) for k in kinds.kinds(CPU) if k.codec == "latent"}
    assert len(programs(own)) == len(own)
    assert programs(own) == programs({*product(sides, sides)})


def test_there_is_a_picture_of_the_usual_kinds_for_graphics_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latent_buckets, "is_gpu", lambda device: device is CARD)
    found = [(k.height, k.width) for k in kinds.kinds(CARD) if k.codec == "latent"]
    own = {*found}
    assert len(programs(own, CARD)) == len(own) == len(found)
    usual = [
        (20, 31), (120, 90), (150, 100), (132, 91), (100, 140), (200, 160), (300, 200), (225, 400),
        (400, 240), (480, 640), (512, 768), (600, 400), (500, 500), (768, 1024), (1024, 1536),
        (1365, 1024), (800, 1280),
    ]  # fmt: skip
    assert programs({*usual}, CARD) <= programs(own, CARD)


@pytest.mark.parametrize("device", [CPU, CARD])
def test_there_is_a_network_of_every_bucket_but_the_widest(device: Any) -> None:
    for side, widest in kinds.MAX_WIDTH_BY_SIDE.items():
        picture = Picture(np.zeros((side, side, 3), np.uint8))
        own = [k.wanted.value for k in kinds.kinds(device) if k.codec == "mlp" and k.width == side]
        weights = (paid_weights(picture, size) for size in own)
        found = [buckets.shared_shape(rate_model.network_shape(w, 3)) for w in weights]
        wanted = {buckets.shared_shape(s) for s in rate_model.shapes(3) if s.width <= widest}
        assert {*found} == wanted
        assert len(found) == len(wanted)


def test_what_is_prepared_begins_without_compiling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another size, in every codec; by one picture of each."""
    device, built, build = open_opencl(), [set[str]()], Device.build

    def recorded(device: Device, source: str, *more: Sequence[str]) -> dict[str, KernelHandle]:
        built[-1].add(source)
        return build(device, source, *more)

    monkeypatch.setattr(Device, "build", recorded)
    some = [kinds.Kind("latent", 20, 20, Goal("lambda", 1e-3))]
    some.append(kinds.Kind("mlp", 32, 32, Goal("bytes", 700)))
    monkeypatch.setattr(kinds, "kinds", lambda _: some)
    prepare.run(Terminal(), as_json=True, spec=device.info.spec)
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["latent 20×20", "mlp 32×32, 700 bytes"]
    built.append(set())
    pixels = np.random.default_rng(0).integers(0, 256, (31, 17, 3))
    picture = Picture(pixels.astype(np.uint8))
    for kind in some:
        encoder.encode(picture, Goal("bytes", 700), Workload(1), device, codec=kind.codec)
    prepared, asked = built
    assert asked
    assert asked <= prepared


def test_a_second_time_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, notes = iter([12.5, 0.1]), list[str]()
    monkeypatch.setattr(kinds, "compile_for", lambda *_: next(taken))
    some = [kinds.Kind("latent", 9, 5, Goal("lambda", 1e-3))]
    monkeypatch.setattr(kinds, "kinds", lambda _: some)
    monkeypatch.setattr(prepare, "open_device", lambda _: open_pocl())
    terminal = Terminal()
    monkeypatch.setattr(terminal, "note", notes.append)
    monkeypatch.setattr(terminal, "done", notes.append)
    for _ in range(2):
        prepare.run(terminal, as_json=False, spec=None)
    assert notes[1] == "1 of 1   latent 5×9   12.5 s of compiling"
    assert notes[4].endswith("0.1 s of compiling")
    assert notes[5] == "RGB pictures of all sizes now start at once   0 s of compiling"


def test_devices_that_compile_for_each_size_have_nothing_to_prepare(in_process: Command) -> None:
    found = in_process("devices", "--prepare", "--device", "numpy")
    assert "nothing to compile" in found.stderr
    assert (
        json.loads(in_process("devices", "--prepare", "--json", "--device", "numpy").stdout) == {}
    )


def test_the_environment_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = list[str]()
    monkeypatch.setenv("IMGMLP_DEVICE", "numpy,cpu")
    monkeypatch.setattr(kinds, "kinds", lambda _: [])
    terminal = Terminal()
    monkeypatch.setattr(terminal, "note", notes.append)
    prepare.run(terminal, as_json=False, spec=None)
    assert notes[0].startswith("NumPy")


def test_checking_and_preparing_are_two_commands(in_process: Command) -> None:
    assert "are both given" in in_process("devices", "--check", "--prepare", check=2).stderr
