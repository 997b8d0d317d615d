"""Every operation of docs/operations.md against NumPy: values, and gradients by differences."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import operations
import pytest
from conftest import EMULATED, ROOT, open_mapping, roundings
from differences import Case, expected, inputs_of
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, cond, dtype, loop, nn

TITLES = list(operations.ROWS)


def case_of(row: operations.Row) -> Case:
    def tensors(*xs: Tensor) -> Tensor:
        found: Tensor = operations.evaluated(row.tensor, list(xs))
        return found

    def arrays(*xs: np.ndarray) -> np.ndarray:
        return np.array(operations.evaluated(row.array, list(xs)))  # no view: x changes

    return Case(row.tensor, tensors, arrays, row.shapes, row.low, row.high, row.between)


CASES = {title: [case_of(r) for r in rows] for title, rows in operations.ROWS.items()}


@pytest.mark.parametrize("title", TITLES)
def test_an_operation_is_what_its_row_says(device: AnyDevice, title: str) -> None:
    cases = CASES[title]
    tensors = {c.name: [Tensor(a, device) for a in inputs_of(c)] for c in cases}

    def step() -> dict[str, Tensor]:
        found = {}
        for c in cases:
            answer = found[c.name] = c.tensors(*tensors[c.name])
            if answer.dtype.is_float:
                weights = np.cos(np.arange(answer.node.size)).reshape(answer.shape)
                slopes = (answer * Tensor(weights, device)).sum().gradient(tensors[c.name])
                found |= {f"{c.name}, gradient {i}": g for i, g in enumerate(slopes)}
        return found

    program = compile(step, device)
    program.run()
    for c in cases:
        if not program.outputs[c.name].dtype.is_float:
            wanted = c.arrays(*(a.astype(np.float64) for a in inputs_of(c)))
            assert np.array_equal(program.read(c.name), wanted), c.name
            continue
        for name, (value, magnitude) in expected(c).items():
            assert close(program.read(name), value, magnitude), name


@pytest.mark.parametrize("kind", operations.STORED[:-1], ids=lambda k: k.name)
def test_a_row_holds_for_every_dtype_that_it_lists(kind: dtype.DType) -> None:
    """Small whole numbers, or True; halves as they come. f32 is above, on every form of a step."""
    device, rng, found, wanted = open_mapping("numpy"), np.random.default_rng(0), {}, {}
    for row in (r for rows in operations.ROWS.values() for r in rows):
        end = 2 if kind is dtype.bool_ or row.high < 2 else 4
        drawn = [rng.integers(1, end, s) for s in row.shapes]
        if kind is dtype.f16:
            drawn = [rng.uniform(row.low, row.high, s) for s in row.shapes]
        arrays = [np.asarray(a, kind.np) for a in drawn]
        try:
            answer = operations.evaluated(row.tensor, [Tensor(a, device) for a in arrays])
        except (TypeError, ValueError):
            continue  # which is what the page says
        wide = [a.astype(np.float64) for a in arrays]
        found[row.tensor] = answer
        wanted[row.tensor] = np.asarray(operations.evaluated(row.array, wide))
    assert len(found) > 100
    program = compile(lambda: found, device)
    program.run()
    for name, array in wanted.items():
        value = program.read(name)
        assert value.dtype.kind == "f" or value.dtype == found[name].dtype.np
        if value.dtype.kind == "f":
            unit = np.finfo(kind.np if kind is dtype.f16 else value.dtype).eps
            off = 8 * float(unit) * max(1, np.abs(array).max())
            assert np.allclose(value, array, rtol=0, atol=off), name
        else:
            whole = array if value.dtype.kind == "b" else array.astype(np.int64)
            assert np.array_equal(value, whole.astype(value.dtype)), name


def test_every_operation_has_a_row() -> None:
    """What a Tensor has beside them makes one of a number, runs it, or is another's name."""
    rows = " ".join(r.tensor for rows in operations.ROWS.values() for r in rows)
    named = set(re.findall(r"\.(\w+)", rows))
    beside = "assign backward empty flat_index full gradient item numpy ones realize write zeros"
    known = {*beside.split(" "), "zero_grad", "eq", "variance", "weighted_sums"}
    ours = {n for n in dir(Tensor) if n[0] != "_" and inspect.isroutine(getattr(Tensor, n))}
    functions = inspect.getmembers(nn, inspect.isfunction)
    layers = {n for n, f in functions if f.__module__ == nn.__name__ and n[0] != "_"}
    assert ours - named == known
    assert layers - named == {"slices", "variance"}  # which is another's name here, too
    signs = "+ - * / // % ** @ & | ^ << >> == != < > <= >="
    assert [s for s in re.split(" ", signs) if f" {s} " not in rows] == []


