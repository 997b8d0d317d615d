"""Two linear layers, compiled ahead of time, with inputs and outputs that are sent while steps run.

    python examples/linear_layer.py [DEVICE]

The step is compiled once; its graph, its kernels and its memory plan are printed. Then the host
only sends inputs (Feeder), replays the step, and receives results (Receiver).
"""

from __future__ import annotations

import sys
import time

import numpy as np

from imgmlp.engine import (
    AnyDevice,
    Feeder,
    Program,
    Receiver,
    Tensor,
    compile,
    nn,
    open_device,
    optim,
)

ROWS, FEATURES, STEPS, LR = 2, 255, 600, 0.01


def network(device: AnyDevice) -> nn.Sequential:
    def layer(name: str, seed: int) -> nn.Linear:
        drawn = Tensor.normal((FEATURES, FEATURES), seed, variance=1 / FEATURES, device=device)
        bias = Tensor.empty(FEATURES, device=device, name=f"{name}_bias")
        return nn.Linear(drawn.realize(name), bias)

    return nn.Sequential(layer("first", 1), nn.sigmoid, layer("second", 2))


def inputs() -> np.ndarray:
    """A row of 0.2 and one of 0.3, float32 [ROWS, FEATURES]."""
    return np.repeat(np.float32([[0.2], [0.3]]), FEATURES, axis=1)


def compile_step(net: nn.Sequential, x: Tensor, device: AnyDevice) -> Program:
    """Gradient descent that moves all outputs towards 1."""
    optimizer = optim.SGD(net.parameters(), LR)

    def step() -> dict[str, Tensor]:
        loss = (net(x) - 1.0).square().sum()
        optimizer.step(loss)
        names = ("first", "first_bias", "second", "second_bias")
        return {"loss": loss, **dict(zip(names, net.parameters(), strict=True))}

    return compile(step, device, general=True)  # kernel by kernel, which is easier to read


def numpy_steps(values: list[np.ndarray], x: np.ndarray, steps: int) -> list[float]:
    """The same in NumPy, in float64 and in place; returns the loss before each step."""
    w, b, v, c = values
    losses = []
    for _ in range(steps):
        hidden = 1 / (1 + np.exp(-(x @ w + b)))
        error = hidden @ v + c - 1.0
        losses.append(float((error**2).sum()))
        back = (2 * error @ v.T) * hidden * (1 - hidden)
        v -= LR * hidden.T @ (2 * error)
        c -= LR * 2 * error.sum(0)
        w -= LR * x.T @ back
        b -= LR * back.sum(0)
    return losses


def main(device: AnyDevice) -> None:
    net = network(device)
    x = Tensor.empty(ROWS, FEATURES, device=device, name="x")
    values = [p.numpy().astype(np.float64) for p in net.parameters()]
    program = compile_step(net, x, device)
    for form in ("tree", "procedure", "memory"):
        print(f"--- {form}\n{program.stages.show(form)}\n")
    print(f"figures: {program.stages.figures()}\n")

    heard: dict[int, float] = {}
    receiver = Receiver(program, ["loss"], lambda i, got: heard.update({i: got["loss"].item()}))
    feeder = Feeder(program, x)
    made = device.usage.live + device.usage.freed
    begin = time.perf_counter()
    for i in range(STEPS):
        feeder.send(inputs())
        program.run()
        if i % 100 == 0:
            receiver.send(i)
        receiver.poll()
    enqueued = time.perf_counter() - begin
    receiver.wait()
    program.wait()
    print(f"{STEPS} steps: enqueued after {enqueued:.2f} s, done after", end=" ")
    print(f"{time.perf_counter() - begin:.2f} s\nlosses that came back: {heard}")
    print(f"on the device: {device.usage.summary()}; replaying allocated nothing")
    np.testing.assert_equal(device.usage.live + device.usage.freed, made)

    expected = numpy_steps(values, inputs().astype(np.float64), STEPS)
    np.testing.assert_allclose(
        [heard[i] for i in (0, 100)], [expected[0], expected[100]], atol=1e-3
    )
    np.testing.assert_equal(expected[-1] < 1e-4 and heard[500] < 1e-4, True)
    for name, array in zip(("first", "first_bias", "second", "second_bias"), values, strict=True):
        np.testing.assert_allclose(program.read(name), array, atol=1e-4)
    print("the parameters are those that NumPy finds in float64, within 1e-4")


if __name__ == "__main__":
    main(open_device(*sys.argv[1:]))
