"""What Tensors mean where sizes are awkward, numbers meet, and values are extreme.

test_ops.py holds each operation to NumPy; here are the corners between them. Programs
are large because a driver compiles many small ones slowly.
"""

from __future__ import annotations

import copy
import math
import operator
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping
from reference import close
from small_programs import draw, results

from imgmlp.engine import (
    AnyDevice,
    Pages,
    Tensor,
    assign_all,
    check_device,
    compile,
    dtype,
    memory_needed,
    open_device,
    optim,
)

Array = np.ndarray[Any, Any]
NUMPY = open_device("numpy")


# --- numbers that compare in ways of their own ---


def test_comparisons_are_those_of_ieee_numbers(device: AnyDevice) -> None:
    values = np.array([np.nan, 1, -0.0, 0.0, -2, np.inf, -np.inf], np.float32)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    x, y = Tensor(a, device), Tensor(b, device)
    found = results(
        {
            "<": x < y,
            ">": x > y,
            "<=": x <= y,
            ">=": x >= y,
            "==": x == y,
            "!=": x != y,
            "0": x >= 0,
            "array": b != x,
        },
        device,
    )
    wanted = {
        "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b,
        "0": a >= 0, "array": b != a,
    }  # fmt: skip
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name


def test_a_tensor_equals_nothing_that_is_no_number_and_is_a_key_by_identity() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
    assert (x == None, x != "x") == (False, True)  # noqa: E711
    assert {x: 1, y: 2}[y] == 2
    x.requires_grad = y.requires_grad = True
    y.requires_grad = False
    assert (x.requires_grad, y.requires_grad) == (True, False)


def test_nan_and_infinity_go_through_what_clips_and_selects(device: AnyDevice) -> None:
    a = np.array([np.nan, np.inf, -np.inf, -3, 3], np.float32)
    x = Tensor(a, device)
    found = results(
        {
            "clip": x.maximum(0.0).minimum(1.0),
            "relu": x.relu(),
            "leaky": x.leaky_relu(0.25),
            "abs": x.abs(),
            "sigmoid": x.sigmoid(),
            "tanh": x.tanh(),
            "where": Tensor.where(x > 0, x, 7.0),
        },
        device,
    )
    nan, inf = np.nan, np.inf
    wanted = {  # what is added on the way is 1 at the least
        "clip": [nan, 1, 0, 0, 1],
        "relu": [nan, inf, 0, 0, 3],
        "leaky": [nan, inf, -inf, -0.75, 3],
        "abs": [nan, inf, inf, 3, 3],
        "sigmoid": [nan, 1, 0, 1 / (1 + np.exp(3)), 1 / (1 + np.exp(-3))],
        "tanh": [nan, 1, -1, -np.tanh(3), np.tanh(3)],
        "where": [7, inf, 7, 7, 3],
    }
    for name, value in wanted.items():
        assert close(found[name], value, np.maximum(1, np.abs(value)), roundings=16), name


