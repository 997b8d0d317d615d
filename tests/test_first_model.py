"""The page on a first model: its program learns, and its tables for PyTorch users are correct."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping, open_opencl

from imgmlp import engine
from imgmlp.engine import AnyDevice, Tensor, dtype, nn, optim

PAGE = (Path(__file__).parent.parent / "docs" / "first-model.md").read_text("utf-8")
CELLS = [line.strip("| \n").split(" | ") for line in re.findall(r"^\| `.*\n", PAGE, re.MULTILINE)]
ROWS, SAME = ([row for row in CELLS if len(row) == count] for count in (2, 3))


def test_the_program_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "open_device", open_opencl)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)), names)
    *losses, right = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in losses] == ["loss "] * 5
    assert float(losses[-1].split()[1]) < 0.1
    assert int(right.partition("%")[0]) > 90
    assert names["weights"][0].shape == (2, 32)


def test_the_loss_of_a_sequence_is_the_sum_over_its_positions() -> None:
    rng, device = np.random.default_rng(0), open_mapping("numpy")
    xs, ys, state = rng.normal(size=(16, 3)), rng.normal(size=(16, 3)), np.zeros(3)

    def cell(h: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = (h + x) * 0.5
        return h, (h - y).square().sum()

    arrays = {"inputs": xs, "targets": ys, "h": state}
    names: dict[str, Any] = {name: Tensor(array, device) for name, array in arrays.items()}
    names |= {"cell": cell, "loop": engine.loop, "Tensor": Tensor, "device": device}
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(block, names)
    total = 0.0
    for x, y in zip(xs, ys, strict=True):
        state = (state + x) * 0.5
        total += np.square(state - y).sum()
    assert names["loss"].item() == pytest.approx(total, rel=1e-5)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that the tables use."""
    device: AnyDevice = open_mapping("numpy")
    net = nn.Linear.random(2, 3, seed=0, device=device)
    defined: dict[str, Any] = {"math": math, "np": np, "nn": nn, "optim": optim, "dtype": dtype}
    defined |= {"Tensor": Tensor, "device": device, "net": net}
    defined["loss"] = net(Tensor(np.ones((4, 2)), device)).sum()
    return defined | {"optimizer": optim.Adam(net.parameters())}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_the_table_says_instead_runs(row: list[str], names: dict[str, Any]) -> None:
    x, w = (Tensor(np.arange(6.0).reshape(2, 3) - 2, names["device"]) for _ in range(2))
    _, here = row
    for code in re.findall(r"`([^`]+)`", here):
        found = eval(code, {**names, "x": x, "w": w})  # noqa: S307, our own page
        if isinstance(found, Tensor) and found.node.size:
            Tensor(found.node, names["device"]).numpy()


@pytest.mark.parametrize("row", SAME, ids=lambda row: row[0])
def test_what_has_another_meaning_is_what_the_table_says(
    row: list[str], names: dict[str, Any]
) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    scope = {**names, "a": a, "x": Tensor(a, names["device"])}
    here, arrays, instead = (
        [eval(code, scope) for code in re.findall(r"`([^`]+)`", cell)]  # noqa: S307, our own page
        for cell in row
    )
    for found, wanted in zip(here, arrays, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6)
    for value in instead:
        if isinstance(value, Tensor):
            value.numpy()


def test_names_that_the_table_translates_are_not_there() -> None:
    theirs = " ".join(theirs for theirs, _ in ROWS)
    methods = set(re.findall(r"`a\.(\w+)", theirs))
    assert len(methods) > 10
    assert [name for name in methods if hasattr(Tensor, name)] == []
    none = ["Conv1d", "Conv2d", "Embedding", "Dropout", "BatchNorm1d", "BatchNorm2d", "MSELoss"]
    assert [name for name in none if hasattr(nn, name)] == []
    assert not hasattr(optim.SGD, "momentum")
