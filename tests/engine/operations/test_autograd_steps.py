"""Gradients accumulated by backward(), custom gradient rules, and gradients inside of steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from imgmlp.engine import AnyDevice, Tensor, compile, cond, dtype, loop, open_device, optim
from imgmlp.engine.ir.graph import Node, function

Array = np.ndarray[Any, Any]
NUMPY = open_device("numpy")


# --- gradients accumulated by backward() ---


def grad_values(tensor: Tensor) -> Any:
    """The values of a Tensor's accumulated gradient, which must exist."""
    assert tensor.grad is not None
    return tensor.grad.numpy().tolist()


def test_backward_accumulates_into_grad_of_tensors_that_require_it(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device, requires_grad=True)
    unused = Tensor(np.ones((2, 1)), device, requires_grad=True)
    plain = Tensor([3.0, 4.0], device)
    assert grad_values(x) == [0, 0]
    (x * x * plain).sum().backward()
    assert grad_values(x) == [6, 16]
    (x * plain).sum().backward()
    assert grad_values(x) == [9, 20]
    assert grad_values(unused) == [[0], [0]]
    assert plain.grad is None
    x.zero_grad()
    assert grad_values(x) == [0, 0]
    x.requires_grad = False
    assert x.grad is None


def test_grad_is_computed_from_the_values_at_backward(device: AnyDevice) -> None:
    """One parameter is updated before the other's gradient is read."""
    a, b = (Tensor([v], device, requires_grad=True) for v in (2.0, 3.0))
    (a * b).sum().backward()
    for p in (a, b):
        assert p.grad is not None
        p.assign(p - p.grad)
    assert a.numpy().tolist() == [-1]
    assert b.numpy().tolist() == [1]


def test_backward_in_a_compiled_step_updates_from_its_own_grad(device: AnyDevice) -> None:
    p = Tensor([1.0, 2.0], device, requires_grad=True)

    def step() -> dict[str, Tensor]:
        p.zero_grad()
        loss = (p**3).sum()
        loss.backward()
        assert p.grad is not None
        p.assign(p - 0.5 * p.grad)
        return {"loss": loss}

    compile(step, device).run(2)
    assert p.numpy().tolist() == [-0.875, -28.0]


def test_grad_accumulated_in_a_step_is_dropped_when_its_tracing_ends(device: AnyDevice) -> None:
    """Compiling a step again gives an equal program; gradients from before it are restored."""
    p = Tensor([1.0, 2.0], device, requires_grad=True)
    (p * 10).sum().backward()

    def step(forget: bool = False) -> dict[str, Tensor]:
        if forget:
            p.zero_grad()
        (p * 2).sum().backward()
        assert p.grad is not None
        return {"g": p.grad * 1}

    for forget, expected in ((False, 12), (True, 2), (False, 12)):
        program = compile(partial(step, forget), device)
        program.run()
        assert program.read("g").tolist() == [expected] * 2
        assert grad_values(p) == [10, 10]
    (p * 3).sum().backward()
    assert grad_values(p) == [13, 13]


def test_grad_accumulated_in_a_loop_or_cond_is_dropped_at_its_end(device: AnyDevice) -> None:
    p = Tensor([1.0, 2.0], device, requires_grad=True)

    def accumulated(x: Tensor) -> Tensor:
        (p * x).sum().backward()
        assert p.grad is not None
        return p.grad

    looped = loop(3, lambda i, x: accumulated(x) + 1, p * 0)
    either = [
        cond(Tensor([n], device), lambda: accumulated(p), lambda: accumulated(p * 0 + 5))
        for n in (0, 1)
    ]
    assert looped.numpy().tolist() == [3, 3]
    assert [t.numpy().tolist() for t in either] == [[5, 5], [2, 4]]
    assert grad_values(p) == [0, 0]
    with pytest.raises(ZeroDivisionError):
        compile(lambda: {"g": accumulated(p), "never": p * (1 // 0)}, device)
    assert grad_values(p) == [0, 0]


def test_backward_and_gradient_refuse_integers_and_unconnected_losses() -> None:
    with pytest.raises(TypeError, match="requires_grad: i32"):
        Tensor([1, 2], requires_grad=True)
    x = Tensor([1.0, 2.0], NUMPY, requires_grad=True)
    with pytest.raises(ValueError, match=r"backward: no Tensor that .* optimizer\.step\(loss\)"):
        Tensor([1.0], NUMPY).sum().backward()
    with pytest.raises(ValueError, match=r"single number, not of shape \(2,\)"):
        x.backward()
    with pytest.raises(TypeError, match="i32"):
        x.cast(dtype.i32).sum().backward()
    with pytest.raises(TypeError, match="gradient: takes a list of Tensors, not int"):
        x.sum().gradient([x, 3])  # type: ignore[list-item]
    whole = Tensor([1, 2], NUMPY)
    with pytest.raises(TypeError, match="gradient: i32 has no gradients; cast to f32"):
        (x * whole).sum().gradient([x, whole])
    assert grad_values(x) == [0, 0]


# --- custom gradient rules, and gradients inside of steps ---


def test_function_node_uses_its_custom_gradient(device: AnyDevice) -> None:
    """Rounding with the gradient of the identity, a straight-through estimator."""
    x, scale = Tensor([0.4, 1.6, -2.2], device), Tensor([1.0, 2.0, 3.0], device)
    rounded = (x + 8.5).cast(dtype.i32).cast(dtype.f32) - 8

    def straight(g: Node, ans: Node, a: Node, b: Node) -> tuple[Node, Node]:
        return g * b, ans

    answer = Tensor(function(rounded.node, [x.node, scale.node], straight), device)
    gx, gscale = (answer * 2).sum().gradient([x, scale])
    assert answer.numpy().tolist() == [0, 2, -2]
    assert gx.numpy().tolist() == [2, 4, 6]
    assert gscale.numpy().tolist() == [0, 2, -2]


def test_gradients_in_a_step_use_the_parameters_before_assignment(device: AnyDevice) -> None:
    """A gradient that is taken after an assignment uses the parameters from before it."""
    p = Tensor([1.0, 2.0], device)
    seen = Tensor([0.0, 0.0], device)

    def step() -> dict[str, Tensor]:
        loss = (p**3).sum()
        p.assign(p - 0.5)
        after = loss.gradient([p])[0]
        seen.assign(after)
        return {"after": after, "loss": loss}

    program = compile(step, device)
    program.run(2)
    assert program.read("after").tolist() == [0.75, 6.75]
    assert seen.numpy().tolist() == [0.75, 6.75]
    assert program.read("loss") == pytest.approx(0.125 + 3.375)
    assert p.numpy().tolist() == [0.0, 1.0]


def test_two_optimizers_in_a_step_use_the_same_old_parameters(device: AnyDevice) -> None:
    a, b = Tensor([2.0], device), Tensor([3.0], device)

    def step() -> dict[str, Tensor]:
        loss = (a * b).sum()
        optim.SGD([a], 1.0).step(loss)
        optim.SGD([b], 1.0).step(loss)
        return {"loss": loss}

    compile(step, device).run()
    assert a.numpy().tolist() == [-1]
    assert b.numpy().tolist() == [1]