def test_one_nan_among_many_reaches_the_maximum(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    """Wherever it stands: partial maxima meet in trees and in two stages."""
    found, places = {}, (0, 1, 15, 16, 777, 16_384, 40_000)
    for place in places:
        a = draw(rng, 40_001)
        a[place] = np.nan
        found[str(place)] = Tensor(a, device).max()
    for name, value in results(found, device).items():
        assert np.isnan(value), name


def test_powers_of_what_is_infinite(device: AnyDevice) -> None:
    y = np.float32([0, 1, -1, 2.5, -0.5, math.inf, -math.inf, math.nan])
    for base in (math.inf, -math.inf, 2, 0.5, 1, 0.0):
        with np.errstate(all="ignore"):
            wanted = np.float32(base) ** y
        found = (base ** Tensor(y, device)).numpy()
        assert np.allclose(found, wanted, rtol=1e-6, atol=0, equal_nan=True), base
    with np.errstate(all="ignore"):
        for exponent in (0.5, 2, 3, -1, -2, 1.5):
            x = np.float32([math.inf, -math.inf, math.nan])
            found = (Tensor(x, device) ** exponent).numpy()
            assert np.allclose(found, x**exponent, rtol=0, atol=0, equal_nan=True), exponent


def test_an_array_is_kept_once_and_not_shared() -> None:
    array = np.arange(6, dtype=np.float32)
    kept = [Tensor(array, NUMPY), Tensor(array[::2], NUMPY), Tensor(array.reshape(2, 3), NUMPY)]
    kept += [Tensor(memoryview(array), NUMPY)]  # type: ignore[arg-type]
    before = [t.numpy().tolist() for t in kept]
    host = [t.node.arg for t in (*kept, Tensor(array[0], NUMPY))]
    array[:] = -1
    assert [t.numpy().tolist() for t in kept] == before
    assert all(buffer.host is None or not np.shares_memory(buffer.host, array) for buffer in host)
    tracemalloc.start()
    try:
        made = Tensor.empty(1 << 20, device=NUMPY)
        assert tracemalloc.get_traced_memory()[1] < 2.1 * made.node.arg.nbytes
        tracemalloc.reset_peak()
        before_it = tracemalloc.get_traced_memory()[0]
        wide = Tensor(np.zeros(1 << 20), NUMPY)
        most = tracemalloc.get_traced_memory()[1] - before_it
        assert most < 3.1 * wide.node.arg.nbytes  # the array itself twice as many bytes
    finally:
        tracemalloc.stop()


def test_functions_at_the_ends_of_their_range(device: AnyDevice) -> None:
    a = np.array([-200, -87, -1e-4, 0, 1e-4, 87, 200], np.float32)
    x = Tensor(a, device)
    found = results({"exp": x.exp(), "log": x.log(), "inverse": 1 / x, "sqrt": x.sqrt()}, device)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64)
        wanted = {"exp": np.exp(wide), "log": np.log(wide), "inverse": 1 / wide, "sqrt": wide**0.5}
        for name, value in wanted.items():
            single = value.astype(np.float32)
            # exp(87) carries the rounding of 87 / ln 2 to a float32: 2**-18 of the value
            assert np.allclose(found[name], single, rtol=1e-5, atol=1e-30, equal_nan=True), name


def test_sines_of_large_numbers_and_their_gradients(device: AnyDevice) -> None:
    """The argument is reduced exactly: nothing is added to it first."""
    a = np.array([-1e6, -30_000.5, -4, 0, 0.1, 1.5707964, 700, 30_000, 1e5], np.float32)
    x, wide = Tensor(a, device), a.astype(np.float64)
    sine, cosine = x.sin(), x.cos()
    found = results(
        {
            "sin": sine,
            "cos": cosine,
            "slope of sin": sine.sum().gradient([x])[0],
            "slope of cos": cosine.sum().gradient([x])[0],
        },
        device,
    )
    wanted = {
        "sin": np.sin(wide),
        "cos": np.cos(wide),
        "slope of sin": np.cos(wide),
        "slope of cos": -np.sin(wide),
    }
    for name, value in wanted.items():
        assert close(found[name], value, 1, roundings=16), name


# --- numbers and arrays on the left, and Tensors as numbers ---


def test_arrays_and_numbers_on_the_left(device: AnyDevice) -> None:
    a = np.array([[1.0, 2.0, 4.0], [-8.0, 0.5, 3.0]], np.float32)
    i = np.array([[1, 2, 3], [12, 7, 5]], np.int32)
    x, n = Tensor(a, device), Tensor(i, device)
    cases: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda x, n: a + x,
        "-": lambda x, n: a - x,
        "*": lambda x, n: np.float32(3) * x,
        "/": lambda x, n: a[0] / x,
        "//": lambda x, n: 100 // n,
        "%": lambda x, n: i[:1] % n,
        "&": lambda x, n: 6 & n,
        "|": lambda x, n: i | n,
        "^": lambda x, n: -1 ^ n,
        "<<": lambda x, n: 1 << n,
        ">>": lambda x, n: i[::-1] >> n,
        "<": lambda x, n: a[::-1] < x,
        ">": lambda x, n: i[0] > n,
        "@": lambda x, n: a[:, :2] @ x,
        "**": lambda x, n: 2.5**x,
    }
    found = {name: act(x, n) for name, act in cases.items()}
    assert all(isinstance(t, Tensor) for t in found.values())
    for name, value in results(found, device).items():
        wanted = cases[name](a, i)
        assert value.shape == wanted.shape, name
        assert np.allclose(value, wanted, rtol=1e-6), name


