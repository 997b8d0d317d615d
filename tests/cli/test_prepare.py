"""`imgmlp devices --prepare`: afterwards pictures of any size are encoded without compiling."""

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
    """The step programs of short runs of the latent codec on pictures of these sizes."""
    shapes, quick = [(*size, 3) for size in sizes], device is CPU
    return {
        TrainingSetup(s, device, True).step_program(forms.widths(s, np.inf, quick)) for s in shapes
    }


def test_kinds_cover_the_step_programs_of_all_sizes_on_cpus() -> None:
    sides = [*range(1, 34), *range(40, 600, 31), *range(600, 3001, 97), 3000]
    sizes = {(k.height, k.width) for k in kinds.kinds(CPU) if k.codec == "latent"}
    assert len(programs(sizes)) == len(sizes)
    assert programs(sizes) == programs({*product(sides, sides)})


def test_kinds_cover_the_step_programs_of_common_sizes_on_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latent_buckets, "is_gpu", lambda device: device is CARD)
    sizes = [(k.height, k.width) for k in kinds.kinds(CARD) if k.codec == "latent"]
    distinct = {*sizes}
    assert len(programs(distinct, CARD)) == len(distinct) == len(sizes)
    common = [
        (20, 31), (120, 90), (150, 100), (132, 91), (100, 140), (200, 160), (300, 200), (225, 400),
        (400, 240), (480, 640), (512, 768), (600, 400), (500, 500), (768, 1024), (1024, 1536),
        (1365, 1024), (800, 1280),
    ]  # fmt: skip
    assert programs({*common}, CARD) <= programs(distinct, CARD)


@pytest.mark.parametrize("device", [CPU, CARD])
def test_kinds_cover_every_network_bucket_up_to_the_width_limit(device: Any) -> None:
    for side, widest in kinds.MAX_WIDTH_BY_SIDE.items():
        picture = Picture(np.zeros((side, side, 3), np.uint8))
        targets = [
            k.wanted.value for k in kinds.kinds(device) if k.codec == "mlp" and k.width == side
        ]
        weights = (paid_weights(picture, size) for size in targets)
        covered = [buckets.shared_shape(rate_model.network_shape(w, 3)) for w in weights]
        expected = {buckets.shared_shape(s) for s in rate_model.shapes(3) if s.width <= widest}
        assert {*covered} == expected
        assert len(covered) == len(expected)


def test_encoding_after_prepare_compiles_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For pictures of another size; one kind is prepared for each codec."""
    device, sources_by_phase, build = open_opencl(), [set[str]()], Device.build

    def recorded(device: Device, source: str, *more: Sequence[str]) -> dict[str, KernelHandle]:
        sources_by_phase[-1].add(source)
        return build(device, source, *more)

    monkeypatch.setattr(Device, "build", recorded)
    two_kinds = [kinds.Kind("latent", 20, 20, Goal("lambda", 1e-3))]
    two_kinds.append(kinds.Kind("mlp", 32, 32, Goal("bytes", 700)))
    monkeypatch.setattr(kinds, "kinds", lambda _: two_kinds)
    prepare.run(Terminal(), as_json=True, spec=device.info.spec)
    seconds_by_kind = json.loads(capsys.readouterr().out)
    assert list(seconds_by_kind) == ["latent 20×20", "mlp 32×32, 700 bytes"]
    sources_by_phase.append(set())
    pixels = np.random.default_rng(0).integers(0, 256, (31, 17, 3))
    picture = Picture(pixels.astype(np.uint8))
    for kind in two_kinds:
        encoder.encode(picture, Goal("bytes", 700), Workload(1), device, codec=kind.codec)
    prepared, needed = sources_by_phase
    assert needed
    assert needed <= prepared


def test_second_prepare_reports_only_its_own_compile_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, notes = iter([12.5, 0.1]), list[str]()
    monkeypatch.setattr(kinds, "compile_for", lambda *_: next(seconds))
    one_kind = [kinds.Kind("latent", 9, 5, Goal("lambda", 1e-3))]
    monkeypatch.setattr(kinds, "kinds", lambda _: one_kind)
    monkeypatch.setattr(prepare, "open_device", lambda _: open_pocl())
    terminal = Terminal()
    monkeypatch.setattr(terminal, "note", notes.append)
    monkeypatch.setattr(terminal, "done", notes.append)
    for _ in range(2):
        prepare.run(terminal, as_json=False, spec=None)
    assert notes[1] == "1 of 1   latent 5×9   12.5 s of compiling"
    assert notes[4].endswith("0.1 s of compiling")
    assert notes[5] == "RGB pictures of all sizes now start at once   0 s of compiling"


def test_prepare_on_numpy_has_nothing_to_compile(in_process: Command) -> None:
    done = in_process("devices", "--prepare", "--device", "numpy")
    assert "nothing to compile" in done.stderr
    assert (
        json.loads(in_process("devices", "--prepare", "--json", "--device", "numpy").stdout) == {}
    )


def test_prepare_uses_the_first_device_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = list[str]()
    monkeypatch.setenv("IMGMLP_DEVICE", "numpy,cpu")
    monkeypatch.setattr(kinds, "kinds", lambda _: [])
    terminal = Terminal()
    monkeypatch.setattr(terminal, "note", notes.append)
    prepare.run(terminal, as_json=False, spec=None)
    assert notes[0].startswith("NumPy")


def test_check_and_prepare_together_are_refused(in_process: Command) -> None:
    assert "are both given" in in_process("devices", "--check", "--prepare", check=2).stderr
