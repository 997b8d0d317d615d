"""Gradients through loops and conds equal those of the unrolled computation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import MAPPINGS, Lowered, open_mapping
from reference import close
from small_programs import symmetric

from imgmlp.engine import AnyDevice, Context, Function, Tensor, compile, cond, dtype, loop
from imgmlp.engine.ir.kernel import Fused
from imgmlp.engine.ir.op import Op
from imgmlp.engine.operations.autograd import MAX_UNROLLED_OPERATIONS


def run_and_read(*tensors: Tensor) -> list[np.ndarray]:
    """The values of several Tensors, computed by one program."""
    device = tensors[0].device
    assert device is not None
    program = compile(lambda: {str(i): t for i, t in enumerate(tensors)}, device)
    program.run()
    return [program.read(str(i)) for i in range(len(tensors))]


def gradients_through(run: Callable[..., Tensor], device: AnyDevice) -> list[np.ndarray]:
    a = Tensor(symmetric(3) * 0.2, device)
    x = Tensor([1.0, -0.5, 2.0], device)

    def body(i: Tensor | int, y: Tensor) -> Tensor:
        return (a @ y) * 0.5 + (y * x).sin() * i

    loss = (run(3, body, x) * x).sum()
    return run_and_read(*loss.gradient([x, a]))


def unrolled_loop(count: int, body: Callable[..., Tensor], x: Tensor) -> Tensor:
    for i in range(count):
        x = body(i, x)
    return x


def test_gradient_through_a_loop_equals_that_of_the_unrolled_loop(device: AnyDevice) -> None:
    expected = gradients_through(unrolled_loop, open_mapping("numpy"))
    for actual, want in zip(gradients_through(loop, device), expected, strict=True):
        assert np.abs(want).max() > 0.1
        assert close(actual, want)


def test_gradient_through_a_nested_loop_multiplies_all_factors(device: AnyDevice) -> None:
    """y = x·3^(2·3), so that the slope is 729."""
    x = Tensor([2.0], device)
    y = loop(2, lambda i, y: loop(3, lambda j, z: z * 3, y), x)
    (slope,) = y.sum().gradient([x])
    assert slope.numpy() == [729.0]


class Scaled(Function):
    """x·a², with a saved product."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(x * a, a)
        return x * a * a

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor]:
        product, a = ctx.saved_tensors
        return g * a * a, g * product * 2


def test_function_in_a_loop_saves_the_values_of_each_iteration(device: AnyDevice) -> None:
    """y = x·a^(2·6), so that the slopes are a^12 and 12·x·a^11; one loop is in the other."""
    x, a = Tensor([2.0, 3.0], device), Tensor([1.1, 0.9], device)

    def body(i: Tensor, y: Tensor) -> Tensor:
        return loop(2, lambda j, z: Scaled.apply(z, a), y)

    by_x, by_a = run_and_read(*loop(3, body, x).sum().gradient([x, a]))
    scale = np.array([1.1, 0.9])
    expected = 12 * np.array([2, 3]) * scale**11
    assert close(by_x, scale**12, scale**12)
    assert close(by_a, expected, expected)


def test_gradients_reach_expressions_that_only_a_loop_body_uses(device: AnyDevice) -> None:
    w = Tensor([1.0, 2.0, 3.0, 4.0], device)
    square, double = w.reshape(2, 2), w[:2] * 2
    y = loop(2, lambda i, y: y + square.sum(0) * double, Tensor([0.0, 0.0], device))
    by_square, by_double = run_and_read(*y.sum().gradient([square, double]))
    assert np.array_equal(by_square, [[4.0, 8.0], [4.0, 8.0]])
    assert np.array_equal(by_double, [8.0, 12.0])


def test_second_derivative_through_a_loop_is_exact(device: AnyDevice) -> None:
    """y = x^8: the second derivative is 56·x^6."""
    x = Tensor([1.5], device)
    (slope,) = loop(3, lambda i, y: y * y, x).sum().gradient([x])
    (curvature,) = slope.sum().gradient([x])
    assert curvature.numpy() == pytest.approx(56 * 1.5**6, rel=1e-5)


