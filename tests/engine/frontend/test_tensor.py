"""What Tensors mean where sizes are awkward, numbers meet, and values are extreme.

test_ops.py holds each operation to NumPy; here are the corners between them. Programs
are large because a driver compiles many small ones slowly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import FORMS, open_mapping
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, dtype

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 7, 16, 17, 33, 64, 65, 130)


@pytest.fixture(scope="module", params=FORMS)
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def results(outputs: dict[str, Tensor], device: AnyDevice) -> dict[str, Array]:
    program = compile(lambda: outputs, device)
    program.run()
    return {name: program.read(name) for name in outputs}


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(np.float32)


# --- numbers that compare in ways of their own ---


def test_comparisons_are_those_of_ieee_numbers(device: AnyDevice) -> None:
    values = np.array([np.nan, 1, -0.0, 0.0, -2, np.inf, -np.inf], np.float32)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    x, y = Tensor(a, device), Tensor(b, device)
    found = results(
        {"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y, "eq": x.eq(y), "0": x >= 0}, device
    )
    wanted = {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "eq": a == b, "0": a >= 0}
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name


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


# --- dtypes ---

STORED = (dtype.bool_, dtype.i8, dtype.u8, dtype.i32, dtype.u32, dtype.f16, dtype.f32)


def test_two_dtypes_meet_in_the_one_that_holds_both(device: AnyDevice) -> None:
    """Every pair, on values that all dtypes have; i32 and u32 meet in u32."""
    numbers = np.array([1, 0, 1, 1])
    tensors = {d.name: Tensor(numbers, device, d) for d in STORED}
    pairs = {
        f"{a.name} {b.name}": tensors[a.name] * tensors[b.name]
        for a, b in itertools.product(STORED, STORED)
    }
    found = results(pairs, device)
    for a, b in itertools.product(STORED, STORED):
        name, kind = f"{a.name} {b.name}", dtype.concrete(dtype.promote(a, b))
        assert found[name].dtype == kind.np, name
        assert np.array_equal(found[name], numbers), name


def test_casts_truncate_wrap_and_test_as_in_numpy(device: AnyDevice) -> None:
    f = np.array([-2.7, -0.5, 0.0, 0.5, 2.7, 100.9], np.float32)
    i = np.array([-129, -1, 0, 1, 200, 70_000], np.int32)
    x, y = Tensor(f, device), Tensor(i, device)
    found = results(
        {
            "f to i32": x.cast(dtype.i32),
            "f to bool": x.cast(dtype.bool_),
            "f to f16": x.cast(dtype.f16),
            "i to i8": y.cast(dtype.i8),
            "i to u8": y.cast(dtype.u8),
            "i to u32": y.cast(dtype.u32),
            "i to bool": y.cast(dtype.bool_),
            "bool to f32": (y > 0).cast(dtype.f32) * 2.5,
        },
        device,
    )
    wanted = {
        "f to i32": f.astype(np.int32),
        "f to bool": f != 0,
        "f to f16": f.astype(np.float16),
        "i to i8": i.astype(np.int8),
        "i to u8": i.astype(np.uint8),
        "i to u32": i.astype(np.uint32),
        "i to bool": i != 0,
        "bool to f32": (i > 0) * 2.5,
    }
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name


INTEGERS = {
    "i8": (np.array([-128, -7, 0, 5, 127], np.int8), np.array([3, -3, 7, -1, 100], np.int8)),
    "u8": (np.array([0, 7, 200, 255, 3], np.uint8), np.array([3, 250, 7, 1, 100], np.uint8)),
    "i32": (np.array([1 - 2**31, -7, 0, 5, 2**31 - 1]), np.array([3, -3, 7, -2, 100])),
    "u32": (
        np.array([0, 7, 2**31, 2**32 - 1, 3], np.uint32),
        np.array([3, 2**32 - 2, 7, 1, 100], np.uint32),
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_width_wrap_divide_and_compare(device: AnyDevice, name: str) -> None:
    a, b = INTEGERS[name]
    kind = np.dtype(np.int32) if a.dtype == np.int64 else a.dtype
    a, b = a.astype(kind), b.astype(kind)
    x, y, shift = Tensor(a, device), Tensor(b, device), Tensor(np.arange(5).astype(kind), device)
    functions: dict[str, tuple[Tensor, Callable[[], Array]]] = {
        "+": (x + y, lambda: a + b),
        "-": (x - y, lambda: a - b),
        "*": (x * y, lambda: a * b),
        "//": (x // y, lambda: a // b),
        "%": (x % y, lambda: a % b),
        "neg": (-x, lambda: -a),
        "multiply_add": (x.multiply_add(y, y), lambda: a * b + b),
        "min": (x.minimum(y), lambda: np.minimum(a, b)),
        "max": (x.maximum(y), lambda: np.maximum(a, b)),
        "<": (x < y, lambda: a < b),
        "<=": (x <= y, lambda: a <= b),
        "sign": (x.sign(), lambda: np.sign(a)),
        "<<": (x << shift, lambda: a << np.arange(5).astype(kind)),
        ">>": (x >> shift, lambda: a >> np.arange(5).astype(kind)),
        "& ^ |": ((x & y) ^ (x | y), lambda: (a & b) ^ (a | b)),
        "sum": (x.sum(), lambda: np.asarray(a.sum(dtype=kind))),
        "most": (x.max(), lambda: np.asarray(a.max())),
        "negative": (x + -1, lambda: a - np.ones(1, kind)),
    }
    found = results({key: tensor for key, (tensor, _) in functions.items()}, device)
    with np.errstate(over="ignore"):
        for key, (_, array) in functions.items():
            assert np.array_equal(found[key], array()), key


def test_bools_are_zero_or_one_whatever_is_done_to_them(device: AnyDevice) -> None:
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    x, y = Tensor(a, device), Tensor(b, device)
    found = results(
        {
            "&": x & y, "|": x | y, "^": x ^ y, "*": x * y, "not": x.logical_not(),
            "max": x.maximum(y), "min": x.minimum(y), "<": x < y, "eq": x.eq(y), "any": x.max(),
            "where": Tensor.where(x, y, x),
        },
        device,
    )  # fmt: skip
    wanted = {
        "&": a & b, "|": a | b, "^": a ^ b, "*": a & b, "not": ~a, "max": a | b, "min": a & b,
        "<": ~a & b, "eq": a == b, "any": np.asarray(True), "where": np.where(a, b, a),
    }  # fmt: skip
    for name, value in wanted.items():
        assert found[name].dtype == np.bool_, name
        assert np.array_equal(found[name].view(np.uint8), value.view(np.uint8)), name


def test_bools_are_counted(device: AnyDevice, rng: np.random.Generator) -> None:
    a = draw(rng, 33, 700)
    x = Tensor(a, device)
    found = results({"all": (x < 0).sum(), "rows": (x < 0).sum(1), "mean": (x < 0).mean()}, device)
    assert found["all"] == (a < 0).sum()
    assert np.array_equal(found["rows"], (a < 0).sum(1))
    assert close(found["mean"], (a < 0).mean(), roundings=2)


@pytest.mark.parametrize(
    "act", [lambda x: x + x, lambda x: x - x, lambda x: -x, lambda x: x // x, lambda x: x << x]
)
def test_arithmetic_that_leaves_the_bools_is_refused(act: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="bool"):
        act(Tensor([True, False]))


def test_halves_are_rounded_where_they_are_stored(device: AnyDevice) -> None:
    """11 bits of significand: one rounding of each result is 2**-11 of it."""
    a = np.linspace(-3, 3, 37).astype(np.float16)
    b = np.linspace(0.5, 5, 37).astype(np.float16)
    x, y = Tensor(a, device), Tensor(b, device)
    matrix = y.reshape(37, 1) @ x.reshape(1, 37)
    loss = (x.cast(dtype.f32) * x.cast(dtype.f32)).sum()
    found = results(
        {
            "+": x + y, "/": x / y, "exp": x.exp(), "sin": x.sin(), "max": x.max(),
            "dot": x @ y, "outer": matrix, "rows": x.pad((1, 2)).flip(0), "up": x.cast(dtype.f32),
            "gather": x.gather(Tensor([3, 36, 3], device)), "gradient": loss.gradient([x])[0],
        },
        device,
    )  # fmt: skip
    wa, wb = a.astype(np.float64), b.astype(np.float64)
    wanted = {
        "+": wa + wb, "/": wa / wb, "exp": np.exp(wa), "sin": np.sin(wa), "max": wa.max(),
        "dot": wa @ wb, "outer": np.outer(wb, wa), "rows": np.pad(wa, (1, 2))[::-1], "up": wa,
        "gather": wa[[3, 36, 3]], "gradient": 2 * wa,
    }  # fmt: skip
    for name, value in wanted.items():
        kind = np.float32 if name == "up" else np.float16
        assert found[name].dtype == kind, name
        # exp is 2 ** (x / ln 2): the numpy device rounds the exponent, up to 4.4, to a half as well
        size = np.abs(wa) @ wb if name == "dot" else np.abs(value)
        assert close(found[name], value, size, roundings=8), name


# --- sizes that divide nothing ---


def matrix_layouts(a: Array, device: AnyDevice) -> list[Tensor]:
    """One matrix as stored, transposed, flipped, and one of every few of a larger one."""
    apart = np.full((2 * a.shape[0] + 1, 3 * a.shape[1]), 9, np.float32)
    apart[1::2, ::3] = a
    return [
        Tensor(a, device),
        Tensor(np.ascontiguousarray(a.T), device).transpose(),
        Tensor(a[::-1, ::-1], device).flip(0, 1),
        Tensor(apart, device)[1::2, ::3],
    ]


def test_products_of_all_sizes_and_layouts(device: AnyDevice, rng: np.random.Generator) -> None:
    outputs, wanted = {}, {}
    for i in range(16):
        m, k, n = (int(v) for v in rng.choice(SIZES, 3))
        a, b = draw(rng, m, k), draw(rng, k, n)
        x, y = matrix_layouts(a, device)[i % 4], matrix_layouts(b, device)[i // 4 % 4]
        name = f"{m} x {k} x {n}, layouts {i % 4} {i // 4 % 4}"
        outputs[name], wanted[name] = x @ y, (a.astype(np.float64) @ b, np.abs(a) @ np.abs(b))
    for name, value in results(outputs, device).items():
        assert close(value, *wanted[name]), name


def test_leading_axes_of_products_broadcast(device: AnyDevice, rng: np.random.Generator) -> None:
    shapes = [
        ((2, 1, 3, 5), (4, 5, 3)),
        ((5,), (2, 5, 3)),
        ((2, 3, 5), (5,)),
        ((1, 7, 3), (6, 3, 1)),
        ((3, 1, 1), (1, 1)),
    ]
    outputs, wanted = {}, {}
    for s, t in shapes:
        a, b = draw(rng, *s), draw(rng, *t)
        outputs[f"{s} {t}"] = Tensor(a, device) @ Tensor(b, device)
        wanted[f"{s} {t}"] = a.astype(np.float64) @ b, np.abs(a) @ np.abs(b)
    for name, value in results(outputs, device).items():
        assert close(value, *wanted[name]), name


def subsets(rank: int) -> list[tuple[int, ...]]:
    return [s for n in range(rank + 1) for s in itertools.combinations(range(rank), n)]


@pytest.mark.parametrize("shape", [(3, 1, 7, 5), (2, 129, 131), (1, 1, 1)])
def test_reductions_over_every_subset_of_axes(
    device: AnyDevice, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    a = draw(rng, *shape)
    x = Tensor(a, device)
    wide, sizes = a.astype(np.float64), np.abs(a)
    outputs, wanted = {}, {}
    for axes in subsets(len(shape)):
        outputs |= {f"sum {axes}": x.sum(axes), f"max {axes}": x.max(axes)}
        wanted[f"sum {axes}"] = wide.sum(axes), sizes.sum(axes)
        wanted[f"max {axes}"] = wide.max(axes), 0
        outputs[f"kept {axes}"] = x.mean(axes, keepdims=True)
        wanted[f"kept {axes}"] = tuple(v.mean(axes, keepdims=True) for v in (wide, sizes))
    for name, value in results(outputs, device).items():
        assert close(value, *wanted[name]), name


def test_long_reductions_of_computed_values(device: AnyDevice, rng: np.random.Generator) -> None:
    a = draw(rng, 50_021)
    x = Tensor(a, device)
    wide = a.astype(np.float64)
    found = results(
        {
            "sum": (x * x).sum(), "max": (-x).max(), "kept": x.reshape(1, -1).sum(1),
            "column": x.reshape(-1, 1).sum(0), "scalar": Tensor(np.float32(3), device).sum(),
            "integers": Tensor.arange(50_021, device=device).sum(),
            "slope": (x.square().sum() * 0.5).gradient([x])[0],
        },
        device,
    )  # fmt: skip
    exact = {"max": (-wide).max(), "scalar": 3, "integers": 50_021 * 50_020 // 2, "slope": a}
    for name, value in exact.items():
        assert np.array_equal(found[name], value), name
    assert close(found["sum"], (wide**2).sum())
    total, size = wide.sum(keepdims=True), np.abs(wide).sum()
    assert close(found["kept"], total, size)
    assert close(found["column"], total, size)


def test_shapes_broadcast_as_in_numpy(device: AnyDevice, rng: np.random.Generator) -> None:
    shapes = [(), (1,), (17,), (1, 17), (7, 1), (7, 17), (3, 1, 1), (3, 1, 17), (1, 7, 1)]
    arrays = {s: draw(rng, *s) for s in shapes}
    tensors = {s: Tensor(a, device) for s, a in arrays.items()}
    pairs = list(itertools.combinations_with_replacement(shapes, 2))
    found = results({f"{s} {t}": tensors[s] - tensors[t] for s, t in pairs}, device)
    for s, t in pairs:
        assert np.array_equal(found[f"{s} {t}"], arrays[s] - arrays[t]), (s, t)


# --- indices ---

KEYS: list[Any] = [
    -1, np.int64(2), slice(None, None, -1), slice(5, 1, -2), slice(-3, None), slice(2, 100),
    (slice(None), 3), (slice(1, 6, 3), slice(None, None, -4)), (-2, slice(9, 2, -1)),
    (slice(0, 1), slice(10, None)), (slice(6, None, -1), -11),
]  # fmt: skip


def test_slices_take_what_numpy_takes(device: AnyDevice) -> None:
    a = np.arange(77, dtype=np.float32).reshape(7, 11)
    x = Tensor(a, device)
    found = results({str(i): x[key] + 0 for i, key in enumerate(KEYS)}, device)
    for i, key in enumerate(KEYS):
        assert np.array_equal(found[str(i)], a[key]), key


def test_rows_are_gathered_from_any_table_at_any_index(device: AnyDevice) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = Tensor(table, device)
    moved = np.pad(table.T[::-1], ((1, 0), (0, 0)))
    lists: dict[str, Any] = {
        "number": np.int32(2),
        "bytes": np.array([3, 0, 3], np.uint8),
        "counts": np.array([[[1], [2]]], np.uint32),
    }
    indices = {name: Tensor(i, device) for name, i in lists.items()}
    outputs = {name: x.gather(i) for name, i in indices.items()}
    outputs |= {
        f"moved {n}": x.transpose().flip(0).pad((1, 0), (0, 0)).gather(i)
        for n, i in indices.items()
    }
    outputs |= {f"flat {n}": x.reshape(-1).gather(i * 2) for n, i in indices.items()}
    outputs["computed"] = (x * 2).gather(Tensor.arange(7, device=device) * 3 % 4)
    found = results(outputs, device)
    for name, i in lists.items():
        assert np.array_equal(found[name], table[i]), name
        assert np.array_equal(found[f"moved {name}"], moved[i]), name
        assert np.array_equal(found[f"flat {name}"], table.ravel()[i * 2]), name
    assert np.array_equal(found["computed"], 2 * table[np.arange(7) * 3 % 4])


def test_parts_of_several_dtypes_stand_side_by_side(device: AnyDevice) -> None:
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([[0.5], [1.5]], np.float32)
    x, y = Tensor(a, device), Tensor(b, device)
    parts = [x, y, (x * 2)[:, ::-1], y.expand(2, 4)]
    wanted = np.concatenate([a, b, (a * 2)[:, ::-1], np.broadcast_to(b, (2, 4))], -1)
    assert np.array_equal(Tensor.concat(parts, -1).numpy(), wanted)


def test_an_augmented_assignment_is_a_new_expression_and_assign_is_in_place() -> None:
    x = held = Tensor(np.zeros(3), open_mapping("numpy"))
    x += 1
    assert (x.numpy() == 1).all()
    assert (held.numpy() == 0).all()
    same = held
    held.assign(held + 2)
    assert (same.numpy() == 2).all()


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
        (lambda x: x.cast(dtype.i32) // 0.5, TypeError, ["//", "float"]),
        (lambda x: x % 2, TypeError, ["mod", "f32"]),
        (lambda x: Tensor.concat([]), ValueError, ["concat"]),
        (lambda x: Tensor([2**31]), ValueError, ["i32", "2147483648"]),
        (lambda x: Tensor([1, -1], dtype=dtype.u8), ValueError, ["u8", "-1"]),
        (lambda x: Tensor(np.ones(2, np.complex64)), TypeError, ["complex64"]),
        (lambda x: x.numpy(), ValueError, ["device"]),
        (lambda x: x[Tensor([1])], TypeError, ["gather"]),
        (lambda x: x[1:1], ValueError, ["takes nothing", "axis 0"]),
    ],
)
def test_misuse_is_refused_by_name(
    act: Callable[[Tensor], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in words:
        assert word in str(raised.value)
