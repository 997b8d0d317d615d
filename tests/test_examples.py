"""Every example runs as its first lines say, and ends with an error where answers are wrong."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import environment, open_opencl

from imgmlp.engine import Device, Tensor, optim

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LESSONS = (ROOT / "docs" / "lessons.md").read_text("utf-8")

# What is learned in fewer steps than a user is shown.
FEWER = {"transformer": ("--steps", "250")}

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@every_example
def test_an_example_runs_from_anywhere(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), *FEWER.get(path.stem, ())],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir())


@every_example
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_example_notices_wrong_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes back from the device is off by one."""
    monkeypatch.setattr(Device, "read_async", spoiled(Device.read_async))  # read() uses it too
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises((AssertionError, SystemExit)) as caught:
        runpy.run_path(str(path), run_name="__main__")
    if isinstance(caught.value, SystemExit):
        assert caught.value.code not in (0, None)


def spoiled(read: Any) -> Any:
    def wrong(device: Device, source: Any, array: np.ndarray) -> Any:
        pending = read(device, source, array)
        pending.wait()
        array[...] = ~array if array.dtype == bool else array + array.dtype.type(1)
        return pending

    return wrong


def test_kernels_by_hand_train_the_linear_regression_outside_of_a_compiled_step() -> None:
    """What the last lesson says to try."""
    lesson, last = (
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
        for name in ("linear_regression", "weighted_sum")
    )
    device, data = open_opencl(), lesson["generate"](seed=42)
    weight = Tensor.empty(lesson["FEATURES"], device=device)
    bias = Tensor.empty(1, device=device)
    optimizer = optim.SGD([weight, bias], lesson["LR"])
    order = np.random.default_rng(1).permutation(lesson["TRAINING"])
    for rows in order.reshape(lesson["BATCHES"], lesson["BATCH"]):
        x, y = Tensor(data.x[rows], device), Tensor(data.y[rows, 0], device)
        found = last["WeightedSum"].apply(x, weight) + bias
        optimizer.step((found - y).square().mean())
    wanted, shift = lesson["by_hand"](data, [order])
    np.testing.assert_allclose(weight.numpy(), wanted[:, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(bias.numpy(), shift, rtol=0, atol=1e-5)


@every_example
def test_an_example_is_a_lesson_and_says_how_to_run_it(path: Path) -> None:
    assert f"](../examples/{path.name})" in LESSONS
    assert f"python examples/{path.name}" in path.read_text("utf-8").split('"""')[1]
