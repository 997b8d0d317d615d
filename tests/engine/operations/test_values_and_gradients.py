# ruff: noqa: E501 (a case of the table is a line)
"""Values and gradients of every elementary operation, on every device and in every lowered form.

A case is a function of Tensors and the same function of NumPy arrays, written independently.
Values are compared with NumPy in float64; gradients with central differences of the float64
function, by each element of each input. The sizes are multiples of no vector or tile size.
test_documented_operations.py does the same with the rows of docs/operations.md.
"""

from __future__ import annotations

import numpy as np
import pytest
from differences import Case, expected, inputs_of
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile


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
def test_values_and_gradients_of_operations_equal_numpy(device: AnyDevice, part: int) -> None:
    """One program computes a quarter of the cases: a driver compiles many small programs slowly."""
    cases = CASES[part::4]
    arrays = {c.name: inputs_of(c) for c in cases}
    tensors = {c.name: [Tensor(a, device) for a in arrays[c.name]] for c in cases}

    def step() -> dict[str, Tensor]:
        outputs = {}
        for c in cases:
            answer = c.tensors(*tensors[c.name])
            weights = Tensor(np.cos(np.arange(answer.node.size)).reshape(answer.shape), device)
            outputs[c.name] = answer
            for i, g in enumerate((answer * weights).sum().gradient(tensors[c.name])):
                outputs[f"{c.name}, gradient {i}"] = g
        return outputs

    program = compile(step, device)
    program.run(2)  # the second run must not depend on what the first left in memory
    for c in cases:
        for name, (value, magnitude) in expected(c).items():
            assert close(program.read(name), value, magnitude), name