def test_second_derivatives_through_functions_in_a_loop_equal_unrolled(device: AnyDevice) -> None:
    """Gradient rules refer to values of the body; each iteration must use its own."""
    x = Tensor([1.5, -0.5, 0.25], device)
    weights = np.float32([3, -1, 2])

    def slopes(run: Callable[..., Tensor]) -> list[Tensor]:
        results = []
        for function in (
            Tensor.erf,
            Tensor.sort,
            lambda y: Scaled.apply(y, y),
            lambda y: y ** y.cos(),
        ):
            y = run(2, lambda i, y, f=function: f(y.abs() + 0.5) * 0.5, x)
            (slope,) = (y * weights).sum().gradient([x])
            results += (slope * weights).sum().gradient([x])
        return results

    results = run_and_read(*slopes(loop))
    for curvature, want in zip(results, run_and_read(*slopes(unrolled_loop)), strict=True):
        assert close(curvature, want)
    assert np.abs(results[0]).max() > 0.1


def test_gradients_ignore_carried_bools_and_integers(device: AnyDevice) -> None:
    """Bools and integers have no gradient, wherever else they are used."""
    x = Tensor([1.0, -2.0, 3.0], device)
    positive, count = x > 0, x.cast(dtype.i8)

    def body(i: Tensor, y: Tensor, chosen: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return y * 2, chosen & positive, n + count

    y, chosen, n = loop(2, body, x, positive, count)
    once = Tensor.where(positive & chosen, y, 0.0) * (n + count)
    assert run_and_read(*once.sum().gradient([x]))[0].tolist() == [16, 0, 48]


@pytest.mark.parametrize("way", [0, 1])
def test_gradients_go_through_the_taken_branch_of_cond(device: AnyDevice, way: int) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((3, 3)).astype(np.float32) for _ in range(2))
    w, v = Tensor(a, device), Tensor(b, device)
    c = Tensor(np.int32(way), device)
    x = (w * 0.5).sin()  # used by both branches
    y = cond(c, lambda: (x @ v) ** 2, lambda: x * 3)
    by_w, by_v = run_and_read(*(y.sum() + x.sum()).gradient([w, v]))
    g = 2 * (np.sin(a / 2) @ b) @ b.T if way else np.full((3, 3), 3.0)
    assert close(by_w, (g + 1) * np.cos(a / 2) / 2)
    expected = np.sin(a / 2).T @ (2 * np.sin(a / 2) @ b) if way else np.zeros((3, 3))
    assert close(by_v, expected)


def test_gradient_of_the_untaken_branch_is_not_computed(lowered: Lowered) -> None:
    x, w, c = Tensor(symmetric(4)), Tensor(symmetric(4)), Tensor(np.int32(0))

    def step() -> dict[str, Tensor]:
        y = cond(c, lambda: ((x @ w).softmax() @ w) ** 2, lambda: x * 2)
        return {"slope": y.sum().gradient([w])[0]}

    launches = lowered(step).procedure.kernels
    kernels = [m for k in launches for m in (k.members if isinstance(k, Fused) else [k])]
    products = [k for k in kernels if k.core and k.core.op is Op.DOT]
    assert len(products) >= 4
    assert all(k.guards for k in products)


def test_gradient_through_cond_in_a_loop_follows_each_iterations_branch(device: AnyDevice) -> None:
    """x is doubled twice, then squared: y = 16·x², whose slope is 32·x."""
    x = Tensor([1.5], device)
    y = loop(3, lambda i, y: cond(i < 2, lambda: y * 2, lambda: y * y), x)
    (slope,) = y.sum().gradient([x])
    assert slope.numpy() == pytest.approx(48.0)


@pytest.mark.parametrize("device", MAPPINGS, indirect=True)  # long
def test_loop_without_parameters_is_not_unrolled_for_gradients(device: AnyDevice) -> None:
    x, w = Tensor([2.0], device), Tensor([5.0], device)
    y = loop(MAX_UNROLLED_OPERATIONS, lambda i, y: y * 0.5 + 1.0, x)
    (slope,) = (y * w).sum().gradient([w])
    assert slope.numpy() == [2.0]
    (slope,) = (y * w).sum().gradient([y])  # up to the loop's result, not through it
    assert slope.numpy() == [5.0]


def test_gradient_through_too_many_iterations_is_refused() -> None:
    x = Tensor([2.0], open_mapping("numpy"))
    y = loop(1_000_000, lambda i, y: y * 0.5 + x, x)
    with pytest.raises(ValueError, match=r"1,000,000 iterations.*take the gradient inside"):
        y.sum().gradient([x])
