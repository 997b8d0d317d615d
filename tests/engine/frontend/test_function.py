"""Function: operations with a custom gradient, values saved for it, and errors of misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import close

from imgmlp.engine import AnyDevice, Context, Function, Tensor, compile, dtype, open_device


class Exp(Function):
    """exp, whose gradient needs the answer only."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        answer = x.exp()
        ctx.save_for_backward(answer)
        return answer

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (answer,) = ctx.saved_tensors
        return g * answer


class WeightedPower(Function):
    """weight * x ** power, where the power is a Python number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.power = power
        return weight * x**power

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, Tensor]:
        x, weight = ctx.saved_tensors
        by_x = g * weight * x ** (ctx.power - 1) * ctx.power
        return by_x, None, (g * x**ctx.power).sum().reshape(1)


class Rounded(Function):
    """The nearest integer, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return (x + 64.5).cast(dtype.i32).cast(dtype.f32) - 64.0

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g


class Two(Function):
    """Faulty: one gradient for two arguments."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g


class Scalar(Function):
    """Faulty: a gradient of another shape than the argument."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g.sum()


class Number(Function):
    """Faulty: a gradient that is no Tensor."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Any:
        return 2.0


class NoTensor(Function):
    """Faulty: an answer that is no Tensor."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> float:
        return 2.0


class Forward(Function):
    """Faulty: no backward."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        return x * 2


def test_function_uses_the_gradient_that_its_backward_defines(device: AnyDevice) -> None:
    a = np.array([0.4, -1.6, 2.2], np.float32)
    x, weight = Tensor(a, device), Tensor([0.5], device)
    powers = WeightedPower.apply(x, 3, weight)
    by_x, by_weight = (powers * 2).sum().gradient([x, weight])
    again = Exp.apply(Exp.apply(x))
    outputs = {
        "powers": powers,
        "by x": by_x,
        "by weight": by_weight,
        "again": again,
        "by exp": again.sum().gradient([x])[0],
        "rounded": Rounded.apply(x * 2),
        "straight": (Rounded.apply(x * 2) * x).sum().gradient([x])[0],
    }
    program = compile(lambda: outputs, device)
    program.run()
    wide = a.astype(np.float64)
    expected = {
        "powers": 0.5 * wide**3,
        "by x": 3 * wide**2,
        "by weight": [2 * (wide**3).sum()],
        "again": np.exp(np.exp(wide)),
        "by exp": np.exp(np.exp(wide)) * np.exp(wide),
        "rounded": [1, -3, 4],
        "straight": [1, -3, 4] + 2 * wide,
    }
    for name, value in expected.items():
        assert close(program.read(name), value, np.abs(value)), name


def test_value_saved_for_backward_is_computed_once() -> None:
    """The gradient reuses the saved answer: there is one EXP2."""
    x = Tensor([1.0, 2.0], open_device("numpy"))
    y = Exp.apply(x)
    (g,) = y.sum().gradient([x])
    listing = compile(lambda: {"y": y, "g": g}, x.device).stages.show("nodes")  # type: ignore[arg-type]
    assert listing.count("EXP2") == 1


def test_second_derivative_goes_through_backward_of_a_function(device: AnyDevice) -> None:
    x = Tensor([0.5, 1.5], device)
    (first,) = Exp.apply(x * 2).sum().gradient([x])
    (second,) = first.sum().gradient([x])
    expected = 4 * np.exp([1.0, 3.0])
    assert close(second.numpy(), expected, expected)


def test_backward_through_a_function_accumulates_grad_of_the_parameters_dtype(
    device: AnyDevice,
) -> None:
    x = Tensor(np.array([0.5, 1.5], np.float16), device, requires_grad=True)
    Exp.apply(x.cast(dtype.f32)).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is dtype.f16
    expected = np.exp([0.5, 1.5])
    assert close(x.grad.numpy(), expected, expected, roundings=2)


def test_errors_of_function_misuse_name_the_class_and_method() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"Two.backward gave 1 gradients for 2 arguments"):
        Two.apply(x, x).sum().gradient([x])
    with pytest.raises(ValueError, match=r"Scalar.backward: gradient 0 is of shape \(\)"):
        Scalar.apply(x).sum().gradient([x])
    with pytest.raises(TypeError, match=r"Number.backward: gradient 0 must be a Tensor, not float"):
        Number.apply(x).sum().gradient([x])
    with pytest.raises(TypeError, match=r"NoTensor.forward must return a Tensor, not 2.0"):
        NoTensor.apply(x)
    with pytest.raises(TypeError, match="Forward has no gradient; define its backward"):
        Forward.apply(x).sum().gradient([x])
