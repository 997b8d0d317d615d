"""Errors name the operation, the shapes, and the line of the caller."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import imgmlp
from imgmlp.engine import Tensor, compile, dtype, nn, open_device, optim
from imgmlp.engine.ir.usage_errors import PACKAGE, OutOfBoundsError, misuse, user_line

NUMPY = open_device("numpy")
HERE = f"({__file__}:"


def test_deep_error_names_the_line_of_the_user() -> None:
    x = Tensor(np.ones((2, 3)))
    network = nn.Sequential(lambda t: t.relu(), nn.Linear(Tensor(np.ones((4, 5)))))
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ValueError, match="dot") as raised:
        network(x)
    assert str(raised.value).endswith(f"{HERE}{line})")


def test_only_frames_of_the_package_are_skipped() -> None:
    assert imgmlp.__file__ is not None
    assert Path(PACKAGE) == Path(imgmlp.__file__).parent


def test_frames_of_python_and_numpy_are_skipped() -> None:
    class Mine(Tensor):
        seventh = functools.partialmethod(Tensor.sum, 7)

    line = sys._getframe().f_lineno + 2
    with pytest.raises(ValueError, match="axis 7") as raised:
        Mine(np.ones(2)).seventh()
    assert str(raised.value).endswith(f"{HERE}{line})")
    with pytest.raises(ValueError, match="item") as raised, contextlib.ExitStack() as stack:
        stack.callback(Tensor(np.ones(2)).item)
    assert HERE in str(raised.value)


def test_error_without_a_user_frame_names_no_line() -> None:
    assert user_line(None) == ""
    line = user_line(sys._getframe())
    assert line.startswith(__file__)
    assert isinstance(misuse(TypeError, "wrong"), TypeError)


def test_out_of_bounds_error_is_an_index_error_and_a_value_error() -> None:
    assert issubclass(OutOfBoundsError, IndexError)
    assert issubclass(OutOfBoundsError, ValueError)


Act = Callable[[Tensor], Any]
INDEX = Tensor(np.array([0, 2], np.int32))
REFUSED: dict[str, tuple[Act, type[Exception], list[str]]] = {
    "shapes": (lambda x: x * Tensor(np.ones((3, 2))), ValueError, ["mul", "(2, 3)", "(3, 2)"]),
    "an array's shape": (lambda x: x - np.ones(2), ValueError, ["sub", "(2, 3)", "(2,)"]),
    "inner sizes": (lambda x: x @ x, ValueError, ["dot", "(2, 3)", "3 is not 2"]),
    "broadcast_to": (lambda x: x.broadcast_to((3,)), ValueError, ["broadcast_to", "(2, 3)"]),
    "a wider shape": (lambda x: x.broadcast_to((2, 1)), ValueError, ["broadcast_to", "(2, 1)"]),
    "permute": (lambda x: x.permute(0, 0), ValueError, ["permute (0, 0)", "(2, 3)"]),
    "permute's count": (lambda x: x.permute(0), ValueError, ["permute (0,)", "(2, 3)"]),
    "reshape": (lambda x: x.reshape(4, 2), ValueError, ["reshape (4, 2)", "(2, 3)", "6 elements"]),
    "a reshape to tuples": (lambda x: x.reshape((3,), (2,)), TypeError, ["reshape", "(2, 3)"]),
    "pad": (lambda x: x.pad((1, 1)), ValueError, ["pad", "(2, 3)"]),
    "expand": (lambda x: x.expand(2, 6), ValueError, ["expand (2, 6)", "(2, 3)"]),
    "an index": (lambda x: x[2], OutOfBoundsError, ["index 2", "axis 0", "(2, 3)"]),
    "a column": (lambda x: x[:, -4], OutOfBoundsError, ["index -4", "axis 1", "(2, 3)"]),
    "an index beyond i32": (
        lambda x: x[np.array([1, 1 << 40])], OutOfBoundsError, [f"index {1 << 40}", "(2, 3)"]
    ),
    "a row beyond i32": (lambda x: x.gather(-1 << 40), OutOfBoundsError, [f"index {-1 << 40}"]),
    "an unsigned index": (
        lambda x: x.take_along_axis(Tensor(np.array([[0, (1 << 32) - 1, 0]], np.uint32)), 0),
        OutOfBoundsError, [f"index {(1 << 32) - 1}", "axis 0"],
    ),
    "an array along an axis": (
        lambda x: x.take_along_axis(np.array([[1 << 40]]), 1), OutOfBoundsError, ["axis 1"],
    ),
    "too many indices": (lambda x: x[0, 0, 0], OutOfBoundsError, ["3 indices", "(2, 3)"]),
    "a row": (lambda x: x.gather(INDEX), OutOfBoundsError, ["index 2", "axis 0", "(2, 3)"]),
    "a float index": (lambda x: x.gather(x), TypeError, ["gather", "f32[2, 3]"]),
    "axis": (lambda x: x.sum(2), ValueError, ["sum", "axis 2", "(2, 3)"]),
    "axis of max": (lambda x: x.max(-3), ValueError, ["max: axis -3", "(2, 3)"]),
    "the truth of several": (lambda x: not x, ValueError, ["bool", "(2, 3)"]),
    "several as a number": (lambda x: x.item(), ValueError, ["item", "(2, 3)"]),
    "several as a float": (float, TypeError, ["float", "(2, 3)", "use item()"]),
    "several as an int": (int, TypeError, ["int", "(2, 3)", "use item()"]),
    "a computed slice": (lambda x: x[INDEX[0] :], TypeError, ["slices", "Tensor.arange(count)"]),
    "concat": (lambda x: Tensor.concat([x, x[0]]), ValueError, ["concat", "[2, 3]", "[3]"]),
    "bits of floats": (lambda x: x ^ 1, TypeError, ["xor", "f32[2, 3]", "integers"]),
    "a condition": (lambda x: Tensor.where(x, x, 0), TypeError, ["where", "f32[2, 3]", "bool"]),
    "sums of bools": (lambda x: (x > 0) + (x > 1), TypeError, ["add", "bool[2, 3]"]),
    "text": (lambda x: x + "1", TypeError, ["add", "str"]),
    "text again": (lambda x: "1" // x.cast(dtype.i32), TypeError, ["//", "str"]),
    "a sign": (lambda x: x.copysign(None), TypeError, ["copysign", "NoneType"]),
    "weights": (lambda x: x.conv2d("w"), TypeError, ["conv2d", "str"]),
    "a factor": (lambda x: Tensor.einsum("ij->i", None), TypeError, ["einsum", "NoneType"]),
    "a count": (lambda x: x.topk("a"), TypeError, ["topk", "'a'"]),
    "a parameter": (lambda x: optim.AdamW(["w"]), TypeError, ["AdamW", "str"]),
    "a loss of several": (lambda x: x.gradient([x]), ValueError, ["gradient", "(2, 3)"]),
    "a loss of integers": (lambda x: x.cast(dtype.i32).sum().gradient([x]), TypeError, ["i32"]),
    "no path to a loss": (lambda x: x.sum().backward(), ValueError, ["backward", "leads to"]),
    "no path to a step": (
        lambda x: optim.SGD([Tensor([1.0], NUMPY)], 1).step(x.sum()), ValueError, ["SGD", "leads"],
    ),
    "a negative size": (lambda x: Tensor.zeros(-1, 3), ValueError, ["zeros", "(-1, 3)"]),
    "a size that is no number": (lambda x: Tensor.ones((2, "3")), TypeError, ["ones", "(2, '3')"]),
    "fewer than no numbers": (
        lambda x: Tensor.uniform((2, -1), 1), ValueError, ["random", "(2, -1)"]
    ),
    "an assignment": (
        lambda x: Tensor(np.ones(2), NUMPY).assign(x), ValueError, ["assign", "(2, 3)", "(2,)"],
    ),
    "several lengths": (lambda x: Tensor([[1, 2], [3]]), ValueError, ["Tensor", "inhomogeneous"]),
    "a product with a number": (lambda x: x @ 3, ValueError, ["dot", "(2, 3)", "()", "use *"]),
    "another's dtype": (lambda x: x.cast(np.float32), TypeError, ["cast", "float32", "bool_, i8"]),
    "a dtype's name": (lambda x: Tensor([1], dtype="f16"), TypeError, ["Tensor", "'f16'"]),
    "a weak dtype": (lambda x: Tensor.full((), 1, dtype.weak_int), TypeError, ["full", "weak_int"]),
    "a number of a row": (lambda x: x.gather(-1), OutOfBoundsError, ["index -1", "(2, 3)"]),
    "a step without names": (lambda x: compile(lambda: x, NUMPY), TypeError, ["compile", "dict"]),
    "a dtype": (lambda x: Tensor(np.ones(2, np.complex64)), TypeError, ["complex64"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_misuse_name_operands_and_line(name: str) -> None:
    act, error, words = REFUSED[name]
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in [*words, HERE]:
        assert word in str(raised.value)


def test_state_assigned_twice_in_a_step_is_refused() -> None:
    state = Tensor(np.zeros(2, np.float32), NUMPY, name="state")
    lines = []

    def step() -> dict[str, Tensor]:
        state.assign(state + 1.0)
        lines.append(sys._getframe().f_lineno + 1)
        state.assign(state + 2.0)
        return {}

    with pytest.raises(ValueError, match="state gets two values in one step") as raised:
        compile(step, NUMPY)
    assert str(raised.value).endswith(f"{HERE}{lines[0]})")
    state.assign(state + 1.0).assign(state + 1.0)  # outside of a step both are executed in order
    assert state.numpy().tolist() == [2.0, 2.0]
