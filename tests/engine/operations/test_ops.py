# ruff: noqa: E501 (a case of the table is a line)
"""Every operation and its gradient, through one harness, on every device and mapping.

A case is a function of Tensors and the same function of NumPy arrays, written independently.
Values are compared with NumPy in float64; gradients with central differences of the float64
function, by each element of each input. Sizes divide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from differences import Case, expected, inputs_of
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, nn, open_device


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


A, B = (7, 17), (3, 33)
CASES = [
    Case("add", lambda x, y: x + y, lambda x, y: x + y, (A, A)),
    Case("add broadcast column", lambda x, y: x + y, lambda x, y: x + y, (A, (7, 1))),
    Case("add broadcast row", lambda x, y: x + y, lambda x, y: x + y, (A, (17,))),
    Case("sub", lambda x, y: x - y, lambda x, y: x - y, (A, A)),
    Case("sub from number", lambda x: 3 - x, lambda x: 3 - x, (A,)),
    Case("mul", lambda x, y: x * y, lambda x, y: x * y, (A, A)),
    Case("div", lambda x, y: x / y, lambda x, y: x / y, (A, A), 0.5),
    Case("number div", lambda x: 2 / x, lambda x: 2 / x, (A,), 0.5),
    Case("neg", lambda x: -x, lambda x: -x, (A,)),
    Case("power", lambda x: x**5, lambda x: x**5, (A,)),
    Case("multiply_add", lambda x, y, z: x.multiply_add(y, z), lambda x, y, z: x * y + z, (A,) * 3),
    Case("maximum", lambda x, y: x.maximum(y), np.maximum, (A, A)),
    Case("minimum", lambda x, y: x.minimum(y), np.minimum, (A, A)),
    Case("abs", lambda x: x.abs(), np.abs, (A,)),
    Case("sign", lambda x: x.sign() * x, lambda x: np.sign(x) * x, (A,)),
    Case("copysign", lambda x, y: x.copysign(y), np.copysign, (A, A)),
    Case("sqrt", lambda x: x.sqrt(), np.sqrt, (A,), 0.1),
    Case("square", lambda x: x.square(), np.square, (A,)),
    Case("reciprocal", lambda x: x.reciprocal(), lambda x: 1 / x, (A,), 0.5),
    Case("exp", lambda x: x.exp(), np.exp, (A,)),
    Case("exp2", lambda x: x.exp2(), np.exp2, (A,)),
    Case("log", lambda x: x.log(), np.log, (A,), 0.1),
    Case("log2", lambda x: x.log2(), np.log2, (A,), 0.1),
    Case("sin", lambda x: x.sin(), np.sin, (A,)),
    Case("cos", lambda x: x.cos(), np.cos, (A,)),
    Case("relu", lambda x: x.relu(), lambda x: np.maximum(x, 0), (A,)),
    Case("leaky relu", lambda x: x.leaky_relu(0.1), lambda x: np.where(x < 0, 0.1 * x, x), (A,)),
    Case("sigmoid", lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x)), (A,)),
    Case("tanh", lambda x: x.tanh(), np.tanh, (A,), between=1),
    Case("expm1", lambda x: x.expm1(), np.expm1, (A,)),
    Case("gelu", lambda x: x.gelu(), gelu, (A,)),
    Case("where", lambda x, y: Tensor.where(x < y, x * 2, y), lambda x, y: np.where(x < y, x * 2, y), (A, A)),
    Case("sum", lambda x: x.sum(), lambda x: x.sum(), (A,)),
    Case("sum of rows", lambda x: x.sum(1), lambda x: x.sum(1), (A,)),
    Case("sum of columns", lambda x: x.sum(0), lambda x: x.sum(0), (A,)),
    Case("sum, axis kept", lambda x: x.sum(1, keepdims=True) * x, lambda x: x.sum(1, keepdims=True) * x, (A,)),
    Case("sum of outer axes", lambda x: x.sum((0, 2)), lambda x: x.sum((0, 2)), ((3, 5, 7),)),
    Case("sum in two stages", lambda x: x.sum(), lambda x: x.sum(), ((131, 129),), 0.0, 1.0),
    Case("max", lambda x: x.max(), lambda x: x.max(), (A,)),
    Case("max of columns", lambda x: x.max(0), lambda x: x.max(0), (A,)),
    Case("min", lambda x: x.min(), lambda x: x.min(), (A,)),
    Case("min of rows", lambda x: x.min(1, keepdims=True) * x, lambda x: x.min(1, keepdims=True) * x, (A,)),
    Case("mean", lambda x: x.mean(1), lambda x: x.mean(1), (A,)),
    Case("variance", lambda x: x.variance(1), lambda x: x.var(1), (A,)),
    Case("sum of two reductions", lambda x, y: x.sum(1) + y.max(1), lambda x, y: x.sum(1) + y.max(1), (A, A)),
    Case("softmax", lambda x: x.softmax(), softmax, (A,)),
    Case("log softmax", lambda x: x.log_softmax(), lambda x: np.log(softmax(x)), (A,)),
    Case("reshape", lambda x: x.reshape(17, -1) * 2, lambda x: x.reshape(17, 7) * 2, (A,)),
    Case("permute", lambda x: x.permute(2, 0, 1) * 2, lambda x: x.transpose(2, 0, 1) * 2, ((3, 5, 7),)),
    Case("expand", lambda x: x.expand(5, 33) * 2, lambda x: np.broadcast_to(x, (5, 33)) * 2, ((1, 33),)),
    Case("pad", lambda x: x.pad((1, 2), (0, 3)).exp(), lambda x: np.exp(np.pad(x, ((1, 2), (0, 3)))), (A,)),
    Case("shrink", lambda x: x.shrink((1, 5), (3, 17)) * 2, lambda x: x[1:5, 3:] * 2, (A,)),
    Case("flip", lambda x: x.flip(1) * 2, lambda x: x[:, ::-1] * 2, (A,)),
    Case("slices", lambda x: x[::-2, 1::3] * 2, lambda x: x[::-2, 1::3] * 2, (A,)),
    Case("index", lambda x: x[2] * x[-1], lambda x: x[2] * x[-1], (A,)),
    Case("concat", lambda x, y: Tensor.concat([x, y, x]) * 2, lambda x, y: np.concatenate([x, y, x]) * 2, (B, (1, 33))),
    Case("concat along columns", lambda x, y: Tensor.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1), (B, (3, 5))),
    Case("contiguous", lambda x: x.transpose().contiguous() * 2, lambda x: x.T * 2, (A,)),
    Case("product", lambda x, y: x @ y, lambda x, y: x @ y, (A, (17, 33))),
    Case("product, one column", lambda x, y: x @ y, lambda x, y: x @ y, ((65, 130), (130, 1))),
    Case("product, one row", lambda x, y: x @ y, lambda x, y: x @ y, ((1, 5), (5, 64))),
    Case("product, long", lambda x, y: x.transpose() @ y, lambda x, y: x.T @ y, ((600, 5), (600, 19))),
    Case("product of transposed", lambda x, y: x.transpose() @ y.transpose(), lambda x, y: x.T @ y.T, (A, (33, 7))),
    Case("product of flipped", lambda x, y: x.flip(0) @ y.flip(1), lambda x, y: x[::-1] @ y[:, ::-1], (A, (17, 33))),
    Case("product of padded", lambda x, y: x.pad((1, 0), (0, 2)) @ y, lambda x, y: np.pad(x, ((1, 0), (0, 2))) @ y, (A, (19, 3))),
    Case("product of computed", lambda x, y: (x * 2) @ y.exp(), lambda x, y: (x * 2) @ np.exp(y), (A, (17, 5))),
    Case("product, batched", lambda x, y: x @ y, lambda x, y: x @ y, ((3, 5, 7), (3, 7, 9))),
    Case("product, batch broadcast", lambda x, y: x @ y, lambda x, y: x @ y, ((3, 5, 7), (7, 9))),
    Case("matrix by vector", lambda x, y: x @ y, lambda x, y: x @ y, (A, (17,))),
    Case("vector by vector", lambda x, y: x @ y, lambda x, y: x @ y, ((17,), (17,))),
    Case("vector by matrix", lambda x, y: x @ y, lambda x, y: x @ y, ((7,), A)),
    Case("product, bias, activation", lambda x, y, b: (x @ y + b).leaky_relu(0.1), lambda x, y, b: np.where(x @ y + b < 0, 0.1 * (x @ y + b), x @ y + b), ((65, 33), (33, 48), (48,))),
]  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_values_and_gradients(device: AnyDevice, part: int) -> None:
    """A quarter of the cases in one program: a driver compiles many small ones slowly."""
    cases = CASES[part::4]
    arrays = {c.name: inputs_of(c) for c in cases}
    tensors = {c.name: [Tensor(a, device) for a in arrays[c.name]] for c in cases}

    def step() -> dict[str, Tensor]:
        found = {}
        for c in cases:
            answer = c.tensors(*tensors[c.name])
            weights = Tensor(np.cos(np.arange(answer.node.size)).reshape(answer.shape), device)
            found[c.name] = answer
            for i, g in enumerate((answer * weights).sum().gradient(tensors[c.name])):
                found[f"{c.name}, gradient {i}"] = g
        return found

    program = compile(step, device)
    program.run(2)  # the second replay must not see what the first left
    for c in cases:
        for name, (value, magnitude) in expected(c).items():
            assert close(program.read(name), value, magnitude), name


def test_tanh_and_expm1_are_accurate_near_0(device: AnyDevice) -> None:
    """Relative to each value, not to the largest."""
    sizes = np.float32(10) ** np.linspace(-30, 1.9, 400, dtype=np.float32)
    a = np.concatenate([-sizes, sizes, np.float32([0, np.inf, -np.inf, np.nan])])
    x = Tensor(a, device)
    program = compile(lambda: {"tanh": x.tanh(), "expm1": x.expm1()}, device)
    program.run()
    wide = a.astype(np.float64)
    for name, wanted in (("tanh", np.tanh(wide)), ("expm1", np.expm1(wide))):
        assert close(program.read(name), wanted, np.abs(wanted), roundings=80), name
        near = np.abs(a) < 1
        assert close(program.read(name)[near], wanted[near], np.abs(wanted)[near], 12), name


def test_integers_and_bits(device: AnyDevice) -> None:
    a = np.array([-7, -1, 0, 5, 6, 123456, -(2**31)], np.int32)
    b = np.array([3, 3, -2, -2, 7, 1000, 7], np.int32)
    u = np.array([0, 1, 2**31, 2**32 - 1, 77, 5, 6], np.uint32)
    x, y, z = Tensor(a, device), Tensor(b, device), Tensor(u, device)

    def step() -> dict[str, Tensor]:
        return {
            "//": x // y, "%": x % y, "^": x ^ y, "&": x & y, "|": x | y, "<": x < y, ">=": x >= y,
            "not": x ^ -1, "min": x.minimum(y), "max": x.maximum(y), "eq": x.eq(5),
            "wrap": z * 3 + 5, ">>": z >> 3, "<<": z << 3, "u%": z % 10, "f": z.cast(dtype.f32),
            "u8": (x % 256).cast(dtype.u8),
        }  # fmt: skip

    program = compile(step, device)
    program.run()
    with np.errstate(over="ignore"):
        wanted = {
            "//": a // b, "%": a % b, "^": a ^ b, "&": a & b, "|": a | b, "<": a < b, ">=": a >= b,
            "not": ~a, "min": np.minimum(a, b), "max": np.maximum(a, b), "eq": a == 5,
            "wrap": u * np.uint32(3) + np.uint32(5), ">>": u >> 3, "<<": u << 3, "u%": u % 10,
            "f": u.astype(np.float32), "u8": (a % 256).astype(np.uint8),
        }  # fmt: skip
    for name, value in wanted.items():
        assert np.array_equal(program.read(name), value), name


def test_nan_and_infinity_are_kept(device: AnyDevice) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0, -0.0], np.float32)
    x, y = Tensor(values, device), Tensor(values[::-1].copy(), device)
    program = compile(
        lambda: {"max": x.maximum(y), "min": x.minimum(y), "sum": x.sum(), "most": x.max()}, device
    )
    program.run()
    assert np.array_equal(program.read("max"), np.maximum(values, values[::-1]), equal_nan=True)
    assert np.array_equal(program.read("min"), np.minimum(values, values[::-1]), equal_nan=True)
    assert np.isnan(program.read("sum"))
    assert np.isnan(program.read("most"))


def test_small_integers_wrap_and_halves_are_summed(device: AnyDevice) -> None:
    x = Tensor(np.array([0, 7, 250], np.uint8), device)
    half = Tensor(np.array([[0.5, 1.5], [2.0, -1.0]], np.float16), device)
    program = compile(
        lambda: {
            "+": x + 200 + 100,
            "min": x.minimum(9),
            "not": ~x,
            "sum": half.sum(1),
            "max": half.max(0),
            "relu": Tensor([np.nan, -1.0], device).relu(),
            "c": Tensor([0.0], device) + (1 + 2**-24),
        },
        device,
    )
    program.run()
    assert program.read("+").tolist() == [44, 51, 38]
    assert program.read("min").tolist() == [0, 7, 9]
    assert program.read("not").tolist() == [255, 248, 5]
    assert program.read("sum").tolist() == [2, 1]
    assert program.read("max").tolist() == [2, 1.5]
    assert np.array_equal(program.read("relu"), [np.nan, 0], equal_nan=True)
    assert program.read("c") == 1.0  # a constant is rounded to float32 once, to even


def test_long_reductions_of_bytes_wrap(device: AnyDevice) -> None:
    """Long enough for a group of lanes to share each of them."""
    signed = np.arange(-90, 90).reshape(2, 90).astype(np.int8)
    unsigned, truth = (signed + 90).astype(np.uint8), signed == 7
    parts = {"i8": signed, "u8": unsigned, "bool": truth}
    program = compile(
        lambda: {
            f"{name} {what}": getattr(Tensor(array, device), what)(1)
            for name, array in parts.items()
            for what in ("sum", "max")
        },
        device,
    )
    program.run()
    for name, array in parts.items():
        total = array.sum(1, dtype=np.int32 if name == "bool" else array.dtype)
        assert np.array_equal(program.read(f"{name} sum"), total)
        assert np.array_equal(program.read(f"{name} max"), array.max(1))


def test_the_mean_of_equal_numbers_is_that_number(device: AnyDevice) -> None:
    counts = [3, 41, 49, 55]
    xs = [Tensor(np.full((2, n), 7, np.float32), device) for n in counts]

    def step() -> dict[str, Tensor]:
        found = {}
        for n, x in zip(counts, xs, strict=True):
            found |= {f"{n}": x.mean(1), f"{n}, std": x.std(1)}
            (found[f"{n}, gradient"],) = x.mean().gradient([x])
        return found

    program = compile(step, device)
    program.run()
    # OpenCL lets a quotient be off by 2.5 units in the last place, of which graphics cards make use.
    ulps = 2.5 if device.info.kind == "gpu" else 0.0
    off = ulps * float(np.spacing(np.float32(7)))
    for n in counts:
        assert np.abs(program.read(f"{n}") - 7).max() <= off
        assert program.read(f"{n}, std").max() <= 2 * off
        assert close(program.read(f"{n}, gradient"), np.full((2, n), 0.5 / n))


def test_gather_and_its_gradient_with_repeated_rows(device: AnyDevice) -> None:
    table = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    index = np.array([[3, 0], [3, 8], [3, 1]])
    t, i = Tensor(table, device), Tensor(index, device)
    program = compile(
        lambda: {"rows": t.gather(i), "g": (t.gather(i).square().sum()).gradient([t])[0]}, device
    )
    program.run()
    assert np.array_equal(program.read("rows"), table[index])
    wanted = np.zeros((9, 5))
    np.add.at(wanted, index, 2 * table[index])
    assert close(program.read("g"), wanted, np.abs(wanted), roundings=4)


def test_equal_values_share_the_gradient_of_a_maximum(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0, 2.0], device)
    y = Tensor([1.0, 0.0, 3.0], device)
    assert np.array_equal(x.maximum(y).sum().gradient([x])[0].numpy(), [0.5, 1.0, 0.0])
    assert np.array_equal(x.max().gradient([x])[0].numpy(), [0.0, 0.5, 0.5])


def test_what_the_loss_does_not_use_has_gradient_zero(device: AnyDevice) -> None:
    x, unused = Tensor([1.0, 2.0], device), Tensor([[3.0]], device)
    assert np.array_equal(x.sum().gradient([unused])[0].numpy(), [[0.0]])
    sign = Tensor([-1.0, 1.0], device)
    assert np.array_equal(x.copysign(sign).sum().gradient([sign])[0].numpy(), [0.0, 0.0])


OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": lambda x, y: x + y,
    "@": lambda x, y: x[0, 0] @ y[0, 0],
    "**": lambda x, y: x**y,
    "copysign": lambda x, y: x.copysign(y),
    "where": lambda x, y: Tensor.where(x > 0, y, 0.0),
    "gather": lambda x, y: x.gather(y[0, 0, 0, 0].cast(dtype.i32) - 1),
    "scatter_add": lambda x, y: x.scatter_add(0, y.cast(dtype.i32), y),
    "concat": lambda x, y: Tensor.concat([x, y]),
    "einsum": lambda x, y: Tensor.einsum("...ij,...jk", x, y),
    "conv2d": lambda x, y: x.conv2d(y),
    "conv_transpose2d": lambda x, y: x.conv_transpose2d(y),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_a_result_is_on_the_device_of_either_operand(name: str) -> None:
    devices, array = [open_device("numpy") for _ in range(2)], np.ones((1, 1, 2, 2))
    nowhere, here, there = (Tensor(array, device) for device in (None, *devices))
    for operands in ((here, nowhere), (nowhere, here), (here, here)):
        assert OF_TWO[name](*operands).device is devices[0]
    with pytest.raises(ValueError, match="different devices"):
        OF_TWO[name](here, there)


def test_python_numbers_are_weak() -> None:
    half = Tensor(np.ones(2, np.float16))
    assert (half + 3).dtype is dtype.f16
    assert (Tensor([1]) + 0.5).dtype is dtype.f32
    assert (Tensor([1]) + 2).dtype is dtype.i32
    assert (Tensor([True]) + 1).dtype is dtype.i32


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda x: x + Tensor(np.ones((3, 2))), ValueError, ["(2, 3)", "(3, 2)"]),
        (lambda x: x.reshape(7), ValueError, ["reshape", "(2, 3)", "7"]),
        (lambda x: x.permute(1, 0, 2), ValueError, ["permute", "(2, 3)"]),
        (lambda x: x @ Tensor(np.ones((2, 2))), ValueError, ["dot", "(2, 3)", "(2, 2)"]),
        (lambda x: x.sum(5), ValueError, ["axis 5"]),
        (lambda x: x[2], IndexError, ["2", "axis 0"]),
        (lambda x: x.gradient([x]), ValueError, ["single number", "(2, 3)"]),
        (lambda x: x.cast(dtype.i32).sum().gradient([x]), TypeError, ["float", "i32"]),
        (lambda x: x ^ x, TypeError, ["xor", "f32"]),
        (lambda x: x.gather(x), TypeError, ["gather", "f32"]),
        (lambda x: Tensor.concat([x, x.transpose()]), ValueError, ["concat", "axis 0"]),
        (lambda x: (x + 1).assign(x), ValueError, ["assign", "realize"]),
        (lambda x: x.leaky_relu(-1), ValueError, ["slope", "-1"]),
        (lambda x: x.sum(1.0), TypeError, ["sum", "axis 1.0"]),
        (lambda x: x.max("a"), TypeError, ["max", "axis 'a'"]),
        (lambda x: x.argmax((0, 1)), TypeError, ["argmax: axis (0, 1)"]),
        (lambda x: x.argmin((0, 1)), TypeError, ["argmin: axis (0, 1)"]),
        (lambda x: x.sum(True), TypeError, ["sum: axis True"]),
        (lambda x: x[0, 0].sum(False), TypeError, ["sum: axis False"]),
        (lambda x: x.cumsum(2), ValueError, ["cumsum: axis 2"]),
        (lambda x: x.cumprod(2), ValueError, ["cumprod: axis 2"]),
        (lambda x: x.cummax(2), ValueError, ["cummax: axis 2"]),
        (lambda x: x[0].tril(), ValueError, ["tril: axis -2"]),
        (lambda x: x[0].triu(), ValueError, ["triu: axis -2"]),
        (lambda x: x[1.0], TypeError, ["index 1.0", "lists, arrays and Tensors"]),
        (lambda x: bool(x[:0]), ValueError, ["shape (0, 3)", "no element"]),
        (bool, ValueError, ["shape (2, 3)", "several elements"]),
        (lambda x: x.softmax(2), ValueError, ["softmax", "axis 2"]),
        (lambda x: x.flatten(1, 0), ValueError, ["flatten", "axis 1"]),
        (lambda x: x.repeat(-1), ValueError, ["repeat", "-1"]),
        (lambda x: x.take([True, False]), TypeError, ["take", "bools"]),
        (lambda x: x.broadcast_to(3), TypeError, ["broadcast_to", "3"]),  # type: ignore[arg-type]
        (lambda x: x.take_along_axis([[3], [0]]), IndexError, ["3", "axis 1"]),
        (lambda x: x.take_along_axis([[-1], [0]]), IndexError, ["-1", "axis 1"]),
        (lambda x: nn.nll_loss(x, np.array([0, 3])), IndexError, ["3", "axis 1"]),
        (lambda x: Tensor.arange(math.inf), ValueError, ["arange", "inf"]),
        (lambda x: x.interpolate((2,)), ValueError, ["size", "(2,)"]),
        (lambda x: x[:0].interpolate(2), ValueError, ["interpolate", "(0, 3)"]),
        (lambda x: (x + 1).write(np.zeros((2, 3), np.float32)), ValueError, ["write", "realize"]),
    ],
)
def test_misuse_names_operation_and_shapes(
    act: Callable[[Tensor], object], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        act(Tensor(np.ones((2, 3))))
    for word in words:
        assert word in str(raised.value)


def test_the_error_distinguishes_two_openings_of_a_device() -> None:
    x, y = (Tensor([1.0], open_device("numpy")) for _ in range(2))
    with pytest.raises(ValueError, match="another opening of it: call open_device once"):
        x + y
    with pytest.raises(ValueError, match="another opening of it: call open_device once"):
        compile(lambda: {"x": x * 2}, open_device("numpy"))


def test_a_tensor_has_strides_and_flat_indices() -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4), open_device("numpy"))
    assert x.strides == (12, 4, 1)
    assert x.numpy().ravel()[x.flat_index(1, 2, 3)] == x[1, 2, 3].item() == 23
    with pytest.raises(IndexError, match="axis 1"):
        x.flat_index(0, 3, 0)
    with pytest.raises(IndexError, match="2 indices"):
        x.flat_index(0, 0)
