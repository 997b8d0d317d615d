"""A function of one variable, learned by a small network from random points.

    python examples/function_fit.py [DEVICE]

The inputs of the network are sines and cosines of x at a few frequencies, so it can follow the
wave. Afterwards it is evaluated between the points that it was trained on.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype, nn, open_device, optim

LOW, HIGH = -2.0, 2.0
FREQUENCIES = 2.0 ** np.arange(-2, 3)  # radians for each 1 of x: 0.25 to 4
BATCH, STEPS, LR = 256, 1500, 0.01


def target(x: np.ndarray) -> np.ndarray:
    return x * x * 2.777 + 0.624 - x**3 * 0.333 + np.sin(x * 5) * 0.777


def tensor_target(x: Tensor) -> Tensor:
    """The same, computed on the device."""
    return x * x * 2.777 + 0.624 - x**3 * 0.333 + (x * 5).sin() * 0.777


def network(device: AnyDevice) -> nn.Sequential:
    """[rows, 1] -> [rows, 1]."""

    def features(x: Tensor) -> Tensor:
        phases = x * Tensor(FREQUENCIES.reshape(1, -1), device)  # [rows, frequencies]
        return Tensor.concat([phases.sin(), phases.cos()], axis=1)

    sizes = (2 * len(FREQUENCIES), 32, 32)
    hidden = [nn.Linear.random(sizes[i], sizes[i + 1], seed=i, device=device) for i in range(2)]
    last = nn.Linear.random(32, 1, seed=2, device=device)
    return nn.Sequential(features, hidden[0], nn.relu, hidden[1], nn.relu, last)


def compile_step(net: nn.Sequential, device: AnyDevice) -> Program:
    count = Tensor(np.uint32(0), device, name="count")
    done = count.cast(dtype.f32)
    rate = ((done * (math.pi / STEPS)).cos() + 1.0) * (LR / 2)  # falls to 0 along a cosine
    optimizer = optim.AdamW(net.parameters(), rate, weight_decay=0.0)

    def step() -> dict[str, Tensor]:
        x = Tensor.uniform((BATCH, 1), count, device) * (HIGH - LOW) + LOW
        loss = (net(x) - tensor_target(x)).square().mean()
        optimizer.step(loss)
        count.assign(count + 1)
        return {"loss": loss}

    return compile(step, device)


def first_losses(device: AnyDevice) -> list[float]:
    """The first ten losses, which are equal on all devices up to rounding."""
    program, losses = compile_step(network(device), device), []
    for _ in range(10):
        program.run()
        losses.append(program.read("loss").item())
    return losses


def draw(x: np.ndarray, found: np.ndarray) -> None:
    """The target curve (.) and the learned one (o) as text, with x downwards."""
    low, high = target(x).min(), target(x).max()
    for at, expected, got in zip(x, target(x), found, strict=True):
        row = [" "] * 61
        for value, mark in ((expected, "."), (got, "o")):
            row[int(np.clip((value - low) / (high - low), 0, 1) * 60)] = mark
        print(f"{at:6.2f}  {''.join(row)}  {got:7.3f}")


def main(device: AnyDevice) -> None:
    np.testing.assert_allclose(first_losses(device), first_losses(open_device("numpy")), rtol=1e-3)
    net = network(device)
    program = compile_step(net, device)
    for done in range(300, STEPS + 1, 300):
        program.run(300)
        print(f"step {done:5d}  loss {program.read('loss').item():.2e}")

    x = np.linspace(LOW, HIGH, 1001, dtype=np.float32)
    found = net(Tensor(x.reshape(-1, 1), device)).numpy().reshape(-1)
    draw(x[::40], found[::40])
    error = np.sqrt(np.mean((found - target(x)) ** 2))
    print(f"root of the mean squared error {error:.4f}, values span {np.ptp(target(x)):.2f}")
    np.testing.assert_equal(bool(error < 0.05), True)


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