def test_the_page_is_what_the_tool_writes() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert page == operations.page(), "run python tools/operations.py > docs/operations.md"


def test_nan_and_infinity(device: AnyDevice) -> None:
    a = np.array([np.nan, np.inf, -np.inf, 0, -2.5, 2.5, 3.5, 1e9, -1e30], np.float32)
    x, y = Tensor(a, device), Tensor(a[::-1].copy(), device)
    functions: dict[str, tuple[Tensor, Callable[[], np.ndarray]]] = {
        "isnan": (x.isnan(), lambda: np.isnan(a)),
        "isinf": (x.isinf(), lambda: np.isinf(a)),
        "isfinite": (x.isfinite(), lambda: np.isfinite(a)),
        "isclose": (x.isclose(y), lambda: np.isclose(a, a[::-1])),
        "same": (x.isclose(x), lambda: np.isclose(a, a)),
        "floor": (x.floor(), lambda: np.floor(a)),
        "ceil": (x.ceil(), lambda: np.ceil(a)),
        "trunc": (x.trunc(), lambda: np.trunc(a)),
        "round": (x.round(), lambda: np.round(a)),
        "atan": (x.atan().round(), lambda: np.round(np.arctan(a))),
        "erf": (x.erf().sign(), lambda: np.nan_to_num(np.sign(a))),
        "softplus": (x.minimum(1e4).softplus().isfinite(), lambda: np.isfinite(np.minimum(a, 1))
                     | np.isinf(a)),
        "argmax": (x.argmax(), lambda: np.asarray(a.argmax())),
        "sort": (x.sort(), lambda: np.sort(a)),
        "argsort": (y.argsort(), lambda: np.argsort(a[::-1], kind="stable")),
        "zero": (x[3:4] ** Tensor([-1.5, 0.0, 2.5], device), lambda: np.float32([np.inf, 1, 0])),
        "minus": (x[4] ** Tensor([3.0, 2.0, 0.5], device), lambda: a[4] ** np.float32([3, 2, 0.5])),
        "powers of one": (1**x, lambda: np.float32(1) ** a),
        "logsumexp": (x[2:6].logsumexp(), lambda: np.log(np.exp(a[2:6]).sum())),
        "logsumexp of no end": (x[1:5].logsumexp(), lambda: np.asarray(np.inf)),
        "logsumexp of zeros": (x[2:3].logsumexp(), lambda: np.asarray(-np.inf)),
    }  # fmt: skip
    program = compile(lambda: {name: t for name, (t, _) in functions.items()}, device)
    program.run()
    with np.errstate(all="ignore"):
        for name, (_, array) in functions.items():
            found, wanted = program.read(name), np.asarray(array())
            assert close(found, wanted, roundings=8), name


