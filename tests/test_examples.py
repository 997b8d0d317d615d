"""Every example runs as its docstring says, and exits with an error if its results are wrong."""

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

# Options that shorten an example: it learns enough in fewer steps than it does by default.
SHORTENING_OPTIONS = {"transformer": ("--steps", "250")}

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@every_example
def test_example_runs_in_any_folder_and_leaves_no_files(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), *SHORTENING_OPTIONS.get(path.stem, ())],
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
def test_example_exits_with_an_error_if_results_are_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is read from the device is off by one."""
    monkeypatch.setattr(Device, "read_async", off_by_one(Device.read_async))  # read() uses it too
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises((AssertionError, SystemExit)) as caught:
        runpy.run_path(str(path), run_name="__main__")
    if isinstance(caught.value, SystemExit):
        assert caught.value.code not in (0, None)


def off_by_one(read: Any) -> Any:
    def wrong(device: Device, source: Any, array: np.ndarray) -> Any:
        pending = read(device, source, array)
        pending.wait()
        array[...] = ~array if array.dtype == bool else array + array.dtype.type(1)
        return pending

    return wrong


def test_hand_written_kernels_train_linear_regression_without_compile() -> None:
    """The last lesson suggests this as an exercise."""
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
        predicted = last["WeightedSum"].apply(x, weight) + bias
        optimizer.step((predicted - y).square().mean())
    expected_weight, expected_bias = lesson["by_hand"](data, [order])
    np.testing.assert_allclose(weight.numpy(), expected_weight[:, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(bias.numpy(), expected_bias, rtol=0, atol=1e-5)


@every_example
def test_example_has_a_lesson_and_says_how_to_run_it(path: Path) -> None:
    assert f"](../examples/{path.name})" in LESSONS
    assert f"python examples/{path.name}" in path.read_text("utf-8").split('"""')[1]
