"""Optimizers outside of a compiled step update parameters and state as inside of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import AnyDevice, Tensor, assign_all, compile, open_device, optim

RNG = np.random.default_rng(0)
INITIAL_VALUES = [RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 2), (2,), ())]
STEPS = 3

Optimizer = optim.SGD | optim.AdamW | optim.SOAP
OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], Optimizer]] = {
    "SGD": lambda parameters: optim.SGD(parameters, 0.02),
    "Adam": lambda parameters: optim.Adam(parameters, 0.1),
    "AdamW": lambda parameters: optim.AdamW(parameters, 0.1),
    "seed": lambda parameters: optim.AdamW(parameters, 0.1, form="seed"),
    "SOAP": lambda parameters: optim.SOAP(parameters, 0.1),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.fixture(scope="module", params=["numpy", "one"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def initial_parameters(device: AnyDevice) -> list[Tensor]:
    return [Tensor(value, device, requires_grad=True) for value in INITIAL_VALUES]


def loss(parameters: Sequence[Tensor]) -> Tensor:
    """A loss whose gradient by each parameter depends on all of them."""
    weight, bias, factor = parameters
    return ((weight + bias) * factor - 0.5).square().sum()


def clipped(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients scaled to a joint norm of at most 0.3."""
    norm = sum((g.square().sum() for g in gradients[1:]), gradients[0].square().sum()).sqrt()
    return [g * (0.3 / norm).minimum(1.0) for g in gradients]


def run_compiled_steps(
    name: str, device: AnyDevice, act: Callable[[Optimizer, list[Tensor]], None]
) -> list[np.ndarray]:
    """Parameters and state after some compiled steps."""
    parameters = initial_parameters(device)
    optimizer = OPTIMIZERS[name](parameters)
    compile(lambda: act(optimizer, parameters) or {}, device).run(STEPS)
    return values(optimizer)


def values(optimizer: Optimizer) -> list[np.ndarray]:
    state = [] if isinstance(optimizer, optim.SGD) else optimizer.state()
    return [t.numpy() for t in (*optimizer.parameters, *state)]


def assert_near(actual: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Differently fused kernels round differently."""
    for mine, other in zip(actual, wanted, strict=True):
        assert np.allclose(mine, other, rtol=1e-4, atol=1e-5)


@every_optimizer
def test_immediate_optimizer_steps_equal_compiled_steps(device: AnyDevice, name: str) -> None:
    def act(optimizer: Optimizer, parameters: list[Tensor]) -> None:
        optimizer.step(loss(parameters))

    parameters = initial_parameters(device)
    optimizer = OPTIMIZERS[name](parameters)
    for _ in range(STEPS):
        act(optimizer, parameters)
    assert_near(values(optimizer), run_compiled_steps(name, device, act))
    assert np.abs(parameters[0].numpy() - INITIAL_VALUES[0]).max() > 0.01


@every_optimizer
def test_apply_with_backward_gradients_equals_compiled_steps(device: AnyDevice, name: str) -> None:
    parameters = initial_parameters(device)
    optimizer = OPTIMIZERS[name](parameters)
    for _ in range(STEPS):
        for p in parameters:
            p.zero_grad()
        loss(parameters).backward()
        optimizer.apply([p.grad for p in parameters if p.grad is not None])
    expected = run_compiled_steps(name, device, lambda optimizer, own: optimizer.step(loss(own)))
    assert_near(values(optimizer), expected)


@every_optimizer
def test_immediate_steps_with_clipped_gradients_equal_compiled_steps(
    device: AnyDevice, name: str
) -> None:
    """The scale factor of each gradient depends on all gradients."""

    def act(optimizer: Optimizer, parameters: list[Tensor]) -> None:
        optimizer.apply(clipped(loss(parameters).gradient(parameters)))

    parameters = initial_parameters(device)
    optimizer = OPTIMIZERS[name](parameters)
    for _ in range(STEPS):
        act(optimizer, parameters)
    assert_near(values(optimizer), run_compiled_steps(name, device, act))


def test_one_immediate_sgd_step_uses_parameters_before_the_step(device: AnyDevice) -> None:
    a, b = Tensor(np.float32(1), device), Tensor(np.float32(3), device)
    optim.SGD([a, b], 0.1).step((a * b).square())
    assert np.allclose([a.item(), b.item()], [1 - 0.1 * 18, 3 - 0.1 * 6])


@pytest.mark.parametrize("inside", [False, True])
def test_assign_all_computes_every_value_from_the_state_before(
    device: AnyDevice, inside: bool
) -> None:
    a, b = Tensor([1.0, 2.0], device), Tensor([3.0, 4.0], device)

    def swap() -> dict[str, Tensor]:
        assign_all([(a, b), (b, a + 1)])
        return {}

    if inside:
        compile(swap, device).run()
    else:
        swap()
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([3, 4], [2, 3])


def test_refused_assign_all_assigns_nothing() -> None:
    device = open_device("numpy")
    a, b = Tensor([1.0], device), Tensor([2.0], device)
    with pytest.raises(ValueError, match="gets two values in one step"):
        assign_all([(a, b), (a, a + 1)])
    with pytest.raises(ValueError, match="only a realized Tensor holds state"):
        assign_all([(a, b), (b * 2, a)])
    with pytest.raises(ValueError, match="made without a device"):
        assign_all([(Tensor([1.0]), 2)])
    assign_all([])
    assign_all([(Tensor(np.zeros((0, 2)), device), 1), (a, 5)])
    assert (a.item(), b.item()) == (5, 2)