def test_powers_of_infinities_and_signed_zeros_are_numpys(device: AnyDevice) -> None:
    bases = np.float32([-np.inf, -2, -1, -0.0, 0, 1, 2, np.inf, np.nan])
    a, b = np.meshgrid(bases, np.float32([-np.inf, -3, -2, -0.5, 0, 0.5, 1, 2, 3, np.inf, np.nan]))
    x, y = Tensor(a, device), Tensor(b, device)

    def step() -> dict[str, Tensor]:
        return {"power": x**y, "cube": x**-3, "slope": (x**y).sum().gradient([x])[0]}

    program = compile(step, device)
    program.run()
    with np.errstate(all="ignore"):
        slope = np.where(b == 0, 0, b * a ** (b - 1))
        for name, wanted in {"power": a**b, "cube": a ** np.float32(-3), "slope": slope}.items():
            found = program.read(name)
            assert close(found, wanted, roundings=8), name
            signs = np.isnan(wanted) | (np.signbit(found) == np.signbit(wanted))
            assert signs.all(), (name, a[~signs], b[~signs])


def test_signs_of_zeros_are_those_of_the_page() -> None:
    x, one = Tensor([-0.0, -0.3], open_mapping("numpy")), np.float32(1)
    minus = Tensor([-1.0], open_mapping("numpy"))
    kept = (x[:1].abs(), x[:1].relu(), minus % 1)
    dropped = (x[:1].floor(), x.ceil(), x.trunc(), x.round(), x[:1] // one, x[:1].atan(),
               x[:1].asin(), -minus % -1)  # fmt: skip
    for found, sign in (*((t, True) for t in kept), *((t, False) for t in dropped)):
        assert not found.numpy().any()
        assert (np.signbit(found.numpy()) == sign).all()


def test_gelu_is_accurate_far_below_zero(device: AnyDevice) -> None:
    x = np.float32([-0.7, -1.4142135, -1.5, -3, -4.735, -5.615, -9, 0, 0.3, 4, 3e38])
    wanted = [float(v) / 2 * math.erfc(-float(v) / math.sqrt(2)) for v in x]
    assert np.allclose(Tensor(x, device).gelu(exact=True).numpy(), wanted, rtol=2e-5, atol=0)


def test_the_difference_of_equal_products_is_zero(device: AnyDevice) -> None:
    """As neither of them is rounded otherwise than the other."""
    values = np.float32([0.1, 0.3, 1 / 3, 2.7] * 4)
    a, b, c = (Tensor(v.copy(), device) for v in (values, values[::-1], values))
    program = compile(lambda: {"y": a * b - b * a, "roots": (a * a - c * c).sqrt()}, device)
    program.run()
    assert not program.read("y").any()
    assert not program.read("roots").any()


def test_the_maximum_of_an_expression_equals_one_of_its_values(device: AnyDevice) -> None:
    """However its product is rounded in one kernel, and in others, which need that as well."""
    draw = np.random.default_rng(0).normal
    shapes = (500, 17), (500, 17), (17,)
    a, b, c = (Tensor(draw(size=shape).astype(np.float32), device) for shape in shapes)

    def step() -> dict[str, Tensor]:
        product = a * b
        largest = (product + c).max(1).sum() + (product * product).sum() * 1e-9
        return {"slope": largest.gradient([a])[0]}

    program = compile(step, device)
    program.run()
    chosen = (a.numpy() * b.numpy() + c.numpy()).argmax(1)[:, None] == np.arange(17)
    assert np.allclose(program.read("slope"), b.numpy() * chosen, atol=1e-6)
    places = compile(lambda: {"at": (a * b + c).argmax(1)}, device)
    places.run()
    assert np.array_equal(places.read("at"), chosen.argmax(1))