def test_what_makes_tensors() -> None:
    device = open_mapping("numpy")
    made = {
        "full": (Tensor.full((2, 3), 2.5, device=device), np.full((2, 3), 2.5, np.float32)),
        "zeros": (Tensor.zeros(3, dtype=dtype.u8, device=device), np.zeros(3, np.uint8)),
        "ones": (Tensor.ones(device=device), np.ones((), np.float32)),
        "arange": (Tensor.arange(4, device=device), np.arange(4, dtype=np.int32)),
        "empty": (Tensor.empty(2, 1, dtype=dtype.f16, device=device), np.zeros((2, 1), np.float16)),
    }
    for name, (tensor, wanted) in made.items():
        assert tensor.realized == (name == "empty")
        assert tensor.numpy().dtype == wanted.dtype, name
        assert np.array_equal(tensor, wanted), name
    storage = made["empty"][0]
    assert storage.write(np.array([[1], [2]], np.float16)).numpy().tolist() == [[1], [2]]


def test_arrays_where_tensors_could_be() -> None:
    device = open_mapping("numpy")
    a = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    x = Tensor(a, device)
    assert np.array_equal(Tensor.where(a > 1.5, x, 0), np.where(a > 1.5, a, 0))
    assert np.array_equal(Tensor.where(True, x, 0), a)
    assert np.array_equal(Tensor.concat([x, a[:1], x]), np.concatenate([a, a[:1], a]))
    assert np.array_equal(x.gather(np.array([1, 0, 1])), a[[1, 0, 1]])
    assert np.array_equal(x.gather(1), a[1])
    assert np.array_equal(x.sum(np.int64(1)), [3, 7])
    assert np.array_equal(x.assign(a[1]), a[[1, 1]])
    assert np.array_equal(x.assign(7), np.full((2, 2), 7))


def test_one_element_is_a_number_and_true_or_false() -> None:
    one = Tensor([[2.5]], open_mapping("numpy"))
    assert one
    assert not one - 2.5
    assert one.item() == 2.5
    with pytest.raises(TypeError, match="Tensor"):
        np.sqrt(one)
    rows = Tensor([[1, 2], [3, 4]], one.device)
    assert len(rows) == 2
    assert [row.numpy().tolist() for row in rows] == [[1, 2], [3, 4]]
    assert np.asarray(rows, np.float16).dtype == np.float16
    assert np.array_equal(rows, [[1, 2], [3, 4]])


def test_a_step_cannot_ask_whether_a_value_is_true() -> None:
    x = Tensor([1.0], open_mapping("numpy"))

    def step() -> dict[str, Tensor]:
        return {"y": x if x > 0 else -x}

    with pytest.raises(TypeError, match="where"):
        compile(step, open_mapping("numpy"))


def test_an_augmented_assignment_is_a_new_expression_and_assign_is_in_place() -> None:
    x = held = Tensor(np.zeros(3), open_mapping("numpy"))
    x += 1
    assert (x.numpy() == 1).all()
    assert (held.numpy() == 0).all()
    same = held
    held.assign(held + 2)
    assert (same.numpy() == 2).all()


def test_what_a_tensor_cannot_take_comes_with_a_remedy() -> None:
    w = Tensor(np.zeros((2, 3)), open_mapping("numpy"))
    given = np.ones(6, np.float16)
    for remedy in (r"use .astype\(np.float32\).reshape\(2, 3\) ", r"use .reshape\(2, 3\) "):
        with pytest.raises(ValueError, match=rf"f32\[2, 3\] cannot take float\d+\[6\]; {remedy}"):
            w.write(given)
        given = given.astype(np.float64)
    w.write(given.reshape(2, 3))
    with pytest.raises(ValueError, match=r"cannot take float32\[7\] "):
        w.write(np.zeros(7, np.float32))


def test_what_is_written_is_narrowed_as_what_a_tensor_is_made_of() -> None:
    w, n = Tensor(np.zeros(2), NUMPY), Tensor([0, 0], NUMPY)
    assert w.write(np.array([0.1, 1e300])).numpy().tolist() == [np.float32(0.1), np.inf]
    assert n.write(np.array([3, -4])).numpy().tolist() == [3, -4]
    with pytest.raises(ValueError, match="i32 cannot hold 2147483648"):
        n.write(np.array([0, 2**31]))
    for wrong, state in ((np.zeros(2), n), (np.zeros(2, int), w), (np.zeros(3), w)):
        with pytest.raises(ValueError, match="cannot take"):
            state.write(wrong)
    Tensor(np.zeros((0, 2)), NUMPY).write(np.zeros((0, 2)))


