# ruff: noqa: E501, E741 (a row of the table is a line; names as in the page)
"""Writes docs/operations.md: every operation of a Tensor, and what it equals in NumPy.

    python tools/operations.py > docs/operations.md

tests/engine/operations/test_documented_operations.py compares values and gradients of each of ROWS
with NumPy. Which dtypes an operation takes, and whether it has a gradient, is found by trying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.engine import Tensor, dtype, nn, open_device

STORED = (dtype.bool_, dtype.i8, dtype.u8, dtype.i32, dtype.u32, dtype.f16, dtype.f32)
A, C, P = (7, 17), (3, 5, 7), (2, 4, 9, 8)


@dataclass(frozen=True)
class Row:
    """An operation on Tensors x, y, z, its equivalent on arrays, and operands to try it with."""

    tensor: str
    array: str
    shapes: tuple[tuple[int, ...], ...] = (A,)
    low: float = -2.0
    high: float = 2.0
    between: float = 0.0  # magnitude of intermediate terms, if larger than operands and results


def smooth(x: Any) -> Any:
    return x - x.max(-1, keepdims=True)


def logs(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def conv(
    x: Any, w: Any, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> Any:
    """Correlation from its definition, output by output."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    (n, _, h, v), (o, i, p, q) = x.shape, w.shape
    rows, columns = ((a - dilation * (k - 1) - 1) // stride + 1 for a, k in ((h, p), (v, q)))
    found = np.zeros((n, o, rows, columns))
    for b in range(o):
        group = x[:, b // (o // groups) * i :][:, :i]
        for r in range(rows):
            for s in range(columns):
                part = group[:, :, r * stride :, s * stride :][
                    :, :, : p * dilation : dilation, : q * dilation : dilation
                ]
                found[:, b, r, s] = (part * w[b]).sum((1, 2, 3))
    return found


def spread(x: Any, w: Any, stride: int = 1, padding: int = 0) -> Any:
    """Transposed convolution: each element of x times the weights, added at its window."""
    (n, _, h, v), (_, o, p, q) = x.shape, w.shape
    found = np.zeros((n, o, (h - 1) * stride + p, (v - 1) * stride + q))
    for r in range(h):
        for s in range(v):
            found[:, :, r * stride : r * stride + p, s * stride : s * stride + q] += np.einsum(
                "nc,copq->nopq", x[:, :, r, s], w
            )
    return found[:, :, padding : found.shape[2] - padding, padding : found.shape[3] - padding]


def pooled(x: Any, join: Any, size: int, stride: int, padding: int = 0, fill: float = 0) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return join(windows[:, :, ::stride, ::stride], (4, 5))


def linear(x: Any, size: tuple[int, int]) -> Any:
    for axis, n in zip((-2, -1), size, strict=True):
        old = np.arange(x.shape[axis])
        places = np.clip((np.arange(n) + 0.5) * old.size / n - 0.5, old.min(), old.max())
        places = (low := np.floor(places)) + np.float32(places - low)
        shares = np.float32(np.maximum(1 - np.abs(places[:, None] - old), 0))  # [n, old.size]
        lines = np.moveaxis(x, axis, -1)[..., None, :]
        x = np.moveaxis(np.sum(shares * lines, -1, where=shares > 0), -1, axis)
    return x


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x)


def erfc(x: Any) -> Any:
    return np.vectorize(math.erfc, otypes=[float])(x)


I, M = np.array([3, 0, 5, 3]), np.arange(7) % 3 > 0
J = np.arange(28).reshape(7, 4) * 5 % 17
ROWS: dict[str, list[Row]] = {
    "Arithmetic": [
        Row("x + y", "x + y", (A, (17,))),
        Row("x - y", "x - y", (A, (7, 1))),
        Row("x * y", "x * y", (A, A)),
        Row("x / y", "x / y", (A, A), 0.5),
        Row("x // y", "x // y", (A, A), 0.3, 3.0),
        Row("x % y", "x % y", (A, A), 0.3, 3.0),
        Row("x // -0.7", "x // -0.7"),
        Row("x % -0.7", "x % -0.7"),
        Row("x ** 5", "x ** 5"),
        Row("x ** -2", "x ** -2", (A,), 0.5),
        Row("x ** 0.5", "x ** 0.5", (A,), 0.1),
        Row("x ** -1.7", "x ** -1.7", (A,), 0.3),
        Row("x ** y", "x ** y", (A, A), 0.3),
        Row("2.5 ** x", "2.5 ** x"),
        Row("-x", "-x"),
        Row("x.abs()", "np.abs(x)"),
        Row("abs(x)", "np.abs(x)"),
        Row("x.sign()", "np.sign(x)"),
        Row("x.copysign(y)", "np.copysign(x, y)", (A, A)),
        Row("x.square()", "np.square(x)"),
        Row("x.reciprocal()", "1 / x", (A,), 0.5),
        Row("x.multiply_add(y, z)", "x * y + z", (A, A, A)),
        Row("x.maximum(y)", "np.maximum(x, y)", (A, A)),
        Row("x.minimum(y)", "np.minimum(x, y)", (A, A)),
        Row("x.clip(-1, 0.5)", "np.clip(x, -1, 0.5)"),
        Row("Tensor.where(x < y, x * 2, y)", "np.where(x < y, x * 2, y)", (A, A)),
    ],
    "Rounding and comparing": [
        Row("x.floor()", "np.floor(x)"),
        Row("x.ceil()", "np.ceil(x)"),
        Row("x.trunc()", "np.trunc(x)"),
        Row("x.round()", "np.round(x)", (A,), -9, 9),
        Row("round(x)", "np.round(x)", (A,), -9, 9),
        Row("x == y", "x == y", (A, A)),
        Row("x != y", "x != y", (A, A)),
        Row("x < y", "x < y", (A, A)),
        Row("x >= 0", "x >= 0"),
        Row("x.isnan()", "np.isnan(x)"),
        Row("x.isinf()", "np.isinf(x)"),
        Row("x.isfinite()", "np.isfinite(x)"),
        Row("x.isclose(y, 0.5)", "np.isclose(x, y, 0.5)", (A, A)),
        Row("x.logical_not()", "np.logical_not(x)"),
        Row("x > y", "x > y", (A, A)),
        Row("x <= y", "x <= y", (A, A)),
        Row("~x.cast(dtype.i32)", "~x.astype(int)", (A,), -9, 9),
        Row("x.cast(dtype.i32) & 6", "x.astype(int) & 6", (A,), -9, 9),
        Row("x.cast(dtype.i32) | 6", "x.astype(int) | 6", (A,), -9, 9),
        Row("x.cast(dtype.i32) ^ 6", "x.astype(int) ^ 6", (A,), -9, 9),
        Row("x.cast(dtype.i32) << 3", "x.astype(int) << 3", (A,), -9, 9),
        Row("x.cast(dtype.i32) >> 1", "x.astype(int) >> 1", (A,), -9, 9),
    ],
    "Functions": [
        Row("x.exp()", "np.exp(x)"),
        Row("x.exp2()", "np.exp2(x)"),
        Row("x.expm1()", "np.expm1(x)"),
        Row("x.log()", "np.log(x)", (A,), 0.1),
        Row("x.log2()", "np.log2(x)", (A,), 0.1),
        Row("x.log1p()", "np.log1p(x)", (A,), -0.7),
        Row("x.sqrt()", "np.sqrt(x)", (A,), 0.1),
        Row("x.rsqrt()", "1 / np.sqrt(x)", (A,), 0.2),
        Row("x.sin()", "np.sin(x)"),
        Row("x.cos()", "np.cos(x)"),
        Row("x.tan()", "np.tan(x)", (A,), -1.2, 1.2),
        Row("x.asin()", "np.arcsin(x)", (A,), -0.9, 0.9, 1),
        Row("x.acos()", "np.arccos(x)", (A,), -0.9, 0.9, 1),
        Row("x.atan()", "np.arctan(x)", (A,), -5, 5, 1),
        Row("x.tanh()", "np.tanh(x)", (A,), between=1),
        Row("x.erf()", "erf(x)", (A,), -3, 3, 2),
    ],
    "Activations": [
        Row("x.relu()", "np.maximum(x, 0)"),
        Row("x.leaky_relu(0.1)", "np.where(x < 0, 0.1 * x, x)"),
        Row("x.elu(0.5)", "np.where(x > 0, x, 0.5 * np.expm1(x))"),
        Row("x.sigmoid()", "1 / (1 + np.exp(-x))"),
        Row("x.silu()", "x / (1 + np.exp(-x))"),
        Row("x.softplus()", "np.log1p(np.exp(x))", between=1),
        Row("x.gelu()", "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"),
        Row("x.gelu(exact=True)", "0.5 * x * (1 + erf(x / np.sqrt(2)))", between=2),
        Row("x.softmax()", "np.exp(smooth(x)) / np.exp(smooth(x)).sum(-1, keepdims=True)"),
        Row("x.log_softmax(0)", "x - np.log(np.exp(x).sum(0))"),
    ],
    "Reductions": [
        Row("x.sum(1)", "x.sum(1)"),
        Row("x.sum((0, -1), keepdims=True)", "x.sum((0, -1), keepdims=True)", (C,)),
        Row("x.prod(1)", "x.prod(1)", ((4, 7),), 0.5),
        Row("x.max(0)", "x.max(0)"),
        Row("x.min(-1)", "x.min(-1)"),
        Row("(x > 0).all(0)", "(x > 0).all(0)", ((2, 9),)),
        Row("(x > 1).any((0, -1), keepdims=True)", "(x > 1).any((0, -1), keepdims=True)", (C,)),
        Row("x.mean((0, 2))", "x.mean((0, 2))", (C,)),
        Row("x.var(1, correction=1)", "x.var(1, ddof=1)"),
        Row("x.std(0)", "x.std(0)"),
        Row(
            "nn.layer_norm(x, y, z)",
            "(x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * y + z",
            (A, (17,), (17,)),
        ),
        Row("x.logsumexp(1)", "np.log(np.exp(x).sum(1))", between=3),
        Row("x.argmax(1)", "x.argmax(1)"),
        Row("x.argmin()", "x.argmin()"),
    ],
    "Along an axis": [
        Row("x.cumsum(1)", "x.cumsum(1)", between=20),
        Row("x.cumprod(1)", "x.cumprod(1)", ((3, 7),), 0.5),
        Row("x.cummax(-1)", "np.maximum.accumulate(x, -1)"),
        Row("x.sort()", "np.sort(x)"),
        Row("x.sort(0, descending=True)", "np.sort(x, 0)[::-1]"),
        Row("x.argsort()", "np.argsort(x, kind='stable')"),
        Row("x.topk(3)[0]", "np.sort(x)[:, :-4:-1]"),
        Row("x.topk(3)[1]", "np.argsort(-x, kind='stable')[:, :3]"),
    ],
    "Shapes": [
        Row("x.reshape(17, -1)", "x.reshape(17, -1)"),
        Row("x.permute(2, 0, 1)", "x.transpose(2, 0, 1)", (C,)),
        Row("x.transpose(0, -1)", "np.swapaxes(x, 0, -1)", (C,)),
        Row("x.T", "x.T"),
        Row("x.expand(5, 33)", "np.broadcast_to(x, (5, 33))", ((1, 33),)),
        Row("x.broadcast_to((2, 3, 5))", "np.broadcast_to(x, (2, 3, 5))", ((3, 1),)),
        Row("x.squeeze(0)", "np.squeeze(x, 0)", ((1, 5),)),
        Row("x.unsqueeze(-1)", "x[..., None]"),
        Row("x.flatten(1)", "x.reshape(3, 35)", (C,)),
        Row("x.pad((1, 2), (0, 3))", "np.pad(x, ((1, 2), (0, 3)))"),
        Row("x.shrink((1, 6), (0, 9))", "x[1:6, 0:9]"),
        Row("x.stride(-2, 3)", "x[::-2, ::3]"),
        Row("x.flip(1)", "np.flip(x, 1)"),
        Row("x.flip((0, -1))", "np.flip(x, (0, -1))", (C,)),
        Row("x.contiguous()", "np.ascontiguousarray(x)"),
        Row("x.repeat(3, 1)", "np.repeat(x, 3, 1)"),
        Row("Tensor.concat([x, y], 1)", "np.concatenate([x, y], 1)", ((3, 33), (3, 5))),
        Row("Tensor.stack([x, y], -1)", "np.stack([x, y], -1)", (A, A)),
        Row("x.split(3, 1)[1]", "np.split(x, 3, 1)[1]", ((4, 9),)),
        Row("x.split([2, 3])[2]", "np.split(x, [2, 3])[2]"),
        Row("x.tril()", "np.tril(x)"),
        Row("x * Tensor.arange(3, 20) - Tensor.eye(7, 17)", "x * np.arange(3, 20) - np.eye(7, 17)"),
        Row("x.full_like(3)", "np.full_like(x, 3)"),
        Row("x.detach().sign() * x", "np.sign(x) * x"),
        Row("x.triu(-2)", "np.triu(x, -2)", (C,)),
    ],
    "Random numbers": [
        Row("Tensor.random_bits(x.shape, (3, 5))", "random_bits(x.shape, 3, 5)"),
        Row("x + Tensor.uniform((7, 17), 3)", "x + uniform(random_bits((7, 17), 3))"),
        Row(
            "x + Tensor.normal((7, 17), 3, variance=4)",
            "x + 2 * normal(random_bits((7, 17), 3))",
            between=4,
        ),
    ],
    "Elements": [
        Row("x[1:-1, ::-2]", "x[1:-1, ::-2]"),
        Row("x[None, ..., 2]", "x[None, ..., 2]", (C,)),
        Row("x[I]", "x[I]"),
        Row("x[:, [1, -1, 1]]", "x[:, [1, -1, 1]]"),
        Row("x[I[:3, None] % 3, :, I]", "x[I[:3, None] % 3, :, I]", (C,)),
        Row("x[M]", "x[M]"),
        Row("x.gather(I)", "x[I]"),
        Row("x.take(I, 1)", "np.take(x, I, 1)"),
        Row("x.take_along_axis(J, 1)", "np.take_along_axis(x, J, 1)"),
        Row("x.scatter(1, J, y)", "put(x, J, y)", (A, (7, 4))),
        Row("x.scatter_add(1, J, y)", "added(x, J, y)", (A, (7, 4))),
        Row("x.argmax(1).one_hot(17)", "np.eye(17)[x.argmax(1)]"),
    ],
    "Products": [
        Row("x @ y", "x @ y", ((3, 5, 7), (7, 9))),
        Row("Tensor.einsum('ij,kj->ik', x, y)", "np.einsum('ij,kj->ik', x, y)", (A, (5, 17))),
        Row(
            "Tensor.einsum('bi,bj,j->bi', x, y, z)",
            "np.einsum('bi,bj,j->bi', x, y, z)",
            (A, (7, 5), (5,)),
        ),
        Row(
            "Tensor.einsum('...ij,kj->...k', x, y)",
            "np.einsum('...ij,kj->...k', x, y)",
            (C, (2, 7)),
        ),
        Row("Tensor.einsum('iij->ji', x)", "np.einsum('iij->ji', x)", ((5, 5, 3),)),
        Row("nn.attention(x, y, z)", "attend(x, y, z, 0)", ((2, 5, 4), (2, 7, 4), (2, 7, 3))),
        Row(
            "nn.attention(x, y, z, causal=True)",
            "attend(x, y, z, np.triu(np.full((5, 5), -1e9), 1))",
            ((2, 5, 4), (2, 5, 4), (2, 5, 3)),
        ),
    ],
    "Losses": [
        Row(
            "nn.nll_loss(x, y.argmax(1))",
            "-np.take_along_axis(x, y.argmax(1)[:, None], 1).mean()",
            (A, A),
        ),
        Row(
            "nn.cross_entropy(x, y.argmax(1))",
            "-np.take_along_axis(logs(x), y.argmax(1)[:, None], 1).mean()",
            (A, A),
        ),
        Row(
            "nn.cross_entropy(x, y.softmax())",
            "-(logs(x) * np.exp(logs(y))).sum() / len(x)",
            (A, A),
            between=1,
        ),
    ],
    "Windows": [
        Row("x.conv2d(y)", "conv(x, y)", (P, (3, 4, 3, 2))),
        Row(
            "x.conv2d(y, stride=2, padding=1, dilation=2, groups=2)",
            "conv(x, y, 2, 1, 2, 2)",
            (P, (6, 2, 3, 3)),
        ),
        Row("x.conv_transpose2d(y)", "spread(x, y)", ((2, 4, 4, 3), (4, 3, 3, 2))),
        Row(
            "x.conv_transpose2d(y, stride=2, padding=1)",
            "spread(x, y, 2, 1)",
            ((2, 3, 4, 3), (3, 2, 3, 3)),
        ),
        Row("x.max_pool2d(2)", "pooled(x, np.max, 2, 2)", (P,)),
        Row("x.max_pool2d(3, stride=2, padding=1)", "pooled(x, np.max, 3, 2, 1, -9.0)", (P,)),
        Row("x.avg_pool2d(3, stride=2, padding=1)", "pooled(x, np.mean, 3, 2, 1)", (P,)),
        Row(
            "x.interpolate((12, 5))",
            "x[:, :, np.arange(12) * 9 // 12][..., np.arange(5) * 8 // 5]",
            (P,),
        ),
        Row("x.interpolate((12, 5), 'linear')", "linear(x, (12, 5))", (P,)),
    ],
}


def put(x: Any, index: Any, values: Any) -> Any:
    found = x.copy()
    np.put_along_axis(found, index, values, 1)
    return found


def added(x: Any, index: Any, values: Any) -> Any:
    found = x.copy()
    np.add.at(found, (np.arange(len(x))[:, None], index), values)
    return found


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = np.exp(smooth(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + mask))
    return scores / scores.sum(-1, keepdims=True) @ v


def lowbias32(x: Any) -> Any:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def random_bits(shape: Any, *seeds: int) -> Any:
    """Hashes of a counter and of the seeds, which are mixed in one after the other."""
    mixed = np.zeros(1, np.uint32)
    for seed in seeds:
        mixed = lowbias32(mixed + np.uint32(seed) + np.uint32(0x9E3779B9))
    counter = np.arange(math.prod(shape), dtype=np.uint32)
    return lowbias32(lowbias32(counter) + mixed).reshape(shape)


def uniform(bits: Any) -> Any:
    return (bits >> np.uint32(8)) * 2.0**-24


def normal(bits: Any) -> Any:
    """Box and Muller (1958)"""
    radius = np.sqrt(-2 * np.log(1 - uniform(bits)))
    return radius * np.cos(2 * np.pi * uniform(lowbias32(bits)))


FUNCTIONS = (
    random_bits,
    uniform,
    normal,
    smooth,
    logs,
    conv,
    spread,
    pooled,
    linear,
    erf,
    put,
    added,
    attend,
)
NAMES: dict[str, Any] = {
    "np": np,
    "nn": nn,
    "dtype": dtype,
    "Tensor": Tensor,
    "I": I,
    "J": J,
    "M": M,
}
NAMES |= {function.__name__: function for function in FUNCTIONS}


def evaluated(text: str, operands: list[Any]) -> Any:
    """The value of an expression of ROWS for Tensors or arrays x, y, z."""
    return eval(text, NAMES | dict(zip("xyz", operands, strict=False)))  # noqa: S307


def dtypes(row: Row) -> str:
    """The dtypes that an operation accepts, in words."""
    device = open_device("numpy")
    taken = []
    for kind in STORED:
        operands = [Tensor(np.ones(s, kind.np), device) for s in row.shapes]
        try:
            evaluated(row.tensor, operands)
            taken.append(kind)
        except (TypeError, ValueError):
            pass
    names = {
        STORED: "all", STORED[1:]: "numbers", STORED[:-2]: "bool, integers",
        STORED[1:-2]: "integers", STORED[-2:]: "floats", STORED[-1:]: "f32",
    }  # fmt: skip
    return names.get(tuple(taken)) or ", ".join(d.name for d in taken)


def gradient(row: Row) -> str:
    """Whether an operation has a gradient: "yes", "zero" if it is 0 everywhere, or "none"."""
    device, rng = open_device("numpy"), np.random.default_rng(0)
    operands = [
        Tensor(rng.uniform(row.low, row.high, s).astype(np.float32), device) for s in row.shapes
    ]
    answer = evaluated(row.tensor, operands)
    if not answer.dtype.is_float:
        return "none"
    found = answer.sum().gradient(operands) if answer.shape else answer.gradient(operands)
    return "yes" if any(np.any(g.numpy()) for g in found) else "zero"


INTRODUCTION = """\
# What a Tensor can do

All operations of Tensors with their NumPy equivalents. `python tools/operations.py` writes this page. Every row is a test of
values and gradients in float32 on every form of a step, and of values in the other dtypes that it lists on the NumPy device.
In the tables, `x`, `y` and `z` are Tensors on the left and NumPy arrays on the right. I and J are arrays of indices, M is an array of
bools. Functions that NumPy lacks are defined in the tool.

## Rules

**Dtypes.**

- Two dtypes are promoted by the lattice in `engine/ir/dtype.py`. An integer never determines the precision of a float, so `u32` and
  `f16` give `f16`. There are no 64-bit types.
- A Python number takes the dtype of the other operand. An integer that does not fit into an integer dtype is an error, except in
  comparisons, in powers, and as a limit that has no effect, as in `clip`.
- These give `f32` for integers: functions, `/`, powers (except with Python integers from 0 to 64 as exponents), matrix products, and
  `einsum` if it is a matrix product.
- Integer results wrap. Division by 0 (`//`, `%`) gives 0 on every device. Shifts must be by fewer bits than the dtype has; if a
  Tensor shifts by more, the result depends on the device.
- `i32` and `u32` are promoted to `u32`, where negative numbers wrap: of 3 and -1, the second is larger then. Cast to `i32` to
  compare them.

**NumPy functions on Tensors.** They take a Tensor's current value, or call its method of the same name. While a step is traced
they refuse to take a value, because it would become a constant of the step. Elementwise functions such as `np.exp` always refuse: use the
Tensor's method, or `np.exp(x.numpy())`.

**Sums.**

- Sums of integers stay in their dtype, so sums of `u8` and `i8` have 8 bits and wrap; cast to `i32` for larger sums. Means are
  computed in `f32`, and bools are counted in `i32`.
- Sums of floats are accumulated in `f32`. PoCL adds long sums in a few parts, each from its first element to its last. Errors cancel for
  random numbers and for numbers of both signs, but not for equal numbers: the sum of 10^7 times 0.1 has a relative error of 4e-5,
  the sum of 10^8 times 0.1 one of 5e-4. `x.reshape(10_000, -1).sum(1).sum()` is more accurate.

**Indices.**

- Computed indices are checked when a Tensor is computed immediately, but not inside its loops. In compiled steps they are checked only with
  `DEBUG=1`; otherwise an index beyond its axis reads arbitrary memory or ends the process. If several indices select together, the
  position among all elements is checked.
- Targets of losses are checked in the same way, but never in loops. In a compiled step, a target beyond the classes counts as a loss of 0.
- `gather` and `take_along_axis` refuse negative indices; `x[I]` and `take` count them from the end. `scatter` and `scatter_add`
  silently ignore values whose index is out of bounds or negative, and `one_hot` gives zeros for such an index.
- Indices, sorting and scattering are refused for more than 2^31 elements, which `i32` cannot number.

**Zeros, NaN and infinity.**

- The sign of a zero may differ from NumPy's. `abs` and `relu` keep the sign of -0.0; `floor`, `ceil`, `trunc`, `round`, `//`, `atan`
  and `asin` give 0.0 where NumPy gives -0.0; a zero result of `%` has the sign of x, in NumPy that of y. Compiled steps omit
  additions of 0, and which of two zeros is larger depends on the device.
- `sign` of NaN is 0, and `copysign` treats -0.0 as 0.
- x times a constant 0 is 0 even if x is infinite or NaN, because the compiler removes such products; the NumPy device keeps them and
  gives NaN. Such an x times a computed or stored 0 is NaN on every device. If the rows of a step do not fill its tiles, matrix products that
  sum over all rows include such a 0 after the last row, so an infinity there gives NaN.

**Gradients of equal values.** `max` and `min` distribute the gradient over all equal values. `maximum`, `minimum`, `clip` at its limits,
and each step of max pooling and `cummax` distribute it over both operands. At 0, the gradient of `abs` is 1 and that of `relu` is 0.
"""


def page() -> str:
    """The text of docs/operations.md."""
    lines = [*INTRODUCTION.splitlines(), ""]
    for title, rows in ROWS.items():
        lines += [
            f"## {title}",
            "",
            "| operation | equals | dtypes | gradient |",
            "|---|---|---|---|",
        ]
        for row in rows:
            cells = (f"`{row.tensor}`", f"`{row.array}`", dtypes(row), gradient(row))
            lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