def test_quotients_and_remainders_are_numpys(device: AnyDevice) -> None:
    """Also where x / y is large, infinite or beside a whole number; of integers by 0 it is 0."""
    inf = np.inf
    pairs = [(1e8, 3), (1e10, 3), (16777215, 0.1), (1, 0.1), (5.3, inf), (-5.3, inf), (5.3, -inf),
             (60000, 0.001), (-1, 0.1), (7, -2), (1, 0), (-1, 0), (0, 0), (inf, 3)]  # fmt: skip
    pairs += [(float(a), float(b)) for a, b in np.random.default_rng(0).normal(size=(50, 2)) ** 5]
    found, wanted = {}, {}
    for kind in ("f4", "f2", "i1", "u1", "i4", "u4"):
        a, b = (np.array(v) for v in zip(*pairs, strict=True))
        if kind[0] != "f":
            a, b = (np.nan_to_num(v, posinf=99, neginf=-99) % 120 // 1 - 20 * (kind[0] == "i")
                    for v in (a, b))  # fmt: skip
        with np.errstate(all="ignore"):
            a, b = a.astype(kind), b.astype(kind)
            b[:3] = 0 if kind[0] != "f" else b[:3]
            x, y = Tensor(a, device), Tensor(b, device)
            found |= {f"{kind} //": x // y, f"{kind} %": x % y}
            wanted |= {f"{kind} //": a // b, f"{kind} %": a % b}
    program = compile(lambda: found, device)
    program.run()
    for name, array in wanted.items():
        kind, units = array.dtype.kind, roundings(device) if name == "f4 //" else 0
        found = program.read(name)
        assert found.shape == array.shape
        assert np.allclose(found, array, units * 2.0**-23, 0, equal_nan=kind == "f"), name


def test_an_infinite_pixel_stays_where_it_is() -> None:
    device = open_mapping("numpy")
    a = np.arange(30, dtype=np.float32).reshape(5, 6)
    a[1, 2], a[4, 0] = np.inf, np.nan
    for size in [(5, 6), (3, 9), (10, 12), (2, 2)]:
        rows, columns = (np.arange(n) * m // n for n, m in zip(size, a.shape, strict=True))
        found = Tensor(a, device).interpolate(size).numpy()
        assert np.array_equal(found, a[rows][:, columns], equal_nan=True)
    linear = Tensor(a, device).interpolate((5, 6), "linear").numpy()
    assert np.array_equal(linear, a, equal_nan=True)
    wide = Tensor(a, device).interpolate((10, 6), "linear").numpy()
    assert (~np.isfinite(wide)).sum() == 7  # what has a share in one of them: four places, three
    whole = Tensor(np.int32([[1 << 30 | 1, 3]]), device).interpolate((2, 4))
    assert whole.numpy().tolist() == [[1 << 30 | 1] * 2 + [3] * 2] * 2


def test_omitted_arguments_have_defaults() -> None:
    device, a = open_mapping("numpy"), np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(a, device)
    assert np.array_equal(x.flip().numpy(), np.flip(a))
    assert [t.shape for t in x.topk(0)] == [(3, 0), (3, 0)]
    masks = np.tri(3, dtype=bool), np.where(np.tri(3), 0, -np.inf).astype(np.float32)
    for mask in masks:
        found = nn.attention(x, x, x, mask=mask).numpy()
        assert np.array_equal(found, nn.attention(x, x, x, causal=True).numpy())


def test_all_and_any_of_numbers_and_of_no_elements_are_numpys() -> None:
    device = open_mapping("numpy")
    a = np.array([[0, 0, np.nan], [1, -2, 0.5], [0, 0, 0]], np.float32)
    for array in (a, a[:2], a[:0], a[:, :0], a > 0, np.uint8([[0, 255, 255]])):
        x = Tensor(array, device)
        for axis in (None, 0, 1, (0, 1)):
            assert np.array_equal(x.all(axis).numpy(), array.all(axis))
            assert np.array_equal(x.any(axis).numpy(), array.any(axis))
    with pytest.raises(ValueError, match=r"^any: axis 5"):
        x.any(5)
    with pytest.raises(ValueError, match=r"T: shape \(1, 1, 3\) has not two axes"):
        _ = x.unsqueeze(0).T
    assert x.ndim == 2


def test_means_of_halves_are_rounded_once() -> None:
    device = open_mapping("numpy")
    big = Tensor(np.full((1, 1, 3, 3), 60000, np.float16), device)
    assert big.avg_pool2d(3).numpy() == 60000
    a = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float16)
    wanted = a.astype(np.float64).std(1).astype(np.float16)
    assert np.array_equal(Tensor(a, device).std(1).numpy(), wanted)


def small(kind: str = "u1") -> Tensor:
    return Tensor(np.array([2, 3], kind), open_mapping("numpy"))


@pytest.mark.parametrize(
    "act",
    [
        lambda: small() + 300, lambda: 300 - small(), lambda: small() * -1, lambda: small() // 300,
        lambda: small("i4") + 2**40, lambda: small("i4") & 0xFFFFFFFF, lambda: small() ^ -1,
        lambda: small("u4").multiply_add(1 << 32, 1), lambda: small().full_like(300),
        lambda: Tensor.full((2,), 300, dtype.u8), lambda: Tensor.full((2,), 1 << 31),
        lambda: Tensor.full((), math.nan, dtype.i32), lambda: Tensor.arange(300, dtype=dtype.u8),
        lambda: Tensor.arange(2**31, 2**31 + 3), lambda: Tensor.where(small() > 2, small(), 300),
        lambda: small().assign(300), lambda: small().scatter(0, np.array([0, 1]), 300),
    ],
)  # fmt: skip
def test_a_number_that_a_dtype_cannot_hold_is_refused(act: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        act()


def test_comparisons_with_integers_beyond_the_dtype_are_right() -> None:
    found = [small() ** -2, small() ** 300, small("i1") ** 100, small().isclose(300)]
    wanted = [[1 / 4, 1 / 9], [math.inf, math.inf], [2.0**100, math.inf], [False, False]]
    for t, value in zip(found, wanted, strict=True):
        assert close(t.numpy(), np.array(value), 200)
    assert (~small()).numpy().tolist() == [253, 252]
    assert Tensor.arange(2**31, 2**31 + 2, dtype=dtype.u32)[1:].cast(dtype.i32).shape == (1,)
    assert Tensor.arange(np.int64(5)).dtype is dtype.i32


def test_small_integers_and_halves_keep_their_dtypes(device: AnyDevice) -> None:
    a = np.array([[3, 0, 200], [7, 7, 1]], np.uint8)
    x, h = Tensor(a, device), Tensor(a.astype(np.float16), device)
    found = {
        "sort": x.sort(), "cumsum": x.cumsum(1), "prod": x.prod(1), "clip": x.clip(2, 100),
        "floor": x.floor(), "cummax": x.cummax(1), "take": x.take_along_axis(x.argsort()),
        "power": x**3, "scatter": x.scatter(1, np.array([[1], [2]]), np.array([[9], [8]])),
    }  # fmt: skip
    wanted = {
        "sort": np.sort(a), "cumsum": a.cumsum(1, np.uint8), "prod": a.prod(1, np.uint8),
        "clip": a.clip(2, 100), "floor": a, "cummax": np.maximum.accumulate(a, 1),
        "take": np.sort(a), "power": a**3, "scatter": np.uint8([[3, 9, 200], [7, 7, 8]]),
    }  # fmt: skip
    halves = {"erf": h.erf(), "log1p": h.log1p(), "silu": h.silu(), "root": h**0.25}
    program = compile(lambda: found | halves, device)
    program.run()
    for name, value in wanted.items():
        assert program.read(name).dtype == value.dtype, name
        assert np.array_equal(program.read(name), value), name
    assert all(program.read(name).dtype == np.float16 for name in halves)


def test_logarithms_near_one_are_accurate(device: AnyDevice) -> None:
    """log1p corrects the rounding of 1 + x. softplus ends in it, so it is accurate as well."""
    near = np.float32([f * 10.0**-n for n in range(1, 10) for f in (1, -1, 3, -3)])
    low = np.linspace(-16, 0, 99, dtype=np.float32)
    x, y = Tensor(near, device), Tensor(low, device)
    program = compile(lambda: {"log1p": x.log1p(), "softplus": y.softplus()}, device)
    program.run()
    wide, wider = near.astype(np.float64), low.astype(np.float64)
    np.testing.assert_allclose(program.read("log1p"), np.log1p(wide), rtol=5e-7)
    np.testing.assert_allclose(program.read("softplus"), np.log1p(np.exp(wider)), rtol=2e-6)


def test_powers_of_halves_are_rounded_once(device: AnyDevice) -> None:
    h = np.float16([0.9, 0.99, 1.01, 11])
    x = Tensor(h, device)
    program = compile(lambda: {"power": x**64, "to the power": 2.5**x}, device)
    program.run()
    wide = h.astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(program.read("power"), (wide**64).astype(np.float16))
    np.testing.assert_allclose(program.read("to the power"), 2.5**wide, rtol=2**-11 * 1.01)


# Of kernels each kind in one mapping: they are the same ones, but for the names of kinds.
ORDERED = [
    *product(("numpy", *EMULATED), ("f4", "f2", "i1", "u4", "?")),
    *[("one", "f4"), ("group", "f2"), ("one", "i1"), ("group", "u4"), ("one", "?")],
]


@pytest.mark.parametrize(("device", "kind"), ORDERED, indirect=["device"])
def test_long_lines_are_merged_in_a_stable_order(device: AnyDevice, kind: str) -> None:
    """Of 65 elements, of three blocks, of blocks that end within one; equal ones, NaN, infinity."""
    wanted, rng = {}, np.random.default_rng(0)
    found: dict[str, Tensor] = {}
    for shape, axis in [((2, 65), 1), ((3, 130, 2), -2), ((200,), 0)]:
        a = rng.integers(0, 2 if kind == "?" else 9, shape).astype(kind)
        if kind[0] == "f":
            a.flat[::7], a.flat[1::11], a.flat[2::13] = np.nan, np.inf, -np.inf
        x = Tensor(a, device)
        order = np.argsort(a, axis, kind="stable")
        # the last of the reversed line comes first where it is read from its end
        falling = a.shape[axis] - 1 - np.argsort(np.flip(a, axis), axis, kind="stable")
        falling = np.flip(falling, axis)
        for index, descending in ((order, False), (falling, True)):
            name = f"{shape} {descending}"
            found |= {f"{name} i": x.argsort(axis, descending), name: x.sort(axis, descending)}
            wanted |= {f"{name} i": index, name: np.take_along_axis(a, index, axis)}
        found["topk"], found["topk i"] = x.topk(70, 0) if shape == (200,) else (x, x)
        wanted |= {"topk": np.take_along_axis(a, falling, axis)[:70], "topk i": falling[:70]}
    program = compile(lambda: found, device)
    program.run()
    for name, array in wanted.items():
        assert np.array_equal(program.read(name), array, equal_nan=kind[0] == "f"), name


def test_gradients_go_back_through_the_order_of_long_lines(device: AnyDevice) -> None:
    rng = np.random.default_rng(0)
    a, weights = rng.permutation(200).reshape(2, 100) / 64, rng.integers(1, 9, (2, 100)) / 1.0
    x, w = Tensor(a, device), Tensor(weights, device)

    def step() -> dict[str, Tensor]:
        (once,) = (x.sort(1).square() * w).sum().gradient([x])
        (twice,) = (once * once).sum().gradient([x])
        (largest,) = (x.topk(3, 1)[0] * w[:, :3]).sum().gradient([x])
        return {"once": once, "twice": twice, "largest": largest}

    program = compile(step, device)
    program.run()
    ranks = np.argsort(np.argsort(a, 1), 1)
    slopes = np.take_along_axis(weights, ranks, 1)
    assert np.array_equal(program.read("once"), 2 * a * slopes)
    assert np.array_equal(program.read("twice"), 8 * a * slopes**2)
    kept = np.where(ranks > 96, np.take_along_axis(weights, np.maximum(99 - ranks, 0), 1), 0)
    assert np.array_equal(program.read("largest"), kept)


def test_long_lines_are_sorted_within_loops_and_choices(device: AnyDevice) -> None:
    """Also where two loops around hold values of the same shapes as the merging does."""
    a = np.random.default_rng(0).permutation(100).astype(np.float32)
    x, order = Tensor(a, device), Tensor(np.arange(100)[::-1].copy(), device)

    def body(i: Tensor, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        order = loop(2, lambda j, found: (x * found).argsort(), order)
        return (x + order).sort(descending=True), order

    def step() -> dict[str, Tensor]:
        found, places = loop(2, body, x, order)
        kept = cond(x[0] > 1e6, lambda: x, x.sort)
        (slope,) = (found * x.detach()).sum().gradient([x])
        return {"found": found, "places": places, "kept": kept, "slope": slope}

    program = compile(step, device)
    program.run()
    value, index, origin = a, np.arange(100)[::-1], np.arange(100)
    for _ in range(2):
        for _ in range(2):
            index = np.argsort(value * index, kind="stable")
        falling = np.argsort(-(value + index), kind="stable")
        value, origin = (value + index)[falling], origin[falling]
    slope = np.empty(100)
    slope[origin] = a
    results = {"found": value, "places": index, "kept": np.sort(a), "slope": slope}
    for name, array in results.items():
        assert np.array_equal(program.read(name), array), name


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("...i->...", ((2, 3),)), ("...i->", ((3,),)), ("...i->", ((2, 3),)),
        ("...i->i", ((2, 3),)), ("...->", ((2, 3),)), ("...i,...i->", ((2, 3), (2, 3))),
        ("...i,i->", ((3,), (3,))), ("ij->...", ((2, 3),)), ("i...j->ij", ((2, 3),)),
        ("i...,j...->ij", ((2, 1), (3, 1))), ("...j,...j->...", ((2, 1, 3), (4, 3))),
        ("...ii->...i", ((2, 1, 3),)), ("...ij", ((2, 3, 4),)), ("bA", ((2, 3),)),
        ("ab,b->a", ((2, 1), (3,))), ("ab,ab->ab", ((1, 3), (2, 1))), ("i,i->", ((0,), (1,))),
        ("ii->i", ((1, 3),)), ("ij,", ((2, 3),)), (",i->i", ((), (2,))), ("i-j", ((2, 3, 4),)),
        ("i......j->ij", ((2, 3),)), ("i->i->i", ((2,),)), ("ij->ii", ((2, 2),)),
        ("i->...i...", ((2,),)), ("é->é", ((2,),)),
    ],
)  # fmt: skip
def test_einsum_takes_and_refuses_what_numpy_does(
    formula: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    arrays = [np.random.default_rng(0).integers(1, 9, s).astype(np.float32) for s in shapes]
    device = open_mapping("numpy")
    tensors = [Tensor(a, device) for a in arrays]
    try:
        wanted = np.einsum(formula, *arrays)
    except ValueError:
        with pytest.raises(ValueError, match="einsum"):
            Tensor.einsum(formula, *tensors)
    else:
        found = Tensor.einsum(formula, *tensors).numpy()
        assert found.shape == np.shape(wanted)
        assert np.array_equal(found, wanted)


def test_a_scalar_is_reduced_and_its_softmax_is_one(device: AnyDevice) -> None:
    x = Tensor(np.float32(3), device)
    assert x.sum(-1).item() == x.max(0).item() == x.mean().item() == x.logsumexp().item() == 3
    assert x.argmax(0).item() == x.argmin(-1).item() == 0
    assert x.softmax().item() == 1
    assert x.std().item() == x.log_softmax().item() == 0


def test_a_detached_tensor_has_no_gradient(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    assert (x.detach() * x).sum().gradient([x])[0].numpy().tolist() == [1, 2]


def test_arange_eye_and_full_like() -> None:
    device = open_mapping("numpy")
    for arguments in [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.5, 2.1, 0.4), (1.0,)]:
        found = Tensor.arange(*arguments, device=device)
        assert close(found.numpy(), np.arange(*arguments), roundings=4), arguments
    assert Tensor.arange(5, dtype=dtype.u8, device=device).dtype is dtype.u8
    assert np.array_equal(Tensor.eye(3, 5, 1, device=device), np.eye(3, 5, 1))
    x = Tensor([[1, 2]], device)
    assert x.full_like(7).numpy().tolist() == [[7, 7]]
    assert x.full_like(0.5, dtype.f16).dtype is dtype.f16


def test_cross_entropy_takes_class_probabilities(device: AnyDevice) -> None:
    rng = np.random.default_rng(0)
    logits, shares = rng.normal(size=(5, 7)), rng.uniform(size=(5, 7))
    wanted = -(shares * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum() / 5
    found = nn.cross_entropy(Tensor(logits, device), Tensor(shares, device))
    assert close(found.numpy(), wanted, 40)
    target = np.array([0, 6, 3, 3, 1])
    loss = nn.nll_loss(Tensor(logits, device), Tensor(target, device))
    assert close(loss.numpy(), -logits[range(5), target].mean(), 4)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x[x > 0], TypeError, "mask"),
        (lambda x: x[x], TypeError, "gather"),
        (lambda x: x[[7]], IndexError, "index 7"),
        (lambda x: x[..., ...], IndexError, "more than one"),
        (lambda x: x.squeeze(0), ValueError, "squeeze"),
        (lambda x: x.split(4, 1), ValueError, "4 equal parts"),
        (lambda x: x.min(5), ValueError, "^min: axis 5"),
        (lambda x: x.std(5), ValueError, "^std: axis 5"),
        (lambda x: x[:0].min(0), ValueError, "^min: .* no elements"),
        (lambda x: x[:0].max(0), ValueError, "^max: .* no elements"),
        (lambda x: x[:0].argmin(), ValueError, "^argmin: .* no elements"),
        (lambda x: x[:0].argmax(0), ValueError, "^argmax: .* no elements"),
        (lambda x: x[0, 0].argmin(5), ValueError, "^argmin: axis 5"),
        (lambda x: nn.nll_loss(x, np.zeros(3, int)), ValueError, "^nll_loss: needs"),
        (lambda x: nn.cross_entropy(x, np.zeros(3, int)), ValueError, "^cross_entropy: needs"),
        (lambda x: x.topk(9), ValueError, "topk: 9 of 3"),
        (lambda x: Tensor.stack([x, x[0]]), ValueError, "stack"),
        (lambda x: x.conv2d(x), ValueError, r"\[batch, channels\]"),
        (
            lambda x: x.reshape(1, 1, 2, 3).conv_transpose2d(Tensor(np.ones((2, 1, 1, 1)))),
            ValueError,
            "fit",
        ),
        (lambda x: x.max_pool2d(5), ValueError, "do not fit"),
        (lambda x: x.interpolate((2, 2), "cubic"), ValueError, "cubic"),
        (lambda x: Tensor.einsum("ij,jk->ik", x), ValueError, "1 operands"),
        (lambda x: Tensor.einsum("ii->i", x), ValueError, "does not fit shape"),
        (lambda x: Tensor.arange(3, 5, 0), ValueError, "steps of 0"),
        (lambda x: x.scatter(0, [[0, 1]], [[1.0, 2.0]]), ValueError, "scatter"),
    ],
)
def test_misuse_names_the_operation(
    act: Callable[[Tensor], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        act(Tensor(np.ones((2, 3))))