def test_an_expression_is_computed_from_the_state_of_when_it_is_asked_for() -> None:
    w = Tensor(np.ones(3), open_mapping("numpy"))
    loss, kept = w.square().sum(), w.square().sum().realize()
    assert loss.item() == 3
    w.assign(w * 2)
    assert (loss.item(), kept.item()) == (12, 3)


def test_a_copy_is_another_name_for_the_same_value() -> None:
    w = Tensor(np.ones(3), NUMPY)
    seen = copy.copy(w)
    w.assign(w * 2)
    assert seen.numpy().tolist() == [2, 2, 2]


def test_a_tensor_knows_where_its_elements_lie() -> None:
    x = Tensor(np.zeros((3, 5, 7)))
    assert x.strides == (35, 7, 1)
    assert x.flat_index(2, 3, 4) == 2 * 35 + 3 * 7 + 4
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1"):
        x.flat_index(0, 5, 0)
    with pytest.raises(IndexError, match="2 indices"):
        x.flat_index(0, 1)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x + Tensor(np.ones((3, 2))), ValueError, ["add", "(2, 3)", "(3, 2)"]),
        (lambda x: x.minimum(Tensor([1, 2])), ValueError, ["minimum", "(2, 3)", "(2,)"]),
        (lambda x: Tensor.where(Tensor([True, False]), x, 0), ValueError, ["where", "(2,)"]),
        (lambda x: x[0].reshape(3, 1, 1) @ x[:, 0].reshape(2, 1, 1), ValueError, ["dot", "(3,)"]),
        (lambda x: x.transpose(0, 2), ValueError, ["transpose", "axis 2"]),
        (lambda x: x // "2", TypeError, ["//", "str"]),
        (lambda x: (x > 0) % (x > 1), TypeError, ["mod", "bool"]),
        (lambda x: Tensor.concat([]), ValueError, ["concat"]),
        (lambda x: Tensor.concat(x, x), TypeError, ["concat: takes a list", "not Tensor"]),
        (lambda x: Tensor.stack(x, x), TypeError, ["stack: takes a list", "not Tensor"]),
        (lambda x: Tensor([1.0], "cpu"), TypeError, ["Tensor", "open_device()", "'cpu'"]),
        (lambda x: Tensor([1.0], dtype.f16), TypeError, ["Tensor", "open_device()", "f16"]),
        (lambda x: Tensor.zeros(2, device="cpu"), TypeError, ["open_device()", "'cpu'"]),
        (lambda x: compile(lambda: {"a": x}, "cpu"), TypeError, ["compile", "'cpu'"]),
        (lambda x: copy.deepcopy([x]), TypeError, ["copied deeply", "numpy()", "test_tensor.py"]),
        (lambda x: x.__reduce_ex__(4), TypeError, ["pickled", "numpy()"]),
        (lambda x: Tensor([2**31]), ValueError, ["i32", "2147483648"]),
        (lambda x: Tensor([1, -1], dtype=dtype.u8), ValueError, ["u8", "-1"]),
        (lambda x: Tensor(np.ones(2, np.complex64)), TypeError, ["complex64"]),
        (lambda x: Tensor([1j], dtype=dtype.f32), TypeError, ["complex128", ".real"]),
        (lambda x: Tensor(2**63), ValueError, ["i32 cannot hold", str(2**63)]),
        (lambda x: Tensor([2**70]), ValueError, ["i32 cannot hold", str(2**70)]),
        (lambda x: Tensor(np.array([2**70])), TypeError, ["object"]),
        (lambda x: Tensor(np.array([1], np.uint64)), TypeError, ["uint64", "astype"]),
        (lambda x: x.split(2.0), TypeError, ["split", "not 2.0"]),
        (lambda x: x.split("a"), TypeError, ["split", "not 'a'"]),
        (lambda x: round(x, 2), TypeError, ["round", "2 digits"]),
        (lambda x: assign_all([(3, x)]), TypeError, ["assign_all", "int"]),
        (lambda x: Pages("x"), TypeError, ["Pages", "str"]),
        (lambda x: check_device("cpu"), TypeError, ["check_device", "'cpu'"]),
        (lambda x: memory_needed(x.device, list), TypeError, ["memory_needed", "list"]),
        (lambda x: Tensor([1, None], dtype=dtype.f32), TypeError, ["object", "no numbers"]),
        (lambda x: Tensor("3", dtype=dtype.i32), TypeError, ["<U1", "no numbers"]),
        (lambda x: Tensor(np.array(["NaT"], "M8[s]"), dtype=dtype.i32), TypeError, ["datetime64"]),
        (lambda x: x == [1, 2], TypeError, ["eq", "arrays and numbers", "not list"]),
        (lambda x: x != (1, 2), TypeError, ["eq", "arrays and numbers", "not tuple"]),
        (lambda x: x.pad((1, 2, 3), (1, 1)), ValueError, ["pad", "(1, 2, 3)", "pair"]),
        (lambda x: x.shrink((0, 1), (1,)), ValueError, ["shrink", "(1,)", "pair"]),
        (lambda x: x[[[0], [0, 1]]], ValueError, ["index", "inhomogeneous", "test_tensor.py"]),
        (lambda x: x.take([[0], [0, 1]]), ValueError, ["index", "inhomogeneous", "test_tensor"]),
        (lambda x: np.asarray(x, copy=False), ValueError, ["copy=False", "test_tensor.py"]),
        (lambda x: Tensor.empty(2, dtype=np.float32), TypeError, ["empty", "float32", "f32"]),
        (lambda x: Tensor.normal((2,), 1, variance=-1), ValueError, ["normal", "variance", "-1"]),
        (lambda x: Tensor.normal((2,), 1, 0, math.nan), ValueError, ["normal", "variance", "nan"]),
        (lambda x: Tensor([1.5, np.nan], dtype=dtype.i32), ValueError, ["i32", "nan"]),
        (lambda x: Tensor([-1.5, 3.0], dtype=dtype.u8), ValueError, ["u8", "-1.5"]),
        (lambda x: x.sum().gradient(x), TypeError, ["gradient", "list", "not Tensor"]),
        (lambda x: x.sum().gradient([x.numpy]), TypeError, ["gradient", "list", "not method"]),
        (lambda x: optim.SGD(x, 0.1), TypeError, ["SGD", "list", "not Tensor"]),
        (lambda x: optim.AdamW([x], form="seeds"), ValueError, ["AdamW", "seeds", "standard"]),
        (lambda x: Tensor.zeros(2, dtype=np.float32), TypeError, ["zeros", "float32", "f32"]),
        (lambda x: Tensor.ones(2, dtype=np.float32), TypeError, ["ones", "float32", "f32"]),
        (lambda x: Tensor.arange(2, dtype=np.float32), TypeError, ["arange", "float32", "f32"]),
        (lambda x: Tensor.uniform((2,), 1.5), TypeError, ["seed", "1.5"]),
        (lambda x: x.write(np.ones((2, 3), np.float32)), ValueError, ["device"]),
        (lambda x: x.cast(dtype.i32) << 32, ValueError, ["shl", "i32", "32"]),
        (lambda x: x.cast(dtype.u8) >> -1, ValueError, ["shr", "u8", "-1"]),
        (lambda x: x.cast(dtype.i32) << np.int64(40), ValueError, ["shl", "i32", "40"]),
        (lambda x: x << 40, TypeError, ["shl", "integers", "f32"]),
        (lambda x: x.pad(1, 2), TypeError, ["pad", "(1, 2)"]),
        (lambda x: compile(lambda: {"a": 1.0}, NUMPY), TypeError, ["compile", "'a'", "float"]),
        (lambda x: compile(lambda: {"a": x}, NUMPY).read("b"), ValueError, ["'b'", "has a"]),
        (lambda x: compile(3, NUMPY), TypeError, ["compile", "function", "not 3"]),
        (
            lambda x: compile(lambda: {"a": x}, NUMPY).stages.show("xyz"),
            ValueError,
            ["show", "'xyz'", "nodes, tree"],
        ),
        (lambda x: Tensor.zeros(2.5), TypeError, ["zeros", "(2.5,)", "whole numbers"]),
        (lambda x: Tensor.full(3, 1), TypeError, ["full", "sizes 3", "tuple"]),
        (lambda x: x.reshape("ab"), TypeError, ["reshape", "'ab'", "whole numbers"]),
        (lambda x: compile(lambda: {"a": x}, NUMPY).run(-1), ValueError, ["run", "-1"]),
        (lambda x: x.numpy(), ValueError, ["device"]),
        (lambda x: x[Tensor([1.0])], TypeError, ["f32", "gather"]),
    ],
)
def test_misuse_is_refused_by_name(
    act: Callable[[Tensor], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in words:
        assert word in str(raised.value)


def test_what_holds_numbers_will_do_for_them(device: AnyDevice) -> None:
    """Lists for pairs and values, and NumPy's numbers."""
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device)
    assert x.pad([1, 1], [0, 2]).shape == (4, 5)  # type: ignore[arg-type]
    assert x.shrink([0, 1], [1, 3]).numpy().tolist() == [[1, 2]]  # type: ignore[arg-type]
    assert ((x > 2) << 10).numpy().max() == 1024
    assert [part.shape for part in x.split(np.int64(3), 1)] == [(2, 1)] * 3  # type: ignore[arg-type]
    drawn = (Tensor.uniform((3,), seed, device).numpy() for seed in (5, np.int32(5)))  # type: ignore[arg-type]
    assert np.array_equal(*drawn)
    with pytest.raises(ValueError, match="cannot take"):
        x.write([1.0, 2.0])  # type: ignore[arg-type]


def test_numbers_beyond_64_bits_are_numbers() -> None:
    device = open_device("numpy")
    for data in ([2**70, 1], np.array([2.0**70, 1], object)):
        assert Tensor(data, device, dtype.f32).numpy().tolist() == [2.0**70, 1]
    assert Tensor(2**70, device, dtype.f32).item() == 2.0**70
    assert Tensor([-(10**400), 1.5], device).numpy().tolist() == [-math.inf, 1.5]


REDUCTIONS = "sum prod mean var std all any max min amax amin ptp".split()  # noqa: SIM905


@pytest.mark.parametrize("name", [*REDUCTIONS, "median", "argmax", "linalg.norm", "cumsum"])
def test_numpys_functions_take_a_value(name: str) -> None:
    a = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    x, function = Tensor(a, open_device("numpy")), operator.attrgetter(name)(np)
    assert np.array_equal(function(x), function(a))
    assert np.array_equal(function(x, axis=0), function(a, axis=0))
    assert np.stack([x, a]).shape == (2, 3, 4)
    assert np.shape(x) == (3, 4)
    assert isinstance(np.squeeze(x), Tensor)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_numpys_reductions_are_no_part_of_a_step(name: str) -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    with pytest.raises(TypeError, match=f"np.{name} of a Tensor: .*own operations.*test_tensor.py"):
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
def test_no_function_of_numpys_makes_a_value_a_constant_of_a_step(
    name: str, call: Callable[[Tensor], Array]
) -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    advice = {"where": "use Tensor.where", "concatenate": "use Tensor.concat"}.get(name, "")
    last = name.rpartition(".")[2]
    with pytest.raises(TypeError, match=rf"np.{last} of a Tensor: .*{advice}.*test_tensor\.py"):
        compile(lambda: {"y": x * call(x)}, open_device("numpy"))
    assert np.asarray(call(x)).size  # as before, also after it was refused


def test_functions_of_numpys_that_call_a_tensors_method_are_part_of_a_step() -> None:
    device = open_device("numpy")
    x = Tensor([[1.0, 2.0]], device)
    program = compile(lambda: {"y": np.squeeze(x) + np.shape(x)[1]}, device)
    x.write(np.array([[5.0, 6.0]], np.float32))
    program.run()
    assert program.read("y").tolist() == [7.0, 8.0]


def test_a_value_that_is_asked_for_may_be_a_constant_of_a_step() -> None:
    device = open_device("numpy")
    x = Tensor([1.0, 2.0], device)
    program = compile(lambda: {"y": x * np.asarray(x).sum()}, device)
    program.run()
    assert program.read("y").tolist() == [3.0, 6.0]


def test_what_is_written_while_a_step_is_built_is_no_part_of_it() -> None:
    x = Tensor([1.0, 2.0], open_device("numpy"))
    with pytest.raises(TypeError, match=r"write: .*assigns.*Feeder.*test_tensor\.py"):
        compile(lambda: {"y": x.write([3.0, 4.0])}, open_device("numpy"))  # type: ignore[arg-type]
    assert x.numpy().tolist() == [1.0, 2.0]
