"""NumPy's functions of Tensors: allowed outside of a step, refused where they bake constants in."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

from imgmlp.engine import (
    Tensor,
    compile,
    open_device,
)

REDUCTIONS = "sum prod mean var std all any max min amax amin ptp".split()  # noqa: SIM905


@pytest.mark.parametrize("name", [*REDUCTIONS, "median", "argmax", "linalg.norm", "cumsum"])
def test_numpy_functions_take_a_tensor_outside_of_a_step(name: str) -> None:
    a = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    x, function = Tensor(a, open_device("numpy")), operator.attrgetter(name)(np)
    assert np.array_equal(function(x), function(a))
    assert np.array_equal(function(x, axis=0), function(a, axis=0))
    assert np.stack([x, a]).shape == (2, 3, 4)
    assert np.shape(x) == (3, 4)
    assert isinstance(np.squeeze(x), Tensor)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_numpy_reduction_of_a_tensor_in_a_step_is_refused(name: str) -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    with pytest.raises(
        TypeError, match=f"np.{name} of a Tensor: .*own operations.*test_numpy_functions.py"
    ):
        compile(lambda: {"y": x * getattr(np, name)(a=x)}, open_device("numpy"))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("where", lambda x: np.where(x, 1.0, 2.0)),
        ("stack", lambda x: np.stack([x, x])),
        ("concatenate", lambda x: np.concatenate([x, np.ones(2)])),
        ("median", np.median),
        ("linalg.norm", np.linalg.norm),
    ],
)
def test_numpy_function_that_would_bake_a_constant_into_a_step_is_refused(
    name: str, call: Callable[[Tensor], np.ndarray]
) -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    advice = {"where": "use Tensor.where", "concatenate": "use Tensor.concat"}.get(name, "")
    last = name.rpartition(".")[2]
    with pytest.raises(
        TypeError, match=rf"np.{last} of a Tensor: .*{advice}.*test_numpy_functions\.py"
    ):
        compile(lambda: {"y": x * call(x)}, open_device("numpy"))
    assert np.asarray(call(x)).size  # still works outside of a step


def test_numpy_functions_that_call_tensor_methods_work_in_a_step() -> None:
    device = open_device("numpy")
    x = Tensor([[1.0, 2.0]], device)
    program = compile(lambda: {"y": np.squeeze(x) + np.shape(x)[1]}, device)
    x.write(np.array([[5.0, 6.0]], np.float32))
    program.run()
    assert program.read("y").tolist() == [7.0, 8.0]


def test_explicit_asarray_of_a_tensor_is_a_constant_of_the_step() -> None:
    device = open_device("numpy")
    x = Tensor([1.0, 2.0], device)
    program = compile(lambda: {"y": x * np.asarray(x).sum()}, device)
    program.run()
    assert program.read("y").tolist() == [3.0, 6.0]
