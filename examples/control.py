"""A loop that is compiled once and replayed, and a conditional that is decided on the device.

python examples/control.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile, cond, loop, open_device


def power_iteration(device: AnyDevice) -> None:
    """The largest eigenvalue of a matrix, by power iteration."""
    array = np.random.default_rng(0).normal(size=(32, 32))
    array = array @ array.T
    matrix = Tensor(array, device, name="matrix")
    start = Tensor(np.ones(32), device, name="start")

    def body(i: Tensor, v: Tensor) -> Tensor:
        longer = matrix @ v
        return longer / longer.square().sum().sqrt()

    def step() -> dict[str, Tensor]:
        v = loop(500, body, start)  # the body is called once, whatever the count
        return {"eigenvalue": (v * (matrix @ v)).sum(), "vector": v}

    program = compile(step, device)
    program.run()
    print(program.stages.show("procedure"))
    figures = program.stages.figures()
    print(f"{figures['kernels']} kernels, launched {figures['launches']} times")
    values, vectors = np.linalg.eigh(array)
    print(f"largest eigenvalue {program.read('eigenvalue'):.4f}, NumPy finds {values[-1]:.4f}")
    np.testing.assert_allclose(program.read("eigenvalue"), values[-1], rtol=1e-4)
    alike = abs(program.read("vector") @ vectors[:, -1])
    np.testing.assert_allclose(alike, 1.0, rtol=1e-4)


def collatz(device: AnyDevice) -> None:
    """The Collatz sequence: n / 2 if n is even, otherwise 3 n + 1. It ends at 1."""
    number = Tensor(np.int32(27), device, name="number")
    steps = Tensor(np.int32(0), device, name="steps")

    def step() -> dict[str, Tensor]:
        n = cond(number % 2, lambda: number * 3 + 1, lambda: number // 2)
        arrived = number.eq(1)
        number.assign(Tensor.where(arrived, number, n))
        steps.assign(Tensor.where(arrived, steps, steps + 1))
        return {"steps": steps}

    program = compile(step, device)
    print(program.stages.show("procedure"))
    program.run(150)  # the host does not know which branch was taken
    n, expected = 27, 0
    while n != 1:
        n, expected = (n * 3 + 1 if n % 2 else n // 2), expected + 1
    print(f"from 27 it takes {program.read('steps')} steps to 1")
    np.testing.assert_equal(int(program.read("steps")), expected)


def gradients(device: AnyDevice) -> None:
    """Gradients pass through both: a loop is unrolled, and a conditional has a conditional one."""
    x = Tensor(np.float64([0.5, 2.0]), device, requires_grad=True)
    positive = Tensor(np.bool_(True), device)
    cubed = loop(2, lambda i, y: y * x, x)  # x ** 3
    cond(positive, lambda: cubed, lambda: -cubed).sum().backward()
    print(f"the gradient of x ** 3 is {x.grad.numpy()} at {x.numpy()}")
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.square([0.5, 2.0]), rtol=1e-6)


def main(device: AnyDevice) -> None:
    power_iteration(device)
    print()
    collatz(device)
    print()
    gradients(device)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
