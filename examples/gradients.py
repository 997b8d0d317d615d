"""Gradients of Tensors: backward adds to them, zero_grad resets them, and zero is a gradient too.

python examples/gradients.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, open_device


def kept(device: AnyDevice) -> None:
    """A Tensor that requires a gradient accumulates the gradients of all losses."""
    x = Tensor([1.0, 2.0, 3.0], device, requires_grad=True)
    unused = Tensor([5.0], device, requires_grad=True)
    for round_ in (1, 2):
        x.square().sum().backward()
        print(f"after backward() number {round_}: {x.grad.numpy()}")
        np.testing.assert_allclose(x.grad.numpy(), round_ * 2 * np.arange(1, 4))
    x.zero_grad()
    print(f"after zero_grad(): {x.grad.numpy()}; of a Tensor that no loss used: ", end="")
    print(unused.grad.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros(3))
    np.testing.assert_array_equal(unused.grad.numpy(), np.zeros(1))


def several_ways(device: AnyDevice) -> None:
    """A value that is used twice is computed once, and its gradient is the sum of both."""
    array = np.float32([[0.5, -1.0], [2.0, 0.25]])
    x, sign = Tensor(array, device, name="x"), Tensor([[-3.0, 4.0]], device, name="sign")
    power = x.exp()
    loss = (power * power + power).sum()
    by_itself, by_power, by_x = loss.gradient([loss, power, x])
    print(f"by itself, where everything starts: {by_itself.item()}")
    np.testing.assert_equal(by_itself.item(), 1.0)
    np.testing.assert_allclose(by_power.numpy(), 2 * np.exp(array) + 1, rtol=1e-5)
    np.testing.assert_allclose(by_x.numpy(), (2 * np.exp(array) + 1) * np.exp(array), rtol=1e-5)

    # Only a sign is taken of the second operand, which changes nothing when it moves a little.
    by_x, by_sign = x.copysign(sign).sum().gradient([x, sign])
    print(f"copysign, by the sign: {by_sign.numpy()}, by the magnitude:\n{by_x.numpy()}")
    np.testing.assert_array_equal(by_sign.numpy(), np.zeros((1, 2)))
    np.testing.assert_array_equal(by_x.numpy(), np.sign(array) * [[-1, 1]])

    program = compile(lambda: {"by_x": (power * power + power).sum().gradient([x])[0]}, device)
    tree = program.stages.show("tree")
    print(f"the gradient as a tree, where the power is an Intermediate:\n{tree}")
    np.testing.assert_equal([tree.count("EXP2"), "Intermediate" in tree], [1, True])
    print(f"and for Graphviz:\n{program.stages.show('dot')}")


def second_order(device: AnyDevice) -> None:
    """A gradient is an expression, which has gradients itself."""
    x = Tensor([0.3, 1.2], device)
    (slope,) = x.sin().sum().gradient([x])
    (curvature,) = slope.sum().gradient([x])
    print(f"the second derivative of the sine: {curvature.numpy()}")
    np.testing.assert_allclose(curvature.numpy(), -np.sin([0.3, 1.2]), rtol=1e-6)


def main(device: AnyDevice) -> None:
    kept(device)
    several_ways(device)
    second_order(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
